"""The rules that must never be broken, checked against what only the model knows."""

from __future__ import annotations

from typing import Final, NamedTuple, Optional

from planner.hardware import EVENT, FAULTS, STANDING, Fault
from planner.node import OURS
from planner.world import DAY_NS, MINUTE_NS, Cell, Job, Violation, World
from slurm_nvhc.judge.context import Judgement
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled
from slurm_nvhc.model.protective import Intent, OwnDrain
from slurm_nvhc.policy.compiled import Policy

FOREIGN: Final = "foreign drain touched"
FAULTY: Final = "faulty GPU resumed"
LOST: Final = "drain or intent lost"
DOUBLED: Final = "drain or intent doubled"
STALE: Final = "intent or own drain outlives its aim"
OBSERVED: Final = "changed while only observing"
FAILED: Final = "job failed on a node in service"
CAPPED: Final = "limit exceeded"
RAISED: Final = "exception"
GIVEN: Final = "excluded GPU given to a job"
RULES: Final = (FOREIGN, FAULTY, LOST, DOUBLED, STALE, OBSERVED, FAILED, CAPPED, RAISED, GIVEN)


class Seen(NamedTuple):
    """What a hook's reading of the node told, with the truth of that moment."""

    out: bool
    drain: int
    owner: str
    drained: bool  # not only down
    reason: str


class Run:
    """What one hook run saw and did, as far as rules are about it."""

    def __init__(self, hook: str, policy: Policy, look: Judgement, faults: list[Fault], nested: bool) -> None:
        self.hook = hook
        self.policy = policy
        self.look = look
        self.faults = faults  # present, whether judge could see them or not
        self.nested = nested
        self.first: Optional[Seen] = None  # before planning
        self.seen: Optional[Seen] = None  # the last one
        self.out = False  # the node is out as far as the run could learn
        self.was_drained = False  # at one of its readings, or by its own drain
        self.asked = 0  # requests that would change something
        self.silent = False  # slurmctld did not do its work at least once
        self.intents: tuple[Intent, ...] = ()
        self.own: Optional[OwnDrain] = None
        self.quiet = False  # observe mode, or paused
        self.began_ns = 0
        self.disk_full = False  # no exclusion file can be written
        self.killed = False
        self.hidden: frozenset[str] = frozenset()
        self.excluded: frozenset[str] = frozenset()  # when the run began


def read(run: Run, cell: Cell) -> None:
    node = cell.node
    run.seen = Seen(node.out, node.drain, node.owner, bool(node.flags & {"DRAIN", "FAIL"}), node.reason)
    run.first = run.first or run.seen
    run.out = node.out
    run.was_drained = run.was_drained or run.seen.drained


def _touches(world: World, run_seen: Optional[Seen], cell: Cell, what: str, late: bool) -> None:
    node = cell.node
    if not node.out or node.owner == OURS:
        return
    own = cell.kept.state.own_drain
    if own is not None and node.reason == own.reason and own.stamp in ("", node.stamp):
        world.count("our own words used by another before our first look at them")
        return
    if run_seen is None or (run_seen.out and run_seen.drain == node.drain):
        raise Violation(FOREIGN, f"{what} {node.name}, which is out by {node.owner!r}: {node.reason!r}")
    world.count("foreign drain touched while slurmctld hung" if late else "foreign drain touched in the window")


def asks_drain(world: World, run: Run, cell: Cell, reason: str, ledger_failed: bool) -> None:
    """We are about to ask Slurm for a drain: it is written down, still wanted, and not too old."""
    intent = next((i for i in cell.kept.state.intents if i.kind == "drain" and i.reason == reason), None)
    if intent is None:
        if not ledger_failed and not run.nested and not cell.together:
            raise Violation(LOST, f"{reason!r} is asked for, and no intent was written before")
        return
    if world.now_ns - intent.since_ns > DAY_NS + MINUTE_NS and not ledger_failed and not cell.together:
        raise Violation(STALE, f"{reason!r} is carried out after more than a day, without having been asked for anew")
    excluded = {e.uuid for e in cell.kept.state.exclusions} | cell.released
    if not any(_asked(run.policy, key, excluded) for key in intent.keys):
        raise Violation(STALE, f"{reason!r} is carried out, and no rule asks for it")


def _asked(policy: Policy, key: str, excluded: set[str]) -> bool:
    code, _, entity = key.partition(" ")
    rule = policy.rules.get(code)
    return entity in excluded if rule is None else rule.mode == fd.ENFORCE and policy.mode == fd.ENFORCE


def drained(world: World, run: Run, seen: Optional[Seen], cell: Cell, reason: str, late: bool) -> None:
    """Our drain is about to be applied. seen: what the run had read last when it asked."""
    _touches(world, seen, cell, f"drain with {reason!r} on", late)
    world.count("drains applied")
    if seen is not None and seen.out and not cell.node.out:
        world.count("drained again a node that was resumed in the window")
    # The window has no count of who else is out: what happened in it is no breach of the limit.
    cell.in_window = seen is not None and seen.drain != cell.node.drain
    run.was_drained = True
    if not cell.node.out:
        cell.placed_ns = world.now_ns
    intent = next((i for i in cell.kept.state.intents if i.reason == reason), None)
    if intent is None or cell.node.out:
        return
    events = [k for k in intent.keys if FAULTS.get(k.partition(" ")[0], ("",))[0] == EVENT]
    if intent.idents and len(events) == len(intent.keys) and all(settled.covered(i, cell.settled) for i in intent.idents):
        raise Violation(DOUBLED, f"{cell.node.name} is drained again for {', '.join(intent.idents)}, which somebody had settled")


def resumed(world: World, run: Run, seen: Optional[Seen], cell: Cell, late: bool) -> None:
    node = cell.node
    if not node.out:
        return  # Slurm refuses
    _touches(world, seen, cell, "resume", late)
    if node.hidden:
        raise Violation(FOREIGN, f"{node.name} is resumed: {node.hidden} error came on top of our drain, which left no trace")
    world.count("resumes applied")
    if run.look.decision.verdict != fd.OK:
        raise Violation(FAULTY, f"{node.name} is resumed after a look that was {run.look.decision.verdict}")
    enforced = [f for f in run.faults if run.policy.rules[f.code].mode == fd.ENFORCE and FAULTS[f.code][0] == STANDING]
    if enforced:
        raise Violation(FAULTY, f"{node.name} is resumed with {enforced[0].key}")
    if any(f.kind == STANDING and run.policy.rules[f.code].mode == fd.ENFORCE for f in cell.hw.faults):
        world.count("fault appeared between look and resume")
    cell.resumes = [t for t in cell.resumes if world.now_ns - t < DAY_NS] + [world.now_ns]
    if len(cell.resumes) > world.setting.per_day and len(cell.resumes) > run.policy.drain.resume_per_day:
        raise Violation(CAPPED, f"{node.name} was resumed {len(cell.resumes)} times within a day")


def taken_back(world: World, run: Run, seen: Optional[Seen], cell: Cell, late: bool) -> None:
    """Our drain is beyond a limit, and about to be ended by us."""
    if cell.node.out:
        _touches(world, seen, cell, "undrain", late)
        world.count("drains taken back")


def moves(world: World, run: Run, cell: Cell, job: Job) -> None:
    """We are about to have a job requeued."""
    if run.hook != "prolog" or run.quiet:
        raise Violation(CAPPED, f"job {job.job_id} is moved by the {run.hook}")
    if job.state == "COMPLETING":
        return  # somebody else was faster
    if job.state != "RUNNING":
        world.count("job cancelled between reading it and moving it")
    elif not job.requeue:
        raise Violation(CAPPED, f"job {job.job_id} is moved, and its user did not allow that")
    job.moves += 1
    cell.moves = [t for t in cell.moves if world.now_ns - t < DAY_NS] + [world.now_ns]
    world.count("jobs moved")
    if job.moves > world.setting.per_job:
        raise Violation(CAPPED, f"job {job.job_id} was moved {job.moves} times")
    if len(cell.moves) > world.setting.per_node:
        raise Violation(CAPPED, f"{len(cell.moves)} jobs were moved off {cell.node.name} within a day")


def rebooted(world: World, run: Run, seen: Optional[Seen], cell: Cell, late: bool) -> None:
    """We are about to ask for a reboot of the node."""
    if cell.node.down:
        return  # Slurm refuses
    _touches(world, seen, cell, "reboot", late)
    if not cell.node.out:
        world.count("reboot of a node that was resumed in the window")
    world.count("reboots asked for")
    cell.reboots = [t for t in cell.reboots if world.now_ns - t < 7 * DAY_NS] + [world.now_ns]
    if len(cell.reboots) > world.setting.per_week and not late:
        raise Violation(CAPPED, f"{cell.node.name} was rebooted {len(cell.reboots)} times within a week")


def ended(cell: Cell, was: tuple[str, int, str]) -> None:
    """Somebody else acted; was: (owner, drain, reason) before. Did a drain end, one of ours that we knew of?"""
    owner, number, reason = was
    node = cell.node
    if owner and not node.out:
        cell.resumed_inside = True
    if owner != OURS or (node.owner == OURS and node.drain == number):
        return
    own = cell.kept.state.own_drain
    if own is not None and own.confirmed and reason.startswith(own.reason):
        cell.settled.update(settled.table(own.idents))


def after(world: World, run: Run, cell: Cell, ledger_failed: bool) -> None:
    """A hook run is over and was not killed."""
    kept = cell.kept.state
    names = [(i.kind, i.reason) for i in kept.intents]
    if len(set(names)) != len(names):
        raise Violation(DOUBLED, f"two intents {names}")
    if run.quiet and run.asked:
        raise Violation(OBSERVED, f"{run.hook} asked Slurm for {run.asked} changes in observe mode or a pause")
    if ledger_failed or cell.together or cell.inside:
        return
    drain = [i for i in kept.intents if i.kind == "drain"]
    remembered = {k for i in drain for k in i.keys}
    if not run.quiet:
        _wanted(run, cell, remembered)
    _intents_lost(world, run, cell, remembered)
    if run.first is not None and not run.silent:
        _stale(world, run, cell, drain)
    if not run.silent:
        _beyond_limits(world)


def _wanted(run: Run, cell: Cell, remembered: set[str]) -> None:
    """What this look asks a drain for is answered: by a drain, an exclusion, an intent, or by whoever settled it."""
    kept = cell.kept.state
    excluded = {e.uuid for e in kept.exclusions if e.stage != "suspected"} | run.excluded | cell.released
    known = settled.table(kept.settled)
    for proposal in run.look.decision.proposals:
        if proposal.action not in (fd.NARROW, fd.DRAIN):
            continue
        here = [p for p in run.look.decision.proposals if p.uuid == proposal.uuid]
        here = [p for p in here if any(not f.idents or not all(settled.covered(i, known) for i in f.idents) for f in p.findings)]
        alone = all(p.action == fd.NARROW for p in here)
        for f in proposal.findings:
            key = f"{f.code} {f.entity}"
            narrowed = alone and proposal.uuid in excluded
            told = bool(f.idents) and all(settled.covered(i, known) for i in f.idents)
            if not (narrowed or told or run.was_drained or key in remembered):
                raise Violation(LOST, f"{key} wants a drain: the node is in service, and no intent tells of it")


def _stale(world: World, run: Run, cell: Cell, drain: list[Intent]) -> None:
    """Slurm answered: what is over is not kept, what is due is done."""
    node, own, first = cell.node, cell.kept.state.own_drain, run.first
    assert first is not None
    over = [i for i in drain if not i.reason.startswith(node.reason or "?")]
    if first.drained and run.out and over:
        raise Violation(STALE, f"the node was out, and there is still an intent to drain it: {over[0].reason!r}")
    if not _quiet(run, cell):
        return
    if own is not None and not run.asked and not (first.out and node.reason.startswith(own.reason)):
        raise Violation(STALE, f"own drain {own.reason!r} is over, and still in the ledger")
    due = [i for i in run.intents if i in drain and i.kind == "drain" and i.next_ns <= run.began_ns and not i.limited]
    if not first.out and not run.asked and not run.quiet and due:
        raise Violation(STALE, f"the node is in service, and the drain that is due is not done: {due[0].reason!r}")


def _beyond_limits(world: World) -> None:
    """Drains of ours that were counted and left in place are within the larger limit."""
    out = []
    for cell in world.cells:
        own = cell.kept.state.own_drain
        known = own is not None and own.reason == cell.node.reason and cell.node.owner == OURS and cell.node.out
        waits = any(i.kind != "drain" for i in cell.kept.state.intents) or cell.inside > 0 or cell.in_window
        if known and not waits and world.now_ns - cell.placed_ns < DAY_NS:
            out.append(cell.node.name)
    if world.setting.counts and len(out) > world.setting.hard:
        raise Violation(CAPPED, f"{', '.join(out)} are drained by us, {world.setting.hard} may be")


def _quiet(run: Run, cell: Cell) -> bool:
    """Nobody changed the node while the hook ran."""
    return run.seen is not None and run.first is not None and run.first == run.seen and run.seen.drain == cell.node.drain


def _intents_lost(world: World, run: Run, cell: Cell, remembered: set[str]) -> None:
    """What was remembered before is still, or there is a ground for forgetting it."""
    if run.was_drained or run.out:
        return
    reason = run.first.reason if run.first is not None else None
    for intent in run.intents:
        if intent.kind != "drain" or all(k in remembered for k in intent.keys):
            continue
        for key in intent.keys:
            code, _, entity = key.partition(" ")
            uuid = entity.partition("/")[0]
            rule = run.policy.rules.get(code)
            asked = rule is not None and rule.mode == fd.ENFORCE
            grounds = (
                key in remembered
                or (run.own is not None and run.own.confirmed and key in run.own.keys)
                or world.now_ns - intent.since_ns > DAY_NS
                or (intent.policy != run.policy.hash and (run.policy.mode == fd.OBSERVE or not asked))
                or (intent.events and cell.boots > 0)
                or (intent.standing and run.hook == "health_check" and run.look.gpu_verdicts.get(uuid) == fd.OK)
                or (reason == intent.reason)
                or (code == "GPU-EXCLUDED" and entity not in {e.uuid for e in cell.kept.state.exclusions} & run.excluded)
                or (bool(intent.idents) and all(settled.covered(i, settled.table(cell.kept.state.settled)) for i in intent.idents))
            )
            if not grounds:
                raise Violation(LOST, f"the intent for {key} is gone, and the node is in service")


def prolog(world: World, run: Run, cell: Cell, job: tuple[int, ...], fails: bool, ledger_failed: bool, moved: bool) -> None:
    """The prolog of a job is over. fails: the job does not run here."""
    if fails and not run.out:
        raise Violation(FAILED, "the prolog fails the job, and the node is not known to be out: Slurm drains it with a reason of its own")
    if fails or run.policy.mode == fd.OBSERVE or ledger_failed or moved:
        return
    paused = run.quiet  # then what was hidden before is hidden still, as far as the job can do without it
    uuids = {cell.hw.uuid(n) for n in job}
    for exclusion in cell.kept.state.exclusions:
        if exclusion.stage != "suspected" and exclusion.uuid in uuids & run.excluded and exclusion.uuid not in run.hidden:
            if paused and (run.disk_full or not run.policy.narrow.enabled or not uuids - run.excluded):
                world.count("job let through with an excluded GPU: paused, and it can not be hidden")
                continue
            if any(i.limited for i in cell.kept.state.intents):
                world.count("job let through with an excluded GPU: a limit keeps the node from being drained")
                continue
            if cell.resumed_inside or exclusion.uuid in cell.released:
                continue
            if not run.silent:
                raise Violation(GIVEN, f"{exclusion.uuid} is excluded, and the job sees it")
            world.count("job let through with an excluded GPU: Slurm did not answer")
