"""docs/scenarios.md: every example holds, and every key of the format is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from slurm_nvhc.scenario import format as fm
from slurm_nvhc.scenario import load, setting, steps
from slurm_nvhc.scenario.run import run
from slurm_nvhc.scenario.words import Strict
from slurm_nvhc.sense.sim import diag
from slurm_nvhc.sense.sim.inventory import PRESETS
from slurm_nvhc.sense.sim.world import BEHAVIOURS, LIES, SIGNALS, THROTTLES

TEXT = (Path(__file__).parent.parent / "docs" / "scenarios.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[re.search(r"name: (.*)", b).group(1)[:40] for b in BLOCKS])  # type: ignore[union-attr]
def test_example(block: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    report = run(load.parse(block, "example"), str(tmp_path))
    assert report.ok, "\n".join(f"{c.where}: expected {c.wanted}, seen {c.seen}" for c in report.checks if not c.ok)


def test_every_key_is_described() -> None:
    named = {**vars(setting), **vars(steps), **vars(fm)}.values()
    structs = [s for s in named if isinstance(s, type) and issubclass(s, Strict) and s is not Strict]
    assert len(structs) > 20
    for struct in structs:
        for name in struct.__struct_encode_fields__:
            assert re.search(rf"\b{re.escape(name)}\b", TEXT), f"{struct.__name__}.{name}"


def test_every_word_is_described() -> None:
    words = [*PRESETS, *BEHAVIOURS, *LIES, *SIGNALS, *THROTTLES]
    for kind in (setting.DiagBehaviour, setting.ScontrolBehaviour, fm.ActionWord, fm.VerdictWord, setting.EngineBehaviour):
        words += get_args(kind)
    words += steps.Happening.__struct_fields__
    for word in words:
        assert re.search(rf"\b{re.escape(word)}\b", TEXT), word


def test_the_format_and_the_simulated_node_know_the_same_engines() -> None:
    assert set(get_args(setting.EngineBehaviour)) == set(BEHAVIOURS)
    assert get_args(setting.DiagBehaviour) == diag.BEHAVIOURS
