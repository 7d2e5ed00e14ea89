"""Names and quantities as administrators write them, resolved: fields, bits, rates, shares, durations, node names.

Pure; each function raises ``Refused(problem, hint)``, which the caller turns
into an InputError with the place.
"""

from __future__ import annotations

import re
from typing import Any, Final, Union

from slurm_nvhc.catalog import diags
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model.times import parse_duration
from slurm_nvhc.yaml_errors import nearest, text_hint

MAX_DIAG_ERROR: Final = 9999
MAX_NODE_NAMES: Final = 10_000  # of all node patterns of one file together a few clusters' worth

BITS: Final = {
    "hw_slowdown": cat.CLOCK_HW_SLOWDOWN,
    "sw_thermal": cat.CLOCK_SW_THERMAL,
    "hw_thermal": cat.CLOCK_HW_THERMAL,
    "power_brake": cat.CLOCK_POWER_BRAKE,
}
_RATE = re.compile(r"\s*([0-9.eE+-]+)\s*/\s*(s|sec|min|m|h|hour)\s*\Z")
_PER_S: Final = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0}
_RANGES = re.compile(r"\[([0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\]")


class Refused(Exception):
    """What a person wrote can not be taken: ``problem`` and ``hint`` as in NvhcError."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


def field(reference: Union[str, int]) -> cat.Field:
    """The catalogue's field for its name or DCGM's numeric id."""
    if isinstance(reference, bool):
        raise Refused("a field's name or number was expected")
    if isinstance(reference, int):
        return _by_id(reference)
    if reference in cat.BY_NAME:
        return cat.BY_NAME[reference]
    if reference.isdigit():
        raise Refused(f"unknown field {reference!r}", f"write {reference} without quotes")
    if reference.lower() == "xid":
        raise Refused("Xids are events, not a reading", "leave field out and write xid: in warn or fail")
    raise Refused(f"unknown field {reference}", nearest(reference, cat.BY_NAME, "docs/policy.md lists the fields"))


def _by_id(number: int) -> cat.Field:
    if number == cat.XID_FIELD_ID:
        raise Refused("field 230 keeps the last Xid for ever and is not read as a number", "leave field out and write xid: in warn or fail")
    if number in cat.BY_ID:
        name, link = cat.BY_ID[number]
        if link is not None:
            raise Refused(f"field {number} is {name} of link {link} alone", f"write {name}: it judges every link by itself")
        return cat.BY_NAME[name]
    items = [known.name for known in cat.ALL if known.bits is not None and known.dcgm_id == number]
    if items:
        raise Refused(f"field {number} holds several readings", f"write one of them: {', '.join(items)}")
    for known in cat.ALL:
        if known.packed_id == number:
            raise Refused(f"field {number} is {known.name} in another form", f"write {known.name}")
        if known.link_entity_id == number:
            raise Refused(f"field {number} is {known.name} on link entities", f"write {known.name}: it judges every link by itself")
    raise Refused(f"field {number} is not in the field catalogue", "docs/policy.md lists the fields")


def bits(value: Union[int, str, list[str]]) -> int:
    """A mask of clock event reasons, from itself or from names."""
    if isinstance(value, int):
        if not 0 < value < 2**63:
            raise Refused("a mask must have at least one bit and no sign")
        return value
    mask = 0
    for name in [value] if isinstance(value, str) else value:
        if name not in BITS:
            known = "write a mask without quotes" if name.lower().startswith("0x") else f"known: {', '.join(BITS)}"
            raise Refused(f"unknown bit {name}", nearest(name, BITS, known))
        mask |= BITS[name]
    if not mask:
        raise Refused("names no bit", f"known: {', '.join(BITS)}")
    return mask


def rate(value: Union[str, int, float]) -> float:
    """'8/min' per second."""
    if not isinstance(value, str):
        raise Refused(f"the rate {value} has no unit", f"write {value}/s, {value}/min or {value}/h")
    match = _RATE.match(value)
    try:
        if match:
            return float(match.group(1)) / _PER_S[match.group(2)]
    except ValueError:
        pass
    raise Refused(f"{value!r} is not a rate", text_hint(value, False) or "write a number and a unit: 8/min, 100/s or 3/h")


def share(value: Union[str, int, float]) -> float:
    """'1%' as 0.01."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            part = float(value.strip()[:-1]) / 100
        except ValueError:
            part = -1.0
        if 0 <= part < 1:
            return part
        raise Refused(f"{value!r} is not a share of a window", "write a percentage from 0% to below 100%")
    raise Refused(f"{value!r} is not a share", "write it in per cent, e.g. 1%")


def amount(value: Union[str, int, float]) -> tuple[float, bool]:
    """(10, False) for 10, (0.15, True) for '15%'."""
    if isinstance(value, str):
        return share(value), True
    return float(value), False


def duration(value: Union[str, int, float]) -> float:
    """Seconds."""
    try:
        return parse_duration(value)
    except ValueError as exc:
        raise Refused(str(exc), text_hint(value, False) if isinstance(value, str) else "") from None


def limit(value: Union[str, int]) -> dict[str, Any]:
    """Nodes: 2, or a share: '5%'. As compiled.Limit."""
    text = str(value).strip()
    share = text.endswith("%")
    try:
        number = float(text[:-1]) if share else int(text)
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not (0 < number <= 100 if share else 0 <= number <= 1_000_000):
        raise Refused(f"{text!r} is no number of nodes", "a number such as 2, or a share above 0 % such as 5%")
    return {"number": None, "share": number / 100} if share else {"number": int(number), "share": None}


def signal_name(value: str) -> str:
    """A signal as scancel takes it: USR1, SIGUSR1 or a number."""
    name = value.strip().upper().removeprefix("SIG")
    if name not in ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "WINCH"):
        raise Refused(f"{value} is not a signal for this", "USR1, USR2, TERM, HUP, INT, ALRM, CONT or WINCH")
    return name


def diagnostic(value: Union[int, str, list[str]]) -> list[str]:
    """A level, or tests: "none" -> [], 2 -> ["2"], "memory, pcie" -> ["memory", "pcie"]."""
    if isinstance(value, bool):
        raise Refused("a level, tests or none was expected")
    if isinstance(value, int):
        value = str(value)
    if isinstance(value, str):
        value = [] if value == "none" else value.split(",")
    if [v.strip() for v in value] in [[level] for level in diags.LEVELS]:
        return [value[0].strip()]
    return tests(value)


def tests(value: list[str]) -> list[str]:
    """Names of DCGM's tests, each once."""
    for called in value:
        if diags.name(called) not in diags.BY_NAME:
            level = called.strip().isdigit()
            hint = "one level from 1 to 4, or tests by name" if level else nearest(called, diags.BY_NAME, ", ".join(diags.BY_NAME))
            raise Refused(f"unknown diagnostic {called.strip()[:40]!r}", hint)
    return list(dict.fromkeys(diags.name(called) for called in value))


def diag_errors(value: Union[int, str, list[Union[int, str]]]) -> list[int]:
    """Numbers of DCGM's errors (DCGM_FR_…) from numbers or names; one that is newer than our table by its number."""
    out = [_diag_error(given) for given in (value if isinstance(value, list) else [value])]
    if not out:
        raise Refused("names no error")
    return list(dict.fromkeys(out))


def _diag_error(given: Union[int, str]) -> int:
    if isinstance(given, int):
        if isinstance(given, bool) or not 0 < given <= MAX_DIAG_ERROR:
            raise Refused(f"{given} is no error of DCGM's")
        return given
    name = given.upper().removeprefix("DCGM_FR_")
    if name not in diags.NUMBERS:
        hint = f"write {given} without quotes" if given.isdigit() else nearest(name, diags.NUMBERS, "its number does as well")
        raise Refused(f"unknown error {given[:40]!r}", hint)
    return diags.NUMBERS[name]


def severities(value: Union[str, list[str]]) -> list[str]:
    """Severities of errors as DCGM says them."""
    known = list(diags.SEVERITIES.values())
    given = value if isinstance(value, list) else [value]
    for one in given:
        if one not in known:
            raise Refused(f"unknown severity {one[:40]!r}", nearest(one, known, ", ".join(known)))
    if not given:
        raise Refused("names no severity", ", ".join(known))
    return list(dict.fromkeys(given))


def words(field_: cat.Field, values: list[Union[str, int, float]]) -> list[Union[str, int, float]]:
    """Values of a state: a word that stands for a number (fabric state 'failure') becomes that number."""
    if field_.unit == cat.WORD:
        if not values or not all(isinstance(value, str) and value for value in values):
            raise Refused(f"{field_.name} is a word", "write text in quotes")
        return values
    if field_.name == "nvlink_state":
        known: dict[str, Union[str, int]] = {word: word for word in cat.LINK_STATES}
    else:
        known = {word: number for number, word in field_.words.items()}
    out: list[Union[str, int, float]] = []
    for value in values:
        if isinstance(value, str):
            if value not in known:
                raise Refused(
                    f"{value!r} is not a value of {field_.name}",
                    nearest(value, known, f"known: {', '.join(known)}" if known else text_hint(value, False) or "write a number"),
                )
            out.append(known[value])
        elif field_.name == "nvlink_state":
            raise Refused(f"{value} is not a link state", f"known: {', '.join(known)}")
        else:
            out.append(value)
    if not out:
        raise Refused("names no value")
    return out


def node_names(pattern: str) -> list[str]:
    """A node pattern as names and shell patterns: 'n[01-04],login*' is n01, n02, n03, n04 and login*.

    Brackets with numbers are Slurm's, so 'n[10-12]' means three nodes; other
    brackets ('n[!a]') stay the shell's.
    """
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]+\])*", pattern):
        raise Refused(f"{pattern[:60]!r} has a bracket without its other half")
    out: list[str] = []
    for part in _split(pattern):
        out += _expand(part)
        if len(out) > MAX_NODE_NAMES:
            raise Refused(f"{pattern[:60]} names more than {MAX_NODE_NAMES} nodes", "use a pattern such as n*")
    if not out or any(not name or any(c.isspace() for c in name) for name in out):
        raise Refused(f"{pattern[:60]!r} is not a node name, hostlist or pattern")
    return out


def _split(text: str) -> list[str]:
    """At commas that are not within brackets."""
    return re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text)


def _expand(text: str) -> list[str]:
    match = _RANGES.search(text)
    if not match:
        return [text]
    heads = []
    for item in match.group(1).split(","):
        low, _, high = item.partition("-")
        high = high or low
        if int(high) < int(low):
            raise Refused(f"the range {item} runs backwards")
        if len(high) > 9 or int(high) - int(low) >= MAX_NODE_NAMES:
            raise Refused(f"the range {item} names more than {MAX_NODE_NAMES} nodes")
        heads += [f"{text[: match.start()]}{n:0{len(low)}d}" for n in range(int(low), int(high) + 1)]
    tails = _expand(text[match.end() :])
    if len(heads) * len(tails) > MAX_NODE_NAMES:
        raise Refused(f"{text[:60]} names more than {MAX_NODE_NAMES} nodes", "use a pattern such as n*")
    return [head + tail for head in heads for tail in tails]
