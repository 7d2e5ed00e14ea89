"""`nvhc sweep` on a real Slurm with four simulated nodes, and `nvhc diag` in a real allocation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Iterator, Optional

import patient
import pytest
from harness import JOB_USER, Cluster
from site_nvhc import DRAIN_RULES, Held, Site

from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.sense.sim.world import World

pytestmark = pytest.mark.xdist_group("sweep")  # its tests share a cluster

# A diagnostic that a site turns on by its own rule; nothing is asked of the hooks.
RULES = DRAIN_RULES + "  diag: {finding: DIAG-FAIL, fail: {diag: fail, severity: isolate}, action: narrow}\n"
PARTITIONS = (
    "PartitionName=gpu Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF\n"
    "PartitionName=low Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL\n"
    "PartitionName=short Nodes={nodes} MaxTime=1 State=UP PriorityTier=1 PreemptMode=CANCEL Hidden=YES"
)
PREEMPT = "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL"
RESERVATION = "nvhc-test"
MANY = patient.PROCESS_S  # real seconds: such a diagnostic does not end while a test lasts


class SweepSite(Site):
    def __init__(self) -> None:
        super().__init__(RULES, nodes=4, conf=PREEMPT)
        self.cluster.partitions = PARTITIONS

    def __enter__(self) -> SweepSite:
        super().__enter__()
        launcher = self.cluster.root / "opt" / "bin" / "nvhc"
        launcher.parent.mkdir()
        launcher.write_text(f'#!/bin/sh\nexec {self.python} -I -m slurm_nvhc.cli.main "$@"\n')
        launcher.chmod(0o755)
        self.nvhc = str(launcher)
        return self

    def plan(self, node: str, **what: Any) -> None:
        with World.edit(self.worlds[node]) as world:
            world.diag_plan(**what)

    def running(self, node: str) -> bool:
        return self.world(node).diag.running is not None

    def mark(self, node: str) -> str:
        with Ledger.open(f"{self.options.state}/{node}", patient.LEDGER_S) as ledger:
            return ledger.get("diag_running")

    def places(self) -> list[str]:
        options = self.options
        conf = str(self.cluster.slurm_conf)
        return ["--config", options.config, "--state", options.state, "--run", options.run, "--slurm-conf", conf]

    def argv(self, *words: str, folder: str = "out") -> list[str]:
        where = ["--dir", str(self.cluster.root / folder), "--partition", "low", "--nvhc", self.nvhc, "--every", "200ms", "--json"]
        return [self.nvhc, "sweep", *where, *words, *self.places(), "--node", "head"]

    def sweep(self, *words: str, folder: str = "out") -> tuple[int, dict[str, Any], str]:
        done = self.cluster.run(*self.argv(*words, folder=folder), check=False, timeout=patient.PROCESS_S)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    def begin(self, *words: str, folder: str = "out") -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*words, folder=folder), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd="/", env=self.cluster.environment(False),
        )  # fmt: skip

    def kept(self, folder: str) -> list[str]:
        path = self.cluster.root / folder / "nodes"
        return sorted(name.removesuffix(".json") for name in os.listdir(path)) if path.is_dir() else []

    def queue(self) -> list[str]:
        return self.cluster.run("squeue", "-h", "-u", "root", "-o", "%j %T %n %P %Q").stdout.splitlines()

    def calm(self) -> None:
        """As before the next test: no job, no plan, all nodes in service."""
        self.cluster.run("scontrol", "delete", f"reservationname={RESERVATION}", check=False)
        self.cluster.wait_quiet()
        for name in self.cluster.names:
            if self.cluster.node(name).out:
                self.cluster.run("scontrol", "update", f"nodename={name}", "state=resume")
            with World.edit(self.worlds[name]) as world:
                world.diag_plan()
                world.diag_result("memory", "pass", "*")
        for name in self.cluster.names:
            self.cluster.wait_node("idle", name)


@pytest.fixture(scope="module")
def shared() -> Iterator[SweepSite]:
    with SweepSite() as site:
        yield site


@pytest.fixture
def site(shared: SweepSite) -> SweepSite:
    shared.calm()
    return shared


def verdicts(told: dict[str, Any]) -> dict[str, str]:
    return {row["node"]: row["verdict"] for row in told["nodes"]}


def missed(told: dict[str, Any]) -> dict[str, str]:
    return {row["node"]: row["why"] for row in told["missed"]}


def test_one_bad_gpu_one_drained_node_and_never_more_than_the_cap(site: SweepSite) -> None:
    cluster = site.cluster
    with World.edit(site.worlds["n2"]) as world:
        world.diag_result("memory", "fail", "g5", error=58, text="memory mismatch", severity="isolate")
    for name in ("n1", "n2", "n3"):
        site.plan(name, real_seconds=1.5)
    cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=dead fan")
    process = site.begin("--at-once", "2", folder="first")
    most, seen = 0, []
    while process.poll() is None:
        jobs = site.queue()
        most = max(most, len([job for job in jobs if "COMPLETING" not in job]))
        seen += jobs
    out, err = process.communicate()
    told = json.loads(out)
    assert (process.returncode, told["verdict"]) == (1, "fail"), err
    assert verdicts(told) == {"n1": "ok", "n2": "fail", "n3": "ok"}
    (bad,) = [row for row in told["nodes"] if row["node"] == "n2"]
    assert [gpu["name"] for gpu in bad["gpus"]] == ["gpu5"]
    assert bad["gpus"][0]["uuid"] == site.uuid(5, "n2")
    assert "memory mismatch" in bad["gpus"][0]["why"]
    assert bad["document"]["ground"]["how"] == "allocation"
    assert missed(told) == {"n4": "drained: dead fan"}
    assert most == 2
    assert all(" low " in job for job in seen)
    assert not cluster.node("n2").out, "a sweep drains nothing"
    assert all(not site.mark(name) for name in ("n1", "n2", "n3"))


def test_the_drained_node_by_hand(site: SweepSite) -> None:
    site.cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=dead fan")
    words = [site.nvhc, "diag", "--level", "2", "--node", "n4", *site.places()]
    done = site.cluster.run(*words, check=False)
    assert done.returncode == 0, done.stderr
    assert "the node is drained and has no job" in done.stdout
    other = site.cluster.run(*[word.replace("n4", "n1") for word in words], check=False)
    assert other.returncode == 3
    assert "jobs may start on it" in other.stdout


def test_the_drained_node_through_a_reservation(site: SweepSite) -> None:
    """As docs/diagnostics.md says it: reserved for root, then resumed, swept, and drained again."""
    cluster = site.cluster
    cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=dead fan")
    made = ["users=root", "flags=maint,ignore_jobs", "starttime=now", "duration=2:00:00", "nodes=n4"]
    cluster.run("scontrol", "create", "reservation", f"reservationname={RESERVATION}", *made)
    held = ["--nodes", "n4", "--reservation", RESERVATION]
    code, told, _err = site.sweep(*held, folder="reserved")
    assert (code, missed(told)) == (3, {"n4": "drained: dead fan"}), "a reservation alone starts nothing there"
    user = cluster.sbatch("true", "-w", "n4", "--gres=gpu:1")
    cluster.run("scontrol", "update", "nodename=n4", "state=resume")
    code, told, err = site.sweep(*held, folder="reserved")
    assert (code, verdicts(told)) == (0, {"n4": "ok"}), err
    assert cluster.job(user).state == "PENDING"
    cluster.run("scancel", user)
    cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=dead fan")
    cluster.run("scontrol", "delete", f"reservationname={RESERVATION}")


def test_a_busy_node_is_waited_for_and_gives_way_to_an_idle_one(site: SweepSite) -> None:
    job = Held(site.cluster, "-w", "n1", "--gres=gpu:1").wait_started()
    process = site.begin("--at-once", "1", "--nodes", "n1,n2", "--patience", "1h", folder="busy")
    of_n1 = lambda: [line.split()[1] for line in site.queue() if " n1 " in line]  # noqa: E731
    site.cluster.wait_until("n2's result and a job for n1", lambda: site.kept("busy") == ["n2"] and of_n1())
    assert of_n1() == ["PENDING"]
    job.finish()
    out, err = process.communicate(timeout=patient.PROCESS_S)
    assert process.returncode == 0, err
    assert verdicts(json.loads(out)) == {"n1": "ok", "n2": "ok"}


def test_level_1_runs_beside_jobs(site: SweepSite) -> None:
    user = site.cluster.sbatch("sleep 600", "-w", "n1", "--gres=gpu:1", "-n", "1")
    site.cluster.wait_job(user, "RUNNING")
    code, told, err = site.sweep("--nodes", "n1", "--level", "1", folder="beside")
    assert (code, verdicts(told)) == (0, {"n1": "ok"}), err
    assert site.cluster.job(user).state == "RUNNING"
    site.cluster.run("scancel", user)


def test_a_time_limit_above_the_partitions_is_told_at_once(site: SweepSite) -> None:
    code, told, err = site.sweep("--partition", "short", "--nodes", "n[1-2]", folder="short")
    assert (code, told) == (3, {})
    assert "would never start the job: PartitionTimeLimit (--time" in err
    assert site.queue() == []


def test_a_users_job_of_the_same_name_is_none_of_its_own(site: SweepSite) -> None:
    cluster = site.cluster
    site.sweep("--nodes", "n3", folder="named")
    name = json.loads((cluster.root / "named" / "sweep.json").read_text())["name"]
    job = Held(cluster, f"--job-name={name}", "-w", "n1", "--gres=gpu:1").wait_started()
    code, told, err = site.sweep("--nodes", "n2", folder="named")
    assert (code, verdicts(told)) == (0, {"n2": "ok"}), err
    assert cluster.run("squeue", "-h", "-o", "%T", "-u", JOB_USER, f"--name={name}").stdout.split() == ["RUNNING"]
    job.finish()


def test_preempted_it_ends_the_diagnostic_and_is_tried_again(site: SweepSite) -> None:
    site.plan("n1", real_seconds=MANY)
    process = site.begin("--nodes", "n1", folder="preempted")
    site.cluster.wait_until("a diagnostic on n1", lambda: site.running("n1"))
    user = Held(site.cluster, "-p", "gpu", "-w", "n1", "--gres=gpu:8").wait_started()
    assert not site.running("n1"), "no diagnostic runs beside the job that pre-empted it"
    site.plan("n1")
    user.finish()
    out, err = process.communicate(timeout=patient.PROCESS_S)
    told = json.loads(out)
    assert process.returncode == 0, err
    assert "n1: pre-empted by another job; it is tried again" in err
    assert [(row["node"], row["verdict"], row["tries"]) for row in told["nodes"]] == [("n1", "ok", 2)]


def test_cancelled_with_the_sweep_no_diagnostic_is_left(site: SweepSite) -> None:
    site.plan("n1", real_seconds=MANY)
    site.plan("n2", real_seconds=MANY)
    process = site.begin("--nodes", "n[1-3]", folder="cancelled")
    both = lambda: site.running("n1") and site.running("n2") and site.kept("cancelled") == ["n3"]  # noqa: E731
    site.cluster.wait_until("two diagnostics, and the result of n3", both)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=patient.PROCESS_S)
    assert process.returncode == 3
    assert "no job of it is left" in err
    assert verdicts(json.loads(out)) == {"n3": "ok"}
    assert [site.running(name) for name in ("n1", "n2")] == [False, False]
    assert [site.mark(name) for name in ("n1", "n2")] == ["", ""]
    site.cluster.wait_quiet()
    site.plan("n1")
    site.plan("n2")
    code, told, err = site.sweep("--nodes", "n[1-3]", folder="cancelled")
    assert (code, verdicts(told)) == (0, {"n1": "ok", "n2": "ok", "n3": "ok"})
    assert "1 of 3 nodes have a result already" in err


def test_a_killed_sweep_goes_on_where_it_was(site: SweepSite) -> None:
    site.plan("n1", real_seconds=MANY)
    process = site.begin("--nodes", "n[1-2]", folder="killed")
    site.cluster.wait_until("n2's result", lambda: site.kept("killed") == ["n2"] and site.running("n1"))
    process.kill()
    process.communicate()
    assert site.running("n1"), "its job goes on"
    code, told, err = _after(site, "n1", "--nodes", "n[1-2]", folder="killed")
    assert (code, verdicts(told)) == (0, {"n1": "ok", "n2": "ok"}), err
    assert "ending 1 jobs that an earlier run of this sweep left behind" in err
    assert "1 of 2 nodes have a result already" in err


def _after(site: SweepSite, node: str, *words: str, folder: str) -> tuple[int, dict[str, Any], str]:
    """A sweep, on whose way the node's long diagnostic becomes a short one once it was ended."""
    process = site.begin(*words, folder=folder)
    site.cluster.wait_until(f"{node}'s old diagnostic to end", lambda: not site.running(node))
    site.plan(node)
    out, err = process.communicate(timeout=patient.PROCESS_S)
    assert "Traceback" not in err
    return process.returncode, json.loads(out), err


def test_nvhc_killed_on_the_node_the_jobs_epilog_ends_it(site: SweepSite) -> None:
    site.plan("n3", real_seconds=MANY)
    process = site.begin("--nodes", "n3", "--tries", "1", folder="kill9")
    site.cluster.wait_until("a diagnostic on n3", lambda: site.running("n3"))
    (pid,) = _diags("n3")
    os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=patient.PROCESS_S)
    assert process.returncode == 3, err
    assert "nvhc on the node gave no answer" in json.loads(out)["nodes"][0]["why"]
    site.cluster.wait_quiet()
    assert (site.running("n3"), site.mark("n3")) == (False, "")


def _diags(node: str) -> list[int]:
    """Processes `nvhc diag` of jobs on this node."""
    out = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        words, variables = _of(entry, "cmdline"), _of(entry, "environ")
        if b"slurm_nvhc.cli.main" in words and b"diag" in words and f"SLURMD_NODENAME={node}".encode() in variables:
            out.append(int(entry))
    return out


def _of(entry: str, what: str) -> list[bytes]:
    try:
        return Path(f"/proc/{entry}/{what}").read_bytes().split(b"\0")
    except OSError:
        return []


# --- ground in a real allocation


def diag(site: SweepSite, *options: str, as_user: bool = False, extra: Optional[dict[str, str]] = None) -> dict[str, Any]:
    words = [site.nvhc, "diag", "--level", "2", "--json", *site.places()]
    done = site.cluster.run("srun", "-Q", *options, *words, check=False, as_user=as_user, extra_env=extra)
    assert done.stdout.startswith("{"), done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_an_allocation_is_ground_for_its_own_gpus(site: SweepSite) -> None:
    other = Held(site.cluster, "-w", "n1", "--gres=gpu:2").wait_started()
    told = diag(site, "-w", "n1", "--gres=gpu:3")
    assert (told["verdict"], told["ground"]["how"]) == ("ok", "allocation")
    assert [gpu["gpu"] for gpu in told["gpus"]] == ["gpu2", "gpu3", "gpu4"]
    none = diag(site, "-w", "n1")
    assert (none["outcome"], none["ground"]["how"]) == ("not_run", "none")
    assert "has no GPU on n1" in none["why"]
    other.finish()


def test_a_job_id_that_somebody_sets_is_no_ground(site: SweepSite) -> None:
    cluster: Cluster = site.cluster
    job = Held(cluster, "-w", "n2", "--gres=gpu:2").wait_started()
    words = [site.nvhc, "diag", "--level", "2", "--json", "--node", "n1", *site.places()]
    elsewhere = json.loads(cluster.run(*words, check=False, extra_env={"SLURM_JOB_ID": job.job_id}).stdout)
    assert elsewhere["ground"]["how"] == "none", f"a job of {JOB_USER} on another node"
    unknown = json.loads(cluster.run(*words, check=False, extra_env={"SLURM_JOB_ID": "1"}).stdout)
    assert "Slurm knows no such job" in unknown["why"]
    job.finish()
