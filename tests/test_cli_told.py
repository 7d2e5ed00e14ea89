"""The site's programs are told what was done by hand once it is done: hooks do not wait for them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from site_ import Site

from slurm_nvhc.model.protective import OwnDrain


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A program that notes whether the node's lock is held while it runs."""
    program = tmp_path / "told"
    lock = tmp_path / "state" / "n1" / "act.lock"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\nif flock -n {lock} true; then echo free; else echo held; fi >>{tmp_path}/lock\n")
    program.chmod(0o755)
    hooks = {"on_exclude": str(program), "on_resume": str(program)}
    site = Site(tmp_path, policy={"site_hooks": hooks, "narrow": {"enabled": True}})
    site.slurm()
    site.hook("health_check")
    return site


def seen(site: Site) -> str:
    return (site.root / "lock").read_text()


def test_excluding_a_gpu(site: Site) -> None:
    site.nvhc("gpu", "exclude", "gpu3", "--why", "slow")
    assert seen(site) == "free\n"


def test_ending_a_drain(site: Site) -> None:
    with site.ledger() as ledger:
        ledger.set_own_drain(OwnDrain("nvhc: GPU-LOST gpu5", time.time_ns(), True))
    assert "is in service" in site.nvhc("undo", "--since", "1h", "--yes"), "somebody has resumed it already"
    assert seen(site) == "free\n"
