"""The long run of quarantine: what it counts decides how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.syspath_prepend(str(BENCH.parent / "tests" / "slurm"))
    for name in ("quarantine", "table", "quarantine_load", "site_nvhc", "harness", "machine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import quarantine

    return quarantine


def load(**changes: Any) -> SimpleNamespace:
    facts: dict[str, Any] = {"given": [], "times": [1.0, 2.0], "transitions": [1, 2], "out": False, **changes}
    return SimpleNamespace(
        seconds_to_hold=lambda: facts["times"],
        given_out=lambda: facts["given"],
        starts=lambda: 7,
        transitions=facts["transitions"],
        site=SimpleNamespace(cluster=SimpleNamespace(node=lambda: SimpleNamespace(out=facts["out"]))),
    )


def over(bench: ModuleType, load: SimpleNamespace) -> list[str]:
    return [row.what for row in bench.rows(load, 10.0) if bench.table.over(row)]


def test_all_well(bench: ModuleType) -> None:
    assert over(bench, load()) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"given": ["job 7 got GPU 3"]}, "given out meanwhile"),
        ({"times": [1.0]}, "not held"),
        ({"times": []}, "not held"),
        ({"out": True}, "node drained"),
    ],
)
def test_what_must_not_be_fails_the_run(bench: ModuleType, changes: dict[str, Any], what: str) -> None:
    assert over(bench, load(**changes)) == [what]


@pytest.mark.parametrize("words", [("--starts", "0"), ("--starts", "many"), ("--transitions", "-1"), ("--what",)])
def test_wrong_arguments_are_told(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, str(BENCH / "quarantine.py"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
