"""Slurm's jobs, partitions and reservations: what is read from its commands, and how they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_nvhc.slurm.command import REFUSED, TIMEOUT, UNREACHABLE, SlurmError
from slurm_nvhc.slurm.jobs import SlurmJobs, parse_job, parse_partitions

# As 22.05 prints it; 24.11 has more lines of the same form.
JOB = """\
JobId=28965 ArrayJobId=28961 ArrayTaskId=3 JobName=nvhc-hold
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294967293 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=0 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=00:00:00 TimeLimit=UNLIMITED TimeMin=N/A
   StartTime=2026-12-01T12:47:46 EndTime=Unknown Deadline=2026-12-01T12:49:00
   Partition=gpu AllocNode:Sid=localhost:28154
   ReqNodeList=n1 ExcNodeList=(null)
   NodeList=n[1-2]
   JOB_GRES=gpu:h100:3
     Nodes=n1 CPU_IDs=3 Mem=0 GRES=gpu:h100:1(IDX:3)
     Nodes=n[2-3] CPU_IDs=0-1 Mem=0 GRES=gpu:h100:2(IDX:0,6-7)
   MinCPUsNode=1 MinMemoryNode=64M MinTmpDiskNode=0
   Features=h100 DelayBoot=00:00:00
   Reservation=(null)
   Command=(null)
   WorkDir=/
   AdminComment=nvhc: holds GPU-3
   Comment=nvhc-hold
   TresPerNode=gres:gpu:1
"""
WITHOUT = """\
JobId=7 JobName=x
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=0 Reboot=0 ExitCode=0:0
   Partition=cpu AllocNode:Sid=localhost:28154
   JOB_GRES=(null)
     Nodes=n1 CPU_IDs=0 Mem=0 GRES=
   Features=(null) DelayBoot=00:00:00
"""
PARTITIONS = """\
PartitionName=gpu
   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO
   OverTimeLimit=NONE PreemptMode=OFF
   State=UP TotalCPUs=32 TotalNodes=1 SelectTypeParameters=NONE

PartitionName=all
   DefaultTime=NONE DisableRootJobs=YES ExclusiveUser=YES GraceTime=0 Hidden=NO
   PriorityJobFactor=1 PriorityTier=65000 RootOnly=NO ReqResv=NO OverSubscribe=EXCLUSIVE
   OverTimeLimit=NONE PreemptMode=REQUEUE
   State=DRAIN TotalCPUs=32 TotalNodes=1 SelectTypeParameters=NONE
"""


def test_a_job() -> None:
    job = parse_job(JOB, "n1")
    assert job is not None
    assert (job.job_id, job.state, job.name, job.partition) == ("28961_3", "RUNNING", "nvhc-hold", "gpu")
    assert (job.batch, job.requeue, job.restarts) == (True, False, 2)
    assert (job.comment, job.admin_comment, job.constraint, job.reservation) == ("nvhc-hold", "nvhc: holds GPU-3", "h100", "")
    assert (job.positions, job.started) == ((3,), "2026-12-01T12:47:46")
    assert job.uid is None, "not from here: a user's job name could forge it"


@pytest.mark.parametrize(("node", "positions"), [("n1", (3,)), ("n2", (0, 6, 7)), ("n3", (0, 6, 7)), ("n4", None)])
def test_positions_are_those_of_this_node(node: str, positions: tuple[int, ...] | None) -> None:
    job = parse_job(JOB, node)
    assert job is not None
    assert job.positions == positions


def test_a_job_without_gpus_has_none_and_one_that_slurm_does_not_tell_of_is_unknown() -> None:
    without = parse_job(WITHOUT, "n1")
    assert without is not None
    assert without.positions == ()
    for text in (JOB.replace("(IDX:3)", ""), JOB.replace("(IDX:3)", "(IDX:N/A)"), JOB.replace("Nodes=n1 ", "Nodes=n[1 ")):
        job = parse_job(text, "n1")
        assert job is not None
        assert job.positions is None


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error: Invalid job id specified", "JobId=7 JobName=x\n"])
def test_what_is_no_job(text: str) -> None:
    assert parse_job(text, "n1") is None


def test_partitions() -> None:
    found = parse_partitions(PARTITIONS)
    assert found["gpu"] == ("gpu", 1, "OFF", False, True, True)
    assert found["all"] == ("all", 65000, "REQUEUE", True, False, False)
    assert parse_partitions("") == {}


class Played:
    """Slurm's commands as scripts; each call is noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = SlurmJobs(str(folder), "/x/slurm.conf", 5.0)
        for name in ("squeue", "scontrol", "sbatch", "scancel"):
            self.play(name, "")

    def play(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.folder}/calls\n{body}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path) -> Played:
    return Played(tmp_path)


def test_whose_job_it_is_comes_from_squeue(slurm: Played) -> None:
    forged = JOB.replace("JobName=nvhc-hold\n", "JobName=evil\n   UserId=root(0)\n")
    (slurm.folder / "job").write_text(forged)
    slurm.play("squeue", "printf '28965|1000|RUNNING\\n77|0|COMPLETING\\nevil|0|RUNNING\\n'")
    gone = "{ echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }"
    slurm.play("scontrol", f"[ $4 = 77 ] && {gone}; cat {slurm.folder}/job")
    found = slurm.jobs.of_node("n1")
    assert [(j.job_id, j.uid) for j in found] == [("28961_3", 1000)], "a job that ended meanwhile is none"
    assert [c for c in slurm.calls() if c.startswith("squeue")] == ["squeue -h -a -w n1 -o %A|%U|%T"]


def test_a_job_that_ends_while_it_is_asked_for_is_told_as_it_is_now(slurm: Played) -> None:
    """Observed under load: it had given up its GPUs, Slurm did not say which, and it was taken for one that might have any."""
    (slurm.folder / "job").write_text(JOB.replace("(IDX:3)", ""))
    slurm.play("scontrol", f"cat {slurm.folder}/job")
    first = f"[ -e {slurm.folder}/asked ] || {{ : >{slurm.folder}/asked; echo '28965|1000|RUNNING'; exit 0; }}"
    slurm.play("squeue", f"{first}; echo '28965|1000|COMPLETING'")
    assert [(j.state, j.positions) for j in slurm.jobs.of_node("n1")] == [("COMPLETING", None)]
    (slurm.folder / "asked").unlink()
    slurm.play("squeue", first)
    assert slurm.jobs.of_node("n1") == (), "gone altogether"


def test_a_job_whose_gpus_slurm_does_not_know_stays(slurm: Played) -> None:
    (slurm.folder / "job").write_text(JOB.replace("(IDX:3)", ""))
    slurm.play("scontrol", f"cat {slurm.folder}/job")
    slurm.play("squeue", "echo '28965|1000|RUNNING'")
    assert [(j.state, j.positions) for j in slurm.jobs.of_node("n1")] == [("RUNNING", None)]


def test_one_job(slurm: Played) -> None:
    assert slurm.jobs.job("12; rm", "n1") is None
    slurm.play("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.jobs.job("12", "n1") is None
    slurm.play("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmError) as caught:
        slurm.jobs.job("12", "n1")
    assert caught.value.kind == UNREACHABLE


def test_submitting(slurm: Played) -> None:
    slurm.play("sbatch", "echo 812\\;cluster")
    assert slurm.jobs.submit(("--gres=gpu:1",), "/x/y && exec sleep 1") == "812"
    assert slurm.calls() == ["sbatch --parsable --gres=gpu:1 --wrap=/x/y && exec sleep 1"]
    slurm.play("sbatch", "echo hello")
    with pytest.raises(SlurmError) as caught:
        slurm.jobs.submit((), "true")
    assert caught.value.kind == REFUSED


def test_a_reservation_that_is_there_is_made_longer(slurm: Played) -> None:
    slurm.jobs.reserve("r", "n1", 5)
    made = "scontrol create reservation reservationname=r starttime=now duration=5 users=root flags=MAINT,IGNORE_JOBS nodes=n1"
    assert slurm.calls() == [made]
    slurm.play("scontrol", '[ "$1" = update ] || { echo "Error creating the reservation: Duplicate reservation name" >&2; exit 1; }')
    slurm.jobs.reserve("r", "n1", 5)
    assert slurm.calls()[1:] == [made, "scontrol update reservationname=r endtime=now+5minutes"]
    slurm.play("scontrol", "echo 'Error creating the reservation: Requested node configuration is not available' >&2; exit 1")
    with pytest.raises(SlurmError):
        slurm.jobs.reserve("r", "n1", 5)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Requested reservation is invalid", ""),
        ("Requested reservation is in use", REFUSED),
        ("Socket timed out on send/recv operation", TIMEOUT),
    ],
)
def test_ending_a_reservation(slurm: Played, said: str, kind: str) -> None:
    slurm.play("scontrol", f"echo 'delete_reservation reservationname=r: {said}' >&2; exit 1")
    if not kind:
        slurm.jobs.end_reservation("r")
        return
    with pytest.raises(SlurmError) as caught:
        slurm.jobs.end_reservation("r")
    assert caught.value.kind == kind


def test_cancelling(slurm: Played) -> None:
    slurm.jobs.cancel(())
    assert slurm.calls() == []
    slurm.jobs.cancel(("812_3", "9"))
    slurm.jobs.cancel_named("nvhc-hold-fill-n1")
    assert slurm.calls() == ["scancel -Q 812_3 9", "scancel -Q --user=root --name=nvhc-hold-fill-n1"]


def test_the_time_given_is_for_all_that_is_asked(slurm: Played) -> None:
    """Each answer comes in time, and all of them together do not."""
    slurm.jobs.timeout_s = 60.0
    slurm.play("squeue", "for n in 1 2 3 4 5 6 7 8 9; do echo \"$n|1000|RUNNING\"; done")
    (slurm.folder / "job").write_text(WITHOUT)
    slurm.play("scontrol", f"sleep 1; cat {slurm.folder}/job")
    with pytest.raises(SlurmError) as caught:
        slurm.jobs.of_node("n1", 1.5)
    assert caught.value.kind == TIMEOUT
    assert len(slurm.calls()) <= 3


def test_nothing_is_run_when_the_time_is_over(slurm: Played) -> None:
    with pytest.raises(SlurmError) as caught:
        slurm.jobs.partitions(0.0)
    assert caught.value.kind == TIMEOUT
    assert slurm.calls() == []
