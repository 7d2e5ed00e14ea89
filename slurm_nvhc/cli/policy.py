"""`nvhc policy check|show`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Iterable

import yaml

from slurm_nvhc.cli import common
from slurm_nvhc.hooks import install
from slurm_nvhc.policy import show as policy_show
from slurm_nvhc.policy import source


def check(args: argparse.Namespace) -> int:
    """Is the file right? One line per problem; exit 2 when a hook would refuse it.

    A launcher that was written for smaller budgets is a warning: the file itself is right.
    """
    path = os.path.abspath(args.file or args.config)
    result = policy_show.check(path)
    budgets = policy_show.longest_budgets(path, common.node(args)) if result.ok else None
    warnings = install.too_short(os.path.abspath(args.libdir), budgets) if budgets is not None else ()
    if args.json:
        common.say_json({"schema": 1, "ok": result.ok, "lines": result.lines, "hash": result.hash, "warnings": warnings})
    else:
        print(*result.lines, sep="\n", file=sys.stdout if result.ok else sys.stderr)
        _warn(warnings)
    return common.OK if result.ok else common.BAD_INPUT


def show(args: argparse.Namespace) -> int:
    """The policy as it applies to this node (and a partition, and a GPU model), every default spelt out.

    It is the one in force: beside a file that can not be used the last good one, with a warning.
    """
    if args.schema:
        common.say_json(policy_show.json_schema())
        return common.OK
    where, name = common.site(args), common.node(args)
    loaded = source.load(where.config, f"{where.state}/{name}", name, args.partition, keep=False)
    policy = loaded.policy.for_model(args.model) if args.model else loaded.policy
    shown = policy_show.to_json(policy)
    if args.json:
        common.say_json({"schema": 1, **shown})
    else:
        print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120), end="")
    _warn(trouble.detail for trouble in loaded.troubles)
    return common.OK


def _warn(sentences: Iterable[str]) -> None:
    sys.stdout.flush()
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr)
