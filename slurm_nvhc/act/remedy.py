"""Which rung of the ladder a fault has reached, and whether the node may be rebooted for it. Pure.

A fault comes back when it is drained or excluded for again, on the same part, within 30 d: each drain and exclusion
leaves a strike "fault" with the key "CODE part". The one that the fault is out for now does not count against it.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.act import outbox
from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import HEALTH_CHECK, PlanInput, Wish
from slurm_nvhc.catalog import fields, ladder
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Exclusion, Intent, OwnDrain, Strike
from slurm_nvhc.model.reading import number
from slurm_nvhc.model.snapshot import Snapshot

FAULT: Final = "fault"  # Strike.kind of a drain or exclusion for a fault
ACTION: Final = "recovery_action"  # the reading by which the driver says what it wants
COUNTED_NS: Final = int(ladder.COUNTED_S * 1e9)
WEEK_NS: Final = 7 * 86400 * 10**9
_SINCE: Final = f"{ladder.COUNTED_S / 86400:.0f}d"


class Case(NamedTuple):
    """What a rung is chosen by. kind, number, text: as in ladder.rungs."""

    code: str
    entity: str
    kind: str = ""
    number: Optional[int] = None
    text: str = ""

    @property
    def part(self) -> str:
        """What comes back is the fault of this: the GPU for its links, otherwise the entity itself."""
        return ent.gpu_of(self.entity) or self.entity.partition("/")[0]

    @property
    def key(self) -> str:
        return f"{self.code} {self.part}"


class Remedy(NamedTuple):
    """What is to be done about one fault. rung: None where no rung helps; then: the rung if it comes back, '' = the last one.

    earlier: how often it came back; why: one sentence.
    """

    code: str
    part: str
    rung: Optional[int]
    do: str
    why: str
    then: str = ""
    earlier: int = 0


def case(finding: Finding) -> Case:
    ev = finding.evidence
    kind = "recovery" if ev.field == ACTION else ev.field if ev.field in fd.EVENTS else ""
    number = ev.after if kind and isinstance(ev.after, int) else None
    return Case(finding.code, finding.entity, kind, number, ev.text)


def case_of_key(key: str) -> Case:
    """Of a drain's key "CODE entity", for a fault that does not show at present."""
    code, _, entity = key.partition(" ")
    return Case(code, entity)


class Past(NamedTuple):
    """What happened on this node, and what the driver asks for now: recovery: UUID -> NVML's action."""

    strikes: Sequence[Strike]
    own: Optional[OwnDrain]
    exclusions: Mapping[str, Exclusion]
    recovery: Mapping[str, int]
    now_ns: int


def asked_for(snapshot: Snapshot) -> dict[str, int]:
    """The recovery action that the driver asks for, of GPUs that say so: PlanInput.recovery."""
    told = {uuid: number(gpu.readings.get(ACTION)) for uuid, gpu in (snapshot.gpus or {}).items()}
    return {uuid: int(action) for uuid, action in told.items() if action}


def past(inp: PlanInput) -> Past:
    return Past(inp.strikes, inp.own, inp.exclusions, inp.recovery, inp.now_ns)


def choose(what: Case, known: Past) -> Remedy:
    rungs = ladder.rungs(what.code, what.kind, what.number, what.text)
    switch = what.entity.startswith("switch:")
    if not rungs:
        return Remedy(what.code, what.part, None, "", ladder.ladder(what.code).note or "no rung of the ladder helps")
    before_ns, oldest_ns = _out_since(what, known), known.now_ns - COUNTED_NS
    earlier = sum(1 for s in known.strikes if s.kind == FAULT and s.key == what.key and oldest_ns <= s.at_ns < before_ns)
    at = min(earlier, len(rungs) - 1)
    rung = rungs[at]
    why = f"came back {earlier} time{'s' if earlier > 1 else ''} within {_SINCE}" if earlier else f"first time within {_SINCE}"
    if rung == ladder.WATCH and ladder.ladder(what.code).note:
        why += f"; {ladder.ladder(what.code).note}"
    action = known.recovery.get(what.part, 0)
    asked = ladder.RECOVERY.get(action)
    if asked is not None and asked > rung:
        rung, why = asked, f"the driver asks for it: {fields.RECOVERY_ACTIONS.get(action, action)}"
    harder = next((r for r in rungs[at + 1 :] if r >= rung), None)
    then = ladder.word(harder, switch) if harder is not None else ""
    return Remedy(what.code, what.part, rung, ladder.word(rung, switch), why, then, earlier)


def _out_since(what: Case, known: Past) -> int:
    """Since when it is out for this very fault; what was counted from then on is this case itself.

    A GPU that is excluded is out for all that is found on it.
    """
    since = known.now_ns + 1
    if known.own is not None and any(case_of_key(k).key == what.key for k in known.own.keys):
        since = min(since, known.own.set_ns)
    excluded = known.exclusions.get(what.part)
    if excluded is not None:
        since = min(since, excluded.since_ns)
    return since


def all_of(findings: Iterable[Finding], known: Past) -> tuple[Remedy, ...]:
    """One for each fault and part, in the order of the findings."""
    table: dict[str, Remedy] = {}
    for finding in findings:
        what = case(finding)
        new = choose(what, known)
        old = table.get(what.key)
        if old is None or (new.rung is not None and (old.rung is None or new.rung > old.rung)):
            table[what.key] = new
    return tuple(table.values())


def in_reason(remedies: Sequence[Remedy], findings: Sequence[Finding]) -> str:
    """What a drain reason says to do about its worst finding; '' when that is nothing, or just to watch."""
    worst = case(wd.ordered(findings)[0]).key
    found = next((r for r in remedies if f"{r.code} {r.part}" == worst), None)
    return found.do if found is not None and found.rung else ""


def struck(keys: Iterable[str], known: Past) -> tuple[Strike, ...]:
    """The strikes that a drain or exclusion for ``keys`` leaves: one a fault and part. known: as before it.

    A fault that the node or the GPU was out for already is not counted anew.
    """
    out = []
    for what in {c.key: c for c in map(case_of_key, keys)}.values():
        since_ns = _out_since(what, known)
        counted = any(s.kind == FAULT and s.key == what.key and s.at_ns >= since_ns for s in known.strikes)
        if ladder.ladder(what.code).rungs and not counted:
            out.append(Strike(FAULT, what.key, known.now_ns))
    return tuple(out)


# --- reboot ----------------------------------------------------------------------------------


def steps(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    """Ask Slurm for a reboot, where the policy allows it and nothing else would help; end what was asked for and is over."""
    state, own = inp.node_state, inp.own
    pending = [i for i in inp.intents if i.kind == st.REBOOT and not outbox.expired(i, inp.now_ns)]
    for intent in pending:
        over = _over(intent, state, own)
        if over:
            yield Step(st.END_INTENT, reason=intent.reason, why=over, keys=intent.keys, about=st.REBOOT)
    if inp.hook != HEALTH_CHECK or not inp.policy.reboot.enabled or state is None or own is None:
        return
    keys = tuple(dict.fromkeys([*own.keys, *wish.keys]))
    # Strikes that a reboot forgets limit nothing: without a durable ledger there is none.
    if not inp.durable or not own.confirmed or not rebootable(state, own.reason, own.stamp) or not _all_want_it(inp, wish, keys):
        return
    asked = next((i for i in pending if i.reason == own.reason), None)
    told = ", ".join(keys)
    if asked is not None:
        if outbox.due(asked, inp.now_ns):
            yield Step(st.REBOOT, reason=own.reason, why=f"asked for {asked.tries} times without an answer", keys=keys)
    else:
        recent = sum(1 for s in inp.strikes if s.kind == st.REBOOT and inp.now_ns - s.at_ns < WEEK_NS)
        most = inp.policy.reboot.per_week
        if recent >= most:
            why = f"limit: {recent} of {most} reboots within 7d did not cure it, only an administrator reboots now: {told}"
            yield Step(st.ALERT, reason=own.reason, why=why, keys=keys, about=st.REBOOT)
        else:
            yield Step(st.REBOOT, reason=own.reason, why=f"reboot {recent + 1} of {most} within 7d for {told}", keys=keys)


def _all_want_it(inp: PlanInput, wish: Wish, keys: Sequence[str]) -> bool:
    """The fault shows now, and a reboot is the rung of all that the node is out for."""
    shown: dict[str, Any] = {f"{f.code} {f.entity}": case(f) for f in wish.drain}
    if not shown or wish.needed:
        return False
    cases = [shown.get(k) or case_of_key(k) for k in keys]
    return all(choose(what, past(inp)).rung == ladder.REBOOT for what in cases)


def _over(intent: Intent, state: Optional[NodeState], own: Optional[OwnDrain]) -> str:
    """Why nothing is left to do about an intent to reboot; '' when there is."""
    if state is not None and state.rebooting:
        return "Slurm has it"
    if own is None or own.reason != intent.reason:
        return "the drain that it was for is over"
    return ""


def rebootable(state: NodeState, reason: str, stamp: str = "") -> bool:
    """Drained by exactly this drain of ours, no job on the node, nothing else going on."""
    anew = bool(stamp and state.stamp and stamp != state.stamp)
    return state.base == "IDLE" and state.flags == {"DRAIN"} and state.reason == reason and not anew
