"""act/outbox.py and what plan makes of it: when a thing that is still to be done is tried, when not, and when it is dropped."""

from __future__ import annotations

import pytest
from act_fakes import IDLE, T0, Site, decision, drained, finding, given, kinds, proposal, uuid

from slurm_nvhc.act import outbox
from slurm_nvhc.act import steps as sp
from slurm_nvhc.act.plan import needs_node_state, plan
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Intent, OwnDrain

S = 10**9
FAULT = decision(proposal("narrow", finding()))
OTHER = decision(proposal("narrow", finding("GPU-LOST", 5)))
OF_JOB = decision(proposal("narrow", of_job=True))
KEY = f"NVL-STORM {uuid(3)}"
REASON = "nvhc: NVL-STORM gpu3 GPU-00000003… is bad"
DRAIN = Intent("drain", REASON, T0, (KEY,), policy="test")
FAILED = DRAIN._replace(tries=1, next_ns=T0 + 30 * S)
LIMITED = FAILED._replace(limited="limit: 2 of 2 nodes of partition gpu are drained by nvhc within 1d")
GRACE = DRAIN._replace(next_ns=T0 + 300 * S)


def pauses(intent: Intent, node: str, tries: int) -> list[float]:
    out = []
    for _ in range(tries):
        later = outbox.postponed(intent, T0, node)
        assert later.tries == intent.tries + 1
        out.append((later.next_ns - T0) / S)
        intent = later
    return out


def test_back_off_doubles_up_to_an_hour_with_jitter() -> None:
    for n, pause in enumerate(pauses(DRAIN, "n1", 12)):
        middle = min(3600.0, 30.0 * 2**n)
        assert 0.75 * middle <= pause <= 1.25 * middle


def test_nodes_do_not_come_back_at_once_and_each_comes_back_at_the_same_time_again() -> None:
    first = {f"n{i}": pauses(DRAIN, f"n{i}", 1)[0] for i in range(200)}
    assert len({round(p, 1) for p in first.values()}) > 100
    assert min(first.values()) < 25
    assert max(first.values()) > 35
    assert first["n7"] == pauses(DRAIN, "n7", 1)[0]
    assert pauses(DRAIN, "n1", 1) != pauses(DRAIN._replace(kind="resume"), "n1", 1)


@pytest.mark.parametrize("tries", [0, 30, 10**6])
def test_many_tries_overflow_nothing(tries: int) -> None:
    assert outbox.postponed(DRAIN._replace(tries=tries), T0, "n1").next_ns <= T0 + int(1.25 * 3600 * S)


def test_due_and_waiting() -> None:
    assert outbox.due(DRAIN, T0)
    assert not outbox.waits(DRAIN, T0)
    assert not outbox.due(FAILED, T0)
    assert not outbox.waits(FAILED, T0), "it rests while Slurm is not heard from, no longer"
    assert outbox.waits(LIMITED, T0)
    assert outbox.waits(GRACE, T0)
    later = T0 + 31 * S
    assert outbox.due(FAILED, later)
    assert outbox.due(LIMITED, later)
    assert not outbox.waits(LIMITED, later)
    assert outbox.due(LIMITED, T0 - 3600 * S), "written by a clock that was set back since"


@pytest.mark.parametrize("intent", [FAILED, LIMITED])
def test_what_rests_makes_no_hook_ask_slurm(intent: Intent) -> None:
    calm = given(hook="health_check", job=None, intents=(intent,), node_state=None)
    assert not needs_node_state(calm)
    assert not needs_node_state(calm._replace(decision=FAULT)), "the same fault is nothing new"
    assert needs_node_state(calm._replace(decision=OTHER)), "another one is"
    assert needs_node_state(calm._replace(now_ns=T0 + 301 * S))
    assert not needs_node_state(calm._replace(intents=(intent._replace(kind="resume"),)))
    assert needs_node_state(calm._replace(own=OwnDrain("nvhc: x", T0, True)))


def test_a_prolog_whose_job_would_start_on_the_fault_asks_though_the_drain_rests() -> None:
    prolog = given(OF_JOB, hook="prolog", node_state=None)
    assert needs_node_state(prolog._replace(intents=(FAILED,)))
    assert needs_node_state(prolog._replace(intents=(GRACE,)))
    assert not needs_node_state(prolog._replace(intents=(LIMITED,))), "others are out; this job can not change that"


def test_what_waits_is_not_done_where_slurm_is_heard_from_for_another_reason() -> None:
    for intent, done in ((FAILED, [sp.DRAIN]), (LIMITED, [])):
        assert kinds(plan(given(hook="health_check", job=None, intents=(intent,)))) == done, intent
        assert kinds(plan(given(FAULT, hook="health_check", job=None, intents=(intent,)))) == done, intent
    both = plan(given(OTHER, hook="health_check", job=None, intents=(LIMITED,)))
    assert kinds(both) == [sp.DRAIN]
    assert not both[0].soft
    assert set(both[0].keys) == {KEY, f"GPU-LOST {uuid(5)}"}


def test_a_limited_drain_lets_the_job_through_and_says_why() -> None:
    for state in (None, IDLE):
        (note,) = plan(given(OF_JOB, hook="prolog", node_state=state, intents=(LIMITED,)))
        assert note.kind == sp.NOTE
        assert "let through because limit: 2 of 2 nodes of partition gpu" in note.why
    steps = plan(given(OF_JOB, hook="prolog", intents=(GRACE,)))
    assert kinds(steps) == [sp.DRAIN, sp.FAIL_JOB], "no time is given to a job that would start on the fault"


@pytest.mark.parametrize("kind", ["drain", "resume", "quarantine", "reboot", "notify", "recount", "withdraw"])
def test_everything_expires_after_a_day(kind: str) -> None:
    old = Intent(kind, "x", T0 - 86_401 * S, (KEY,), policy="test")
    ended = [s for s in plan(given(hook="health_check", job=None, intents=(old,), node_state=None)) if s.kind == sp.END_INTENT]
    assert [(s.reason, s.about or "drain", s.why) for s in ended] == [("x", kind, "it is older than 1d")]
    young = old._replace(since_ns=T0 - 86_399 * S)
    assert not outbox.expired(young, T0)


def test_keeping_a_moved_job_off_this_node_expires_after_an_hour() -> None:
    assert outbox.expired(Intent("exclude_node", "8812", T0 - 3601 * S), T0) == "it is older than 1h"
    assert not outbox.expired(Intent("exclude_node", "8812", T0 - 3599 * S), T0)


def test_a_drain_that_was_placed_is_dropped_but_not_one_that_is_about_to_be_taken_back() -> None:
    own = OwnDrain(REASON, T0, True, (KEY,))
    assert outbox.overtaken(given(own=own), DRAIN) == "it was placed"
    assert outbox.overtaken(given(own=own), LIMITED) == ""


def test_a_drain_that_we_took_back_is_not_one_that_somebody_ended() -> None:
    """24.11 keeps the reason of an ended drain."""
    state = NodeState("IDLE", frozenset(), REASON, "root@2026-12-01T12:00:00")
    mine = LIMITED._replace(idents=("GPU-x|79|49",), gone=state.stamp)
    assert kinds(plan(given(node_state=state, intents=(mine,)))) == []
    assert kinds(plan(given(node_state=state, intents=(mine._replace(gone="?"),)))) == []
    placed_again = plan(given(node_state=state._replace(stamp="root@2026-12-01T13:00:00"), intents=(mine,)))
    assert kinds(placed_again) == [sp.ACCEPT, sp.END_INTENT], "another stamp: it was placed anew and ended"


def test_killed_between_taking_back_and_writing_it_down() -> None:
    own = OwnDrain(REASON, T0, True, (KEY,), ("GPU-x|79|49",))
    left = (LIMITED, Intent(outbox.RECOUNT, REASON, T0), Intent(outbox.WITHDRAW, REASON, T0))
    steps = plan(given(own=own, intents=left))
    assert kinds(steps) == [sp.END_OWN, sp.END_INTENT, sp.END_INTENT], "nothing is accepted: nobody has settled the fault"
    assert steps[0].why == "we took it back"
    assert {s.about for s in steps[1:]} == {outbox.RECOUNT, outbox.WITHDRAW}


def test_a_recount_that_was_left_comes_first() -> None:
    own = OwnDrain(REASON, T0, True, (KEY,))
    left = (Intent(outbox.RECOUNT, REASON, T0),)
    steps = plan(given(own=own, node_state=drained(REASON), intents=left))
    assert kinds(steps) == [sp.RECOUNT]
    assert (steps[0].reason, steps[0].keys, steps[0].soft) == (REASON, (KEY,), True)
    foreign = plan(given(own=own, node_state=drained("psu swap"), intents=left))
    assert kinds(foreign) == [sp.END_OWN, sp.END_INTENT]


def test_each_failed_try_waits_longer() -> None:
    site = Site()
    site.slurm.behaviour = "refuses"
    waits = []
    for _ in range(outbox.PROMPT_TRIES + 2):
        site.run(FAULT)
        (kept,) = site.ledger.pending
        waits.append(kept.next_ns - T0)
    assert waits == sorted(waits)
    assert waits[: outbox.PROMPT_TRIES] == [0] * outbox.PROMPT_TRIES
    assert waits[outbox.PROMPT_TRIES] >= 3 * 60 * S
    assert waits[outbox.PROMPT_TRIES + 1] >= 6 * 60 * S
    site.slurm.behaviour = "ok"
    site.run()
    assert site.slurm.state.out
    assert site.ledger.pending == []


def test_a_slurmctld_that_is_down_at_the_first_look_is_asked_again_later() -> None:
    site = Site()
    site.slurm.behaviour = "down"
    site.run(FAULT)
    (kept,) = site.ledger.pending
    assert kept.tries == 1
    assert needs_node_state(site.input(FAULT)), "a fault does not wait for one lost answer"
    for _hook in range(outbox.PROMPT_TRIES):
        assert outbox.due(kept, T0)
        kept = outbox.unanswered(kept, T0, "n1")  # as the pipeline does when Slurm says nothing
        site.ledger.pending = [kept]
    assert not outbox.due(kept, T0)
    assert not needs_node_state(site.input(FAULT))


def test_an_intent_with_a_time_of_its_own_keeps_it() -> None:
    site = Site()
    step = sp.Step(sp.INTENT, reason=REASON, keys=(KEY,), next_ns=T0 + 300 * S)
    site.do((step,), site.input(decision()))
    assert [(i.tries, i.next_ns) for i in site.ledger.pending] == [(0, T0 + 300 * S)]


