"""A rule's conditions as a sentence, for evidence: "increase >= 3 in one job, in 2 of the last 5 jobs"."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model.times import duration

# (key of the normalised level, text with {}), in the order in which they are said
_PLAIN = (
    ("increase_above", "increase > {}"),
    ("increase_at_least", "increase >= {}"),
    ("value_above", "value > {}"),
    ("value_below", "value < {}"),
    ("value_at_least", "value >= {}"),
    ("value_at_most", "value <= {}"),
)


def levels(alternatives: Sequence[Mapping[str, Any]], fields: Sequence[cat.Field]) -> str:
    """All alternatives, joined by "; or "."""
    return "; or ".join(level(one, fields) for one in alternatives)


def level(raw: Mapping[str, Any], fields: Sequence[cat.Field]) -> str:
    """One normalised level. Units are the field's where all fields share one."""
    unit = fields[0].unit if fields and len({f.unit for f in fields}) == 1 else ""
    suffix = f" {unit}" if unit and unit not in ("bit mask", "ns", "generation") else ""
    said = [text.format(number(raw[key])) + suffix for key, text in _PLAIN if key in raw]
    said += [f"rate {sign} {_rate(raw[key])}" for key, sign in (("rate_above", ">"), ("rate_at_least", ">=")) if key in raw]
    if "share_above" in raw:
        said.append(f"more than {number(raw['share_above'] * 100)} % of the window")
    if "over_limit" in raw:
        times = f"{number(raw['times'])} times " if raw.get("times", 1) != 1 else ""
        said.append(f"more than {times}the replays expected of its PCIe speed")
    said += [f"value {sign} {_values(raw[key], fields)}" for key, sign in (("value_is", "is"), ("value_is_not", "is not")) if key in raw]
    if "bits_any" in raw:
        said.append(f"any bit of 0x{raw['bits_any']:x}")
    for key, sign in (("below_field", "<"), ("above_field", ">")):
        if key in raw:
            offset = raw.get("offset", 0)
            shift = f" {'+' if offset > 0 else '-'} {number(abs(offset))}" if offset else ""
            said.append(f"value {sign} {cat.BY_NAME[raw[key]].label}{shift}")
    said += _statistics(raw, suffix)
    if raw.get("went_down"):
        said.append("not up, and it was up before or is expected up")
    if "xid" in raw:
        said.append(f"Xid {', '.join(str(n) for n in raw['xid'])}")
    if raw.get("xid_other"):
        said.append("any Xid without a rule")
    if "sxid" in raw:
        said.append(f"SXid {', '.join(str(n) for n in raw['sxid'])}" if raw["sxid"] else "any SXid")
    if "fatal" in raw:
        said.append("fatal" if raw["fatal"] else "not fatal")
    if raw.get("lost"):
        said.append("does not answer")
    if "diag" in raw:
        said += _diag(raw["diag"])
    return ", ".join([*said, *_lasting(raw), *_exceptions(raw)])


def _diag(raw: Mapping[str, Any]) -> list[str]:
    said = [f"a diagnostic {' or '.join(f'{status}s' for status in raw['status'])}"]
    if raw.get("tests") == list(diags.HARDWARE):
        said.append("any test of hardware")
    elif raw.get("tests"):
        said.append(f"test {' or '.join(raw['tests'])}")
    if raw.get("errors"):
        said.append(f"error {' or '.join(f'{n} {diags.error_name(n)}'.strip() for n in raw['errors'])}")
    if raw.get("other"):
        said.append("any error without a rule")
    if raw.get("severities"):
        said.append(f"severity {' or '.join(raw['severities'])}")
    return said


def _statistics(raw: Mapping[str, Any], suffix: str) -> list[str]:
    said = []
    if "poisson" in raw:
        normal = raw["poisson"]
        bits = f" or {normal['ber']:g} per bit" if normal.get("ber") is not None else ""
        own = f", or up to {_rate(normal['own_per_s'])} where its past shows it," if normal.get("own_per_s") is not None else ""
        said.append(f"more than chance gives at {_rate(normal['per_s'])}{bits}{own}")
    if "cusum" in raw:
        said.append(f"evidence over all looks for {_rate(raw['cusum']['faulty_per_s'])} instead of {_rate(raw['cusum']['normal_per_s'])}")
    if "peers" in raw:
        peers = raw["peers"]
        size = f"{number(peers['amount'] * 100)} %" if peers["relative"] else f"{number(peers['amount'])}{suffix}"
        said.append(f"{size} {peers['side']} the median of the job's GPUs, and {number(peers['mad'])} MAD")
    if raw.get("below_learned"):
        said.append("lower than learned")
    if raw.get("not_as_learned"):
        said.append("not as learned")
    return said


def _lasting(raw: Mapping[str, Any]) -> list[str]:
    said = []
    if raw.get("min_window_s"):
        said.append(f"over at least {duration(raw['min_window_s'])}")
    if "of_last" in raw:
        said.append(f"in {raw.get('hits', 1)} of the last {raw['of_last']} jobs")
    elif "within_s" in raw:
        count = [f"{raw['hits']} times"] if raw.get("hits", 1) > 1 else []
        count += [f"under {raw['users']} users"] if "users" in raw else []
        said.append(f"{' '.join(count)} within {duration(raw['within_s'])}")
    if raw.get("consecutive", 1) > 1:
        spacing = f" at least {duration(raw['spacing_s'])} apart" if raw.get("spacing_s") else ""
        said.append(f"{raw['consecutive']} times in a row{spacing}")
    if raw.get("witness"):
        said.append("or once with a witness")
    if raw.get("settle_s"):
        said.append(f"not within {duration(raw['settle_s'])} after boot, driver load or reset")
    return said


def _exceptions(raw: Mapping[str, Any]) -> list[str]:
    said = [f"unless {cat.BY_NAME[name].label} is {_values(values, [cat.BY_NAME[name]])}" for name, values in raw.get("unless", ())]
    said += [f"only when {cat.BY_NAME[name].label} is {_values(values, [cat.BY_NAME[name]])}" for name, values in raw.get("only_when", ())]
    if "unless_xid" in raw:
        said.append(f"unless it came with Xid {', '.join(str(n) for n in raw['unless_xid'])}")
    if "unless_peer_xid" in raw:
        said.append(f"unless another GPU had Xid {', '.join(str(n) for n in raw['unless_peer_xid'])}")
    return said


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _rate(per_s: float) -> str:
    """In the largest of /s, /min, /h that makes it a plain number."""
    for factor, unit in ((1.0, "s"), (60.0, "min"), (3600.0, "h")):
        scaled = per_s * factor
        if abs(scaled - round(scaled)) < 1e-9 * max(1.0, scaled):
            return f"{round(scaled)}/{unit}"
    return f"{per_s * 60:g}/min" if per_s * 60 >= 1 else f"{per_s * 3600:g}/h"


def _values(values: Sequence[Any], fields: Sequence[cat.Field]) -> str:
    known = fields[0].words if len(fields) == 1 else {}
    shown = [f"{number(v)} ({known[v]})" if v in known else v if isinstance(v, str) else number(v) for v in values]
    return " or ".join(shown)
