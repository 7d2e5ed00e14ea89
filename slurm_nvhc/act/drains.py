"""Draining, extending and resuming this node: our own drain, and nobody else's.

Order of safety: an intent is written before Slurm is asked, the state is read
again just before it is changed (somebody may have drained the node meanwhile),
and a request that timed out counts as neither done nor not done: observed on
22.05 and 24.11, slurmctld applies it when it wakes up.
"""

from __future__ import annotations

from typing import Final, Mapping, Optional

from slurm_nvhc.act import blast, outbox
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.healing import RESUMED, resumable
from slurm_nvhc.act.ownership import same_drain
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Action, Done, Hands, intent_of
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Intent, OwnDrain, Strike
from slurm_nvhc.slurm.node import TIMEOUT, SlurmError


def drain_step(hands: Hands, step: Step) -> Done:
    done = drain(hands, step)
    hands.not_out = not done.ok
    return done


def drain(hands: Hands, step: Step) -> Done:
    """Also for steps that fell back to a drain."""
    tools = hands.tools
    if tools.quiet:
        return Done(step, False, f"{tools.quiet}: the node is not drained")
    mine = intent_of(step, tools.now_ns)
    # Earlier intents stay until the node is out: one that timed out may still be applied, and is known by its reason.
    hands.keep(lambda p: p.add_intent(mine))
    try:
        state = hands.state()
        if state.out:
            return _found_out(hands, step, state)
        room = blast.room(hands, step, state)
        if room.full is not None:
            return blast.turned_away(hands, step, room.full)
        tools.slurm.drain(tools.node, step.reason, hands.time())
    except SlurmError as exc:
        _tried(hands, mine)
        done = hands.failed(step, exc)
        if exc.kind != TIMEOUT:
            return done
        return _after_timeout(hands, step, done)
    return _placed(hands, step, room.again, room.note)


def _after_timeout(hands: Hands, step: Step, done: Done) -> Done:
    state = hands.look()
    if state is not None and state.out:
        return _found_out(hands, step, state)
    return done  # the intent stays, and with it the reason by which a late drain is known as ours


def _found_out(hands: Hands, step: Step, state: NodeState) -> Done:
    """The node is out although the plan did not know it."""
    if state.base == "DOWN" and not state.flags & {"DRAIN", "FAIL"}:
        # Not even with our reason: 24.11 keeps that of a drain that was ended before the node went down.
        return Done(step, True, "the node is down: remembered for when it returns")
    if state.reason == step.reason:
        return _placed(hands, step, blast.usable(hands) is not None, "Slurm has it", state.stamp)
    # Another hook of ours may just be at it: its intent is its own to end.
    hands.end_intents(st.DRAIN, but=state.reason)
    return Done(step, True, "the node was taken out meanwhile, its reason stays")


def _placed(hands: Hands, step: Step, again: bool, note: str, stamp: str = "") -> Done:
    """again: who else drained meanwhile is still to be counted."""
    if again:
        blast.watch(hands, step)
    seen = None if stamp else hands.look()
    stamp = stamp or _stamp(seen, step.reason)
    # Only what is seen right after the change: a drain that Slurm had already may be older than a job's end.
    idle = seen is not None and seen.reason == step.reason and seen.base == "IDLE" and seen.flags == {"DRAIN"}
    own = OwnDrain(step.reason, hands.tools.now_ns, True, step.keys, step.idents, step.standing, stamp, idle=idle)
    hands.deeds.append(step._replace(kind=st.DRAIN))
    if hands.keep(lambda p: p.set_own_drain(own)):
        hands.end_intents(st.DRAIN)
    hands.tools.log(f"drained {hands.tools.node}: {step.reason}")
    if seen is not None and not seen.out:
        # A prolog that failed its job now would have Slurm drain the node that somebody has just resumed.
        return Done(step, False, "somebody ended the drain at once")
    if not again:
        return Done(step, True, note)
    done = blast.recount(hands, step)
    return done._replace(detail=done.detail or note)


def _stamp(state: Optional[NodeState], reason: str) -> str:
    """Who set this reason and when; '' = not seen."""
    return state.stamp if state is not None and state.out and state.reason == reason else ""


def _tried(hands: Hands, intent: Intent) -> None:
    for kept in hands.intents():
        if (kept.kind, kept.reason) == (intent.kind, intent.reason):
            later = outbox.unanswered(kept, hands.tools.now_ns, hands.tools.node)._replace(limited="")
            hands.keep(lambda p, i=later: p.update_intent(i))  # type: ignore[misc]


def extend(hands: Hands, step: Step) -> Done:
    tools = hands.tools
    try:
        own = hands.own_drain()
        state = hands.state()
        if own is None or not same_drain(own, state):
            return Done(step, False, "the node's reason is not ours any more: left as it is")
        # By this intent the longer reason is known as ours if it arrives late.
        hands.keep(lambda p: p.add_intent(intent_of(step, tools.now_ns)))
        tools.slurm.drain(tools.node, step.reason, hands.time())
    except SlurmError as exc:
        if exc.kind != TIMEOUT:
            hands.keep(lambda p: p.end_intent(Intent(st.DRAIN, step.reason, tools.now_ns)))
        return hands.failed(step, exc)
    stamp = _stamp(hands.look(), step.reason)
    longer = own._replace(reason=step.reason, keys=step.keys, idents=step.idents, standing=step.standing, stamp=stamp)
    if hands.keep(lambda p: p.set_own_drain(longer)):
        hands.end_intents(st.DRAIN)
    return Done(step, True)


def resume(hands: Hands, step: Step) -> Done:
    tools = hands.tools
    mine = intent_of(step, tools.now_ns, st.RESUME)
    try:
        drained, state = hands.own_drain(), hands.state()
        if drained is None or drained.reason != step.reason or not resumable(state, drained):
            hands.keep(lambda p: p.end_intent(mine))
            return Done(step, False, "the node's state is not ours any more: left as it is")
        # Counted before it is written down, and that before it is tried: where there is an intent it was counted, and is
        # not counted twice, wherever a hook was killed.
        tried = any(i.kind == st.RESUME and i.reason == step.reason for i in hands.intents())
        if not tried and not hands.keep(lambda p: p.add_strike(Strike(RESUMED, "", tools.now_ns))):
            return Done(step, False, "what is not counted is not done")
        if not hands.keep(lambda p: p.add_intent(mine)):
            return Done(step, False, "what is not written down is not done")
        tools.slurm.resume(tools.node, hands.time())
    except SlurmError as exc:
        done = hands.failed(step, exc)
        if exc.kind != TIMEOUT:
            hands.keep(lambda p: p.end_intent(mine))
            return done
        _tried(hands, mine)
        if not hands.in_service():
            return done  # the intent stays: the next hook looks whether it was applied
    hands.keep(lambda p: p.set_own_drain(None))
    hands.keep(lambda p: p.end_intent(mine))
    tools.log(f"resumed {tools.node}: {step.why}")
    return Done(step, True)


def bar(hands: Hands, step: Step) -> Done:
    was = hands.own_drain()
    if was is None or was.reason != step.reason:
        return Done(step, False, "it is not our drain any more")
    return Done(step, hands.keep(lambda p: p.set_own_drain(was._replace(barred=True))))


def own(hands: Hands, step: Step) -> Done:
    known = hands.own_drain()
    late = (known is None or known.reason != step.reason) and blast.usable(hands) is not None
    if late:  # applied after the hook that asked for it had gone: nobody has counted since
        blast.watch(hands, step)
    drained = OwnDrain(step.reason, hands.tools.now_ns, True, step.keys, step.idents, step.standing, step.stamp)
    if known is None or known.reason != step.reason:
        hands.deeds.append(step._replace(kind=st.DRAIN))
    if known is not None and known.reason == step.reason:
        drained = drained._replace(set_ns=known.set_ns, stamp=step.stamp or known.stamp, barred=known.barred, idle=known.idle)
    kept = hands.keep(lambda p: p.set_own_drain(drained))
    if not late:
        return Done(step, kept)
    done = blast.recount(hands, step)
    hands.not_out = hands.not_out or not done.ok
    return done


def end_own(hands: Hands, step: Step) -> Done:
    return Done(step, hands.keep(lambda p: p.set_own_drain(None)))


def intend(hands: Hands, step: Step) -> Done:
    intent = intent_of(step, hands.tools.now_ns)
    kept = hands.keep(lambda p: p.add_intent(intent))
    if intent.kind == st.DRAIN and not intent.next_ns:
        _tried(hands, intent)  # Slurm did not even say what state the node is in
    return Done(step, kept)


def end_intent(hands: Hands, step: Step) -> Done:
    if step.reason in hands.taken_back and step.about in ("", st.DRAIN):
        return Done(step, True, "kept: that drain was taken back meanwhile")
    return Done(step, hands.keep(lambda p: p.end_intent(Intent(step.about or st.DRAIN, step.reason, hands.tools.now_ns))))


ACTIONS: Final[Mapping[str, Action]] = {
    st.DRAIN: drain_step,
    st.EXTEND: extend,
    st.OWN: own,
    st.END_OWN: end_own,
    st.INTENT: intend,
    st.END_INTENT: end_intent,
    st.RESUME: resume,
    st.BAR: bar,
    st.RECOUNT: blast.recount_step,
}
