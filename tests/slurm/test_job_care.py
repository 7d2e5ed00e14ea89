"""Jobs on a real Slurm: moved off a bad node without being held, told to save their work, and left alone otherwise."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Optional

import pytest
from harness import Cluster, JobInfo
from site_nvhc import DRAIN_RULES, Held, Site

from slurm_nvhc.sense.sim.world import World

REQUEUE = DRAIN_RULES + "requeue: {enabled: true}\nlimits: {soft: 100, hard: 100}\n"
CHECKPOINT = DRAIN_RULES + "checkpoint: {enabled: true, grace: 1h}\nlimits: {soft: 100, hard: 100}\n"
SAVES = 'trap "touch saved.$SLURM_JOB_ID" USR1'
NOT_SAVING = 'trap "touch told.$SLURM_JOB_ID" USR1'
RAN = 'echo $SLURMD_NODENAME; touch "ran.$SLURM_JOB_ID"'


def shown(cluster: Cluster, job_id: str, key: str) -> str:
    """One value as `scontrol show job` tells the user."""
    text = cluster.run("scontrol", "show", "job", job_id, as_user=True).stdout
    found = re.search(rf"^ *{key}=(.*)$|\s{key}=(\S*)", text, re.M)
    return (found.group(1) or found.group(2) or "").strip() if found else ""


def restarted(cluster: Cluster, job_id: str) -> Optional[JobInfo]:
    info = cluster.job(job_id)
    return info if info.restarts else None


class Wrapped:
    """Slurm's commands with a script between: ``mischief`` is sh that may answer for them; $name and "$*" tell what is asked."""

    def __init__(self, site: Site, mischief: str) -> None:
        folder = site.cluster.root / "tools"
        folder.mkdir()
        for name in ("scontrol", "squeue", "scancel", "sinfo"):
            script = folder / name
            head = f"#!/bin/sh\nPATH=/usr/bin:/bin\nname={name}\nwork={site.cluster.root}/work\n"
            script.write_text(f'{head}{mischief}\nexec /usr/bin/{name} "$@"\n')
            script.chmod(0o755)
        site.policy += f"slurm: {{bin_dir: {folder}, timeout: 1s}}\n"


# --- moving -----------------------------------------------------------------


def test_a_batch_job_moves_to_a_good_node_and_is_told_why(start) -> None:
    site = start(Site(REQUEUE, nodes=3))
    site.remap_failure(gpu=1, node="n1")
    job = site.cluster.sbatch(RAN, "--gres=gpu:2")
    site.cluster.wait_until("the job to be moved", lambda: restarted(site.cluster, job))
    info = site.cluster.job(job)
    assert info.priority > 0, "not held"
    assert info.reason != "launch_failed_requeued_held"
    run = site.wait_run("prolog", job)
    assert run.exit_code == 0
    site.cluster.wait_until("to be told", lambda: shown(site.cluster, job, "AdminComment"))
    assert shown(site.cluster, job, "AdminComment") == "nvhc: moved off n1 (MEM-REMAP-FAILED gpu1); 1 time, restart 1"
    assert shown(site.cluster, job, "ExcNodeList") == "n1"
    site.cluster.wait_job(job, "COMPLETED", 60)
    assert site.cluster.output(job) == "n2\n", "no task of it was started on n1"
    assert site.cluster.wait_node("drained").reason.startswith("nvhc: MEM-REMAP-FAILED gpu1 ")


def test_a_job_on_two_nodes_moves_once(start) -> None:
    site = start(Site(REQUEUE, nodes=4))
    site.remap_failure(gpu=0, node="n1")
    site.remap_failure(gpu=0, node="n2")
    job = site.cluster.sbatch(RAN, "-N2", "--gres=gpu:8")
    site.cluster.wait_job(job, "COMPLETED", 60)
    assert site.cluster.job(job).restarts == 1
    assert " 1 time, restart 1" in shown(site.cluster, job, "AdminComment")
    assert site.cluster.output(job) == "n3\n"
    assert {n.name for n in site.cluster.nodes() if n.out} == {"n1", "n2"}


def test_only_the_bad_task_of_an_array_moves(start) -> None:
    site = start(Site(REQUEUE, nodes=2))
    site.remap_failure(gpu=0, node="n1")
    # One task a node: the last task's id is the id of the array.
    array = site.cluster.sbatch(RAN, "--array=1-2", "--gres=gpu:8")
    site.cluster.wait_quiet(60)
    text = site.cluster.run("scontrol", "-o", "show", "job", array).stdout
    restarts = sorted(re.findall(r"ArrayTaskId=\d .*? Restarts=(\d)", text))
    assert restarts == ["0", "1"]
    assert re.findall(r"JobState=(\w+)", text) == ["COMPLETED", "COMPLETED"]
    assert text.count("nvhc: moved off n1 ") == 1


@pytest.mark.parametrize("option", ["--no-requeue", "interactive"])
def test_who_can_not_be_moved_fails_as_before(start, option: str) -> None:
    site = start(Site(REQUEUE, nodes=1))
    site.remap_failure(gpu=0)
    if option == "interactive":
        done = site.cluster.srun("--gres=gpu:1", "touch", "ran", check=False)
        assert done.returncode != 0
    else:
        job = site.cluster.sbatch("touch ran", "--gres=gpu:1", option)
        site.cluster.wait_job(job, "CANCELLED")
        assert site.cluster.job(job).restarts == 0
    run = site.wait_run("prolog")
    assert run.exit_code == 1
    assert any("is not moved: it" in step["why"] for step in run.steps), run.steps
    assert not (site.cluster.root / "work" / "ran").exists()
    site.cluster.wait_node("drained")


def test_no_job_and_no_node_goes_round_in_a_loop(start) -> None:
    site = start(Site(REQUEUE, nodes=3))
    for name in site.cluster.names:
        site.remap_failure(gpu=0, node=name)
    job = site.cluster.sbatch("touch ran", "--gres=gpu:1")
    site.cluster.wait_until("every node to be drained", lambda: all(n.out for n in site.cluster.nodes()), 90)
    runs = [site.wait_run("prolog", job, name) for name in site.cluster.names]
    assert sorted(run.exit_code for run in runs) == [0, 0, 1]
    assert " 2 times, restart 2" in shown(site.cluster, job, "AdminComment")
    assert shown(site.cluster, job, "AdminComment").count("nvhc:") == 1
    last = next(run for run in runs if run.exit_code == 1)
    assert [s["why"] for s in last.steps if s["kind"] == "alert"] == [f"job {job} is not moved: it was moved 2 times already, 2 may be"]
    assert not (site.cluster.root / "work" / "ran").exists()


def test_a_node_moves_only_so_many(start) -> None:
    site = start(Site(REQUEUE.replace("requeue: {enabled: true}", "requeue: {enabled: true, per_node: 2}"), nodes=1))
    jobs = []
    site.remap_failure(gpu=0)
    for _ in range(3):
        job = site.cluster.sbatch("touch ran", "--gres=gpu:8")
        jobs.append(job)
        site.cluster.wait_until("the job to come back", lambda j=job: restarted(site.cluster, j))
        site.cluster.wait_node("drained")
        site.cluster.run("scontrol", "hold", job)
        site.cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    exits = [run.exit_code for run in site.runs("prolog")]
    assert exits == [0, 0, 1]


def test_the_last_node_is_not_excluded(start) -> None:
    site = start(Site(REQUEUE, nodes=1))
    site.remap_failure(gpu=0)
    job = site.cluster.sbatch(RAN, "--gres=gpu:1")
    site.cluster.wait_until("the job to be moved", lambda: restarted(site.cluster, job))
    site.cluster.wait_until("to be told", lambda: shown(site.cluster, job, "AdminComment"))
    assert shown(site.cluster, job, "ExcNodeList") in ("", "(null)"), "Slurm would hold it for ever"
    site.wait_run("epilog", job)
    with World.edit(site.worlds["n1"]) as world:
        world.set("g0.395", 0)
    site.cluster.wait_node("drained")
    site.cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    site.cluster.wait_job(job, "COMPLETED", 60)


def test_with_quarantine_the_job_moves_and_the_node_stays(start) -> None:
    rules = REQUEUE.replace("action: drain}", "action: narrow}") + "quarantine: {enabled: true}\n"
    site = start(Site(rules, nodes=2))
    site.remap_failure(gpu=1, node="n1")
    job = site.cluster.sbatch(RAN, "--gres=gpu:2")
    site.cluster.wait_job(job, "COMPLETED", 60)
    assert site.cluster.output(job) == "n2\n"
    assert site.cluster.job(job).restarts == 1
    assert shown(site.cluster, job, "AdminComment") == "nvhc: moved off n1 (MEM-REMAP-FAILED gpu1); 1 time, restart 1"

    def held() -> list[str]:
        text = site.cluster.run("scontrol", "-d", "-o", "show", "job").stdout
        return re.findall(r"JobState=RUNNING .*?Nodes=n1 .*?GRES=gpu:h100:1\(IDX:(\d)\)", text)

    site.cluster.wait_until("the bad GPU alone to be held", lambda: held() == ["1"])
    assert not site.cluster.node().out


@pytest.mark.parametrize("enabled", [True, False])
def test_a_job_cancelled_in_its_prolog_is_not_run_again(start, enabled: bool) -> None:
    site = Site(REQUEUE if enabled else DRAIN_RULES, nodes=2)
    # The prolog's look at its job waits until the job has been cancelled.
    Wrapped(
        site,
        '[ $name = squeue ] && { touch "$work/asked"; i=0; '
        'while [ ! -e "$work/cancelled" ] && [ $i -lt 80 ]; do /bin/sleep 0.05; i=$((i+1)); done; }',
    )
    site.policy = site.policy.replace("timeout: 1s", "timeout: 5s")
    start(site)
    site.remap_failure(gpu=0, node="n1")
    job = site.cluster.sbatch(RAN, "--gres=gpu:1")
    site.cluster.wait_until("the prolog to look", (site.cluster.root / "work" / "asked").exists)
    site.cluster.run("scancel", job)
    (site.cluster.root / "work" / "cancelled").touch()
    site.cluster.wait_job(job, "CANCELLED")
    run = site.wait_run("prolog", job)
    assert run.exit_code == 0
    site.cluster.wait_node("drained")
    assert site.cluster.job(job) == JobInfo(job, "CANCELLED", site.cluster.job(job).reason, 0, site.cluster.job(job).priority, "0:0")
    assert not list((site.cluster.root / "work").glob("ran.*"))


def test_a_completed_job_is_never_run_again(start) -> None:
    site = start(Site(REQUEUE, nodes=2))
    job = Held(site.cluster, "--gres=gpu:8").wait_started()
    site.storm()
    site.remap_failure()
    job.finish()
    site.cluster.wait_node("drained")
    site.wait_run("epilog", job.job_id)
    info = site.cluster.job(job.job_id)
    assert (info.state, info.restarts) == ("COMPLETED", 0)


DOWN = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"
HUNG = "exec /bin/sleep 30"
TROUBLE = {
    "requeue down": (f'case "$*" in requeue*) {DOWN};; esac', "failed"),
    "requeue hung": (f'case "$*" in requeue*) {HUNG};; esac', "failed"),
    "requeue late": (f'case "$*" in requeue*) /usr/bin/$name "$@"; {HUNG};; esac', "moved"),
    "requeue slow": ('case "$*" in requeue*) /bin/sleep 0.5;; esac', "moved"),
    "look down": (f"[ $name = squeue ] && {{ {DOWN}; }}", "failed"),
    "look hung": (f"[ $name = squeue ] && {HUNG}", "failed"),
    "second look down": (
        f'case "$*" in requeue*) touch "$work/r"; /usr/bin/$name "$@"; exit 1;; esac\n'
        f'[ $name = squeue ] && [ -e "$work/r" ] && {{ {DOWN}; }}',
        "failed",
    ),
    "telling down": (f'case "$*" in *admincomment*|*excnodelist*) [ -e "$work/up" ] || {{ touch "$work/up"; {DOWN}; }};; esac', "moved"),
    "telling hung": (f'case "$*" in *admincomment*|*excnodelist*) [ -e "$work/up" ] || {{ touch "$work/up"; {HUNG}; }};; esac', "moved"),
}


@pytest.mark.parametrize("what", TROUBLE)
def test_whatever_slurmctld_does_meanwhile(start, what: str) -> None:
    mischief, outcome = TROUBLE[what]
    site = Site(REQUEUE, nodes=3)
    Wrapped(site, mischief)
    start(site)
    site.cluster.run("chmod", "777", str(site.cluster.root / "work"))
    site.remap_failure(gpu=0, node="n1")
    job = site.cluster.sbatch(RAN, "--gres=gpu:1")
    site.cluster.wait_until("the job to come back", lambda: restarted(site.cluster, job), 40)
    run = site.wait_run("prolog", job)
    assert run.exit_code == (1 if outcome == "failed" else 0)
    assert site.cluster.wait_node("drained").reason.startswith("nvhc: MEM-REMAP-FAILED gpu0 ")
    site.wait_run("epilog", job)
    if outcome == "moved":
        assert " 1 time, restart 1" in shown(site.cluster, job, "AdminComment")
        assert shown(site.cluster, job, "ExcNodeList") == "n1"
    info = site.cluster.job(job)
    assert info.restarts == 1
    assert info.priority > 0
    assert "Launching batch job" not in site.cluster.log("slurmd-n1")


# --- the signal -------------------------------------------------------------


def test_the_signal_reaches_a_script_that_traps_it_and_nobody_else(start) -> None:
    site = start(Site(CHECKPOINT, health_check=1))
    cluster = site.cluster
    saves = Held(cluster, "--gres=gpu:2", "--comment=big run nvhc-checkpoint", script=SAVES).wait_started()  # positions 0, 1
    others = [
        Held(cluster, "--gres=gpu:2", script=NOT_SAVING).wait_started(),  # 2, 3: did not opt in
        Held(cluster, "--gres=gpu:1", "--comment=nvhc-checkpoint", script=NOT_SAVING).wait_started(),  # 4: another GPU
        Held(cluster, script=NOT_SAVING).wait_started(),  # no GPU
    ]
    site.remap_failure(gpu=1)
    saved = cluster.root / "work" / f"saved.{saves.job_id}"
    cluster.wait_until("the script to save", saved.exists)
    seen = len(site.runs("health_check"))
    cluster.wait_until("three more health checks", lambda: len(site.runs("health_check")) >= seen + 3)
    assert not cluster.node().out, "it has an hour"
    assert sum(s["kind"] == "signal" for run in site.runs("health_check") for s in run.steps) == 1, "once"
    saves.finish()
    cluster.wait_until("the node to be drained", lambda: cluster.node().out)
    assert cluster.node().reason.startswith("nvhc: MEM-REMAP-FAILED gpu1 ")
    for job in others:
        assert cluster.job(job.job_id).state == "RUNNING"
        job.finish()
    assert list((cluster.root / "work").glob("told.*")) == []


def test_a_new_jobs_prolog_ends_the_wait(start) -> None:
    site = start(Site(CHECKPOINT, health_check=1))
    saves = Held(site.cluster, "--gres=gpu:2", "--comment=nvhc-checkpoint", script=SAVES).wait_started()
    site.remap_failure(gpu=1)
    site.cluster.wait_until("the script to save", (site.cluster.root / "work" / f"saved.{saves.job_id}").exists)
    assert not site.cluster.node().out
    late = site.cluster.sbatch(RAN, "--gres=gpu:1")
    site.cluster.wait_until("the node to be drained", lambda: site.cluster.node().out)
    site.cluster.wait_job(late, "COMPLETED")
    saves.finish()


def test_the_end_of_the_grace_drains(start) -> None:
    site = start(Site(CHECKPOINT, health_check=1))
    saves = Held(site.cluster, "--gres=gpu:2", "--comment=nvhc-checkpoint", script=SAVES).wait_started()
    site.remap_failure(gpu=0)
    site.cluster.wait_until("the script to save", (site.cluster.root / "work" / f"saved.{saves.job_id}").exists)
    assert not site.cluster.node().out
    with World.edit(site.worlds["n1"]) as world:
        world.advance(3601)
    site.cluster.wait_until("the node to be drained", lambda: site.cluster.node().out)
    assert site.cluster.job(saves.job_id).state == "RUNNING"
    saves.finish()


def test_interactive_jobs_get_it_in_their_steps(start) -> None:
    site = start(Site(CHECKPOINT, health_check=1))
    script = textwrap.dedent("""\
        trap 'touch saved.$SLURM_JOB_ID; exit 0' USR1
        touch started.$SLURM_JOB_ID
        i=0; while [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done; exit 1
        """)
    step = site.cluster.background_srun("--gres=gpu:1", "--comment=nvhc-checkpoint", "sh", "-c", script)
    work = Path(site.cluster.root / "work")
    site.cluster.wait_until("the step to start", lambda: list(work.glob("started.*")))
    site.remap_failure(gpu=0)
    assert step.wait(30) == 0
    assert list(work.glob("saved.*"))


@pytest.mark.parametrize("mischief", ["down", "hung"])
def test_when_it_can_not_be_sent_the_node_is_drained_at_once(start, mischief: str) -> None:
    site = Site(CHECKPOINT, health_check=1)
    Wrapped(site, f"[ $name = scancel ] && {{ {DOWN if mischief == 'down' else HUNG}; }}")
    start(site)
    saves = Held(site.cluster, "--gres=gpu:2", "--comment=nvhc-checkpoint", script=SAVES).wait_started()
    site.remap_failure(gpu=0)
    site.cluster.wait_until("the node to be drained", lambda: site.cluster.node().out)
    assert not (site.cluster.root / "work" / f"saved.{saves.job_id}").exists()
    saves.finish()
