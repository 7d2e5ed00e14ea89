"""Which nodes of a partition there are and which of them are out, since when and why: one bounded ``sinfo`` a question.

Observed on 22.05 and 24.11:
* nodes with the same state, reason, time and user share one line, so the answer is short however many are well;
* a reason may hold ``|`` and newlines, so it comes last, and a line that is none of ours goes on with the reason before;
* %H is written by SLURM_TIME_FORMAT, so it is asked for in seconds: no time zone, no hour that comes twice in autumn;
* ``-a`` and ``-p`` exclude each other; with ``-p`` hidden partitions are shown too; an unknown one is an empty answer.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple, Optional, Sequence

from slurm_nvhc.slurm import command, hostlist
from slurm_nvhc.slurm.command import MISSING, REFUSED, SlurmError

FORMAT: Final = "%R|%D|%T|%H|%u|%N|%E"
NODE_FORMAT: Final = "%N|%T|%G|%E"  # with -N: a line a node
MOST_NODES: Final = 100_000  # of one partition; the largest clusters have some ten thousand

_LINE: Final = re.compile(
    r"(?P<partition>[^|\s]+)\|(?P<count>[0-9]{1,7})\|(?P<state>[a-z_]+)[^|a-z_]{0,3}\|"
    r"(?P<when>[0-9]{1,11}|Unknown|N/A)\|(?P<user>[^|\n]*)\|(?P<nodes>[^|\s]+)\|(?P<reason>.*)"
)
_NODE_LINE: Final = re.compile(r"(?P<name>[^|\s]+)\|(?P<state>[a-z_]+[^|a-z_]{0,3})\|(?P<gres>[^|\s]*)\|(?P<reason>.*)")
_GPU: Final = re.compile(r"(?:^|,)gpu(?::[^:,()]+)??(?::(\d{1,4}))?(?=[(,]|$)")
# The first word of the states in which a node takes no new jobs. A node with DRAIN and DOWN shows either.
_OUT: Final = ("drain", "drng", "down", "fail", "inval")


class OutNode(NamedTuple):
    """A node that takes no new jobs. state: sinfo's word without its trailing flag. since_ns: when the reason was set, 0 = not said."""

    name: str
    state: str
    reason: str
    user: str
    since_ns: int


class FleetNode(NamedTuple):
    """state: sinfo's word with its trailing flag ("idle~": powered down). gpus: as its GRES counts them, of every type."""

    name: str
    state: str
    gpus: int
    reason: str = ""

    @property
    def out(self) -> bool:
        return self.state.startswith(_OUT)


class Partition(NamedTuple):
    """nodes: how many the partition has, in whatever state; out: those of them that take no new jobs."""

    name: str
    nodes: int
    out: tuple[OutNode, ...]


def parse(text: str) -> tuple[Partition, ...]:
    """The partitions in the output of ``sinfo -h -o FORMAT``. ValueError for what is not such output."""
    rows: list[list[str]] = []
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        if match:
            rows.append([*match.group("partition", "count", "state", "when", "user", "nodes", "reason")])
        elif rows:
            rows[-1][6] += f"\n{line}"  # a reason of several lines
        elif line.strip():
            raise ValueError(f"not a line of sinfo's: {line[:80]!r}")
    totals: dict[str, int] = {}
    out: dict[str, list[OutNode]] = {}
    for name, count, state, when, user, nodes, reason in rows:
        totals[name] = totals.get(name, 0) + int(count)
        if not state.startswith(_OUT):
            continue
        named = hostlist.expand(nodes, MOST_NODES)
        if len(named) != int(count):
            raise ValueError(f"{count} nodes were announced and {len(named)} named: {nodes[:80]!r}")
        since_ns = int(when) * 10**9 if when.isdigit() else 0
        shown = "" if reason.strip() == "none" else reason.strip()
        out.setdefault(name, []).extend(OutNode(node, state, shown, user, since_ns) for node in named)
    return tuple(Partition(name, total, tuple(out.get(name, ()))) for name, total in totals.items())


def parse_nodes(text: str) -> tuple[FleetNode, ...]:
    """The nodes in the output of ``sinfo -h -N -o NODE_FORMAT``, each once. ValueError for what is not such output."""
    rows: dict[str, FleetNode] = {}
    last = ""
    for line in text.split("\n"):
        match = _NODE_LINE.fullmatch(line)
        if match:
            last, state, gres, reason = match.group("name", "state", "gres", "reason")
            gpus = sum(int(count or 1) for count in _GPU.findall(gres))
            rows[last] = FleetNode(last, state, gpus, "" if reason.strip() == "none" else reason.strip())
        elif last:
            rows[last] = rows[last]._replace(reason=f"{rows[last].reason}\n{line}".strip())  # a reason of several lines
        elif line.strip():
            raise ValueError(f"not a line of sinfo's: {line[:80]!r}")
    return tuple(rows.values())


class SlurmFleet:
    """``sinfo`` in ``bin_dir``, with ``conf`` as SLURM_CONF ('' = Slurm's default), ``timeout_s`` per call."""

    def __init__(self, bin_dir: str, conf: str, timeout_s: float) -> None:
        self.sinfo = os.path.join(bin_dir, "sinfo")
        self.conf = conf
        self.timeout_s = timeout_s

    def unusable(self) -> Optional[SlurmError]:
        """Why sinfo can not be run, as far as its file tells; nothing is called."""
        if os.path.isabs(self.sinfo) and os.path.isfile(self.sinfo) and os.access(self.sinfo, os.X_OK):
            return None
        problem = "is not there or can not be run: who else is drained can not be counted"
        return SlurmError(MISSING, self.sinfo, "", problem, "install Slurm's client commands, or set slurm.bin_dir in the policy")

    def partitions(self, names: Sequence[str] = (), timeout_s: Optional[float] = None) -> tuple[Partition, ...]:
        """These partitions, all of them; without names every partition that root sees. Raises SlurmError."""
        seconds = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        which = ("-p", ",".join(names)) if names else ("-a",)
        # --local: of a federation only the cluster that this node belongs to.
        arguments = ("-h", "--local", *which, "-o", FORMAT)
        text = command.run(self.sinfo, arguments, seconds, self.conf, {"SLURM_TIME_FORMAT": "%s"})
        place = " ".join(which)
        try:
            found = parse(text)
        except ValueError as exc:
            raise SlurmError(REFUSED, self.sinfo, place, f"its answer can not be read: {exc}") from None
        lacking = [name for name in names if all(p.name != name for p in found)]
        if lacking:
            raise SlurmError(REFUSED, self.sinfo, place, f"says nothing about partition {lacking[0]}")
        return found

    def nodes(self, partition: str, timeout_s: Optional[float] = None) -> tuple[FleetNode, ...]:
        """The nodes of a partition as they are now, in sinfo's order. Raises SlurmError, also for a partition without any."""
        seconds = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        arguments = ("-h", "-N", "--local", "-p", partition, "-o", NODE_FORMAT)
        text = command.run(self.sinfo, arguments, seconds, self.conf)
        try:
            found = parse_nodes(text)
        except ValueError as exc:
            raise SlurmError(REFUSED, self.sinfo, f"-p {partition}", f"its answer can not be read: {exc}") from None
        if not found:
            raise SlurmError(REFUSED, self.sinfo, f"-p {partition}", "says nothing about such a partition, or it has no nodes")
        return found

    def out_nodes(self, partition: str = "", timeout_s: Optional[float] = None) -> tuple[OutNode, ...]:
        """Every node that is out, once, of one partition or ('') of the cluster, by name. Raises SlurmError."""
        found = self.partitions((partition,) if partition else (), timeout_s)
        return tuple(sorted({node.name: node for part in found for node in part.out}.values()))
