"""Run a sweep: rounds of asking Slurm, submitting, withdrawing and keeping what ended, until nothing is left that can be reached."""

from __future__ import annotations

import time
from typing import Callable, Final, NamedTuple, Protocol, Sequence

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.proc.child import Result as Ended
from slurm_nvhc.slurm.command import SlurmError
from slurm_nvhc.slurm.fleet import FleetNode
from slurm_nvhc.sweep import outcome, plan
from slurm_nvhc.sweep.outcome import NodeResult
from slurm_nvhc.sweep.queue import PENDING, Waiting

# Slurm's KillWait (30 s) and what ending an engine's diagnostic takes: the longest that a cancelled job may need.
ENDING_S: Final = 90.0
ROUND_S: Final = 1.0
REFUSED: Final = 3  # refusals, and no job that was taken: the options are wrong, not the nodes
# Slurm's words for a job that it keeps and will not start as it is: the next ones would wait as long.
HOPELESS: Final = frozenset(
    ("PartitionTimeLimit", "PartitionNodeLimit", "AccountNotAllowed", "InvalidAccount", "InvalidQOS", "QOSNotAllowed",
     "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit")
)  # fmt: skip
SLURM_AWAY_S: Final = 600.0  # slurmctld may be restarted under a sweep


class Slurm(Protocol):
    """sweep/queue.py, or a test's."""

    def nodes(self) -> dict[str, FleetNode]: ...
    def held(self) -> dict[str, int]: ...
    def waiting(self) -> tuple[Waiting, ...]: ...
    def submit(self, node: FleetNode, held: int) -> None: ...
    def ended(self, seconds: float) -> list[tuple[str, Ended]]: ...
    def cancel(self, numbers: Sequence[str]) -> None: ...
    def cancel_all(self) -> None: ...


class Limits(NamedTuple):
    """wait_s: of the whole sweep; patience_s: see plan.py; tries: jobs for one node; every_s: between two looks at Slurm."""

    at_once: int = 8
    wait_s: float = 12 * 3600.0
    patience_s: float = 600.0
    tries: int = 3
    every_s: float = 15.0


class Missed(NamedTuple):
    """A node without a result. why: its state, or what happened to its jobs. how: what reaches it, '' = the same command again."""

    node: str
    why: str
    how: str = ""


class Sweep:
    """``keep`` is given each result as it comes; ``tell`` one line of progress for people."""

    def __init__(
        self, slurm: Slurm, todo: Sequence[str], limits: Limits, keep: Callable[[NodeResult], None], tell: Callable[[str], None]
    ) -> None:
        self.slurm, self.limits, self.keep, self.tell = slurm, limits, keep, tell
        self.todo = list(todo)
        self.total = len(self.todo)
        self.results: dict[str, NodeResult] = {}
        self._flying: dict[str, float] = {}  # node -> when it was submitted, monotonic s
        self._reasons: dict[str, str] = {}  # node -> why its job waits
        self._withdrawn: set[str] = set()
        self._tries: dict[str, int] = {}
        self._lost: dict[str, str] = {}  # node -> what happened to its last job
        self._refused = 0
        self._taken = False
        self._away_since = 0.0
        self._nodes: dict[str, FleetNode] = {}

    def run(self) -> tuple[Missed, ...]:
        """To its end; the nodes that have no result. Raises MonitorError; its jobs are cancelled whatever ends it."""
        try:
            self._clear()
            deadline = time.monotonic() + self.limits.wait_s
            while self._flying or any(not plan.why_not(self._nodes.get(name)) for name in self.todo):
                if time.monotonic() >= deadline:
                    self.tell("the time of the sweep is over: its jobs are cancelled")
                    break
                began = time.monotonic()
                self._round()
                self._take(self.slurm.ended(min(self.limits.every_s, max(0.0, deadline - time.monotonic()))))
                # Many short jobs must not make one round each: three questions to slurmctld a second are enough.
                time.sleep(max(0.0, min(ROUND_S, self.limits.every_s) - (time.monotonic() - began)))
        finally:
            self._end()
        return self.missed()

    def missed(self) -> tuple[Missed, ...]:
        """The nodes that have no result, once it has ended."""
        return tuple(self._missed(name) for name in self.todo)

    def _clear(self) -> None:
        """End what a killed sweep of this folder left in the queue, and see the nodes for the first time."""
        deadline = time.monotonic() + ENDING_S
        while left := self.slurm.waiting():
            self.tell(f"ending {len(left)} jobs that an earlier run of this sweep left behind")
            self.slurm.cancel_all()
            if time.monotonic() > deadline:
                raise MonitorError("slurm", left[0].number, "a job of an earlier run of this sweep does not end", "look at it: squeue")
            time.sleep(min(1.0, self.limits.every_s))
        self._nodes = self.slurm.nodes()

    def _round(self) -> None:
        try:
            self._nodes = self.slurm.nodes()
            waiting = {job.node: job for job in self.slurm.waiting()}
            held = self.slurm.held()
            self._away_since = 0.0
        except SlurmError as exc:
            self._away(exc)
            return
        self._reasons = {node: job.reason for node, job in waiting.items() if job.state == PENDING and job.reason != "None"}
        hopeless = next((node for node, reason in self._reasons.items() if reason in HOPELESS), "")
        if hopeless:
            hint = "--time, --account, --qos, or another partition"
            raise MonitorError("slurm", hopeless, f"would never start the job: {self._reasons[hopeless]}", hint)
        now = time.monotonic()
        flying = []
        for node, since in self._flying.items():
            pending = node not in waiting or waiting[node].state == PENDING  # just submitted: Slurm does not show it yet
            self._taken = self._taken or node in waiting
            flying.append(plan.Flying(node, now - since if pending else None))
        step = plan.next_actions(self.todo, self._nodes, flying, self.limits.at_once, self.limits.patience_s)
        gone = [waiting[node].number for node in step.withdraw if node in waiting and waiting[node].state == PENDING]
        if gone:
            self._withdrawn.update(node for node in step.withdraw if node in waiting)
            try:
                self.slurm.cancel(gone)
            except SlurmError as exc:
                self._away(exc)
        for name in step.submit:
            if self._nodes[name].gpus <= held.get(name, 0):
                self._lose(name, "each of its GPUs is held by a placeholder job of ours", final=True)
                continue
            self.todo.remove(name)
            self._flying[name] = time.monotonic()
            self.slurm.submit(self._nodes[name], held.get(name, 0))

    def _away(self, exc: SlurmError) -> None:
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since > SLURM_AWAY_S:
            raise exc
        self.tell(f"Slurm could not be asked: {exc}")

    def _take(self, ended: Sequence[tuple[str, Ended]]) -> None:
        for node, end in ended:
            self._flying.pop(node, None)
            verdict = outcome.judge(node, end, time.time_ns())
            if verdict.result is None and node in self._withdrawn:
                self._withdrawn.discard(node)
                self.todo.append(node)
                self.tell(f"{node}: gave its place to an idle node; its turn comes again")
                continue
            self._withdrawn.discard(node)
            tries = self._tries[node] = self._tries.get(node, 0) + 1
            if verdict.result is not None:
                self._taken = True
                result = verdict.result._replace(tries=tries)
                self.results[node] = result
                self.keep(result)
                self.tell(f"{node}: {result.verdict}{_about(result)} ({len(self.results)} of {self.total})")
                continue
            self._refused += verdict.refused
            self._lose(node, verdict.why, final=verdict.refused or tries >= self.limits.tries)
        if self._refused >= REFUSED and not self._taken:
            why = next(why for why in self._lost.values())
            raise MonitorError("srun", "", why, "is it the partition, the account, the QOS, DisableRootJobs, or the policy on the nodes?")

    def _lose(self, node: str, why: str, final: bool) -> None:
        self._lost[node] = why
        if not final:
            self.todo.append(node)
            self.tell(f"{node}: {why}; it is tried again")
            return
        if node in self.todo:
            self.todo.remove(node)
        result = NodeResult(node, fd.UNKNOWN, at_ns=time.time_ns(), tries=self._tries.get(node, 0), why=why)
        self.results[node] = result
        self.keep(result)
        self.tell(f"{node}: unknown: {why}")

    def _end(self) -> None:
        """No job of the sweep is left when it ends: cancelled ones stop the diagnostic in their node's engine first."""
        deadline = time.monotonic() + ENDING_S
        while self._flying and time.monotonic() < deadline:
            try:
                self.slurm.cancel_all()
            except SlurmError as exc:
                self.tell(f"jobs could not be cancelled: {exc}")
            for node, end in self.slurm.ended(min(5.0, ENDING_S)):
                self._flying.pop(node, None)
                verdict = outcome.judge(node, end, time.time_ns())
                if verdict.result is not None:
                    self.results[node] = verdict.result._replace(tries=self._tries.get(node, 0) + 1)
                    self.keep(self.results[node])
                else:
                    waited = f"; it waited ({self._reasons[node]})" if self._reasons.get(node) else ""
                    self._lost.setdefault(node, f"its job was cancelled with the sweep{waited}")
                    self.todo.append(node)
        for node in self._flying:
            self._lost[node] = "its job did not end when it was cancelled: squeue"
            self.todo.append(node)

    def _missed(self, name: str) -> Missed:
        node = self._nodes.get(name)
        why = plan.why_not(node) or self._lost.get(name) or "was busy the whole time"
        return Missed(name, why, plan.by_hand(node) if plan.why_not(node) else "")


def _about(result: NodeResult) -> str:
    names = ", ".join(gpu.name or gpu.uuid for gpu in result.gpus)
    return f": {names}" if names else f": {result.why}" if result.why else ""
