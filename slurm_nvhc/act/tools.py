"""What the steps are done with: the ledger and Slurm, bounded and never raising.

A ledger that fails leaves a trouble and stops no protective step. Slurm is never asked once the hook's time is up.
"""

from __future__ import annotations

import time
from typing import Callable, Final, Mapping, NamedTuple, Optional, Protocol, Sequence

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.steps import Step
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Ended, Exclusion, Hold, Intent, OwnDrain, Strike
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.slurm.fleet import Partition
from slurm_nvhc.slurm.jobs import PartitionRules
from slurm_nvhc.slurm.node import MISSING, TIMEOUT, SlurmError

LEAST_S: Final = 0.1  # a Slurm call takes 5 ms; with less time left than this none is begun


class NodeCommands(Protocol):
    """slurm.node.SlurmCommands, or a test's own. Each may raise SlurmError."""

    def node_state(self, node: str, timeout_s: Optional[float] = None) -> NodeState: ...
    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None: ...
    def resume(self, node: str, timeout_s: Optional[float] = None) -> None: ...
    def undrain(self, node: str, timeout_s: Optional[float] = None) -> None: ...
    def reboot(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None: ...


class JobCommands(Protocol):
    """slurm.jobs.SlurmJobs, or a test's own. Each may raise SlurmError."""

    def of_node(self, node: str, timeout_s: Optional[float] = None) -> tuple[NodeJob, ...]: ...
    def job(self, job_id: str, node: str, timeout_s: Optional[float] = None) -> Optional[NodeJob]: ...
    def alike(self, node: str, partition: str, timeout_s: Optional[float] = None) -> tuple[str, ...]: ...
    def partitions(self, timeout_s: Optional[float] = None) -> Mapping[str, PartitionRules]: ...
    def update_job(self, job_id: str, settings: Sequence[str], timeout_s: Optional[float] = None) -> None: ...
    def submit(self, options: Sequence[str], script: str, timeout_s: Optional[float] = None) -> str: ...
    def cancel(self, job_ids: Sequence[str], timeout_s: Optional[float] = None) -> None: ...
    def cancel_named(self, name: str, timeout_s: Optional[float] = None) -> None: ...
    def reserve(self, name: str, node: str, minutes: int, timeout_s: Optional[float] = None) -> None: ...
    def requeue(self, job_id: str, timeout_s: Optional[float] = None) -> None: ...
    def signal(self, job_id: str, name: str, batch: bool, timeout_s: Optional[float] = None) -> None: ...
    def end_reservation(self, name: str, timeout_s: Optional[float] = None) -> None: ...


class FleetCommands(Protocol):
    """slurm.fleet.SlurmFleet, or a test's own. ``partitions`` may raise SlurmError."""

    def unusable(self) -> Optional[SlurmError]: ...
    def partitions(self, names: Sequence[str], timeout_s: Optional[float] = None) -> tuple[Partition, ...]: ...


class Protective(Protocol):
    """What the ledger keeps for us. Each may raise MonitorError."""

    def exclusions(self) -> tuple[Exclusion, ...]: ...
    def exclude(self, exclusion: Exclusion) -> None: ...
    def change_exclusion(self, exclusion: Exclusion) -> bool: ...
    def own_drain(self) -> Optional[OwnDrain]: ...
    def set_own_drain(self, drain: Optional[OwnDrain]) -> None: ...
    def intents(self) -> tuple[Intent, ...]: ...
    def add_intent(self, intent: Intent) -> None: ...
    def update_intent(self, intent: Intent) -> None: ...
    def end_intent(self, intent: Intent) -> None: ...
    def settle(self, names: Sequence[str]) -> None: ...
    def end_exclusion(self, ended: Ended) -> bool: ...
    def set_hold(self, hold: Hold) -> None: ...
    def end_hold(self, uuid: str) -> None: ...
    def add_strike(self, strike: Strike) -> None: ...


class Tools(NamedTuple):
    """protective: None when there is no ledger; constrain: asked only when a job is narrowed (conf.constrain_devices).

    jobs: None where no job can be asked about or changed. hold_program: what a placeholder job runs; () = there can be none.
    fleet: None where who else is drained can not be counted. pause: waits so many seconds.
    quiet: why nothing may be changed in Slurm now (observe mode, a pause); '' = it may.
    before_reboot: keeps the evidence and tells the site, while there is still a node to look at.
    """

    slurm: NodeCommands
    node: str
    protective: Optional[Protective]
    run_dir: str
    job: Optional[Job]
    mapping: GpuMapping
    constrain: Callable[[], Optional[bool]]
    log: Callable[[str], None]
    left_s: Callable[[], float]
    now_ns: int
    policy: Policy
    jobs: Optional[JobCommands] = None
    before_reboot: Optional[Callable[[Step], object]] = None
    fleet: Optional[FleetCommands] = None
    pause: Callable[[float], None] = time.sleep
    hold_program: tuple[str, ...] = ()
    quiet: str = ""


class Done(NamedTuple):
    """ok: the step's aim is reached. detail: what happened, when that is not plain from the step."""

    step: Step
    ok: bool
    detail: str = ""


class Hands:
    """One execution: the tools, and what it met so far.

    not_out:   a drain that was planned is not in place
    fail_hook: the job must not run here
    left:      the job of this prolog does not start here any more: it was moved, or is at its end
    taken_back: reasons of drains of ours that were taken back: their intents stay
    also:      what was done beside the planned steps
    searching: placeholder jobs are submitted: they look for all GPUs that are to be held
    deeds:     the drains and exclusions that are in place by us since now, also as the fallback of another step
    """

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.troubles: list[Trouble] = []
        self.not_out = False
        self.fail_hook = False
        self.left = False
        self.taken_back: set[str] = set()
        self.also: list[Done] = []
        self.searching = False
        self.deeds: list[Step] = []

    def alert(self, step: Step, why: str) -> None:
        """A limit keeps us from doing ``step``: that is for people. Told after all steps, by whoever executes them."""
        self.also.append(Done(Step(st.ALERT, reason=step.reason, why=why, keys=step.keys), True))

    def keep(self, change: Callable[[Protective], object]) -> bool:
        """Change the ledger; False (and a trouble) when that failed."""
        if self.tools.protective is None:
            return False  # whoever failed to open it has said so
        try:
            change(self.tools.protective)
        except MonitorError as exc:
            self.troubles.append(Trouble("MON-LEDGER", "ledger", str(exc)))
            return False
        return True

    def intents(self) -> tuple[Intent, ...]:
        if self.tools.protective is None:
            return ()
        try:
            return self.tools.protective.intents()
        except MonitorError as exc:
            self.troubles.append(Trouble("MON-LEDGER", "ledger", str(exc)))
            return ()

    def own_drain(self) -> Optional[OwnDrain]:
        if self.tools.protective is None:
            return None
        try:
            return self.tools.protective.own_drain()
        except MonitorError as exc:
            self.troubles.append(Trouble("MON-LEDGER", "ledger", str(exc)))
            return None

    def time(self) -> float:
        """What is left for a Slurm call. Raises SlurmError when that is nothing."""
        left = self.tools.left_s()
        if left < LEAST_S:
            raise SlurmError(TIMEOUT, "scontrol", self.tools.node, "not run: no time left in the hook's budget")
        return left

    def state(self) -> NodeState:
        """Raises SlurmError."""
        return self.tools.slurm.node_state(self.tools.node, self.time())

    def jobs(self) -> JobCommands:
        """Raises SlurmError where there is no way to ask for jobs."""
        if self.tools.jobs is None:
            raise SlurmError(MISSING, "squeue", "", "jobs can not be asked for here")
        return self.tools.jobs

    def look(self) -> Optional[NodeState]:
        """The node after a change of ours; None when that can not be told: what was written down stays, a later hook looks again."""
        try:
            return self.state()
        except SlurmError:
            return None

    def in_service(self) -> bool:
        """Seen to take jobs. False also when that can not be told."""
        state = self.look()
        return state is not None and not state.out

    def end_intents(self, *kinds: str, but: str = "") -> None:
        """End all intents of these kinds, except one with reason ``but``."""
        for intent in self.intents():
            if intent.kind in kinds and intent.reason != but:
                self.keep(lambda p, i=intent: p.end_intent(i))  # type: ignore[misc]

    def failed(self, step: Step, exc: SlurmError) -> Done:
        self.troubles.append(Trouble("MON-SLURM", "slurm", str(exc)))
        return Done(step, False, str(exc))


Action = Callable[[Hands, Step], Done]


def intent_of(step: Step, now_ns: int, kind: str = st.DRAIN) -> Intent:
    """The intent that a step writes down before it is tried."""
    intent = Intent(kind, step.reason, now_ns, step.keys, step.idents, policy=step.policy, next_ns=step.next_ns)
    intent = intent._replace(standing=step.standing, events=step.events)
    return intent._replace(gone=step.stamp) if step.kind == st.INTENT else intent
