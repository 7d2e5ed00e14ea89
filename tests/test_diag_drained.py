"""A node that our own drain keeps empty: the health check tests it, and the drain ends only after the test has passed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest
from site_ import Site
from test_cli_undo import RULES, Nodes

from slurm_nvhc.model import diag, tested
from slurm_nvhc.model.diag import Report
from slurm_nvhc.model.protective import Exclusion

RESUME = {"resume": "own", "resume_passes": 2, "resume_after": "0s", "resume_diagnostic": "memory"}
OURS = "ClusterName=test\nProlog=/usr/libexec/nvhc/nvhc-prolog.sh\nEpilog=/usr/libexec/nvhc/nvhc-epilog.sh\n"


def drained(tmp_path: Path, drain: dict[str, Any] = RESUME, jobs: str = "", **diagnostics: Any) -> Nodes:
    """n1, drained by us for a row remap of gpu6 that is gone again; memory tests are known to take 10 s here."""
    site = Site(tmp_path, policy={**RULES, "drain": drain, "diagnostics": diagnostics})
    site.slurm_conf.write_text(OURS)
    nodes = Nodes(site)
    squeue(nodes, jobs)
    site.hook("health_check")
    with site.edit() as world:
        world.set("g6.395", 1)
        world.diag_plan(seconds=10)
    site.hook("health_check")
    assert nodes.state() == "IDLE+DRAIN"
    with site.edit() as world:
        world.set("g6.395", 0)
    with site.ledger() as ledger:
        own = ledger.own_drain()
        assert own is not None
        row = tested.Tested(1, ("memory",), "pass", 10.0, "before", {"memory": own.set_ns}, took={"memory": 10.0})
        for uuid in uuids(nodes):
            ledger.put(f"diag:{uuid}", tested.dumps(row))
    return nodes


def squeue(nodes: Nodes, jobs: str) -> None:
    path = nodes.site.root / "squeue"
    path.write_text(f"#!/bin/sh\necho called >>{nodes.site.root}/squeue.calls\nprintf '{jobs}'\n")
    path.chmod(0o755)


def uuids(nodes: Nodes) -> list[str]:
    with nodes.site.edit() as world:
        return [gpu.identity.uuid for gpu in world.gpus]


def look(nodes: Nodes) -> Optional[Report]:
    """A health check, and what its diagnostic said."""
    done = nodes.site.hook("health_check")
    assert done.returncode == 0
    last = nodes.site.last("health_check")
    raw = last.outcome.get("diag")
    return None if raw is None else diag.from_json(raw)


def why(nodes: Nodes) -> str:
    return " ".join(s["why"] for s in nodes.site.last("health_check").steps if s["kind"] == "note")


def test_it_is_tested_once_and_then_put_back(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained="memory")
    found = look(nodes)
    assert found is not None
    assert (found.outcome, found.tests, list(found.uuids)) == (diag.DONE, ("memory",), uuids(nodes))
    assert nodes.state() == "IDLE+DRAIN"
    assert "1 of 2 health checks" in why(nodes), "the test that passed is a pass like others"
    assert look(nodes) is None, "once per drain"
    assert nodes.state() == "IDLE"


def test_one_that_fails_keeps_the_node_out(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained="memory", drain={**RESUME, "resume_diagnostic": "none"})
    with nodes.site.edit() as world:
        world.diag_result("memory", "fail", gpu="g3", error=58)
    found = look(nodes)
    assert found is not None
    for _ in range(4):
        assert look(nodes) is None
        assert nodes.state() == "IDLE+DRAIN"
    assert "a diagnostic has failed, and not passed after that, on gpu3" in why(nodes)
    assert "a diagnostic has failed, and not passed after that, on gpu3" in nodes.site.nvhc("status", code=None)


def test_without_the_test_it_stays_out_and_says_what_to_do(tmp_path: Path) -> None:
    nodes = drained(tmp_path)
    for _ in range(3):
        assert look(nodes) is None
    assert nodes.state() == "IDLE+DRAIN"
    assert "diagnostic memory must have passed on every GPU since, and it has not on gpu0, gpu1" in why(nodes)
    assert "run `nvhc diag --tests memory` on the node" in why(nodes)


def test_an_administrator_s_test_counts(tmp_path: Path) -> None:
    nodes = drained(tmp_path)
    look(nodes)
    look(nodes)
    assert nodes.state() == "IDLE+DRAIN"
    nodes.site.nvhc("diag", "--tests", "memory", "--gpus", "gpu0,gpu1,gpu2")
    look(nodes)
    assert "it has not on gpu3, gpu4" in why(nodes), "each GPU"
    nodes.site.nvhc("diag", "--tests", "memory")
    look(nodes)
    assert nodes.state() == "IDLE"


@pytest.mark.parametrize("jobs", ["77|1000|RUNNING\\n", "77|1000|COMPLETING\\n"])
def test_a_node_with_a_job_is_not_tested(tmp_path: Path, jobs: str) -> None:
    nodes = drained(tmp_path, drained="memory", jobs=jobs)
    path = nodes.site.root / "scontrol"
    shows = '[ "$4" = 77 ] && { printf "JobId=77 JobName=x\\n   JobState=RUNNING\\n"; exit 0; }'
    path.write_text(path.read_text().replace('case "$1" in', f'{shows}\ncase "$1" in', 1))
    assert look(nodes) is None
    squeue(nodes, "")
    assert look(nodes) is not None, "once it is empty"


def test_a_drain_that_is_not_ours_any_more_is_let_alone(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained="memory")
    nodes.add("n1", "IDLE+DRAIN", "ADMIN: riser", "ada@9")
    assert look(nodes) is None


def test_a_node_that_somebody_resumed_is_let_alone(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained="memory")
    nodes.add("n1", "IDLE")
    assert look(nodes) is None


def test_when_slurm_does_not_answer_nothing_is_loaded(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained="memory")
    (nodes.site.root / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert look(nodes) is None
    squeue(nodes, "")
    assert look(nodes) is not None


def test_what_does_not_fit_is_said_once_per_drain_and_asks_slurm_nothing(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained=2)
    found = look(nodes)
    assert found is not None
    assert found.outcome == diag.NOT_STARTED
    assert "level 2 usually takes 300 s" in found.why
    assert look(nodes) is None
    assert not (nodes.site.root / "squeue.calls").exists()


def test_a_busy_gpu_is_left_alone_and_tried_again(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained="memory")
    with nodes.site.edit() as world:
        world.set("*.gpu_processes", 1)
    found = look(nodes)
    assert found is not None
    assert found.outcome == diag.NOT_STARTED
    with nodes.site.edit() as world:
        world.set("*.gpu_processes", 0)
    found = look(nodes)
    assert found is not None
    assert found.outcome == diag.DONE


def test_without_a_drain_of_ours_slurm_is_not_asked(tmp_path: Path) -> None:
    site = Site(tmp_path, policy={**RULES, "diagnostics": {"drained": 1}})
    site.hook("health_check")
    site.hook("health_check")
    assert site.calls() == []


def test_its_result_is_kept_for_each_gpu(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drained="memory")
    look(nodes)
    with nodes.site.ledger() as ledger:
        kept = [json.loads(ledger.get(f"diag:{uuid}")) for uuid in uuids(nodes)]
    assert len(kept) == 8
    for row in kept:
        assert (row["status"], row["seconds"], row["run"], row["tests"]) == ("pass", 10.0, "health check", ["memory"])


# --- a drain for what a diagnostic found


def convicted(tmp_path: Path, drain: dict[str, Any], **rule: Any) -> Nodes:
    """n1, drained by us for a memory test that failed on gpu3 after a job of all its GPUs; the readings are fine."""
    rules = {"diag_isolate": {"mode": "off"}, "found": {"fail": {"diag": "fail", "test": "hardware"}, "action": "drain", **TEXTS, **rule}}
    site = Site(tmp_path, policy={"rules": rules, "drain": drain, "diagnostics": {"epilog": "memory", "epilog_when": "always"}})
    site.slurm_conf.write_text(OURS)
    nodes = Nodes(site)
    squeue(nodes, "")
    site.hook("health_check")
    with site.edit() as world:
        world.diag_plan(seconds=10)
        world.diag_result("memory", "fail", gpu="g3", error=58)
    with site.ledger() as ledger:
        for uuid in uuids(nodes):
            ledger.put(f"diag:{uuid}", tested.dumps(tested.Tested(1, ("memory",), "pass", 10.0, "before", took={"memory": 10.0})))
    site.hook("epilog", 7, "0,1,2,3,4,5,6,7")
    assert nodes.state() == "IDLE+DRAIN"
    with site.edit() as world:
        world.diag_result("memory", "pass", gpu="g3")
    return nodes


TEXTS = {"mode": "enforce", "unit": "results of tests", "source": "us", "why": "so"}


@pytest.mark.parametrize("rule", [{"finding": "DIAG-FAIL"}, {"finding": "MEM-REMAP-FAILED"}])
@pytest.mark.parametrize("asked", ["none", "memory"])
def test_only_a_test_ends_it(tmp_path: Path, rule: dict[str, str], asked: str) -> None:
    """Under a code that rules over readings have as well, it is not the readings that end it."""
    nodes = convicted(tmp_path, {**RESUME, "resume_diagnostic": asked}, **rule)
    for _ in range(4):
        look(nodes)
        assert nodes.state() == "IDLE+DRAIN"
    if asked == "none" and rule["finding"] == "DIAG-FAIL":
        assert "the policy asks for none before a resume" in why(nodes)
    else:
        assert "a diagnostic has failed, and not passed after that, on gpu3" in why(nodes)
    nodes.site.nvhc("diag", "--tests", "memory")
    for _ in range(4):
        look(nodes)
    ends = asked == "memory" or rule["finding"] != "DIAG-FAIL"
    assert nodes.state() == ("IDLE" if ends else "IDLE+DRAIN")


def test_an_excluded_gpu_that_failed_hinders_nobody(tmp_path: Path) -> None:
    nodes = drained(tmp_path, drain={**RESUME, "resume_diagnostic": "none"})
    with nodes.site.edit() as world:
        bad = world.gpu("g3").identity.uuid
    with nodes.site.ledger() as ledger:
        row = tested.Tested(1, ("memory",), "fail", 10.0, "before", failed={"memory": 1})
        ledger.put(f"diag:{bad}", tested.dumps(row))
    for _ in range(3):
        look(nodes)
        assert nodes.state() == "IDLE+DRAIN", "it failed before the drain, and never passed"
    with nodes.site.ledger() as ledger:
        ledger.exclude(Exclusion(bad, "ADMIN", "memory test", "ada", 1))
    for _ in range(3):
        look(nodes)
    assert nodes.state() == "IDLE"
