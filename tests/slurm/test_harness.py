"""The private Slurm itself, with hooks that are one line of shell: what later tests take for granted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import harness
import machine
import pytest
from harness import Cluster, SlurmTrouble


def hook(cluster: Cluster, name: str, body: str) -> str:
    path = cluster.root / "etc" / f"{name}.sh"
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_jobs_run_as_an_ordinary_user_and_nothing_is_left(start) -> None:
    cluster = start(Cluster())
    done = cluster.srun("--gres=gpu:2", "sh", "-c", "id -un; echo $CUDA_VISIBLE_DEVICES")
    assert done.stdout.split() == [harness.JOB_USER, "0,1"]
    job = cluster.sbatch("sleep 1000", "--gres=gpu:1")
    cluster.wait_job(job, "RUNNING")
    cluster.wait_until("the task to exist", lambda: len(list(cluster._steps_and_tasks())) >= 2)
    cluster.stop()
    assert not cluster.root.exists()
    assert not list(cluster._steps_and_tasks())
    cluster.root.mkdir()  # for the fixture's own stop


def test_four_nodes_two_clusters_side_by_side(start) -> None:
    four, one = start(Cluster(nodes=4, uts=True)), start(Cluster())
    assert sorted(four.srun("-N4", "hostname").stdout.split()) == ["n1", "n2", "n3", "n4"]
    assert one.srun("true").returncode == 0
    assert one.wait_node("idle").reason == ""


def test_healthy_hooks(start) -> None:
    cluster = Cluster()
    body = 'env >>"$(dirname "$0")/../log/$SLURM_SCRIPT_CONTEXT.env"'
    cluster.conf = f"PrologFlags=Alloc\nProlog={hook(cluster, 'p', body)}\nEpilog={hook(cluster, 'e', body)}"
    start(cluster)
    cluster.srun("--gres=gpu:2", "true")
    cluster.wait_quiet()
    seen = (cluster.root / "log" / "epilog_slurmd.env").read_text()
    assert "SLURM_JOB_GPUS=0,1\n" in seen
    assert "SLURMD_NODENAME=n1\n" in seen
    assert cluster.node().state == "idle"


def test_failing_prolog_drains_and_holds(start) -> None:
    cluster = Cluster()
    cluster.conf = f"PrologFlags=Alloc\nProlog={hook(cluster, 'p', 'exit 1')}"
    start(cluster)
    job = cluster.sbatch("true", "--gres=gpu:1")
    node = cluster.wait_node("drained")
    assert (node.reason, node.out) == ("Prolog error", True)
    assert cluster.wait_until("the job to be held", lambda: cluster.job(job).priority == 0)
    assert cluster.job(job).reason == "launch_failed_requeued_held"


@pytest.mark.constrain
def test_constrained_devices(start) -> None:
    cluster = start(Cluster(constrain=True))
    probe = f"(: <{cluster.root}/dev/nvidia$i) 2>&1 | grep -o -e 'not permitted' -e 'No such device'"
    script = f"for i in 0 1 2 3; do {probe}; done; echo $CUDA_VISIBLE_DEVICES"
    blocker = cluster.sbatch("sleep 1000", "--gres=gpu:1")
    cluster.wait_job(blocker, "RUNNING")
    done = cluster.srun("--gres=gpu:2", "sh", "-c", script)
    assert done.stdout.splitlines() == ["not permitted", "No such device", "No such device", "not permitted", "0,1"]


def test_request_counts(start) -> None:
    cluster = start(Cluster())
    cluster.reset_request_counts()
    assert "REQUEST_NODE_INFO" not in cluster.request_counts()
    cluster.nodes()
    assert cluster.request_counts()["REQUEST_NODE_INFO"] == 1


def test_slurmctld_can_be_stopped_and_started(start) -> None:
    cluster = start(Cluster())
    cluster.stop_slurmctld()
    assert "DOWN" in cluster.run("scontrol", "ping", check=False).stdout
    cluster.start_slurmctld()
    cluster.wait_node("idle")


def test_a_wait_in_vain_shows_the_logs(start) -> None:
    cluster = start(Cluster())
    with pytest.raises(SlurmTrouble, match=r"waited 0 s in vain for n1 to be drained(.|\n)*--- slurmctld.log"):
        cluster.wait_node("drained", seconds=0)


@pytest.mark.without_slurm
def test_a_machine_with_a_slurm_is_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.touch()
    monkeypatch.setattr(machine, "CONFIGURED", (str(conf),))
    assert "has a Slurm of its own" in machine.why_not()
    assert not machine.can_install()


@pytest.mark.without_slurm
def test_missing_packages_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CONFIGURED", ())
    monkeypatch.setattr(machine, "own_slurm", lambda: "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "NEEDED", ("slurmd-that-is-nowhere",))
    assert "apt-get install slurmctld slurmd" in machine.why_not()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine.why_not() == "a private Slurm needs root"


@pytest.mark.without_slurm
@pytest.mark.parametrize(("ci", "outcome"), [("true", "1 error"), ("", "1 skipped")])
def test_where_no_slurm_can_run_tests_skip_but_fail_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    (tmp_path / "pretend.py").write_text(
        f"import sys; sys.path.insert(0, {here!r})\nimport machine; machine.why_not = lambda: 'slurmd not found; apt-get install it'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pretend", "-p", "no:cacheprovider", "-rsE", f"{here}/test_harness.py::test_request_counts"],
        env={"PATH": machine.PATH, "PYTHONPATH": str(tmp_path), "CI": ci}, capture_output=True, text=True,
    )  # fmt: skip
    assert outcome in done.stdout
    assert "slurmd not found; apt-get install it" in done.stdout
