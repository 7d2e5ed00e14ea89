"""Shared by all tests: nothing of the machine's own settings reaches them."""

from __future__ import annotations

import os

import pytest

_FOREIGN = ("SLURM_", "SLURMD_", "CUDA_", "NVHC_")


@pytest.fixture(autouse=True)
def _no_foreign_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer may run the tests inside a Slurm job: its variables must not look like the test's."""
    for name in [n for n in os.environ if n.startswith(_FOREIGN)]:
        monkeypatch.delenv(name)
