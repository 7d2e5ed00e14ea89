"""The played sinfo, squeue, sbatch and scancel, and what the played scontrol says about jobs: read by the code that asks the real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_nvhc.scenario import commands, load, scontrol, stage
from slurm_nvhc.scenario.environment import JobValues
from slurm_nvhc.scenario.stage import Stage
from slurm_nvhc.slurm.fleet import OutNode, SlurmFleet
from slurm_nvhc.slurm.jobs import SlurmJobs
from slurm_nvhc.slurm.node import MISSING, REFUSED, UNREACHABLE, SlurmCommands, SlurmError

T0 = 1_800_000_000 * 10**9
FILE = """\
schema: 1
name: t
slurm:
  partition: h100
  partition_nodes: 10
  others:
    - {node: n2, reason: "nvhc: a|b", ago: 1h}
    - {node: n3, reason: "psu swap", user: bob, state: DOWN}
    - {node: n4, reason: "nvhc: kept", state: IDLE}
steps: [{health_check: {}}]
expect: [{exit: 0}]
"""
JOB = JobValues("7", "2-3", "2,3", partition="h100", comment="nvhc-checkpoint", constraint="fast")


@pytest.fixture
def played(tmp_path: Path) -> Stage:
    scenario = load.parse(FILE, "test").scenario
    made = stage.build(scenario, str(tmp_path), 8)
    stage.set_clock(made, T0)
    stage.set_others(made, scenario.slurm.others, T0)
    return made


def fleet(played: Stage) -> SlurmFleet:
    return SlurmFleet(played.path("bin"), played.conf, 20.0)


def jobs(played: Stage) -> SlurmJobs:
    return SlurmJobs(played.path("bin"), played.conf, 20.0)


def refusal(kind: str, call: object, *arguments: object) -> str:
    with pytest.raises(SlurmError) as caught:
        call(*arguments)  # type: ignore[operator]
    assert caught.value.kind == kind
    return str(caught.value)


def test_sinfo_counts_the_partition_and_names_who_is_out(played: Stage) -> None:
    (part,) = fleet(played).partitions(("h100",))
    assert (part.name, part.nodes) == ("h100", 10)
    hour = 3600 * 10**9
    assert part.out[0] == OutNode("n2", "drained", "nvhc: a|b", "root", T0 - hour)
    assert [(n.name, n.state, n.user) for n in part.out] == [("n2", "drained", "root"), ("n3", "down", "bob")]
    stage.others_resumed(played, "n2")
    assert [n.name for n in fleet(played).out_nodes()] == ["n3"]
    refusal(REFUSED, fleet(played).partitions, ("other",))


def test_sinfo_in_trouble(played: Stage) -> None:
    stage.behave(played, "down")
    refusal(UNREACHABLE, fleet(played).partitions, ("h100",))
    stage.behave(played, "ok")
    stage.behave_sinfo(played, "fails")
    refusal(REFUSED, fleet(played).partitions, ("h100",))
    stage.behave_sinfo(played, "missing")
    missing = fleet(played).unusable()
    assert missing is not None
    assert missing.kind == MISSING


def test_a_job_of_the_scenario(played: Stage) -> None:
    stage.set_job(played, JOB, "2-3")
    job = jobs(played).job("7", "n1")
    assert job is not None
    assert (job.job_id, job.state, job.uid, job.batch, job.requeue, job.restarts) == ("7", "RUNNING", 1001, True, True, 0)
    assert (job.comment, job.constraint, job.positions) == ("nvhc-checkpoint", "fast", (2, 3))
    assert [j.job_id for j in jobs(played).of_node("n1")] == ["7"]
    assert jobs(played).of_node("n2") == ()
    assert jobs(played).job("8", "n1") is None


def test_moving_a_job(played: Stage) -> None:
    stage.set_job(played, JOB, "2-3")
    assert "no longer pending" in refusal(REFUSED, jobs(played).update_job, "7", ("excnodelist=n1",))
    jobs(played).requeue("7")
    jobs(played).update_job("7", ("excnodelist=n1", "admincomment=moved off n1"))
    job = jobs(played).job("7", "n1")
    assert job is not None
    assert (job.state, job.restarts, job.excluded, job.admin_comment) == ("PENDING", 1, "n1", "moved off n1")
    assert stage.node_seen(played).word == "idle"
    stage.set_job(played, JOB, None)
    assert jobs(played).job("7", "n1") is not None, "it waits elsewhere"
    stage.set_job(played, JOB._replace(job="9", batch=False), "4")
    refusal(REFUSED, jobs(played).requeue, "9")
    stage.set_job(played, JOB._replace(job="9", batch=False), None)
    assert jobs(played).job("9", "n1") is None


def test_submitting_and_cancelling(played: Stage) -> None:
    number = jobs(played).submit(("--comment=nvhc-hold", "-J", "fill", "--no-requeue"), "sleep 1")
    job = jobs(played).job(number, "n1")
    assert job is not None
    assert (job.state, job.uid, job.comment, job.name, job.requeue) == ("PENDING", 0, "nvhc-hold", "fill", False)
    jobs(played).signal(number, "USR1", True)
    assert jobs(played).job(number, "n1") is not None
    jobs(played).cancel_named("fill")
    assert jobs(played).job(number, "n1") is None


def test_reservations_and_partitions(played: Stage) -> None:
    jobs(played).reserve("nvhc-n1", "n1", 5)
    jobs(played).reserve("nvhc-n1", "n1", 5)
    jobs(played).end_reservation("nvhc-n1")
    jobs(played).end_reservation("nvhc-n1")
    rules = jobs(played).partitions()["h100"]
    assert (rules.tier, rules.preempt, rules.alone, rules.root, rules.up) == (1, "OFF", False, True, True)
    assert jobs(played).alike("n1", "h100")[:2] == ("n2", "n3")


def test_a_reboot_through_slurm(played: Stage) -> None:
    slurm = SlurmCommands(played.path("bin"), played.conf, 20.0)
    slurm.drain("n1", "nvhc: GPU-LOST gpu3")
    slurm.reboot("n1", "nvhc: GPU-LOST gpu3")
    state = slurm.node_state("n1")
    assert state.rebooting
    assert state.ground == "nvhc: GPU-LOST gpu3"
    stage.rebooted(played)
    assert not slurm.node_state("n1").out


def test_every_call_is_known_with_its_program(played: Stage) -> None:
    fleet(played).out_nodes()
    jobs(played).partitions()
    told = stage.calls(played)
    assert [call[0] for call in told] == ["sinfo", "scontrol"]
    assert told[1][1:] == ("-a", "show", "partition")


def test_a_percent_sign_and_a_letter_in_a_reason_stay() -> None:
    state = scontrol.new_state("24.11", "n1")
    state["nodes"]["n1"].update(flags=["DRAIN"], reason="at %T of %R", user="bob", time_ns=T0)
    assert commands.sinfo(state, ["-h", "-o", "%R|%E|%T"]).out == "gpu|at %T of %R|drained\n"
    assert json.dumps(state)
