"""What one hook run asks of Slurm: the same calls as slurm/node.py, slurm/fleet.py and slurm/jobs.py, against the model."""

from __future__ import annotations

from typing import Any, Final, Optional, Sequence

from planner import truth
from planner.node import Refused
from planner.truth import Run
from planner.world import Cell, Job, World
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.slurm.fleet import OutNode, Partition
from slurm_nvhc.slurm.node import MISSING, REFUSED, TIMEOUT, UNREACHABLE, SlurmError

CALL_S: Final = 0.005
TIMEOUT_S: Final = 4.0
DOWN_S: Final = 2.0


class Budget:
    """The hook's time, of which each call takes some."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def left_s(self) -> float:
        return max(0.0, self.seconds)

    def sense_s(self) -> float:
        return self.left_s()


class Commands:
    """slurm.node.SlurmCommands of one run."""

    def __init__(self, world: World, cell: Cell, run: Run, budget: Budget, late: Optional[int], refuses: bool) -> None:
        self.world, self.cell, self.run, self.budget = world, cell, run, budget
        self.late, self.refuses = late, refuses
        self.book: Any = None
        self.last: Optional[NodeState] = None

    def node_state(self, node: str, timeout_s: Optional[float] = None) -> NodeState:
        self.world.moment()
        self._answers("show node")
        truth.read(self.run, self.cell)
        self.last = state = self.cell.node.state()
        self.world.moment()
        return state

    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        seen, run, world, cell = self.run.seen, self.run, self.world, self.cell
        boots = cell.boots
        truth.asks_drain(world, run, cell, reason, self.book.failed)
        asked_while = world.slurmctld

        def change() -> None:
            truth.drained(world, run, seen, cell, reason, asked_while == "hung")
            cell.node.set_drain("nvhc", reason, world.now_ns)
            if boots != cell.boots:
                world.count("drains applied after a reboot")

        self._change("update", change)
        run.out = True

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        seen, run, world, cell = self.run.seen, self.run, self.world, self.cell
        asked_while = world.slurmctld

        def change() -> None:
            truth.resumed(world, run, seen, cell, asked_while == "hung")
            cell.node.resume()

        self._change("update", change)
        run.out = False

    def undrain(self, node: str, timeout_s: Optional[float] = None) -> None:
        seen, run, world, cell = self.run.seen, self.run, self.world, self.cell
        asked_while = world.slurmctld

        def change() -> None:
            truth.taken_back(world, run, seen, cell, asked_while == "hung")
            cell.node.undrain()

        self._change("update", change)
        run.out = False

    def reboot(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        seen, run, world, cell = self.run.seen, self.run, self.world, self.cell
        asked_while = world.slurmctld

        def change() -> None:
            truth.rebooted(world, run, seen, cell, asked_while == "hung")
            cell.node.ask_reboot("nvhc", reason, "RESUME", world.now_ns)

        self._change("reboot", change)

    # Who else is drained (slurm.fleet.SlurmFleet)

    def unusable(self) -> Optional[SlurmError]:
        return None if self.world.setting.counts else SlurmError(MISSING, "sinfo", "", "is not there")

    def partitions(self, names: Any, timeout_s: Optional[float] = None) -> tuple[Partition, ...]:
        self.world.moment()
        self._answers("sinfo")
        nodes = [c.node for c in self.world.cells]
        out = tuple(OutNode(n.name, "drain", n.reason, "root", n.said_ns) for n in nodes if n.out)
        self.world.moment()
        return (Partition("gpu", len(nodes), out),)

    def pause(self, seconds: float) -> None:
        self.budget.seconds -= seconds
        self.world.moment()
        self.world.now_ns += int(seconds * 1e9)
        self.world.moment()

    # Jobs (slurm.jobs.SlurmJobs)

    def job(self, job_id: str, node: str, timeout_s: Optional[float] = None) -> Optional[NodeJob]:
        self.world.moment()
        self._answers("show job")
        job = self.cell.jobs.get(job_id)
        self.world.moment()
        return self._told(job) if job is not None else None

    def of_node(self, node: str, timeout_s: Optional[float] = None) -> tuple[NodeJob, ...]:
        self._answers("show job")
        return tuple(self._told(job) for job in self.cell.jobs.values())

    def alike(self, node: str, partition: str, timeout_s: Optional[float] = None) -> tuple[str, ...]:
        self._answers("sinfo")
        return tuple(c.node.name for c in self.world.cells if c is not self.cell)

    def requeue(self, job_id: str, timeout_s: Optional[float] = None) -> None:
        run, world, cell = self.run, self.world, self.cell
        job = cell.jobs.get(job_id)

        def change() -> None:
            if job is None:
                raise Refused("Invalid job id specified")
            truth.moves(world, run, cell, job)
            job.state, job.restarts = "COMPLETING", job.restarts + 1

        self._change("requeue", change)

    def update_job(self, job_id: str, settings: Sequence[str], timeout_s: Optional[float] = None) -> None:
        job = self.cell.jobs.get(job_id)

        def change() -> None:
            if job is None:
                raise Refused("Invalid job id specified")
            for setting in settings:
                name, _, value = setting.partition("=")
                if name == "admincomment":
                    job.admin_comment = value
                elif name == "excnodelist":
                    job.excluded = value

        self._change("update", change)

    def _told(self, job: Job) -> NodeJob:
        return NodeJob(
            job.job_id, job.state, 1001, partition="gpu", batch=True, requeue=job.requeue, restarts=job.restarts,
            admin_comment=job.admin_comment, positions=job.positions, excluded=job.excluded,
        )  # fmt: skip

    def _answers(self, what: str) -> None:
        self.budget.seconds -= CALL_S
        if self.world.slurmctld == "ok":
            return
        self.run.silent = True
        if self.world.slurmctld == "down":
            self.budget.seconds -= DOWN_S
            raise SlurmError(UNREACHABLE, "scontrol", what, "Unable to contact slurm controller (connect failure)")
        self.budget.seconds -= TIMEOUT_S
        raise SlurmError(TIMEOUT, "scontrol", what, "Socket timed out on send/recv operation")

    def _change(self, what: str, change: Any) -> None:
        self.world.moment()
        if self.world.slurmctld == "hung":
            self.world.queue.append(change)
        self._answers(what)
        self.run.asked += 1
        if self.refuses:
            self.run.silent = True
            raise SlurmError(REFUSED, "scontrol", what, "slurm_update error: Invalid user id")
        try:
            change()
        except Refused as exc:
            raise SlurmError(REFUSED, "scontrol", what, str(exc)) from None
        self.world.moment()
        if self.late is not None:
            self.late -= 1
            if self.late < 0:
                self.late = None
                self.run.silent = True
                self.budget.seconds -= TIMEOUT_S
                raise SlurmError(TIMEOUT, "scontrol", what, "no answer within 4.0 s")
