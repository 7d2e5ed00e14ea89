"""`nvhc isolate` on a real Slurm: in allocations on four nodes at once, on a drained node, and when its allocation is taken away."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Iterator

import pytest
import yaml
from site_nvhc import DRAIN_RULES, Held, Site

from slurm_nvhc.sense.sim.world import World

pytestmark = pytest.mark.xdist_group("isolate")  # its tests share a cluster


class Isolating(Site):
    """A cluster whose policy names the simulated node's traffic command, per node."""

    def write_policy(self, rules: str) -> None:
        super().write_policy(rules)
        path = Path(self.options.config)
        document = yaml.safe_load(path.read_text())
        for name, world in self.worlds.items():
            document["nodes"][name]["isolate"] = {"traffic": [*self.traffic(world)], "timeout": "100s"}
        path.write_text(yaml.safe_dump(document))

    def traffic(self, world: str) -> list[str]:
        """A script that stays in its node's group of processes while the file "slow" is there, then moves data."""
        script = self.cluster.root / "work" / "traffic.sh"
        slow = self.cluster.root / "slow"
        if not script.exists():
            os.makedirs(script.parent, exist_ok=True)
            script.write_text(f'#!/bin/sh\n[ -e {slow} ] && {{ echo $$ >>{slow}.pids; sleep 1000; }}\nexec "$@"\n')
            script.chmod(0o755)
        return [str(script), str(self.python), "-m", "slurm_nvhc.sense.sim.traffic", "--world", world, "--seconds", "{seconds}"]

    def command(self, node: str, *words: str) -> list[str]:
        o = self.options
        places = ["--config", o.config, "--state", o.state, "--run", o.run, "--slurm-conf", o.slurm_conf, "--node", node]
        return [str(self.python), "-m", "slurm_nvhc.cli.main", "isolate", *words, *places]

    def fault(self, node: str, **fault: Any) -> None:
        with World.edit(self.worlds[node]) as world:
            world.apply({"op": "fault", **fault})

    def in_job(self, node: str, *words: str) -> subprocess.Popen[str]:
        """srun as root, on all GPUs of a node."""
        command = ["srun", "-Q", "-w", node, "--exclusive", "--gres=gpu:8", *self.command(node, *words)]
        return subprocess.Popen(
            command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=self.cluster.root / "work", env=self.cluster.environment(False),
        )  # fmt: skip

    def here(self, node: str, *words: str) -> subprocess.CompletedProcess[str]:
        """By hand on the node."""
        return self.cluster.run(*self.command(node, *words), check=False)


@pytest.fixture(scope="module")
def site() -> Iterator[Isolating]:
    with Isolating(DRAIN_RULES.replace("action: drain", "mode: observe, action: drain"), nodes=4) as started:
        yield started


PLANTED: dict[str, tuple[dict[str, str], set[tuple[str, str]]]] = {
    "n1": ({"kind": "link", "at": "g3.link11"}, {("link", "gpu3 link11")}),
    "n2": ({"kind": "gpu", "at": "g2", "shows": "command"}, {("gpu", "gpu2")}),
    "n3": ({"kind": "connector", "at": "g6.link0"}, {("connector", "connector at gpu6 link0")}),
    "n4": ({"kind": "none"}, set()),
}


def test_four_nodes_at_once_each_in_a_job_of_its_own(site: Isolating) -> None:
    for node, (fault, _) in PLANTED.items():
        site.fault(node, **fault)
    running = {node: site.in_job(node, "--json") for node in PLANTED}
    for node, (_, expected) in PLANTED.items():
        out, err = running[node].communicate(timeout=180)
        assert "Traceback" not in err, err
        assert running[node].returncode == (1 if expected else 0), f"{node}: {out}\n{err}"
        document = json.loads(out)
        found = {(part["kind"], part["name"]) for part in document["explanation"]["parts"]}
        assert (document["node"], document["ground"]["how"], found) == (node, "allocation", expected)
        assert sum(one["step"]["kind"] == "traffic" for one in document["search"]["seen"]) <= 6
    site.cluster.wait_quiet()
    assert {node.state for node in site.cluster.nodes()} == {"idle"}  # it drains nothing


def test_refused_beside_a_job_and_where_jobs_may_start(site: Isolating) -> None:
    done = site.here("n2")
    assert done.returncode == 2
    assert "jobs may start on it" in done.stderr
    job = Held(site.cluster, "--gres=gpu:2", "-w", "n2").wait_started()
    site.cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=isolate")
    done = site.here("n2")
    assert done.returncode == 2
    assert f"still has job {job.job_id}" in done.stderr
    job.finish()
    site.cluster.wait_node("drained", "n2")
    site.fault("n2", kind="none")
    done = site.here("n2")
    assert done.returncode == 0, done.stderr
    assert "nothing found" in done.stdout
    assert site.cluster.node("n2").reason == "isolate"
    site.cluster.run("scontrol", "update", "nodename=n2", "state=resume")


def test_a_job_has_only_its_own_gpus(site: Isolating) -> None:
    other = Held(site.cluster, "--gres=gpu:4", "-w", "n4").wait_started()
    command = site.command("n4", "--json")
    done = site.cluster.run("srun", "-Q", "-w", "n4", "--gres=gpu:4", *command, check=False)
    assert done.returncode == 0, done.stderr
    assert [card["name"] for card in json.loads(done.stdout)["search"]["board"]["cards"]] == ["gpu4", "gpu5", "gpu6", "gpu7"]
    done = site.cluster.run("srun", "-Q", "-w", "n4", "--gres=gpu:4", *site.command("n4", "--gpus", "gpu0,gpu4"), check=False)
    assert done.returncode == 2
    assert "not of this job" in done.stderr
    other.finish()


def test_cancelled_it_leaves_no_process_and_goes_on_in_the_next_job(site: Isolating) -> None:
    slow, pids = site.cluster.root / "slow", site.cluster.root / "slow.pids"
    site.fault("n3", kind="none")
    slow.touch()
    running = site.in_job("n3")
    site.cluster.wait_until("its commands to run", lambda: pids.exists() and len(pids.read_text().split()) == 8)
    (job,) = [job.job_id for job in site.cluster.jobs() if job.state == "RUNNING"]
    site.cluster.run("scancel", job)
    running.communicate(timeout=180)
    site.cluster.wait_quiet()
    site.cluster.wait_until("its commands to be gone", lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))
    slow.unlink()
    again = site.in_job("n3")
    out, err = again.communicate(timeout=180)
    assert again.returncode == 0, f"{out}\n{err}"
    assert "goes on after 1 step of an interrupted search" in err
    assert "nothing found" in out


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
