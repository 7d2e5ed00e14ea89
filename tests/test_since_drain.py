"""What has happened since our own drain, as the hooks count it: clean looks, jobs that ended, hooks of somebody else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from site_ import Site
from test_cli_undo import RULES, Nodes

from slurm_nvhc.model.protective import Pause
from slurm_nvhc.since_drain import OUR_HOOKS
from slurm_nvhc.slurm.conf import only_hooks

HEALING = {**RULES, "drain": {"resume": "own", "resume_passes": 2, "resume_after": "0s"}}
OURS = "ClusterName=test\nProlog=/usr/libexec/nvhc/nvhc-prolog.sh\nEpilog=/usr/libexec/nvhc/nvhc-epilog.sh\n"


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """n1 is drained by us for a row remap of gpu6, found by a health check while no job was there."""
    site = Site(tmp_path, policy=HEALING)
    site.slurm_conf.write_text(OURS)
    nodes = Nodes(site)
    site.hook("health_check")
    fault(nodes, 1)
    site.hook("health_check")
    assert nodes.state() == "IDLE+DRAIN"
    return nodes


def fault(nodes: Nodes, value: int) -> None:
    with nodes.site.edit() as world:
        world.set("g6.395", value)


def looks(nodes: Nodes, times: int = 1) -> str:
    for _ in range(times):
        nodes.site.hook("health_check")
    return nodes.state()


def why(nodes: Nodes) -> str:
    return " ".join(s["why"] for s in nodes.site.last("health_check").steps if s["kind"] == "note")


def test_a_row_of_clean_looks_ends_it(nodes: Nodes) -> None:
    assert looks(nodes, 3) == "IDLE+DRAIN", "the fault is there"
    fault(nodes, 0)
    assert looks(nodes) == "IDLE+DRAIN"
    assert "1 of 2 health checks" in why(nodes)
    assert "not ended yet: 1 of 2" in nodes.site.nvhc("status", code=None)
    fault(nodes, 1)
    looks(nodes)
    fault(nodes, 0)
    assert looks(nodes) == "IDLE+DRAIN", "in a row"
    assert looks(nodes) == "IDLE"
    with nodes.site.ledger() as ledger:
        kept = ledger.protective()
    assert (kept.own_drain, kept.intents, [s.kind for s in kept.strikes if s.kind == "resume"]) == (None, (), ["resume"])


def test_looks_before_the_drain_and_of_another_drain_do_not_count(nodes: Nodes) -> None:
    fault(nodes, 0)
    looks(nodes)
    with nodes.site.ledger() as ledger:
        own = ledger.own_drain()
        ledger.set_own_drain(own._replace(keys=(*own.keys, f"{own.keys[0]} again")))
    assert looks(nodes) == "IDLE+DRAIN"


def test_looks_in_a_pause_do_not_count(nodes: Nodes) -> None:
    fault(nodes, 0)
    looks(nodes)
    now_ns = time.time_ns()
    with nodes.site.ledger() as ledger:
        ledger.set_pause(Pause(now_ns + 10**13, "driver", "ada", now_ns))
    assert looks(nodes, 3) == "IDLE+DRAIN"
    with nodes.site.ledger() as ledger:
        ledger.set_pause(None)
    assert looks(nodes) == "IDLE+DRAIN", "the row begins anew"
    assert looks(nodes) == "IDLE"


def test_a_gpu_that_is_gone_has_not_passed(nodes: Nodes) -> None:
    with nodes.site.edit() as world:
        world.set("g6.395", 0)
        world.lose("g6")
    assert looks(nodes, 4) == "IDLE+DRAIN"


@pytest.mark.parametrize(("conf", "state"), [(OURS, "IDLE"), (f"{OURS}Epilog=/etc/slurm/theirs.sh\n", "IDLE+DRAIN")])
def test_a_job_that_ended_since(nodes: Nodes, conf: str, state: str) -> None:
    nodes.site.slurm_conf.write_text(conf)
    fault(nodes, 0)
    nodes.site.hook("epilog", 8812)
    looks(nodes, 3)
    assert nodes.state() == state
    assert state == "IDLE" or "leaves no trace" in why(nodes)


def test_whose_hooks_run(tmp_path: Path) -> None:
    conf, folder = tmp_path / "slurm.conf", tmp_path / "epilog.d"
    folder.mkdir()

    def alone(text: str) -> bool | None:
        conf.write_text(text)
        return only_hooks(str(conf), OUR_HOOKS)

    assert alone(OURS) is True
    assert alone("ClusterName=x\n") is True, "no hooks at all"
    assert alone("Prolog=/opt/theirs.sh\n") is False
    assert alone(f"{OURS}EPILOG = /opt/theirs.sh\n{OURS}") is False, "24.11 runs them all"
    (folder / "nvhc-epilog.sh").touch()
    assert alone(f"Epilog={folder}/*.sh\n") is True
    (folder / "zz.sh").touch()
    assert alone(f"Epilog={folder}/*.sh\n") is False
    assert alone("Epilog=/nowhere/*\n") is None
    (tmp_path / "more.conf").write_text("Epilog=/opt/theirs.sh\n")
    assert alone("include more.conf\n") is False
    assert alone("include none.conf\n") is None
    assert only_hooks(str(tmp_path / "absent"), OUR_HOOKS) is None
