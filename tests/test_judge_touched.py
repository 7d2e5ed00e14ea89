"""Did a fault touch the job, and when: what a job's user is told."""

from __future__ import annotations

from typing import Any

import pytest
from build import T0, gpu, later, policy, rule, run, snapshot, uuid, with_link, xid

from slurm_nvhc.catalog import effects
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.judge.when import MOST_MOMENTS
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


# In which minutes


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
