"""slurm/jobs.py as far as moving and signalling jobs rests on it: the right record, whole comments, the right command."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_nvhc.slurm.command import REFUSED, SlurmError
from slurm_nvhc.slurm.jobs import SlurmJobs, parse_job


def record(number: str, more: str = "", state: str = "RUNNING", restarts: int = 0, between: str = "") -> str:
    """As 22.05 prints it, shortened."""
    return f"""\
JobId={number} {more}JobName=train
   UserId=ada(1001) GroupId=ada(1001) MCS_label=N/A
   JobState={state} Reason=Prolog Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   StartTime=2026-12-01T12:44:36 EndTime=Unknown Deadline=N/A
   Partition=gpu,big AllocNode:Sid=login:1
   ReqNodeList=(null) ExcNodeList=n[7-8]
   NodeList=n1
   JOB_GRES=gpu:h100:2
     Nodes=n1 CPU_IDs=2 Mem=0 GRES=gpu:h100:2(IDX:2-3)
   Features=h100&ckpt DelayBoot=00:00:00
   Command=/home/ada/train.sh
{between}   StdErr=/home/ada/{number}.out
   Power=
"""


# Slurm leaves a blank after each.
COMMENTS = "   AdminComment=ticket 4711\nsee the wiki: JobState=FAILED \n   Comment=my run nvhc-checkpoint \n"


class Played:
    """Slurm's commands played by one script that writes down how it was called and prints a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("squeue", "scontrol", "scancel", "sinfo"):
            script = folder / name
            script.write_text(
                f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n'
                f"[ ! -e {folder}/{name}.err ] || {{ cat {folder}/{name}.err >&2; exit 1; }}\n"
                f"[ ! -e {folder}/{name}.out ] || exec /bin/cat {folder}/{name}.out\n"
            )
            script.chmod(0o755)
        self.jobs = SlurmJobs(str(folder), "", 20.0)

    def prints(self, name: str, text: str) -> None:
        (self.folder / f"{name}.out").write_text(text)

    def fails(self, name: str, text: str) -> None:
        (self.folder / f"{name}.err").write_text(text)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(tmp_path)


def test_what_care_needs_of_a_record() -> None:
    job = parse_job(record("815", between=COMMENTS, restarts=2), "n1")
    assert job is not None
    assert (job.job_id, job.number, job.batch, job.requeue, job.restarts, job.het) == ("815", "815", True, True, 2, False)
    assert (job.excluded, job.required, job.constraint, job.partition) == ("n[7-8]", "", "h100&ckpt", "gpu,big")
    assert job.admin_comment == "ticket 4711\nsee the wiki: JobState=FAILED"
    assert job.comment == "my run nvhc-checkpoint"
    assert job.positions == (2, 3)


def test_a_component_of_a_heterogeneous_job() -> None:
    job = parse_job(record("868", "HetJobId=867 HetJobOffset=1 "), "n1")
    assert job is not None
    assert job.het


def test_the_last_task_of_an_array_is_not_the_array(played: Played) -> None:
    """Its id is the array's: squeue and scontrol show all tasks for it, and requeue would take all of them."""
    played.prints("squeue", "861|1001|RUNNING\n862|1001|COMPLETING\n860|1001|RUNNING\n")
    tasks = [("861", "0"), ("862", "1"), ("860", "2")]
    played.prints("scontrol", "\n".join(record(n, f"ArrayJobId=860 ArrayTaskId={t} ", restarts=int(t)) for n, t in tasks))
    job = played.jobs.job("860", "n1")
    assert job is not None
    assert (job.job_id, job.number, job.restarts, job.state) == ("860_2", "860", 2, "RUNNING")
    other = played.jobs.job("862", "n1")
    assert other is not None
    assert (other.job_id, other.number, other.state) == ("860_1", "862", "COMPLETING")


def test_gone_is_none_and_no_answer_is_an_error(played: Played) -> None:
    assert played.jobs.job("815", "n1") is None
    played.fails("squeue", "slurm_load_jobs error: Invalid job id specified\n")
    assert played.jobs.job("815", "n1") is None
    played.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(SlurmError):
        played.jobs.job("815", "n1")


def test_commands(played: Played) -> None:
    played.jobs.requeue("860_2")
    played.jobs.signal("815", "USR1", True)
    played.jobs.signal("816", "TERM", False)
    assert played.calls == ["scontrol requeue 860_2", "scancel --signal=USR1 --batch 815", "scancel --signal=TERM 816"]
    played.fails("scontrol", "Requested operation is presently disabled for job 815\n")
    with pytest.raises(SlurmError) as refused:
        played.jobs.requeue("815")
    assert refused.value.kind == REFUSED


def test_nodes_like_this_one(played: Played) -> None:
    like = "64|2000000|gpu:h100:8(S:0-1)|h100,ib|h100,ib"
    played.prints("sinfo", f"n1|{like}\nn2|{like}\nn2|{like}\nn3|{like.replace('8(S', '4(S')}\nn4|{like.replace(',ib|', '|')}\nn5|{like}\n")
    assert played.jobs.alike("n1", "gpu,big") == ("n2", "n5")
    assert played.jobs.alike("n9", "gpu,big") == ()
    assert "-p gpu,big" in played.calls[0]
