"""A simulated node on which `nvhc isolate` runs: drained in a played Slurm, with the simulated traffic command."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

from site_ import Site

from slurm_nvhc.context import Context, prepare
from slurm_nvhc.context import Site as Places
from slurm_nvhc.isolate import plan, search, state
from slurm_nvhc.isolate.run import Orders
from slurm_nvhc.isolate.search import Begun, Outcome
from slurm_nvhc.isolate.state import Kept
from slurm_nvhc.judge import HEALTH_CHECK


class Node:
    def __init__(self, root: Path, preset: str = "hgx-h100-8", **policy: Any) -> None:
        self.site = Site(root, preset)
        self.traffic = (sys.executable, "-m", "slurm_nvhc.sense.sim.traffic", "--world", self.site.world_file, "--seconds", "{seconds}")
        self.write_policy(**policy)
        self.drained = self.site.slurm()
        self.drained.write_text("isolate")
        self.squeue("exit 0")
        self.directory = str(root / "state" / "n1")
        with self.site.edit() as world:
            self.uuids = [gpu.identity.uuid for gpu in world.gpus]

    def write_policy(self, **isolate: Any) -> None:
        self.site.write_policy({"isolate": {"traffic": list(self.traffic), "timeout": "100s", **isolate}})

    def squeue(self, script: str) -> None:
        path = self.site.root / "squeue"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def do(self, operation: str, **arguments: Any) -> None:
        with self.site.edit() as world:
            world.apply({"op": operation, **arguments})

    def fault(self, **fault: Any) -> None:
        self.do("fault", **fault)

    def script(self, text: str) -> tuple[str, ...]:
        """A traffic command of a test's own. It is run with the simulated one as "$@"."""
        path = self.site.root / "traffic.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return (str(path), *self.traffic)

    # -- within this process -----------------------------------------------------

    def context(self) -> Context:
        root = self.site.root
        places = Places(str(self.site.config), str(root / "state"), str(root / "run"), str(self.site.slurm_conf))
        return prepare(HEALTH_CHECK, places, {"SLURMD_NODENAME": "n1"}, time.monotonic(), "n1", keep=False)

    def orders(self, command: tuple[str, ...] = (), timeout_s: float = 100.0) -> Orders:
        return Orders(command or self.traffic, (), 30.0, timeout_s)

    def begin(self, context: Context, orders: Orders | None = None, fresh: bool = False) -> Begun:
        return search.begin(context, {}, [], orders or self.orders(), fresh, self.directory)

    def search(self, orders: Orders | None = None, limits: plan.Limits | None = None, lines: list[str] | None = None) -> Outcome:
        context = self.context()
        said = [] if lines is None else lines
        try:
            begun = self.begin(context, orders)
            said += begun.notes
            return search.carry_on(context, {}, begun, limits or plan.Limits(), self.directory, said.append)
        finally:
            context.book.close()

    def kept(self) -> Kept:
        return state.load(self.directory)[0]

    # -- as a person calls it ------------------------------------------------------

    def isolate(self, *words: str, code: int | None = 0) -> str:
        return self.site.nvhc("isolate", *words, code=code)

    def isolate_json(self, *words: str, code: int | None = 0) -> Any:
        import json

        done = self.site.command("isolate", *words, "--json")
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    @property
    def command(self) -> str:
        return shlex.join(self.traffic)
