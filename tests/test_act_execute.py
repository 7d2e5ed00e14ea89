"""act/execute.py and act/narrow.py: steps done once, whatever Slurm, the ledger and the file system do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from act_fakes import IDLE, T0, Site, Slurm, decision, drained, finding, job, kinds, mapping, policy, proposal, uuid
from hypothesis import given as hyp
from hypothesis import settings
from hypothesis import strategies as st

from slurm_nvhc.act import narrow
from slurm_nvhc.act import steps as sp
from slurm_nvhc.act.plan import plan
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import OwnDrain
from slurm_nvhc.policy.compiled import Drain, Narrow

FAULT = decision(proposal("narrow", finding(idents=("GPU-x|79|49",))))
OF_JOB = decision(proposal("narrow", of_job=True))
KEY = f"NVL-STORM {uuid(3)}"
REASON = "nvhc: NVL-STORM gpu3 GPU-00000003… is bad"
REASON_OF_JOB = f"{REASON} seen at job 8812"
NARROW = policy(Narrow(enabled=True))


def test_a_drain_is_placed_once_and_owned() -> None:
    site = Site()
    _, outcome = site.run(FAULT)
    assert outcome.troubles == ()
    assert not outcome.fail_hook
    assert site.slurm.state == drained(REASON)
    assert site.ledger.own == OwnDrain(REASON, T0, True, (KEY,), ("GPU-x|79|49",), idle=True)
    assert site.ledger.pending == []
    for _ in range(3):
        site.run(FAULT)
    assert site.slurm.updates == [REASON]


def test_a_prolog_fault_fails_the_job_once_the_node_is_out() -> None:
    _, outcome = Site().run(OF_JOB, hook="prolog")
    assert outcome.fail_hook
    site = Site()
    site.slurm.someone_drains("ADMIN")
    assert site.run(OF_JOB, hook="prolog")[1].fail_hook
    assert site.slurm.state.reason == "ADMIN"


@pytest.mark.parametrize("behaviour", ["refuses", "hangs_at_update"])
def test_R57_a_drain_that_fails_lets_the_job_through_and_stays_an_intent(behaviour: str) -> None:
    site = Site()
    site.slurm.behaviour = behaviour
    steps, outcome = site.run(OF_JOB, hook="prolog")
    assert kinds(steps) == [sp.DRAIN, sp.FAIL_JOB]
    assert not outcome.fail_hook
    assert [t.code for t in outcome.troubles] == ["MON-SLURM"]
    assert [(i.reason, i.keys, i.tries) for i in site.ledger.pending] == [(REASON_OF_JOB, (KEY,), 1)]
    assert site.ledger.own is None


def test_slurmctld_down_leaves_an_intent_that_a_later_run_completes() -> None:
    site = Site()
    site.slurm.behaviour = "down"
    site.run(FAULT)
    site.run(FAULT)
    assert len(site.ledger.pending) == 1
    site.slurm.behaviour = "ok"
    site.run()
    assert site.slurm.state == drained(REASON)
    assert site.ledger.pending == []
    assert site.ledger.own is not None


def test_a_request_that_timed_out_but_was_applied_is_not_repeated() -> None:
    site = Site()
    site.slurm.behaviour = "late"
    _, outcome = site.run(OF_JOB, hook="prolog")
    assert outcome.fail_hook
    assert site.ledger.own is not None
    assert site.ledger.pending == []
    assert site.slurm.updates == [REASON_OF_JOB]


def test_a_request_that_is_applied_after_the_hook_is_found_to_be_ours() -> None:
    site = Site()
    site.slurm.behaviour = "hangs_at_update"
    site.run(FAULT)
    site.slurm.wake_up()
    site.run()
    assert site.slurm.updates == [REASON]
    assert site.ledger.own == OwnDrain(REASON, T0, True, (KEY,), ("GPU-x|79|49",))
    assert site.ledger.pending == []


@pytest.mark.parametrize("behaviour", ["ok", "late"])
def test_somebody_drains_between_our_look_and_our_request(behaviour: str) -> None:
    site = Site()
    site.slurm.behaviour = behaviour
    site.slurm.before_update = drained("ADMIN: psu")
    _, outcome = site.run(OF_JOB, hook="prolog")
    assert site.slurm.state.reason == "ADMIN: psu"
    assert site.slurm.updates == []
    assert outcome.fail_hook
    assert site.ledger.pending == []
    assert site.ledger.own is None


def test_another_hook_of_ours_drains_meanwhile_and_keeps_its_intent() -> None:
    site = Site()
    site.run(FAULT)
    first = site.ledger.pending
    assert first == []
    other = Site(slurm=site.slurm)
    other.ledger = site.ledger
    site.slurm.state = IDLE
    inp = other.input(decision(proposal("narrow", finding("GPU-LOST", 5))))
    site.slurm.behaviour = "hangs_at_update"
    site.ledger.own = None
    site.run(FAULT)
    site.slurm.wake_up()
    other.do(plan(inp), inp)
    assert [i.reason for i in site.ledger.pending] == [REASON]
    site.run()
    assert site.ledger.own is not None
    assert site.ledger.own.reason == REASON


def test_no_time_left_starts_no_command() -> None:
    site = Site()
    inp = site.input(OF_JOB, hook="prolog")
    site.left_s = 0.0
    outcome = site.do(plan(inp), inp)
    assert site.slurm.updates == []
    assert not outcome.fail_hook
    assert len(site.ledger.pending) == 1
    assert "no time left" in outcome.troubles[0].detail


def test_a_broken_ledger_stops_no_drain() -> None:
    for break_it in ("broken", "absent"):
        site = Site()
        inp = site.input(OF_JOB, hook="prolog")
        site.ledger.broken = True
        if break_it == "absent":
            site.ledger = None  # type: ignore[assignment]
        outcome = site.do(plan(inp), inp)
        assert site.slurm.state == drained(REASON_OF_JOB)
        assert outcome.fail_hook
        assert [t.code for t in outcome.troubles] == (["MON-LEDGER"] if break_it == "broken" else [])


def test_extend() -> None:
    extending = policy(drain=Drain(extend=True))
    second = decision(proposal("narrow", finding("GPU-LOST", 5)))
    site = Site()
    site.run(FAULT)
    site.run(second, policy=extending)
    longer = f"{REASON}; also GPU-LOST gpu5"
    assert site.slurm.state.reason == longer
    assert site.ledger.own is not None
    assert site.ledger.own.reason == longer
    site.run(second, policy=extending)
    assert site.slurm.updates == [REASON, longer]
    assert site.ledger.pending == []


@pytest.mark.parametrize("behaviour", ["refuses", "late", "hangs_at_update"])
def test_an_extension_that_fails_keeps_our_ownership(behaviour: str) -> None:
    extending = policy(drain=Drain(extend=True))
    second = decision(proposal("narrow", finding("GPU-LOST", 5)))
    site = Site()
    site.run(FAULT)
    site.slurm.behaviour = behaviour
    site.run(second, policy=extending)
    site.slurm.wake_up()
    site.run(policy=extending)
    assert site.ledger.own is not None
    assert site.ledger.own.reason == site.slurm.state.reason
    assert site.ledger.pending == []


def test_an_extension_that_is_tried_twice_and_applied_late_is_still_ours() -> None:
    extending = policy(drain=Drain(extend=True))
    site = Site()
    site.run(FAULT)
    site.slurm.behaviour = "hangs_at_update"
    site.run(decision(proposal("narrow", finding("GPU-LOST", 5))), policy=extending)
    applied_late = site.slurm.later
    site.slurm.behaviour, site.slurm.later = "hangs_at_update", []
    site.run(policy=extending)
    assert [i.reason for i in site.ledger.pending] == [applied_late[0].reason]
    site.slurm.later = applied_late
    site.slurm.wake_up()
    site.run(policy=extending)
    assert site.ledger.own is not None
    assert site.ledger.own.reason == site.slurm.state.reason == f"{REASON}; also GPU-LOST gpu5"


def test_somebody_takes_over_before_we_extend() -> None:
    site = Site()
    site.run(FAULT)
    site.slurm.before_update = drained("ADMIN")
    _, outcome = site.run(decision(proposal("narrow", finding("GPU-LOST", 5))), policy=policy(drain=Drain(extend=True)))
    assert site.slurm.state.reason == "ADMIN"
    assert [d.ok for d in outcome.done] == [False]


@pytest.mark.parametrize("keeps_reason", [True, False])
def test_a_resume_ends_ownership_and_answers_its_events(keeps_reason: bool) -> None:
    site = Site(slurm=Slurm(keeps_reason))
    site.run(FAULT)
    site.slurm.someone_resumes()
    _, outcome = site.run(FAULT)
    assert outcome.accepted == ("GPU-x|79|49",)
    assert site.ledger.own is None
    site.run(FAULT)
    assert site.slurm.updates == [REASON]


def test_R64_resume_own_drain_and_nothing_else() -> None:
    resuming = policy(drain=Drain(resume="own", resume_after_s=0))
    calm: dict[str, Any] = {"hook": "health_check", "job": None, "policy": resuming, "clean_passes": 3}
    site = Site(slurm=Slurm(stamps=True))
    site.run(FAULT)
    site.run(**calm)
    assert site.slurm.state.base == "IDLE"
    assert not site.slurm.state.out
    assert site.ledger.own is None
    site.slurm.someone_drains("ADMIN SHUTDOWN")
    site.run(**calm)
    assert site.slurm.state.reason == "ADMIN SHUTDOWN"
    site = Site(slurm=Slurm(stamps=True))
    site.run(FAULT)
    site.slurm.before_update = drained("ADMIN")
    site.run(**calm)
    assert site.slurm.state == drained("ADMIN")
    site = Site(slurm=Slurm(stamps=True))
    site.run(FAULT)
    inp = site.input(decision(), **calm)
    site.slurm.behaviour = "down"
    assert site.do(plan(inp), inp).troubles[0].code == "MON-SLURM"
    assert site.ledger.own is not None


# --- narrowing


def test_narrow_writes_the_file_for_the_task_prolog(tmp_path: Path) -> None:
    site = Site(str(tmp_path / "run"))
    old = os.umask(0o077)
    try:
        _, outcome = site.run(OF_JOB, hook="prolog", policy=NARROW)
    finally:
        os.umask(old)
    assert not outcome.fail_hook
    assert site.slurm.updates == []
    assert site.ledger.excluded[uuid(3)].code == "NVL-STORM"
    file = tmp_path / "run" / "n1" / "narrow" / "8812"
    assert file.stat().st_mode & 0o777 == 0o644
    for folder in list(file.parents)[:3]:
        assert folder.stat().st_mode & 0o777 == 0o755
    assert file.read_text().splitlines() == [
        "nvhc-narrow 1", "constrain no",
        *(f"gpu {n} {uuid(n)} {'hide' if n == 3 else 'keep' if n == 2 else 'other'}" for n in range(8)),
        "text gpu3 hidden from this job: NVL-STORM", "end",
    ]  # fmt: skip


def test_a_job_that_can_not_be_narrowed_after_all_is_kept_off_and_the_node_drained(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a directory should be")
    site = Site(str(tmp_path / "run"))
    _, outcome = site.run(OF_JOB, hook="prolog", policy=NARROW)
    assert outcome.fail_hook
    assert site.slurm.state.out
    assert site.slurm.state.reason == REASON_OF_JOB
    assert [t.code for t in outcome.troubles] == ["MON-INTERNAL"]


def test_an_exclusion_that_can_not_be_recorded_becomes_a_drain() -> None:
    site = Site()
    inp = site.input(FAULT, policy=NARROW)
    site.ledger.broken = True
    outcome = site.do(plan(inp), inp)
    assert site.slurm.state == drained(REASON)
    assert not outcome.fail_hook


def test_notify_is_said() -> None:
    site = Site()
    site.run(decision(proposal("notify", finding("XID-OTHER"))))
    assert site.lines == ["notify: XID-OTHER gpu3 is bad"]


@pytest.mark.parametrize("given", [Job("../x"), Job(""), Job("1\n2")])
def test_narrow_refuses_what_is_no_job_id(tmp_path: Path, given: Job) -> None:
    with pytest.raises(MonitorError):
        narrow.write(str(tmp_path), "n1", given, mapping(2, 3), [uuid(3)], None, "x")
    assert not narrow.remove(str(tmp_path), "n1", given.job_id)


def test_narrow_refuses_a_gpu_without_a_position(tmp_path: Path) -> None:
    with pytest.raises(MonitorError):
        narrow.write(str(tmp_path), "n1", job(2, 3), GpuMapping((uuid(2), uuid(3)), {2: uuid(2)}, True), [uuid(3)], None, "x")
    assert list(tmp_path.iterdir()) == []


def test_narrow_text_is_one_clean_line(tmp_path: Path) -> None:
    narrow.write(str(tmp_path), "n1", job(2, 3), mapping(2, 3), [uuid(3)], True, "a\nend\n\\033[2J\x1b" + "x" * 999)
    lines = (tmp_path / "n1/narrow/8812").read_text().splitlines()
    assert lines[1] == "constrain yes"
    assert lines[-2].startswith("text a end /033[2J xxx")
    assert len(lines[-2]) <= narrow.MAX_TEXT + 5
    assert lines.count("end") == 1


def test_narrow_remove(tmp_path: Path) -> None:
    narrow.write(str(tmp_path), "n1", Job("2"), mapping(2, 3), [uuid(3)], None, "x")
    assert narrow.remove(str(tmp_path), "n1", "2")
    assert not narrow.remove(str(tmp_path), "n1", "2")


# --- any sequence

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("slurm"), st.sampled_from(["ok", "down", "refuses", "hangs_at_update", "late"])),
        st.tuples(st.just("admin drains"), st.sampled_from(["ADMIN", "Prolog error"])),
        st.tuples(
            st.sampled_from(["admin resumes", "quiet", "admin drains meanwhile", "ledger breaks", "ledger mended", "down", "calm"]),
            st.just(""),
        ),
        st.tuples(st.just("fault"), st.sampled_from(["prolog", "epilog", "health_check"])),
        st.tuples(st.just("observed"), st.sampled_from(["prolog", "epilog", "health_check"])),
    ),
    max_size=14,
)


@hyp(EVENTS, st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_no_sequence_touches_a_foreign_drain_or_repeats_itself(
    events: list[tuple[str, str]], extend: bool, resume: bool, keeps_reason: bool
) -> None:
    site = Site(slurm=Slurm(keeps_reason, stamps=True))
    rules = policy(drain=Drain(extend=extend, resume="own" if resume else "off", resume_passes=1, resume_after_s=0))
    foreign = False  # a person or Slurm itself has taken the node out, and nobody has resumed it
    for number, (what, value) in enumerate(events):
        fault = decision(proposal("narrow", finding("XID-FATAL", number % 3, idents=(f"e{number}",)), of_job=True))
        if what == "slurm":
            site.slurm.wake_up()
            site.slurm.behaviour = value
            foreign = site.slurm.state.out and not site.slurm.state.reason.startswith("nvhc:")
        elif what == "admin drains":
            site.slurm.someone_drains(value)
            foreign, site.slurm.later, site.slurm.before_update = True, [], None
        elif what == "admin drains meanwhile":
            if not site.slurm.state.out:
                site.slurm.before_update = drained("ADMIN")
        elif what == "admin resumes":
            site.slurm.someone_resumes()
            foreign = False
        elif what == "down":
            if not site.slurm.state.out:
                site.slurm.state, site.slurm.before_update = NodeState("DOWN", frozenset(), "Not responding"), None
                site.slurm.later = []  # what was sent before is for Slurm to order, as with "admin drains"
        elif what.startswith("ledger"):
            site.ledger.broken = what == "ledger breaks"
        else:
            before, updates = site.slurm.state, len(site.slurm.updates)
            hook = value or "health_check"
            decided = {"fault": fault, "observed": decision(observed=fault.proposals, verdict="fail")}.get(what, decision())
            inp = site.input(decided, hook=hook, policy=rules, clean_passes=1 if what == "calm" else 0, mapping=mapping(2, 3))
            idle_and_known = not inp.intents and inp.own is None
            outcome = site.do(plan(inp), inp)
            if outcome.fail_hook:
                assert hook == "prolog"
                assert what == "fault"
                assert site.slurm.state.out
            if foreign or before.base == "DOWN":
                assert site.slurm.state == before
                assert len(site.slurm.updates) == updates
            if what == "observed" and idle_and_known:
                assert len(site.slurm.updates) == updates
            again = site.input(decided, hook=hook, policy=rules, mapping=mapping(2, 3))
            if site.slurm.behaviour == "ok" and not site.ledger.broken and outcome.troubles == ():
                changing = [s.kind for s in plan(again) if s.kind not in (sp.KEEP, sp.NOTIFY, sp.NOTE, sp.FAIL_JOB)]
                assert changing == [], (kinds(plan(inp)), changing)
            foreign = site.slurm.state.out and not site.slurm.state.reason.startswith("nvhc:")
        assert site.slurm.overwritten == [] or (extend and all(r.startswith("nvhc:") for r in site.slurm.overwritten))
