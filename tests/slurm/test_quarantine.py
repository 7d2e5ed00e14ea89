"""A placeholder job holds a bad GPU, on a real Slurm with neighbours at work and users waiting for that very GPU."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import processes
import pytest
from harness import SBIN, Cluster
from quarantine_load import Load, LoadedSite, Transition
from site_nvhc import NARROW_RULES, Held, Site

from slurm_nvhc.model.protective import QUARANTINE, Exclusion, Hold
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.protective import Protective
from slurm_nvhc.sense.sim.world import World

RULES = NARROW_RULES.replace("narrow: {enabled: true}\n", "quarantine: {enabled: true}\n")
# A tenth of the long run (bench/quarantine.py).
STARTS, TRANSITIONS = 200, 20


def kept(site: Site) -> Protective:
    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        return ledger.protective()


def ours(site: Site) -> list[str]:
    """Placeholder jobs of any kind: "job id, name, state"."""
    return site.cluster.run("squeue", "-h", "-r", "-u", "root", "-o", "%i %j %T").stdout.splitlines()


def held(site: Site, gpu: int, seconds: float = 60.0) -> Hold:
    """Wait until this GPU, and nothing else, is taken by us."""

    def probe() -> Hold | None:
        holds = [h for h in kept(site).holds if h.uuid == site.uuid(gpu)]
        return holds[-1] if holds and ours(site) == [f"{holds[-1].job_id} nvhc-hold RUNNING"] else None

    return site.cluster.wait_until(f"GPU {gpu} to be held (now {ours(site)})", probe, seconds)


def reservations(site: Site) -> str:
    return site.cluster.run("scontrol", "-o", "show", "reservation", check=False).stdout.strip()


def gpus_of(cluster: Cluster, job: str) -> str:
    cluster.wait_job(job, "COMPLETED", 60)
    return cluster.output(job).strip()


def shown(cluster: Cluster) -> str:
    return cluster.run("scontrol", "-d", "show", "node", "n1", check=False).stdout


def quarantined(start, gpu: int = 0, **more) -> tuple[Site, Hold]:  # type: ignore[no-untyped-def]
    """A site whose GPU went bad under a job, and is held."""
    site = start(Site(RULES, **more))
    job = Held(site.cluster, "--gres=gpu:1").wait_started()  # the lowest free one: 0
    assert gpu == 0
    site.storm(gpu=gpu)
    job.let_go()
    return site, held(site, gpu)


# --- the main job -------------------------------------------------------------


def test_a_bad_gpu_is_held_beside_running_neighbours(start) -> None:
    site = start(Site(RULES))
    cluster = site.cluster
    bad = Held(cluster, "--gres=gpu:1").wait_started()
    neighbour = Held(cluster, "--gres=gpu:2").wait_started()
    waiting = [cluster.sbatch("echo $SLURM_JOB_GPUS", f"--gres=gpu:{n}") for n in (7, 7, 6)]  # for more than what is free
    site.storm(gpu=0)
    bad.let_go()
    hold = held(site, 0)
    assert site.wait_run("epilog", bad.job_id).verdict == "fail"
    assert reservations(site) == "No reservations in the system"
    assert cluster.request_counts()["REQUEST_CREATE_RESERVATION"] == 1
    assert cluster.node().state == "mixed"
    told = cluster.run("scontrol", "-d", "show", "job", hold.job_id).stdout
    assert "TimeLimit=UNLIMITED" in told
    assert "Reservation=" not in told
    assert "GRES=gpu:h100:1(IDX:0)" in told
    assert f"AdminComment=nvhc: holds {site.uuid(0)}" in told
    assert cluster.job(neighbour.job_id).state == "RUNNING"
    neighbour.finish()
    given = [gpus_of(cluster, job) for job in waiting]
    assert given[:2] == ["1,2,3,4,5,6,7"] * 2, "the other seven are given out"
    assert "0" not in given[2].split(",")
    eight = cluster.sbatch("true", "--gres=gpu:8")
    cluster.wait_until("the job for eight to wait for GPUs", lambda: cluster.job(eight).reason == "Resources", 20)
    assert kept(site).intents == ()


def test_our_hooks_leave_their_own_jobs_alone(start) -> None:
    site, _hold = quarantined(start)
    assert len(site.runs()) == 2, "one job's prolog and epilog: no placeholder job is judged or recorded"
    left = os.listdir(f"{site.options.run}/n1/hold")
    assert len([name for name in left if name.isdigit()]) == 1, "that of the job that holds"
    assert site.cluster.node().reason == ""


def test_a_release_ends_it(start) -> None:
    site, hold = quarantined(start)
    job = site.cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:8")
    nvhc(site, "gpu", "release", site.uuid(0), "--why", "repaired")
    assert gpus_of(site.cluster, job) == "0,1,2,3,4,5,6,7"
    assert kept(site).holds == ()
    assert site.cluster.job(hold.job_id).state == "CANCELLED"


def nvhc(site: Site, *words: str) -> str:
    options = site.options
    places = ("--config", options.config, "--state", options.state, "--run", options.run, "--node", "n1")
    return site.cluster.run(str(site.python), "-m", "slurm_nvhc.cli.main", *words, *places).stdout


# --- what may happen to it ----------------------------------------------------


def restart_slurmctld(cluster: Cluster) -> None:
    cluster.stop_slurmctld()
    cluster.start_slurmctld()


def kill_slurmctld(cluster: Cluster) -> None:
    pid = processes.pid_in(cluster.root / "run" / "slurmctld.pid")
    assert pid
    os.kill(pid, signal.SIGKILL)
    cluster.wait_until("slurmctld to be gone", lambda: not Path(f"/proc/{pid}").exists())
    cluster.start_slurmctld()


def restart_slurmd(cluster: Cluster) -> None:
    processes.end([processes.pid_in(cluster.root / "run" / "slurmd-n1.pid")])
    cluster.start_slurmd("n1")


def reconfigure(cluster: Cluster) -> None:
    cluster.run("scontrol", "reconfigure")


def test_restarts_do_not_end_it(start) -> None:
    site, hold = quarantined(start)
    for disturb in (restart_slurmctld, kill_slurmctld, restart_slurmd, reconfigure):
        disturb(site.cluster)
        site.cluster.wait_until("Slurm to answer", lambda: "UP" in site.cluster.run("scontrol", "ping", check=False).stdout)
        # For about a second 22.05 does not know which GPUs are used, and gives a job none by number.
        site.cluster.wait_until("Slurm to know its GPUs", lambda: "(IDX:0)" in shown(site.cluster))
        job = site.cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:7")
        assert gpus_of(site.cluster, job) == "1,2,3,4,5,6,7", disturb.__name__
        assert held(site, 0).job_id == hold.job_id, disturb.__name__


def test_a_hold_that_somebody_cancels_is_made_again(start) -> None:
    site, hold = quarantined(start, health_check=1)
    site.cluster.run("scancel", hold.job_id)
    site.cluster.wait_job(hold.job_id, "CANCELLED")
    assert held(site, 0).job_id != hold.job_id
    job = site.cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:7")
    assert gpus_of(site.cluster, job) == "1,2,3,4,5,6,7"


def reboot(site: Site) -> None:
    """As far as one machine can play it: all processes of the node gone, /run empty, another boot id, slurmd saying so (-b)."""
    cluster = site.cluster
    processes.end([processes.pid_in(cluster.root / "run" / "slurmd-n1.pid")])
    for pid in cluster._steps_and_tasks():
        processes.send(pid, signal.SIGKILL)
    shutil.rmtree(f"{site.options.run}/n1")
    with World.edit(site.worlds["n1"]) as world:
        world.reboot()
    cluster._daemon([f"{SBIN}/slurmd", "-b", "-N", "n1", "-f", str(cluster.slurm_conf)])


def test_after_a_reboot_it_is_made_again_before_users_come(start) -> None:
    # slurmctld takes a job for lost with its node only when it began this long before the boot: 12 s with these.
    site, hold = quarantined(start, health_check=1, conf="ReturnToService=2\nBatchStartTimeout=5\nMessageTimeout=5")
    block = Held(site.cluster, "--gres=gpu:7", "--no-requeue").wait_started()
    began = time.monotonic()
    site.cluster.wait_until("the jobs to be old enough", lambda: time.monotonic() > began + 15)
    waiting = [site.cluster.sbatch("echo $SLURM_JOB_GPUS", f"--gres=gpu:{n}") for n in (1, 1, 2, 4, 7)]
    reboot(site)
    site.cluster.wait_until("the job to be lost", lambda: site.cluster.job(block.job_id).state == "NODE_FAIL", 60)
    again = held(site, 0)
    assert again.job_id != hold.job_id
    assert again.boot_id != hold.boot_id
    given = [gpus_of(site.cluster, job) for job in waiting]
    assert all(given)
    assert [g for g in given if "0" in g.split(",")] == []
    assert not site.cluster.node().out


def test_a_gpu_in_use_is_left_to_its_jobs_epilog(start) -> None:
    site = start(Site(RULES, health_check=1))
    job = Held(site.cluster, "--gres=gpu:1").wait_started()
    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        ledger.exclude(Exclusion(site.uuid(0), "NVL-STORM", "gpu0", "ada", time.time_ns(), way=QUARANTINE))
    checks = len(site.runs("health_check"))
    site.cluster.wait_until("three more health checks", lambda: len(site.runs("health_check")) >= checks + 3)
    assert ours(site) == []
    job.let_go()
    held(site, 0)


GPU_PARTITION = "PartitionName=gpu Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=10"
OWN_PARTITION = "PartitionName=nvhc Nodes={nodes} Hidden=YES RootOnly=YES PreemptMode=OFF MaxTime=UNLIMITED State=UP PriorityTier="
NAMED = RULES.replace("enabled: true", "enabled: true, partition: nvhc")


def in_partitions(conf: str, tier: int, policy: str) -> Site:
    site = Site(policy, conf=conf)
    site.cluster.partitions = f"{GPU_PARTITION}\n{OWN_PARTITION}{tier}"
    return site


def test_where_slurm_preempts_a_partition_of_its_own_hurts_nobody(start) -> None:
    """Tier 0 preempts nobody, and PreemptMode=OFF keeps it from being preempted by users' jobs of a higher tier."""
    site = start(in_partitions("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE", 0, NAMED))
    bad = Held(site.cluster, "--gres=gpu:1").wait_started()
    neighbour = Held(site.cluster, "--gres=gpu:4").wait_started()
    waiting = site.cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:7")
    site.storm(gpu=0)
    bad.let_go()
    hold = held(site, 0)
    assert "Partition=nvhc" in site.cluster.run("scontrol", "show", "job", hold.job_id).stdout
    assert site.cluster.job(neighbour.job_id)[1:4] == ("RUNNING", "None", 0), "not preempted, not requeued"
    neighbour.finish()
    assert gpus_of(site.cluster, waiting) == "1,2,3,4,5,6,7"
    assert held(site, 0) == hold


def test_where_slurm_preempts_no_partition_of_users_is_taken(start) -> None:
    site = start(in_partitions("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE", 0, RULES))
    site.cluster.run("scontrol", "update", "partitionname=nvhc", "state=DOWN")
    job = Held(site.cluster, "--gres=gpu:1").wait_started()
    site.storm(gpu=0)
    job.let_go()
    site.cluster.wait_node("drained")
    (step,) = [d for d in site.wait_run("epilog", job.job_id).outcome["done"] if d["kind"] == "quarantine"]
    assert "partition gpu has jobs that may be preempted" in step["detail"]


def test_a_partition_that_comes_first_needs_no_reservation(start) -> None:
    site = start(in_partitions("", 20, NAMED))
    job = Held(site.cluster, "--gres=gpu:1").wait_started()
    waiting = [site.cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:8"), site.cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:7")]
    site.storm(gpu=0)
    job.let_go()
    held(site, 0)
    assert gpus_of(site.cluster, waiting[1]) == "1,2,3,4,5,6,7"
    assert site.cluster.job(waiting[0]).state == "PENDING"
    assert "REQUEST_CREATE_RESERVATION" not in site.cluster.request_counts()


# --- when it can not be -------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ({"DisableRootJobs=YES": ""}, "root"),
        ({"": "PartitionName=gpu Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE"}, "whole nodes"),
    ],
    ids=["no jobs of root", "exclusive"],
)
def test_where_it_is_refused_the_node_is_drained(start, lines: dict[str, str], why: str) -> None:
    ((conf, partition),) = lines.items()
    site = Site(RULES, conf=conf)
    site.cluster.partitions = partition
    start(site)
    job = Held(site.cluster, "--gres=gpu:1").wait_started()
    site.storm(gpu=0)
    job.let_go()
    node = site.cluster.wait_node("drained")
    assert node.reason.startswith("nvhc: ")
    run = site.wait_run("epilog", job.job_id)
    (step,) = [d for d in run.outcome["done"] if d["kind"] == "quarantine"]
    assert why in step["detail"]
    assert reservations(site) == "No reservations in the system"


def test_what_can_not_be_placed_in_time_is_drained_before_users_come(start) -> None:
    """The placeholder jobs get every GPU but the bad one: root has it, in a job that looks like ours, so nobody waits for its end."""
    site = start(LoadedSite(place_within="10s"))
    cluster = site.cluster
    block = cluster.run("sbatch", "--parsable", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "touch blocked; exec sleep 600").stdout.strip()
    cluster.wait_until("its prolog to end", (cluster.root / "work" / "blocked").exists)
    cluster.run("scontrol", "update", f"jobid={block}", "comment=nvhc-hold")
    waiting = cluster.sbatch("true", "--gres=gpu:8")
    load = Load(site)
    load.declare(0)
    node = cluster.wait_until("the node to be out", lambda: n if (n := cluster.node()).out else None, 60)
    assert node.reason.startswith("nvhc: GPU-EXCLUDED ")
    assert "could not be quarantined within 10 s" in node.reason
    cluster.wait_until("the reservation to be gone", lambda: reservations(site) == "No reservations in the system")
    assert cluster.job(waiting).state == "PENDING"
    cluster.run("scancel", block)
    cluster.wait_node("drained")


def test_a_users_comment_does_not_fool_the_prolog(start) -> None:
    site = start(Site(RULES))
    site.remap_failure(gpu=0)
    job = site.cluster.sbatch('touch "ran.$SLURM_JOB_ID"', "--gres=gpu:1", "--comment=nvhc-hold", "-J", "nvhc-hold")
    site.wait_run("prolog", job)
    site.cluster.wait_node("drained")
    assert not (site.cluster.root / "work" / f"ran.{job}").exists()
    assert not os.path.isdir(f"{site.options.run}/n1/hold") or not os.listdir(f"{site.options.run}/n1/hold")


# --- under load ---------------------------------------------------------------


@pytest.mark.without_slurm
@pytest.mark.parametrize(
    ("note", "found"),
    [
        ("14.99 start 8 3", 0), ("15.00 start 8 3", 1), ("15.50 start 8 1,3", 1), ("16.50 start 8 3", 1), ("17.01 start 8 3", 0),
        ("15.50 start 8 1,2", 0), ("15.50 start 8", 0), ("15.50 end 8 3", 0),
    ],
)  # fmt: skip
def test_the_count_sees_what_it_is_for(tmp_path: Path, note: str, found: int) -> None:
    (tmp_path / "work").mkdir()
    site = SimpleNamespace(cluster=SimpleNamespace(root=tmp_path))
    load = Load(site)  # type: ignore[arg-type]
    load.log.write_text(f"{note}\n")
    load.transitions.append(Transition(3, 15.0, 16.0, 17.0))
    assert len(load.given_out()) == found


def test_under_load_a_bad_gpu_is_given_out_to_nobody(start) -> None:
    site = start(LoadedSite())
    with Load(site) as load:
        while len(load.transitions) < TRANSITIONS or load.starts() < STARTS:
            first, second = load.random.sample(range(site.cluster.gpus), 2)
            load.transition(first, second)
            load.wait_starts(max(1, min(STARTS // (TRANSITIONS // 2), STARTS - load.starts())))
    assert load.trouble() == ""
    assert load.given_out() == []
    assert len(load.seconds_to_hold()) == len(load.transitions)
    assert reservations(site) == "No reservations in the system"
    assert not site.cluster.node().out
