"""Whose drain is it, on a real slurmctld: every way in which a reason comes to stand on a node, and what we do about it.

The health check is run by hand, as slurmd runs it: with nothing but the node's name in its environment.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from harness import SlurmTrouble
from site_nvhc import DRAIN_RULES, Held, Site

from slurm_nvhc.model.protective import Pause
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.protective import Protective
from slurm_nvhc.sense.sim.world import World

HEALING = DRAIN_RULES + "drain: {resume: own, resume_passes: 2, resume_after: 0s}\n"
# The epilog of a site beside ours. (Of several Epilog lines the last one counts on 22.05; a pattern runs them all.)
TWO_EPILOGS = "Epilog={root}/epilogs/*.sh"


def health_check(site: Site, times: int = 1) -> None:
    for _ in range(times):
        launcher = os.path.join(site.options.libdir, "nvhc-health-check.sh")
        subprocess.run([launcher], env={"SLURMD_NODENAME": "n1"}, stdin=subprocess.DEVNULL, check=True, timeout=60)


def kept(site: Site) -> Protective:
    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        return ledger.protective()


def cure(site: Site, gpu: int = 6) -> None:
    with World.edit(site.worlds["n1"]) as world:
        world.set(f"g{gpu}.395", 0)


def update(site: Site, *words: str) -> None:
    site.cluster.run("scontrol", "update", "nodename=n1", *words)


def drained_by_us(site: Site) -> str:
    """A health check finds a failed row remap and drains; the reason."""
    health_check(site)
    site.remap_failure()
    health_check(site)
    reason = site.cluster.wait_node("drained").reason
    assert reason.startswith("nvhc: MEM-REMAP-FAILED gpu6")
    own = kept(site).own_drain
    assert own is not None
    assert own.reason == reason
    assert own.stamp.startswith("root@20"), "known by who set it when"
    return reason


def why_not(site: Site) -> str:
    return " ".join(s["why"] for s in site.runs("health_check")[-1].steps if s["kind"] == "note")


def another_second() -> None:
    """Slurm says when a reason was set in whole seconds."""
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.01)


def test_the_node_comes_back_once_it_is_well(start) -> None:
    site = start(Site(HEALING))
    drained_by_us(site)
    health_check(site, 3)
    assert site.cluster.node().out, "the fault is still there"
    cure(site)
    health_check(site)
    assert site.cluster.node().out, "one look is none"
    health_check(site)
    site.cluster.wait_node("idle")
    assert (kept(site).own_drain, kept(site).intents) == (None, ())
    assert site.cluster.srun("--gres=gpu:8", "true").returncode == 0
    # It fails and is cured again, and then a third time: that is for an administrator.
    for _ in range(2):
        site.remap_failure()
        health_check(site)
        site.cluster.wait_node("drained")
        cure(site)
        health_check(site, 4)
    own = kept(site).own_drain
    assert site.cluster.wait_node("drained")
    assert own is not None
    assert own.barred
    site.cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    health_check(site)
    assert kept(site).own_drain is None


@pytest.mark.parametrize("who", ["before ours", "after ours", "ours set anew"])
def test_a_drain_of_an_administrator_stays(start, who: str) -> None:
    site = start(Site(HEALING))
    if who == "before ours":
        health_check(site)
        update(site, "state=drain", "reason=psu swap")
        site.remap_failure()
        health_check(site)
        reason = "psu swap"
    else:
        reason = drained_by_us(site)
        another_second()
        update(site, "state=drain", "reason=psu swap")
        if who == "ours set anew":
            update(site, "state=drain", f"reason={reason}")  # by the text alone it is ours again
        else:
            reason = "psu swap"
    cure(site)
    health_check(site, 4)
    node = site.cluster.wait_node("drained")
    assert node.reason == reason
    assert kept(site).own_drain is None


def test_an_epilog_of_somebody_else_that_fails_leaves_no_trace_so_the_node_stays_out(start) -> None:
    site = Site(HEALING, conf=TWO_EPILOGS)
    folder = site.cluster.root / "epilogs"
    folder.mkdir()
    (folder / "theirs.sh").write_text("#!/bin/sh\nexit 1\n")
    (folder / "theirs.sh").chmod(0o755)
    (folder / "nvhc-epilog.sh").symlink_to(os.path.join(site.options.libdir, "nvhc-epilog.sh"))
    start(site)
    job = Held(site.cluster, "--gres=gpu:1").wait_started()
    site.remap_failure()
    health_check(site)
    reason = site.cluster.wait_node("draining").reason
    job.let_go()
    site.cluster.wait_job(job.job_id, "COMPLETED")
    assert site.cluster.wait_node("drained").reason == reason, "no trace"
    cure(site)
    health_check(site, 3)
    assert site.cluster.wait_node("drained").reason == reason
    assert "leaves no trace" in why_not(site)


def test_where_only_our_epilog_runs_a_job_may_end(start) -> None:
    site = start(Site(HEALING))
    job = Held(site.cluster, "--gres=gpu:1").wait_started()
    site.remap_failure()
    health_check(site)
    site.cluster.wait_node("draining")
    cure(site)
    health_check(site, 3)
    assert site.cluster.node().state == "draining", "not while a job runs"
    job.finish()
    site.cluster.wait_node("drained")
    health_check(site)
    site.cluster.wait_node("idle")


def test_prolog_error_on_a_healthy_node_is_not_ours(start) -> None:
    site = Site(HEALING, conf="Prolog={root}/theirs.sh")
    (site.cluster.root / "theirs.sh").write_text("#!/bin/sh\nexit 1\n")
    (site.cluster.root / "theirs.sh").chmod(0o755)
    start(site)
    health_check(site)
    site.cluster.srun("--gres=gpu:1", "true", check=False)
    assert site.cluster.wait_node("drained").reason == "Prolog error"
    health_check(site, 4)
    site.remap_failure()
    health_check(site)
    cure(site)
    health_check(site, 3)
    assert site.cluster.wait_node("drained").reason == "Prolog error"


def test_a_reason_that_stands_on_a_node_in_service_is_no_drain(start) -> None:
    """24.11 keeps the reason after a resume. Here a scontrol that shows it so."""
    site = Site(HEALING)
    bin_dir = site.cluster.root / "bin"
    bin_dir.mkdir()
    shown = site.cluster.root / "shown"
    (bin_dir / "scontrol").write_text(
        "#!/bin/sh\n"
        f'out=$(/usr/bin/scontrol "$@") || exit\nprintf "%s\\n" "$out"\n[ "$1" = show ] || exit 0\n'
        f'case "$out" in *State=IDLE*DRAIN*) printf "%s\\n" "$out" | grep Reason= >{shown};;\n'
        f"  *State=IDLE*) [ ! -e {shown} ] || cat {shown};;\nesac\n"
    )
    (bin_dir / "scontrol").chmod(0o755)
    site.policy = HEALING + f"slurm: {{bin_dir: {bin_dir}}}\n"
    start(site)
    drained_by_us(site)
    health_check(site)
    cure(site)
    update(site, "state=resume")
    health_check(site, 2)
    assert (kept(site).own_drain, kept(site).intents) == (None, ())
    assert site.cluster.wait_node("idle")
    site.remap_failure()
    health_check(site)
    assert site.cluster.wait_node("drained").reason.startswith("nvhc: MEM-REMAP-FAILED gpu6")


def test_a_node_that_is_down_too_is_left(start) -> None:
    site = start(Site(HEALING))
    drained_by_us(site)
    update(site, "state=down", "reason=psu smells")
    cure(site)
    health_check(site, 4)
    node = site.cluster.node()
    assert (node.state, node.reason) == ("down", "psu smells") or node.state.startswith("drain")
    assert node.reason == "psu smells"


def test_a_reboot_that_somebody_asked_for(start) -> None:
    site = start(Site(HEALING, conf="RebootProgram=/bin/true\nResumeTimeout=60"))
    reason = drained_by_us(site)
    cure(site)
    site.cluster.run("scontrol", "reboot", "n1")
    site.cluster.wait_until("the request", lambda: "REBOOT" in site.cluster.run("scontrol", "show", "node", "n1").stdout or None)
    health_check(site, 4)
    text = site.cluster.run("scontrol", "show", "node", "n1").stdout
    assert "REBOOT" in text
    assert reason in text


def test_a_pause_and_its_end(start) -> None:
    site = start(Site(HEALING))
    health_check(site)
    now_ns = time.time_ns()
    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        ledger.set_pause(Pause(now_ns + 3600 * 10**9, "driver", "ada", now_ns))
    site.remap_failure()
    health_check(site, 2)
    assert site.cluster.srun("--gres=gpu:8", "true").returncode == 0
    assert site.cluster.wait_node("idle").reason == ""
    assert "would drain for MEM-REMAP-FAILED gpu6" in why_not(site)
    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        ledger.set_pause(None)
    health_check(site)
    site.cluster.wait_node("drained")


def nvhc(site: Site, *words: str) -> str:
    import sys

    where = ("--config", site.options.config, "--state", site.options.state, "--run", site.options.run, "--node", "n1")
    done = subprocess.run(
        [sys.executable, "-m", "slurm_nvhc.cli.main", *words, *where],
        env=site.cluster.environment(False), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode:
        raise SlurmTrouble(f"nvhc {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def test_release_and_undo(start) -> None:
    site = start(Site(HEALING, nodes=2))
    drained_by_us(site)
    cure(site)
    nvhc(site, "release", "--why", "reseated")
    site.cluster.wait_node("idle")
    assert kept(site).own_drain is None
    drained_by_us(site)
    site.cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=psu swap")
    cure(site)
    said = nvhc(site, "undo", "--since", "1h", "--cluster", "--yes")
    assert "undone: n1" in said
    assert "n2" not in said
    site.cluster.wait_node("idle")
    assert site.cluster.node("n2").reason == "psu swap"
    health_check(site)
    assert kept(site).own_drain is None
    site.cluster.wait_node("idle")


def test_the_cluster_kill_switch(start) -> None:
    site = Site(HEALING)
    switch = Path(site.cluster.root / "off")
    site.policy = HEALING + f"kill_switch: {switch}\n"
    start(site)
    health_check(site)
    switch.touch()
    site.remap_failure()
    before = len(site.runs())
    assert site.cluster.srun("--gres=gpu:8", "true").returncode == 0
    health_check(site)
    assert len(site.runs()) == before
    switch.write_text("remap\n")
    assert site.cluster.srun("--gres=gpu:8", "true").returncode == 0
    site.cluster.wait_node("idle")
    switch.unlink()
    health_check(site)
    site.cluster.wait_node("drained")
