"""Do the steps of a plan once, safely.

Order of safety: an intent is written before Slurm is asked, the state is read
again just before it is changed (somebody may have drained the node meanwhile),
and a request that timed out counts as neither done nor not done: observed on
22.05 and 24.11, slurmctld applies it when it wakes up. A ledger that fails
leaves a trouble and stops no protective step.
"""

from __future__ import annotations

from typing import Callable, Final, NamedTuple, Optional, Protocol

from slurm_nvhc.act import narrow
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.plan import resumable
from slurm_nvhc.act.steps import Step
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Exclusion, Intent, OwnDrain
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.slurm.node import TIMEOUT, SlurmError

LEAST_S: Final = 0.1  # a Slurm call takes 5 ms; with less time left than this none is begun


class NodeCommands(Protocol):
    """slurm.node.SlurmCommands, or a test's own. Each may raise SlurmError."""

    def node_state(self, node: str, timeout_s: Optional[float] = None) -> NodeState: ...
    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None: ...
    def resume(self, node: str, timeout_s: Optional[float] = None) -> None: ...


class Protective(Protocol):
    """What the ledger keeps for us. Each may raise MonitorError."""

    def exclude(self, exclusion: Exclusion) -> None: ...
    def own_drain(self) -> Optional[OwnDrain]: ...
    def set_own_drain(self, drain: Optional[OwnDrain]) -> None: ...
    def intents(self) -> tuple[Intent, ...]: ...
    def add_intent(self, intent: Intent) -> None: ...
    def update_intent(self, intent: Intent) -> None: ...
    def end_intent(self, intent: Intent) -> None: ...


class Tools(NamedTuple):
    """protective: None when there is no ledger; constrain: asked only when a job is narrowed (conf.constrain_devices)."""

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


class Done(NamedTuple):
    """ok: the step's aim is reached. detail: what happened, when that is not plain from the step."""

    step: Step
    ok: bool
    detail: str = ""


class Outcome(NamedTuple):
    """fail_hook: the job must not run here. accepted: events that need no drain any more (for judge's memory)."""

    done: tuple[Done, ...] = ()
    fail_hook: bool = False
    troubles: tuple[Trouble, ...] = ()

    @property
    def accepted(self) -> tuple[str, ...]:
        return tuple(i for d in self.done if d.step.kind == st.ACCEPT for i in d.step.idents)


def execute(steps: tuple[Step, ...], tools: Tools) -> Outcome:
    """Never raises for what Slurm, the ledger or a file system does."""
    return _Run(tools).run(steps)


class _Run:
    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.troubles: list[Trouble] = []
        self.not_out = False  # a drain that was planned is not in place
        self.fail_hook = False

    def run(self, steps: tuple[Step, ...]) -> Outcome:
        actions: dict[str, Callable[[Step], Done]] = {
            st.DRAIN: self._drain_step,
            st.EXTEND: self._extend,
            st.OWN: self._own,
            st.INTENT: self._intent,
            st.END_INTENT: self._end_intent,
            st.END_OWN: self._end_own,
            st.EXCLUDE: self._exclude,
            st.NARROW: self._narrow,
            st.FAIL_JOB: self._fail_job,
            st.RESUME: self._resume,
            st.NOTIFY: self._notify,
        }
        done = [actions.get(step.kind, _only_told)(step) for step in steps]
        return Outcome(tuple(done), self.fail_hook, tuple(dict.fromkeys(self.troubles)))

    # --- the ledger and Slurm, bounded -----------------------------------------

    def _keep(self, change: Callable[[Protective], None]) -> bool:
        """Change the ledger; False (and a trouble) when that failed."""
        if self.tools.protective is None:
            return False  # whoever failed to open it has said so
        try:
            change(self.tools.protective)
        except MonitorError as exc:
            self.troubles.append(Trouble("MON-LEDGER", "ledger", str(exc)))
            return False
        return True

    def _intents(self) -> tuple[Intent, ...]:
        if self.tools.protective is None:
            return ()
        try:
            return self.tools.protective.intents()
        except MonitorError as exc:
            self.troubles.append(Trouble("MON-LEDGER", "ledger", str(exc)))
            return ()

    def _time(self) -> float:
        left = self.tools.left_s()
        if left < LEAST_S:
            raise SlurmError(TIMEOUT, "scontrol", self.tools.node, "not run: no time left in the hook's budget")
        return left

    def _state(self) -> NodeState:
        return self.tools.slurm.node_state(self.tools.node, self._time())

    def _failed(self, step: Step, exc: SlurmError) -> Done:
        self.troubles.append(Trouble("MON-SLURM", "slurm", str(exc)))
        return Done(step, False, str(exc))

    # --- draining --------------------------------------------------------------

    def _drain_step(self, step: Step) -> Done:
        done = self._drain(step)
        self.not_out = not done.ok
        return done

    def _drain(self, step: Step) -> Done:
        mine = _intent_of(step, self.tools.now_ns)
        # Earlier intents stay until the node is out: one that timed out may still be applied, and is known by its reason.
        self._keep(lambda p: p.add_intent(mine))
        try:
            state = self._state()
            if state.out:
                return self._found_out(step, state)
            self._change(lambda left: self.tools.slurm.drain(self.tools.node, step.reason, left))
        except SlurmError as exc:
            self._tried(mine)
            done = self._failed(step, exc)
            if exc.kind != TIMEOUT:
                return done
            return self._after_timeout(step, done)
        self._placed(step)
        return Done(step, True)

    def _after_timeout(self, step: Step, done: Done) -> Done:
        try:
            state = self._state()
        except SlurmError:
            return done  # the intent stays, and with it the reason by which a late drain is known as ours
        if state.out:
            return self._found_out(step, state)
        return done

    def _found_out(self, step: Step, state: NodeState) -> Done:
        """The node is out although the plan did not know it."""
        if state.reason == step.reason:
            self._placed(step)
            return Done(step, True, "Slurm has it")
        if state.base == "DOWN" and not state.flags & {"DRAIN", "FAIL"}:
            return Done(step, True, "the node is down: remembered for when it returns")
        # Another hook of ours may just be at it: its intent is its own to end.
        self._settle(but=state.reason)
        return Done(step, True, "the node was taken out meanwhile, its reason stays")

    def _placed(self, step: Step) -> None:
        own = OwnDrain(step.reason, self.tools.now_ns, True, step.keys, step.idents, step.standing)
        if self._keep(lambda p: p.set_own_drain(own)):
            self._settle()
        self.tools.log(f"drained {self.tools.node}: {step.reason}")

    def _settle(self, but: str = "") -> None:
        """End the intents to drain, except the one with reason ``but``."""
        for intent in self._intents():
            if intent.kind == "drain" and intent.reason != but:
                self._keep(lambda p, i=intent: p.end_intent(i))  # type: ignore[misc]

    def _tried(self, intent: Intent) -> None:
        for kept in self._intents():
            if (kept.kind, kept.reason) == (intent.kind, intent.reason):
                self._keep(lambda p, i=kept: p.update_intent(i._replace(tries=i.tries + 1)))  # type: ignore[misc]

    def _change(self, call: Callable[[float], None]) -> None:
        call(self._time())

    def _extend(self, step: Step) -> Done:
        try:
            own = self.tools.protective.own_drain() if self.tools.protective is not None else None
            state = self._state()
            if own is None or not state.out or state.reason != own.reason:
                return Done(step, False, "the node's reason is not ours any more: left as it is")
            # By this intent the longer reason is known as ours if it arrives late.
            self._keep(lambda p: p.add_intent(_intent_of(step, self.tools.now_ns)))
            self._change(lambda left: self.tools.slurm.drain(self.tools.node, step.reason, left))
        except SlurmError as exc:
            if exc.kind != TIMEOUT:
                self._keep(lambda p: p.end_intent(Intent("drain", step.reason, self.tools.now_ns)))
            return self._failed(step, exc)
        except MonitorError as exc:
            self.troubles.append(Trouble("MON-LEDGER", "ledger", str(exc)))
            return Done(step, False, str(exc))
        longer = own._replace(reason=step.reason, keys=step.keys, idents=step.idents, standing=step.standing)
        if self._keep(lambda p: p.set_own_drain(longer)):
            self._settle()
        return Done(step, True)

    def _resume(self, step: Step) -> Done:
        try:
            if not resumable(self._state(), step.reason):
                return Done(step, False, "the node's state is not ours any more: left as it is")
            self._change(lambda left: self.tools.slurm.resume(self.tools.node, left))
        except SlurmError as exc:
            return self._failed(step, exc)
        self._keep(lambda p: p.set_own_drain(None))
        self.tools.log(f"resumed {self.tools.node}: {step.why}")
        return Done(step, True)

    # --- the rest ---------------------------------------------------------------

    def _own(self, step: Step) -> Done:
        own = OwnDrain(step.reason, self.tools.now_ns, True, step.keys, step.idents, step.standing)
        return Done(step, self._keep(lambda p: p.set_own_drain(own)))

    def _intent(self, step: Step) -> Done:
        intent = _intent_of(step, self.tools.now_ns)
        return Done(step, self._keep(lambda p: p.add_intent(intent)))

    def _end_intent(self, step: Step) -> Done:
        return Done(step, self._keep(lambda p: p.end_intent(Intent("drain", step.reason, self.tools.now_ns))))

    def _end_own(self, step: Step) -> Done:
        return Done(step, self._keep(lambda p: p.set_own_drain(None)))

    def _exclude(self, step: Step) -> Done:
        exclusion = Exclusion(step.uuid, step.code, step.why, "nvhc", self.tools.now_ns)
        if self._keep(lambda p: p.exclude(exclusion)):
            self.tools.log(f"excluded {step.why} ({step.uuid}) from jobs")
            return Done(step, True)
        # Not remembered, the next job would see the GPU: then the node is drained for it.
        drained = self._drain(step)
        return Done(step, drained.ok, f"could not be recorded, so the node was to be drained instead: {drained.detail or 'done'}")

    def _narrow(self, step: Step) -> Done:
        tools = self.tools
        try:
            if tools.job is None:
                raise MonitorError("exclusion file", "", "there is no job to narrow")
            narrow.write(tools.run_dir, tools.node, tools.job, tools.mapping, step.uuids, tools.constrain(), step.why)
        except MonitorError as exc:
            self.troubles.append(Trouble("MON-INTERNAL", "hook", str(exc)))
            # The job would see the GPU: it must not run here, and the node is drained for it.
            drained = self._drain(step)
            self.fail_hook = self.fail_hook or drained.ok
            return Done(step, False, f"{exc}; the node was to be drained instead: {drained.detail or 'done'}")
        tools.log(f"job {tools.job.job_id}: {step.why}")
        return Done(step, True)

    def _fail_job(self, step: Step) -> Done:
        if self.not_out:
            # Slurm would drain the node itself, with a reason that says nothing, and hold the job (R57).
            return Done(step, False, "the node could not be drained: the job is let through, the drain is remembered")
        self.fail_hook = True
        return Done(step, True)

    def _notify(self, step: Step) -> Done:
        self.tools.log(f"notify: {step.why}")
        return Done(step, True)


def _only_told(step: Step) -> Done:
    """A step that only tells."""
    return Done(step, True)


def _intent_of(step: Step, now_ns: int) -> Intent:
    return Intent("drain", step.reason, now_ns, step.keys, step.idents, standing=step.standing, events=step.events, policy=step.policy)
