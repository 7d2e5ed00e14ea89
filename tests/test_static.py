"""Lint and types are tests like any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("command", [["ruff", "check", "."], ["mypy"]], ids=["ruff", "mypy"])
def test_clean(command: list[str]) -> None:
    """`mypy` takes strictness and packages from pyproject.toml."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_stay_small() -> None:
    """A module is one idea and fits in a sitting: about 400 lines, and never more than 500."""
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (ROOT / "slurm_nvhc").rglob("*.py")}
    assert {name: size for name, size in sizes.items() if size > 500} == {}
