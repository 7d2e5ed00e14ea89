"""A small Slurm's jobs for the tests of act/job_care.py and act/jobs.py: it does what was observed, for better or worse."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from act_fakes import NOTHING, T0, Site, given, job, policy

from slurm_nvhc.act.execute import Outcome, Tools, execute
from slurm_nvhc.act.plan import PlanInput, Step, plan, reason_findings
from slurm_nvhc.act.words import plain
from slurm_nvhc.model.finding import Decision
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.slurm.command import REFUSED, TIMEOUT, UNREACHABLE, SlurmError

OURS = "8812"


def batch(job_id: str = OURS, **changes: Any) -> NodeJob:
    base = NodeJob(job_id, "RUNNING", uid=1001, name="train", partition="gpu", batch=True, requeue=True, positions=(2, 3))
    return base._replace(**changes)


def caring(
    requeue: Optional[pol.Requeue] = None, checkpoint: Optional[pol.Checkpoint] = None, quarantine: Optional[pol.Quarantine] = None
) -> pol.Policy:
    off = policy()
    return off._replace(
        requeue=requeue or off.requeue, checkpoint=checkpoint or off.checkpoint, quarantine=quarantine or off.quarantine
    )


KILLED = "killed"


class Killed(BaseException):
    """The hook ends here."""


class Queue:
    """``trouble``: call -> (kind, whether it is done all the same). ``meanwhile``: call -> what others do just before it."""

    def __init__(self, *jobs: NodeJob, others: tuple[str, ...] = ("n2", "n3", "n4")) -> None:
        self.jobs = {job.job_id: job for job in jobs}
        self.others = others
        self.calls: list[str] = []
        self.signals: list[str] = []
        self.trouble: dict[str, tuple[str, bool]] = {}
        self.trouble_at: dict[int, tuple[str, bool]] = {}  # number of the call, from 1
        self.meanwhile: dict[str, Callable[[], object]] = {}

    def change(self, job_id: str, **changes: Any) -> None:
        self.jobs[job_id] = self.jobs[job_id]._replace(**changes)

    def cancel(self, job_id: str = OURS) -> None:
        self.change(job_id, state="COMPLETING")

    def _call(self, name: str, do: Callable[[], object]) -> None:
        self.calls.append(name)
        self.meanwhile.pop(name, lambda: None)()
        kind, applied = self.trouble.get(name, self.trouble_at.get(len(self.calls), ("", True)))
        if kind == KILLED:
            if applied:
                do()
            raise Killed
        if applied:
            do()
        if kind:
            raise SlurmError(kind, "scontrol", name, {TIMEOUT: "no answer", UNREACHABLE: "can not contact", REFUSED: "no"}.get(kind, kind))

    def _known(self, job_id: str) -> NodeJob:
        if job_id not in self.jobs:
            raise SlurmError(REFUSED, "scontrol", job_id, "Invalid job id specified")
        return self.jobs[job_id]

    def job(self, job_id: str, node: str, timeout_s: Optional[float] = None) -> Optional[NodeJob]:
        self._call("job", lambda: None)
        return self.jobs.get(job_id)

    def of_node(self, node: str, timeout_s: Optional[float] = None) -> tuple[NodeJob, ...]:
        self._call("of_node", lambda: None)
        return tuple(self.jobs.values())

    def alike(self, node: str, partition: str, timeout_s: Optional[float] = None) -> tuple[str, ...]:
        self._call("alike", lambda: None)
        return self.others

    def requeue(self, job_id: str, timeout_s: Optional[float] = None) -> None:
        def do() -> None:
            job = self._known(job_id)
            if not job.batch or not job.requeue:
                raise SlurmError(REFUSED, "scontrol", "requeue", "Requested operation is presently disabled")
            if job.state == "PENDING" or job.restarts:
                raise SlurmError(REFUSED, "scontrol", "requeue", "Job is pending execution")
            # Slurm takes cancelled and finished jobs as well.
            self.change(job_id, state="COMPLETING", restarts=job.restarts + 1)

        self._call("requeue", do)

    def update_job(self, job_id: str, settings: Sequence[str], timeout_s: Optional[float] = None) -> None:
        for setting in settings:
            name, _, value = setting.partition("=")

            def do(name: str = name, value: str = value) -> None:
                job = self._known(job_id)
                if name == "excnodelist" and job.state == "RUNNING":
                    raise SlurmError(REFUSED, "scontrol", "update", "Job is no longer pending execution")
                self.change(job_id, **{{"excnodelist": "excluded", "admincomment": "admin_comment"}[name]: value})

            self._call(name, do)

    def signal(self, job_id: str, name: str, batch: bool, timeout_s: Optional[float] = None) -> None:
        self._call("signal", lambda: self.signals.append(f"{name} {job_id}{' batch' if batch else ''}"))

    def unused(self, *_args: Any) -> Any:
        raise AssertionError("placeholder jobs are another topic")

    partitions = submit = cancel_jobs = cancel_named = reserve = end_reservation = unused


class Care(Site):
    """A node with jobs: plans and executes as the pipeline does, strikes included."""

    def __init__(self, queue: Queue, under: pol.Policy) -> None:
        super().__init__()
        self.queue, self.policy, self.now_ns = queue, under, T0
        self.killed_after: Optional[int] = None  # steps of execute, before the hook is killed

    def input(self, what: Decision, **changes: Any) -> PlanInput:
        hook, ours = changes.get("hook", "epilog"), changes.get("job", job(2, 3))
        settings: dict[str, Any] = {"policy": self.policy, "alloc": True, "strikes": tuple(self.ledger.strikes), "now_ns": self.now_ns}
        settings["job"] = None if hook == "health_check" else ours
        state = self.slurm.state if self.slurm.behaviour == "ok" else None
        settings.update(node_state=state, exclusions=dict(self.ledger.excluded), own=self.ledger.own, intents=tuple(self.ledger.pending))
        if hook == "health_check":
            settings["jobs"] = tuple(self.queue.jobs.values())
        elif hook == "prolog":
            settings["slurm_job"] = self.queue.jobs.get(OURS)
        inp = given(what, **{**settings, **changes})
        found = reason_findings(inp)
        return inp._replace(reason=plain(found, OURS, 250)) if found else inp

    def run(self, what: Decision = NOTHING, **changes: Any) -> tuple[tuple[Step, ...], Outcome]:
        inp = self.input(what, **changes)
        steps = plan(inp)
        return steps, self.do(steps[: self.killed_after], inp)

    def do(self, steps: tuple[Step, ...], inp: PlanInput) -> Outcome:
        tools = Tools(
            slurm=self.slurm, node="n1", protective=self.ledger, run_dir="/nonexistent", job=inp.job, mapping=inp.mapping,
            constrain=lambda: False, log=self.lines.append, left_s=lambda: 5.0, now_ns=inp.now_ns, policy=inp.policy, jobs=self.queue,  # type: ignore[arg-type]
        )  # fmt: skip
        return execute(steps, tools)
