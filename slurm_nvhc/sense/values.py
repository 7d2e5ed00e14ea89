"""Is a value that came from an engine a reading at all? Pure; used on both sides of the reader.

DCGM marks the absence of a value by huge constants: 64 bit 0x7ffffffffffffff0 to …f3,
floating point 140737488355328.0 to …331.0, text ``<<<…>>>``; status alone does not tell
(a field that is not supported comes with status 0 and the constant as its value).
"""

from __future__ import annotations

from typing import Any, Final, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.text import clean

INT_BLANK: Final = 0x7FFFFFFFFFFFFFF0
FLOAT_BLANK: Final = 140737488355328.0
MAX_DETAIL: Final = 120
MAX_WORD: Final = 80  # of a state that is a word; the longest is the far end of a link
_LIMIT: Final = 2**63
_ORDER: Final = (rd.BLANK, rd.NOT_FOUND, rd.NOT_SUPPORTED, rd.NOT_PERMITTED)
_WORDS: Final = {
    "<<<NULL>>>": rd.BLANK,
    "<<<NOT_FOUND>>>": rd.NOT_FOUND,
    "<<<NOT_SUPPORTED>>>": rd.NOT_SUPPORTED,
    "<<<NOT_PERM>>>": rd.NOT_PERMITTED,
}


def sentinel(value: Any) -> Optional[NoData]:
    """The no data that a DCGM constant stands for, or None when the value is not such a constant."""
    if isinstance(value, str):
        if value.startswith("<<<") and value.endswith(">>>"):
            return NoData(_WORDS.get(value, rd.BLANK))
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if FLOAT_BLANK <= value < FLOAT_BLANK + 4 and value == int(value):
        return NoData(_ORDER[int(value - FLOAT_BLANK)])
    if isinstance(value, float):
        return NoData(rd.BLANK) if value == float(_LIMIT) else None
    if INT_BLANK <= value < _LIMIT:
        step = value - INT_BLANK
        return NoData(_ORDER[step] if step < len(_ORDER) else rd.BLANK)
    return None


def check(field: cat.Field, value: Any) -> tuple[Reading, str]:
    """(reading, '') or (no data, what is impossible about the value).

    ``value`` is as it was in the reply: a number, a word or {"no": kind}. The second part
    is empty for no data of any honest kind, sentinels included.
    """
    if isinstance(value, dict):
        kind = value.get("no")
        if kind in rd.NO_DATA_KINDS:
            return NoData(str(kind), clean(value.get("detail"), MAX_DETAIL)), ""
        return _lie("no data of an unknown kind")
    missing = sentinel(value)
    if missing is not None:
        return missing, ""
    if field.name == "nvlink_state":
        if isinstance(value, str) and value in cat.LINK_STATES:
            return value, ""
        return _lie(f"{_show(value)} is not a link state")
    if field.unit == cat.WORD:
        word = clean(value, MAX_WORD) if isinstance(value, str) else ""
        return (word, "") if word else _lie(f"{_show(value)} is not a word")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _lie(f"{_show(value)} is not a number")
    if value != value or value in (float("inf"), float("-inf")):
        return _lie("not a finite number")
    if abs(value) >= _LIMIT:
        return _lie("too large for any counter")
    if field.kind != cat.GAUGE:
        if value != int(value):
            return _lie(f"{value} is not a whole number")
        value = int(value)
    return _range(field, value)


def _range(field: cat.Field, value: int | float) -> tuple[Reading, str]:
    if field.kind == cat.STATE:
        # Known of DCGM, so not a lie: on an error it stores its own negative status as the state.
        if value < 0:
            return NoData(rd.ERROR, f"the engine stored its status {value} as the state"), ""
        # A recovery action above the known ones still asks for something; a fabric state says nothing.
        if field.name == "fabric_state" and value not in field.words:
            return NoData(rd.ERROR, f"unknown state {value}"), ""
        return value, ""
    if field.unit == cat.PER_BIT and value > 1:
        return _lie(f"{value} errors per bit")
    if value < 0 and not (field.kind == cat.GAUGE and field.unit == "°C"):
        return _lie(f"{value} is negative")
    return value, ""


def _lie(what: str) -> tuple[Reading, str]:
    return NoData(rd.ERROR, what), what


def _show(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:24])
    return type(value).__name__ if not isinstance(value, (int, float)) else str(value)[:24]
