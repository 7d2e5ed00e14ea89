"""A sweep's jobs in Slurm: each is one `srun`, whose standard output brings the answer back, so no shared file system is needed.

Observed on 22.05: `scancel` of the job's name ends waiting ones at once and gives running ones SIGTERM, then KillWait; a
pre-empted step gets SIGTERM twice; srun itself is left alone, since a SIGTERM to *it* kills the tasks with SIGKILL.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from typing import Final, NamedTuple, Optional, Sequence

from slurm_nvhc.model import placeholder
from slurm_nvhc.proc import child
from slurm_nvhc.slurm import command, hostlist
from slurm_nvhc.slurm.fleet import FleetNode, SlurmFleet
from slurm_nvhc.slurm.jobs import SlurmJobs

LOWEST: Final = 2147483645  # the most that --nice takes
CALL_S: Final = 30.0  # of one Slurm command: a sweep can wait
PENDING: Final = "PENDING"
_WE: Final = str(os.geteuid())  # anybody may give a job of his own the same name
_JOB: Final = re.compile(r"(\d{1,10})\|([A-Z_]+)\|([^|\s]*)\|(.*)")


class Options(NamedTuple):
    """Of each job. minutes: its time limit. nice: LOWEST is last in the queue. '' = Slurm's default.

    whole: it has all GPUs of its node, and the node for itself; else it runs beside jobs, for what loads no GPU.
    """

    partition: str
    name: str
    minutes: int
    nice: int = LOWEST
    qos: str = ""
    account: str = ""
    reservation: str = ""
    whole: bool = True


class Waiting(NamedTuple):
    """A job in Slurm's queue. number: its JobId. reason: why it waits, in Slurm's word."""

    number: str
    state: str
    node: str
    reason: str = ""


def arguments(options: Options, node: FleetNode, held: int, remote: Sequence[str]) -> tuple[str, ...]:
    """What srun gets. held: GPUs of the node that placeholder jobs of ours have; a job that wanted all would wait for ever.

    ``remote``: the command on the node.
    """
    more = [f"--{key}={value}" for key, value in (("qos", options.qos), ("account", options.account)) if value]
    if options.reservation:
        more.append(f"--reservation={options.reservation}")
    if options.whole:
        more.append(f"--gres=gpu:{node.gpus - held}")
    if options.whole and not held:
        more.append("--exclusive")  # nobody else's work beside a test that loads the whole node
    else:
        more.append("--mem=1024")  # not all of the node's, some of which a placeholder job has; the test itself is the engine's
    return (
        f"--partition={options.partition}", f"--nodelist={node.name}", "--nodes=1", "--ntasks=1",
        f"--time={options.minutes}", f"--nice={options.nice}", f"--job-name={options.name}", *more,
        "--chdir=/", "--input=none", "--mpi=none", "--quiet", "--", *remote,
    )  # fmt: skip


class Queue:
    """Slurm as a sweep sees it. ``ended`` gives (node, srun's end) of each job, in the order in which they end."""

    def __init__(self, bin_dir: str, conf: str, options: Options, remote: Sequence[str], limit_s: float) -> None:
        """limit_s: after which an srun that does not end is given up; above what Slurm itself bounds."""
        self.bin_dir, self.conf, self.options, self.remote, self.limit_s = bin_dir, conf, options, tuple(remote), limit_s
        self.jobs = SlurmJobs(bin_dir, conf, CALL_S)
        self._fleet = SlurmFleet(bin_dir, conf, CALL_S)
        self._ended: queue.SimpleQueue[tuple[str, child.Result]] = queue.SimpleQueue()

    def nodes(self) -> dict[str, FleetNode]:
        return {node.name: node for node in self._fleet.nodes(self.options.partition)}

    def held(self) -> dict[str, int]:
        """Node -> how many of its GPUs placeholder jobs of ours have, where that matters."""
        if not self.options.whole:
            return {}
        text = self._run("squeue", ("-h", "-u", "root", "-n", placeholder.HOLD, "-t", "RUNNING", "-o", "%N|%k"))
        out: dict[str, int] = {}
        for line in text.split("\n"):
            node, _, comment = line.strip().partition("|")
            if node and placeholder.is_placeholder(0, comment):
                out[node] = out.get(node, 0) + 1
        return out

    def waiting(self) -> tuple[Waiting, ...]:
        """The sweep's jobs that Slurm still knows as not ended, those of an earlier run of it included."""
        out = []
        for line in self._run("squeue", ("-h", "-a", "-u", _WE, "-n", self.options.name, "-o", "%A|%T|%n|%r")).split("\n"):
            found = _JOB.fullmatch(line.strip())
            if found:
                names = hostlist.expand(found.group(3), 2) if found.group(3) else ()
                out.append(Waiting(found.group(1), found.group(2), names[0] if names else "", found.group(4)))
        return tuple(out)

    def submit(self, node: FleetNode, held: int) -> None:
        """Start its srun. Returns at once."""
        argv = (os.path.join(self.bin_dir, "srun"), *arguments(self.options, node, held, self.remote))
        environment = {"SLURM_CONF": self.conf} if self.conf else {}

        def wait() -> None:
            try:
                result = child.run(argv, self.limit_s, environment)
            except Exception as exc:  # whatever it was, the sweep must not wait for this node for ever
                result = child.Result(None, "", "", f"{type(exc).__name__}: {exc}")
            self._ended.put((node.name, result))

        threading.Thread(target=wait, name=f"srun {node.name}", daemon=True).start()

    def ended(self, seconds: float) -> list[tuple[str, child.Result]]:
        """Jobs that ended; waits at most ``seconds`` for the first."""
        out: list[tuple[str, child.Result]] = []
        deadline = time.monotonic() + seconds
        try:
            out.append(self._ended.get(timeout=max(0.0, deadline - time.monotonic())))
            while True:
                out.append(self._ended.get_nowait())
        except queue.Empty:
            return out

    def cancel(self, numbers: Sequence[str]) -> None:
        self.jobs.cancel(numbers)

    def cancel_all(self) -> None:
        """Every job of this sweep, also one that Slurm has not shown us yet."""
        self._run("scancel", ("-Q", f"--user={_WE}", f"--name={self.options.name}"))

    def _run(self, program: str, words: Sequence[str], seconds: Optional[float] = None) -> str:
        return command.run(os.path.join(self.bin_dir, program), words, seconds or CALL_S, self.conf)
