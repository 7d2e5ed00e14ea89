"""act/blast.py: many nodes at once against a limit, whatever the order, and whatever Slurm does meanwhile.

The nodes of a played cluster run in threads, one at a time: at each call to Slurm and in each pause a scheduler with a seed
picks who goes on, and lets time pass.
"""

from __future__ import annotations

import contextlib
import random
import threading
from typing import Callable, Optional, Sequence

import pytest
from act_fakes import JUST_DRAIN, NO_NARROWING, T0, Ledger, decision, finding, given, kinds, policy, proposal, uuid

from slurm_nvhc.act import outbox
from slurm_nvhc.act import steps as sp
from slurm_nvhc.act.execute import Outcome, Tools, execute
from slurm_nvhc.act.plan import PlanInput, plan, reason_findings
from slurm_nvhc.act.words import plain
from slurm_nvhc.model.finding import Decision
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Intent, OwnDrain
from slurm_nvhc.policy.acting import Limit, Limits
from slurm_nvhc.slurm.fleet import OutNode, Partition
from slurm_nvhc.slurm.node import MISSING, REFUSED, TIMEOUT, UNREACHABLE, SlurmError

S = 10**9
SUSPICION = decision(proposal("drain", finding()))
BEYOND_DOUBT = decision(proposal("drain", finding("GPU-LOST", 5)))
OF_JOB = decision(proposal("drain", of_job=True))
WELL = Decision("ok")
KEY = f"NVL-STORM {uuid(3)}"
REASON = "nvhc: NVL-STORM gpu3 GPU-00000003… is bad"
TWO = Limits(soft=Limit(number=2), hard=Limit(number=4))


class Cluster:
    """slurmctld with its clock in whole seconds. trouble: (node, command) -> what goes wrong with the next one, once."""

    def __init__(self, names: Sequence[str], total: int = 40, keeps: bool = False) -> None:
        self.seconds = float(T0 // S)
        self.states: dict[str, NodeState] = {n: NodeState("IDLE", frozenset(), partitions=("gpu",)) for n in names}
        self.total = total
        self.keeps = keeps  # as 24.11 keeps the reason of an ended drain
        self.trouble: dict[tuple[str, str], str] = {}
        self.foreign: list[str] = []
        self.log: list[tuple[str, str]] = []
        self.turn: Callable[[], None] = lambda: None

    @property
    def out(self) -> list[str]:
        return [n for n, s in self.states.items() if s.out]

    def set(self, name: str, reason: str, user: str = "root") -> None:
        old = self.states[name]
        self.states[name] = old._replace(flags=old.flags | {"DRAIN"}, reason=reason, stamp=f"{user}@{int(self.seconds)}")

    def clear(self, name: str) -> None:
        old = self.states[name]
        self.states[name] = old._replace(flags=old.flags - {"DRAIN"}, **({} if self.keeps else {"reason": "", "stamp": ""}))

    def called(self, name: str, command: str) -> str:
        """What goes wrong. Raises for what comes to nothing."""
        self.turn()
        self.log.append((name, command))
        trouble = self.trouble.pop((name, command), "") or self.trouble.get((name, "all"), "")
        if trouble in ("down", "refused"):
            kind, said = (UNREACHABLE, "Unable to contact slurm controller") if trouble == "down" else (REFUSED, "Invalid user id")
            raise SlurmError(kind, command, name, said)
        if trouble == "hangs":
            raise SlurmError(TIMEOUT, command, name, "Socket timed out")
        return trouble


class Commands:
    """scontrol on one node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def node_state(self, node: str, timeout_s: Optional[float] = None) -> NodeState:
        self.cluster.called(node, "show")
        return self.cluster.states[node]

    def drain(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        self._change(node, "drain", lambda: self.cluster.set(node, reason))

    def undrain(self, node: str, timeout_s: Optional[float] = None) -> None:
        self._change(node, "undrain", lambda: self.cluster.clear(node))

    def resume(self, node: str, timeout_s: Optional[float] = None) -> None:
        raise AssertionError("nothing resumes here")

    def reboot(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        raise AssertionError("nothing reboots here")

    def _change(self, node: str, command: str, change: Callable[[], None]) -> None:
        cluster = self.cluster
        trouble = cluster.called(node, command)
        state = cluster.states[node]
        if state.out and not state.reason.startswith("nvhc:"):
            cluster.foreign.append(f"{node} {command} over {state.reason}")
        change()
        if trouble == "late":
            raise SlurmError(TIMEOUT, "scontrol", node, "Socket timed out")
        if trouble == "killed":
            raise Killed


class Fleet:
    """sinfo on one node."""

    def __init__(self, cluster: Cluster, node: str, missing: bool = False) -> None:
        self.cluster, self.node, self.missing = cluster, node, missing

    def unusable(self) -> Optional[SlurmError]:
        return SlurmError(MISSING, "sinfo", "", "is not there") if self.missing else None

    def partitions(self, names: Sequence[str], timeout_s: Optional[float] = None) -> tuple[Partition, ...]:
        self.cluster.called(self.node, "sinfo")
        out = [(n, s) for n, s in self.cluster.states.items() if s.out]
        nodes = tuple(OutNode(n, "drained", s.reason, "root", int(s.stamp.partition("@")[2]) * S) for n, s in out)
        return tuple(Partition(name, self.cluster.total, nodes) for name in names)


class Killed(BaseException):
    """The hook is gone."""


class Node:
    """One node's hooks over a ledger of its own, as the pipeline runs them."""

    def __init__(self, cluster: Cluster, name: str, limits: Limits = TWO, missing: bool = False) -> None:
        self.cluster, self.name = cluster, name
        self.ledger, self.slurm = Ledger(), Commands(cluster)
        self.fleet = Fleet(cluster, name, missing)
        self.policy = policy(NO_NARROWING, JUST_DRAIN)._replace(limits=limits)
        self.pause: Callable[[float], None] = lambda seconds: setattr(cluster, "seconds", cluster.seconds + seconds)
        self.left_s = 20.0
        self.lines: list[str] = []
        self.accepted: set[str] = set()

    def input(self, what: Decision, hook: str) -> PlanInput:
        try:
            state: Optional[NodeState] = self.slurm.node_state(self.name)
        except SlurmError:
            state = None
        live = tuple(p for p in what.proposals if not any(f.idents and self.accepted.issuperset(f.idents) for f in p.findings))
        inp = given(what._replace(proposals=live), node=self.name, hook=hook, node_state=state, own=self.ledger.own, policy=self.policy)
        inp = inp._replace(intents=tuple(self.ledger.pending), now_ns=self.now_ns)
        found = reason_findings(inp)
        return inp._replace(reason=plain(found, "8812", 250)) if found else inp

    @property
    def now_ns(self) -> int:
        return int(self.cluster.seconds * S)

    def run(self, what: Decision = WELL, hook: str = "epilog") -> Outcome:
        inp = self.input(what, hook)
        outcome = execute(plan(inp), self.tools(inp))
        self.accepted.update(outcome.accepted)
        return outcome

    def tools(self, inp: PlanInput) -> Tools:
        return Tools(
            slurm=self.slurm, node=self.name, protective=self.ledger, run_dir="/nonexistent", job=inp.job, mapping=inp.mapping,
            constrain=lambda: False, log=self.lines.append, left_s=lambda: self.left_s, now_ns=inp.now_ns, policy=self.policy,
            fleet=self.fleet, pause=self.pause,
        )  # fmt: skip

    def pending(self, kind: str) -> list[Intent]:
        return [i for i in self.ledger.pending if i.kind == kind]


def cluster_of(count: int, limits: Limits = TWO, total: int = 40, keeps: bool = False) -> tuple[Cluster, list[Node]]:
    names = [f"n{i:02d}" for i in range(count)]
    cluster = Cluster(names, total, keeps)
    return cluster, [Node(cluster, name, limits) for name in names]


def at_once(cluster: Cluster, nodes: Sequence[Node], what: Decision, rng: random.Random, hook: str = "epilog") -> None:
    """Run all nodes' hooks at the same time; who goes on after each call to Slurm is drawn."""
    step_s = rng.choice([0.0, 0.01, 0.2])  # a call takes no time at all, or all calls together take some seconds
    baton = threading.Condition()
    waiting: dict[int, float] = {}  # thread number -> second at which it may go on
    turn: list[int] = []
    mine = threading.local()
    failures: list[BaseException] = []

    def hand_over(wake_s: float) -> None:
        number = mine.number
        with baton:
            waiting[number] = wake_s
            draw()
            while turn != [number]:
                assert baton.wait(60), "the scheduler lost a node"

    def draw() -> None:
        """Pick who goes on; time passes when everybody waits for a moment to come."""
        cluster.seconds += rng.random() * step_s
        if waiting:
            ready = [n for n, wake in waiting.items() if wake <= cluster.seconds]
            if not ready:
                cluster.seconds = min(waiting.values())
                ready = [n for n, wake in waiting.items() if wake <= cluster.seconds]
            turn[:] = [rng.choice(sorted(ready))]
            del waiting[turn[0]]
        else:
            turn[:] = []
        baton.notify_all()

    def work(number: int, node: Node) -> None:
        mine.number = number
        with baton:
            while turn != [number]:
                assert baton.wait(60), "the scheduler lost a node"
        try:
            node.run(what, hook)
        except BaseException as exc:  # a test's thread: it is raised below
            failures.append(exc)
        with baton:
            draw()

    # Some requests are on their way for up to a second while the others go on.
    cluster.turn = lambda: hand_over(cluster.seconds + (rng.random() if rng.random() < 0.2 else 0.0))
    for node in nodes:
        node.pause = lambda seconds: hand_over(cluster.seconds + seconds)
    threads = [threading.Thread(target=work, args=(n, node), daemon=True) for n, node in enumerate(nodes)]
    for thread in threads:
        thread.start()
    with baton:
        waiting.update(dict.fromkeys(range(len(nodes)), cluster.seconds))
        draw()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    cluster.turn = lambda: None
    for node in nodes:
        node.pause = lambda seconds: setattr(cluster, "seconds", cluster.seconds + seconds)
    if failures:
        raise failures[0]


def test_R_sixteen_nodes_at_once_against_a_limit_of_two() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        cluster, nodes = cluster_of(16, keeps=bool(seed % 2))
        cluster.set("n07", "psu swap", "bob")
        at_once(cluster, nodes, SUSPICION, rng)
        ours = [n for n in cluster.out if n != "n07"]
        assert len(ours) == 2, f"seed {seed}: {ours}"
        assert cluster.states["n07"].reason == "psu swap"
        assert not cluster.foreign
        for node in nodes:
            drained = node.name in ours
            assert (node.ledger.own is not None) is drained, f"seed {seed} {node.name}"
            assert not node.pending(outbox.RECOUNT)
            assert not node.pending(outbox.WITHDRAW)
            assert bool(node.pending("drain")) is (not drained and node.name != "n07")
        # Later health checks do not flap: nobody comes, nobody goes.
        before = dict(cluster.states)
        for round_ in range(6):
            cluster.seconds += 600
            at_once(cluster, rng.sample(nodes, len(nodes)), SUSPICION, rng, "health_check")
            assert cluster.states == before, f"seed {seed} round {round_}"


def test_a_pause_is_made_even_where_the_policy_asks_for_none() -> None:
    """slurmctld gives times in whole seconds: whoever looks within the same second does not see all who come before it."""
    for seed in range(40):
        cluster, nodes = cluster_of(16, TWO._replace(recount_s=0.0))
        cluster.seconds += seed % 10 / 10
        at_once(cluster, nodes, SUSPICION, random.Random(seed))
        assert len(cluster.out) == 2, f"seed {seed}"


def test_a_place_that_becomes_free_is_taken_once() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        cluster, nodes = cluster_of(8, keeps=bool(seed % 2))
        at_once(cluster, nodes, SUSPICION, rng)
        first = cluster.out
        by_name = {n.name: n for n in nodes}
        cluster.clear(first[0])
        by_name[first[0]].run(WELL)
        cluster.seconds += 7200
        at_once(cluster, nodes, SUSPICION if seed % 3 else WELL, rng, "health_check")
        assert len(cluster.out) == 2, f"seed {seed}"
        assert first[1] in cluster.out, f"seed {seed}"


def test_faults_beyond_doubt_have_room_of_their_own() -> None:
    cluster, nodes = cluster_of(8)
    for node in nodes[:3]:
        node.run(SUSPICION)
    assert cluster.out == ["n00", "n01"]
    for node in nodes[3:]:
        node.run(BEYOND_DOUBT)
    assert cluster.out == ["n00", "n01", "n03", "n04"]
    assert nodes[2].run(BEYOND_DOUBT).done[0].detail == "limit: 4 of 4 nodes of partition gpu are drained by nvhc within 1d"


def test_a_new_fault_beyond_doubt_is_not_held_back_by_a_suspicion_that_waits() -> None:
    cluster, nodes = cluster_of(3)
    for node in nodes:
        node.run(SUSPICION)
    assert cluster.out == ["n00", "n01"]
    nodes[2].run(BEYOND_DOUBT)
    assert cluster.out == ["n00", "n01", "n02"]
    assert nodes[2].ledger.own is not None
    assert not nodes[2].ledger.pending


def test_at_the_limit_nothing_is_asked_of_slurm_and_people_are_told_once() -> None:
    cluster, nodes = cluster_of(3)
    for node in nodes[:2]:
        node.run(SUSPICION)
    late = nodes[2]
    outcome = late.run(SUSPICION)
    assert kinds(tuple(d.step for d in outcome.done)) == [sp.DRAIN, sp.ALERT]
    assert [d.ok for d in outcome.done] == [False, True]
    text = "limit: 2 of 2 nodes of partition gpu are drained by nvhc within 1d"
    assert outcome.done[0].detail == text
    assert outcome.done[1].step.why == f"not drained for {KEY}: {text}"
    assert outcome.troubles == ()
    (kept,) = late.pending("drain")
    assert (kept.limited, kept.tries, kept.gone) == (text, 1, "")
    cluster.seconds += 120
    again = late.run(SUSPICION)
    assert kinds(tuple(d.step for d in again.done)) == [sp.DRAIN], "not a second alert"
    assert late.pending("drain")[0].tries == 2
    assert ("n02", "drain") not in cluster.log


def test_a_limited_prolog_lets_the_job_through() -> None:
    _, nodes = cluster_of(3)
    for node in nodes[:2]:
        node.run(SUSPICION)
    outcome = nodes[2].run(OF_JOB, "prolog")
    assert not outcome.fail_hook
    assert [d.step.kind for d in outcome.done if not d.ok] == [sp.DRAIN, sp.FAIL_JOB]
    assert sp.ALERT in [d.step.kind for d in outcome.done]


def crowded(keeps: bool = False) -> tuple[Cluster, Node]:
    """Our node saw no other when it counted, and two came before it."""
    cluster, nodes = cluster_of(3, keeps=keeps)
    node = nodes[2]

    def others(seconds: float) -> None:
        for other in ("n00", "n01"):
            earlier = {"flags": frozenset({"DRAIN"}), "reason": "nvhc: earlier", "stamp": f"root@{T0 // S - 1}"}
            cluster.states[other] = cluster.states[other]._replace(**earlier)
        cluster.seconds += seconds

    node.pause = others
    return cluster, node


def test_a_drain_that_is_taken_back_lets_the_job_through_too() -> None:
    cluster, node = crowded()
    outcome = node.run(OF_JOB, "prolog")
    assert not outcome.fail_hook
    assert cluster.out == ["n00", "n01"]
    assert node.ledger.own is None
    (kept,) = node.pending("drain")
    assert kept.keys == (KEY,)
    assert kept.limited.endswith("this one came as number 3")
    assert kept.gone.startswith("root@")
    assert any(line.startswith("took back our drain") for line in node.lines)
    assert outcome.done[1].step.kind == sp.ALERT


@pytest.mark.parametrize("keeps", [False, True])
def test_one_too_many_is_taken_back(keeps: bool) -> None:
    cluster, node = crowded(keeps=keeps)
    outcome = node.run(SUSPICION)
    assert cluster.out == ["n00", "n01"]
    assert [(d.step.kind, d.ok) for d in outcome.done] == [(sp.DRAIN, False), (sp.ALERT, True)]
    assert outcome.deeds == (), "what was taken back is no drain of ours"
    assert [i.kind for i in node.ledger.pending] == ["drain"]
    assert node.ledger.own is None
    cluster.seconds += 20
    node.run(SUSPICION)
    assert cluster.log.count(("n02", "drain")) == 1, "it waits for its time"
    assert not node.accepted, "nobody has settled the fault"
    cluster.clear("n00")
    cluster.seconds += 120
    node.pause = lambda seconds: None
    node.run(WELL)
    assert "n02" in cluster.out
    assert node.ledger.pending == []


@pytest.mark.parametrize("state", ["reason", "stamp", "FAIL", "REBOOT_REQUESTED", "INVALID_REG"])
def test_nothing_but_our_own_drain_is_taken_back(state: str) -> None:
    cluster, node = crowded()
    plain_pause = node.pause
    looks = [0]

    def meddle() -> None:
        """Between the count and the change somebody else acts on the node."""
        looks[0] += cluster.states["n00"].out
        if looks[0] == 3:  # show, sinfo, and then the read just before the change
            old = cluster.states["n02"]
            change = {"reason": {"reason": "psu swap"}, "stamp": {"stamp": "bob@1"}}.get(state, {"flags": old.flags | {state}})
            cluster.states["n02"] = old._replace(**change)

    cluster.turn = meddle
    node.pause = plain_pause
    outcome = node.run(SUSPICION)
    assert looks[0] >= 3
    assert "n02" in cluster.out
    assert ("n02", "undrain") not in cluster.log
    assert outcome.done[0].ok
    assert "somebody else changed the node" in outcome.done[0].detail
    assert not node.pending(outbox.WITHDRAW)
    assert not node.pending("drain")


def test_somebody_resumes_in_the_pause() -> None:
    cluster, node = crowded()
    node.pause = lambda seconds: cluster.clear("n02")
    outcome = node.run(OF_JOB, "prolog")
    assert not outcome.fail_hook, "the node is in service: failing the prolog would drain it"
    assert ("n02", "undrain") not in cluster.log
    assert not node.pending(outbox.RECOUNT)
    node.run(WELL)
    assert node.ledger.own is None


@pytest.mark.parametrize("trouble", ["down", "hangs", "refused"])
def test_a_withdrawal_that_fails_is_completed_by_a_later_hook(trouble: str) -> None:
    cluster, node = crowded()
    cluster.trouble["n02", "undrain"] = trouble
    outcome = node.run(SUSPICION)
    assert "n02" in cluster.out
    assert outcome.done[0].ok
    assert [t.code for t in outcome.troubles] == ["MON-SLURM"]
    assert node.pending(outbox.WITHDRAW)
    assert node.ledger.own is not None
    cluster.seconds += 60
    node.run(WELL)
    assert cluster.out == ["n00", "n01"]
    assert [i.kind for i in node.ledger.pending] == ["drain"], "the fault stays recorded"
    assert node.ledger.own is None


def test_a_withdrawal_that_timed_out_and_was_applied() -> None:
    cluster, node = crowded()
    cluster.trouble["n02", "undrain"] = "late"
    outcome = node.run(SUSPICION)
    assert cluster.out == ["n00", "n01"]
    assert not outcome.done[0].ok
    assert [i.kind for i in node.ledger.pending] == ["drain"]
    assert node.ledger.own is None


@pytest.mark.parametrize("keeps", [False, True])
def test_a_withdrawal_that_is_applied_after_the_hook_has_gone(keeps: bool) -> None:
    cluster, node = crowded(keeps=keeps)
    cluster.trouble["n02", "undrain"] = "hangs"
    idents = decision(proposal("drain", finding(idents=("GPU-x|79|49",))))
    node.run(idents)
    cluster.clear("n02")
    node.run(idents, "health_check")
    assert node.ledger.own is None
    assert not node.accepted, "we took it back: nobody has settled the fault"
    assert [i.kind for i in node.ledger.pending] == ["drain"]


@pytest.mark.parametrize(("command", "drained"), [("drain", True), ("undrain", False)])
def test_killed_right_after_slurm_did_it(command: str, drained: bool) -> None:
    cluster, node = crowded()
    cluster.trouble["n02", command] = "killed"
    with pytest.raises(Killed):
        node.run(SUSPICION)
    assert ("n02" in cluster.out) is drained
    cluster.seconds += 60
    if drained:
        node.pause(0)  # the others
    node.run(SUSPICION, "health_check")
    assert cluster.out == ["n00", "n01"]
    assert [i.kind for i in node.ledger.pending] == ["drain"]
    assert node.ledger.own is None


def test_no_time_for_the_pause_leaves_the_count_to_the_next_hook() -> None:
    cluster, node = crowded()
    node.left_s = 2.5
    outcome = node.run(SUSPICION)
    assert outcome.done[0].ok
    assert "the next hook" in outcome.done[0].detail
    assert [i.kind for i in node.ledger.pending] == [outbox.RECOUNT]
    node.left_s = 20.0
    node.pause(0)
    cluster.seconds += 5
    outcome = node.run(WELL)
    assert cluster.out == ["n00", "n01"]
    assert outcome.done[0].step.kind == sp.RECOUNT
    assert [i.kind for i in node.ledger.pending] == ["drain"]


def test_a_count_that_finds_room_ends_its_intent() -> None:
    cluster, nodes = cluster_of(3)
    node = nodes[0]
    node.left_s = 2.5
    node.run(SUSPICION)
    assert node.pending(outbox.RECOUNT)
    node.left_s = 20.0
    node.run(WELL)
    assert cluster.out == ["n00"]
    assert node.ledger.pending == []
    assert node.ledger.own is not None


def test_a_drain_that_was_applied_late_is_counted_by_whoever_finds_it() -> None:
    cluster, node = crowded()
    cluster.trouble["n02", "all"] = "hangs"
    node.run(SUSPICION)
    cluster.trouble.clear()
    (kept,) = node.pending("drain")
    cluster.set("n02", kept.reason)
    outcome = node.run(SUSPICION)
    assert sp.OWN in [d.step.kind for d in outcome.done]
    assert cluster.out == ["n00", "n01"]
    assert [i.kind for i in node.ledger.pending] == ["drain"]
    assert node.ledger.own is None


@pytest.mark.parametrize("trouble", ["down", "hangs", "refused"])
def test_sinfo_that_fails_before_the_drain_drains_nothing(trouble: str) -> None:
    cluster, nodes = cluster_of(1)
    cluster.trouble["n00", "sinfo"] = trouble
    outcome = nodes[0].run(OF_JOB, "prolog")
    assert cluster.out == []
    assert not outcome.fail_hook
    assert [t.code for t in outcome.troubles] == ["MON-SLURM"]
    (kept,) = nodes[0].pending("drain")
    assert kept.tries == 1
    assert kept.limited == ""
    nodes[0].run(WELL)
    assert cluster.out == ["n00"]


def test_sinfo_that_fails_after_the_drain_leaves_the_count_to_the_next_hook() -> None:
    cluster, node = crowded()
    plain_pause = node.pause

    def pause(seconds: float) -> None:
        plain_pause(seconds)
        cluster.trouble["n02", "sinfo"] = "hangs"

    node.pause = pause
    outcome = node.run(SUSPICION)
    assert outcome.done[0].ok
    assert "could not be counted" in outcome.done[0].detail
    assert [i.kind for i in node.ledger.pending] == [outbox.RECOUNT]
    node.run(WELL)
    assert cluster.out == ["n00", "n01"]


def test_without_sinfo_the_drain_goes_ahead_and_says_that_nobody_counted() -> None:
    cluster = Cluster([f"n{i}" for i in range(4)])
    for name in cluster.states:
        node = Node(cluster, name, missing=True)
        outcome = node.run(SUSPICION)
        assert outcome.done[0].ok
        assert "sinfo is not there" in outcome.done[0].detail
        assert outcome.troubles == ()
        assert node.ledger.pending == []
    assert len(cluster.out) == 4


def test_no_pause_where_the_limit_has_room_for_all() -> None:
    cluster, (node,) = cluster_of(1, total=1)

    def never(_seconds: float) -> None:
        raise AssertionError("nobody else can be one too many")

    node.pause = never
    assert node.run(SUSPICION).done[0].ok
    assert cluster.log.count(("n00", "sinfo")) == 1
    assert node.ledger.pending == []


def test_a_node_in_no_partition_is_not_limited() -> None:
    cluster, (node,) = cluster_of(1, Limits(soft=Limit(number=0)))
    assert not node.run(SUSPICION).done[0].ok
    cluster.states["n00"] = NodeState("IDLE", frozenset())
    cluster.seconds += 60
    assert node.run(SUSPICION).done[0].ok


def test_a_broken_ledger_stops_neither_the_drain_nor_its_withdrawal() -> None:
    cluster, node = crowded()
    inp = node.input(SUSPICION, "epilog")
    node.ledger.broken = True
    node.input = lambda what, hook: inp  # type: ignore[method-assign]
    outcome = node.run(SUSPICION)
    assert cluster.out == ["n00", "n01"]
    assert {t.code for t in outcome.troubles} == {"MON-LEDGER"}


def test_an_own_drain_that_is_known_is_not_counted_anew_at_each_look() -> None:
    cluster, node = crowded()
    node.ledger.own = OwnDrain("nvhc: x", node.now_ns, True, (KEY,))
    cluster.set("n02", "nvhc: x")
    node.pause(0)
    for _ in range(3):
        node.run(WELL, "health_check")
    assert "n02" in cluster.out
    assert ("n02", "sinfo") not in cluster.log


STEPS = [("show", 1), ("sinfo", 1), ("drain", 1), ("show", 3), ("show", 4), ("sinfo", 2), ("show", 5), ("undrain", 1)]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("trouble", ["down", "hangs", "refused", "late", "killed", "applied later"])
@pytest.mark.parametrize(("command", "number"), STEPS)
def test_whatever_fails_at_whichever_step_later_hooks_put_it_right(command: str, number: int, trouble: str, keeps: bool) -> None:
    """Two others came before us: in the end our drain is gone, its fault is remembered, and nobody settled it."""
    cluster, node = crowded(keeps=keeps)
    what = decision(proposal("drain", finding(idents=("GPU-x|79|49",))))
    seen = [0]
    later: list[Callable[[], None]] = []

    real = cluster.called

    def called(name: str, asked: str) -> str:
        if asked == command:
            seen[0] += 1
            if seen[0] == number:
                if trouble == "applied later" and command in ("drain", "undrain"):
                    reason = next(i.reason for i in node.ledger.pending if i.kind == "drain")
                    later.append(lambda: cluster.set(name, reason) if command == "drain" else cluster.clear(name))
                    raise SlurmError(TIMEOUT, asked, name, "Socket timed out")
                if trouble == "killed" and command in ("show", "sinfo"):
                    raise Killed
                cluster.trouble[name, asked] = "hangs" if trouble == "applied later" else trouble
        return real(name, asked)

    cluster.called = called  # type: ignore[method-assign]
    with contextlib.suppress(Killed):
        node.run(what)
    assert seen[0] >= number, "the step was reached"
    for change in later:
        change()
    node.pause(0)  # the two others are out, whether we got that far or not
    node.pause = lambda seconds: setattr(cluster, "seconds", cluster.seconds + seconds)
    for _ in range(4):
        cluster.seconds += 7200
        node.run(what, "health_check")
    assert cluster.out == ["n00", "n01"]
    assert node.ledger.own is None
    assert not node.accepted
    (kept,) = node.ledger.pending
    assert (kept.kind, kept.keys) == ("drain", (KEY,))
    assert "of 2 nodes of partition gpu" in kept.limited
    assert not cluster.foreign
    # And when there is room, it is drained for that.
    cluster.clear("n00")
    cluster.seconds += 7200
    node.run(what, "health_check")
    assert cluster.out == ["n01", "n02"]
    assert node.ledger.pending == []
