"""A reboot through a real slurmctld: asked for once, for our own drain, with the evidence kept before.

RebootProgram only notes that it was run; the node "reboots" when its slurmd is ended and started as after a boot.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import processes
from harness import Node
from site_nvhc import Held, Site

from slurm_nvhc.record.run import Run

POLICY = """\
schema: 1
defaults: false
rules:
  recovery: {finding: GPU-RECOVERY, field: recovery_action, fail: {value_is: 2}, action: drain}
reboot: {enabled: true}
"""
REBOOT_PROGRAM = "RebootProgram={root}/reboot.sh\nResumeTimeout=60"


def a_site(more: str = "", conf: str = REBOOT_PROGRAM) -> Site:
    site = Site(POLICY + more, health_check=1, conf=conf)
    root = site.cluster.root
    program(root / "reboot.sh", f"cp {root}/on_reboot.json {root}/told_before 2>/dev/null; date +%s >>{root}/rebooted")
    return site


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def times_rebooted(site: Site) -> int:
    path = site.cluster.root / "rebooted"
    return len(path.read_text().splitlines()) if path.exists() else 0


def break_gpu(site: Site) -> None:
    with site_world(site) as world:
        world.set("g3.1523", 2)


def site_world(site: Site) -> Any:
    from slurm_nvhc.sense.sim.world import World

    return World.edit(site.worlds["n1"])


def protective(site: Site) -> Any:
    from slurm_nvhc.record.ledger import Ledger

    with Ledger.open(f"{site.options.state}/n1", 5.0) as ledger:
        return ledger.protective()


def comes_back(site: Site) -> None:
    """What the machine does: it goes down, and is up again with its GPUs reset."""
    cluster = site.cluster
    processes.end([processes.pid_in(cluster.root / "run" / "slurmd-n1.pid")])
    with site_world(site) as world:
        world.reboot()
        world.set("g3.1523", 0)
    cluster.start_slurmd("n1", rebooted=True)


def wait_checks(site: Site, number: int) -> list[Run]:
    """The runs of so many health checks from now on."""
    known = len(site.runs("health_check"))
    site.cluster.wait_until("health checks", lambda: len(site.runs("health_check")) >= known + number, 60)
    return site.runs("health_check")[known:]


def flags(site: Site) -> str:
    return site.cluster.run("scontrol", "show", "node", "n1").stdout


def test_once_around(start: Any) -> None:
    site = a_site()
    root = site.cluster.root
    told = program(root / "on_reboot", f"cat >{root}/on_reboot.json")
    site.policy = f"{POLICY}site_hooks: {{on_reboot: {told}}}\n"
    start(site)
    job = Held(site.cluster, "--gres=gpu:1").wait_started()
    break_gpu(site)
    site.cluster.wait_node("draining")
    wait_checks(site, 2)
    assert times_rebooted(site) == 0, "a job runs"
    assert "REBOOT" not in flags(site)
    reason = site.cluster.node().reason
    assert reason.endswith("; do: reboot")
    job.finish()
    site.cluster.wait_until("the reboot", lambda: times_rebooted(site) == 1, 60)
    event = json.loads((root / "told_before").read_text())
    assert (event["event"], event["reason"]) == ("reboot", reason)
    assert "-GPU-RECOVERY-" in os.path.basename(event["evidence"])
    assert Path(event["evidence"]).exists()
    assert f"Reason={reason} : reboot issued" in flags(site)
    kept = protective(site)
    assert kept.own_drain is not None
    assert [s.kind for s in kept.strikes] == ["fault", "reboot"]
    assert kept.intents == ()

    comes_back(site)
    site.cluster.wait_node("idle", seconds=60)
    wait_checks(site, 2)
    assert site.cluster.node().state == "idle"
    assert protective(site).own_drain is None

    # It comes back: one reboot did not cure it, so the ladder asks for more than a second one.
    break_gpu(site)
    node: Node = site.cluster.wait_node("drained", seconds=60)
    assert node.reason.endswith("; do: reseat, field diagnostic")
    wait_checks(site, 3)
    assert times_rebooted(site) == 1
    assert site.cluster.node().reason == node.reason


def test_applied_without_an_answer_and_asked_for_once(start: Any) -> None:
    """The request times out after slurmctld took it: the state is read again, and nothing is asked for twice."""
    site = a_site()
    root = site.cluster.root
    (root / "bin").mkdir()
    slow = f'echo "$*" >>{root}/calls; [ "$1" = reboot ] || exec /usr/bin/scontrol "$@"; /usr/bin/scontrol "$@"; sleep 60'
    program(root / "bin" / "scontrol", slow)
    site.policy = f"{POLICY}slurm: {{bin_dir: {root}/bin, timeout: 1s}}\n"
    start(site)
    break_gpu(site)
    site.cluster.wait_until("the reboot", lambda: times_rebooted(site) == 1, 60)
    wait = site.cluster.wait_until
    wait("the run that asked", lambda: [r for r in site.runs() if any(d["kind"] == "reboot" for d in r.outcome["done"])], 60)
    kept = protective(site)
    assert [s.kind for s in kept.strikes] == ["fault", "reboot"]
    assert kept.intents == (), "it was seen in Slurm"
    assert sum(line.startswith("reboot") for line in (root / "calls").read_text().splitlines()) == 1
    comes_back(site)
    site.cluster.wait_node("idle", seconds=60)
    wait_checks(site, 2)
    assert sum(line.startswith("reboot") for line in (root / "calls").read_text().splitlines()) == 1


def test_without_a_reboot_program_slurm_refuses(start: Any) -> None:
    site = start(a_site(conf=""))
    break_gpu(site)
    node = site.cluster.wait_node("drained", seconds=60)

    def refused() -> Any:
        return [r for r in site.runs("health_check") if any(d["kind"] == "reboot" for d in r.outcome["done"])]

    (run, *_) = site.cluster.wait_until("the refusal", refused, 60)
    assert any(t["code"] == "MON-SLURM" and "RebootProgram" in t["detail"] for t in run.outcome["troubles"])
    wait_checks(site, 2)
    kept = protective(site)
    assert [(i.kind, i.tries) for i in kept.intents] == [("reboot", 1)], "tried again later, not at each health check"
    assert [s.kind for s in kept.strikes] == ["fault", "reboot"]
    assert site.cluster.node() == node, "still drained by us, for the same reason"
