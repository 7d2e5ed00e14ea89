"""`nvhc undo`: take back what nvhc itself did lately, on this node or, by the drains' reasons, in the cluster."""

from __future__ import annotations

import argparse
import time
from typing import Callable, Final, Sequence

from slurm_nvhc.act.words import PREFIX
from slurm_nvhc.cli import common, drained, gpu, tell
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import SUSPECTED, VERIFIED, Exclusion, OwnDrain
from slurm_nvhc.model.times import duration, iso, parse_duration
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc import log
from slurm_nvhc.record import lock
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.slurm.fleet import OutNode, SlurmFleet
from slurm_nvhc.slurm.node import SlurmCommands

BY_US: Final = "nvhc"  # Exclusion.who


def undo(args: argparse.Namespace) -> int:
    try:
        seconds = parse_duration(args.since)
    except ValueError as exc:
        raise InputError("--since", "", str(exc)) from None
    since_ns = time.time_ns() - round(seconds * 1e9)
    if args.partition and not args.cluster:
        raise InputError("--partition", "", "goes with --cluster")
    return _cluster(args, since_ns) if args.cluster else _node(args, since_ns, seconds)


# --- this node -------------------------------------------------------------


def _node(args: argparse.Namespace, since_ns: int, seconds: float) -> int:
    node, given = common.node(args), drained.policy(args)
    with common.open_ledger(args) as ledger:
        kept = ledger.protective()
    own = kept.own_drain if kept.own_drain is not None and kept.own_drain.set_ns >= since_ns else None
    gpus = [e for e in kept.exclusions if e.who == BY_US and e.since_ns >= since_ns and e.stage not in (SUSPECTED, VERIFIED)]
    verified = [e for e in kept.exclusions if e.who == BY_US and e.since_ns >= since_ns and e.stage == VERIFIED]
    intents = [i for i in kept.intents if i.since_ns >= since_ns]
    plan = [f"drain: {own.reason}"] if own is not None else []
    plan += [f"exclusion of {e.uuid}: {e.code} {e.why}" for e in gpus]
    plan += [f"still to be done: {i.kind} {i.reason}" for i in intents]
    for e in verified:
        print(f"left: exclusion of {e.uuid}, whose fault was proven: `nvhc gpu release --force {e.uuid}`")
    if not plan:
        older = f"; its drain is of {iso(kept.own_drain.set_ns)}" if kept.own_drain is not None else ""
        print(f"nvhc did nothing on {node} in the last {duration(seconds)}{older}")
        return common.OK
    head = "would undo" if args.dry_run else "undoing"
    for what in plan:
        print(f"{head}  {what}")
    if args.dry_run:
        return common.OK
    if not drained.ask(args, f"undo this on {node}?"):
        print("nothing was done")
        return common.FOUND
    code, ended = common.OK, False
    with common.open_ledger(args) as ledger, lock.held(drained.lock_path(args), drained.LOCK_S):
        if own is not None:
            code, ended = _end_own(args, ledger, drained.commands(args, given), own, given)
        for line in drained.forget(ledger, None, since_ns):
            print(line)
        for intent in ledger.intents():
            if intent.since_ns >= since_ns:
                ledger.end_intent(intent)
                print(f"dropped what was still to be done: {intent.kind} {intent.reason}")
    if own is not None and ended:
        tell.by_hand(args, "resume", own.reason, "undone")  # not under the lock: it may take a minute
    for exclusion in gpus:
        code = max(code, _give_back(args, exclusion))
    if gpus:
        print("a fault that still shows has its GPU excluded again at the next health check; until it is repaired: `nvhc pause`")
    return code


def _end_own(args: argparse.Namespace, ledger: Ledger, slurm: SlurmCommands, was: OwnDrain, given: Policy) -> tuple[int, bool]:
    """(exit code, whether the drain was ended)."""
    node, own = common.node(args), ledger.own_drain()
    if own is None or own.reason != was.reason:
        print(f"left: our drain of {node} has ended meanwhile")
        return common.OK, False
    state = slurm.node_state(node)
    if state.out and not drained.is_ours(own)(state):
        print(f"left: {drained.whose(own, state, node)}")
        ledger.set_own_drain(None)
        return common.FOUND, False
    # Before the node is in service again: its first hook must not find the same events open.
    ledger.settle(own.idents)
    left = drained.end(slurm, node, drained.is_ours(own)) if state.out else ""
    if left:
        print(f"left: {node}: {left}")
        return common.FOUND, False
    drained.forget(ledger, own, own.set_ns)
    log.warning(f"undo of our drain of {node} by {common.user()} ({own.reason})")
    print(f"undone: {node} is in service ({own.reason})")
    again = drained.returns(own, given, node)
    if again:
        print(again)
    return common.OK, True


def _give_back(args: argparse.Namespace, exclusion: Exclusion) -> int:
    """As `nvhc gpu release` does it, in a line of its own."""
    named = argparse.Namespace(**{**vars(args), "gpu": exclusion.uuid, "why": "undone", "force": False})
    try:
        return gpu.release(named)
    except InputError as exc:
        print(f"left: {exc}")
        return common.FOUND


# --- the cluster -----------------------------------------------------------


def _cluster(args: argparse.Namespace, since_ns: int) -> int:
    """From any machine with Slurm's commands: the reasons say what is ours, and each node is read again before it is touched."""
    given = drained.policy(args)
    slurm = drained.commands(args, given)
    fleet = SlurmFleet(given.slurm.bin_dir, drained.slurm_conf(args, given), drained.CALL_S)
    out = common.console()
    found = [n for n in fleet.out_nodes(args.partition) if n.reason.startswith(PREFIX) and n.state.startswith(("drain", "drng"))]
    ours = [n for n in found if n.since_ns >= since_ns]
    where = f"in partition {args.partition}" if args.partition else "in the cluster"
    if len(found) > len(ours):
        print(f"{len(found) - len(ours)} nodes {where} were drained by nvhc before that, or Slurm does not say when: left")
    if not ours:
        print(f"no node {where} was drained by nvhc since {iso(since_ns)}")
        return common.OK
    rows = [(n.name, n.state, iso(n.since_ns), n.user, n.reason) for n in ours]
    out.print(common.table("drained by nvhc", ("node", "state", "since", "by", "reason"), rows))
    if args.dry_run:
        return common.OK
    if not drained.ask(args, f"end the drain of these {len(ours)} nodes?"):
        print("nothing was done")
        return common.FOUND
    return _end_all(slurm, ours)


def _end_all(slurm: SlurmCommands, nodes: Sequence[OutNode]) -> int:
    code, ended = common.OK, 0
    for node in nodes:
        try:
            left = drained.end(slurm, node.name, _same(node.reason))
        except MonitorError as exc:
            print(f"left: {node.name}: {exc}")
            code = common.TROUBLE
            continue
        print(f"left: {node.name}: {left}" if left else f"undone: {node.name} ({node.reason})")
        code, ended = (max(code, common.FOUND), ended) if left else (code, ended + 1)
    log.warning(f"undo of {ended} drains of ours in the cluster by {common.user()}")
    if ended:
        print(
            "what the driver had logged is settled with that. A fault that still shows drains its node again at the next health check: "
            "`nvhc pause` there, or switch the rule off in the policy or the kill switch file"
        )
    return code


def _same(reason: str) -> Callable[[NodeState], bool]:
    """The drain that was listed. (sinfo trims blanks at the ends.)"""
    listed = " ".join(reason.split())
    return lambda state: state.out and state.reason.startswith(PREFIX) and " ".join(state.reason.split()) == listed
