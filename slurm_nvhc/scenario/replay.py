"""``nvhc replay FILE``: run a scenario and show what came of it."""

from __future__ import annotations

import json
import sys
from typing import List

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.scenario.run import EXIT_BAD_INPUT, EXIT_MONITOR, Report, run_file
from slurm_nvhc.scenario.seen import Seen

PLAIN_WIDTH = 160  # columns when the output is no terminal


def replay(path: str, json_output: bool = False) -> int:
    """Run the scenario in ``path`` and print the result. Returns the exit code: 0 ok, 1 expectation missed,

    2 the scenario is wrong (one line on standard error), 3 the replay itself failed.
    """
    try:
        report = run_file(path)
    except InputError as exc:
        return _sorry(exc, EXIT_BAD_INPUT)
    except MonitorError as exc:
        return _sorry(exc, EXIT_MONITOR)
    except OSError as exc:
        return _sorry(MonitorError(exc.filename or "replay", "", exc.strerror or str(exc)), EXIT_MONITOR)
    if json_output:
        print(json.dumps(report.to_json(), indent=2))
    else:
        show(report)
    return report.exit_code


def _sorry(problem: Exception, code: int) -> int:
    print(problem, file=sys.stderr)
    return code


def show(report: Report) -> None:
    """Print a report as tables; without colour when the output is no terminal."""
    terminal = sys.stdout.isatty()
    console = Console(no_color=not terminal, highlight=False, width=None if terminal else PLAIN_WIDTH, file=sys.stdout)
    title = f"{report.report}: {report.name}" if report.report else report.name
    runs = Table(title=escape(title), title_justify="left")
    for column in ("hook", "job", "exit", "verdict", "findings", "done", "node"):
        runs.add_column(column, overflow="fold")
    for run in report.runs:
        runs.add_row(*map(escape, _row(run)))
    console.print(runs)
    checks = Table(title="expectations", title_justify="left")
    for column in ("", "where", "expected", "seen"):
        checks.add_column(column, overflow="fold")
    for check in report.checks:
        mark = "[green]ok[/]" if check.ok else "[bold red]MISSED[/]"
        checks.add_row(mark, escape(check.where), escape(check.wanted), escape(check.seen))
    console.print(checks)
    missed = sum(not c.ok for c in report.checks)
    total = len(report.checks)
    console.print(f"{total} of {total} expectations hold" if not missed else f"{missed} of {total} expectations missed")


def _row(run: Seen) -> List[str]:
    findings = "\n".join([*(run.tell(f) for f in run.findings), *run.troubles])
    done = ", ".join([*filter(None, [run.tell_diag()]), *run.actions, *(f"{kind} FAILED" for kind in run.failed)])
    if run.hook == "task_prolog":
        done = "\n".join([f"CUDA_VISIBLE_DEVICES={run.task_env.get('CUDA_VISIBLE_DEVICES', '(not set)')}", *run.task_prints])
    node = f"{run.node.word}\n{run.node.reason}" if run.node.reason else run.node.word
    return [run.name, run.job, str(run.status), run.verdict or "-", findings or "-", done or "-", node]
