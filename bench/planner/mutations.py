"""Rules of the planner and of the executor, broken one by one: the model must find out each time.

A mutation replaces a function; what it replaces is named as it is called there, so that a renamed one fails loudly.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Final, Iterator, Mapping
from unittest import mock

from planner.commands import Commands
from planner.kept import Book
from slurm_nvhc.act import blast, drains, execute, healing, job_care, jobs, limits, outbox, ownership, plan, quiet, remedies
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.tools import Done, Hands
from slurm_nvhc.model import finding as fd

Patches = Callable[[contextlib.ExitStack], None]


def _in(stack: contextlib.ExitStack, where: Any, name: str, value: Any) -> None:
    stack.enter_context(mock.patch.object(where, name, value))


def _action(stack: contextlib.ExitStack, kind: str, value: Any) -> None:
    assert kind in execute._ACTIONS
    stack.enter_context(mock.patch.dict(execute._ACTIONS, {kind: value}))


def _by_prefix(stack: contextlib.ExitStack) -> None:
    def same(own: Any, state: Any) -> bool:
        return bool(state.out and state.reason.startswith("nvhc:"))

    for where in (plan, drains, healing, ownership):
        _in(stack, where, "same_drain", same)
    _in(stack, healing, "resumable", lambda state, own: state.base == "IDLE" and state.flags == {"DRAIN"} and same(own, state))


def _no_reread(stack: contextlib.ExitStack) -> None:
    def state(hands: Hands) -> Any:
        known = hands.tools.slurm.last  # type: ignore[attr-defined]
        return known if known is not None else hands.tools.slurm.node_state(hands.tools.node)

    _in(stack, Hands, "state", state)


def _no_stamp(stack: contextlib.ExitStack) -> None:
    for where in (plan, ownership):
        _in(stack, where, "another_stamp", lambda own, state: False)
    _in(stack, healing, "resumable", lambda s, own: s.base == "IDLE" and s.flags == {"DRAIN"} and s.reason == own.reason)


def _intent_after(stack: contextlib.ExitStack) -> None:
    add, change = Book.__getattr__, Commands._change

    def later(book: Any, intent: Any) -> None:
        book.__dict__.setdefault("late", []).append(intent)
        if intent.kind != st.DRAIN:
            add(book, "add_intent")(book.late.pop())

    def changed(commands: Commands, what: str, do: Any) -> None:
        try:
            change(commands, what, do)
        finally:
            for intent in commands.book.__dict__.pop("late", ()):
                add(commands.book, "add_intent")(intent)

    stack.enter_context(mock.patch.object(Book, "add_intent", later, create=True))
    _in(stack, Commands, "_change", changed)


def _timeout_is_done(stack: contextlib.ExitStack) -> None:
    _in(stack, drains, "_after_timeout", lambda hands, step, done: drains._placed(hands, step, False, "", "root@then"))


def _timeout_is_not_done(stack: contextlib.ExitStack) -> None:
    def forgotten(hands: Hands, step: Any, done: Done) -> Done:
        hands.end_intents(st.DRAIN)
        return done

    _in(stack, drains, "_after_timeout", forgotten)


def _blind_resume(stack: contextlib.ExitStack) -> None:
    hindrance = healing.hindrance

    def blind(inp: Any, wish: Any, own: Any) -> str:
        fresh = inp._replace(decision=inp.decision._replace(verdict=fd.OK), clean_passes=99)
        return hindrance(fresh, wish._replace(drain=(), needed=(), unheld={}), own)

    _in(stack, healing, "hindrance", blind)


def _fails_anyway(stack: contextlib.ExitStack) -> None:
    def fail(hands: Hands, step: Any) -> Done:
        hands.fail_hook = True
        return Done(step, True)

    _action(stack, st.FAIL_JOB, fail)


def _no_limits(stack: contextlib.ExitStack) -> None:
    for name in ("full", "beyond"):
        _in(stack, limits, name, lambda where: None)


def _moves_uncounted(stack: contextlib.ExitStack) -> None:
    _in(stack, job_care, "beyond", lambda inp: "")
    _in(stack, job_care, "over_job", lambda job, limits: "")


def _reboots_uncounted(stack: contextlib.ExitStack) -> None:
    counted = remedies._counted

    def forgotten(hands: Hands, mine: Any) -> bool:
        kept = counted(hands, mine)
        book = hands.tools.protective
        kinds = [s for s in book.strikes() if s.kind != st.REBOOT]  # type: ignore[union-attr]
        book._kept.state = book._kept.state._replace(strikes=tuple(kinds))  # type: ignore[union-attr]
        return kept

    _in(stack, remedies, "_counted", forgotten)


def _cancelled_moved(stack: contextlib.ExitStack) -> None:
    _in(stack, jobs, "where", lambda now, before: jobs.STAYS)
    _in(stack, job_care, "job_hindrance", lambda job: "")


def _by_reason(stack: contextlib.ExitStack) -> None:
    def ours(inp: Any) -> bool:
        reasons = [i.reason for i in inp.intents if i.kind == st.DRAIN] + ([inp.own.reason] if inp.own else [])
        return inp.node_state is not None and inp.node_state.reason in reasons

    _in(stack, plan, "_is_ours", ours)


def _no_recount(stack: contextlib.ExitStack) -> None:
    def at_once(hands: Hands, step: Any) -> Done:
        blast._counted(hands)
        return Done(step, True)

    _in(stack, blast, "recount", at_once)


MUTATIONS: Final[Mapping[str, Patches]] = {
    "a drain is ours by its prefix": _by_prefix,
    "no reading before a change": _no_reread,
    "a drain is ours whoever set it when": _no_stamp,
    "the intent is written after Slurm was asked": _intent_after,
    "a timeout counts as done": _timeout_is_done,
    "a timeout counts as not done": _timeout_is_not_done,
    "the reason decides, not the state": _by_reason,
    "a down node counts as drained": lambda s: _in(s, plan, "comes_back", lambda state: False),
    "an ended drain settles nothing": lambda s: _in(s, plan, "_settled", lambda inp: frozenset()),
    "what was settled is not kept": lambda s: _action(s, st.ACCEPT, lambda hands, step: Done(step, True)),
    "an ended drain stays in the ledger": lambda s: _action(s, st.END_OWN, lambda hands, step: Done(step, True)),
    "resumes are not counted": lambda s: _in(s, healing, "_used_up", lambda inp, own: False),
    "resumed without a look": _blind_resume,
    "no data is a cure": lambda s: _in(s, outbox, "_seen_well", lambda inp, key: True),
    "no rule has to ask any more": lambda s: _in(s, outbox, "_still_asked", lambda inp, key: True),
    "intents never grow old": lambda s: _in(s, outbox, "expired", lambda intent, now_ns: ""),
    "observe mode and pause act": lambda s: _in(s, quiet, "label", lambda *given: ""),
    "the prolog fails a job on a node in service": _fails_anyway,
    "excluded GPUs are not hidden": lambda s: _action(s, st.NARROW, lambda hands, step: Done(step, True)),
    "moved jobs are not counted": _moves_uncounted,
    "whatever job it is, it is moved": _cancelled_moved,
    "reboots are not counted": _reboots_uncounted,
    "nobody counts the drained nodes": _no_limits,
    "nobody counts again after a drain": _no_recount,
}


# Where to look: what an episode has to be rather about (draw.py). The others are found anywhere.
WHERE: Final[Mapping[str, str]] = {
    "resumes are not counted": "healing",
    "moved jobs are not counted": "jobs",
    "whatever job it is, it is moved": "jobs",
    "excluded GPUs are not hidden": "jobs",
    "observe mode and pause act": "jobs",
    "a drain is ours whoever set it when": "healing",
    "intents never grow old": "outage",
    "no rule has to ask any more": "outage",
    "reboots are not counted": "mixed",
    "nobody counts the drained nodes": "fleet",
    "nobody counts again after a drain": "fleet",
}


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        MUTATIONS[name](stack)
        yield
