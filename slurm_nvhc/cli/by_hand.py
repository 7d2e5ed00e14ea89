"""What the tests by hand share (`nvhc diag`, `isolate`, `screen`): where they stand, which GPUs, and what to do about what they find."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from typing import Final, Sequence

from slurm_nvhc.act import ways
from slurm_nvhc.cli import common
from slurm_nvhc.cli.explain import find_gpu
from slurm_nvhc.context import Context
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.policy.compiled import Policy

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def context(args: argparse.Namespace) -> Context:
    """As for a look by hand, with the policy of the partition; inside a job that is the job's."""
    return common.context(args, args.partition or os.environ.get("SLURM_JOB_PARTITION", ""))


def gpus(option: str, text: str, here: Sequence[GpuIdentity]) -> list[str]:
    """UUIDs of "gpu3,gpu5"; [] for ''. InputError for what names none."""
    out = []
    for word in filter(None, (w.strip() for w in text.split(","))):
        identity = find_gpu(word, here)
        if identity is None:
            raise InputError(option, "", f"{word} is no GPU of this node", f"there are: {', '.join(g.name for g in here) or 'none'}")
        out.append(identity.uuid)
    return list(dict.fromkeys(out))


def take_out(policy: Policy, of_node: str, gpu: str, why: str) -> str:
    """The command that takes a GPU out of service, ready to be copied: the node, where the policy has no way for one GPU."""
    if ways.wanted(policy) and policy.mode != fd.OBSERVE:
        return f"nvhc gpu exclude {gpu} --why {shlex.quote(why)}"
    return drain(of_node, f"{gpu}: {why}")


def drain(of_node: str, why: str) -> str:
    return f"scontrol update nodename={of_node} state=drain reason={shlex.quote(why)}"


def say(text: str) -> None:
    """Progress: on standard error, so that --json stays clean."""
    sys.stderr.write(f"nvhc: {text}\n")
    sys.stderr.flush()
