"""What judge works on. All of it is passed in; nothing is looked up."""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.model.change import Change
from slurm_nvhc.model.diag import Report
from slurm_nvhc.model.earlier import Earlier
from slurm_nvhc.model.finding import Decision, Finding
from slurm_nvhc.model.history import Health, History
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import GpuIdentity, GpuState, Snapshot, Trouble
from slurm_nvhc.model.suspect import Suspect, Touched
from slurm_nvhc.policy.compiled import Policy

PROLOG: Final = "prolog"
EPILOG: Final = "epilog"
HEALTH_CHECK: Final = "health_check"

Memory = Mapping[str, Any]  # JSON-able; see judge/memory.py


class Window(NamedTuple):
    """The time that is judged.

    kind:  "job" (prolog to epilog), "watch" (between two health checks) or "none"
           (a single look: only what is true now is judged)
    key:   names this window; evidence is counted once per key
    text:  for people, e.g. "job 8812"
    """

    kind: str
    key: str
    start_ns: Optional[int]
    end_ns: int
    seconds: float
    text: str


class Reset(NamedTuple):
    """A GPU's counters were seen reset: between two looks, after since_ns and not after seen_ns (wall clock)."""

    since_ns: int
    seen_ns: int


class Input(NamedTuple):
    """before: the snapshot at the window's start, None when there is none.

    known: GPUs that this node had before (from the ledger).
    expected_gpus: the number of GPUs that gres.conf lists for this node, None when unknown.
    troubles: troubles from outside the snapshot (policy, ledger, environment …).
    reset_since: GPUs whose counters were reset since the last look -> a moment before that reset (ns).
    resets: the last reset of each GPU in this boot, as far as looks saw it; judge sets it from its memory.
    settled: sticky events that an administrator settled, model/settled.py key -> up to when (ns).
    events_are_new: the kernel's events were read from where the window began in its log.
    health: what DCGM's own health check says; None when it was not asked.
    run_id: the same for all looks of one hook run; trouble is counted once per run.
    since_look: what counters grew since the last look of any hook at this node, all GPUs and parts: each increment comes
                here exactly once, whichever hook sees it first. None when there was no earlier look, or none is kept.
    history: the engine's samples of the window, None when it was not asked.
    learned: what is normal here: entity -> field -> reading (see Learn); a GPU's under its UUID.
    diag: what a diagnostic of this run said; None when there was none.
    earlier: what the runs in the job's time saw; the epilog alone is told, and only what the user is told depends on it.
    """

    hook: str
    snapshot: Snapshot
    before: Optional[Snapshot]
    changes: tuple[Change, ...]
    window: Window
    policy: Policy
    job: Optional[Job] = None
    mapping: Optional[GpuMapping] = None
    known: tuple[GpuIdentity, ...] = ()
    exclusions: Mapping[str, Exclusion] = {}
    expected_gpus: Optional[int] = None
    troubles: tuple[Trouble, ...] = ()
    reset_since: Mapping[str, int] = {}
    settled: Mapping[str, int] = {}
    events_are_new: bool = False
    run_id: str = ""
    health: Optional[Health] = None
    since_look: Optional[tuple[Change, ...]] = None
    history: Optional[History] = None
    learned: Mapping[str, Mapping[str, Reading]] = {}
    earlier: tuple[Earlier, ...] = ()
    resets: Mapping[str, Reset] = {}
    diag: Optional[Report] = None

    @property
    def now_ns(self) -> int:
        return self.snapshot.wall_ns

    def gpus(self) -> Mapping[str, GpuState]:
        return self.snapshot.gpus or {}

    def job_uuids(self) -> frozenset[str]:
        """The job's GPUs, those that are gone included as far as their position tells which they were."""
        if self.job is None or self.mapping is None:
            return frozenset()
        gone = (self.mapping.by_position.get(position, "") for position in self.mapping.missing)
        return frozenset((*self.mapping.uuids, *filter(None, gone)))

    def in_scope(self, uuid: str) -> bool:
        """Is this GPU's window judged here? Job hooks judge the job's GPUs, the health check all."""
        return self.job is None or uuid in self.job_uuids()


class Judgement(NamedTuple):
    """second_look: a fault would be confirmed by another reading a moment later.

    suspects: the parts that the findings point to, worst first. touched: epilogs only.
    not_compared: why a job's GPUs were not compared with each other, '' when they were or no rule asks.
    """

    findings: tuple[Finding, ...]
    decision: Decision
    memory: Memory
    second_look: bool
    gpu_verdicts: Mapping[str, str]
    suspects: tuple[Suspect, ...] = ()
    touched: Optional[Touched] = None
    not_compared: str = ""
