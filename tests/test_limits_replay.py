"""Limits through the real launchers and hooks: what is asked of Slurm, what is told, and what the job comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_nvhc.scenario import load, run

HEAD = """\
schema: 1
name: limits
node: {readings: {g2.346: 1}}
"""
CROWDED = """\
slurm:
  partition_nodes: 40
  others:
    - {node: n2, reason: "nvhc: NVL-STORM gpu1", ago: 2h}
    - {node: n3, reason: "nvhc: NVL-STORM gpu7", ago: 5m}
policy: {limits: {soft: 2, hard: 2}}
"""

SCENARIOS = {
    "a job that would start on the fault is let through": CROWDED
    + """\
steps:
  - prolog: {job: 7, gpus: [2]}
  - prolog: {job: 8, gpus: [2]}
expect:
  - {after: "prolog#1", exit: 0, action: alert, no_action: [drain, fail_job], intents: 1, monitor: [], node: {state: up}}
  - {after: "prolog#2", exit: 0, not_called: [scontrol, sinfo], intents: 1, node: {state: up}}
""",
    "drains that are older than a day do not count": CROWDED.replace("ago: 2h", "ago: 25h")
    + """\
steps: [health_check: {}]
expect: [{action: drain, no_action: alert, intents: 0, node: {state: drained}}]
""",
    "the limit for faults beyond doubt is another one": CROWDED.replace("hard: 2", "hard: 3")
    + """\
steps: [health_check: {}]
expect: [{action: drain, intents: 0, node: {state: drained}}]
""",
    "sinfo fails: nothing is drained, and it is asked again later": """\
slurm: {sinfo: fails}
steps:
  - health_check: {as: fails}
  - health_check: {as: 2nd}
  - health_check: {as: 3rd}
  - health_check: {as: 4th}
  - health_check: {as: rests}
  - sinfo: ok
  - wait: 10m
  - health_check: {as: later}
expect:
  - {after: fails, no_action: drain, intents: 1, monitor: MON-SLURM, node: {state: idle}}
  - {after: 2nd, called: [scontrol, sinfo], intents: 1}
  - {after: rests, not_called: [scontrol, sinfo], intents: 1}
  - {after: later, action: drain, intents: 0, node: {state: drained}}
""",
    "sinfo is not there: drained uncounted, which is no trouble of the hook": """\
slurm: {sinfo: missing}
steps: [health_check: {}]
expect: [{action: drain, intents: 0, monitor: [], not_called: sinfo, node: {state: drained}}]
""",
    "slurmctld is down: asked by the next hooks, then after a while": """\
slurm: {scontrol: down}
steps:
  - health_check: {as: first}
  - health_check: {as: second}
  - health_check: {as: third}
  - health_check: {as: fourth}
  - health_check: {as: rests}
  - wait: 10m
  - health_check: {as: again}
expect:
  - {after: first, intents: 1, called: scontrol show}
  - {after: second, intents: 1, called: scontrol show}
  - {after: rests, intents: 1, not_called: scontrol}
  - {after: again, intents: 1, called: scontrol show}
""",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_replay(name: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    report = run.run(load.parse(HEAD + SCENARIOS[name], name), str(tmp_path))
    assert report.ok, [f"{c.where}: expected {c.wanted}, seen {c.seen}" for c in report.checks if not c.ok]
