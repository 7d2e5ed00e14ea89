"""The main job on a real Slurm: what an administrator and a user get to see."""

from __future__ import annotations

import re
from pathlib import Path

from harness import Cluster
from site_nvhc import Held, Site


def test_healthy_job_leaves_no_trace(start) -> None:
    site = start(Site())
    cluster = site.cluster
    job = cluster.sbatch("true", "--gres=gpu:8")
    cluster.wait_job(job, "COMPLETED")
    assert site.wait_run("epilog", job).verdict == "ok"
    assert [run.hook for run in site.runs()] == ["prolog", "epilog"]
    cluster.wait_quiet()
    node = cluster.wait_node("idle")
    assert node.reason == ""
    shown = cluster.run("scontrol", "show", "node", "n1").stdout
    assert "Comment=" not in shown
    assert "Reason=" not in shown
    assert site.narrow_files() == []
    assert leftovers(site) == []


def leftovers(site: Site) -> list[str]:
    """Processes of our hooks that still exist."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(site.cluster.root) in command and ("slurm_nvhc" in command or "nvhc-" in command.split("/")[-1]):
            found.append(command.replace("\0", " "))
    return found


def test_healthy_hooks_make_no_request(start) -> None:
    site = start(Site())

    def counts_of_a_job() -> dict[str, int]:
        site.cluster.reset_request_counts()
        site.cluster.sbatch("true", "--gres=gpu:1")  # srun would ask again and again while the prolog runs

        def counted() -> dict[str, int]:
            counts = site.cluster.request_counts()
            return counts if counts.get("MESSAGE_EPILOG_COMPLETE") else {}

        counts = site.cluster.wait_until("the epilog to end", counted)
        # slurmd and slurmctld talk about the node's registration and health at moments of their own.
        return {k: v for k, v in counts.items() if k not in ("MESSAGE_NODE_REGISTRATION_STATUS", "REQUEST_FED_INFO")}

    counts_of_a_job()  # the first one also fetches what daemons keep
    with_hooks = counts_of_a_job()
    assert len(site.runs("epilog")) == 2
    kill_switch = Path(site.options.kill_switch)
    kill_switch.touch()
    without = counts_of_a_job()
    assert len(site.runs("epilog")) == 2
    assert with_hooks == without


def test_storm_drains_with_the_whole_story(start) -> None:
    site = start(Site())
    job = Held(site.cluster, "--gres=gpu:8").wait_started()
    site.storm(gpu=3, link=11, amount=21200, minutes=41)
    assert site.cluster.node().state == "allocated" or site.cluster.node().state == "mixed"
    job.finish()
    node = site.cluster.wait_node("drained")
    assert node.user == "root"
    uuid, pci = site.uuid(3), site.world().gpu("g3").identity.pci
    said = rf"nvhc: NVL-STORM gpu3 {re.escape(uuid[:8])}\S* {re.escape(pci)} link11 replay \+21200 in 41m job {job.job_id}; do: reset GPU"
    assert re.fullmatch(said, node.reason)
    assert site.cluster.job(job.job_id).state == "COMPLETED"


def test_fault_in_the_prolog_bounces_the_job_and_keeps_our_reason(start) -> None:
    site = start(Site())
    site.remap_failure(gpu=6)
    job = site.cluster.sbatch('touch "ran.$SLURM_JOB_ID"', "--gres=gpu:8")
    node = site.cluster.wait_node("drained")
    assert node.reason.startswith("nvhc: MEM-REMAP-FAILED gpu6 ")
    info = site.cluster.wait_until("the job to be back in the queue", lambda: _pending(site.cluster, job))
    assert info.restarts == 1
    site.cluster.wait_until("its epilog to end", lambda: site.cluster.node().state == "drained")
    assert site.cluster.node().reason == node.reason
    assert not (site.cluster.root / "work" / f"ran.{job}").exists()


def _pending(cluster: Cluster, job_id: str):  # type: ignore[no-untyped-def]
    info = cluster.job(job_id)
    return info if info.state == "PENDING" and info.restarts else None


def test_a_bounced_job_runs_on_another_node(start) -> None:
    site = start(Site(nodes=2))
    site.remap_failure(gpu=0, node="n1")
    job = site.cluster.sbatch("echo $SLURMD_NODENAME", "--gres=gpu:1")
    site.cluster.wait_job(job, "COMPLETED")
    assert site.cluster.output(job) == "n2\n"
    assert site.cluster.node("n1").reason.startswith("nvhc: MEM-REMAP-FAILED gpu0 ")
    assert site.cluster.node("n2").state == "idle"


def test_an_administrators_drain_survives_every_hook(start) -> None:
    site = start(Site(health_check=1))
    job = Held(site.cluster, "--gres=gpu:8").wait_started()
    site.cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=ADMIN: psu swap")
    before = site.cluster.node()
    site.storm()
    site.remap_failure()
    checks = len(site.runs("health_check"))
    job.finish()
    assert site.wait_run("epilog", job.job_id).verdict == "fail"
    site.cluster.wait_until("two more health checks", lambda: len(site.runs("health_check")) >= checks + 2)
    after = site.cluster.wait_node("drained")
    assert (after.reason, after.user) == (before.reason, before.user) == ("ADMIN: psu swap", "root")


def test_only_the_guilty_gpus_job_is_judged(start) -> None:
    site = start(Site())
    first = Held(site.cluster, "--gres=gpu:4").wait_started()  # positions 0-3
    second = Held(site.cluster, "--gres=gpu:4").wait_started()  # positions 4-7
    site.storm(gpu=5, link=2, amount=500, minutes=10)
    first.finish()
    innocent = site.wait_run("epilog", first.job_id)
    assert (innocent.verdict, [f.code for f in innocent.findings]) == ("ok", [])
    assert site.cluster.node().state == "mixed"
    second.finish()
    node = site.cluster.wait_node("drained")
    assert node.reason.startswith("nvhc: NVL-STORM gpu5 ")
    assert f" job {second.job_id}; do: " in node.reason


def test_health_check_drains_an_idle_node_once(start) -> None:
    site = start(Site(health_check=1))
    site.wait_run("health_check")
    assert site.cluster.node().state == "idle"
    site.cluster.reset_request_counts()
    site.remap_failure(gpu=2)
    node = site.cluster.wait_node("drained")
    assert node.reason.startswith("nvhc: MEM-REMAP-FAILED gpu2 ")
    seen = len(site.runs("health_check"))
    site.cluster.wait_until("three more health checks", lambda: len(site.runs("health_check")) >= seen + 3)
    assert site.cluster.node() == node
    assert site.cluster.request_counts().get("REQUEST_UPDATE_NODE") == 1


def test_four_nodes_and_one_fault(start) -> None:
    site = start(Site(nodes=4))
    job = Held(site.cluster, "-N4", "--gres=gpu:8").wait_started()
    for name in site.cluster.names:
        site.wait_run("prolog", job.job_id, name)
    site.storm(gpu=1, link=4, amount=3000, node="n3", minutes=5)
    job.finish()
    node = site.cluster.wait_node("drained", "n3")
    assert node.reason.startswith("nvhc: NVL-STORM gpu1 ")
    for name in ("n1", "n2", "n4"):
        site.wait_run("epilog", job.job_id, name)
        assert site.cluster.wait_node("idle", name).reason == ""


def test_what_slurmctld_did_not_hear_is_told_later(start) -> None:
    # slurmctld itself asks for health checks, so none runs while it is down: here only scontrol does not reach it.
    site = Site(health_check=1)
    tools = site.cluster.root / "tools"
    tools.mkdir()
    scontrol = tools / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 'slurm_load_node error: Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    scontrol.chmod(0o755)
    site.policy += f"slurm: {{bin_dir: {tools}}}\n"
    start(site)
    site.remap_failure(gpu=4)
    site.cluster.wait_until("the fault to be seen", lambda: any(r.verdict == "fail" for r in site.runs("health_check")))
    assert site.cluster.node().state == "idle"
    scontrol.unlink()
    scontrol.symlink_to("/usr/bin/scontrol")
    assert site.cluster.wait_node("drained").reason.startswith("nvhc: MEM-REMAP-FAILED gpu4 ")
