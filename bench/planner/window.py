"""How long the window is between our re-reading of a node and our change of it: measured on a private real Slurm.

Others may act in it, and nothing of ours can tell. A drain counts who else is drained in between (sinfo), a resume
writes down what it is about to do.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Optional

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.execute import Tools, execute
from slurm_nvhc.act.steps import Step
from slurm_nvhc.book import Book
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.slurm.fleet import SlurmFleet
from slurm_nvhc.slurm.node import SlurmCommands

SLURM: Final = Path(__file__).resolve().parents[2] / "tests" / "slurm"
BIN: Final = "/usr/bin"


class Timed(SlurmCommands):
    """Notes when a reading began and when a change was answered: the window is within these."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.read = 0.0
        self.windows: dict[str, list[float]] = {"drain": [], "resume": []}

    def node_state(self, node: str, timeout_s: Optional[float] = None) -> Any:
        self.read = time.monotonic()
        return super().node_state(node, timeout_s)

    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        super().drain(node, reason, timeout_s)
        self.windows["drain"].append(time.monotonic() - self.read)

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        super().resume(node, timeout_s)
        self.windows["resume"].append(time.monotonic() - self.read)


def measure(times: int) -> dict[str, Any]:
    """{"slurm", "drain", "resume"}: seconds, one each time; {"not": why} where no private Slurm can be started."""
    sys.path.insert(0, str(SLURM))
    import machine  # type: ignore[import-not-found]

    why_not = machine.why_not()
    if why_not:
        return {"not": why_not}
    from harness import Cluster  # type: ignore[import-not-found]

    from planner.world import Setting, World

    with Cluster(nodes=2) as cluster, tempfile.TemporaryDirectory() as state, Book(state, 5.0) as book:
        timed = Timed(BIN, str(cluster.slurm_conf), 10.0)
        tools = Tools(
            timed, "n1", book, state, None, GpuMapping((), {}, True), lambda: False, lambda text: None, lambda: 30.0, 0,
            World(Setting(hard=1)).policy, fleet=SlurmFleet(BIN, str(cluster.slurm_conf), 10.0),
        )  # fmt: skip
        for n in range(times):
            tools = tools._replace(now_ns=time.time_ns())
            reason = f"nvhc: measured for the {n + 1}. time"
            _done(execute((Step(st.DRAIN, reason, keys=("GPU-LOST GPU-x",)),), tools))
            _done(execute((Step(st.RESUME, reason, keys=("GPU-LOST GPU-x",)),), tools))
            cluster.wait_until("n1 to answer", lambda: not timed.node_state("n1").flags or None)
        version = cluster.run("scontrol", "--version").stdout.split()[-1]
    return {"slurm": version, **timed.windows}


def _done(outcome: Any) -> None:
    for done in outcome.done:
        assert done.ok, done
