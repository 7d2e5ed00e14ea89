"""Arguments of operations, checked: each function raises InputError for what can not be meant."""

from __future__ import annotations

import math
from typing import Any

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading


def seconds(what: str, value: Any) -> float:
    """0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e10:
        raise InputError(what, "", f"{str(value)[:40]} is not a number, 0 or more")
    return float(value)


def code(value: Any) -> int:
    """The number of an Xid or SXid."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1_000_000:
        raise InputError("xid", "key code", f"{str(value)[:40]} is not a number of an Xid or SXid")
    return value


def number(field: cat.Field, value: Any) -> int | float:
    """A figure for a field: whole, unless the field is a gauge."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(field.name, "", f"{str(value)[:40]!r} is not a number")
    if field.kind != cat.GAUGE:
        if value != int(value):
            raise InputError(field.name, "", f"{value} is not a whole number")
        return int(value)
    return value


def reading(field: cat.Field, value: Any) -> Reading:
    """What a person writes for a reading: a number, a word of the field, or a kind of no data."""
    if isinstance(value, NoData):
        return value
    if isinstance(value, dict) and value.get("no") in rd.NO_DATA_KINDS:
        return rd.from_json(value)
    link_state = field.name == "nvlink_state"
    if isinstance(value, str):
        if link_state and value in cat.LINK_STATES:
            return value
        for state, word in field.words.items():  # first: a port's state may be "error", which is a reading
            if word.lower() == value.lower():
                return state
        if value in rd.NO_DATA_KINDS:
            return NoData(value)
        if field.unit == cat.WORD and value:
            return value
        known = (*(cat.LINK_STATES if link_state else field.words.values()), *rd.NO_DATA_KINDS)
        raise InputError(field.name, "", f"{value[:40]!r} is not a value", "a number, or " + ", ".join(known))
    if link_state:
        raise InputError(field.name, "", f"{str(value)[:40]} is not a link state", "known: " + ", ".join(cat.LINK_STATES))
    if field.unit == cat.WORD:
        raise InputError(field.name, "", f"{str(value)[:40]!r} is not a word", "text, or " + ", ".join(rd.NO_DATA_KINDS))
    return number(field, value)
