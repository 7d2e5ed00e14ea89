"""`nvhc gpu list|release`: GPUs that jobs do not get to see, and the way back."""

from __future__ import annotations

import argparse

from slurm_nvhc.cli import common
from slurm_nvhc.cli.explain import find_gpu
from slurm_nvhc.errors import InputError
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
    print(f"released {uuid}: the next job may use it")
    return common.OK
