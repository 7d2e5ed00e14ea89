"""`nvhc policy check|show`."""

from __future__ import annotations

import argparse
import os
import sys

import yaml

from slurm_nvhc.cli import common
from slurm_nvhc.policy import show as policy_show


def check(args: argparse.Namespace) -> int:
    """Is the file right? One line per problem; exit 2 when a hook would refuse it."""
    result = policy_show.check(os.path.abspath(args.file or args.config))
    if args.json:
        common.say_json({"schema": 1, "ok": result.ok, "lines": result.lines, "hash": result.hash})
    else:
        print(*result.lines, sep="\n", file=sys.stdout if result.ok else sys.stderr)
    return common.OK if result.ok else common.BAD_INPUT


def show(args: argparse.Namespace) -> int:
    """The policy as it applies to this node (and a partition, and a GPU model), every default spelt out."""
    if args.schema:
        common.say_json(policy_show.json_schema())
        return common.OK
    path = os.path.abspath(args.config)
    effective = policy_show.effective(path if os.path.exists(path) else "", common.node(args), args.partition, args.model)
    if args.json:
        common.say_json({"schema": 1, **effective})
    else:
        print(yaml.safe_dump(effective, sort_keys=False, allow_unicode=True, width=120), end="")
    return common.OK
