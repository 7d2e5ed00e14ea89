"""Asking Slurm for a reboot, once, for a drain of ours; and telling that a limit keeps us from acting.

Order of safety: what the reboot destroys is written down first (``Tools.before_reboot``), then the intent and the
strike that counts against the limit, then the state is read again and decides. A ledger that does not take the strike
means no reboot: a reboot that is not counted would be asked for without end.
"""

from __future__ import annotations

from typing import Final, Mapping

from slurm_nvhc.act import outbox
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.remedy import rebootable
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Action, Done, Hands, intent_of
from slurm_nvhc.model.protective import Intent, Strike
from slurm_nvhc.slurm.node import TIMEOUT, SlurmError


def reboot(hands: Hands, step: Step) -> Done:
    tools = hands.tools
    mine = intent_of(step, tools.now_ns, st.REBOOT)
    try:
        state = hands.state()
        if state.rebooting:
            _seen(hands, mine)
            return Done(step, True, "Slurm has it")
        own = hands.own_drain()
        if own is None or not rebootable(state, step.reason, own.stamp):
            return Done(step, False, "the node's state is not ours any more: left as it is")
        if tools.before_reboot is not None:
            tools.before_reboot(step)
        if not _counted(hands, mine):
            return Done(step, False, "could not be recorded, so it is not asked for")
        # Evidence and the site's program took their time: somebody may have acted meanwhile.
        state = hands.state()
        own = hands.own_drain()
        if own is None or not rebootable(state, step.reason, own.stamp):
            return Done(step, False, "the node's state is not ours any more: left as it is")
        tools.slurm.reboot(tools.node, step.reason, hands.time())
    except SlurmError as exc:
        done = hands.failed(step, exc)
        if exc.kind != TIMEOUT:
            return done
        return _look(hands, mine, done)
    tools.log(f"asked Slurm to reboot {tools.node}: {step.why}")
    return _look(hands, mine, Done(step, True, "not seen in Slurm yet"))


def _counted(hands: Hands, mine: Intent) -> bool:
    """Write intent and strike down; an intent that was tried before has its strike already."""
    now_ns, node = hands.tools.now_ns, hands.tools.node
    tried = next((i for i in hands.intents() if (i.kind, i.reason) == (mine.kind, mine.reason)), None)
    if tried is not None:
        return hands.keep(lambda p: p.update_intent(outbox.postponed(tried, now_ns, node)))
    first = outbox.postponed(mine, now_ns, node)
    return hands.keep(lambda p: p.add_strike(Strike(st.REBOOT, mine.reason, now_ns))) and hands.keep(lambda p: p.add_intent(first))


def _look(hands: Hands, mine: Intent, done: Done) -> Done:
    """Did slurmctld take it? ``done`` when that can not be seen: the intent stays, and a later hook looks again."""
    state = hands.look()
    if state is not None and state.rebooting:
        own = hands.own_drain()
        if own is not None and own.reason == state.ground:
            # The request set a stamp of its own: should it be cancelled, the drain is still known as ours.
            hands.keep(lambda p: p.set_own_drain(own._replace(stamp=state.stamp)))
        _seen(hands, mine)
        return Done(done.step, True, "Slurm has it")
    return done


def _seen(hands: Hands, mine: Intent) -> None:
    hands.keep(lambda p: p.end_intent(mine))


def alert(hands: Hands, step: Step) -> Done:
    """The telling itself is done after all steps, once a day for the same limit (the site's on_limit, syslog)."""
    return Done(step, True)


ACTIONS: Final[Mapping[str, Action]] = {st.REBOOT: reboot, st.ALERT: alert}
