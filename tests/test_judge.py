from __future__ import annotations

from typing import Any

import pytest
from build import DAY_NS, MINUTE_NS, T0, gpu, job, later, policy, rule, run, snapshot, uuid, verdicts, with_link, xid
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compare import gpu_readings

from slurm_nvhc.compare import compare
from slurm_nvhc.judge import Input, Window, judge
from slurm_nvhc.judge.rules import _dominant
from slurm_nvhc.model import settled
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.reading import BLANK, NO_DATA_KINDS, NOT_SUPPORTED, NoData
from slurm_nvhc.model.snapshot import Event, PciGpu, Trouble
from slurm_nvhc.policy.compiled import Expect, Level, Monitor

REPLAY = rule("replay", "nvlink_replay", "nvlink_replay_total", fail=Level(increase_above=0), finding="NVL-REPLAY")
REMAP = rule("remap", "row_remap_failure", fail=Level(value_is=(1,)), finding="MEM-REMAP-FAILED")
LOST = rule("lost", kind="presence", finding="GPU-LOST", warn=Level(lost=True), fail=Level(lost=True, consecutive=2, witness=True))
DOWN = rule("down", "nvlink_state", fail=Level(went_down=True, consecutive=2, spacing_s=60), warn=Level(went_down=True), finding="NVL-DOWN")
STICKY = rule("fatal", kind="event", fail=Level(xid=(79,)), sticky=True, finding="XID-FATAL")
GSP = rule("gsp", kind="event", fail=Level(xid=(119,)), sticky=True, finding="XID-FATAL")
APP = rule("app", kind="event", warn=Level(xid=(13, 31)), finding="XID-APP", action="note")


def test_growth_on_a_link_names_gpu_and_link():
    before = snapshot(gpu(0), gpu(3))
    now = later(before, 2460, gpu(0), with_link(gpu(3, nvlink_replay_total=21200), 1, nvlink_replay=21200))
    got = run("epilog", now, policy(REPLAY), before, gpus=(0, 3))
    assert verdicts(got) == {("NVL-REPLAY", f"{uuid(3)}/link1"): "fail"}  # the total adds nothing to the link
    found = got.findings[0]
    assert (found.evidence.amount, found.evidence.before, found.evidence.after, found.evidence.seconds) == (21200, 0, 21200, 2460)
    assert found.message == "link1 replay +21200 in 41m"
    assert got.gpu_verdicts == {uuid(0): "ok", uuid(3): "fail"}
    assert [(p.action, p.uuid, p.of_job) for p in got.decision.proposals] == [("drain", uuid(3), True)]


def test_a_total_speaks_when_no_link_does():
    before = snapshot(gpu(3, nvlink_replay_total=12))
    got = run("epilog", later(before, 60, gpu(3, nvlink_replay_total=13)), policy(REPLAY), before, gpus=(3,))
    assert verdicts(got) == {("NVL-REPLAY", uuid(3)): "fail"}
    assert got.findings[0].evidence.amount == 1


def test_lifetime_counters_without_change_are_ok():
    before = snapshot(gpu(3, nvlink_replay_total=57))
    got = run("epilog", later(before, 60, gpu(3, nvlink_replay_total=57)), policy(REPLAY), before, gpus=(3,))
    assert got.findings == ()
    assert got.decision.verdict == "ok"


def test_other_jobs_gpus_do_not_count_but_absolute_faults_do():
    before = snapshot(gpu(0), gpu(5))
    now = later(before, 60, gpu(0), gpu(5, nvlink_replay_total=50, row_remap_failure=1))
    got = run("epilog", now, policy(REPLAY, REMAP), before, gpus=(0,))
    assert verdicts(got) == {("MEM-REMAP-FAILED", uuid(5)): "fail"}
    assert [p.of_job for p in got.decision.proposals] == [False]
    assert verdicts(run("epilog", now, policy(REPLAY), before, gpus=(5,))) == {("NVL-REPLAY", uuid(5)): "fail"}


@pytest.mark.parametrize(("after_reset", "verdict"), [("warn", "warn"), ("fail", "fail")])
def test_a_lower_bound_after_a_reset_leads_to_what_the_rule_allows(after_reset, verdict):
    before = snapshot(gpu(0, nvlink_replay_total=5000))
    got = run(
        "epilog", later(before, 60, gpu(0, nvlink_replay_total=4)), policy(REPLAY._replace(after_reset=after_reset)), before, gpus=(0,)
    )
    assert verdicts(got)[("NVL-REPLAY", uuid(0))] == verdict
    assert got.findings[0].evidence.bound == "at_least"
    assert verdicts(got)[("COUNTER-RESET", uuid(0))] == "ok"


def test_growth_that_two_hooks_see_is_one_occurrence():
    twice = policy(rule("pcie", "pcie_replay", fail=Level(increase_at_least=1, hits=2, within_s=86400.0)))
    before = snapshot(gpu(0, pcie_replay=0))
    now = later(before, 60, gpu(0, pcie_replay=1))
    watched = run("health_check", now, twice, before, key="watch")
    assert run("epilog", now, twice, before, watched.memory, gpus=(0,), key="job").decision.verdict == "ok"
    more = later(now, 60, gpu(0, pcie_replay=2))
    assert run("epilog", more, twice, before, watched.memory, gpus=(0,), key="job").decision.verdict == "fail"


def test_blank_where_the_model_has_no_such_thing_is_no_lack_of_data():
    for model, verdict in (("Tesla V100-SXM2-32GB", "ok"), ("NVIDIA H100 80GB HBM3", "unknown")):
        got = run("prolog", snapshot(gpu(0, row_remap_failure=NoData(BLANK), model=model)), policy(REMAP), gpus=(0,))
        assert got.decision.verdict == verdict


def test_eight_resets_are_one_note():
    before = snapshot(*(gpu(n, nvlink_replay_total=9) for n in range(8)), driver_loaded_ns=T0 - DAY_NS)
    now = later(before, 60, *(gpu(n) for n in range(8)), driver_loaded_ns=T0 + 5)
    got = run("epilog", now, policy(REPLAY), before, gpus=tuple(range(8)))
    assert verdicts(got) == {("COUNTER-RESET", "node"): "ok"}


def test_rate_needs_time():
    rules = policy(rule("pcie", "pcie_replay", fail=Level(rate_above=8 / 60)))
    before = snapshot(gpu(0, pcie_replay=1000))

    def verdict(seconds, value):
        return run("epilog", later(before, seconds, gpu(0, pcie_replay=value)), rules, before, gpus=(0,)).decision.verdict

    assert [verdict(36000, 1040), verdict(60, 1040), verdict(0, 1040), verdict(60, 1000)] == ["ok", "fail", "ok", "ok"]


def test_pcie_limit_follows_generation_and_width():
    rules = policy(rule("pcie", "pcie_replay", fail=Level(over_limit="pcie_replays")))

    def verdict(gen, per_minute):
        before = snapshot(gpu(0, pcie_replay=0, pcie_max_gen=gen, pcie_max_width=16, pcie_gen=1, pcie_width=16))
        now = later(before, 60, gpu(0, pcie_replay=per_minute, pcie_max_gen=gen, pcie_max_width=16))
        return run("epilog", now, rules, before, gpus=(0,)).decision.verdict

    assert [verdict(5, 31), verdict(5, 32), verdict(4, 16), verdict(4, 17)] == ["ok", "fail", "ok", "fail"]


def test_share_of_time():
    rules = policy(rule("heat", "thermal_violation_ns", fail=Level(share_above=0.1)))
    before = snapshot(gpu(0, thermal_violation_ns=0))
    for share, verdict in ((0.09, "ok"), (0.11, "fail")):
        now = later(before, 600, gpu(0, thermal_violation_ns=int(600e9 * share)))
        assert run("epilog", now, rules, before, gpus=(0,)).decision.verdict == verdict


def test_not_supported_is_ok_and_blank_is_unknown():
    ok = run("prolog", snapshot(gpu(0, row_remap_failure=NoData(NOT_SUPPORTED))), policy(REMAP), gpus=(0,))
    blank = run("prolog", snapshot(gpu(0, row_remap_failure=NoData(BLANK))), policy(REMAP), gpus=(0,))
    assert (ok.decision.verdict, blank.decision.verdict) == ("ok", "unknown")
    assert blank.findings[0].code == "NO-DATA"
    assert "row_remap_failure" in blank.findings[0].message
    assert blank.decision.proposals == ()


def test_epilog_without_prolog_is_unknown_and_absolute_faults_still_count():
    got = run("epilog", snapshot(gpu(0)), policy(REPLAY, REMAP), gpus=(0,))
    assert verdicts(got) == {("NO-BASELINE", "node"): "unknown"}
    got = run("epilog", snapshot(gpu(0, row_remap_failure=1)), policy(REPLAY, REMAP), gpus=(0,))
    assert got.decision.verdict == "fail"


def test_link_down_needs_a_link_that_was_up_or_is_expected():
    never_up = with_link(with_link(gpu(0), 0, nvlink_state="down"), 1, nvlink_state="down")
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True)))
    assert run("health_check", snapshot(never_up), rules).decision.verdict == "ok"
    assert run("health_check", snapshot(never_up), rules._replace(expect=Expect(links=1))).decision.verdict == "fail"
    healthy = run("health_check", snapshot(gpu(0)), rules)
    assert run("health_check", snapshot(never_up), rules, memory=healthy.memory).decision.verdict == "fail"


def test_consecutive_observations_with_spacing_and_recovery():
    bad = with_link(gpu(0), 1, nvlink_state="down")
    first = snapshot(bad)
    rules = policy(DOWN, expect=Expect(links=2))
    one = run("health_check", first, rules)
    assert one.decision.verdict == "warn"
    too_soon = run("health_check", later(first, 30), rules, memory=one.memory)
    assert too_soon.decision.verdict == "warn"
    assert run("health_check", later(first, 90), rules, memory=too_soon.memory).decision.verdict == "fail"
    up = run("health_check", later(first, 90, gpu(0)), rules, memory=one.memory)
    assert up.decision.verdict == "ok"
    assert run("health_check", later(first, 150, bad), rules, memory=up.memory).decision.verdict == "warn"


def test_a_streak_does_not_survive_a_reboot():
    bad = snapshot(with_link(gpu(0), 1, nvlink_state="down"))
    rules = policy(DOWN, expect=Expect(links=2))
    one = run("health_check", bad, rules)
    again = later(bad, 90)._replace(boot_id="boot-2")
    assert run("health_check", again, rules, memory=one.memory).decision.verdict == "warn"


def test_only_a_single_shot_asks_for_a_second_look_at_a_state():
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True, consecutive=2)), expect=Expect(links=2))
    bad = snapshot(with_link(gpu(0), 1, nvlink_state="down"))
    assert run("prolog", bad, rules, gpus=(0,)).second_look
    assert not run("health_check", bad, rules).second_look
    patient = policy(DOWN, expect=Expect(links=2))  # observations at least a minute apart
    assert not run("prolog", bad, patient, gpus=(0,)).second_look


def test_settle_time_after_boot_and_driver_load():
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True, settle_s=300)), expect=Expect(links=2))
    bad = with_link(gpu(0), 1, nvlink_state="down")
    assert run("health_check", snapshot(bad, uptime_s=40), rules).decision.verdict == "ok"
    assert run("health_check", snapshot(bad, uptime_s=400), rules).decision.verdict == "fail"
    assert run("health_check", snapshot(bad, driver_loaded_ns=T0 - 60 * 10**9), rules).decision.verdict == "ok"


def test_hits_in_the_last_jobs_count_each_job_once():
    rules = policy(rule("slow", "nvlink_replay_total", fail=Level(increase_at_least=3, hits=2, of_last=3), warn=Level(increase_at_least=3)))
    base = snapshot(gpu(0))
    memory, seen = {}, []
    for n, errors in enumerate([3, 0, 0, 3, 0, 3]):
        now = later(base, 60, gpu(0, nvlink_replay_total=errors))
        for _again in range(2):  # a second look inside one hook is the same job
            got = run("epilog", now, rules, base, memory, gpus=(0,), key=f"job{n}")
            memory = got.memory
        seen.append(got.decision.verdict)
    assert seen == ["warn", "ok", "ok", "warn", "ok", "fail"]


def test_health_check_windows_are_not_jobs():
    rules = policy(rule("slow", "nvlink_replay_total", fail=Level(increase_at_least=3, hits=1, of_last=3)))
    base = snapshot(gpu(0))
    assert run("health_check", later(base, 60, gpu(0, nvlink_replay_total=9)), rules, base).decision.verdict == "ok"


def test_a_lost_gpu_warns_once_and_fails_on_the_second_look_or_with_a_witness():
    buses = tuple(PciGpu(g.identity.pci) for g in (gpu(0), gpu(1)))
    alone = snapshot(gpu(0), pci_gpus=buses)
    known = (gpu(0).identity, gpu(1).identity)
    one = run("prolog", alone, policy(LOST), gpus=(0,), known=known)
    assert verdicts(one) == {}  # another job's GPU, and not sure yet
    assert one.second_look
    two = run("prolog", later(alone, 2), policy(LOST), memory=one.memory, gpus=(0,), known=known)
    assert verdicts(two) == {("GPU-LOST", uuid(1)): "fail"}
    witness = alone._replace(events=(xid(79, 1, T0 - MINUTE_NS),))
    assert verdicts(run("health_check", witness, policy(LOST), known=known)) == {("GPU-LOST", uuid(1)): "fail"}
    dead = alone._replace(pci_gpus=(buses[0], buses[1]._replace(responds=False)))
    assert verdicts(run("health_check", dead, policy(LOST), known=known)) == {("GPU-LOST", uuid(1)): "fail"}


def test_a_gpu_is_not_missed_while_the_engine_may_be_starting():
    known = (gpu(0).identity, gpu(1).identity)
    patient = policy(LOST._replace(fail=(Level(lost=True, consecutive=2, witness=True, settle_s=300),)))
    booting = snapshot(gpu(0), pci_gpus=tuple(PciGpu(i.pci) for i in known), uptime_s=40)
    one = run("health_check", booting, patient, known=known)
    two = run("health_check", later(booting, 90), patient, known=known, memory=one.memory)
    assert (one.decision.verdict, two.decision.verdict, two.second_look) == ("warn", "warn", False)
    dead = booting._replace(pci_gpus=(PciGpu(known[0].pci), PciGpu(known[1].pci, responds=False)))
    assert run("health_check", dead, patient, known=known).decision.verdict == "fail", "a witness speaks at once"


def test_two_looks_at_the_same_moment_are_one():
    known = (gpu(0).identity, gpu(1).identity)
    alone = snapshot(gpu(0), pci_gpus=tuple(PciGpu(i.pci) for i in known))
    one = run("prolog", alone, policy(LOST), gpus=(0, 1), known=known)
    for seconds, verdict in ((0, "warn"), (0.001, "warn"), (2, "fail")):
        again = run("prolog", later(alone, seconds), policy(LOST), gpus=(0, 1), known=known, memory=one.memory)
        assert again.decision.verdict == verdict


def test_gpus_that_left_the_bus_are_lost_even_when_none_is_left():
    known = tuple(gpu(n).identity for n in range(2))
    gone = snapshot(gpus={}, pci_gpus=())
    assert set(verdicts(run("health_check", gone, policy(LOST), known=known)).values()) == {"fail"}
    fresh = run("health_check", gone, policy(LOST, expect=Expect(gpus=8)))
    assert verdicts(fresh) == {("GPU-LOST", "node"): "fail"}
    hung = snapshot(gpus=None, pci_gpus=(PciGpu(known[0].pci),))
    assert verdicts(run("health_check", hung, policy(LOST), known=known)) == {("GPU-LOST", uuid(1)): "fail"}


def test_a_link_that_is_seen_up_while_it_settles_ends_the_row():
    """Down, up again after the driver was loaded anew, down once more: once in a row."""
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True, consecutive=2, spacing_s=60, settle_s=300)))
    base, memory, told = snapshot(gpu(0, links=1)), {}, []
    looks = ((0, "up", None), (300, "down", None), (400, "up", 390), (800, "down", 390), (900, "down", 390))
    for n, (at, state, loaded_s) in enumerate(looks):
        now = later(base, at, with_link(gpu(0), 0, nvlink_state=state))
        loaded = now._replace(driver_loaded_ns=None if loaded_s is None else T0 + loaded_s * 10**9)
        found = run("health_check", loaded, rules, base, memory, key=str(n), run_id=str(n))
        memory = found.memory
        told.append(found.decision.verdict)
    assert told == ["ok", "ok", "ok", "ok", "fail"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(*map(st.sampled_from, (("ok", "warn", "fail"), ("observe", "enforce"), ("e", "g"), ("f", "h")))), max_size=12))
def test_a_finding_goes_when_a_stronger_one_says_the_same_that_may_act(rows):
    made = Finding("X", "", "link", "", "", Evidence(), {}, "", "", "")
    findings = [made._replace(verdict=v, mode=m, entity=e, evidence=Evidence(f, n)) for n, (v, m, e, f) in enumerate(rows)]
    rank = ("ok", "warn", "fail").index

    def beats(g, f):
        same = (g.entity, g.evidence.field) == (f.entity, f.evidence.field)
        return same and rank(g.verdict) > rank(f.verdict) and (g.mode == "enforce" or f.mode == "observe")

    assert _dominant(findings) == tuple(f for f in findings if not any(beats(g, f) for g in findings))


def test_a_disabled_link_went_down_only_if_it_was_up():
    disabled = snapshot(with_link(gpu(0), 1, nvlink_state="disabled"))
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True)), expect=Expect(links=2))
    assert run("health_check", disabled, rules).decision.verdict == "ok"
    up = run("health_check", snapshot(gpu(0)), rules)
    assert run("health_check", disabled, rules, memory=up.memory).decision.verdict == "fail"


def test_trouble_is_counted_per_hook_and_once_per_run():
    memory: dict = {}
    gres = snapshot(gpu(0), troubles=(Trouble("MON-GRES", "gres", "no File list"),))
    actions = []
    for n in range(3):
        for _look in range(2):
            got = run("prolog", later(gres, n), policy(), gpus=(0,), memory=memory, run_id=f"run{n}")
            memory = got.memory
        actions.append([p.action for p in got.decision.proposals])
        memory = run("health_check", snapshot(gpu(0)), policy(), memory=memory, run_id=f"hc{n}").memory
    assert actions == [[], [], ["notify"]]
    hung = snapshot(gpus=None, troubles=(Trouble("MON-ENGINE-HUNG", "engine", "x"),))
    one = run("prolog", hung, policy(monitor=Monitor(action="drain", drain_after_runs=2)), gpus=(0,), run_id="a")
    two = run("epilog", hung, policy(monitor=Monitor(action="drain", drain_after_runs=2)), gpus=(0,), memory=one.memory, run_id="b")
    assert [len(j.decision.proposals) for j in (one, two)] == [0, 1]


def test_what_concerns_the_job_comes_first_and_in_the_order_of_gpus():
    two = snapshot(*(gpu(n, row_remap_failure=1) for n in (1, 5, 6)))
    got = run("prolog", two, policy(REMAP), gpus=(6,))
    assert [f.entity for f in got.findings] == [uuid(6), uuid(1), uuid(5)]


def test_a_gpu_only_the_bus_knows_is_named_by_its_address():
    alone = snapshot(gpu(0), pci_gpus=(PciGpu(gpu(0).identity.pci), PciGpu("0000:5e:00.0")))
    one = run("health_check", alone, policy(LOST))
    two = run("health_check", later(alone, 60), policy(LOST), memory=one.memory)
    assert verdicts(two) == {("GPU-LOST", "pci:0000:5e:00.0"): "fail"}
    assert two.findings[0].gpu["pci"] == "0000:5e:00.0"


def test_too_few_gpus_without_knowing_which():
    one = run("health_check", snapshot(gpu(0)), policy(LOST, expect=Expect(gpus=2)))
    two = run("health_check", later(snapshot(gpu(0)), 60), policy(LOST, expect=Expect(gpus=2)), memory=one.memory)
    assert verdicts(two) == {("GPU-LOST", "node"): "fail"}
    assert "1 of 2" in two.findings[0].message


def test_no_listing_convicts_no_gpu():
    known = (gpu(0).identity, gpu(1).identity)
    bus = tuple(PciGpu(i.pci) for i in known)
    blind = snapshot(gpus=None, pci_gpus=bus, troubles=(Trouble("MON-ENGINE-HUNG", "engine", "no answer"),))
    assert verdicts(run("epilog", blind._replace(pci_gpus=None), policy(LOST), gpus=(0,), known=known)).keys() == {
        ("MON-ENGINE-HUNG", "monitor:engine"),
        ("NO-BASELINE", "node"),
    }
    got = run("epilog", blind, policy(LOST, REPLAY, REMAP), snapshot(gpu(0)), gpus=(0,), known=known)
    assert verdicts(got) == {("MON-ENGINE-HUNG", "monitor:engine"): "unknown"}
    assert got.decision.proposals == ()
    assert got.gpu_verdicts == {uuid(0): "unknown"}


def test_a_hung_engine_with_a_witness_is_a_gpu_fault():
    blind = snapshot(gpus=None, events=(xid(79, 1, T0 - 5),), troubles=(Trouble("MON-ENGINE-HUNG", "engine", "no answer"),))
    got = run("health_check", blind, policy(STICKY), known=(gpu(1).identity,))
    assert verdicts(got)[("XID-FATAL", uuid(1))] == "fail"


def test_an_engine_that_knows_no_gpu_is_not_eight_lost_gpus():
    empty = snapshot(gpus={}, pci_gpus=tuple(PciGpu(gpu(n).identity.pci) for n in range(8)))
    got = run("health_check", empty, policy(LOST), known=tuple(gpu(n).identity for n in range(8)))
    assert verdicts(got) == {}


def test_a_swapped_card_is_noted_not_lost():
    got = run(
        "health_check", snapshot(gpu(0)._replace(identity=gpu(0).identity._replace(uuid=uuid(9)))), policy(LOST), known=(gpu(0).identity,)
    )
    assert verdicts(got) == {("GPU-SWAPPED", uuid(9)): "ok"}


def test_application_xids_are_told_only_in_their_window():
    before = snapshot(gpu(1))
    old = later(before, 60, events=(xid(31, 1, T0 - 7200 * 10**9),))
    new = later(before, 60, events=(xid(31, 1, T0 + 5),))
    assert run("epilog", old, policy(APP), before, gpus=(1,)).findings == ()
    got = run("epilog", new, policy(APP), before, gpus=(1,))
    assert verdicts(got) == {("XID-APP", uuid(1)): "warn"}
    assert [p.action for p in got.decision.proposals] == ["note"]


def test_a_sticky_event_is_remembered_until_somebody_settles_it():
    seen = snapshot(gpu(1), events=(xid(79, 1, T0 - DAY_NS),))
    one = run("prolog", seen, policy(STICKY), gpus=(1,))
    assert verdicts(one) == {("XID-FATAL", uuid(1)): "fail"}
    later_on = run("prolog", snapshot(gpu(1)), policy(STICKY), memory=one.memory, gpus=(1,))  # the log was read before
    assert later_on.decision.verdict == "fail"
    done = settled.table(one.findings[0].idents)
    assert run("prolog", seen, policy(STICKY), memory=one.memory, gpus=(1,), settled=done).decision.verdict == "ok"
    assert run("prolog", seen, policy(STICKY), gpus=(1,), settled=done).decision.verdict == "ok", (
        "the ledger was lost, the log is read anew"
    )
    before = snapshot(gpu(1))
    mid_job = later(before, 60, events=(xid(79, 1, T0 + 9),))
    found = run("health_check", mid_job, policy(STICKY), before)
    done = settled.table(found.findings[0].idents)
    assert run("epilog", mid_job, policy(STICKY), before, gpus=(1,), settled=done).decision.verdict == "ok"
    again = later(before, 120, events=(xid(79, 1, T0 + 90 * 10**9),))
    assert run("epilog", again, policy(STICKY), before, gpus=(1,), settled=done).decision.verdict == "fail", "a new occurrence"
    assert run("health_check", again, policy(STICKY), before, settled=done).decision.verdict == "fail"
    rebooted = run("prolog", snapshot(gpu(1), boot="boot-2"), policy(STICKY), memory=one.memory, gpus=(1,))
    assert rebooted.decision.verdict == "ok"
    reloaded = run("prolog", snapshot(gpu(1), driver_loaded_ns=T0 - 5), policy(STICKY), memory=one.memory, gpus=(1,))
    assert reloaded.decision.verdict == "ok"
    for reset_ns, verdict in ((T0 - DAY_NS, "ok"), (T0 - 2 * DAY_NS, "warn")):  # warn: came first, or came of it?
        got = run("prolog", snapshot(gpu(1)), policy(STICKY), memory=one.memory, gpus=(1,), reset_since={uuid(1): reset_ns})
        assert got.decision.verdict == verdict
    other = run("prolog", snapshot(gpu(1)), policy(STICKY), memory=one.memory, gpus=(1,), reset_since={uuid(2): T0})
    assert other.decision.verdict == "fail"


def test_many_occurrences_are_one_open_row_and_one_finding():
    memory = {}
    for hour in range(3):
        events = tuple(xid(119, 1, T0 + (hour * 3600 + n) * 10**9) for n in range(400))
        got = run("health_check", later(snapshot(gpu(1)), 3600 * (hour + 1), events=events), policy(GSP), memory=memory)
        memory = got.memory
        assert [len(f.idents) for f in got.findings] == [1]
    assert len(memory["open"]) == 1
    assert "x1200" in got.findings[0].message
    repeated = run("health_check", later(snapshot(gpu(1)), 3600 * 3, events=events), policy(GSP), memory=memory)
    assert "x1200" in repeated.findings[0].message, "a log that is read again is not counted again"


def test_an_event_seen_in_the_observe_week_is_not_drained_for_later():
    seen = snapshot(gpu(1), events=(xid(79, 1, T0 - 60 * 10**9),))
    week_one = run("health_check", seen, policy(STICKY, mode="observe"))
    enforced = run("prolog", later(snapshot(gpu(1)), 5 * 86400), policy(STICKY), memory=week_one.memory, gpus=(1,))
    assert (enforced.decision.proposals, len(enforced.decision.observed)) == ((), 1)
    assert "logged 20" in enforced.findings[0].message
    new = later(snapshot(gpu(1)), 5 * 86400, events=(xid(79, 1, T0 + 4 * DAY_NS),))
    assert len(run("prolog", new, policy(STICKY), memory=week_one.memory, gpus=(1,)).decision.proposals) == 1


def test_a_contained_error_stays_contained_for_later_hooks():
    fatal = rule(
        "ecc", kind="event", warn=Level(xid=(48,)), fail=Level(xid=(48,), unless_xid=(94,)), sticky=True, finding="MEM-UNCORRECTABLE"
    )
    both = snapshot(gpu(1), events=(xid(48, 1, T0 - 5 * 10**9), xid(94, 1, T0 - 4 * 10**9)))
    one = run("health_check", both, policy(fatal))
    assert verdicts(one) == {("MEM-UNCORRECTABLE", uuid(1)): "warn"}
    assert run("prolog", snapshot(gpu(1)), policy(fatal), memory=one.memory, gpus=(1,)).decision.verdict == "warn"
    split = run("health_check", snapshot(gpu(1), events=both.events[:1]), policy(fatal))
    assert split.decision.verdict == "fail"
    apart = snapshot(gpu(1), events=(xid(94, 1, T0 - 6 * DAY_NS), xid(48, 1, T0 - 5 * 10**9)))
    assert run("health_check", apart, policy(fatal)).decision.verdict == "fail"


def test_kernel_events_read_from_the_windows_place_are_in_it_whatever_their_stamp():
    before = snapshot(gpu(1))
    for at_ns in (T0 - 30 * 10**9, T0, T0 + 61 * 10**9):
        now = later(before, 60, events=(xid(31, 1, at_ns),))
        assert run("epilog", now, policy(APP), before, gpus=(1,), events_are_new=True).decision.verdict == "warn"


def test_an_engine_event_that_comes_late_is_taken_once_by_health_checks():
    def engine_xid(at_ns):
        return xid(31, 1, at_ns)._replace(source="engine", ident=f"dcgm:{at_ns}")

    before = snapshot(gpu(1))
    first = run("health_check", later(before, 60, events=(engine_xid(T0 + 5),)), policy(APP), before, run_id="a")
    assert first.decision.verdict == "warn"
    look_again = run("health_check", later(before, 62, events=(engine_xid(T0 + 5),)), policy(APP), before, first.memory, run_id="a")
    assert look_again.decision.verdict == "warn", "a second look of the same run"
    late = later(before, 120, events=(engine_xid(T0 + 5), engine_xid(T0 - 9)))
    got = run("health_check", late, policy(APP), later(before, 60), first.memory, run_id="b")
    assert [f.evidence.at_ns for f in got.findings] == [T0 - 9]


def test_a_sticky_event_before_the_job_is_not_blamed_on_it():
    before = snapshot(gpu(1))
    got = run("epilog", later(before, 60, events=(xid(79, 1, T0 - DAY_NS),)), policy(STICKY), before, gpus=(1,))
    assert got.decision.verdict == "ok"
    assert run("epilog", later(before, 60, events=(xid(79, 1, T0 + 9),)), policy(STICKY), before, gpus=(1,)).decision.verdict == "fail"


def test_unknown_xids_fall_to_the_rule_for_others():
    other = rule("other", kind="event", warn=Level(xid_other=True), finding="XID-OTHER", action="notify")
    before = snapshot(gpu(1))
    now = later(before, 60, events=(xid(999, 1, T0 + 1), xid(31, 1, T0 + 2)))
    got = run("epilog", now, policy(APP, other), before, gpus=(1,))
    assert verdicts(got) == {("XID-OTHER", uuid(1)): "warn", ("XID-APP", uuid(1)): "warn"}
    assert "Xid 999" in next(f.message for f in got.findings if f.code == "XID-OTHER")


def test_twice_in_a_day_counts_each_event_once():
    twice = rule("contained", kind="event", warn=Level(xid=(94,)), fail=Level(xid=(94,), hits=2, within_s=86400.0), finding="XID-CONTAINED")
    before = snapshot(gpu(1))
    now = later(before, 60, events=(xid(94, 1, T0 + 1, "a"),))
    one = run("epilog", now, policy(twice), before, gpus=(1,))
    again = run("health_check", now, policy(twice), before, memory=one.memory)
    assert (one.decision.verdict, again.decision.verdict) == ("warn", "warn")
    second = later(before, 3600, events=(xid(94, 1, T0 + 1800 * 10**9, "b"),))
    assert run("health_check", second, policy(twice), now, memory=again.memory).decision.verdict == "fail"
    next_week = later(before, 7 * 86400, events=(xid(94, 1, T0 + 6 * DAY_NS, "b"),))
    assert run("health_check", next_week, policy(twice), now, memory=again.memory).decision.verdict == "warn"


def test_lines_of_one_incident_are_one_occurrence():
    twice = rule("contained", kind="event", warn=Level(xid=(94,)), fail=Level(xid=(94,), hits=2, within_s=86400.0), finding="XID-CONTAINED")
    before = snapshot(gpu(1))
    lines = tuple(xid(94, 1, T0 + n * 10**9, f"boot-1:{n}") for n in (1, 1, 2, 9))
    one = run("health_check", later(before, 5, events=lines[:3]), policy(twice), before, run_id="a")
    same = run("health_check", later(before, 60, events=lines[3:]), policy(twice), later(before, 5), one.memory, run_id="b")
    assert (one.decision.verdict, same.decision.verdict) == ("warn", "warn")
    another = later(before, 120, events=(xid(94, 1, T0 + 80 * 10**9, "boot-1:80"),))
    assert run("health_check", another, policy(twice), later(before, 60), same.memory, run_id="c").decision.verdict == "fail"


def test_a_health_check_that_sees_an_event_first_does_not_hide_whose_it_was():
    users = rule("users", kind="event", warn=Level(xid=(13,), users=2, within_s=604800.0), finding="XID-APP", action="note")
    memory: Any = {}
    for n, uid in enumerate((1000, 1001)):
        before = later(snapshot(gpu(1)), 3600 * n)
        now = later(before, 60, events=(xid(13, 1, before.wall_ns + 5),))
        memory = run("health_check", now, policy(users), before, memory).memory
        the_job, mapping = job(1, job_id=str(n), uid=uid)
        window = Window("job", str(n), before.wall_ns, now.wall_ns, 60, "job")
        got = judge(Input("epilog", now, before, compare(before, now), window, policy(users), the_job, mapping), memory)
        memory = got.memory
    assert got.decision.verdict == "warn"


def test_the_same_gpu_under_several_users():
    users = rule("users", kind="event", warn=Level(xid=(13,), users=3, within_s=604800.0), finding="XID-APP", action="note")
    memory, seen = {}, []
    for n, uid in enumerate([1000, 1000, 1001, 1002]):
        before = later(snapshot(gpu(1)), 3600 * n)
        now = later(before, 60, events=(xid(13, 1, before.wall_ns + 5),))
        the_job, mapping = job(1, job_id=str(n), uid=uid)
        window = Window("job", str(n), before.wall_ns, now.wall_ns, 60, "job")
        got = judge(Input("epilog", now, before, compare(before, now), window, policy(users), the_job, mapping), memory)
        memory = got.memory
        seen.append(got.decision.verdict)
    assert seen == ["ok", "ok", "ok", "warn"]


def test_xid_74_beside_a_peers_79_is_an_echo():
    nvlink = rule("nvlink", kind="event", warn=Level(xid=(74,)), fail=Level(xid=(74,), unless_peer_xid=(79,)), finding="XID-NVLINK")
    before = snapshot(gpu(0), gpu(1))
    echo = later(before, 60, events=(xid(79, 0, T0 + 10**9), xid(74, 1, T0 + 2 * 10**9)))
    assert verdicts(run("health_check", echo, policy(nvlink), before))[("XID-NVLINK", uuid(1))] == "warn"
    own = later(before, 60, events=(xid(74, 1, T0 + 2 * 10**9),))
    assert verdicts(run("health_check", own, policy(nvlink), before))[("XID-NVLINK", uuid(1))] == "fail"


def test_observe_mode_decides_nothing_but_says_what_it_would():
    for observed in (policy(REMAP._replace(mode="observe")), policy(REMAP, mode="observe")):
        got = run("prolog", snapshot(gpu(0, row_remap_failure=1)), observed, gpus=(0,))
        assert got.decision.verdict == "fail"
        assert got.decision.proposals == ()
        assert [(p.action, p.uuid) for p in got.decision.observed] == [("drain", uuid(0))]
    assert run("prolog", snapshot(gpu(0, row_remap_failure=1)), policy(REMAP._replace(mode="off")), gpus=(0,)).findings == ()


def test_monitor_trouble_acts_only_as_the_policy_says():
    hung = snapshot(gpus=None, troubles=(Trouble("MON-ENGINE-HUNG", "engine", "no answer"),))
    memory, actions = {}, []
    for n in range(3):
        got = run("health_check", later(hung, n), policy(), memory=memory)
        memory = got.memory
        actions.append([p.action for p in got.decision.proposals])
    assert actions == [[], [], ["notify"]]
    got = run("health_check", hung, policy(monitor=Monitor(action="drain")))
    assert [(p.action, p.uuid) for p in got.decision.proposals] == [("drain", "")]
    odd = snapshot(gpu(0), troubles=(Trouble("MON-ENVIRONMENT", "environment", "odd user name"),))
    assert run("health_check", odd, policy(monitor=Monitor(action="drain"))).decision.proposals == ()
    healthy = run("health_check", snapshot(gpu(0)), policy(), memory=memory)
    assert run("health_check", hung, policy(), memory=healthy.memory).decision.proposals == ()


def test_excluded_gpus_of_the_job_are_mentioned_at_prolog():
    excluded = {uuid(0): Exclusion(uuid(0), "NVL-STORM", "link1", "nvhc", T0)}
    got = run("prolog", snapshot(gpu(0), gpu(1)), policy(), gpus=(0,), exclusions=excluded)
    assert verdicts(got) == {("GPU-EXCLUDED", uuid(0)): "warn"}
    assert run("prolog", snapshot(gpu(0), gpu(1)), policy(), gpus=(1,), exclusions=excluded).findings == ()


def test_the_stronger_finding_about_a_field_silences_the_weaker():
    storm = rule("storm", "nvlink_replay_total", fail=Level(rate_at_least=100 / 60), finding="NVL-STORM")
    some = rule("some", "nvlink_replay_total", warn=Level(increase_at_least=3), finding="NVL-REPLAY")
    before = snapshot(gpu(0))
    got = run("epilog", later(before, 60, gpu(0, nvlink_replay_total=5000)), policy(some, storm), before, gpus=(0,))
    assert verdicts(got) == {("NVL-STORM", uuid(0)): "fail"}


def test_model_overlays_judge_by_their_own_numbers():
    from slurm_nvhc.policy.compiled import build
    from slurm_nvhc.policy.sections import defaults

    hot = {"finding": "SITE-RULE", "kind": "reading", "fields": ["gpu_temp"], "fail": [{"value_above": 80}]}
    raw = {**defaults(), "rules": {"hot": hot}}
    rules = build(raw, "h")._replace(by_model=(("*H100*", {"rules": {"hot": {"fail": [{"value_above": 90}]}}}),), raw=raw)
    now = snapshot(gpu(0, gpu_temp=85), gpu(1, gpu_temp=85, model="NVIDIA A100-SXM4-80GB"))
    assert verdicts(run("health_check", now, rules)) == {("SITE-RULE", uuid(1)): "fail"}


def test_unless_another_reading_or_xid_explains_it():
    pending = rule("action", "recovery_action", fail=Level(value_is=(4,), unless=(("row_remap_pending", (1,)),)), warn=Level(value_is=(4,)))
    for remap, verdict in ((1, "warn"), (0, "fail"), (NoData(BLANK), "fail")):
        got = run("health_check", snapshot(gpu(0, recovery_action=4, row_remap_pending=remap)), policy(pending))
        assert got.decision.verdict == verdict
    contained = rule("ecc", "ecc_dbe_volatile", fail=Level(increase_above=0, unless_xid=(94,)), warn=Level(increase_above=0))
    fatal = rule("xid", kind="event", fail=Level(xid=(48,), unless_xid=(94,)), warn=Level(xid=(48,)))
    before = snapshot(gpu(0, ecc_dbe_volatile=0))
    for events, verdict in (((xid(48, 0, T0 + 1),), "fail"), ((xid(48, 0, T0 + 1), xid(94, 0, T0 + 2)), "warn")):
        now = later(before, 60, gpu(0, ecc_dbe_volatile=1), events=events)
        got = run("epilog", now, policy(contained, fatal), before, gpus=(0,))
        assert {f.verdict for f in got.findings} == {verdict}
        assert len(got.findings) == 2


ALL_RULES = policy(
    REPLAY, REMAP, LOST, DOWN, STICKY, APP,
    rule("rate", "pcie_replay", fail=Level(over_limit="pcie_replays")),
    rule("share", "thermal_violation_ns", fail=Level(share_above=0.1)),
    rule("limit", "gpu_temp", fail=Level(above_field="gpu_temp_slowdown")),
    rule("bits", "clock_event_reasons", fail=Level(bits_any=0xE8)),
    rule("jobs", "ecc_dbe_volatile", fail=Level(increase_above=0, hits=2, of_last=5)),
    expect=Expect(links=2),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, 2), gpu_readings, max_size=3), min_size=2, max_size=5),
    st.sampled_from(["prolog", "epilog", "health_check"]),
    st.integers(-10, 10**5),
)
def test_no_sequence_crashes_judge(steps, hook, seconds):
    memory, before = {}, None
    for i, gpus in enumerate(steps):
        now = later(snapshot(*(gpu(n)._replace(readings=r) for n, r in gpus.items())), seconds * i)
        got = run(hook, now, ALL_RULES, before if hook != "prolog" else None, memory, gpus=None if hook == "health_check" else (0, 1))
        memory, before = got.memory, now


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                ["row_remap_failure", "pcie_replay", "gpu_temp", "nvlink_replay_total", "ecc_dbe_volatile", "clock_event_reasons"]
            ),
            st.sampled_from([NoData(k) for k in NO_DATA_KINDS]),
            min_size=1,
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["prolog", "epilog", "health_check"]),
)
def test_no_data_never_makes_a_fault(steps, hook):
    memory, before = {}, snapshot(gpu(0, pcie_replay=5, gpu_temp=40, ecc_dbe_volatile=3, clock_event_reasons=0, thermal_violation_ns=7))
    for i, readings in enumerate(steps):
        state = gpu(0)
        now = later(before, 60 * (i + 1), state._replace(readings={**state.readings, **readings}))
        got = run(hook, now, ALL_RULES, before, memory, gpus=None if hook == "health_check" else (0,))
        memory, before = got.memory, now
        assert not [f for f in got.findings if f.verdict in ("fail", "warn")]


def mig(state):
    return state._replace(identity=state.identity._replace(mig=True))


def test_links_of_a_gpu_in_mig_mode_are_not_judged():
    before = snapshot(mig(gpu(0)), gpu(1))
    worse = [with_link(gpu(n, nvlink_replay_total=5), 1, nvlink_replay=5, nvlink_state="down") for n in (0, 1)]
    now = later(before, 120, mig(worse[0]), worse[1])
    got = run("epilog", now, policy(REPLAY, DOWN, expect=Expect(links=2)), before, gpus=(0, 1))
    assert {f.gpu["nvml_index"] for f in got.findings} == {1}
    blank = later(before, 120, mig(gpu(0, nvlink_replay_total=NoData(BLANK))), gpu(1))
    assert run("epilog", blank, policy(REPLAY), before, gpus=(0, 1)).findings == ()


def test_row_remapping_does_not_apply_in_mig_mode_but_what_is_read_counts():
    blank = gpu(0, row_remap_failure=NoData(BLANK))
    assert verdicts(run("prolog", snapshot(blank), policy(REMAP), gpus=(0,))) == {("NO-DATA", uuid(0)): "unknown"}
    assert verdicts(run("prolog", snapshot(mig(blank)), policy(REMAP), gpus=(0,))) == {}
    failed = run("prolog", snapshot(mig(gpu(0, row_remap_failure=1))), policy(REMAP), gpus=(0,))
    assert verdicts(failed) == {("MEM-REMAP-FAILED", uuid(0)): "fail"}


def test_the_same_record_with_another_stamp_is_not_a_new_occurrence():
    """The kernel log counts from boot: each reading gives the same record a slightly other moment."""
    before = snapshot(gpu(1))

    def told(record, at_ns):
        return xid(119, 1, at_ns, ident=f"boot-1:{record}")

    found = run("epilog", later(before, 60, events=(told(7, T0 + 10**9),)), policy(GSP), before, gpus=(1,))
    done = settled.table(found.findings[0].idents)
    again = later(before, 120, events=(told(7, T0 + 10**9 + 2504),))
    assert run("prolog", again, policy(GSP), gpus=(1,), settled=done).decision.verdict == "ok"
    opened = run("health_check", later(before, 60, events=(told(7, T0 + 10**9),)), policy(GSP), before)
    reread = run("health_check", again, policy(GSP), before, opened.memory)
    assert "x2" not in reread.findings[0].message
    second = later(before, 120, events=(told(8, T0 + 10**9 + 5000),))
    assert "x2" in run("health_check", second, policy(GSP), before, opened.memory).findings[0].message
    much_later = later(before, 300, events=(told(9, T0 + 200 * 10**9),))
    assert run("prolog", much_later, policy(GSP), gpus=(1,), settled=done).decision.verdict == "fail"


def test_what_a_reset_repaired_stays_repaired_when_the_log_is_read_again():
    events = (xid(95, 1, T0 - 60 * 10**9, ident="boot-1:5"),)
    fatal = policy(rule("f", kind="event", fail=Level(xid=(95,)), sticky=True, finding="MEM-UNCORRECTABLE"))
    one = run("health_check", snapshot(gpu(1), events=events), fatal)
    two = run("health_check", later(snapshot(gpu(1)), 60), fatal, memory=one.memory, reset_since={uuid(1): T0})
    assert (one.decision.verdict, two.decision.verdict) == ("fail", "ok")
    reread = run("prolog", later(snapshot(gpu(1)), 120, events=events), fatal, memory=two.memory, gpus=(1,))
    assert reread.decision.verdict == "ok"
    fresh = (xid(95, 1, T0 + 100 * 10**9, ident="boot-1:9"),)
    assert run("prolog", later(snapshot(gpu(1)), 120, events=fresh), fatal, memory=two.memory, gpus=(1,)).decision.verdict == "fail"


def test_an_engine_event_from_long_before_the_window_is_not_new():
    twice = rule("contained", kind="event", warn=Level(xid=(94,)), fail=Level(xid=(94,), hits=2, within_s=86400.0), finding="XID-CONTAINED")
    before = snapshot(gpu(1))
    told = run("health_check", later(before, 60, events=(xid(94, 1, T0 + 5, ident="boot-1:3"),)), policy(twice), before, run_id="a")
    blind_log = later(before, 3660, events=(xid(94, 1, T0 + 5)._replace(source="engine", ident="dcgm:1"),))
    got = run("health_check", blind_log, policy(twice), later(before, 3600), told.memory, run_id="b")
    assert got.decision.verdict == "ok"


def test_a_bus_that_was_numbered_anew_loses_no_gpu():
    known = tuple(gpu(n).identity for n in range(3))
    moved = snapshot(gpus=None, pci_gpus=tuple(PciGpu(f"0000:{0x40 + n:02x}:00.0") for n in range(3)))
    assert verdicts(run("health_check", moved, policy(LOST), known=known)) == {}


def test_an_old_xid_79_is_no_witness():
    known = (gpu(0).identity, gpu(1).identity)
    alone = snapshot(gpu(0), pci_gpus=tuple(PciGpu(i.pci) for i in known), events=(xid(79, 1, T0 - DAY_NS),))
    assert verdicts(run("health_check", alone, policy(LOST), known=known))[("GPU-LOST", uuid(1))] == "fail"
    reloaded = alone._replace(driver_loaded_ns=T0 - 3600 * 10**9)
    assert verdicts(run("health_check", reloaded, policy(LOST), known=known))[("GPU-LOST", uuid(1))] == "warn"
    done = {settled.key(uuid(1), 79): T0 - DAY_NS}
    assert verdicts(run("health_check", alone, policy(LOST), known=known, settled=done))[("GPU-LOST", uuid(1))] == "warn"


def test_a_streak_does_not_span_a_week_without_data():
    bad = with_link(gpu(0), 1, nvlink_state="down")
    rules = policy(DOWN, expect=Expect(links=2))
    one = run("health_check", snapshot(bad), rules)
    blank = with_link(gpu(0), 1, nvlink_state=NoData(BLANK))
    for seconds, verdict in ((600, "fail"), (5 * 86400, "warn")):
        blind = run("health_check", later(snapshot(blank), seconds), rules, memory=one.memory)
        assert run("health_check", later(snapshot(bad), seconds + 300), rules, memory=blind.memory).decision.verdict == verdict
    rare = run("prolog", later(snapshot(bad), 7200), rules, memory=one.memory, gpus=(0,))
    assert rare.decision.verdict == "fail", "a node that is looked at only by jobs: the next look is the next in the row"


def test_one_field_of_a_rule_does_not_end_the_row_of_another():
    """Two items of the fabric's health: one is bad at both looks, the other is well."""
    twice = rule("fabric", "fabric_degraded_bandwidth", "fabric_route_unhealthy", fail=Level(value_is=(1,), consecutive=2, spacing_s=60.0))
    bad = snapshot(gpu(0, fabric_degraded_bandwidth=1, fabric_route_unhealthy=0))
    first = run("health_check", bad, policy(twice), bad)
    second = run("health_check", later(bad, 300), policy(twice), bad, first.memory)
    assert [f.evidence.field for f in second.findings if f.verdict == "fail"] == ["fabric_degraded_bandwidth"]


def test_only_when_another_reading_is_known_to_be_so():
    held = rule("left", "fb_used", warn=Level(value_above=1024.0, only_when=(("gpu_processes", (0,)),)))
    for processes, codes in ((0, ["SITE-RULE"]), (3, []), (NoData("not_permitted"), [])):
        got = run("health_check", snapshot(gpu(0, fb_used=40000, gpu_processes=processes)), policy(held))
        assert [f.code for f in got.findings if f.verdict == "warn"] == codes


def test_growth_over_a_window_that_began_before_links_had_settled_is_a_warning_and_no_hit():
    once = policy(rule("failed", "nvlink_replay", fail=Level(increase_at_least=1, settle_s=600)))
    again = policy(rule("failed", "nvlink_replay", fail=Level(increase_at_least=1, hits=2, of_last=5, settle_s=600)))
    for began_s, verdict in ((40, "warn"), (500, "warn"), (700, "fail")):  # since boot
        before = snapshot(with_link(gpu(0), 1, nvlink_replay=3), uptime_s=began_s)
        now = later(before, 7200, with_link(gpu(0), 1, nvlink_replay=4))
        got = run("epilog", now, once, before, gpus=(0,))
        assert got.decision.verdict == verdict, began_s
        assert [f.evidence.text.startswith("links may have been training") for f in got.findings] == [verdict == "warn"]
        first = run("epilog", now, again, before, gpus=(0,))
        calm = later(before, 86400, with_link(gpu(0), 1, nvlink_replay=4))
        second = run("epilog", later(calm, 60, with_link(gpu(0), 1, nvlink_replay=5)), again, calm, first.memory, gpus=(0,), key="w2")
        assert second.decision.verdict == ("fail" if verdict == "fail" else "ok"), began_s


def test_a_level_that_is_held_back_does_not_hide_one_that_fails():
    rules = policy(rule("x", "nvlink_replay", fail=(Level(increase_at_least=1, settle_s=600), Level(increase_at_least=9))))
    before = snapshot(with_link(gpu(0), 1, nvlink_replay=3), uptime_s=40)
    for errors, verdict in ((4, "warn"), (12, "fail")):
        now = later(before, 60, with_link(gpu(0), 1, nvlink_replay=errors))
        assert run("health_check", now, rules, before).decision.verdict == verdict


def test_settle_time_after_the_reset_of_the_same_gpu():
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True, settle_s=300)), expect=Expect(links=2))
    bad = snapshot(with_link(gpu(0), 1, nvlink_state="down"))
    one = run("health_check", bad, rules, reset_since={uuid(0): T0 - MINUTE_NS})
    assert one.decision.verdict == "ok"
    for seconds, verdict in ((290, "ok"), (310, "fail")):
        assert run("health_check", later(bad, seconds), rules, memory=one.memory).decision.verdict == verdict
    assert run("health_check", bad, rules, reset_since={uuid(1): T0 - MINUTE_NS}).decision.verdict == "fail"
    rebooted = later(bad, 290, boot_id="boot-2")
    assert run("health_check", rebooted, rules, memory=one.memory).decision.verdict == "fail", "another boot has its own settle"


def test_a_reset_that_the_drivers_load_explains_counts_from_that_load():
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True, settle_s=300)), expect=Expect(links=2))
    loaded = snapshot(with_link(gpu(0), 1, nvlink_state="down"), driver_loaded_ns=T0 - 400 * 10**9)
    assert run("health_check", loaded, rules, reset_since={uuid(0): T0 - 900 * 10**9}).decision.verdict == "fail"
    dead = loaded._replace(events=(xid(79, 0, T0 - 60 * 10**9),))
    got = run("health_check", dead, policy(STICKY), reset_since={uuid(0): T0 - 900 * 10**9})
    assert got.decision.verdict == "fail", "logged after the load: it can not have come of it"


def test_an_event_that_may_have_come_of_a_reset_is_told_once_by_whoever_may_tell_it():
    both = later(snapshot(gpu(1)), 60, events=(xid(79, 1, T0 + 9),))
    reset = {"reset_since": {uuid(1): T0}}
    one = run("prolog", both, policy(STICKY), gpus=(0,), run_id="prolog:1", **reset)
    assert one.findings == (), "a warning about another job's GPU is not this job's"
    two = run("health_check", later(snapshot(gpu(1)), 70), policy(STICKY), memory=one.memory, run_id="check:1")
    assert verdicts(two) == {("XID-FATAL", uuid(1)): "warn"}
    assert "in the same time the GPU was reset" in two.findings[0].message
    same_run = run("health_check", later(snapshot(gpu(1)), 72), policy(STICKY), memory=two.memory, run_id="check:1")
    assert verdicts(same_run) == {("XID-FATAL", uuid(1)): "warn"}
    assert run("health_check", later(snapshot(gpu(1)), 90), policy(STICKY), memory=two.memory, run_id="check:2").findings == ()
    reread = run("prolog", later(both, 90), policy(STICKY), memory=two.memory, gpus=(1,), run_id="prolog:2")
    assert reread.findings == ()


def test_a_gpu_that_does_not_answer_speaks_against_the_reset_of_all():
    sxid = Event("sxid", 20034, T0 - MINUTE_NS, "0000:c1:00.0", "SXid 20034", "kernel", "b:1", fatal=True)
    rules = policy(rule("s", kind="event", fail=Level(sxid=(), fatal=True), sticky=True, finding="SXID-FATAL"))
    one = run("health_check", snapshot(gpu(0), gpu(1), events=(sxid,)), rules)
    known = (gpu(0).identity, gpu(1).identity)
    for gpus, verdict in (((gpu(0), gpu(1)), "ok"), ((gpu(0), gpu(1, status="lost")), "fail"), ((gpu(0),), "fail")):
        now = later(snapshot(*gpus), 60)
        got = run("health_check", now, rules, memory=one.memory, reset_since={uuid(0): T0}, known=known)
        assert max((f.verdict for f in got.findings if f.code == "SXID-FATAL"), default="ok") == verdict, gpus


def test_a_damaged_memory_of_resets_is_none():
    rules = policy(rule("down", "nvlink_state", fail=Level(went_down=True, settle_s=300)), expect=Expect(links=2))
    bad = snapshot(with_link(gpu(0), 1, nvlink_state="down"))
    for damaged in ([], ["x", "y", "boot-1"], [T0, None, "boot-1"], 7, None):
        assert run("health_check", bad, rules, memory={"resets": {uuid(0): damaged}}).decision.verdict == "fail"
