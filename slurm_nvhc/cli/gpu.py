"""`nvhc gpu list|release|forget`: GPUs that jobs do not get to see, and the way back; GPUs that are gone for good."""

from __future__ import annotations

import argparse

from slurm_nvhc.cli import common
from slurm_nvhc.cli.explain import find_gpu
from slurm_nvhc.errors import InputError
from slurm_nvhc.judge.memory import open_names
from slurm_nvhc.model.times import iso


def show(args: argparse.Namespace) -> int:
    with common.open_ledger(args) as ledger:
        exclusions, gpus = ledger.exclusions(), {g.uuid: g for g in ledger.known_gpus()}
    if args.json:
        common.say_json({"schema": 1, "exclusions": [e._asdict() for e in exclusions]})
        return common.OK
    rows = [
        (common.gpu_name(gpus[e.uuid]._asdict()) if e.uuid in gpus else "gpu?", e.uuid, e.code, e.why, e.who, iso(e.since_ns))
        for e in exclusions
    ]
    out = common.console()
    if rows:
        out.print(common.table("excluded GPUs", ("gpu", "uuid", "code", "why", "by", "since"), rows))
    else:
        out.print("no GPU is excluded")
    return common.OK


def release(args: argparse.Namespace) -> int:
    with common.open_ledger(args) as ledger:
        excluded = {e.uuid for e in ledger.exclusions()}
        identity = find_gpu(args.gpu, ledger.known_gpus())
        uuid = identity.uuid if identity is not None else args.gpu
        if uuid not in excluded or not ledger.release(uuid):
            raise InputError(args.gpu, "", "is not excluded on this node", f"excluded: {', '.join(sorted(excluded)) or 'none'}")
        # What it was excluded for is dealt with: an Xid in this boot's log must not exclude it again.
        ledger.settle(ledger.fold_memory(lambda memory, look: (open_names(memory, uuid), memory, look)))
    print(f"released {uuid}: the next job may use it")
    return common.OK


def forget(args: argparse.Namespace) -> int:
    """A GPU that was taken out on purpose is not missed any more."""
    with common.open_ledger(args) as ledger:
        known = ledger.known_gpus()
        identity = find_gpu(args.gpu, known)
        if identity is None or not ledger.forget_gpu(identity.uuid):
            names = ", ".join(f"{common.gpu_name(g._asdict())} {g.uuid}" for g in known)
            raise InputError(args.gpu, "", "is no GPU that this node knows", f"known: {names or 'none'}")
        excluded = any(e.uuid == identity.uuid for e in ledger.exclusions())
    print(f"forgot {identity.uuid}: it is not missed any more, unless gres.conf or expect.gpus in the policy count it")
    if excluded:
        print(f"it is still excluded: `nvhc gpu release {identity.uuid}` ends that")
    return common.OK
