"""What the hooks cost: wall time of prolog, epilog and health check as slurmd sees it, from the launcher's start to its end.

    ./run bench hooks [--json FILE] [--times N]

Scenarios are replayed on the simulated node (8 x H100, 18 links each), so what runs is
what `nvhc hooks install` installs; only hardware, driver and scontrol are played.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence

import table
from table import Row

from slurm_nvhc.scenario import load
from slurm_nvhc.scenario.run import run
from slurm_nvhc.scenario.seen import Seen

HEALTHY = """\
schema: 1
name: healthy jobs
steps:
{steps}
expect:
  - {{after: epilog, verdict: ok, action: none}}
"""
HEALTHY_STEPS = """\
  - prolog: {{job: {job}}}
  - wait: 41m
  - epilog: {{job: {job}}}
  - wait: 5m
  - health_check: {{}}
"""
# Every job's epilog drains for one error on a link; a person resumes the node before the next.
FAULT = """\
schema: 1
name: a fault in every job
policy:
  defaults: false
  rules:
    replay: {{finding: NVL-REPLAY, field: nvlink_replay, fail: {{increase_above: 0}}, action: drain}}
steps:
{steps}
expect:
  - {{after: epilog, verdict: fail, action: drain}}
"""
FAULT_STEPS = """\
  - prolog: {{job: {job}}}
  - storm: {{link: g3.link11, counter: replay, amount: 20, over: 41m}}
  - epilog: {{job: {job}}}
  - admin_resume: {{}}
  - wait: 5m
"""


def play(root: str, form: str, steps: str, times: int) -> tuple[Seen, ...]:
    os.mkdir(root, 0o755)
    text = form.format(steps="".join(steps.format(job=1000 + n) for n in range(times)))
    report = run(load.parse(text, "bench"), root)
    if not report.ok:
        missed = [f"{c.where}: {c.wanted}, seen {c.seen}" for c in report.checks if not c.ok]
        table.stop(f"what was measured is not what should have been: {'; '.join(missed)}")
    return report.runs


def by_hook(runs: Sequence[Seen]) -> dict[str, list[float]]:
    """hook -> seconds of each run but the first, which alone compiles bytecode and makes the ledger."""
    out: dict[str, list[float]] = defaultdict(list)
    for seen in runs:
        out[seen.hook].append(seen.seconds)
    return {hook: seconds[1:] for hook, seconds in out.items()}


def main() -> int:
    given = table.arguments("wall time of the hooks, as slurmd sees it")
    with tempfile.TemporaryDirectory(prefix="nvhc-bench-") as folder:
        os.chmod(folder, 0o755)
        healthy = by_hook(play(f"{folder}/healthy", HEALTHY, HEALTHY_STEPS, given.times + 1))
        ill = play(f"{folder}/fault", FAULT, FAULT_STEPS, given.times + 1)
        scontrol = [f"{folder}/fault/bin/scontrol", "show", "node", "n1"]
        one = [table.timed(lambda: subprocess.run(scontrol, capture_output=True, check=True)) for _ in range(given.times)]
    start = [table.timed(lambda: subprocess.run([sys.executable, "-I", "-c", ""], check=True)) for _ in range(given.times)]
    calls = len(ill[-1].calls)
    rows: list[Row] = [table.of_times(f"{hook.replace('_', ' ')}, healthy", seconds) for hook, seconds in healthy.items()]
    rows.append(table.of_times("epilog, fault: drained", by_hook(ill)["epilog"], f"of it {calls} calls of the played scontrol"))
    rows.append(table.of_times("one call of the played scontrol", one, "a Python script, where Slurm's is a program"))
    rows.append(table.of_times("for comparison: python -I -c ''", start))
    return table.show(rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
