"""The real judge over a plan: what a hook does between its reading and its decision (observation.judge_given), look after look.

What is not here is the reader, the ledger's file and Slurm: snapshots come from the plan, memory, last look and
what was learned are kept in variables, and nothing is done about a verdict but to note it.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping, NamedTuple, Optional, TypeVar, cast

from detection import sampled
from detection.boards import Board, board
from detection.looks import Look, looks
from detection.node import Node
from detection.plan import SHOULD_WARN, Plan, link_of
from detection.plan import Job as PlannedJob
from slurm_nvhc.book import Book
from slurm_nvhc.context import Context, Site
from slurm_nvhc.errors import InputError
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG, Judgement
from slurm_nvhc.judge.memory import Notes
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.given import Given
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.look import Look as LastLook
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot, Trouble
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.observation import Observation, judge_given
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Policy, resolve
from slurm_nvhc.proc.budget import Budget

_T = TypeVar("_T")

PROTECTIVE: Final = (fd.NARROW, fd.DRAIN)
EPISODE_S: Final = 86400.0  # a warning with the same code about the same thing is a new one only after a day without it


class Verdict(NamedTuple):
    """One finding that warned or failed, at its first sight in an episode. packaged: the mode of its rule as packaged."""

    at: float
    hook: str
    code: str
    place: str
    verdict: str
    action: str
    rule: str
    packaged: str

    @property
    def drains(self) -> bool:
        return self.verdict == fd.FAIL and self.action in PROTECTIVE


class Seen(NamedTuple):
    """What came of one node. Moments are None where it never was.

    drained: the first protective decision that is due to the fault; wrongly: the first that is not, and by which rules
    packaged: as drained, or as wrongly on a sound node, by rules that act from day one
    answered: the fault got what it calls for: a drain, or a warning about its part; suspects: those of that run
    parts: the fault's parts as entities
    """

    verdicts: tuple[Verdict, ...]
    drained: Optional[float]
    wrongly: Optional[float]
    wrongly_by: tuple[str, ...]
    packaged: Optional[float]
    answered: Optional[float]
    suspects: tuple[Suspect, ...]
    looks: int
    parts: tuple[str, ...]


_site: list[dict[str, Any]] = []  # the compiled policy in force; of a worker the same as its parent's
_policies: dict[str, tuple[Policy, Mapping[str, str]]] = {}


def use_policy(file: Optional[str]) -> None:
    """Judge by a site's policy on top of the packaged one (None: by that alone). Raises InputError for anything wrong in it."""
    text = None
    if file is not None:
        try:
            with open(file, "rb") as opened:
                text = opened.read()
        except OSError as exc:
            raise InputError(file, "", f"can not be read: {exc.strerror}") from None
    _site[:] = [compile_policy(text, file or "packaged")]
    _policies.clear()


def _enforced(model: str) -> tuple[Policy, Mapping[str, str]]:
    if not _site:
        use_policy(None)
    # Resolved once instead of at every look: on a node of one model it is the same policy.
    policy = resolve(_site[0]).for_model(model)
    modes = {name: rule.mode for name, rule in policy.rules.items()}
    rules = {name: rule if rule.mode == fd.OFF else rule._replace(mode=fd.ENFORCE) for name, rule in policy.rules.items()}
    return policy._replace(rules=rules, mode=fd.ENFORCE), modes


def policy_of(name: str) -> tuple[Policy, Mapping[str, str]]:
    """(the policy for a board with every rule that is not off enforced, rule -> its own mode)"""
    if name not in _policies:
        first = next(iter((board(name).snapshot.gpus or {}).values()))
        _policies[name] = _enforced(first.identity.model)
    return _policies[name]


def judged(plan: Plan, every: bool = False, whole: bool = False, stop: bool = True) -> Seen:
    """The verdicts about one node.

    every: judge quiet looks too. whole: show what is at rest too. stop: end when the fault was answered, or the sound
    node was drained.
    """
    home = board(plan.board)
    run = _Run(plan, home, Node(plan, home, _shown(plan, home, whole), _parts(plan, home, whole)))
    for look in looks(plan, every):
        if look.judged:
            run.look(look)
        else:
            run.quiet(look)
        if stop and run.over():
            break
    return run.seen()


def _shown(plan: Plan, home: Board, whole: bool) -> Mapping[int, frozenset[int]]:
    """GPUs, with their links, that are judged: those to which something happens.

    What is at rest for the node's whole life can not be found guilty: rules ask each counter and state by itself. Three
    things look at the company as well: suspects (nodes with a fault), the comparison of a job's GPUs (sampled nodes),
    and sums over all links of a GPU (NVLink 5).
    """
    states = (home.snapshot.gpus or {}).values()
    everything = {n: frozenset(state.links) for n, state in enumerate(states)}
    if whole or plan.fault is not None or plan.sampled:
        return everything
    return {n: everything[n] if home.counts_5 else links for n, links in plan.in_play().items()}


def _parts(plan: Plan, home: Board, whole: bool) -> tuple[str, ...]:
    """The node's other parts in play: named by the plan, or the far end of a link that is; and the node itself."""
    if whole:
        return tuple(home.snapshot.parts)
    named = {e.place for e in plan.effects} | {entity.NODE}
    for effect in plan.effects:
        line = link_of(effect.place) if effect.place.startswith("g") else None
        if line is not None:
            far = home.remote.get((int(effect.place.partition(".")[0][1:]), line), "")
            named |= {far, far.partition("/")[0]}
    return tuple(name for name in home.snapshot.parts if name in named)


class _Book:
    """What judge remembers, as the ledger keeps it."""

    troubles: tuple[Trouble, ...] = ()

    def __init__(self) -> None:
        self.memory: dict[str, Any] = {}
        self.last: Optional[LastLook] = None

    def ask(self, work: Callable[[_Book], _T], _default: Any) -> _T:
        return work(self)

    def fold_memory(self, fold: Callable[..., tuple[_T, dict[str, Any], Optional[LastLook]]], _grown: Any = None) -> _T:
        result, self.memory, self.last = fold(self.memory, self.last)
        return result


class _Run:
    """The hooks of one node in order, with what the ledger would hold between them."""

    def __init__(self, plan: Plan, home: Board, node: Node) -> None:
        self.plan, self.home, self.node = plan, home, node
        policy, self.modes = policy_of(plan.board)
        self.book = _Book()
        self.context = Context(HEALTH_CHECK, Site("", "", ""), plan.node, None, policy, Budget(0.0), cast(Book, self.book), "", ())
        self.known: dict[str, GpuIdentity] = {}
        self.learned: dict[str, dict[str, Any]] = {}
        self.check: Optional[Snapshot] = None  # of the last health check
        self.before: dict[int, Snapshot] = {}  # a job's baseline
        self.cursor = {HEALTH_CHECK: 0.0, PROLOG: 0.0}  # where each hook's reading of the kernel log goes on
        self.verdicts: list[Verdict] = []
        self.last_at: dict[tuple[str, str, str], float] = {}
        self.drained: Optional[float] = None
        self.wrongly: Optional[float] = None
        self.wrongly_by: tuple[str, ...] = ()
        self.packaged: Optional[float] = None
        self.answered: Optional[float] = None
        self.suspects: tuple[Suspect, ...] = ()
        self.count = 0

    # One look

    def quiet(self, look: Look) -> None:
        """A look at which nothing is new: a prolog's snapshot is the baseline all the same, and an epilog's job counts."""
        if look.job is None or (look.hook == EPILOG and look.job.number not in self.before):
            return
        if look.hook == PROLOG:
            self.before[look.job.number] = self.node.snapshot(look.at, look.at)
            return
        snapshot = self.before.pop(look.job.number)
        notes = Notes(self.book.memory, snapshot.wall_ns, snapshot.boot_id)
        for uuid in ("", *self._mapping(look.job).uuids):
            notes.count_job(uuid, f"quiet {look.job.number}")
        self.book.memory = notes.memory()

    def look(self, look: Look) -> None:
        judgement = self._once(look, look.at)
        if judgement.second_look:
            judgement = self._once(look, look.at + self.context.policy.reread_wait_s)
        self.count += 1
        self._note(look, judgement)

    def _once(self, look: Look, at: float) -> Judgement:
        job = look.job
        before = self.check if look.hook == HEALTH_CHECK else None
        if look.hook == EPILOG and job is not None:
            before = self.before.get(job.number)
        started = 0.0 if before is None else (before.wall_ns - self.node.wall_ns(0)) / 1e9
        snapshot = self.node.snapshot(at, started if look.hook == EPILOG else self.cursor[look.hook])
        given = Given(
            mapping=self._mapping(job),
            known=tuple(self.known.values()),
            learned=self.learned,
            events_are_new=self.check is not None,
            history=self._history(look, started, at),
        )
        slurm_job = None if job is None else Job(str(job.number), job.uid, f"u{job.uid}", "gpu", job.gpus)
        context = self.context._replace(hook=look.hook, job=slurm_job)
        baseline = None if job is None else job.number
        seen = judge_given(context, before, snapshot, baseline, f"{look.hook}:{look.at}", given)
        self._keep(look, at, snapshot, seen)
        return seen.judgement

    def _keep(self, look: Look, at: float, snapshot: Snapshot, seen: Observation) -> None:
        for name, readings in seen.taught.items():
            self.learned.setdefault(name, {}).update(readings)
        if snapshot.gpus is not None:
            slots = {g.identity.pci for g in snapshot.gpus.values()}
            self.known = {u: row for u, row in self.known.items() if row.pci not in slots or u in snapshot.gpus}
            self.known.update({u: g.identity for u, g in snapshot.gpus.items()})
        if look.hook == PROLOG and look.job is not None:
            self.before[look.job.number] = snapshot
        elif look.hook == HEALTH_CHECK and snapshot.gpus is not None:
            self.check = snapshot
        if look.hook in self.cursor:
            self.cursor[look.hook] = at

    def _mapping(self, job: Optional[PlannedJob]) -> GpuMapping:
        table = {n: self.node.identity(n).uuid for n in range(self.home.gpus) if self.node.shows(n)}
        return GpuMapping(tuple(uuid for n, uuid in table.items() if job is not None and n in job.gpus), table, True)

    def _history(self, look: Look, start: float, end: float) -> Any:
        if look.hook != EPILOG or look.job is None or not (self.plan.sampled or self.plan.slow is not None):
            return None
        return sampled.history(self.plan, self.node, look.job, self.plan.spread, start, end)

    # What came of it

    def _note(self, look: Look, judgement: Judgement) -> None:
        for finding in judgement.findings:
            if finding.verdict not in (fd.WARN, fd.FAIL) or finding.klass == "monitor":
                continue
            key = (finding.code, finding.entity, finding.verdict)
            fresh = look.at - self.last_at.get(key, -EPISODE_S) >= EPISODE_S
            self.last_at[key] = look.at
            if fresh:
                rule = finding.evidence.rule
                packaged = self.modes.get(rule, fd.ENFORCE)
                self.verdicts.append(
                    Verdict(look.at, look.hook, finding.code, finding.entity, finding.verdict, finding.action, rule, packaged)
                )
        self._drains(look.at, judgement)
        fault = self.plan.fault
        if fault is not None and self.answered is None and look.at >= fault.at:
            warned = any(f.verdict in (fd.WARN, fd.FAIL) and self._is_due(f) for f in judgement.findings)
            if self.drained is not None or (fault.severity == SHOULD_WARN and warned):
                self.answered, self.suspects = look.at, judgement.suspects

    def _drains(self, at: float, judgement: Judgement) -> None:
        acting = [f for p in judgement.decision.proposals if p.action in PROTECTIVE for f in p.findings if f.verdict == fd.FAIL]
        due = [f for f in acting if self.plan.fault is not None and at >= self.plan.fault.at and self._is_due(f)]
        wrong = [f for f in acting if f not in due]
        if due and self.drained is None:
            self.drained = at
        if wrong and self.wrongly is None:
            self.wrongly, self.wrongly_by = at, tuple(dict.fromkeys(f.evidence.rule for f in wrong))
        concerned = due if self.plan.fault is not None else wrong
        if self.packaged is None and any(self.modes.get(f.evidence.rule, fd.ENFORCE) == fd.ENFORCE for f in concerned):
            self.packaged = at

    def _is_due(self, finding: Finding) -> bool:
        """Is this about a place at which the fault shows, or about the GPU or switch that holds it?"""
        fault = self.plan.fault
        shown = () if fault is None else tuple(filter(None, (self.node.name(p) for p in fault.shows)))
        return any(related(finding.entity, name) for name in shown)

    def over(self) -> bool:
        return self.answered is not None if self.plan.fault is not None else self.wrongly is not None

    def seen(self) -> Seen:
        fault = self.plan.fault
        parts = () if fault is None else tuple(self.node.name(p) for p in fault.parts)
        return Seen(
            tuple(self.verdicts), self.drained, self.wrongly, self.wrongly_by, self.packaged, self.answered, self.suspects,
            self.count, parts,
        )  # fmt: skip


def related(one: str, other: str) -> bool:
    """The same entity, or one holds the other."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
