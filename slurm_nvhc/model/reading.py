"""A reading is a number, a state word, or *no data* with its kind.

No data is never zero and never a fault. Sentinels of DCGM (2^63-16 and the
like) never leave the reader; what arrives here is already one of these.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Union

BLANK: Final = "blank"  # the engine has no value (NVML error, not sampled yet)
NOT_FOUND: Final = "not_found"
NOT_SUPPORTED: Final = "not_supported"  # normal on some boards: "does not apply", not "unknown"
NOT_PERMITTED: Final = "not_permitted"
STALE: Final = "stale"  # a value exists but is older than it may be
ERROR: Final = "error"  # the read of this field failed
NO_DATA_KINDS: Final = (BLANK, NOT_FOUND, NOT_SUPPORTED, NOT_PERMITTED, STALE, ERROR)


class NoData(NamedTuple):
    """The absence of a value. ``kind`` is one of NO_DATA_KINDS, ``detail`` free text."""

    kind: str
    detail: str = ""


Reading = Union[int, float, str, NoData]


def number(reading: Reading | None) -> int | float | None:
    """The reading as a finite number, or None when it is a word, no data, or absent."""
    if type(reading) is int:  # nearly all readings, thousands in every look
        return reading
    if isinstance(reading, bool) or not isinstance(reading, (int, float)):
        return None
    if reading != reading or reading in (float("inf"), float("-inf")):
        return None
    return reading


def to_json(reading: Reading) -> Any:
    if isinstance(reading, NoData):
        return {"no": reading.kind, "detail": reading.detail} if reading.detail else {"no": reading.kind}
    return reading


def from_json(value: Any) -> Reading:
    """The inverse of to_json. Anything that is not a reading becomes ERROR no data, never a number."""
    if isinstance(value, dict):
        kind = value.get("no")
        if kind in NO_DATA_KINDS:
            return NoData(kind, str(value.get("detail", "")))
        return NoData(ERROR, "not a reading")
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return NoData(ERROR, "not a finite number")
        return value
    return NoData(ERROR, "not a reading")
