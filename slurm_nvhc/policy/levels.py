"""One level (a set of conditions): checked against the fields it is asked of, and normalised.

In: what the administrator wrote, as plain data (schema.Level without absent keys).
Out: the keyword arguments of compiled.Level: seconds, per-second rates, lists.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Final, Mapping, Optional, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.policy import references as ref
from slurm_nvhc.policy.references import Refused

GROWTH: Final = ("increase_above", "increase_at_least", "rate_above", "rate_at_least", "share_above", "over_limit", "poisson", "cusum")
VALUES: Final = ("value_above", "value_below", "value_at_least", "value_at_most")
OTHERS: Final = (
    "value_is", "value_is_not", "bits_any", "below_field", "above_field", "went_down", "peers", "below_learned", "not_as_learned",
)  # fmt: skip
READING: Final = (*GROWTH, *VALUES, *OTHERS)
DIAG: Final = ("diag", "test", "error", "severity")
CONDITIONS: Final = (*READING, "xid", "sxid", "lost", "diag")

_CONVERT: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "rate_above": ("rate_above", ref.rate),
    "rate_at_least": ("rate_at_least", ref.rate),
    "share_above": ("share_above", ref.share),
    "bits_any": ("bits_any", ref.bits),
    "spacing": ("spacing_s", ref.duration),
    "settle": ("settle_s", ref.duration),
    "within": ("within_s", ref.duration),
    "min_window": ("min_window_s", ref.duration),
    "poisson": ("poisson", lambda raw: _poisson(raw)),
    "cusum": ("cusum", lambda raw: _cusum(raw)),
    "peers": ("peers", lambda raw: _peers(raw)),
}
MAX_XID: Final = 9999
MAX_SXID: Final = 99_999
MAX_COUNT: Final = 64  # judge/ remembers this many occurrences of one condition


class LevelProblem(Refused):
    """As Refused, with the key of the level that is at fault ('' for the level as a whole)."""

    def __init__(self, key: str, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.key = key


def normalise(raw: Mapping[str, Any], fields: Sequence[cat.Field], kind: str) -> dict[str, Any]:
    """A level of a rule of ``kind`` over ``fields`` (empty for events and presence). Raises LevelProblem."""
    if kind == "diag" and not any(key in raw for key in CONDITIONS):
        raise LevelProblem("", "does not say which results of a diagnostic it means", "diag: fail, diag: warn, or diag: [fail, warn]")
    if not any(key in raw for key in CONDITIONS):
        raise LevelProblem("", "asks nothing", "give a condition such as increase_at_least, value_is, xid or lost")
    out: dict[str, Any] = {}
    for key, value in raw.items():
        try:
            name, plain = _one(key, value, fields)
        except LevelProblem:
            raise
        except Refused as exc:
            raise LevelProblem(key, exc.problem, exc.hint) from None
        _fits(key, fields, kind)
        _sane(key, plain)
        if key in DIAG:
            out.setdefault("diag", {}).update(plain)
        else:
            out.update(plain if name == "" else {name: plain})
    _together(raw, out, kind)
    return out


def _one(key: str, value: Any, fields: Sequence[cat.Field]) -> tuple[str, Any]:
    """(normalised key, value); key '' when the value is several normalised entries."""
    if key in _CONVERT:
        name, convert = _CONVERT[key]
        return name, convert(value)
    if key in ("value_is", "value_is_not"):
        given = value if isinstance(value, list) else [value]
        return key, ref.words(fields[0], given) if len(fields) == 1 else _plain_values(fields, given)
    if key in ("below_field", "above_field"):
        return key, _comparable(ref.field(value), fields)
    if key == "xid":
        return "", {"xid_other": True} if value == "other" else {"xid": _xids(value)}
    if key == "sxid":
        return key, [] if value == "any" else _xids(value, MAX_SXID)
    if key in DIAG:
        return "", _diag(key, value)
    if key == "unless":
        return "", _unless(value, fields)
    if key == "only_when":
        return key, _others(key, value, fields)
    return key, value


def _plain_values(fields: Sequence[cat.Field], given: list[Any]) -> list[Any]:
    for field in fields:
        given = ref.words(field, given)
    return given


def _comparable(other: cat.Field, fields: Sequence[cat.Field]) -> str:
    for field in fields:
        if other.scope != field.scope:
            both = f"{other.name} belongs to a {other.scope}, {field.name} to a {field.scope}"
            raise Refused(both, "compare with a field of the same thing")
        if other.unit != field.unit or other.name == field.name or not other.live:
            raise Refused(f"{field.name} can not be compared with {other.name}", "both must have one unit and be two fields")
    return other.name


def _poisson(raw: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"per_s": ref.rate(raw["rate"])}
    if out["per_s"] <= 0:
        raise Refused("a normal rate of 0 makes every error an alarm", "use increase_at_least, or a small rate such as 0.001/h")
    if "own" in raw:
        out["own_per_s"] = ref.rate(raw["own"])
        if out["own_per_s"] < out["per_s"]:
            raise Refused("own is below rate", "own is the most that the counter's past may raise it to")
    if "ber" in raw:
        out["ber"] = float(raw["ber"])
        if not 0 < out["ber"] < 1:
            raise Refused(f"{raw['ber']:g} is no bit error ratio", "e.g. ber: 1e-15")
    return out


def _cusum(raw: Mapping[str, Any]) -> dict[str, Any]:
    out = {"normal_per_s": ref.rate(raw["normal"]), "faulty_per_s": ref.rate(raw["faulty"])}
    if not 0 < out["normal_per_s"] < out["faulty_per_s"]:
        raise Refused("normal must be above 0 and below faulty", "e.g. cusum: {normal: 0.001/h, faulty: 0.5/h}")
    return out


def _peers(raw: Mapping[str, Any]) -> dict[str, Any]:
    sides = [side for side in ("above", "below") if side in raw]
    if len(sides) != 1:
        raise Refused("peers needs above or below, and not both", "e.g. peers: {below: 15%}")
    size, relative = ref.amount(raw[sides[0]])
    mad = float(raw.get("mad", 3))
    if size <= 0 or mad < 0:
        raise Refused("peers takes amounts above 0")
    return {"side": sides[0], "amount": size, "relative": relative, "mad": mad}


def _xids(value: Any, most: int = MAX_XID) -> list[int]:
    numbers = value if isinstance(value, list) else [value]
    if not numbers:
        raise Refused("names no Xid")
    for number in numbers:
        if not 0 < number <= most:
            raise Refused(f"{number} is not an {'Xid' if most == MAX_XID else 'SXid'} number")
    return list(dict.fromkeys(numbers))


def _diag(key: str, value: Any) -> dict[str, Any]:
    """A part of compiled.Diag."""
    if key == "diag":
        status = value if isinstance(value, list) else [value]
        if not status:
            raise Refused("names no result", "diag: fail, diag: warn, or diag: [fail, warn]")
        return {"status": list(dict.fromkeys(status))}
    if key == "test":
        if value == "hardware":
            return {"tests": list(diags.HARDWARE)}
        named = ref.tests(value if isinstance(value, list) else value.split(","))
        if not named:
            raise Refused("names no test", "leave it out for any")
        return {"tests": named}
    if key == "severity":
        return {"severities": ref.severities(value)}
    return {"other": True} if value == "other" else {"errors": ref.diag_errors(value)}


def _unless(raw: Mapping[str, Any], fields: Sequence[cat.Field]) -> dict[str, Any]:
    if not raw:
        raise Refused("names nothing", "e.g. unless: {row_remap_pending: 1}")
    out: dict[str, Any] = {}
    for name in ("xid", "peer_xid"):
        if name in raw:
            values = raw[name] if isinstance(raw[name], list) else [raw[name]]
            if not all(isinstance(v, int) for v in values):
                raise Refused(f"{name} takes Xid numbers")
            out["unless_xid" if name == "xid" else "unless_peer_xid"] = _xids(values)
    readings = {name: value for name, value in raw.items() if name not in ("xid", "peer_xid")}
    return {**out, "unless": _others("unless", readings, fields)} if readings else out


def _others(key: str, raw: Mapping[str, Any], fields: Sequence[cat.Field]) -> list[Any]:
    """Other readings of the same GPU (of a link: of its GPU), switch, port or node, with the values that are meant."""
    whose = fields[0].scope if fields and fields[0].scope in cat.PART_SCOPES else cat.GPU
    if not raw:
        raise Refused("names nothing", f"e.g. {key}: {{gpu_processes: 0}}")
    out: list[Any] = []
    for name, value in raw.items():
        field = ref.field(int(name) if name.isdigit() else name)
        if field.scope != whose or not field.live:
            why = f"belongs to a {field.scope}" if field.live else "has no value of this moment"
            raise Refused(f"{field.name} {why}", f"{key} looks at the {'GPU' if whose == cat.GPU else 'same part'}'s own readings")
        out.append([field.name, ref.words(field, value if isinstance(value, list) else [value])])
    return out


def _fits(key: str, fields: Sequence[cat.Field], kind: str) -> None:
    """Does the condition make sense for what the rule looks at?"""
    wrong: Optional[tuple[str, str]] = None
    if kind == "diag":
        wrong = _misfit_of_diag(key)
    elif key in DIAG:
        wrong = (f"{key} can not stand in a rule about anything else than diagnostics", "make it a rule of its own, without field")
    elif (key in ("xid", "sxid", "fatal") and kind != "event") or (key == "lost" and kind != "presence"):
        wrong = (f"{key} can not stand in a rule that reads fields", "make it a rule of its own, without field")
    elif key in READING and kind != "reading":
        wrong = (f"{key} needs a field", "give the rule a field, or ask for the other thing in a rule of its own")
    elif kind == "presence" and key in ("within", "users", "hits", "of_last"):
        wrong = (f"{key} does not fit lost GPUs", "use consecutive")
    elif kind == "event" and key in ("consecutive", "settle", "spacing", "of_last"):
        wrong = (f"{key} does not fit Xids", "use hits and within")
    elif key == "witness" and kind != "presence":
        wrong = ("witness is for lost GPUs only", "")
    elif key == "unless" and kind == "presence":
        wrong = ("unless does not fit lost GPUs", "")
    elif key == "only_when" and kind != "reading":
        wrong = ("only_when looks at readings", "give the rule a field")
    else:
        for field in fields:
            wrong = wrong or _misfit(key, field)
    if wrong:
        raise LevelProblem(key, *wrong)


def _misfit_of_diag(key: str) -> Optional[tuple[str, str]]:
    if key in DIAG or key == "unless":
        return None
    if key in CONDITIONS or key == "fatal":
        return f"{key} can not stand in a rule about diagnostics", "make it a rule of its own"
    return f"{key} does not fit diagnostics", "each of them is judged by itself; its own errors say how grave it is"


def _misfit(key: str, field: cat.Field) -> Optional[tuple[str, str]]:
    if key == "peers" and (field.scope != cat.GPU or field.kind not in (cat.COUNTER, cat.GAUGE)):
        return f"peers compares numbers of GPUs, not {field.name}", ""
    if key == "below_learned" and field.kind not in (cat.GAUGE, cat.FLAG):
        return f"below_learned needs a gauge, {field.name} is a {field.kind}", "use not_as_learned"
    if key in GROWTH and field.kind != cat.COUNTER:
        return f"{key} needs a counter, {field.name} is a {field.kind}", "use value_above, value_is or the like"
    if not field.live and key in READING and key != "peers":
        return f"{field.name} is a row of samples and has no value of this moment", "use peers"
    if key == "share_above" and field.unit != "ns":
        return f"share_above needs a counter of time, {field.name} counts {field.unit}", "use increase_above or rate_above"
    if key == "over_limit" and field.name != "pcie_replay":
        return f"the limit pcie_replays is not for {field.name}", "use rate_above"
    if key == "bits_any" and field.unit != "bit mask":
        return f"{field.name} has no bits", "bits_any is for clock_event_reasons"
    if key == "went_down" and field.name != "nvlink_state":
        return f"went_down is for nvlink_state only, not {field.name}", ""
    if key in VALUES and field.name == "nvlink_state":
        return f"{key} needs a number, nvlink_state is a word", "use value_is or went_down"
    if (key in VALUES or key in ("below_field", "above_field")) and field.unit == cat.WORD:
        return f"{key} needs a number, {field.name} is a word", "use value_is or not_as_learned"
    if key in ("below_field", "above_field") and field.scope == cat.LINK:
        return f"{key} is not for readings of links such as {field.name}", ""
    return None


def _sane(key: str, value: Any) -> None:
    """Numbers that can not be meant."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if number is None:
        return
    if not math.isfinite(number):
        raise LevelProblem(key, "is not a finite number")
    if key in ("increase_above", "rate_above") and number < 0:
        raise LevelProblem(key, f"{key} must not be negative", "a counter's growth never is")
    if key in ("increase_at_least", "rate_at_least") and number <= 0:
        raise LevelProblem(key, f"{key} must be above 0", "it would always hold")
    if key == "times" and number <= 0:
        raise LevelProblem(key, "times must be above 0")
    if key in ("consecutive", "hits", "users", "of_last") and not 1 <= number <= MAX_COUNT:
        raise LevelProblem(key, f"{key} must be from 1 to {MAX_COUNT}")
    if key == "within" and number <= 0:
        raise LevelProblem(key, "within must be longer than 0s")


def _together(raw: Mapping[str, Any], out: Mapping[str, Any], kind: str) -> None:
    """Keys that need or exclude one another."""
    needs = (
        ("times", ("over_limit",), "over_limit"),
        ("offset", ("below_field", "above_field"), "below_field or above_field"),
        ("spacing", ("consecutive",), "consecutive"),
        ("witness", ("consecutive",), "consecutive"),
        ("of_last", ("hits",), "hits"),
        ("within", ("hits", "users"), "hits or users"),
        ("users", ("within",), "within"),
        ("fatal", ("xid", "sxid"), "xid or sxid"),
        ("min_window", GROWTH, "a condition on growth, such as rate_at_least"),
    )
    for key, others, said in needs:
        if key in raw and not any(other in raw for other in others):
            raise LevelProblem(key, f"{key} means nothing without {said}")
    hits = raw.get("hits", 1)
    if hits > 1 and "of_last" not in raw and "within" not in raw:
        raise LevelProblem("hits", "hits needs of_last or within", "e.g. hits: 2, of_last: 5")
    if "of_last" in raw and "within" in raw:
        raise LevelProblem("within", "of_last and within exclude one another", "count jobs or count time")
    if "of_last" in raw and hits > raw["of_last"]:
        raise LevelProblem("hits", f"{hits} hits can not be in the last {raw['of_last']} jobs")
    if "cusum" in raw and any(key in raw for key in (*(g for g in GROWTH if g != "cusum"), "hits", "consecutive", "of_last", "min_window")):
        raise LevelProblem("cusum", "cusum stands alone: it has a memory of its own", "make the other conditions another level")
    if "xid" in raw and "sxid" in raw:
        raise LevelProblem("sxid", "xid and sxid are two things", "make them two levels in a list")
    if raw.get("consecutive", 1) > 1 and any(key in raw for key in ("of_last", "within")):
        raise LevelProblem("consecutive", "consecutive and hits exclude one another", "make them two levels")
    if kind == "diag" and {"unless_xid", "unless_peer_xid"} & set(out):
        raise LevelProblem("unless", "a diagnostic is not excused by Xids", "unless takes readings of the same GPU here")
    if "users" in raw and kind != "event":
        raise LevelProblem("users", "users are counted for Xids only")
    low = max((out[k] for k in ("value_above", "value_at_least") if k in out), default=None)
    high = min((out[k] for k in ("value_below", "value_at_most") if k in out), default=None)
    if low is not None and high is not None and low > high:
        raise LevelProblem("", f"no value is above {low:g} and below {high:g}", "two levels in a list are alternatives")
