"""Never the whole cluster: count before a drain of ours, count again after it, and take it back when it is one too many.

(act/limits.py counts and ranks; docs/limits.md tells why this needs no coordinator.)

* sinfo that is not installed: the drain goes ahead uncounted. A protection that never drains is worse than one that
  does not count, and the doctor says that it is so. sinfo that *fails* is another matter: then who else is out is not
  known, slurmctld is in trouble, and that is when drains pile up. The drain waits in the outbox.
* Only our own drain is taken back: read again just before, exactly our reason and stamp, nothing else on the node.
  ``undrain`` leaves the base state alone, ``resume`` would also end a DOWN.
* All that is wanted is written before Slurm is asked: killed at any point, the next hook sees what is left to do.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Optional

from slurm_nvhc.act import limits, outbox
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.limits import Place
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Done, FleetCommands, Hands, intent_of
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Intent
from slurm_nvhc.slurm.node import TIMEOUT, SlurmError

# Kept of the hook's time for what follows the pause: four commands of 5 ms each, the ledger, and whatever is still planned.
RESERVE_S: Final = 1.0
# What a node may be beside drained without anybody but us having taken it out.
_HARMLESS: Final = frozenset({"DRAIN", "NOT_RESPONDING", "COMPLETING", "MAINTENANCE", "RESERVED", "PLANNED"})
_UNCOUNTED: Final = "who else is drained was not counted: sinfo is not there"


class Room(NamedTuple):
    """full: the partition that has no room for one more. again: count again after the drain. note: what could not be counted."""

    full: Optional[Place] = None
    again: bool = False
    note: str = ""


def room(hands: Hands, step: Step, state: NodeState) -> Room:
    """Is there room for one more drained node? Raises SlurmError when that can not be told."""
    fleet = usable(hands)
    if fleet is None:
        return Room(note=_UNCOUNTED)
    if not state.partitions:
        return Room()  # jobs come to it through no partition: its drain takes nothing from anybody
    where = _places(hands, fleet, step, state)
    return Room(limits.full(where), not limits.never_reached(where))


def usable(hands: Hands) -> Optional[FleetCommands]:
    """None where there is no sinfo."""
    fleet = hands.tools.fleet
    return None if fleet is None or fleet.unusable() is not None else fleet


def turned_away(hands: Hands, step: Step, place: Place) -> Done:
    """At the limit before anything was done: the drain stays an intent."""
    text = limits.words(place, hands.tools.policy.limits.within_s)
    _hold_back(hands, step, text)
    return Done(step, False, text)


def watch(hands: Hands, step: Step) -> None:
    """Written before a drain is known as placed, so that it can not be forgotten to count again."""
    hands.keep(lambda p: p.add_intent(Intent(outbox.RECOUNT, step.reason, hands.tools.now_ns, step.keys)))


def recount(hands: Hands, step: Step) -> Done:
    """Our drain was just placed: wait for those who did so at the same time, then count."""
    if hands.tools.quiet:
        # What was applied late is known as ours now; counting might take it back, which is a change in Slurm.
        return Done(step, True, f"{hands.tools.quiet}: who else drained meanwhile is counted afterwards")
    pause_s = max(limits.LEAST_RECOUNT_S, hands.tools.policy.limits.recount_s)
    if hands.tools.left_s() - RESERVE_S < pause_s:
        return Done(step, True, "no time to count who else drained meanwhile: the next hook does")
    hands.tools.pause(pause_s)
    return count_again(hands, step)


def recount_step(hands: Hands, step: Step) -> Done:
    """What an earlier hook left undone: at least LEAST_RECOUNT_S went by, since a hook takes longer than that to come again."""
    done = count_again(hands, step)
    hands.not_out = hands.not_out or not done.ok
    return done


def count_again(hands: Hands, step: Step) -> Done:
    """ok: our drain stays in place, for now at least."""
    fleet = usable(hands)
    if fleet is None:
        _counted(hands)
        return Done(step, True, _UNCOUNTED)
    try:
        state = hands.state()
        if not (state.out and state.reason == step.reason):
            hands.end_intents(outbox.RECOUNT, outbox.WITHDRAW)
            return Done(step, state.out, "somebody else changed the node meanwhile: left as it is")
        place = limits.beyond(_places(hands, fleet, step, state)) if state.partitions else None
    except SlurmError as exc:
        hands.failed(step, exc)
        return Done(step, True, f"who else drained meanwhile could not be counted, the next hook does: {exc}")
    if place is None:
        _counted(hands)
        return Done(step, True)
    return _withdraw(hands, step, state, limits.words(place, hands.tools.policy.limits.within_s))


def _withdraw(hands: Hands, step: Step, seen: NodeState, text: str) -> Done:
    """Take our drain back. ``seen``: the state in which it was counted."""
    tools = hands.tools
    own = hands.own_drain()
    stamp = own.stamp if own is not None and own.reason == step.reason and own.stamp else seen.stamp
    wanted = intent_of(step, tools.now_ns)
    hands.keep(lambda p: p.add_intent(wanted))
    _hold_back(hands, step, text, gone=stamp or "?")
    hands.keep(lambda p: p.add_intent(Intent(outbox.WITHDRAW, step.reason, tools.now_ns, step.keys)))
    try:
        state = hands.state()
        if not _only_ours(state, step.reason, stamp):
            hands.end_intents(st.DRAIN, outbox.RECOUNT, outbox.WITHDRAW)
            return Done(step, state.out, f"{text}; somebody else changed the node meanwhile: left as it is")
        tools.slurm.undrain(tools.node, hands.time())
    except SlurmError as exc:
        hands.failed(step, exc)
        if exc.kind != TIMEOUT or not hands.in_service():
            return Done(step, True, f"{text}; could not be taken back, the next hook tries again: {exc}")
    hands.taken_back.add(step.reason)
    hands.keep(lambda p: p.set_own_drain(None))
    hands.end_intents(outbox.RECOUNT, outbox.WITHDRAW)
    tools.log(f"took back our drain of {tools.node}: {text}")
    return Done(step, False, text)


def _only_ours(state: NodeState, reason: str, stamp: str) -> bool:
    return state.out and state.reason == reason and state.stamp == stamp and "DRAIN" in state.flags and state.flags <= _HARMLESS


def _hold_back(hands: Hands, step: Step, text: str, gone: str = "") -> None:
    """The drains that this step was for wait. Said aloud once, not at each try."""
    tools = hands.tools
    kept = [i for i in hands.intents() if i.kind == st.DRAIN and (i.reason == step.reason or set(i.keys) <= set(step.keys))]
    for intent in kept:
        later = outbox.postponed(intent, tools.now_ns, tools.node)._replace(limited=text, gone=gone or intent.gone)
        hands.keep(lambda p, i=later: p.update_intent(i))  # type: ignore[misc]
    if not any(i.limited for i in kept):
        hands.alert(step, f"not drained for {', '.join(step.keys)}: {text}")


def _counted(hands: Hands) -> None:
    """Our drain is within the limits and stays: nothing is left to be done."""
    hands.end_intents(st.DRAIN, outbox.RECOUNT, outbox.WITHDRAW)


def _places(hands: Hands, fleet: FleetCommands, step: Step, state: NodeState) -> tuple[Place, ...]:
    tools = hands.tools
    partitions = fleet.partitions(state.partitions, hands.time())
    return limits.places(partitions, tools.node, tools.policy.limits, step.soft, tools.now_ns)
