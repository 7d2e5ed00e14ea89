"""A node of its own for a test: simulated world, policy, gres.conf, state and run directories, and the hooks' command.

Its policy has the patient time limits where a test gives none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import patient
import yaml

from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.sense.sim.world import World


class Site:
    def __init__(self, root: Path, preset: str = "hgx-h100-8", policy: dict[str, Any] | None = None) -> None:
        self.root = root
        self.world_file = str(root / "world.json")
        self.config = root / "policy.yaml"
        self.slurm_conf = root / "slurm.conf"
        World.preset(preset).save(self.world_file)
        self.write_policy(policy or {})
        self.slurm_conf.write_text("ClusterName=test\n")
        (root / "gres.conf").write_text("Name=gpu Type=h100 File=/dev/nvidia[0-7]\n")
        self.scontrol("exit 1")

    def write_policy(self, policy: dict[str, Any]) -> None:
        engine = {"backend": "sim", "world": self.world_file}
        document = {"schema": 1, "engine": engine, "slurm": {"bin_dir": str(self.root)}, "record": {"durable": True}, **policy}
        self.config.write_text(yaml.safe_dump(patient.policy(document)))
        self.config.chmod(0o644)

    def scontrol(self, script: str) -> None:
        """A scontrol of this test's own; each call is noted in scontrol.calls."""
        path = self.root / "scontrol"
        path.write_text(f'#!/bin/sh\necho "$*" >>{self.root}/scontrol.calls\n{script}\n')
        path.chmod(0o755)

    def slurm(self) -> Path:
        """A scontrol that knows one node: idle until it is drained. Returns the file that holds the drain's reason."""
        drained = self.root / "drained"
        self.scontrol(f"""case "$1" in
  update) for word; do case "$word" in reason=*|Reason=*) printf '%s' "${{word#*=}}" >{drained};; esac; done;;
  *) printf 'NodeName=n1\\n   State=IDLE%s ThreadsPerCore=1\\n' "$([ -e {drained} ] && echo +DRAIN)"
     [ -e {drained} ] && printf '   Reason=%s [root@2026-01-01T00:00:00]\\n' "$(cat {drained})";;
esac
exit 0""")
        return drained

    def calls(self) -> list[str]:
        path = self.root / "scontrol.calls"
        return path.read_text().splitlines() if path.exists() else []

    def edit(self):
        return World.edit(self.world_file)

    def arguments(self, hook: str) -> list[str]:
        places = ["--config", str(self.config), "--state", str(self.root / "state"), "--run", str(self.root / "run")]
        return [sys.executable, "-I", "-m", "slurm_nvhc.hooks", hook, *places, "--slurm-conf", str(self.slurm_conf)]

    def environment(self, job: int | None, gpus: str = "0,1,2,3", **more: str) -> dict[str, str]:
        env = {"SLURMD_NODENAME": "n1"}
        if job is not None:
            env |= {
                "SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "1000", "SLURM_JOB_USER": "alice", "SLURM_JOB_PARTITION": "gpu",
                "SLURM_JOB_GPUS": gpus, "CUDA_VISIBLE_DEVICES": gpus, "SLURM_CONF": str(self.slurm_conf),
            }  # fmt: skip
        return {**env, **more}

    def hook(self, hook: str, job: int | None = None, gpus: str = "0,1,2,3", **more: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.arguments(hook), self.environment(job, gpus, **more))

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient.PROCESS_S, check=False)

    def ledger(self) -> Ledger:
        return Ledger.open(str(self.root / "state" / "n1"), patient.LEDGER_S)

    def last(self, hook: str):
        with self.ledger() as ledger:
            return ledger.last_run(hook)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The nvhc command; an option that ``words`` give themselves wins over this node's."""
        here = {"--config": self.config, "--state": self.root / "state", "--run": self.root / "run", "--node": "n1"}
        places = [word for option, value in here.items() if option not in words for word in (option, str(value))]
        env = {**os.environ, "SLURM_CONF": str(self.slurm_conf)}
        command = [sys.executable, "-m", "slurm_nvhc.cli.main", *words, *places]
        return self.run(command, env)

    def nvhc(self, *words: str, code: int | None = 0) -> str:
        done = self.command(*words)
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def nvhc_json(self, *words: str, code: int | None = 0) -> Any:
        return json.loads(self.nvhc(*words, "--json", code=code))
