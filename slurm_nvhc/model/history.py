"""What an engine remembers beside its present readings: samples over time, and its own verdicts."""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import Trouble

# How the watch samples (sense/dcgm/watch.py), and how many samples of one series are handed out at most: a series
# that is this long may have been thinned, and then its samples lie farther apart than the interval.
INTERVAL_S: Final = 30.0
MOST_SAMPLES: Final = 300

# Incident.result
WARN: Final = "warn"
FAIL: Final = "fail"


class Watch(NamedTuple):
    """Outcome of asking for the watch. known: False when the engine could not be asked.

    made: it was not there (first time, or the engine was restarted) and was made;
    watched: it is there now. On removal, watched is False and made tells nothing.
    """

    known: bool
    watched: bool = False
    made: bool = False
    troubles: tuple[Trouble, ...] = ()


class Sample(NamedTuple):
    """One value at one moment (ns UTC)."""

    at_ns: int
    value: Reading


class History(NamedTuple):
    """uuid -> catalogue name -> samples, oldest first.

    watched: False when the engine did not sample, or could not be asked: what happened in
    the window is then *unknown*, not "nothing". Samples equal to the one before are left
    out; a long series is thinned, keeping its first and last.
    """

    watched: bool
    series: Mapping[str, Mapping[str, tuple[Sample, ...]]]
    troubles: tuple[Trouble, ...] = ()


class Incident(NamedTuple):
    """One complaint of DCGM's health check: evidence, never our verdict (it looks 60 s back, and passes what it can not read).

    system: pcie, nvlink, memory, inforom, thermal, power, driver, nvswitch, connectx, all
    code:   DCGM_FR_ number
    entity: as in findings: GPU UUID, GPU-…/linkN, node
    """

    system: str
    code: int
    result: str
    entity: str
    text: str


class Health(NamedTuple):
    """known: False when DCGM's health was not had: no incidents then say nothing."""

    known: bool
    incidents: tuple[Incident, ...] = ()
    troubles: tuple[Trouble, ...] = ()
