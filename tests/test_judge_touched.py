"""Did a fault touch the job, and when: what a job's user is told."""

from __future__ import annotations

from typing import Any

import pytest
from build import T0, gpu, later, policy, rule, run, snapshot, uuid, with_link, xid

from slurm_nvhc.catalog import effects
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.judge.when import MOST_MOMENTS
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.earlier import Earlier
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.history import History, Sample
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.snapshot import GpuState
from slurm_nvhc.policy.compiled import Level, Policy

S = 10**9
JOB = (0, 1, 2, 3)
ANY_REPLAY = rule("replay", "nvlink_replay", "nvlink_replay_total", fail=Level(increase_above=0.0), finding="NVL-REPLAY")


def node(*changed: GpuState) -> list[GpuState]:
    by_uuid = {uuid(n): gpu(n) for n in range(8)}
    by_uuid |= {g.identity.uuid: g for g in changed}
    return list(by_uuid.values())


def ended(after: list[GpuState], rules: Policy | None = None, start: list[GpuState] | None = None, **more: Any) -> Any:
    """A job on GPUs 0 to 3 that ran for 40 minutes."""
    before = snapshot(*(start or node()))
    changes = {k: more.pop(k) for k in ("events", "events_known", "gpus_lost", "boot_id") if k in more}
    now = later(before, 2400.0, *after, **changes)
    return run("epilog", now, rules or policy(), before, gpus=JOB, **more)


def replays(n: int, count: int, link: int = 1, total: int | None = None) -> GpuState:
    return with_link(gpu(n, nvlink_replay_total=count if total is None else total), link, nvlink_replay=count, nvlink_state="up")


def test_nothing_at_all_is_clean() -> None:
    told = ended(node()).touched
    assert (told.verdict, told.minutes, told.counters) == ("clean", (), ())
    assert "its 4 GPUs" in told.why


def test_only_a_jobs_end_is_asked() -> None:
    before = snapshot(*node())
    now = later(before, 2400.0)
    assert run("prolog", now, policy(), gpus=JOB).touched is None
    assert run("health_check", now, policy(), before).touched is None
    assert run("epilog", now, policy(), before, gpus=()).touched is None


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_failing_finding_is_a_hit_whatever_the_mode(mode: str) -> None:
    told = ended(node(replays(3, 21200)), policy(ANY_REPLAY._replace(mode=mode))).touched
    assert told.verdict == "hit"
    assert "gpu3 link1" in told.why
    assert "none was lost" in told.why
    assert told.counters == ("gpu3 link1 replay +21200",)


def test_growth_without_any_rule_is_a_suspicion_and_told_once() -> None:
    told = ended(node(replays(3, 1))).touched
    assert (told.verdict, told.counters) == ("suspect", ("gpu3 link1 replay +1",))
    assert told.why.startswith("gpu3 link1 replay +1: data was sent again")


def test_a_total_counts_where_no_link_explains_it() -> None:
    assert ended(node(gpu(3, nvlink_replay_total=2))).touched.counters == ("gpu3 replay +2",)


def test_lost_data_is_a_hit_even_where_no_rule_says_so() -> None:
    start = node(gpu(1, ecc_dbe_volatile=0, ecc_dbe_aggregate=7))
    told = ended(node(gpu(1, ecc_dbe_volatile=1, ecc_dbe_aggregate=8)), start=start).touched
    assert (told.verdict, told.counters) == ("hit", ("gpu1 uncorrectable ECC +1",))
    assert effects.LOST in told.why


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [("pcie_replay", 0, 40), ("power_violation_ns", 0, 10**12), ("nvlink5_tx_bytes", 0, 10**12), ("nvlink5_symbol_errors", 0, 5000)],
)
def test_what_healthy_hardware_does_is_no_suspicion(field: str, before: int, after: int) -> None:
    assert ended(node(gpu(1, **{field: after})), start=node(gpu(1, **{field: before}))).touched.verdict == "clean"


def test_another_jobs_gpu_does_not_touch_this_job() -> None:
    rules = policy(rule("remap", "row_remap_failure", fail=Level(value_is=(1,)), finding="MEM-REMAP-FAILED"))
    judgement = ended(node(gpu(6, row_remap_failure=1), replays(5, 9)), rules)
    assert [f.code for f in judgement.findings] == ["MEM-REMAP-FAILED"]
    assert judgement.touched.verdict == "clean"


def test_a_state_that_stood_before_is_a_suspicion_and_one_that_came_is_a_hit() -> None:
    rules = policy(rule("remap", "row_remap_failure", fail=Level(value_is=(1,)), finding="MEM-REMAP-FAILED"))
    bad = node(gpu(2, row_remap_failure=1))
    assert ended(bad, rules).touched.verdict == "hit"
    told = ended(bad, rules, start=bad).touched
    assert told.verdict == "suspect"
    assert "as before the job began" in told.why


def test_a_warning_that_stood_before_touches_nothing() -> None:
    rules = policy(rule("ecc", "ecc_mode", warn=Level(value_is=(0,)), finding="POWER-LIMIT"))
    assert ended(node(gpu(2, ecc_mode=0)), rules, start=node(gpu(2, ecc_mode=0))).touched.verdict == "clean"
    assert ended(node(gpu(2, ecc_mode=0)), rules, start=node(gpu(2, ecc_mode=1))).touched.verdict == "suspect"


def test_configuration_touches_nothing() -> None:
    rules = policy(rule("ecc", "ecc_mode", warn=Level(value_is=(0,)), finding="CONFIG-ECC"))
    judgement = ended(node(gpu(2, ecc_mode=0)), rules, start=node(gpu(2, ecc_mode=1)))
    assert [f.code for f in judgement.findings] == ["CONFIG-ECC"]
    assert judgement.touched.verdict == "clean"


def test_an_event_says_when() -> None:
    rules = policy(rule("xid", kind="event", fail=Level(xid=(79,)), finding="XID-FATAL"))
    at = T0 + 600 * S
    told = ended(node(), rules, events=(xid(79, 2, at),)).touched
    assert told.verdict == "hit"
    ((begin, end, what),) = told.minutes
    assert (begin, end) == (at, at)
    assert what.startswith("gpu2: Xid 79")
    assert effects.LOST in told.why


def test_a_part_of_the_node_touches_the_job_that_ran_beside_it() -> None:
    rules = policy(rule("port", "port_fatal", fail=Level(increase_above=0.0), finding="SWITCH-ERRORS"))
    port = "switch:0000:c1:00.0/port5"
    before = snapshot(*node(), parts={port: {"port_fatal": 0}})
    now = later(before, 2400.0, parts={port: {"port_fatal": 1}})
    told = run("epilog", now, rules, before, gpus=JOB).touched
    assert told.verdict == "hit"
    assert port in told.why


@pytest.mark.parametrize(
    ("more", "why"),
    [({"events_known": False}, "kernel log"), ({"gpus": None}, "could not be read")],
)
def test_what_was_not_seen_is_not_clean(more: dict[str, Any], why: str) -> None:
    before = snapshot(*node())
    told = run("epilog", later(before, 2400.0, **more), policy(), before, gpus=JOB).touched
    assert told.verdict == "unknown"
    assert why in told.why


def test_without_a_baseline_nothing_is_known() -> None:
    told = run("epilog", snapshot(*node()), policy(), gpus=JOB).touched
    assert told.verdict == "unknown"
    assert "start was not seen" in told.why


def test_readings_that_could_not_be_had_are_not_clean() -> None:
    blind = node(with_link(gpu(2), 1, nvlink_replay=NoData(BLANK)))
    told = ended(blind, policy(ANY_REPLAY)).touched
    assert told.verdict == "unknown"
    assert "gpu2" in told.why


def test_a_reset_in_the_job_leaves_a_lower_bound() -> None:
    told = ended(node(replays(3, 2)), start=node(replays(3, 500))).touched
    assert told.verdict == "suspect"
    assert told.counters == ("gpu3 link1 replay at least +2",)
    assert "cleared" in told.why
    assert ended(node(), start=node(replays(3, 500))).touched.verdict == "unknown"


def test_trouble_of_our_own_touches_nobody() -> None:
    from slurm_nvhc.model.snapshot import Trouble

    judgement = ended(node(), policy(), troubles=(Trouble("MON-LEDGER", "ledger", "disk full"),))
    assert [f.code for f in judgement.findings] == ["MON-LEDGER"]
    assert judgement.touched.verdict == "clean"


def test_the_worst_is_said_first() -> None:
    start = node(gpu(1, ecc_dbe_volatile=0))
    told = ended(node(gpu(1, ecc_dbe_volatile=1), replays(3, 21200)), policy(ANY_REPLAY), start=start).touched
    assert told.why.index("gpu1") < told.why.index("gpu3")


def test_every_finding_that_a_rule_can_make_has_an_effect() -> None:
    assert {c.code for c in codes.ALL if c.klass != "monitor"} == set(effects.OF_CODE)
    assert set(effects.OF_FIELD) <= set(cat.BY_NAME)
    assert {*effects.SAME_AS, *effects.SAME_AS.values()} <= set(effects.OF_FIELD)
    assert {*effects.OF_CODE.values(), *effects.OF_FIELD.values()} <= set(effects.ORDER)


# What other runs found in the job's time

REMAP = policy(rule("remap", "row_remap_failure", fail=Level(value_is=(1,)), finding="MEM-REMAP-FAILED"))


def found(code: str, place: str, verdict: str, absolute: bool = True, **evidence: Any) -> Finding:
    return Finding(code, place, "gpu", verdict, "so it was", Evidence(**evidence), {}, absolute=absolute)


def look(minute: float, *findings: Finding, since: float | None = None, hook: str = "health_check", **more: Any) -> Earlier:
    begin = minute if since is None else since
    return Earlier(hook, T0 + int(begin * 60 * S), T0 + int(minute * 60 * S), findings, **more)


@pytest.mark.parametrize(
    ("verdict", "n", "touches"),
    [("fail", 3, "hit"), ("warn", 3, "suspect"), ("unknown", 3, "clean"), ("ok", 3, "clean"), ("fail", 6, "clean")],
)
def test_a_state_that_came_and_went_is_known_from_the_look_that_saw_it(verdict: str, n: int, touches: str) -> None:
    down = found("NVL-DOWN", f"{uuid(n)}/link1", verdict, field="nvlink_state", after="down")
    told = ended(node(), earlier=(look(10, down, since=5), look(15, down, since=10))).touched
    assert told.verdict == touches
    if touches != "clean":
        ((begin, end, what),) = told.minutes
        assert (begin, end) == (T0 + 600 * S, T0 + 900 * S)
        assert what.startswith("gpu3 link1: an NVLink is down")


def test_a_part_of_the_node_that_came_back_touched_the_job_and_trouble_of_our_own_did_not() -> None:
    gone = found("RDMA-DOWN", "rdma:mlx5_0/port1", "warn", field="rdma_state", after=1)
    assert ended(node(), earlier=(look(10, gone),)).touched.verdict == "suspect"
    ours = found("MON-ENGINE-HUNG", "monitor:engine", "fail")._replace(klass="monitor")
    assert ended(node(), earlier=(look(10, ours),)).touched.verdict == "clean"


def test_a_storm_that_only_a_look_could_see_is_a_hit_and_told_once() -> None:
    storm = found("NVL-STORM", f"{uuid(3)}/link1", "fail", False, field="nvlink_replay", amount=1000.0)
    grown = Change(f"{uuid(3)}/link1", "nvlink_replay", 0, 1000, "exact", 1000.0, 300.0)
    told = ended(node(replays(3, 1000)), earlier=(look(10, storm, since=5, changes=(grown,)),)).touched
    assert told.verdict == "hit"
    assert told.why.count("gpu3") == 1
    assert told.minutes == ((T0 + 300 * S, T0 + 600 * S, "gpu3 link1: replay +1000 (by health checks)"),)


def test_what_a_look_counted_before_the_job_began_is_not_the_jobs() -> None:
    storm = found("NVL-STORM", f"{uuid(3)}/link1", "fail", False, field="nvlink_replay", amount=1000.0)
    assert ended(node(), earlier=(look(3, storm, since=-2),)).touched.verdict == "clean"
    # Some of it came in the job, how much of it at that rate is not known.
    assert ended(node(replays(3, 9)), earlier=(look(3, storm, since=-2),)).touched.verdict == "suspect"


@pytest.mark.parametrize(("sticky", "verdict", "touches"), [(True, "fail", "suspect"), (True, "warn", "clean"), (False, "fail", "clean")])
def test_an_xid_that_stood_before_the_job_is_a_suspicion(sticky: bool, verdict: str, touches: str) -> None:
    old = found("XID-NVLINK", uuid(1), verdict, sticky, field="xid", after=74, amount=1.0, at_ns=T0 - 300 * S)
    told = ended(node(), earlier=(look(10, old),)).touched
    assert told.verdict == touches
    assert touches == "clean" or "as before the job began" in told.why
    new = old._replace(evidence=old.evidence._replace(at_ns=T0 + 300 * S))
    assert ended(node(), earlier=(look(10, new),)).touched.verdict == "hit"


def test_what_the_jobs_own_prolog_found_stood_there_before() -> None:
    gone = found("SWITCH-LOST", "switch:0000:c1:00.0", "fail", field="switch_state", after=0)
    told = ended(node(), earlier=(look(0, gone, hook="prolog"),)).touched
    assert (told.verdict, told.minutes) == ("suspect", ())
    # A switch that is not there has no reading at the job's start: the prolog says that it was gone by then.
    rules = policy(rule("gone", "switch_state", fail=Level(value_is=(0,)), finding="SWITCH-LOST"))
    before = snapshot(*node(), parts={"node": {}})
    now = later(before, 2400.0, parts={"node": {}, "switch:0000:c1:00.0": {"switch_state": 0}})
    assert run("epilog", now, rules, before, gpus=JOB).touched.verdict == "hit"
    assert run("epilog", now, rules, before, gpus=JOB, earlier=(look(0, gone, hook="prolog"),)).touched.verdict == "suspect"


def test_a_rule_that_warns_makes_lost_data_no_less() -> None:
    rules = policy(rule("dbe", "ecc_dbe_volatile", warn=Level(increase_above=0.0), finding="MEM-UNCORRECTABLE"))
    start = node(gpu(1, ecc_dbe_volatile=0))
    assert ended(node(gpu(1, ecc_dbe_volatile=1)), rules, start=start).touched.verdict == "hit"
    xids = policy(rule("xid", kind="event", warn=Level(xid=(94,)), finding="XID-CONTAINED"))
    assert ended(node(), xids, events=(xid(94, 2, T0 + 600 * S),)).touched.verdict == "hit"


def test_the_same_xid_of_look_and_epilog_is_one() -> None:
    rules = policy(rule("xid", kind="event", fail=Level(xid=(79,)), finding="XID-FATAL"))
    at = T0 + 600 * S
    seen = found("XID-FATAL", uuid(2), "fail", False, field="xid", after=79, amount=1.0, at_ns=at + 2 * S)
    told = ended(node(), rules, events=(xid(79, 2, at),), earlier=(look(15, seen, since=10),)).touched
    assert told.why.count("gpu2") == len(told.minutes) == 1


# Healthy hardware counts these all the time (catalog/effects.py says why), or they count what another one counts.
ORDINARY = {
    "pcie_replay", "pcie_correctable_errors", "nvlink5_tx_packets", "nvlink5_rx_packets", "nvlink5_rx_remote_errors",
    "nvlink5_rx_general_errors", "nvlink5_tx_discards", "nvlink5_recovery_events", "nvlink5_symbol_errors", "nvlink5_link_phy_recovery",
    "nvlink5_code_errors", "nvlink5_retry_events", "rdma_symbol_errors", "rdma_rcv_remote_physical_errors", "rdma_xmit_discards",
    "rdma_packet_seq_errors", "rdma_ack_timeouts",
}  # fmt: skip


def test_every_counter_of_an_error_has_an_effect_or_is_ordinary() -> None:
    scopes = (cat.GPU, cat.LINK, cat.SWITCH_PORT, cat.RDMA)
    counters = {f.name for f in cat.ALL if f.kind == cat.COUNTER and f.scope in scopes and f.unit not in ("ns", "bytes")}
    assert counters - set(effects.OF_FIELD) == ORDINARY


@pytest.mark.parametrize(
    ("place", "field", "verdict", "effect"),
    [
        ("rdma:mlx5_0/port1", "rdma_link_downed", "suspect", effects.BROKEN),
        ("switch:0000:c1:00.0/port5", "port_replay", "suspect", effects.RESENT),
        ("switch:0000:c1:00.0/port5", "port_fatal", "hit", effects.LOST),
    ],
)
def test_counters_of_parts_touch_the_job(place: str, field: str, verdict: str, effect: str) -> None:
    before = snapshot(*node(), parts={place: {field: 0}})
    told = run("epilog", later(before, 2400.0, parts={place: {field: 1}}), policy(), before, gpus=JOB).touched
    assert told.verdict == verdict
    assert place in told.why
    assert effect in told.why


# In which minutes


def test_growth_without_a_rule_has_its_minutes_too() -> None:
    told = ended(node(replays(3, 2)), history=totals(3, (10, 0), (600, 2))).touched
    assert told.minutes == ((T0 + 570 * S, T0 + 600 * S, "gpu3 link1: replay +2"),)


def test_looks_give_the_minutes_that_no_samples_give() -> None:
    def grown(amount: int) -> Change:
        return Change(f"{uuid(3)}/link1", "nvlink_replay", 0, amount, "exact", float(amount), 300.0)

    first, second = look(3, since=-2, changes=(grown(7),)), look(8, since=3, changes=(grown(2),))
    # All of the growth lies in the second look: what the first one counted was before the job.
    (only,) = ended(node(replays(3, 2)), earlier=(first, second)).touched.minutes
    assert only == (T0 + 180 * S, T0 + 480 * S, "gpu3 link1: replay +2 (by health checks)")
    (both,) = ended(node(replays(3, 5)), earlier=(first, second)).touched.minutes
    assert both[:2] == (T0, T0 + 480 * S)


def totals(n: int, *pairs: tuple[float, Any]) -> History:
    return History(True, {uuid(n): {"nvlink_replay_total": tuple(Sample(T0 + int(s * S), value) for s, value in pairs)}})


def moments(judgement: Any) -> list[tuple[float, float, float]]:
    (finding,) = (f for f in judgement.findings if f.code == "NVL-REPLAY")
    return [((a - T0) / S, (b - T0) / S, amount) for a, b, amount in finding.evidence.moments]


def test_a_link_has_the_moments_of_its_gpus_total() -> None:
    judgement = ended(node(replays(3, 500)), policy(ANY_REPLAY), history=totals(3, (10, 0), (600, 400), (1200, 500)))
    assert moments(judgement) == [(570, 600, 400), (1170, 1200, 100)]
    assert [m[2] for m in judgement.touched.minutes] == ["gpu3 link1: replay +400", "gpu3 link1: replay +100"]


def test_a_total_that_more_than_one_link_made_places_none() -> None:
    state = with_link(replays(3, 500, total=501), 0, nvlink_replay=1, nvlink_state="up")
    judgement = ended(node(state), policy(ANY_REPLAY), history=totals(3, (10, 0), (600, 501)))
    assert {f.evidence.moments for f in judgement.findings} == {()}


def test_many_moments_become_a_few() -> None:
    trickle = totals(3, (0, 0), *((i * 100, i) for i in range(1, 21)))
    judgement = ended(node(replays(3, 20)), policy(ANY_REPLAY), history=trickle)
    found = moments(judgement)
    assert len(found) == MOST_MOMENTS
    assert sum(m[2] for m in found) == 20


@pytest.mark.parametrize("history", [None, History(False, {}), History(True, {})])
def test_without_samples_the_verdict_is_the_same_and_the_moments_unknown(history: History | None) -> None:
    judgement = ended(node(replays(3, 500)), policy(ANY_REPLAY), history=history)
    assert moments(judgement) == []
    assert [(f.code, f.verdict) for f in judgement.findings] == [("NVL-REPLAY", "fail")]
    assert judgement.decision == ended(node(replays(3, 500)), policy(ANY_REPLAY)).decision
