"""`nvhc release`: the node was repaired: end our own drain, and take what it was for as dealt with."""

from __future__ import annotations

import argparse
import time

from slurm_nvhc.cli import common, drained, tell
from slurm_nvhc.errors import InputError
from slurm_nvhc.model.protective import SUSPECTED
from slurm_nvhc.model.times import iso
from slurm_nvhc.proc import log
from slurm_nvhc.record import lock


def release(args: argparse.Namespace) -> int:
    node, given = common.node(args), drained.policy(args)
    slurm = drained.commands(args, given)
    with common.open_ledger(args) as ledger, lock.held(drained.lock_path(args), drained.LOCK_S):
        own = ledger.own_drain()
        state = slurm.node_state(node)
        if state.out and "DRAIN" not in state.flags:
            raise InputError(node, "", f"is {state.base} and not drained: {state.reason or 'no reason'}", "nothing here is ours to end")
        if state.out and not drained.is_ours(own)(state):
            hint = f"whoever drained it ends that: scontrol update nodename={node} state=resume"
            raise InputError(node, "", drained.whose(own, state, node).removeprefix(f"{node} "), hint)
        # Before the node is in service again: its first hook must not find the same events open.
        ledger.settle(own.idents if own is not None else ())
        if state.out:
            left = drained.end(slurm, node, drained.is_ours(own))
            if left:
                raise InputError(node, "", f"was not released: {left}")
        said = drained.forget(ledger, own)
        excluded = {e.uuid for e in ledger.exclusions() if e.stage != SUSPECTED}
        who = f"{common.user()} {iso(time.time_ns())}"
    if state.out and own is not None:
        print(f"released {node}: our drain is over ({own.reason})")
        log.warning(f"released {node} by {common.user()}: {args.why or 'no reason given'} ({own.reason})")
        tell.by_hand(args, "resume", own.reason, args.why or "")
        again = drained.returns(own, given, node)
        if again:
            print(again)
        for line in drained.still_excluded(own, excluded):
            print(line)
    elif own is not None or said:
        print(f"{node} is in service already; what was known of our drain is settled ({who})")
    else:
        print(f"{node} is in service, and nothing of ours is left to be done")
    for line in said:
        print(line)
    return common.OK
