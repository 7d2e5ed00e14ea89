"""What `nvhc release` and `nvhc undo` share: ending a drain of ours by hand, read again just before."""

from __future__ import annotations

import argparse
import os
import sys
from typing import AbstractSet, Callable, Final, Optional

from slurm_nvhc.act.ownership import another_stamp, same_drain
from slurm_nvhc.cli import common
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import OwnDrain
from slurm_nvhc.policy import source
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.slurm.node import TIMEOUT, SlurmCommands, SlurmError

LOCK_S: Final = 10.0  # the longest that a hook which acts just now is waited for
CALL_S: Final = 12.0  # of one Slurm command: above Slurm's own MessageTimeout (10 s), a person can wait
# Kinds of intents that come with a drain of ours, and end with it.
OF_DRAIN: Final = ("drain", "resume", "recount", "withdraw", "reboot")


def policy(args: argparse.Namespace) -> Policy:
    where, node = common.site(args), common.node(args)
    return source.load(where.config, f"{where.state}/{node}", node, "", keep=False).policy


def slurm_conf(args: argparse.Namespace, given: Policy) -> str:
    return common.site(args).slurm_conf or os.environ.get("SLURM_CONF", "") or given.slurm.conf


def commands(args: argparse.Namespace, given: Policy) -> SlurmCommands:
    return SlurmCommands(given.slurm.bin_dir, slurm_conf(args, given), max(CALL_S, given.slurm.timeout_s))


def lock_path(args: argparse.Namespace) -> str:
    return f"{common.site(args).state}/{common.node(args)}/act.lock"


def end(slurm: SlurmCommands, node: str, ours: Callable[[NodeState], bool]) -> str:
    """End the drain of a node if it still is ours: '' when it is over, else why it was left. Raises SlurmError and MonitorError.

    Only the drain: a node that is down stays down.
    """
    state = slurm.node_state(node)
    if not ours(state) or "DRAIN" not in state.flags:
        return "somebody changed it meanwhile, its state and reason stay as they are"
    if state.rebooting:
        return f"a reboot of it is asked for: `scontrol cancel_reboot {node}` first, or wait for it"
    try:
        slurm.undrain(node)
    except SlurmError as exc:
        if exc.kind != TIMEOUT:
            raise
    if ours(after := slurm.node_state(node)) and "DRAIN" in after.flags:
        raise MonitorError(node, "", "is still drained: Slurm has not answered, and may yet do what it was asked", "look again in a minute")
    return ""


def is_ours(own: Optional[OwnDrain]) -> Callable[[NodeState], bool]:
    return lambda state: own is not None and same_drain(own, state)


def whose(own: Optional[OwnDrain], state: NodeState, node: str) -> str:
    """One line on a node that is out, and not by a drain of ours."""
    by = f" by {state.stamp}" if state.stamp else ""
    again = " (drained anew with the reason that we had set)" if own is not None and another_stamp(own, state) else ""
    return f"{node} is {state.base}{'+DRAIN' if 'DRAIN' in state.flags else ''}{by}, and not by nvhc{again}: {state.reason or 'no reason'}"


def forget(ledger: Ledger, own: Optional[OwnDrain], since_ns: int = 0) -> list[str]:
    """Drop our drain and what was still to be done about it, intents not older than since_ns. Says what was dropped."""
    said = []
    for intent in ledger.intents():
        if intent.kind in OF_DRAIN and intent.since_ns >= since_ns:
            ledger.end_intent(intent)
            ledger.settle(intent.idents)
            said.append(f"dropped what was still to be done: {intent.kind} {intent.reason}")
    if own is not None:
        ledger.set_own_drain(None)
    return said


def returns(own: OwnDrain, given: Policy, node: str) -> str:
    """What to do about a fault that is still there; '' when no reading can show it again by itself."""
    codes = {key.partition(" ")[0] for key in own.keys}
    rules = [r.name for r in given.rules.values() if r.finding in codes and r.fail and r.mode == fd.ENFORCE]
    if not own.standing:
        return ""
    off = ", ".join(f"{name}: {{mode: off}}" for name in rules[:4])
    ways = "`nvhc pause --until 2h --why …` there" + (f", or in the policy nodes: {{{node}: {{rules: {{{off}}}}}}}" if off else "")
    return f"a fault that still shows drains {node} again at the next health check; until it is repaired: {ways}"


def still_excluded(own: OwnDrain, excluded: AbstractSet[str]) -> list[str]:
    """What to do about GPUs that the node was drained for and that stay excluded: the next hook may drain for them again."""
    named = (uuid for code, _, uuid in (key.partition(" ") for key in own.keys) if code == "GPU-EXCLUDED" and uuid in excluded)
    return [f"{uuid} stays excluded, which may drain the node again; once it is repaired: `nvhc gpu release {uuid}`" for uuid in named]


def ask(args: argparse.Namespace, question: str) -> bool:
    """--yes, or a person at a terminal who says so. InputError when nobody can be asked."""
    if args.yes:
        return True
    if not sys.stdin.isatty():
        raise InputError("--yes", "", "is missing: nobody can be asked here", "--dry-run shows what would be done")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
