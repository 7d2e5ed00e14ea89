"""act/remedy.py and act/remedies.py: a reboot is asked for once, only for our own drain, and only so often."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from act_fakes import IDLE, T0, Site, Slurm, decision, finding, kinds, policy, proposal, uuid

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.plan import Step, plan
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Intent, OwnDrain, Pause, Strike
from slurm_nvhc.policy.acting import Reboot
from slurm_nvhc.slurm.node import REFUSED, TIMEOUT, UNREACHABLE, SlurmError, parse_node

DAY = 86400 * 10**9
REASON = "nvhc: GPU-LOST gpu3 GPU-00000003… is gone; do: reboot"
LOST = finding("GPU-LOST", 3)._replace(action="drain", absolute=True)
KEYS = (f"GPU-LOST {uuid(3)}",)
OWN = OwnDrain(REASON, T0 - 3600 * 10**9, True, KEYS, standing=True, stamp="root@2027-01-15T07:00:00")
OUT = NodeState("IDLE", frozenset({"DRAIN"}), REASON, "root@2027-01-15T07:00:00")
ON = policy()._replace(reboot=Reboot(enabled=True))


def rebooting(flag: str = "REBOOT_REQUESTED", base: str = "IDLE", suffix: str = "") -> NodeState:
    return NodeState(base, frozenset({"DRAIN", flag}), REASON + suffix, "root@2027-01-15T08:00:00")


class Rebooting(Slurm):
    """Takes reboot requests as slurmctld does: the node stays as it is, with a flag, and the reason is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.state = OUT
        self.asked: list[str] = []
        self.fails: Optional[SlurmError] = None
        self.applied = True

    def reboot(self, node: str, reason: str, timeout_s: Optional[float] = None) -> None:
        self.asked.append(reason)
        if self.applied:
            self.state = rebooting()
        if self.fails is not None:
            raise self.fails


class Node(Site):
    def __init__(self) -> None:
        super().__init__(slurm=Rebooting())
        self.ledger.own = OWN

    def check(self, *findings: Finding, **changes: Any) -> tuple[Step, ...]:
        """A health check."""
        what = decision(*(proposal("drain", f) for f in findings or (LOST,)))
        base = {"hook": "health_check", "job": None, "policy": ON, "strikes": tuple(self.ledger.strikes)}
        steps, _ = self.run(what, **{**base, **changes})
        return steps


def test_a_reboot_is_asked_for_once_and_counted() -> None:
    node = Node()
    assert st.REBOOT in kinds(node.check())
    assert node.slurm.asked == [REASON], "with our own reason, so that the drain is still known as ours"
    assert [(s.kind, s.key) for s in node.ledger.strikes] == [("reboot", REASON)]
    assert node.ledger.pending == [], "Slurm was seen to have it"
    assert st.REBOOT not in kinds(node.check()), "it is under way"
    assert node.slurm.asked == [REASON]


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("off by default", {"policy": policy()}),
        ("only from a health check", {"hook": "epilog"}),
        ("a ledger that forgets limits nothing", {"durable": False}),
        ("not for a drain that Slurm never confirmed", {"own": OWN._replace(confirmed=False)}),
        ("not without our own drain", {"own": None}),
        ("not with a job on the node", {"node_state": OUT._replace(base="MIXED")}),
        ("not while jobs complete", {"node_state": OUT._replace(flags=frozenset({"DRAIN", "COMPLETING"}))}),
        ("not a node in service", {"node_state": IDLE}),
        ("not one that is down", {"node_state": OUT._replace(base="DOWN")}),
        ("not with somebody else's reason", {"node_state": OUT._replace(reason="ADMIN: psu")}),
        ("not when somebody set our reason anew", {"node_state": OUT._replace(stamp="bob@2027-01-15T07:30:00")}),
        ("not when nobody knows the state", {"node_state": None}),
        ("not when the drain answers something else as well", {"own": OWN._replace(keys=(*KEYS, f"NVL-STORM {uuid(3)}/link1"))}),
        ("not when the node's state can not be told from a reboot", {"node_state": rebooting()}),
    ],
)  # fmt: skip
def test_when_none_is_asked_for(what: str, changes: dict[str, Any]) -> None:
    assert st.REBOOT not in kinds(Node().check(**changes)), what


def test_not_when_another_fault_needs_more_or_none_shows() -> None:
    assert st.REBOOT not in kinds(Node().check(LOST, finding("NVL-STORM", 4)._replace(action="drain")))
    node = Node()
    assert st.REBOOT not in kinds(node.run(decision(), hook="health_check", job=None, policy=ON)[0])


def test_by_the_xids_own_bucket() -> None:
    key = (f"XID-FATAL {uuid(3)}",)
    for number, expected in ((79, True), (119, False)):
        node = Node()
        node.ledger.own = OWN._replace(keys=key)
        fatal = finding("XID-FATAL", 3, (f"{uuid(3)}|{number}|{T0}",))
        fatal = fatal._replace(action="drain", evidence=Evidence(field="xid", after=number))
        assert (st.REBOOT in kinds(node.check(fatal))) is expected, number


def test_when_the_driver_asks_for_it() -> None:
    key = (f"NVL-STORM {uuid(3)}",)
    storm = finding("NVL-STORM", 3)._replace(action="drain")
    node = Node()
    node.ledger.own = OWN._replace(keys=key)
    assert st.REBOOT not in kinds(node.check(storm))
    assert st.REBOOT in kinds(node.check(storm, recovery={uuid(3): 2}))


def test_a_fault_that_two_reboots_did_not_cure_needs_another_rung() -> None:
    node = Node()
    node.ledger.strikes = [Strike("fault", KEYS[0], T0 - n * DAY) for n in (1, 2)]
    assert not {st.REBOOT, st.ALERT} & set(kinds(node.check()))


def test_the_cap_ends_in_an_alert() -> None:
    node = Node()
    node.ledger.strikes = [Strike("reboot", "x", T0 - 6 * DAY), Strike("reboot", "y", T0 - DAY), Strike("resume", "", T0)]
    steps = node.check()
    assert st.REBOOT not in kinds(steps)
    alert = next(s for s in steps if s.kind == st.ALERT)
    assert alert.why == f"limit: 2 of 2 reboots within 7d did not cure it, only an administrator reboots now: {KEYS[0]}"
    assert node.slurm.asked == []
    node.ledger.strikes[0] = Strike("reboot", "x", T0 - 8 * DAY)
    node.check()
    assert node.slurm.asked == [REASON]


@pytest.mark.parametrize("state", ["mode", "pause"])
def test_observe_mode_and_a_pause_only_say_it(state: str) -> None:
    node = Node()
    more = {"policy": ON._replace(mode="observe")} if state == "mode" else {"pause": Pause(T0 + DAY, "upgrade", "ada", T0)}
    steps = node.check(**more)
    assert st.REBOOT not in kinds(steps)
    assert any("would reboot" in s.why for s in steps if s.kind == st.NOTE)
    assert (node.slurm.asked, node.ledger.strikes) == ([], [])


def test_the_order_evidence_count_look_request() -> None:
    """Whatever happens while evidence and the site's program take their time, the state decides just before."""
    node = Node()
    seen: list[Any] = []

    def before(step: Step) -> None:
        seen.append((list(node.ledger.strikes), node.slurm.asked[:]))
        node.slurm.state = OUT._replace(reason="ADMIN: mine now", stamp="bob@2027-01-15T08:00:00")

    done = _execute(node, before)
    assert seen == [([], [])], "before anything is written or asked"
    assert not done.ok
    assert node.slurm.asked == []


def _execute(node: Node, before: Any = None) -> Any:
    from slurm_nvhc.act.execute import Tools, execute

    inp = node.input(decision(proposal("drain", LOST)), hook="health_check", job=None, policy=ON, strikes=tuple(node.ledger.strikes))
    step = next(s for s in plan(inp) if s.kind == st.REBOOT)
    tools = Tools(node.slurm, "n1", node.ledger, "/nonexistent", None, inp.mapping, lambda: False, node.lines.append, lambda: 5.0, T0, ON)
    return execute((step,), tools._replace(before_reboot=before)).done[0]


def test_without_a_ledger_that_counts_there_is_none() -> None:
    node = Node()
    node.ledger.add_strike = _broken  # type: ignore[method-assign]
    assert not _execute(node).ok
    assert node.slurm.asked == []


def _broken(strike: Strike) -> None:
    from slurm_nvhc.errors import MonitorError

    raise MonitorError("ledger", "", "disk full")


def test_a_request_that_timed_out_but_was_applied_is_seen() -> None:
    node = Node()
    node.slurm.fails = SlurmError(TIMEOUT, "scontrol", "reboot", "Socket timed out")
    done = _execute(node)
    assert done.ok
    assert done.detail == "Slurm has it"
    assert node.ledger.pending == []


@pytest.mark.parametrize("kind", [TIMEOUT, UNREACHABLE, REFUSED])
def test_a_request_that_came_to_nothing_is_tried_again_later_and_counts_once(kind: str) -> None:
    node = Node()
    node.slurm.fails, node.slurm.applied = SlurmError(kind, "scontrol", "reboot", "no"), False
    assert not _execute(node).ok
    (intent,) = node.ledger.pending
    assert (intent.kind, intent.reason, intent.tries) == ("reboot", REASON, 1)
    assert intent.next_ns > T0
    assert st.REBOOT not in kinds(node.check()), "not before its time"
    node.ledger.pending = [intent._replace(next_ns=T0)]
    node.slurm.fails, node.slurm.applied = None, True
    assert st.REBOOT in kinds(node.check())
    assert len(node.slurm.asked) == 2
    assert len(node.ledger.strikes) == 1
    assert node.ledger.pending == []


def test_an_intent_to_reboot_ends_with_its_drain_and_once_slurm_has_it() -> None:
    pending = Intent("reboot", REASON, T0 - 10**9, KEYS, tries=1, next_ns=T0 + 10**12)
    for own, state in ((OWN, rebooting()), (None, IDLE), (OWN._replace(reason="nvhc: another"), OUT._replace(reason="nvhc: another"))):
        node = Node()
        node.ledger.own, node.slurm.state, node.ledger.pending = own, state, [pending]
        node.check()
        assert not any(i.kind == "reboot" for i in node.ledger.pending)


@pytest.mark.parametrize("state", [rebooting(), rebooting("REBOOT_ISSUED", "DOWN", " : reboot issued")])
def test_our_drain_is_still_ours_while_the_node_reboots(state: NodeState) -> None:
    """slurmctld puts its own words behind the reason, and a new stamp."""
    node = Node()
    node.slurm.state = state
    extending = ON._replace(drain=ON.drain._replace(extend=True))
    steps = node.check(LOST, finding("NVL-STORM", 4)._replace(action="drain"), policy=extending)
    assert node.ledger.own is not None
    assert node.ledger.own.reason == REASON
    assert not {st.END_OWN, st.DRAIN, st.EXTEND, st.INTENT} & set(kinds(steps))
    assert node.slurm.updates == []


def test_a_reboot_that_somebody_cancels_leaves_our_drain_ours() -> None:
    node = Node()
    node.check()
    node.slurm.state = NodeState("IDLE", frozenset({"DRAIN"}), REASON, rebooting().stamp)
    steps = node.check(policy=policy())
    assert st.END_OWN not in kinds(steps)


def test_back_in_service_the_drain_is_over_and_its_events_are_settled() -> None:
    node = Node()
    ident = f"{uuid(3)}|79|{T0}"
    node.ledger.own = OWN._replace(idents=(ident,), standing=False)
    node.slurm.state = IDLE
    steps = node.run(decision(), hook="health_check", job=None, policy=ON)[0]
    assert node.ledger.own is None
    assert [s.idents for s in steps if s.kind == st.ACCEPT] == [(ident,)]


def test_the_states_of_a_reboot_as_slurm_writes_them() -> None:
    text = "NodeName=n1\n   State=DOWN+DRAIN+REBOOT_ISSUED ThreadsPerCore=1\n   Reason=nvhc: x : reboot issued [root@2026-12-01T12:47:44]\n"
    state = parse_node(text)
    assert state is not None
    assert (state.rebooting, state.ground, state.stamp) == (True, "nvhc: x", "root@2026-12-01T12:47:44")
    assert not OUT.rebooting
