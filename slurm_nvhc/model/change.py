"""What changed between two snapshots."""

from __future__ import annotations

from typing import Final, NamedTuple, Optional

from slurm_nvhc.model.reading import Reading

EXACT: Final = "exact"
AT_LEAST: Final = "at_least"  # the counter was reset in between: a lower bound
UNKNOWN: Final = "unknown"  # no data on one side, or the counter went back although nothing clears it


class Change(NamedTuple):
    """One counter or state of one entity over a window.

    amount:  how much a counter grew, >= 0, in the field's unit; None when unknown
             or when the field is a state or gauge.
    seconds: length of the window, >= 0; 0 means that no rate can be formed.
    why:     for AT_LEAST and UNKNOWN, what happened ("GPU reset", "blank after", …)
    """

    entity: str
    field: str
    before: Optional[Reading]
    after: Optional[Reading]
    kind: str
    amount: Optional[float]
    seconds: float
    why: str = ""
