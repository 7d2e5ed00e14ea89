"""hooks/slurmd.py: is an ancestor of this health check a slurmd that has just started?"""

from __future__ import annotations

import pytest

from slurm_nvhc.hooks import slurmd

UPTIME_S = 1000.0


def ancestors(monkeypatch: pytest.MonkeyPatch, *names: str, age_s: float = 1.0) -> None:
    """The parents of this process, nearest first, then init."""
    table = {100 + i: (name, 101 + i, UPTIME_S - age_s) for i, name in enumerate(names)}
    monkeypatch.setattr(slurmd.os, "getppid", lambda: 100)
    monkeypatch.setattr(slurmd, "_stat", table.get)
    monkeypatch.setattr(slurmd, "_uptime_s", lambda: UPTIME_S)


def test_the_chain_as_the_launcher_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ancestors(monkeypatch, "timeout", "nvhc-health-che", "slurmd")
    assert slurmd.is_registering()
    ancestors(monkeypatch, "timeout", "nvhc-health-che", "slurmd", age_s=16.0)
    assert not slurmd.is_registering()


def test_a_script_of_the_site_around_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    ancestors(monkeypatch, "timeout", "nvhc-health-che", "site-checks.sh", "sh", "slurmd")
    assert slurmd.is_registering()


def test_no_slurmd_above(monkeypatch: pytest.MonkeyPatch) -> None:
    ancestors(monkeypatch, "timeout", "sh", "sshd")
    assert not slurmd.is_registering()
    monkeypatch.undo()
    assert not slurmd.is_registering()
