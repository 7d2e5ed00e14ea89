"""Moments in a scenario: relative to now, so that a file means the same on any day."""

from __future__ import annotations

from typing import Union

from slurm_nvhc.model.times import parse_duration


def moment(value: Union[str, int, float]) -> float:
    """Seconds relative to now of '-2h', -7200 or 0; negative is the past. ValueError for anything else."""
    if isinstance(value, str) and value.strip().startswith("-"):
        return -parse_duration(value.strip()[1:])
    if isinstance(value, (int, float)) and value < 0:
        return -parse_duration(-value)
    return parse_duration(value)
