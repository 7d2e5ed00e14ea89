"""`nvhc doctor`: is this machine set up so that the hooks can do their work? Looks, changes nothing."""

from __future__ import annotations

import argparse
import os

from rich.console import Console
from rich.text import Text

from slurm_nvhc.cli import common
from slurm_nvhc.doctor.examine import examine, verdict
from slurm_nvhc.doctor.facts import Facts, Line
from slurm_nvhc.doctor.gather import Ask, gather
from slurm_nvhc.doctor.look.edges import Edges
from slurm_nvhc.doctor.mapping import Row, resolved, rows
from slurm_nvhc.model import finding as fd


def doctor(args: argparse.Namespace) -> int:
    where = common.site(args)
    ask = Ask(
        common.node(args), where.config, where.state, where.run, where.slurm_conf,
        os.path.abspath(args.libdir), os.path.abspath(args.kill_switch),
    )  # fmt: skip
    facts = gather(ask, Edges(euid=os.geteuid(), environment=os.environ))
    lines = examine(facts)
    if args.json:
        common.say_json(as_json(facts, lines))
    else:
        _print(common.console(), facts, lines)
    return common.exit_code(verdict(lines))


def as_json(facts: Facts, lines: tuple[Line, ...]) -> dict[str, object]:
    return {
        "schema": 1,
        "node": facts.node,
        "verdict": verdict(lines),
        "lines": [line._asdict() for line in lines],
        "mapping": {"exact": resolved(facts).exact, "rows": [row._asdict() for row in rows(facts)]},
    }


def _print(out: Console, facts: Facts, lines: tuple[Line, ...]) -> None:
    width = max(len(line.check) for line in lines)
    for line in lines:
        advice = f" -> {line.advice}" if line.advice else ""
        row = common.verdict_text(line.verdict)
        row.append(" " * (8 - len(row.plain)))
        out.print(Text.assemble(row, (f"{line.check:<{width}}  ", ""), (line.found, ""), (advice, "bold")))
    table = rows(facts)
    if table:
        title = f"\npositions in SLURM_JOB_GPUS ({'exact' if resolved(facts).exact else 'assumed'})"
        out.print(common.table(title, Row._fields, map(_cells, table)))
    counted = {v: sum(line.verdict == v for line in lines) for v in (fd.FAIL, fd.WARN, fd.UNKNOWN, fd.OK)}
    out.print(f"{facts.node}: " + ", ".join(f"{number} {name}" for name, number in counted.items() if number))


def _cells(row: Row) -> tuple[str, ...]:
    return tuple("-" if value in (None, "") else str(value) for value in row)
