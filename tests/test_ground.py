"""ground.py: where an active test may run, and on which GPUs. A played Slurm, the simulated node."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from site_ import Site

from slurm_nvhc import ground
from slurm_nvhc.context import Context, prepare
from slurm_nvhc.context import Site as Places
from slurm_nvhc.ground import ALLOCATION, DRAINED, NONE, Ground
from slurm_nvhc.judge import HEALTH_CHECK
from slurm_nvhc.observation import read_now


class Node:
    """A simulated node whose Slurm is three scripts. ``state``: as `scontrol show node` says it."""

    def __init__(self, root: Path, state: str = "IDLE") -> None:
        self.site = Site(root)
        self.root = root
        self.jobs = root / "jobs"
        self.jobs.mkdir()
        (self.jobs / "list").touch()
        self.state(state)

    def program(self, name: str, script: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def state(self, state: str) -> None:
        gone = "{ echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }"
        self.program(
            "squeue",
            f"""case "$3" in -j) grep "^$4|" {self.jobs}/list || {gone};; *) cat {self.jobs}/list;; esac""",
        )
        self.program(
            "scontrol",
            f"""case "$*" in
  "-d show job "*) cat {self.jobs}/$4;;
  "show node"*) printf 'NodeName=n1\\n   State={state} ThreadsPerCore=1\\n   Reason=x [root@2026-12-01T00:00:00]\\n';;
esac""",
        )

    def job(self, number: int, gpus: str, uid: int = 0, comment: str = "", state: str = "RUNNING", node: str = "n1") -> None:
        with open(self.jobs / "list", "a") as file:
            file.write(f"{number}|{uid}|{state}\n")
        gres = f"gpu:h100:1(IDX:{gpus})" if gpus else ""
        (self.jobs / str(number)).write_text(
            f"JobId={number} JobName=x\n   UserId=someone({uid}) GroupId=x(1)\n   JobState={state} Reason=None\n"
            f"   Requeue=0 Restarts=0 BatchFlag=1\n   JOB_GRES={'gpu:1' if gpus else '(null)'}\n"
            f"     Nodes={node} CPU_IDs=0 Mem=1 GRES={gres}\n   Comment={comment}\n   Command=(null)\n"
        )

    def context(self) -> Context:
        places = Places(str(self.site.config), str(self.root / "state"), str(self.root / "run"), str(self.site.slurm_conf))
        return prepare(HEALTH_CHECK, places, {"SLURMD_NODENAME": "n1"}, time.monotonic(), "n1", keep=False)

    def stand(self, job: str = "", wanted: tuple[int, ...] = ()) -> Ground:
        context = self.context()
        try:
            snapshot = read_now(context)
            return ground.stand(context, snapshot, {"SLURM_JOB_ID": job} if job else {}, [self.uuid(n) for n in wanted])
        finally:
            context.book.close()

    def uuid(self, gpu: int) -> str:
        with self.site.edit() as world:
            return world.gpu(f"g{gpu}").identity.uuid

    def numbers(self, found: Ground) -> list[int]:
        return [n for n in range(8) if self.uuid(n) in found.uuids]


# --- an allocation


def test_a_job_has_its_gpus_and_no_others(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.job(7, "2-3")
    found = node.stand("7")
    assert (found.how, found.job, node.numbers(found), dict(found.skipped)) == (ALLOCATION, "7", [2, 3], {})
    assert found.why == "job 7 has 2 of 8 GPUs"
    assert node.numbers(node.stand("7", wanted=(3,))) == [3]
    outside = node.stand("7", wanted=(3, 4))
    assert (outside.how, outside.uuids) == (NONE, ())
    assert f"{node.uuid(4)}: not of this job" in outside.why


def test_positions_are_read_through_gres_conf(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "gres.conf").write_text("Name=gpu Type=h100 File=/dev/nvidia[4-7]\nName=gpu Type=h100 File=/dev/nvidia[0-3]\n")
    node.job(7, "0")
    with node.site.edit() as world:
        minor4 = next(gpu.identity.uuid for gpu in world.gpus if gpu.identity.minor == 4)
    assert node.stand("7").uuids == (minor4,)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"state": "COMPLETING"}, "job 7 is COMPLETING"),
        ({"state": "SUSPENDED"}, "job 7 is SUSPENDED"),
        ({"gpus": ""}, "has no GPU on n1"),
        ({"node": "n2"}, "has no GPU on n1, or Slurm does not say which"),
    ],
)
def test_a_job_that_gives_no_ground(tmp_path: Path, job: dict[str, str], said: str) -> None:
    node = Node(tmp_path)
    node.job(7, job.pop("gpus", "0-7"), **job)  # type: ignore[arg-type]
    found = node.stand("7")
    assert (found.how, found.uuids) == (NONE, ())
    assert said in found.why


@pytest.mark.parametrize("job", ["8", "0", "x; rm -rf /", "7_1"])
def test_a_job_that_slurm_does_not_know(tmp_path: Path, job: str) -> None:
    """The variable is anybody's: what it says is asked of Slurm. A drained node does not help: the command claims to be in a job."""
    node = Node(tmp_path, "IDLE+DRAIN")
    node.job(7, "0-7")
    found = node.stand(job)
    assert found.how == NONE
    assert "Slurm knows no such job" in found.why


def test_somebody_elses_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.job(7, "0-7", uid=1001)
    assert node.stand("7").how == ALLOCATION, "root may: sudo in one's own salloc"
    monkeypatch.setattr(os, "geteuid", lambda: 1002)
    assert node.stand("7").why == "job 7 is somebody else's"
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert node.stand("7").how == ALLOCATION


def test_uncertain_positions_give_no_ground_unless_the_job_has_all(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "gres.conf").unlink()
    node.job(7, "2-3")
    node.job(8, "0-7")
    found = node.stand("7")
    assert found.how == NONE
    assert "which GPUs job 7 has is not certain" in found.why
    assert node.numbers(node.stand("8")) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_all_that_are_left_are_not_the_jobs_when_one_is_missing(tmp_path: Path) -> None:
    """Seven of eight are seen, and the job has seven of eight: which ones is anybody's guess."""
    node = Node(tmp_path)
    (tmp_path / "gres.conf").unlink()
    node.job(7, "0-6")
    with node.site.edit() as world:
        for gpu in world.gpus:
            gpu.identity = gpu.identity._replace(minor=None)
    assert node.site.hook("health_check").returncode == 0
    with node.site.edit() as world:
        world.apply({"op": "lose", "gpu": "g3"})
    found = node.stand("7")
    assert (found.how, found.uuids) == (NONE, ())
    assert "which GPUs job 7 has is not certain" in found.why


# --- a drained node


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN*+DRAIN", "IDLE+FAIL", "IDLE+DRAIN+MAINTENANCE+RESERVED"])
def test_a_drained_empty_node(tmp_path: Path, state: str) -> None:
    node = Node(tmp_path, state)
    found = node.stand()
    assert (found.how, node.numbers(found)) == (DRAINED, [0, 1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("state", ["IDLE", "MIXED", "IDLE+RESERVED", "IDLE+MAINTENANCE+RESERVED", "IDLE+PLANNED", "DOWN", "DOWN*"])
def test_a_node_on_which_jobs_may_start(tmp_path: Path, state: str) -> None:
    found = Node(tmp_path, state).stand()
    assert (found.how, found.uuids) == (NONE, ())
    assert "drain the node" in found.why


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_a_drained_node_with_a_job(tmp_path: Path, state: str) -> None:
    """Also one without GPUs, and one that is ending: its processes may still be there."""
    node = Node(tmp_path, "MIXED+DRAIN")
    node.job(7, "", uid=1001, state=state)
    assert node.stand().why == "the node is drained, and still has job 7"


def test_our_own_placeholder_job_is_no_job(tmp_path: Path) -> None:
    node = Node(tmp_path, "MIXED+DRAIN")
    node.job(7, "3", comment="nvhc-hold")
    assert node.numbers(node.stand()) == [0, 1, 2, 3, 4, 5, 6, 7]
    node.job(8, "4", uid=1001, comment="nvhc-hold")
    assert node.stand().why == "the node is drained, and still has job 8", "users can set any comment"


@pytest.mark.parametrize("program", ["squeue", "scontrol"])
@pytest.mark.parametrize("job", ["", "7"])
def test_slurm_that_does_not_answer(tmp_path: Path, program: str, job: str) -> None:
    node = Node(tmp_path, "IDLE+DRAIN")
    node.job(7, "0-7")
    node.program(program, "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    found = node.stand(job)
    assert (found.how, found.uuids) == (NONE, ())
    assert "Slurm could not be asked" in found.why


# --- GPUs that are left alone


def test_gpus_that_are_left_alone(tmp_path: Path) -> None:
    """R39: a GPU with somebody's process is no object for a test, and a test there would fail the hardware for it."""
    node = Node(tmp_path, "IDLE+DRAIN")
    with node.site.edit() as world:
        world.set("g0.gpu_processes", 2)
        world.set("g1.gpu_processes", "not_supported")
        world.lose("g2", engine_lists=True)
        world.gpu("g3").identity = world.gpu("g3").identity._replace(mig=True)
    found = node.stand()
    assert node.numbers(found) == [4, 5, 6, 7]
    assert {n: found.skipped[node.uuid(n)] for n in range(4)} == {
        0: "busy: 2 processes compute on it", 1: "it can not be told whether processes compute on it", 2: "lost", 3: "in MIG mode",
    }  # fmt: skip
    only = node.stand(wanted=(0,))
    assert (only.how, only.uuids, list(only.skipped)) == (DRAINED, (), [node.uuid(0)])
