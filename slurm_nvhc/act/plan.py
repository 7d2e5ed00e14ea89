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

from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import HEALTH_CHECK, PlanInput, Wish, want
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Intent, OwnDrain
from slurm_nvhc.model.times import duration, iso

# A drain that could not be placed for a day is not placed at all: whatever it was for is seen again
# or was dealt with (our judgement).
INTENT_AGE_NS: Final = 86400 * 10**9

__all__ = ["PlanInput", "Step", "comes_back", "needs_node_state", "plan", "reason_findings", "resumable"]


def needs_node_state(inp: PlanInput) -> bool:
    """Whether a plan can depend on the node's state: not without a fault, a drain of ours, or an intent."""
    return bool(inp.own or inp.intents or want(inp).keys)


def reason_findings(inp: PlanInput) -> tuple[Finding, ...]:
    """The findings that a drain's reason has to tell of; () when nothing is to be rendered."""
    return want(inp, _settled(inp)).drain


def plan(inp: PlanInput) -> tuple[Step, ...]:
    """The steps, in the order in which they are to be done."""
    wish = want(inp, _settled(inp))
    # A fault found anywhere names its GPU's index, so that texts can.
    inp = inp._replace(names={**inp.names, **wd.names([f for p in inp.decision.proposals for f in p.findings])})
    out: list[Step] = [*_ended(inp), *_exclude(inp, wish), *_narrow(inp, wish)]
    drain, node_is_out = _drain(inp, wish)
    out += drain
    if wish.fail and node_is_out:
        out.append(Step(st.FAIL_JOB, why=wish.fail, keys=wish.keys))
    elif wish.fail:
        # Failing a prolog makes Slurm drain the node with a generic reason: not while we can not drain it ourselves.
        out.append(Step(st.NOTE, why=f"the job is let through because the node's state is unknown: {wish.fail}", keys=wish.keys))
    out += _resume(inp, wish)
    out += _told(inp, wish)
    return tuple(out)


def _is_ours(inp: PlanInput) -> bool:
    """The node is out by us: with the reason of our drain, or of a request of ours that was applied late."""
    state = inp.node_state
    if state is None or not state.out:
        return False
    return (inp.own is not None and state.reason == inp.own.reason) or any(i.reason == state.reason for i in _drain_intents(inp))


def _drain_intents(inp: PlanInput) -> tuple[Intent, ...]:
    return tuple(i for i in inp.intents if i.kind == "drain" and not _overtaken(inp, i))


def _overtaken(inp: PlanInput, intent: Intent) -> str:
    """Why a drain that could not be placed then is not wanted any more; '' when it still is.

    slurmctld comes back after hours of maintenance to a whole cluster's intents: none may be
    carried out without another look.
    """
    if inp.now_ns - intent.since_ns > INTENT_AGE_NS:
        return f"it is older than {duration(INTENT_AGE_NS / 1e9)}"
    if intent.policy != inp.policy.hash:
        # The policy was edited since. (The same policy asks still, be it by an overlay of another partition.)
        if inp.policy.mode == fd.OBSERVE:
            return "the policy is in observe mode now"
        if not any(_still_asked(inp, key) for key in intent.keys):
            return "no enforced rule asks for it any more"
    moments = settled.table(intent.idents).values()
    if intent.events and moments and max(moments) < inp.booted_ns:
        return "the node was rebooted since, which ends what the driver logged"
    if intent.standing and inp.hook == HEALTH_CHECK and all(_seen_well(inp, key) for key in intent.keys):
        return "the fault does not show any more"
    return ""


def _seen_well(inp: PlanInput, key: str) -> bool:
    """Was what this key is about looked at now, and found ok? No data is no cure."""
    uuid = ent.gpu_of(key.partition(" ")[2])
    return uuid in inp.judged_ok if uuid else inp.decision.verdict == fd.OK and bool(inp.node_gpus)


def _still_asked(inp: PlanInput, key: str) -> bool:
    code, _, entity = key.partition(" ")
    if code == "GPU-EXCLUDED":
        return entity in inp.exclusions
    if entity.startswith("monitor:"):
        return inp.policy.monitor.action == fd.DRAIN
    return any(r.finding == code and r.mode == fd.ENFORCE and r.action in (fd.DRAIN, fd.NARROW) for r in inp.policy.rules.values())


def _applied_and_ended(inp: PlanInput) -> tuple[Intent, ...]:
    """Intents of which an idle node still shows the reason: a late drain that somebody ended (24.11 keeps it)."""
    state = inp.node_state
    if state is None or state.out:
        return ()
    return tuple(i for i in _drain_intents(inp) if state.reason and state.reason == i.reason)


def _settled(inp: PlanInput) -> frozenset[str]:
    """Events that a drain of ours answered which somebody has ended: they need no second one."""
    names = {ident for intent in _applied_and_ended(inp) for ident in intent.idents}
    if inp.own is not None and inp.own.confirmed and inp.node_state is not None and not _is_ours(inp):
        names.update(inp.own.idents)
    if inp.node_state is not None and not inp.node_state.out:
        names.update(inp.seen_out)
    return frozenset(names)


def _ended(inp: PlanInput) -> Iterable[Step]:
    names = _settled(inp)
    if names:
        # First of all: what comes after may fail, and then these events must not drain again.
        yield Step(st.ACCEPT, why="answered by a drain that was ended", idents=tuple(sorted(names)))
    state, own = inp.node_state, inp.own
    if own is not None and state is not None and not _is_ours(inp):
        why = "the node has another reason now: hands off" if state.out else "somebody resumed the node"
        yield Step(st.END_OWN, reason=own.reason, why=why, keys=own.keys)
    for intent in inp.intents:
        why = _overtaken(inp, intent) if intent.kind == "drain" else ""
        if why:
            yield Step(st.END_INTENT, reason=intent.reason, why=why, keys=intent.keys)
    for intent in _applied_and_ended(inp):
        yield Step(st.END_INTENT, reason=intent.reason, why="it was applied late and somebody resumed the node", keys=intent.keys)


def _exclude(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    for uuid, findings in wish.exclude.items():
        first = wd.ordered(findings)[0]
        yield Step(
            st.EXCLUDE,
            reason=_plain(inp, findings),
            uuid=uuid,
            why=" ".join(part for part in (inp.name(uuid), wd.words(first).link, first.code, wd.what(first)) if part),
            keys=tuple(dict.fromkeys(wd.key(f) for f in findings)),
            idents=tuple(dict.fromkeys(i for f in findings for i in f.idents)),
            code=first.code,
        )


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
        keys=tuple(f"{codes[u]} {u}" for u in wish.hide),
        uuids=wish.hide,
    )


def _drain(inp: PlanInput, wish: Wish) -> tuple[list[Step], bool]:
    """(steps, whether the node is out once they are done)."""
    state = inp.node_state
    gone = _applied_and_ended(inp)
    pending = [i for i in _drain_intents(inp) if i not in gone]
    if not wish.keys and not pending:
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
        return [Step(st.DRAIN, reason=reason, why=why, keys=keys, idents=idents)._replace(**kind)], True
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


def comes_back(state: NodeState) -> bool:
    """A node that is only down returns to service by itself (ReturnToService): the drain is remembered for then."""
    return state.base == "DOWN" and not state.flags & {"DRAIN", "FAIL"}


def _ours(inp: PlanInput, wish: Wish, state: NodeState, pending: list[Intent]) -> list[Step]:
    """The node is out by us: nothing but bookkeeping, or a longer reason where the policy says so."""
    base = inp.own
    if base is None or base.reason != state.reason:
        late = next(i for i in pending if i.reason == state.reason)
        base = OwnDrain(late.reason, inp.now_ns, True, late.keys, late.idents, late.standing)
    new = _union((k for i in pending for k in i.keys if k not in base.keys), (k for k in wish.keys if k not in base.keys))
    # More events of a kind that the drain already answers belong to it; those of a new kind do not.
    same = settled.newest((*base.idents, *(i for f in wish.drain if wd.key(f) in base.keys for i in f.idents)))
    if new and not (wish.standing and all(i.standing for i in pending)):
        base = base._replace(standing=False)  # what came on top may not show in a reading
    steps: list[Step] = []
    if base != inp.own or not base.confirmed or same != base.idents:
        why = "the node is out by our own drain"
        steps.append(Step(st.OWN, reason=base.reason, why=why, keys=base.keys, idents=same, standing=base.standing))
    longer = base.reason
    if new and inp.policy.drain.extend:
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


def _resume(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    state, own, drain = inp.node_state, inp.own, inp.policy.drain
    if (
        inp.hook == HEALTH_CHECK
        and own is not None
        and (drain.resume == "own" or (drain.resume == "standing" and own.standing))
        and own.confirmed
        and state is not None
        and resumable(state, own.reason)
        and inp.decision.verdict == fd.OK
        and not wish.keys
        and not inp.intents
        and inp.clean_passes >= max(1, drain.resume_passes)
    ):
        yield Step(st.RESUME, reason=own.reason, why=f"{inp.clean_passes} clean health checks in a row", keys=own.keys)


def resumable(state: NodeState, reason: str) -> bool:
    """Idle, drained, by exactly this reason and by nothing else (no reboot asked for, not down, not failing)."""
    return state.base == "IDLE" and state.flags == {"DRAIN"} and state.reason == reason


def _told(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    for text in wish.why if not wish.keys else ():
        yield Step(st.NOTE, why=f"not narrowed: {text}")
    for proposal in inp.decision.proposals:
        if proposal.action in (fd.NOTIFY, fd.NOTE):
            kind = st.NOTIFY if proposal.action == fd.NOTIFY else st.NOTE
            for finding in proposal.findings:
                yield Step(kind, why=f"{wd.brief(finding)} {wd.what(finding)}", keys=(wd.key(finding),), idents=finding.idents)
    for proposal in inp.decision.observed:
        action = fd.told_action(proposal.action, inp.policy.narrow.enabled)
        told = ", ".join(wd.brief(f) for f in wd.distinct(proposal.findings))
        yield Step(st.NOTE, why=f"observe mode: would {action} for {told}", keys=tuple(wd.key(f) for f in proposal.findings))


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
    return _excluded_reason(inp, wish.needed)


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
