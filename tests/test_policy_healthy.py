"""Healthy boards under the packaged policy with every rule enforced: nothing is ever found.

Guards against rules that misread a healthy board: a mask that is not 0, a limit that is relative, a counter that a
generation does not have, ports that are not in use.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_nvhc.policy import compiled
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.scenario import load
from slurm_nvhc.scenario.run import run
from slurm_nvhc.sense.sim.inventory import PRESETS

RULES = compiled.resolve(compile_policy(None, "")).rules
# Switched off for good reasons: they are no guards, and gpu_temp is right only where boards give degrees.
ENFORCED = {name: {"mode": "enforce"} for name, rule in RULES.items() if rule.mode != "off"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_healthy_node_gives_no_finding(preset: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    jobs = {"job": 1} if PRESETS[preset].gpus else {"job": 1, "gpus": []}
    names = ["h1", "p1", "h2", "e1", "p2", "e2"]
    scenario = {
        "schema": 1,
        "name": f"a healthy {preset}",
        "node": {"preset": preset},
        "policy": {"rules": ENFORCED},
        "steps": [
            {"health_check": {"as": "h1"}},
            {"wait": "5m"},
            {"prolog": {**jobs, "as": "p1"}},
            {"wait": "20m"},
            {"health_check": {"as": "h2"}},
            {"wait": "20m"},
            {"epilog": {**jobs, "as": "e1"}},
            {"prolog": {**jobs, "job": 2, "as": "p2"}},
            {"wait": "10s"},
            {"epilog": {**jobs, "job": 2, "as": "e2"}},
        ],
        "expect": [{"after": name, "verdict": "ok", "action": "none", "monitor": []} for name in names],
    }
    report = run(load.parse(msgspec.yaml.encode(scenario).decode(), "scenario"), str(tmp_path))
    told = [f"{r.name}: {f.code} {f.verdict} {f.entity}: {f.message}" for r in report.runs for f in r.findings if f.verdict != "ok"]
    assert not told
    assert report.ok, [f"{c.where}: expected {c.wanted}, seen {c.seen}" for c in report.checks if not c.ok]


def test_every_rule_that_judges_is_enforced_here() -> None:
    assert len(ENFORCED) > 60
    assert {name for name in RULES if name not in ENFORCED} == {"gpu_temp", "memory_temp", "power_cap", "clocks_set"}
