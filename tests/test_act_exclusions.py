"""The life of an exclusion: what begins it, by which way, what is in the way of it, and how it ends by itself."""

from __future__ import annotations

from typing import Any

import pytest
from act_fakes import T0, Site, decision, finding, given, kinds, mapping, policy, proposal, uuid

from slurm_nvhc.act import exclusions
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.plan import PlanInput, Step, needs_node_state, plan
from slurm_nvhc.model import protective as kept
from slurm_nvhc.model.protective import Exclusion, Pause
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.policy.acting import Quarantine

FAULT = decision(proposal())
OBSERVED = decision(observed=(proposal(),), verdict="fail")
QUARANTINE = policy()._replace(quarantine=Quarantine(enabled=True))
NARROW = policy(pol.Narrow(enabled=True))
SLOTS = {f"0000:0{n}:00.0": uuid(n) for n in range(8)}
DAY = 86400 * 10**9


def excluded(n: int = 3, **changes: Any) -> dict[str, Exclusion]:
    one = Exclusion(uuid(n), "NVL-STORM", "gpu3 is bad", "nvhc", T0 - DAY, slot=f"0000:0{n}:00.0")
    return {uuid(n): one._replace(**changes)}


def suspected(n: int = 3) -> dict[str, Exclusion]:
    return excluded(n, stage=kept.SUSPECTED)


def inp(what: Any = FAULT, **changes: Any) -> PlanInput:
    return given(what, **{"policy": QUARANTINE, "alloc": True, "slots": SLOTS, "jobs": (), "boot_id": "b1", **changes})


def only(steps: tuple[Step, ...], kind: str) -> Step:
    (step,) = [s for s in steps if s.kind == kind]
    return step


# --- by which way


def test_the_policy_says_by_which_way() -> None:
    both = QUARANTINE._replace(narrow=pol.Narrow(enabled=True))
    for rules, way in ((QUARANTINE, kept.QUARANTINE), (both, kept.QUARANTINE), (NARROW, kept.NARROW)):
        step = only(plan(inp(policy=rules)), st.EXCLUDE)
        assert (step.way, step.uuid, step.slot) == (way, uuid(3), "0000:03:00.0")


def test_an_exclusion_remembers_way_place_and_age() -> None:
    site = Site()
    site.run(FAULT, policy=QUARANTINE, alloc=True, slots=SLOTS)
    (one,) = site.ledger.excluded.values()
    week = round(QUARANTINE.quarantine.max_age_s * 1e9)
    assert (one.stage, one.way, one.slot, one.until_ns) == (kept.EXCLUDED, kept.QUARANTINE, "0000:03:00.0", T0 + week)
    other = Site()
    other.run(FAULT, policy=NARROW, slots=SLOTS)
    assert [(e.way, e.until_ns) for e in other.ledger.excluded.values()] == [(kept.NARROW, 0)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"durable": False}, "does not survive a reboot"),
        ({"mapping": mapping(2, 3, exact=False)}, "position is not certain"),
        ({"alloc": False}, "PrologFlags has no Alloc"),
        ({"alloc": None}, "it is not known whether PrologFlags has Alloc"),
        ({"exclusions": excluded(5, way=kept.QUARANTINE)}, "2 GPUs would be excluded, 1 may be"),
        ({"node_gpus": 1}, "fewer than 1 GPUs would be left on the node"),
    ],
)
def test_what_can_not_be_kept_up_is_a_drain_that_says_why(changes: dict[str, Any], why: str) -> None:
    steps = plan(inp(**changes))
    assert st.EXCLUDE not in kinds(steps)
    assert why in only(steps, st.DRAIN).why


def test_narrowing_needs_a_durable_state_too_and_no_alloc() -> None:
    assert kinds(plan(inp(policy=NARROW, durable=False))) == [st.DRAIN]
    assert kinds(plan(inp(policy=NARROW, alloc=False))) == [st.EXCLUDE]


def test_a_fault_that_hurts_the_peers_is_a_drain() -> None:
    assert kinds(plan(inp(decision(proposal("narrow", finding("GPU-LOST")))))) == [st.DRAIN]


# --- suspected


def test_what_only_observes_suspects_and_asks_nothing_of_slurm() -> None:
    given_ = inp(OBSERVED, node_state=None)
    assert not needs_node_state(given_)
    step = only(plan(given_), st.SUSPECT)
    assert (step.uuid, step.code, step.way) == (uuid(3), "NVL-STORM", kept.QUARANTINE)
    assert st.SUSPECT not in kinds(plan(given_._replace(suspected=suspected())))
    assert st.SUSPECT not in kinds(plan(given_._replace(exclusions=excluded())))
    assert st.SUSPECT not in kinds(plan(given_._replace(policy=policy()))), "a drain is no exclusion"
    assert st.SUSPECT not in kinds(plan(given_._replace(durable=False)))


def test_what_is_excluded_in_this_run_is_not_suspected_as_well() -> None:
    both = decision(proposal(), observed=(proposal("narrow", finding("NVL-CRC")),))
    assert st.SUSPECT not in kinds(plan(inp(both)))
    assert st.EXCLUDE in kinds(plan(inp(both)))


def test_in_a_pause_a_gpu_is_suspected_and_not_excluded() -> None:
    pause = Pause(T0 + DAY, "driver", "ada", T0 - 1)
    steps = plan(inp(pause=pause))
    assert st.EXCLUDE not in kinds(steps)
    assert st.QUARANTINE not in kinds(steps)
    assert only(steps, st.SUSPECT).uuid == uuid(3)


def test_a_suspicion_keeps_nobody_off_and_gives_way_to_an_exclusion() -> None:
    site = Site()
    site.run(OBSERVED, policy=QUARANTINE, alloc=True, slots=SLOTS)
    (one,) = site.ledger.excluded.values()
    assert one.stage == kept.SUSPECTED
    assert plan(inp(decision(), hook="prolog", suspected=suspected())) == ()
    assert only(plan(inp(suspected=suspected())), st.EXCLUDE).uuid == uuid(3)


def test_a_suspicion_is_cleared_by_enough_clean_looks_of_health_checks() -> None:
    clean = inp(decision(), hook="health_check", job=None, suspected=suspected(), clean_looks={uuid(3): exclusions.CLEAN_LOOKS})
    assert only(plan(clean), st.END_EXCLUSION).about == kept.CLEARED
    assert plan(clean._replace(clean_looks={uuid(3): exclusions.CLEAN_LOOKS - 1})) == ()
    assert plan(clean._replace(hook="epilog")) == ()
    assert plan(clean._replace(suspected={}, exclusions=excluded())) == (), "an exclusion is not cleared"


def test_looks_are_counted_in_a_row_and_no_data_is_no_cure() -> None:
    looks: dict[str, int] = {}
    for verdict, count in (("ok", 1), ("ok", 2), ("unknown", 2), ("ok", 3), ("warn", 0), ("ok", 1)):
        looks = exclusions.clean_looks(looks, [uuid(3)], {uuid(3): verdict, uuid(4): "ok"})
        assert looks == {uuid(3): count}
    assert exclusions.clean_looks(looks, [uuid(3)], {}) == {uuid(3): 1}
    assert exclusions.clean_looks(looks, [], {uuid(3): "ok"}) == {}


# --- replaced, moved


def test_another_card_in_its_place_ends_it_whatever_the_stage() -> None:
    swapped = {**SLOTS, "0000:03:00.0": "GPU-new"}
    for stage in (kept.SUSPECTED, kept.EXCLUDED, kept.VERIFIED):
        one = excluded(stage=stage)
        changes = {"suspected": one} if stage == kept.SUSPECTED else {"exclusions": one}
        step = only(plan(inp(decision(), slots=swapped, **changes)), st.END_EXCLUSION)
        assert (step.about, step.uuid) == (kept.REPLACED, uuid(3))
        assert "0000:03:00.0" in step.why


@pytest.mark.parametrize("slots", [{}, {k: v for k, v in SLOTS.items() if v != uuid(3)}])
def test_a_card_that_is_only_missing_stays_excluded(slots: dict[str, str]) -> None:
    assert plan(inp(decision(), slots=slots, exclusions=excluded())) == ()


def test_an_exclusion_without_a_place_is_never_replaced() -> None:
    swapped = {**SLOTS, "0000:03:00.0": "GPU-new"}
    assert st.END_EXCLUSION not in kinds(plan(inp(decision(), slots=swapped, exclusions=excluded(slot=""))))


def test_cards_that_change_places_keep_their_exclusions() -> None:
    """GPU 3 is put where 5 was: it is still the bad one, at another address."""
    crossed = {**SLOTS, "0000:03:00.0": uuid(5), "0000:05:00.0": uuid(3)}
    steps = plan(inp(decision(), slots=crossed, exclusions=excluded()))
    step = only(steps, st.NEW_SLOT)
    assert (step.uuid, step.slot) == (uuid(3), "0000:05:00.0")
    assert st.END_EXCLUSION not in kinds(steps)
    site = Site()
    site.ledger.excluded = excluded()
    site.run(slots=crossed, policy=QUARANTINE)
    assert site.ledger.excluded[uuid(3)].slot == "0000:05:00.0"
    # It leaves from there, and its old place has a card of its own all the while.
    site.run(slots={**crossed, "0000:05:00.0": "GPU-new"}, policy=QUARANTINE)
    assert site.ledger.excluded == {}
    assert [e.how for e in site.ledger.ended] == [kept.REPLACED]


def test_the_card_in_its_place_is_free_at_once() -> None:
    """The new card's prolog, in the very run that sees the exchange, must not be stopped for the old one's fault."""
    swapped = {**SLOTS, "0000:03:00.0": uuid(9)}
    table = mapping(2, 3)
    table.by_position[3] = uuid(9)
    now = table._replace(uuids=(uuid(2), uuid(9)))
    steps = plan(inp(decision(), hook="prolog", slots=swapped, mapping=now, exclusions=excluded(way=kept.QUARANTINE)))
    assert kinds(steps) == [st.END_EXCLUSION]


def test_ending_one_that_is_gone_already_is_no_fault() -> None:
    site = Site()
    step = Step(st.END_EXCLUSION, uuid=uuid(3), about=kept.REPLACED, why="w")
    done = site.do((step, step._replace(kind=st.NEW_SLOT)), inp())
    assert [d.ok for d in done.done] == [True, True]
    assert site.ledger.ended == []


def test_a_broken_ledger_ends_nothing_and_says_so() -> None:
    site = Site()
    site.ledger.excluded = excluded()
    site.ledger.broken = True
    done = site.do((Step(st.SUSPECT, uuid=uuid(4), code="NVL-STORM"), Step(st.HOLD_LOST, uuid=uuid(3))), inp())
    assert [d.ok for d in done.done] == [False, False]
    assert {t.code for t in done.troubles} == {"MON-LEDGER"}


# --- what was proven


PROOF = finding("DIAG-FAIL")


def test_a_gpu_that_was_excluded_and_fails_a_test_is_verified() -> None:
    site = Site()
    site.ledger.excluded = excluded()
    site.run(decision(proposal("narrow", PROOF)), policy=NARROW, exclusions=excluded())
    (one,) = site.ledger.excluded.values()
    assert (one.stage, one.code, one.since_ns) == (kept.VERIFIED, "NVL-STORM", T0 - DAY), "it is still excluded for what it was"
    assert one.why == "gpu3 is bad; verified 2027-01-15T08:00:00Z: DIAG-FAIL is bad"
    again = plan(inp(decision(proposal("narrow", PROOF)), exclusions=site.ledger.excluded))
    assert st.VERIFY not in kinds(again)


def test_a_suspicion_that_a_test_confirms_begins_as_verified() -> None:
    site = Site()
    site.ledger.excluded = suspected()
    step = only(plan(inp(decision(proposal("narrow", PROOF)), policy=NARROW, suspected=suspected())), st.EXCLUDE)
    assert step.about == kept.VERIFIED
    site.ledger.excluded = {}
    site.do((step,), inp())
    assert site.ledger.excluded[uuid(3)].stage == kept.VERIFIED


@pytest.mark.parametrize(
    "what",
    [
        FAULT,
        decision(observed=(proposal("narrow", PROOF),), verdict="fail"),  # a rule that observes proves nothing
        decision(proposal("notify", PROOF._replace(verdict="warn"))),
        decision(proposal("narrow", finding("DIAG-FAIL", 4))),  # another GPU
    ],
)
def test_nothing_less_verifies_it(what: Any) -> None:
    assert st.VERIFY not in kinds(plan(inp(what, policy=NARROW, exclusions=excluded())))


def test_a_first_finding_by_a_test_alone_is_an_exclusion_like_others() -> None:
    step = only(plan(inp(decision(proposal("narrow", PROOF)), policy=NARROW)), st.EXCLUDE)
    assert step.about == ""


def test_verifying_one_that_is_released_meanwhile_is_no_fault() -> None:
    site = Site()
    done = site.do((Step(st.VERIFY, uuid=uuid(3), why="w"),), inp())
    assert [d.ok for d in done.done] == [True]
    assert site.ledger.excluded == {}
