"""Never the whole cluster: nodes that fail at once against a limit, on a real Slurm, whatever slurmctld and its commands do meanwhile."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Callable, Sequence

import pytest
from harness import Node
from site_nvhc import DRAIN_RULES, Site

from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.protective import Protective

MANY = 16
# One reading of a node may take its time where sixteen hooks run on few cores.
RULES = DRAIN_RULES + "limits: {soft: 2, hard: 4, recount: 2s}\nbudgets: {health_check: 50s}\n"

# Stands between hooks and Slurm's own command. "troubles" in its folder: a line "command:number trouble" for the
# numbers-th call of that command on this node. late: Slurm does it, and the caller hears of a timeout.
WRAPPER = """\
#!/bin/sh
here={folder}
name={name}
[ "$1 $3" = "update state=drain" ] && name=drain
[ "$1 $3" = "update state=undrain" ] && name=undrain
echo "$name" >> $here/calls
number=$(grep -cx "$name" $here/calls)
trouble=$(sed -n "s/^$name:$number //p" $here/troubles 2>/dev/null)
case "$trouble" in
down) echo "Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
hang) sleep 60 ;;
slow) sleep 1 ;;
late) /usr/bin/{name} "$@"; echo "Socket timed out on send/recv operation" >&2; exit 1 ;;
esac
exec /usr/bin/{name} "$@"
"""


class Fleet:
    """A site of many nodes, each with commands of its own between its hooks and Slurm."""

    def __init__(self, site: Site) -> None:
        self.site, self.cluster = site, site.cluster
        self.names = site.cluster.names

    def wrapped(self) -> Fleet:
        """Give each node its wrappers; before the cluster is started."""
        nodes = []
        for name, world in self.site.worlds.items():
            folder = self.folder(name)
            os.makedirs(folder)
            for command in ("scontrol", "sinfo"):
                path = folder / command
                path.write_text(WRAPPER.format(folder=folder, name=command))
                path.chmod(0o755)
            nodes.append(f"  {name}: {{engine: {{world: {world}}}, slurm: {{bin_dir: {folder}, timeout: 3s}}}}\n")
        backend = f"engine: {{backend: sim, timeout: 20s, world: {self.site.worlds['n1']}}}\n"
        Path(self.site.options.config).write_text(f"{self.site.policy}{backend}nodes:\n{''.join(nodes)}")
        return self

    def folder(self, name: str) -> Path:
        return self.cluster.root / "bin" / name

    def troubles(self, name: str, lines: Sequence[str]) -> None:
        (self.folder(name) / "calls").write_text("")
        (self.folder(name) / "troubles").write_text("".join(f"{line}\n" for line in lines))

    def calls(self, name: str) -> list[str]:
        return (self.folder(name) / "calls").read_text().split()

    def check(self, names: Sequence[str] = ()) -> float:
        """The health checks of these nodes (all), at the same moment. How long the slowest took."""
        began = time.monotonic()
        hook = f"{self.site.options.libdir}/nvhc-health-check.sh"
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running = [subprocess.Popen([hook], env={"SLURMD_NODENAME": name}, **pipes) for name in names or self.names]  # type: ignore[call-overload]
        for process in running:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        return time.monotonic() - began

    def drained(self) -> dict[str, Node]:
        return {node.name: node for node in self.cluster.nodes() if node.out}

    def ours(self) -> list[str]:
        return sorted(name for name, node in self.drained().items() if node.reason.startswith("nvhc:"))

    def kept(self, name: str) -> Protective:
        ledger = Ledger.open(f"{self.site.options.state}/{name}", 5.0)
        try:
            return ledger.protective()
        finally:
            ledger.close()

    def forget_waiting(self, name: str) -> None:
        """As if the time of its intents had come."""
        ledger = Ledger.open(f"{self.site.options.state}/{name}", 5.0)
        try:
            for intent in ledger.intents():
                ledger.update_intent(intent._replace(next_ns=0))
        finally:
            ledger.close()


@pytest.fixture
def many(start: Callable[[Site], Site]) -> Fleet:
    site = Site(RULES, nodes=MANY)
    fleet = Fleet(site)
    written = site.write_policy
    site.write_policy = lambda rules: (written(rules), fleet.wrapped())[0]  # type: ignore[method-assign,func-returns-value]
    start(site)
    fleet.check()  # the nodes are known as well
    assert fleet.ours() == []
    return fleet


def fail_all(fleet: Fleet) -> None:
    for name in fleet.names:
        fleet.site.storm(node=name)


def settled(fleet: Fleet, foreign: dict[str, str]) -> None:
    """Two are out by us, and every other node that failed waits for its turn; nobody else's drain was touched."""
    ours = fleet.ours()
    assert len(ours) == 2, ours
    drained = fleet.drained()
    assert {n: drained[n].reason for n in foreign} == foreign
    assert sorted(drained) == sorted([*ours, *foreign])
    for name in fleet.names:
        kept = fleet.kept(name)
        assert (kept.own_drain is not None) is (name in ours), name
        if name in ours or name in foreign:
            assert kept.intents == (), name
        else:
            (waiting,) = kept.intents
            assert waiting.kind == "drain"
            assert "of 2 nodes of partition gpu are drained by nvhc within 1d" in waiting.limited


def test_sixteen_nodes_fail_at_once_against_a_limit_of_two(many: Fleet) -> None:
    foreign = {"n5": "psu swap", "n11": "NHC: disk full"}
    for name, reason in foreign.items():
        many.cluster.run("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")
    fail_all(many)
    assert many.check() < 60
    settled(many, foreign)
    first = {name: node.reason for name, node in many.drained().items()}
    # Nothing flaps, and nobody asks before its time.
    before = {name: len(many.calls(name)) for name in many.names}
    many.check()
    assert {name: node.reason for name, node in many.drained().items()} == first
    assert [n for n in many.names if n not in first and len(many.calls(n)) > before[n]] == []
    # Its time has come, and there is still no room.
    for name in many.names:
        many.forget_waiting(name)
    many.check()
    settled(many, foreign)
    # A person resumes one: another takes its place, one only.
    (one, other) = many.ours()
    many.cluster.run("scontrol", "update", f"nodename={one}", "state=resume")
    many.check([one])
    for name in many.names:
        many.forget_waiting(name)
    many.check()
    assert len(many.ours()) == 2
    assert other in many.ours()
    assert one not in many.ours(), "its fault was settled by whoever resumed it"


@pytest.mark.parametrize(
    "troubles",
    [
        # each step of a drain: read, count, drain, read again, count again, read, take back
        {"scontrol:1": "down", "sinfo:1": "hang", "drain:1": "late", "sinfo:2": "down", "undrain:1": "late"},
        {"scontrol:1": "slow", "sinfo:1": "slow", "drain:1": "hang", "scontrol:3": "hang", "undrain:1": "hang"},
        {"scontrol:2": "hang", "drain:1": "down", "sinfo:2": "hang", "scontrol:4": "down", "undrain:1": "down"},
    ],
    ids=["down-and-late", "slow-and-hung", "hung-and-down"],
)
def test_commands_that_fail_at_each_step(many: Fleet, troubles: dict[str, str]) -> None:
    """One trouble a node, the others' commands work; then all is well again."""
    steps = list(troubles.items())
    for number, name in enumerate(many.names):
        step, trouble = steps[number % len(steps)]
        many.troubles(name, [f"{step} {trouble}"])
    fail_all(many)
    assert many.check() < 60
    for name in many.names:
        many.troubles(name, [])
    for _ in range(2):
        for name in many.names:
            many.forget_waiting(name)
        many.check()
    settled(many, {})


def test_slurmctld_is_away_while_all_fail_and_comes_back(many: Fleet) -> None:
    many.cluster.stop_slurmctld()
    fail_all(many)
    assert many.check() < 60
    assert {len(many.kept(name).intents) for name in many.names} == {1}, "each remembers its drain, once"
    many.cluster.start_slurmctld()
    many.cluster.wait_until("all nodes to be back", lambda: {n.state for n in many.cluster.nodes()} == {"idle"}, 30)
    for name in many.names:
        many.forget_waiting(name)
    many.check()
    settled(many, {})
