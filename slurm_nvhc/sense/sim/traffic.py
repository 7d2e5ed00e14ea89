"""The simulated node's traffic command: what nvbandwidth or an NCCL test is on a real one.

    CUDA_VISIBLE_DEVICES=GPU-…,GPU-… python -m slurm_nvhc.sense.sim.traffic --world W --seconds 30

The GPUs that it sees move data among each other for so long, and planted faults in its way show themselves: in counters, or in the
exit status 1. Only the node's clock moves; --real takes the time in earnest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Optional, Sequence

from slurm_nvhc.errors import InputError, NvhcError
from slurm_nvhc.sense.sim import faults
from slurm_nvhc.sense.sim.state import NS
from slurm_nvhc.sense.sim.world import World


def main(argv: Optional[Sequence[str]] = None) -> int:
    args = _parser().parse_args(argv)
    try:
        if args.real:
            time.sleep(args.seconds)
        said = _move(args.world, os.environ.get("CUDA_VISIBLE_DEVICES", ""), args.seconds, os.environ.get("NVHC_STEP", ""))
    except NvhcError as exc:
        sys.stderr.write(f"traffic: {exc}\n")
        return 2
    except OSError as exc:
        sys.stderr.write(f"traffic: {args.world}: {exc.strerror}\n")
        return 2
    for line in said:
        sys.stderr.write(f"traffic: {line}\n")
    if not said:
        print(f"moved data for {args.seconds:g} s, all of it arrived")
    return 1 if said else 0


def _move(path: str, visible: str, seconds: float, step: str) -> list[str]:
    with World.edit(path) as world:
        index = {gpu.identity.uuid: number for number, gpu in enumerate(world.gpus)}
        group = []
        for uuid in filter(None, visible.split(",")):
            if uuid not in index:
                raise InputError("CUDA_VISIBLE_DEVICES", "", f"{uuid[:60]} is no GPU of this node")
            group.append(index[uuid])
        if not group:
            raise InputError("CUDA_VISIBLE_DEVICES", "", "names no GPU", "UUIDs, joined by commas")
        # What runs in one step runs at the same time: its time passes once.
        began_ns = world.step[1] if step and world.step[0] == step else world.wall_ns
        world.step = (step, began_ns)
        world.advance(max(0.0, (began_ns + seconds * NS - world.wall_ns) / NS))
        return faults.strike(world, group, seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="traffic", description="move data between simulated GPUs", allow_abbrev=False)
    parser.add_argument("--world", required=True, metavar="FILE", help="the simulated node")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long (%(default)g)")
    parser.add_argument("--real", action="store_true", help="take the time in earnest too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
