"""`nvhc isolate`: find the part that is bad, by traffic between chosen GPUs. It tells; it drains and excludes nothing."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from typing import Final, Optional, Sequence

from slurm_nvhc import diagnose
from slurm_nvhc.cli import by_hand, common
from slurm_nvhc.cli import isolate_show as showing
from slurm_nvhc.context import Context
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.isolate import board as boards
from slurm_nvhc.isolate import explain, plan, run, search, state, swap
from slurm_nvhc.isolate.run import Interrupted, Orders
from slurm_nvhc.isolate.search import Begun, Outcome
from slurm_nvhc.isolate.state import Search
from slurm_nvhc.model.protective import SUSPECTED
from slurm_nvhc.model.times import parse_duration
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc import log
from slurm_nvhc.proc.files import make_private_dir
from slurm_nvhc.record import lock

EXAMPLES: Final = (
    "nvbandwidth -t device_to_device_bidirectional_memcpy_write_ce",
    "all_reduce_perf -b 256M -e 256M -g {gpus} -w 0 -n 2000",
)
MOST_STEPS: Final = 1000


def isolate(args: argparse.Namespace) -> int:
    context = by_hand.context(args)
    try:
        return _isolate(args, context)
    finally:
        context.book.close()


def _isolate(args: argparse.Namespace, context: Context) -> int:
    orders, limits = _orders(args, context.policy), _limits(args)
    directory = f"{context.site.state}/{context.node}"
    snapshot = run.look(context)
    here = [gpu.identity for gpu in (snapshot.gpus or {}).values()]
    wanted = by_hand.gpus("--gpus", args.gpus, here)
    if args.plan:
        board = boards.of(snapshot, wanted or None)
        showing.planned(args, board, orders, search.if_nothing(board, limits), {row.uuid: row for row in here})
        return common.OK
    told = by_hand.gpus("--swapped", args.swapped, here)
    before = _before(args, directory, told)
    for number in by_hand.ENDING:
        signal.signal(number, _interrupted)
    try:
        make_private_dir(directory)
    except OSError as exc:
        raise MonitorError(directory, "", f"can not be used: {exc.strerror}", "--state names another directory") from exc
    # One lock for all that loads GPUs on purpose: no hook begins a diagnostic meanwhile.
    with lock.held(f"{directory}/{diagnose.LOCK}", 0.0) as ours:
        if not ours:
            raise InputError(context.node, "", "a diagnostic or another search is running on it")
        try:
            begun = search.begin(context, os.environ, wanted, orders, args.fresh, directory)
            if before is not None:
                swap.compare(before, begun.search._replace(seen=()), told)  # were they exchanged? said before anything runs
            for note in (begun.ground.why, *begun.notes):
                by_hand.say(note)
            outcome = search.carry_on(context, os.environ, begun, limits, directory, by_hand.say)
        except Interrupted:
            current = state.load(directory)[0].current
            steps = 0 if current is None else len(current.seen)
            by_hand.say(f"interrupted: its commands were ended, {steps} steps are kept; the same command goes on after them")
            return common.TROUBLE
        _no_more_signals()
    return _tell(args, context, begun, outcome, before, told)


def _tell(
    args: argparse.Namespace, context: Context, begun: Begun, outcome: Outcome, before: Optional[Search], told: Sequence[str]
) -> int:
    found = outcome.search
    explanation = explain.explain(found.board, found.seen)
    compared = swap.compare(before, found, told) if before is not None else None
    excluded = frozenset(e.uuid for e in context.book.protective().exclusions if e.stage != SUSPECTED)
    result = showing.Result(context.node, begun.ground, outcome, explanation, compared, excluded, context.policy)
    code = _code(result)
    if code == common.FOUND:
        log.warning(f"isolate {context.node}: {'; '.join(showing.headlines(result))}")
    if args.json:
        common.say_json(showing.document(result))
    else:
        showing.print_out(result)
    return code


def _code(result: showing.Result) -> int:
    if result.found:
        return common.FOUND
    return common.TROUBLE if result.outcome.stopped or result.unknown else common.OK


# --- what was asked --------------------------------------------------------


def _orders(args: argparse.Namespace, policy: Policy) -> Orders:
    given = policy.isolate
    try:
        words = tuple(shlex.split(args.traffic)) if args.traffic else given.traffic
    except ValueError as exc:
        raise InputError("--traffic", "", f"is no command: {exc}") from exc
    if not words:
        hint = f"isolate.traffic in the policy, or --traffic; such as {EXAMPLES[0]!r} or {EXAMPLES[1]!r}"
        raise InputError("isolate.traffic", "", "no command is named that moves data between GPUs", hint)
    traffic = run.resolved(words, "--traffic" if args.traffic else "isolate.traffic")
    alone = run.resolved(given.alone, "isolate.alone") if given.alone and not args.traffic else ()
    return Orders(traffic, alone, _seconds(args, given.seconds), given.timeout_s)


def _seconds(args: argparse.Namespace, usual: float) -> float:
    if not args.seconds:
        return usual
    try:
        seconds = parse_duration(args.seconds)
    except ValueError as exc:
        raise InputError("--seconds", "", str(exc)) from exc
    if not 1 <= seconds <= 3600:
        raise InputError("--seconds", "", f"{args.seconds} is not from 1s to 1h")
    return seconds


def _limits(args: argparse.Namespace) -> plan.Limits:
    limits = plan.Limits()
    for option, value, least in (("--repeat", args.repeat, 0), ("--max-steps", args.max_steps, 1)):
        if value is not None and not least <= value <= MOST_STEPS:
            raise InputError(option, "", f"{value} is not from {least} to {MOST_STEPS}")
    repeat = limits.repeat if args.repeat is None else args.repeat
    return plan.Limits(repeat, max(limits.max_steps, 1 + 2 * repeat) if args.max_steps is None else args.max_steps)


def _before(args: argparse.Namespace, directory: str, told: Sequence[str]) -> Optional[Search]:
    """The search from before an exchange of cards: the one in --before, or the last finished one that found something."""
    if not args.swapped:
        if args.before:
            raise InputError("--before", "", "belongs to --swapped", "which cards were exchanged: --swapped gpu3,gpu5")
        return None
    if args.before:
        return state.read_result(args.before)
    kept, _note = state.load(directory)
    for old in reversed(kept.finished):
        if explain.explain(old.board, old.seen).found:
            return old
    raise InputError("--swapped", "", "no search from before the exchange is kept that found something", "--before FILE names one")


# --- while it runs ---------------------------------------------------------


def _interrupted(_number: int, _frame: object) -> None:
    _no_more_signals()
    raise Interrupted


def _no_more_signals() -> None:
    for number in by_hand.ENDING:
        signal.signal(number, signal.SIG_IGN)  # once is enough: what is being cleaned up, or told, must not be interrupted
