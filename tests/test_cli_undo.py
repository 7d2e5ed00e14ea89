"""`nvhc undo` and `nvhc release`: what nvhc did is taken back, and nothing of anybody else's."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from site_ import Site

from slurm_nvhc.model.protective import Exclusion, Intent

HOUR_NS = 3600 * 10**9
RULES = {
    "defaults": False,
    "rules": {
        "remap": {"finding": "MEM-REMAP-FAILED", "field": "row_remap_failure", "fail": {"value_is": 1}, "action": "drain"},
        "fatal": {"finding": "XID-FATAL", "fail": {"xid": 79}, "action": "drain", "sticky": True},
    },
}

# Nodes as files: <name> holds the state's words, <name>.reason the reason, <name>.stamp who and when. As on a real
# Slurm each update sets reason and stamp anew, and undrain ends nothing but the drain.
SCONTROL = """
here=%s
case "$1" in
  show)
    [ -e $here/$3 ] || { echo "Node $3 not found"; exit 1; }
    printf 'NodeName=%%s\\n   State=%%s\\n' "$3" "$(cat $here/$3)"
    [ -s $here/$3.reason ] && printf '   Reason=%%s [%%s]\\n' "$(cat $here/$3.reason)" "$(cat $here/$3.stamp)"
    exit 0;;
  update)
    for word; do case "$word" in nodename=*) node="${word#*=}";; state=*) state="${word#*=}";; reason=*) reason="${word#*=}";; esac; done
    case "$state" in
      drain) echo "$(sed s/+DRAIN//g $here/$node)+DRAIN" >$here/$node; printf '%%s' "$reason" >$here/$node.reason
             n=$(cat $here/count 2>/dev/null || echo 0); n=$((n + 1)); echo $n >$here/count; echo "root@$n" >$here/$node.stamp;;
      undrain|resume) sed -i s/+DRAIN//g $here/$node;;
    esac;;
esac
exit 0
"""


class Nodes:
    """The nodes of a cluster, and this site's own n1 among them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.folder = site.root / "nodes"
        self.folder.mkdir()
        self.add("n1")
        site.scontrol(SCONTROL % self.folder)

    def add(self, name: str, state: str = "IDLE", reason: str = "", stamp: str = "root@0") -> None:
        (self.folder / name).write_text(state + "\n")
        (self.folder / f"{name}.reason").write_text(reason)
        (self.folder / f"{name}.stamp").write_text(stamp)

    def state(self, name: str = "n1") -> str:
        return (self.folder / name).read_text().strip()

    def reason(self, name: str = "n1") -> str:
        return (self.folder / f"{name}.reason").read_text()

    def changed(self) -> list[str]:
        return [call for call in self.site.calls() if call.startswith("update")]

    def sinfo(self, *rows: str) -> None:
        path = self.site.root / "sinfo"
        text = "\n".join(rows)
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        path.chmod(0o755)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    site = Site(tmp_path, policy=RULES)
    return Nodes(site)


def drain(nodes: Nodes, standing: bool = True) -> str:
    """Have a health check drain n1 for a fault; the reason."""
    site = nodes.site
    site.hook("health_check")
    with site.edit() as world:
        if standing:
            world.set("g6.395", 1)
        else:
            world.xid("g3", 79)
    site.hook("health_check")
    assert nodes.state() == "IDLE+DRAIN"
    with site.ledger() as ledger:
        kept = ledger.own_drain()
        assert kept is not None
        assert kept.stamp == (nodes.folder / "n1.stamp").read_text().strip(), "it is known by who set it when"
        ledger.set_own_drain(kept._replace(set_ns=time.time_ns()))  # the simulated node has a clock of its own
    return nodes.reason()


def own(nodes: Nodes):
    with nodes.site.ledger() as ledger:
        return ledger.own_drain()


# --- release


def test_release_ends_our_drain_and_settles_what_it_was_for(nodes: Nodes) -> None:
    reason = drain(nodes, standing=False)
    said = nodes.site.nvhc("release", "--why", "reseated")
    assert f"released n1: our drain is over ({reason})" in said
    assert (nodes.state(), own(nodes)) == ("IDLE", None)
    before = len(nodes.changed())
    for hook, job in (("health_check", None), ("prolog", 8813)):
        assert nodes.site.hook(hook, job, gpus="3").returncode == 0
    assert len(nodes.changed()) == before, "the same Xid drains no second time"
    assert "nothing of ours" in nodes.site.nvhc("release")


def test_release_says_that_a_fault_which_still_shows_drains_again(nodes: Nodes) -> None:
    drain(nodes)
    said = nodes.site.nvhc("release")
    assert "drains n1 again" in said
    assert "remap: {mode: off}" in said
    nodes.site.hook("health_check")
    assert nodes.state() == "IDLE+DRAIN"


def test_release_names_the_gpu_for_which_the_node_would_be_drained_again(nodes: Nodes) -> None:
    drain(nodes)
    with nodes.site.ledger() as ledger:
        gpu, kept = ledger.known_gpus()[3].uuid, ledger.own_drain()
        assert kept is not None
        ledger.set_own_drain(kept._replace(keys=(*kept.keys, f"GPU-EXCLUDED {gpu}", "GPU-EXCLUDED GPU-gone")))
        ledger.exclude(Exclusion(gpu, "NVL-STORM", "is bad", "nvhc", 1, way="quarantine"))
    said = nodes.site.nvhc("release")
    assert f"`nvhc gpu release {gpu}`" in said
    assert "GPU-gone" not in said, "excluded no more"


@pytest.mark.parametrize("who", ["another reason", "our reason set anew", "no drain of ours"])
def test_release_leaves_a_drain_of_somebody_else(nodes: Nodes, who: str) -> None:
    reason = drain(nodes) if who != "no drain of ours" else ""
    nodes.add("n1", "IDLE+DRAIN", reason if who == "our reason set anew" else "psu swap", "ada@2026-12-01T10:00:00")
    if who == "no drain of ours":
        nodes.site.hook("health_check")
    done = nodes.site.command("release")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "not by nvhc" in done.stderr
    assert "ada@2026-12-01T10:00:00" in done.stderr
    assert nodes.state() == "IDLE+DRAIN"


@pytest.mark.parametrize(
    ("state", "said"), [("DOWN*", "is DOWN and not drained"), ("IDLE+DRAIN+REBOOT_REQUESTED", "a reboot of it is asked for")]
)
def test_release_of_a_node_that_is_more_than_drained(nodes: Nodes, state: str, said: str) -> None:
    drain(nodes)
    stamp = (nodes.folder / "n1.stamp").read_text()
    nodes.add("n1", state, nodes.reason(), stamp)
    done = nodes.site.command("release")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert nodes.state() == state
    assert own(nodes) is not None


def test_a_node_that_is_down_too_stays_down(nodes: Nodes) -> None:
    drain(nodes)
    nodes.add("n1", "DOWN+DRAIN", nodes.reason(), (nodes.folder / "n1.stamp").read_text())
    nodes.site.nvhc("release")
    assert nodes.state() == "DOWN"


def test_release_of_a_node_that_somebody_has_resumed(nodes: Nodes) -> None:
    reason = drain(nodes, standing=False)
    nodes.add("n1", "IDLE", reason)
    assert "in service already" in nodes.site.nvhc("release")
    before = len(nodes.changed())
    nodes.site.hook("health_check")
    assert (len(nodes.changed()), own(nodes)) == (before, None)


def test_slurm_that_does_not_answer_is_trouble_and_ends_nothing(nodes: Nodes) -> None:
    drain(nodes)
    nodes.site.scontrol("exit 1")
    done = nodes.site.command("release")
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert own(nodes) is not None


# --- undo on a node


def test_undo_takes_back_drain_exclusion_and_intents(nodes: Nodes) -> None:
    reason = drain(nodes)
    now_ns = time.time_ns()
    with nodes.site.ledger() as ledger:
        gpus = [g.uuid for g in ledger.known_gpus()]
        ledger.exclude(Exclusion(gpus[2], "NVL-STORM", "w", "nvhc", now_ns))
        ledger.exclude(Exclusion(gpus[3], "NVL-STORM", "w", "nvhc", now_ns - 5 * HOUR_NS))
        ledger.exclude(Exclusion(gpus[4], "BY-HAND", "w", "ada", now_ns))
        ledger.exclude(Exclusion(gpus[5], "NVL-STORM", "w", "nvhc", now_ns, stage="verified"))
        ledger.add_intent(Intent("notify", "told", now_ns))
        ledger.add_intent(Intent("notify", "old", now_ns - 5 * HOUR_NS))
    shown = nodes.site.nvhc("undo", "--since", "1h", "--dry-run")
    assert all(text in shown for text in ("would undo", reason, gpus[2], "notify told"))
    assert not any(text in shown for text in (gpus[3], gpus[4], "notify old"))
    assert nodes.state() == "IDLE+DRAIN"
    said = nodes.site.nvhc("undo", "--since", "1h", "--yes")
    assert f"undone: n1 is in service ({reason})" in said
    assert "drains n1 again" in said
    assert f"left: exclusion of {gpus[5]}" in said
    assert (nodes.state(), own(nodes)) == ("IDLE", None)
    with nodes.site.ledger() as ledger:
        kept = ledger.protective()
    assert {e.uuid for e in kept.exclusions} == {gpus[3], gpus[4], gpus[5]}
    assert [(e.exclusion.uuid, e.how) for e in kept.ended] == [(gpus[2], "released")]
    assert [i.reason for i in kept.intents] == ["old"]
    assert "did nothing" in nodes.site.nvhc("undo", "--since", "1h", "--yes")


def test_undo_of_what_is_older_does_nothing(nodes: Nodes) -> None:
    drain(nodes)
    with nodes.site.ledger() as ledger:
        kept = ledger.own_drain()
        ledger.set_own_drain(kept._replace(set_ns=kept.set_ns - 2 * HOUR_NS))
    assert "its drain is of" in nodes.site.nvhc("undo", "--since", "1h", "--yes")
    assert nodes.state() == "IDLE+DRAIN"


def test_undo_leaves_a_drain_of_somebody_else(nodes: Nodes) -> None:
    reason = drain(nodes)
    nodes.add("n1", "IDLE+DRAIN", reason, "ada@2026-12-01T10:00:00")
    assert "left: n1 is IDLE+DRAIN by ada@" in nodes.site.nvhc("undo", "--since", "1h", "--yes", code=1)
    assert (nodes.state(), own(nodes)) == ("IDLE+DRAIN", None)


@pytest.mark.parametrize(
    ("words", "named"),
    [(("--since", "1h"), "--yes"), (("--since", "soon", "--yes"), "--since"), (("--since", "1h", "--partition", "gpu"), "--partition")],
)
def test_what_is_missing_is_named(nodes: Nodes, words: tuple[str, ...], named: str) -> None:
    drain(nodes)
    done = nodes.site.command("undo", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(f"nvhc: {named}")
    assert nodes.state() == "IDLE+DRAIN"


# --- undo in the cluster


def cluster(nodes: Nodes) -> None:
    now = int(time.time())
    nodes.add("n2", "IDLE+DRAIN", "nvhc: NVL-STORM gpu3 is bad")
    nodes.add("n3", "MIXED+DRAIN", "nvhc: GPU-LOST gpu1")
    nodes.add("n4", "IDLE+DRAIN", "psu swap")
    nodes.add("n5", "IDLE+DRAIN", "nvhc: XID-FATAL gpu2")
    nodes.add("n6", "IDLE+DRAIN", "ADMIN took it over")
    nodes.sinfo(
        "gpu|20|idle|Unknown|root|n[10-29]|none",
        f"gpu|1|drained|{now - 60}|root|n2|nvhc: NVL-STORM gpu3 is bad",
        f"gpu|1|draining|{now - 90}|root|n3|nvhc: GPU-LOST gpu1",
        f"gpu|1|drained|{now - 60}|root|n4|psu swap",
        f"gpu|1|drained|{now - 7200}|root|n5|nvhc: XID-FATAL gpu2",
        f"gpu|1|drained|{now - 30}|root|n6|nvhc: NVL-DOWN gpu7",
        f"gpu|1|down|{now - 30}|root|n7|nvhc: not drained",
    )


def test_undo_in_the_cluster_reads_each_node_again(nodes: Nodes) -> None:
    cluster(nodes)
    shown = nodes.site.nvhc("undo", "--since", "1h", "--cluster", "--dry-run")
    assert all(name in shown for name in ("n2", "n3", "n6"))
    assert not any(name in shown for name in ("n4", "n5", "n7", "psu"))
    assert "1 nodes in the cluster were drained by nvhc before that" in shown
    assert nodes.changed() == []
    said = nodes.site.nvhc("undo", "--since", "1h", "--cluster", "--yes", code=1)
    assert "undone: n2 (nvhc: NVL-STORM gpu3 is bad)" in said
    assert "left: n6: somebody changed it meanwhile" in said
    assert "drains its node again" in said
    assert [nodes.state(f"n{i}") for i in (2, 3, 4, 5, 6)] == ["IDLE", "MIXED", "IDLE+DRAIN", "IDLE+DRAIN", "IDLE+DRAIN"]
    assert all("state=undrain" in call for call in nodes.changed())


def test_undo_in_the_cluster_asks_first(nodes: Nodes) -> None:
    cluster(nodes)
    done = nodes.site.command("undo", "--since", "1h", "--cluster")
    assert (done.returncode, nodes.changed()) == (2, [])
    nodes.sinfo("gpu|20|idle|Unknown|root|n[10-29]|none")
    assert "no node in partition gpu" in nodes.site.nvhc("undo", "--since", "1h", "--cluster", "--partition", "gpu", "--yes")


def test_the_nodes_own_ledger_takes_it_as_settled(nodes: Nodes) -> None:
    reason = drain(nodes, standing=False)
    nodes.sinfo(f"gpu|1|drained|{int(time.time())}|root|n1|{reason}")
    nodes.site.nvhc("undo", "--since", "1h", "--cluster", "--yes")
    assert nodes.state() == "IDLE"
    before = len(nodes.changed())
    nodes.site.hook("health_check")
    nodes.site.hook("health_check")
    assert (len(nodes.changed()), own(nodes)) == (before, None)
    assert json.loads(nodes.site.nvhc("status", "--json", code=None))["own_drain"] is None
