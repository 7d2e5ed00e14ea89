"""Expectations about what a job's user is told, and about the minute: each can be missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_nvhc.errors import InputError
from slurm_nvhc.scenario import load
from slurm_nvhc.scenario.run import run

STORY = """
schema: 1
name: replays at 08:10
steps:
  - health_check: {}
  - prolog: {job: 7}
  - wait: 10m
  - add: {g3.link11.replay: 21200}
  - wait: 20m
  - epilog: {job: 7}
expect:
"""


def test_each_word_of_the_expectation_is_checked(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    wanted = [
        "touched: hit",
        "touched: {verdict: hit, why: [gpu3, none was lost], when: 08:09-08:10Z, counters: replay +21200}",
        'finding: {gpu: g3, link: 11, when: "08:09-08:10Z (within 1 of 30"}',
        "touched: clean",
        "touched: none",
        "touched: {why: gpu4}",
        "touched: {when: 08:20Z}",
        "touched: {counters: [replay +21200, CRC]}",
        'finding: {gpu: g3, link: 11, when: ""}',
        "finding: {gpu: g3, link: 11, when: 08:20}",
    ]
    report = run(load.parse(STORY + "".join(f"  - {{after: epilog, {w}}}\n" for w in wanted), "scenario"), str(tmp_path))
    held = [all(c.ok for c in report.checks if c.where.startswith(f"expect[{i}]")) for i in range(len(wanted))]
    assert held == [True] * 3 + [False] * 7, [c for c in report.checks]
    assert report.to_json()["runs"][-1]["touched"]["verdict"] == "hit"


def test_a_scenario_writes_no_file_for_a_user(tmp_path: Path) -> None:
    """It may come from a stranger, and is replayed by root."""
    for number, policy in enumerate(("{user_report: {dir: /etc}}", "{partitions: {gpu: {user_report: {dir: /etc}}}}")):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = f"schema: 1\nname: x\npolicy: {policy}\nsteps:\n  - prolog: {{job: 1}}\nexpect: [{{exit: 0}}]\n"
        with pytest.raises(InputError, match="outside the replay"):
            run(load.parse(text, "scenario"), str(folder))
