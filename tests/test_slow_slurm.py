"""Slurm answers each call after seconds: the drain comes first, and the hook ends within its time."""

from __future__ import annotations

from pathlib import Path

from site_ import Site

RULES = {
    "defaults": False,
    "rules": {"remap": {"finding": "MEM-REMAP-FAILED", "field": "row_remap_failure", "fail": {"value_is": 1}, "action": "drain"}},
}


def slow(site: Site, seconds: float, jobs: int) -> Path:
    """scontrol, squeue and sinfo that take so long; jobs: of the node. Returns the file that holds the drain's reason."""
    root, reason = site.root, site.root / "drained"
    show = "JobId=$4 JobName=x\\n   JobState=RUNNING Requeue=1 Restarts=0 BatchFlag=1\\n   Partition=gpu Comment=nvhc-checkpoint\\n"
    texts = {
        "scontrol": f"""case "$1" in
  update) for word; do case "$word" in reason=*) printf '%s' "${{word#*=}}" >{reason};; esac; done;;
  -d) printf "{show}";;
  *) printf 'NodeName=n1\\n   State=IDLE%s ThreadsPerCore=1\\n   Partitions=gpu\\n' "$([ -e {reason} ] && echo +DRAIN)"
     [ -e {reason} ] && printf '   Reason=%s [root@2026-01-01T00:00:00]\\n' "$(cat {reason})";;
esac""",
        "squeue": f'for number in $(seq {jobs}); do echo "$((8810 + number))|1000|RUNNING"; done',
        "sinfo": "echo 'gpu|100|idle|Unknown|Unknown|n[1-100]|none'",
    }
    for name, text in texts.items():
        (root / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{root}/scontrol.calls\nsleep {seconds}\n{text}\nexit 0\n')
        (root / name).chmod(0o755)
    site.slurm_conf.write_text("ClusterName=test\nPrologFlags=Alloc\n")
    with site.edit() as world:
        world.set("g0.395", 1)
    return reason


def test_asking_whether_a_job_could_be_moved_leaves_the_time_for_the_drain(tmp_path: Path) -> None:
    """The time does for the calls of a drain at this pace (4), and not for what Slurm thinks of the job as well (2 more)."""
    site = Site(tmp_path)
    limits = {"budgets": {"prolog": "16s"}, "slurm": {"bin_dir": str(tmp_path), "timeout": "8s"}}
    site.write_policy({**RULES, **limits, "requeue": {"enabled": True}})
    reason = slow(site, 3.0, 1)
    done = site.hook("prolog", 8811)
    assert reason.exists(), site.calls()
    assert done.returncode == 97, "and the job does not start on it"


def test_many_jobs_that_might_be_signalled_keep_no_node_from_its_drain(tmp_path: Path) -> None:
    site = Site(tmp_path)
    limits = {"budgets": {"health_check": "12s"}, "slurm": {"bin_dir": str(tmp_path), "timeout": "4s"}}
    site.write_policy({**RULES, **limits, "checkpoint": {"enabled": True}})
    reason = slow(site, 1.0, 20)
    assert site.hook("health_check").returncode == 0
    assert reason.exists(), site.calls()
    assert site.last("health_check") is not None, "and the run is written down"
