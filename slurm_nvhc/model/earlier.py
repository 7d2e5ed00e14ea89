"""What other runs of the hooks saw while a job ran: a fault that came and went is in no reading of the job's end."""

from __future__ import annotations

from typing import NamedTuple

from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Finding


class Earlier(NamedTuple):
    """One run of any hook at this node that ended in the job's time, the job's own prolog included.

    from_ns, at_ns: the window that it judged, ns UTC; the same moment where it had none.
    """

    hook: str
    from_ns: int
    at_ns: int
    findings: tuple[Finding, ...] = ()
    changes: tuple[Change, ...] = ()
