"""A private cluster with slurm-nvhc installed on it the way an administrator installs it.

The package runs from a copy of its own with an interpreter of its own, so that a test can
delete either. Each node has a simulated machine of its own (a world file); what happens to
it is written there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Optional

import yaml
from harness import FAST, Cluster

from slurm_nvhc.hooks import install
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run
from slurm_nvhc.sense.sim.world import World

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import patient

SOURCE = Path(install.__file__).resolve().parents[2]

# Rules of the tests' own: what the packaged policy does is tested elsewhere, and its numbers may change.
DRAIN_RULES = """\
schema: 1
defaults: false
rules:
  replay: {finding: NVL-STORM, field: nvlink_replay, fail: {increase_above: 100}, action: drain}
  remap: {finding: MEM-REMAP-FAILED, field: row_remap_failure, fail: {value_is: 1}, action: drain}
"""
NARROW_RULES = DRAIN_RULES.replace("action: drain}", "action: narrow}") + "narrow: {enabled: true}\n"


class Site:
    """``with Site(...) as site``: a started cluster with hooks, a healthy node each.

    policy:    the rules; where the worlds are, and patient time limits, are added here
    narrowing: TaskProlog as well
    health_check: HealthCheckInterval in seconds, 0 = never (its line is left out)
    conf:      further lines for slurm.conf
    """

    def __init__(
        self,
        policy: str = DRAIN_RULES,
        nodes: int = 1,
        narrowing: bool = False,
        health_check: int = 0,
        conf: str = "",
        constrain: bool = False,
    ) -> None:
        self.cluster = Cluster(nodes=nodes, constrain=constrain)
        root = self.cluster.root
        self.code = root / "opt" / "nvhc"
        self.python = root / "opt" / "env" / "bin" / "python"
        self.worlds = {name: str(root / "worlds" / f"{name}.json") for name in self.cluster.names}
        self.options = install.Options(
            libdir=str(root / "libexec"),
            config=str(root / "etc-nvhc" / "policy.yaml"),
            state=str(root / "var"),
            run=str(root / "run-nvhc"),
            slurm_conf=str(self.cluster.slurm_conf),
            kill_switch=str(root / "etc-nvhc" / "disabled"),
            python=str(self.python),
            budgets=patient.BUDGETS,
            narrowing=narrowing,
        )
        self.policy = policy
        self._health_check = health_check
        self._conf = conf

    def __enter__(self) -> Site:
        try:
            self._make()
            self.cluster.start()
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.cluster.stop()

    def _make(self) -> None:
        self._make_environment()
        os.makedirs(self.cluster.root / "worlds")
        for name, path in self.worlds.items():
            World.preset("hgx-h100-8", node=name).save(path)
        os.makedirs(os.path.dirname(self.options.config))
        self.write_policy(self.policy)
        report = install.install(self.options)
        # One line with the harness's own parameters: of several lines the last one counts.
        wanted = [line.text.replace("SchedulerParameters=", f"SchedulerParameters={FAST},") for line in report.lines]
        if self._health_check:
            wanted = [f"HealthCheckInterval={self._health_check}" if w.startswith("HealthCheckInterval") else w for w in wanted]
        else:
            wanted = [w for w in wanted if not w.startswith("HealthCheck")]
        self.cluster.conf = "\n".join([*wanted, self._conf])

    def _make_environment(self) -> None:
        for name in ("slurm_nvhc", "etc", "prolog", "epilog"):
            shutil.copytree(SOURCE / name, self.code / name)  # with its bytecode, which stays valid
        environment = self.cluster.root / "opt" / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        paths = (self.code, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
        (environment / "lib" / version / "site-packages" / "nvhc.pth").write_text("".join(f"{path}\n" for path in paths))

    # ---- what happens to the node

    def world(self, name: str = "n1") -> World:
        return World.load(self.worlds[name])

    def storm(self, gpu: int = 3, link: int = 11, amount: int = 21200, node: str = "n1", minutes: float = 41) -> None:
        with World.edit(self.worlds[node]) as world:
            world.storm(f"g{gpu}.link{link}", "replay", amount, minutes * 60)

    def remap_failure(self, gpu: int = 6, node: str = "n1") -> None:
        with World.edit(self.worlds[node]) as world:
            world.set(f"g{gpu}.395", 1)

    def uuid(self, gpu: int, node: str = "n1") -> str:
        return self.world(node).gpu(f"g{gpu}").identity.uuid

    # ---- what the administrator does

    def write_policy(self, rules: str) -> None:
        document = {
            "record": {"durable": True},  # a chroot, or a temporary directory in memory, is not what these tests are about
            **yaml.safe_load(rules),
            "engine": {"backend": "sim", "world": self.worlds["n1"]},
            "nodes": {name: {"engine": {"world": path}} for name, path in self.worlds.items()},
        }
        Path(self.options.config).write_text(yaml.safe_dump(patient.policy(document)))

    # ---- what the hooks left

    def runs(self, hook: str = "", node: str = "n1") -> list[Run]:
        """The ledger's runs of a node, oldest first."""
        directory = f"{self.options.state}/{node}"
        if not os.path.isdir(directory):
            return []
        ledger = Ledger.open(directory, patient.LEDGER_S)
        try:
            return [run for run in reversed(ledger.recent_runs(1000)) if hook in ("", run.hook)]
        finally:
            ledger.close()

    def wait_run(self, hook: str, job_id: str = "", node: str = "n1") -> Run:
        """The newest run of a hook (for a job) once there is one."""

        def probe() -> Optional[Run]:
            found = [run for run in self.runs(hook, node) if job_id in ("", run.job_id)]
            return found[-1] if found else None

        return self.cluster.wait_until(f"a run of the {hook} {job_id}", probe)

    def narrow_files(self, node: str = "n1") -> list[str]:
        folder = f"{self.options.run}/{node}/narrow"
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


class Held:
    """A batch job that runs until it is let go: the time in which things happen to the node."""

    def __init__(self, cluster: Cluster, *args: str, script: str = "") -> None:
        self._cluster = cluster
        wait = 'touch "started.$SLURM_JOB_ID"; while [ ! -e "go.$SLURM_JOB_ID" ]; do sleep 0.05; done'
        self.job_id = cluster.sbatch(f"{script}\n{wait}", *args)

    def wait_started(self) -> Held:
        started = self._cluster.root / "work" / f"started.{self.job_id}"
        self._cluster.wait_until(f"job {self.job_id} to start", started.exists)
        return self

    def let_go(self) -> None:
        (self._cluster.root / "work" / f"go.{self.job_id}").touch()

    def finish(self) -> None:
        """Let it go and wait until it has completed, epilog included."""
        self.let_go()
        self._cluster.wait_job(self.job_id, "COMPLETED")
