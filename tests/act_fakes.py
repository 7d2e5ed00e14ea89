"""A small Slurm, a small ledger and small inputs for the tests of act/."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from slurm_nvhc.act.execute import Outcome, Tools, execute
from slurm_nvhc.act.plan import PlanInput, Step, plan, reason_findings
from slurm_nvhc.act.words import plain
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.finding import Decision, Evidence, Finding, Proposal
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Ended, Exclusion, Hold, Intent, OwnDrain, Strike
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.slurm.node import REFUSED, TIMEOUT, UNREACHABLE, SlurmError

NO_NARROWING = pol.Narrow()
JUST_DRAIN = pol.Drain()
NOTHING = Decision("ok")
T0 = 1_800_000_000 * 10**9


def uuid(n: int) -> str:
    return f"GPU-0000000{n}-1111-2222-3333-444444444444"


# An enforced rule for every code: a drain that is still to be placed is dropped when no rule asks for it any more.
RULES = {code: pol.Rule(code, code, "reading", (), action="drain") for code in BY_CODE}


def policy(narrow: pol.Narrow = NO_NARROWING, drain: pol.Drain = JUST_DRAIN) -> pol.Policy:
    return pol.Policy(
        "test", "enforce", RULES, narrow, pol.Expect(), pol.Monitor(), pol.Engine(), pol.Slurm(), drain, pol.Budgets(), pol.Record(), 2.0
    )


def job(*positions: int, nodes: Optional[int] = 1, tasks: Optional[int] = 1) -> Job:
    return Job("8812", 1001, "ada", "gpu", positions or None, "", nodes, tasks)


def mapping(*positions: int, exact: bool = True, missing: tuple[int, ...] = ()) -> GpuMapping:
    table = {n: uuid(n) for n in range(8)}
    return GpuMapping(tuple(uuid(n) for n in positions if n not in missing), table, exact, missing, "test")


def finding(code: str = "NVL-STORM", n: int = 3, idents: tuple[str, ...] = (), klass: str = "gpu", entity: str = "") -> Finding:
    row = {"nvml_index": n, "uuid": uuid(n)} if klass in ("gpu", "link") else {}
    return Finding(code, entity or uuid(n), klass, "fail", "is bad", Evidence(), row, action="narrow", idents=idents)


def proposal(action: str = "narrow", *findings: Finding, of_job: bool = False) -> Proposal:
    found = findings or (finding(),)
    own = found[0].entity.partition("/")[0]
    return Proposal(action, own if own.startswith("GPU-") else "", tuple(f._replace(of_job=of_job) for f in found), of_job)


def decision(*proposals: Proposal, observed: tuple[Proposal, ...] = (), verdict: str = "") -> Decision:
    return Decision(verdict or ("fail" if proposals else "ok"), proposals, observed)


IDLE = NodeState("IDLE", frozenset())


def drained(reason: str, base: str = "IDLE") -> NodeState:
    return NodeState(base, frozenset({"DRAIN"}), reason)


def given(what: Decision = NOTHING, **changes: Any) -> PlanInput:
    base = PlanInput(
        hook="epilog", node="n1", job=job(2, 3), mapping=mapping(2, 3), decision=what, node_state=IDLE, exclusions={}, own=None,
        intents=(), policy=policy(), reason="", now_ns=T0, node_gpus=8,
    )  # fmt: skip
    return base._replace(**changes)


class Ledger:
    """``broken``: every change and every read fails."""

    def __init__(self) -> None:
        self.excluded: dict[str, Exclusion] = {}
        self.own: Optional[OwnDrain] = None
        self.pending: list[Intent] = []
        self.ended: list[Ended] = []
        self.holds: dict[str, Hold] = {}
        self.strikes: list[Strike] = []
        self.settled: list[str] = []
        self.broken = False

    def _check(self) -> None:
        if self.broken:
            raise MonitorError("/var/lib/nvhc/n1/ledger.sqlite3", "", "disk full")

    def exclusions(self) -> tuple[Exclusion, ...]:
        self._check()
        return tuple(self.excluded.values())

    def change_exclusion(self, exclusion: Exclusion) -> bool:
        self._check()
        return self.excluded.pop(exclusion.uuid, None) is not None and self.excluded.setdefault(exclusion.uuid, exclusion) is exclusion

    def exclude(self, exclusion: Exclusion) -> None:
        self._check()
        self.excluded.setdefault(exclusion.uuid, exclusion)

    def end_exclusion(self, ended: Ended) -> bool:
        self._check()
        self.ended.append(ended)
        return self.excluded.pop(ended.exclusion.uuid, None) is not None

    def set_hold(self, hold: Hold) -> None:
        self._check()
        self.holds[hold.uuid] = hold

    def end_hold(self, uuid: str) -> None:
        self._check()
        self.holds.pop(uuid, None)

    def add_strike(self, strike: Strike) -> None:
        self._check()
        self.strikes.append(strike)

    def own_drain(self) -> Optional[OwnDrain]:
        self._check()
        return self.own

    def set_own_drain(self, drain: Optional[OwnDrain]) -> None:
        self._check()
        self.own = drain

    def intents(self) -> tuple[Intent, ...]:
        self._check()
        return tuple(self.pending)

    def add_intent(self, intent: Intent) -> None:
        self._check()
        if not any((i.kind, i.reason) == (intent.kind, intent.reason) for i in self.pending):
            self.pending.append(intent)

    def update_intent(self, intent: Intent) -> None:
        self._check()
        self.pending = [intent if (i.kind, i.reason) == (intent.kind, intent.reason) else i for i in self.pending]

    def settle(self, names: Sequence[str]) -> None:
        self._check()
        self.settled += names

    def end_intent(self, intent: Intent) -> None:
        self._check()
        self.pending = [i for i in self.pending if (i.kind, i.reason) != (intent.kind, intent.reason)]


class Slurm:
    """One node. ``behaviour``: ok, down, refuses, hangs (applied later), late (applied, but no answer)."""

    def __init__(self, keeps_reason: bool = True, stamps: bool = False) -> None:
        self.state = IDLE
        self.stamps = stamps  # says who set a reason and when, as Slurm does
        self.behaviour = "ok"
        self.keeps_reason = keeps_reason  # as 24.11 does after a resume
        self.later: list[NodeState] = []
        self.updates: list[str] = []
        self.overwritten: list[str] = []
        self.before_update: Optional[NodeState] = None  # what another does between our read and our change

    def node_state(self, node: str, timeout_s: Optional[float] = None) -> NodeState:
        if self.behaviour == "down":
            raise SlurmError(UNREACHABLE, "scontrol", "show node", "Unable to contact slurm controller")
        if self.behaviour == "hangs":
            raise SlurmError(TIMEOUT, "scontrol", "show node", "no answer")
        return self.state

    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        self.updates.append(reason)
        flags = (self.state.flags - {"NOT_RESPONDING"}) | {"DRAIN"}
        new = NodeState(self.state.base, flags, reason, f"root@{len(self.updates)}" if self.stamps else "")
        if self.behaviour == "down":
            raise SlurmError(UNREACHABLE, "scontrol", "update", "Unable to contact slurm controller")
        if self.behaviour == "refuses":
            raise SlurmError(REFUSED, "scontrol", "update", "Invalid user id")
        if self.behaviour in ("hangs", "hangs_at_update"):
            self.later.append(new)
            self.behaviour = "hangs"
            raise SlurmError(TIMEOUT, "scontrol", "update", "Socket timed out")
        if self.state.out:
            self.overwritten.append(self.state.reason)
        self.state = new
        if self.behaviour == "late":
            raise SlurmError(TIMEOUT, "scontrol", "update", "Socket timed out")

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        self.updates.append("resume")
        if self.behaviour != "ok":
            raise SlurmError(UNREACHABLE, "scontrol", "update", "down")
        self.someone_resumes()

    def wake_up(self) -> None:
        self.behaviour = "ok"
        for state in self.later:
            if self.state.out and self.state.reason != state.reason:
                self.overwritten.append(self.state.reason)
            self.state = state
        self.later = []

    def someone_resumes(self) -> None:
        self.state = NodeState("IDLE", frozenset(), *((self.state.reason, self.state.stamp) if self.keeps_reason else ()))

    def someone_drains(self, reason: str) -> None:
        self.state = drained(reason)


class Site:
    """Plans and executes as the pipeline does, and remembers."""

    def __init__(self, run_dir: str = "/nonexistent", slurm: Optional[Slurm] = None) -> None:
        self.slurm = slurm or Slurm()
        self.ledger = Ledger()
        self.run_dir = run_dir
        self.accepted: set[str] = set()
        self.lines: list[str] = []
        self.left_s = 5.0

    def input(self, what: Decision, **changes: Any) -> PlanInput:
        live = tuple(p for p in what.proposals if not any(f.idents and self.accepted.issuperset(f.idents) for f in p.findings))
        try:
            state: Optional[NodeState] = self.slurm.node_state("n1")
        except SlurmError:
            state = None
        base: Mapping[str, Any] = {
            "node_state": state, "exclusions": dict(self.ledger.excluded), "own": self.ledger.own, "intents": tuple(self.ledger.pending),
        }  # fmt: skip
        inp = given(what._replace(proposals=live), **{**base, **changes})
        found = reason_findings(inp)
        return inp._replace(reason=plain(found, "8812", inp.policy.drain.max_length)) if found else inp

    def run(self, what: Decision = NOTHING, **changes: Any) -> tuple[tuple[Step, ...], Outcome]:
        inp = self.input(what, **changes)
        steps = plan(inp)
        return steps, self.do(steps, inp)

    def do(self, steps: tuple[Step, ...], inp: PlanInput) -> Outcome:
        if self.slurm.before_update is not None:
            self.slurm.state = self.slurm.before_update
        self.slurm.before_update = None
        tools = Tools(
            self.slurm,
            "n1",
            self.ledger,
            self.run_dir,
            inp.job,
            inp.mapping,
            lambda: False,
            self.lines.append,
            lambda: self.left_s,
            T0,
            inp.policy,
        )
        outcome = execute(steps, tools)
        self.accepted.update(outcome.accepted)
        return outcome


def kinds(steps: tuple[Step, ...]) -> list[str]:
    return [s.kind for s in steps]
