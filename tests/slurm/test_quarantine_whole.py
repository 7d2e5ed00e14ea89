"""One GPU taken out, from the fault to the way back, through the real hooks, commands and Slurm."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Cluster
from site_nvhc import Held, Site
from test_quarantine import RULES, gpus_of, held, kept, nvhc, ours, reservations

from slurm_nvhc.model.protective import EXCLUDED, QUARANTINE, RELEASED, VERIFIED, Exclusion
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.sense.sim.world import World

MOVING = f"{RULES}requeue: {{enabled: true}}\n"


def refused(site: Site, *words: str) -> str:
    options = site.options
    places = ("--config", options.config, "--state", options.state, "--run", options.run, "--node", "n1")
    done = site.cluster.run(str(site.python), "-m", "slurm_nvhc.cli.main", *words, *places, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def seven(cluster: Cluster, without: int) -> None:
    job = cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:7")
    assert gpus_of(cluster, job) == ",".join(str(n) for n in range(8) if n != without)


def eight(cluster: Cluster) -> None:
    assert gpus_of(cluster, cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:8")) == "0,1,2,3,4,5,6,7"


def test_from_the_storm_to_the_release(start: Any) -> None:
    site = start(Site(RULES))
    cluster = site.cluster
    job = Held(cluster, "--gres=gpu:1").wait_started()
    site.storm(gpu=0)
    job.let_go()
    hold = held(site, 0)
    (one,) = kept(site).exclusions
    assert (one.stage, one.way, one.who, one.code) == (EXCLUDED, QUARANTINE, "nvhc", "NVL-STORM")
    assert one.slot
    assert one.until_ns - one.since_ns == 7 * 86400 * 10**9
    seven(cluster, without=0)
    assert f"quarantine, job {hold.job_id}" in nvhc(site, "gpu", "list")

    nvhc(site, "gpu", "verify", "gpu0", "--why", "diagnostic failed")
    assert kept(site).exclusions[0].stage == VERIFIED
    assert "has a fault that was proven" in refused(site, "gpu", "release", "gpu0")
    seven(cluster, without=0)
    nvhc(site, "gpu", "release", "gpu0", "--force", "--why", "card reseated")
    cluster.wait_until("the hold to be gone", lambda: not ours(site))
    eight(cluster)
    state = kept(site)
    assert (state.exclusions, state.holds) == ((), ())
    assert [(e.how, e.why) for e in state.ended] == [(RELEASED, "card reseated")]
    assert cluster.node().reason == ""


def test_by_hand_when_it_is_free_and_when_it_is_not(start: Any) -> None:
    site = start(Site(f"{RULES}quarantine: {{enabled: true, max_gpus: 2}}\n".replace("quarantine: {enabled: true}\n", "", 1)))
    cluster = site.cluster
    cluster.wait_job(cluster.sbatch("true", "--gres=gpu:1"), "COMPLETED")  # a hook has run: there is a ledger
    nvhc(site, "gpu", "exclude", "gpu5", "--why", "a user says it is slow")
    held(site, 5)
    seven(cluster, without=5)
    nvhc(site, "gpu", "release", "gpu5")
    cluster.wait_until("the hold to be gone", lambda: not ours(site))

    job = Held(cluster, "--gres=gpu:1").wait_started()
    assert f"job {job.job_id} uses it" in nvhc(site, "gpu", "exclude", "gpu0", "--why", "a user says it is slow")
    assert ours(site) == []
    job.let_go()
    held(site, 0)
    seven(cluster, without=0)
    assert reservations(site) == "No reservations in the system"


def test_a_quarantine_that_is_too_old_drains_the_node_and_lets_the_gpu_go(start: Any) -> None:
    site = start(Site(RULES, health_check=1))
    cluster = site.cluster
    site.wait_run("health_check")
    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        old = Exclusion(site.uuid(2), "NVL-STORM", "gpu2", "ada", 1, way=QUARANTINE)
        ledger.exclude(old)
    held(site, 2)  # by the health check: nobody uses it
    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        ledger.change_exclusion(old._replace(until_ns=2))
    node = cluster.wait_node("drained")
    assert node.reason.startswith("nvhc: GPU-EXCLUDED gpu2 ")
    assert node.reason.endswith(": repair it")
    cluster.wait_until("the hold to be gone", lambda: not ours(site) and not kept(site).holds)


def test_a_job_moves_away_and_its_epilog_has_the_gpu_held(start: Any) -> None:
    """The node needs no drain: seven GPUs of it work."""
    site = start(Site(MOVING, nodes=2))
    cluster = site.cluster
    site.remap_failure(gpu=0, node="n1")
    job = cluster.sbatch("echo $SLURMD_NODENAME $SLURM_JOB_GPUS", "--gres=gpu:1", "--requeue")
    held(site, 0)
    cluster.wait_job(job, "COMPLETED", 60)
    assert cluster.output(job).split()[0] == "n2" or cluster.output(job).split()[1] != "0"
    assert cluster.job(job).restarts == 1
    assert not cluster.node("n1").out
    again = cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:7", "-w", "n1")
    assert gpus_of(cluster, again) == "1,2,3,4,5,6,7"


@pytest.mark.parametrize("ended", ["scancel", "lost"])
def test_a_user_never_gets_it_while_its_hold_is_lost(start: Any, ended: str) -> None:
    """Between the loss and the next health check a job that is given the GPU does not start, and the node goes out."""
    site = start(Site(RULES))
    cluster = site.cluster
    job = Held(cluster, "--gres=gpu:1").wait_started()
    site.storm(gpu=0)
    job.let_go()
    hold = held(site, 0)
    cluster.run("scancel", hold.job_id)
    cluster.wait_job(hold.job_id, "CANCELLED")
    if ended == "lost":
        with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
            ledger.end_hold(site.uuid(0))
    victim = cluster.sbatch('touch "ran.$SLURM_JOB_ID"', "--gres=gpu:1")
    site.wait_run("prolog", victim)
    assert cluster.wait_node("drained").reason.startswith("nvhc: GPU-EXCLUDED gpu0 ")
    assert not (cluster.root / "work" / f"ran.{victim}").exists()


def test_after_a_reboot_it_is_held_again_before_users_come(start: Any) -> None:
    """Played: Slurm takes the node down, which ends its jobs, and the simulated node comes back with another boot."""
    site = start(Site(RULES, health_check=1))
    cluster = site.cluster
    job = Held(cluster, "--gres=gpu:1").wait_started()
    site.storm(gpu=0)
    job.let_go()
    before = held(site, 0)
    cluster.run("scontrol", "update", "nodename=n1", "state=down", "reason=reboot")
    cluster.wait_until("the old hold to end", lambda: before.job_id not in "".join(ours(site)))
    with World.edit(site.worlds["n1"]) as world:
        world.reboot(60)
    waiting = [cluster.sbatch("echo $SLURM_JOB_GPUS", "--gres=gpu:1") for _ in range(4)]
    cluster.wait_until("placeholder jobs to wait for the node", lambda: any("PENDING" in line for line in ours(site)), 30)
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    after = held(site, 0)
    assert after.job_id != before.job_id
    given = [gpus_of(cluster, job) for job in waiting]
    assert "0" not in given
