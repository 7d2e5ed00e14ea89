"""The whole: a clock, slurmctld, a policy and some nodes; and what is known about them that no hook can know."""

from __future__ import annotations

from typing import Any, Callable, Final, NamedTuple, Optional

from planner.hardware import ACTIONS, EVENT, FAULTS, Hardware
from planner.kept import Kept
from planner.node import Node, Refused
from slurm_nvhc.model import finding as fd
from slurm_nvhc.policy import acting
from slurm_nvhc.policy import compiled as pol

T0_NS: Final = 1_800_000_000 * 10**9
MINUTE_NS: Final = 60 * 10**9
DAY_NS: Final = 86400 * 10**9


class Step(NamedTuple):
    """One step of a trace: plain data, so that a trace can be kept, cut and played again.

    what, node, args: which actor's deed, on which node, with what; a deed that is not possible then does nothing.
    during: own hooks only: (moment, step) that somebody does while the hook runs: before or after one of its calls.
    """

    what: str
    node: int = 0
    args: tuple[Any, ...] = ()
    during: tuple[tuple[int, Any], ...] = ()


class Setting(NamedTuple):
    """What an episode begins with."""

    nodes: int = 1
    keeps: bool = True  # as 24.11 keeps the reason of an ended drain
    returns: bool = True  # ReturnToService
    mode: str = fd.ENFORCE
    narrow: bool = False
    extend: bool = False
    resume: str = "off"
    passes: int = 2
    after_min: int = 30
    per_day: int = 2
    alone: bool = False  # no other hooks than ours
    requeue: bool = False
    per_job: int = 2
    per_node: int = 3
    reboot: bool = False
    per_week: int = 1
    counts: bool = True  # is there a sinfo?
    soft: int = 1
    hard: int = 2


class Violation(BaseException):
    """A rule that was broken: its name, and what happened. Nothing of what is tested can catch it."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


class Killed(BaseException):
    """The hook process is gone, here and now."""


class Job:
    """A batch job. moves: how often our hooks moved it."""

    def __init__(self, job_id: str, requeue: bool) -> None:
        self.job_id = job_id
        self.requeue = requeue
        self.positions: tuple[int, ...] = ()
        self.state = "PENDING"
        self.restarts = 0
        self.moves = 0
        self.admin_comment = ""
        self.excluded = ""


class Cell:
    """One node with all that is on it.

    settled: idents of events that a drain of ours answered, which the ledger knew of and somebody then ended
    jobs:    job id -> the jobs that run here
    """

    def __init__(self, number: int, setting: Setting, now_ns: int) -> None:
        self.number = number
        self.node = Node(f"n{number}", setting.keeps)
        self.node.booted_ns = now_ns - DAY_NS
        self.hw = Hardware(self.node.name)
        self.kept = Kept()
        self.jobs: dict[str, Job] = {}
        self.unended: list[Job] = []  # did not start here, and their epilogs wait for slurmctld
        self.moves: list[int] = []
        self.settled: dict[str, int] = {}
        self.boots = 0
        self.resumes: list[int] = []
        self.reboots: list[int] = []
        self.in_window = False  # our last drain met what somebody did after our last reading
        self.placed_ns = 0  # when we took the node out, the last time
        self.released: set[str] = set()  # GPUs, by an administrator while the present hook runs
        self.resumed_inside = False  # the node came back into service while the present hook runs
        self.together = False  # another hook of this node ran while the present one does: the lock was not to be had in time
        self.inside = 0  # hooks that run here now

    def free(self) -> list[int]:
        taken = {p for job in self.jobs.values() for p in job.positions}
        return [n for n in range(len(self.hw.cards)) if n not in taken]


class World:
    """slurmctld: "ok", "down" (refuses connections), "hung" (takes requests, answers and works later).

    moments: what the hook that runs now is asked to let happen; see Step.during
    counts:  how often what was seen
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.now_ns = T0_NS
        self.slurmctld = "ok"
        self.queue: list[Callable[[], None]] = []
        self.edits = 0
        self.modes = {code: fd.ENFORCE for code in FAULTS}
        self.policy = policy(setting, 0, self.modes)
        self.cells = [Cell(n + 1, setting, T0_NS) for n in range(setting.nodes)]
        self.counts: dict[str, int] = {}
        self.job_number = 100
        self.queued: list[Job] = []  # those that were moved
        self.at = 0
        self.during: tuple[tuple[int, Any], ...] = ()
        self.killed_at: Optional[int] = None
        self.do: Callable[[World, Step], None] = lambda world, step: None

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def moment(self) -> None:
        """A hook is between two of its calls: others may act now, and it may be killed."""
        at, self.at = self.at, self.at + 1
        for when, step in self.during:
            if when == at:
                self.do(self, step)
        if at == self.killed_at:
            raise Killed()

    def request(self, change: Callable[[], None]) -> None:
        """Somebody else's request to slurmctld."""
        if self.slurmctld == "ok":
            apply(change)
        elif self.slurmctld == "hung":
            self.queue.append(change)

    def slurmctld_is(self, now: str) -> None:
        """Waking up it works through what it was sent meanwhile; restarted it has forgotten it."""
        was, self.slurmctld = self.slurmctld, now
        if now == "down":
            self.queue = []
        if now == "ok" and was == "hung":
            queue, self.queue = self.queue, []
            for change in queue:
                apply(change)

    def edit(self, **changes: Any) -> None:
        self.edits += 1
        self.setting = self.setting._replace(**changes)
        self.policy = policy(self.setting, self.edits, self.modes)


def apply(change: Callable[[], None]) -> None:
    try:
        change()
    except Refused:
        pass


def policy(setting: Setting, edits: int, modes: dict[str, str]) -> pol.Policy:
    rules = {
        code: pol.Rule(code, code, "event" if kind == EVENT else "reading", ("fault",), action=ACTIONS[code], mode=modes[code])
        for code, (kind, _, _) in FAULTS.items()
    }
    narrow = acting.Narrow(setting.narrow, 1, 1, "any")
    drain = acting.Drain("", 250, setting.extend, setting.resume, setting.passes, setting.after_min * 60.0, setting.per_day)
    return pol.Policy(
        f"edit {edits}", setting.mode, rules, narrow, pol.Expect(), pol.Monitor(), pol.Engine(), pol.Slurm(), drain, pol.Budgets(),
        pol.Record(), 2.0, evidence=acting.Evidence(enabled=False),
        requeue=acting.Requeue(setting.requeue, setting.per_job, setting.per_node), reboot=acting.Reboot(setting.reboot, setting.per_week),
        limits=acting.Limits(acting.Limit(setting.soft), acting.Limit(setting.hard)),
    )  # fmt: skip
