"""From a decision to steps: where ownership, limits and idempotence live. Pure.

A caller goes: ``needs_node_state`` (no Slurm command on a healthy path), then
``reason_findings`` and a rendered reason, then ``plan``.

Rules that field reports teach:
* only our own drains are ours, by the exact text in state *and* ledger; no
  reason of a node that is out is ever overwritten (R64, R65);
* the state decides, never the reason: 24.11 keeps the reason of an ended drain;
* what can not be told is left alone: an unknown state leads to an intent.
"""

from __future__ import annotations

from typing import Any, Final, Iterable

from slurm_nvhc.act import exclusions, healing, job_care, limits, outbox, quarantine, quiet, remedy, ways
from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.ownership import another_stamp, same_drain
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import PlanInput, Wish, want
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import NARROW, QUARANTINE, Intent, OwnDrain
from slurm_nvhc.model.times import iso

_MAY_DRAIN: Final = frozenset({st.DRAIN, st.OWN, st.RECOUNT, st.EXCLUDE, st.NARROW, st.QUARANTINE, st.REQUEUE, st.SIGNAL})
_DONE: Final = {NARROW: "narrowed", QUARANTINE: "quarantined"}

__all__ = ["PlanInput", "Step", "comes_back", "needs_job", "needs_jobs", "needs_node_state", "plan", "reason_findings"]


def needs_node_state(inp: PlanInput) -> bool:
    """Whether a plan can depend on the node's state: not without a fault, a drain of ours, or an intent."""
    inp = exclusions.current(inp)
    wish = _wish(inp)
    # Drains that wait for their time ask nothing, as long as nothing new is found.
    asleep = outbox.asleep(inp.intents, inp.now_ns, bool(wish.fail))
    asleep = tuple(i for i in asleep if not job_care.attends(inp, i))
    new = not set(wish.keys) <= {k for i in asleep if i.kind == st.DRAIN for k in i.keys}
    asking = {i for i in inp.intents if i.kind != st.NOTIFY} - set(asleep)  # what is only to be told needs no state
    return bool(inp.own or asking or new or quarantine.concerned(inp, wish))


def needs_job(inp: PlanInput) -> bool:
    """Whether a plan can depend on what Slurm says about the hook's own job."""
    inp = exclusions.current(inp)
    return job_care.asks_for_job(inp, _wish(inp, _settled(inp)))


def needs_jobs(inp: PlanInput) -> bool:
    """Whether a plan can depend on the node's jobs; asked once its state is known."""
    inp = exclusions.current(inp)
    wish = _wish(inp, _settled(inp))
    return quarantine.concerned(inp, wish) or job_care.asks_for_jobs(inp, wish)


def reason_findings(inp: PlanInput) -> tuple[Finding, ...]:
    """The findings that a drain's reason has to tell of; () when nothing is to be rendered."""
    inp = exclusions.current(inp)
    return _wish(inp, _settled(inp)).drain


def plan(inp: PlanInput) -> tuple[Step, ...]:
    """The steps, in the order in which they are to be done."""
    ends = tuple(exclusions.ends(inp))
    inp = exclusions.current(inp)
    names = _settled(inp)
    wish = _wish(inp, names)
    inp = inp._replace(settled=settled.newest((*inp.settled, *names)))
    # A fault found anywhere names its GPU's index, so that texts can.
    inp = inp._replace(names={**inp.names, **wd.names([f for p in inp.decision.proposals for f in p.findings])})
    out: list[Step] = [*_ended(inp, names), *_recount(inp), *ends]
    out += [*_exclude(inp, wish), *exclusions.suspects(inp, wish), *exclusions.proven(inp), *_narrow(inp, wish)]
    drain, node_is_out = _drain(inp, wish)
    out += drain or _first_seen(inp)
    out += quarantine.steps(inp, wish, node_is_out)
    out += quarantine.told(inp, wish)
    # A job that is moved off a GPU which its epilog has held needs no drain.
    if wish.fail and (node_is_out or not wish.keys):
        out += job_care.move(inp, wish, node_is_out, _fallback_reason(inp, wish))
        out.append(Step(st.FAIL_JOB, why=wish.fail, keys=wish.keys))
    elif wish.fail:
        # Failing a prolog makes Slurm drain the node with a generic reason: not while we can not drain it ourselves.
        ground = outbox.held_back(inp.intents) or "the node's state is unknown"
        out.append(Step(st.NOTE, why=f"the job is let through because {ground}: {wish.fail}", keys=wish.keys))
    out += healing.steps(inp, wish)
    out += remedy.steps(inp, wish)
    out += job_care.left_over(inp)
    out += _told(inp, wish)
    # Which limit a drain falls under follows from what it is for, also where it is only fallen back to.
    out = [step._replace(soft=limits.soft(step.keys, inp.exclusions)) if step.kind in _MAY_DRAIN else step for step in out]
    return quiet.held_back(inp, out)


def _wish(inp: PlanInput, settled_events: frozenset[str] = frozenset()) -> Wish:
    wish = want(inp, settled_events, moves=not job_care.hindrance(inp))
    return quarantine.with_drains(inp, wish)


def _is_ours(inp: PlanInput) -> bool:
    """The node is out by us: with the reason of our drain, or of a request of ours that was applied late."""
    state = inp.node_state
    if state is None or not state.out or comes_back(state):
        return False  # a node that is only down shows the reason of a drain that was ended before (24.11)
    return (inp.own is not None and same_drain(inp.own, state)) or any(i.reason == state.reason for i in _drain_intents(inp))


def _drain_intents(inp: PlanInput) -> tuple[Intent, ...]:
    return tuple(i for i in inp.intents if i.kind == st.DRAIN and not outbox.overtaken(inp, i))


def _applied_and_ended(inp: PlanInput) -> tuple[Intent, ...]:
    """Intents of which an idle node still shows the reason: a late drain that somebody ended (24.11 keeps it)."""
    state = inp.node_state
    if state is None or state.out:
        return ()
    # One that we took back ourselves, and that still shows, was ended by nobody.
    return tuple(i for i in _drain_intents(inp) if state.reason and state.reason == i.reason and not _still_shows(i, state))


def _still_shows(intent: Intent, state: NodeState) -> bool:
    return bool(intent.gone) and intent.gone in (state.stamp, "?")


def _taken_back(inp: PlanInput) -> bool:
    """Our drain is gone because we asked for that (act/blast.py) and did not live to write it down."""
    asked = inp.own is not None and any(i.kind == outbox.WITHDRAW and i.reason == inp.own.reason for i in inp.intents)
    return asked and inp.node_state is not None and not inp.node_state.out


def _recount(inp: PlanInput) -> Iterable[Step]:
    """What an earlier hook had no time for: is our drain within the limits?"""
    left = [i for i in inp.intents if i.kind in (outbox.RECOUNT, outbox.WITHDRAW)]
    own = inp.own
    if not left or inp.node_state is None:
        return
    if own is not None and _is_ours(inp) and own.reason == inp.node_state.reason:
        why = "our drain was placed and not counted yet"
        yield Step(st.RECOUNT, own.reason, why=why, keys=own.keys, idents=own.idents, standing=own.standing, policy=inp.policy.hash)
    elif not _is_ours(inp):
        for intent in left:
            yield Step(st.END_INTENT, reason=intent.reason, why="the node is not out by us any more", keys=intent.keys, about=intent.kind)


def _settled(inp: PlanInput) -> frozenset[str]:
    """Events that a drain of ours answered which somebody has ended: they need no second one."""
    names = {ident for intent in _applied_and_ended(inp) for ident in intent.idents}
    if inp.own is not None and inp.own.confirmed and inp.node_state is not None and not _is_ours(inp) and not _taken_back(inp):
        names.update(inp.own.idents)
    if inp.node_state is not None and not inp.node_state.out:
        names.update(inp.seen_out)
    return frozenset(names)


def _ended(inp: PlanInput, names: frozenset[str]) -> Iterable[Step]:
    """names: events that were settled since the last look."""
    if names:
        # First of all: what comes after may fail, and then these events must not drain again.
        yield Step(st.ACCEPT, why="answered by a drain that was ended", idents=tuple(sorted(names)))
    # Intents before the drain that they came to: killed in between, nothing would say any more that they were answered.
    for intent in inp.intents:
        why = outbox.overtaken(inp, intent)
        if why:
            about = "" if intent.kind == st.DRAIN else intent.kind
            yield Step(st.END_INTENT, reason=intent.reason, why=why, keys=intent.keys, about=about)
    for intent in _applied_and_ended(inp):
        yield Step(st.END_INTENT, reason=intent.reason, why="it was applied late and somebody resumed the node", keys=intent.keys)
    state, own = inp.node_state, inp.own
    if own is not None and state is not None and not _is_ours(inp):
        why = "the node has another reason now: hands off" if state.out else "somebody resumed the node"
        if state.out and another_stamp(own, state) and state.reason == own.reason:
            why = f"somebody drained the node anew with our reason ({state.stamp}): hands off"
        if _taken_back(inp):
            why = "we took it back"
        if not state.out and any(i.kind == st.RESUME and i.reason == own.reason for i in inp.intents):
            why = "our resume was applied"
        yield Step(st.END_OWN, reason=own.reason, why=why, keys=own.keys)


def _exclude(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    for uuid, findings in wish.exclude.items():
        yield exclusions.taken_out(inp, st.EXCLUDE, uuid, findings, _plain(inp, findings))


def _narrow(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    if not wish.hide:
        return
    codes = {u: wd.ordered(f)[0].code for u, f in wish.exclude.items()}
    codes.update({u: inp.exclusions[u].code for u in wish.hide if u in inp.exclusions})
    told = ", ".join(inp.name(u) for u in wish.hide)
    grounds = ", ".join(dict.fromkeys(codes[u] for u in wish.hide))
    findings = tuple(f for u in wish.hide for f in wish.exclude.get(u, ()))
    yield Step(
        st.NARROW,
        reason=_plain(inp, findings) if findings else _excluded_reason(inp, wish.hide),
        why=f"{told} hidden from this job: {grounds}",
        # What is drained for if it can not be hidden: the exclusion, whatever the rule that led to it says now.
        keys=tuple(f"GPU-EXCLUDED {u}" if u in inp.exclusions else f"{codes[u]} {u}" for u in wish.hide),
        uuids=wish.hide,
    )


def _drain(inp: PlanInput, wish: Wish) -> tuple[list[Step], bool]:
    """(steps, whether the node is out once they are done)."""
    state = inp.node_state
    gone = _applied_and_ended(inp)
    pending = [i for i in _drain_intents(inp) if i not in gone]
    if not wish.keys and not pending:
        return [], False
    if state is not None and not state.out and _all_wait(inp, wish, pending):
        return [], False
    keys = _union((k for i in pending for k in i.keys), wish.keys)
    idents = settled.newest((*(x for i in pending for x in i.idents), *wish.idents))
    kind: dict[str, Any] = {
        "standing": all(i.standing for i in pending) and wish.standing,
        "events": all(i.events for i in pending) and wish.events,
        "policy": inp.policy.hash,
    }
    reason = _reason(inp, wish, pending)
    why = "; ".join(wish.why)
    if state is not None and not state.out:
        now = Step(st.DRAIN, reason=reason, why=why, keys=keys, idents=idents)._replace(**kind)
        later = job_care.put_off(inp, wish, now, pending)
        return ([now], True) if later is None else (later, False)
    if state is not None and _is_ours(inp):
        return _ours(inp, wish, state, pending), True
    if state is not None and not comes_back(state):
        kept = Step(st.KEEP, why=f"the node is out already and not by us, its reason stays: {wd.clean(state.reason)}", keys=wish.keys)
        return [kept, *(Step(st.END_INTENT, reason=i.reason, why="the node is out already", keys=i.keys) for i in pending)], True
    steps = []
    if state is not None:
        steps.append(Step(st.KEEP, why=f"the node is {state.base}, its reason stays: {wd.clean(state.reason)}", keys=wish.keys))
    if not set(wish.keys) <= {k for i in pending for k in i.keys}:
        why = why or "the node can not be drained now"
        steps.append(Step(st.INTENT, reason=reason, why=why, keys=keys, idents=idents)._replace(**kind))
    return steps, state is not None


def _all_wait(inp: PlanInput, wish: Wish, pending: list[Intent]) -> bool:
    """A limit turned the drain away, or a job was given time, and nothing new was found since."""
    urgent = bool(wish.fail)  # a job would start on the fault: no time is given for that
    waiting = [i for i in pending if outbox.waits(i, inp.now_ns) and (i.limited or (not urgent and job_care.in_grace(inp, i)))]
    return bool(pending) and len(waiting) == len(pending) and set(wish.keys) <= {k for i in pending for k in i.keys}


def comes_back(state: NodeState) -> bool:
    """A node that is only down returns to service by itself (ReturnToService): the drain is remembered for then."""
    return state.base == "DOWN" and not state.flags & {"DRAIN", "FAIL"}


def _ours(inp: PlanInput, wish: Wish, state: NodeState, pending: list[Intent]) -> list[Step]:
    """The node is out by us: nothing but bookkeeping, or a longer reason where the policy says so."""
    base = inp.own
    if base is None or not same_drain(base, state):
        late = next(i for i in pending if i.reason == state.reason)
        base = OwnDrain(late.reason, inp.now_ns, True, late.keys, late.idents, late.standing)
    new = _union((k for i in pending for k in i.keys if k not in base.keys), (k for k in wish.keys if k not in base.keys))
    # More events of a kind that the drain already answers belong to it; those of a new kind do not.
    same = settled.newest((*base.idents, *(i for f in wish.drain if wd.key(f) in base.keys for i in f.idents)))
    if new and not (wish.standing and all(i.standing for i in pending)):
        base = base._replace(standing=False)  # what came on top may not show in a reading
    steps: list[Step] = []
    stamp = base.stamp or state.stamp  # as it was when it was first seen
    if base != inp.own or not base.confirmed or same != base.idents or stamp != base.stamp:
        why = "the node is out by our own drain"
        steps.append(Step(st.OWN, reason=base.reason, why=why, keys=base.keys, idents=same, standing=base.standing, stamp=stamp))
    longer = base.reason
    if new and inp.policy.drain.extend and not state.rebooting:
        # A request to extend that was tried before keeps its text: it may still be applied late, and is known by it.
        tried = [i.reason for i in pending if i.reason.startswith(f"{base.reason};") and set(new) <= set(i.keys)]
        longer = tried[0] if tried else wd.extend(base.reason, _briefs(inp, wish, new), inp.policy.drain.max_length)
    if longer != base.reason:
        idents = settled.newest((*same, *(x for i in pending for x in i.idents), *wish.idents))
        keys = _union(base.keys, new)
        why = "a new fault on a node that we drained"
        steps.append(Step(st.EXTEND, reason=longer, why=why, keys=keys, idents=idents, standing=base.standing, policy=inp.policy.hash))
    else:
        steps.append(Step(st.KEEP, why="the node is out by our own drain, its reason stays", keys=wish.keys))
    # Extending ends its own intent, once it is done.
    ended = [i for i in pending if longer == base.reason or i.reason != longer]
    return [*steps, *(Step(st.END_INTENT, reason=i.reason, why="the node is out by us", keys=i.keys) for i in ended)]


def _first_seen(inp: PlanInput) -> list[Step]:
    """Nothing is wanted, and our drain is seen for the first time since it was placed: who set it when is kept, to know it again."""
    own, state = inp.own, inp.node_state
    if own is None or state is None or own.stamp or not state.stamp or not same_drain(own, state):
        return []
    why = "our drain is seen for the first time"
    return [Step(st.OWN, reason=own.reason, why=why, keys=own.keys, idents=own.idents, standing=own.standing, stamp=state.stamp)]


def _told(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    for text in wish.why if not wish.keys else ():
        yield Step(st.NOTE, why=f"not {_DONE[inp.way]}: {text}")
    for proposal in inp.decision.proposals:
        if proposal.action in (fd.NOTIFY, fd.NOTE):
            kind = st.NOTIFY if proposal.action == fd.NOTIFY else st.NOTE
            for finding in proposal.findings:
                yield Step(kind, why=f"{wd.brief(finding)} {wd.what(finding)}", keys=(wd.key(finding),), idents=finding.idents)
    for proposal in inp.decision.observed:
        action = ways.told(proposal.action, inp.policy)
        told = ", ".join(wd.brief(f) for f in wd.distinct(proposal.findings))
        head = quiet.label(inp.pause, inp.policy.mode) or "observe mode"
        yield Step(st.NOTE, why=f"{head}: would {action} for {told}", keys=tuple(wd.key(f) for f in proposal.findings))
    shown = job_care.observed(inp)
    if shown is not None and not inp.pause:
        would = want(shown)
        yield from (*job_care.would_move(shown, would), *job_care.would_signal(shown, would))


def _fallback_reason(inp: PlanInput, wish: Wish) -> str:
    """To drain with when a job can not be moved off a GPU that a placeholder job is to hold."""
    findings = tuple(f for u in inp.mapping.uuids for f in wish.exclude.get(u, ()))
    return _plain(inp, findings) if findings else _excluded_reason(inp, tuple(u for u in inp.mapping.uuids if u in inp.exclusions))


def _plain(inp: PlanInput, findings: tuple[Finding, ...]) -> str:
    return wd.plain(findings, inp.job.job_id if inp.job else "", inp.policy.drain.max_length)


def _excluded_reason(inp: PlanInput, uuids: tuple[str, ...]) -> str:
    told = ", ".join(f"{inp.name(u)} {wd.short_uuid(u)} ({inp.exclusions[u].code} since {iso(inp.exclusions[u].since_ns)})" for u in uuids)
    text = f"{wd.PREFIX} GPU-EXCLUDED {told} can not be hidden from job {inp.job.job_id if inp.job else '?'}"
    return wd.one_line(text, inp.policy.drain.max_length)


def _reason(inp: PlanInput, wish: Wish, pending: list[Intent]) -> str:
    """The oldest intent's reason, with what came since; otherwise the rendered one, or a plain one of our own."""
    limit = inp.policy.drain.max_length
    if pending:
        known = {k for i in pending for k in i.keys}
        later = _union((k for i in pending[1:] for k in i.keys), (k for k in wish.keys if k not in known))
        return wd.extend(pending[0].reason, _briefs(inp, wish, [k for k in later if k not in pending[0].keys]), limit)
    if wish.drain:
        return wd.one_line(inp.reason, limit) if inp.reason else _plain(inp, wish.drain)
    if wish.needed:
        return _excluded_reason(inp, wish.needed)
    first, *more = wish.unheld
    text = quarantine.reason_for(inp, wish, first, wish.unheld[first])
    return wd.extend(text, _briefs(inp, wish, [f"GPU-EXCLUDED {u}" for u in more]), limit)


def _briefs(inp: PlanInput, wish: Wish, keys: Iterable[str]) -> list[str]:
    """ "CODE gpuN" for "CODE entity"."""
    table = {wd.key(f): wd.brief(f) for f in wish.drain}
    out = []
    for key in keys:
        code, _, entity = key.partition(" ")
        out.append(table.get(key) or f"{code} {inp.names.get(entity.partition('/')[0]) or wd.short_uuid(entity)}")
    return out


def _union(first: Iterable[str], *more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *(x for items in more for x in items)]))
