"""`nvhc hooks install|remove`."""

from __future__ import annotations

import argparse
import os
import sys

from slurm_nvhc.cli import common
from slurm_nvhc.hooks import install as setup
from slurm_nvhc.policy import show as policy_show
from slurm_nvhc.policy import source
from slurm_nvhc.sense.memory import remove_watch


def options(args: argparse.Namespace) -> setup.Options:
    where, name = common.site(args), common.node(args)
    policy = source.load(where.config, f"{where.state}/{name}", name, "", keep=False).policy
    return setup.Options(
        libdir=os.path.abspath(args.libdir),
        config=where.config,
        state=where.state,
        run=where.run,
        slurm_conf=where.slurm_conf or os.environ.get("SLURM_CONF", ""),
        kill_switch=os.path.abspath(args.kill_switch),
        budgets=policy_show.longest_budgets(where.config, name) or policy.budgets,
        bin_dir=policy.slurm.bin_dir,
        narrowing=policy_show.narrows_anywhere(where.config),
        dry_run=args.dry_run,
        purge=getattr(args, "purge", False),
    )


def install(args: argparse.Namespace) -> int:
    return _tell(args, setup.install(options(args)))


def remove(args: argparse.Namespace) -> int:
    report = setup.remove(options(args))
    if not args.dry_run:
        report = report._replace(done=(*report.done, *_remove_watch(args)))
    return _tell(args, report)


def _remove_watch(args: argparse.Namespace) -> tuple[str, ...]:
    """The engine goes on sampling for us until it is told to stop."""
    where, name = common.site(args), common.node(args)
    engine = source.load(where.config, f"{where.state}/{name}", name, "", keep=False).policy.engine
    answer = remove_watch(name, engine, engine.timeout_s)
    if answer.known:
        return ("the engine samples nothing for slurm-nvhc any more",)
    return ("the engine could not be asked to stop sampling; it forgets at its next restart",)


def _tell(args: argparse.Namespace, report: setup.Report) -> int:
    """Warnings are no failure: what was asked for has been done, and `install && …` must go on."""
    if args.json:
        lines = [line._asdict() for line in report.lines]
        common.say_json({"schema": 1, "done": report.done, "before": report.before, "lines": lines, "warnings": report.warnings})
        return common.OK
    if args.dry_run:
        print("dry run: nothing is changed; it would say:")
    for line in report.done:
        print(line)
    if report.lines:
        *sentences, command = report.before
        print("", *sentences, "", f"  {command}", "", "For slurm.conf:", "", sep="\n")
        for entry in report.lines:
            print(f"  # {entry.why}{' (is there already)' if entry.present else ''}\n  {entry.text}")
        print()
    sys.stdout.flush()
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return common.OK
