"""The GPUs of one job beside each other: who stands out, and who must not."""

from __future__ import annotations

from typing import Any

import pytest
from build import MINUTE_NS, T0, gpu, later, policy, rule, run, snapshot, uuid
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.errors import InputError
from slurm_nvhc.judge import Input, Window, peers
from slurm_nvhc.judge.peers import Standing, stands_out
from slurm_nvhc.model import series
from slurm_nvhc.model.history import History, Sample
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Level, Peers

HOUR_S = 3600.0
SLOW = Level(peers=Peers("below", 0.15, True))
ALL = tuple(range(8))


def row(*pairs: tuple[float, Any]) -> tuple[Sample, ...]:
    """(minute of the job, value) as samples."""
    return tuple(Sample(T0 + int(minute * MINUTE_NS), value) for minute, value in pairs)


def busy(clock: Any = 1980, **more: Any) -> dict[str, tuple[Sample, ...]]:
    rows: dict[str, Any] = {"gpu_util": 100, "sm_clock": clock, **more}
    return {name: value if isinstance(value, tuple) else row((0, value)) for name, value in rows.items() if value is not None}


def history(**changed: dict[str, tuple[Sample, ...]]) -> History:
    """Eight busy GPUs, but for those given as g3=…."""
    return History(True, {uuid(n): changed.get(f"g{n}", busy()) for n in ALL})


def judged(samples: History | None, level: Level = SLOW, field: str = "sm_clock", gpus: tuple[int, ...] = ALL, **more: Any) -> Any:
    states = more.pop("states", None) or [gpu(n, sm_clock=345, power_limit_enforced=700.0) for n in ALL]
    before = snapshot(*more.pop("start", states))
    now = later(before, HOUR_S, *states)
    return run("epilog", now, policy(rule("r", field, warn=level)), before, gpus=gpus, history=samples, **more)


def odd(judgement: Any) -> set[int]:
    """Numbers of the GPUs that were found to stand out."""
    assert all(f.verdict == "warn" for f in judgement.findings)
    return {f.gpu["nvml_index"] for f in judgement.findings}


def test_the_slow_one_of_eight_is_named_with_its_figures() -> None:
    judgement = judged(history(g3=busy(1410)))
    assert odd(judgement) == {3}
    (finding,) = judgement.findings
    assert finding.message == "SM clock 1410 MHz over the job, median of its 8 GPUs 1980 MHz"
    assert (finding.evidence.before, finding.evidence.after, finding.evidence.limit) == (None, 1410, 1980)
    assert not finding.absolute
    assert judgement.not_compared == ""


def test_two_of_eight_can_both_stand_out() -> None:
    assert odd(judged(history(g3=busy(1410), g6=busy(1200)))) == {3, 6}


def test_a_difference_below_the_amount_is_none() -> None:
    """Identical siblings have a deviation of 0: a single MHz would be beyond any multiple of it."""
    assert odd(judged(history(g3=busy(1979)))) == set()
    assert odd(judged(history(g3=busy(1700)))) == set()
    assert odd(judged(history(g3=busy(1683)))) == {3}


def test_siblings_that_differ_among_themselves_have_no_odd_one() -> None:
    clocks = (1980, 1900, 1700, 1500, 1400, 1300, 1950, 1600)
    spread = history(**{f"g{n}": busy(clock) for n, clock in enumerate(clocks)})
    assert odd(judged(spread)) == set()


def test_half_of_the_gpus_slower_than_the_other_half_are_no_stragglers() -> None:
    assert odd(judged(history(**{f"g{n}": busy(1200) for n in (0, 1, 2, 3)}))) == set()


def test_a_short_dip_does_not_make_a_straggler() -> None:
    assert odd(judged(history(g3=busy(row((0, 1980), (10, 300), (30, 1980)))))) == set()
    assert odd(judged(history(g3=busy(row((0, 1980), (10, 300), (50, 1980)))))) == {3}


def test_only_the_time_counts_in_which_the_gpu_worked() -> None:
    """Idle clocks before and after the work are no slowness: this one's data came late."""
    late = {"gpu_util": row((0, 0), (10, 100), (55, 0)), "sm_clock": row((0, 345), (10, 1980), (55, 345))}
    assert odd(judged(history(g3=late))) == set()


def test_samples_are_gone_through_once_however_often_the_gpu_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    plain = series.steps

    def steps(samples: Any, start_ns: int, end_ns: int) -> Any:
        passes.append(len(samples))
        return plain(samples, start_ns, end_ns)

    def made(pauses: int) -> int:
        passes.clear()
        load = row(*((n / 4, 100 if n % 2 else 0) for n in range(2 * pauses)))
        clocks = row(*((n / 4 + 0.1, 1980 if n % 2 else 345) for n in range(2 * pauses)))
        monkeypatch.setattr(peers.series, "steps", steps)
        judged(History(True, {uuid(n): busy(clocks, gpu_util=load) for n in ALL}))
        return sum(1 for length in passes if length == 2 * pauses)

    assert made(40) == made(100)


def test_a_sample_counts_for_what_of_it_lies_in_spans_of_work() -> None:
    """One long sample over two spans of work, and a short one within the second."""
    clocks = row((0, 1980), (41, 1000))
    load = row((0, 100), (10, 0), (30, 100), (59, 0))
    samples = History(True, {uuid(n): busy(clocks, gpu_util=load) for n in ALL})
    window = Window("job", "k", T0, T0 + 60 * MINUTE_NS, HOUR_S, "")
    inp = Input("epilog", later(snapshot(gpu(0)), HOUR_S), None, (), window, policy(), history=samples)
    work = peers._work(inp, uuid(0))
    assert [((a - T0) // MINUTE_NS, (b - T0) // MINUTE_NS) for a, b in work.times] == [(0, 10), (30, 59)]
    assert peers._over_work(inp, uuid(0), "sm_clock", work) == 1980  # 21 of 39 minutes
    fewer = work._replace(times=((T0, T0 + 4 * MINUTE_NS), work.times[1]))
    assert peers._over_work(inp, uuid(0), "sm_clock", fewer) == 1000  # 15 of 33 minutes


def test_gpus_that_the_job_left_idle_are_no_siblings() -> None:
    idle = {"gpu_util": row((0, 0)), "sm_clock": row((0, 345))}
    assert odd(judged(history(**{f"g{n}": idle for n in (4, 5, 6, 7)}))) == set()
    assert odd(judged(history(g3=busy(1200), **{f"g{n}": idle for n in (4, 5, 6, 7)}))) == {3}


def test_a_gpu_that_worked_much_less_than_the_others_is_not_compared() -> None:
    level = Level(peers=Peers("below", 0.5, True))
    little = busy(gpu_util=row((0, 100), (20, 0)), power_usage=row((0, 200), (20, 80)))
    rest = {f"g{n}": busy(power_usage=650) for n in ALL if n != 3}
    assert odd(judged(history(g3=little, **rest), level, "power_usage")) == set()
    much = busy(power_usage=200)
    assert odd(judged(history(g3=much, **rest), level, "power_usage")) == {3}


@pytest.mark.parametrize(
    "load",
    [
        {"gpu_util": None, "clock_event_reasons": 4},  # the idle bit, where nobody sampled utilisation
        {"gpu_util": None, "power_usage": 650},  # power, where neither is known
        {"gpu_util": row((0, NoData(BLANK))), "clock_event_reasons": 0},
    ],
)
def test_load_is_told_by_what_is_known(load: dict[str, Any]) -> None:
    samples = History(True, {uuid(n): busy(1410 if n == 3 else 1980, **load) for n in ALL})
    assert odd(judged(samples)) == {3}


@pytest.mark.parametrize(
    ("load", "why"),
    [
        ({"gpu_util": None, "clock_event_reasons": 1}, "no GPU worked"),
        ({"gpu_util": None, "power_usage": 100}, "no GPU worked"),
        ({"gpu_util": None}, "no GPU worked"),
        ({"gpu_util": row((0, 100), (1, 0))}, "no GPU worked"),  # a minute is no load
    ],
)
def test_nobody_who_worked_is_no_answer(load: dict[str, Any], why: str) -> None:
    judgement = judged(History(True, {uuid(n): busy(1410 if n == 3 else 1980, **load) for n in ALL}))
    assert judgement.findings == ()
    assert why in judgement.not_compared


def test_fewer_than_four_gpus_are_not_compared_and_it_is_said() -> None:
    judgement = judged(history(g1=busy(900)), gpus=(0, 1, 2))
    assert judgement.findings == ()
    assert judgement.not_compared == "3 GPUs, 4 are needed"
    assert odd(judged(history(g1=busy(900)), gpus=(0, 1, 2, 3))) == {1}


def test_without_samples_there_is_no_answer_and_no_lack_of_data() -> None:
    """A site without the watch, or a reading without data, must not make every job's end unknown."""
    blind = [gpu(n, sm_clock=NoData(BLANK)) for n in ALL]
    hung = Trouble("MON-ENGINE-HUNG", "engine", "no answer within 5 s")
    for samples, why in (
        (None, "not asked"), (History(False, {}), "did not sample"), (History(False, {}, (hung,)), "no answer within 5 s"),
    ):  # fmt: skip
        judgement = judged(samples, states=blind)
        assert judgement.findings == ()
        assert why in judgement.not_compared


def test_other_models_and_mig_are_no_siblings() -> None:
    states = [gpu(n, model="NVIDIA A100-SXM4-80GB" if n < 4 else "NVIDIA H100 80GB HBM3") for n in ALL]
    mixed = history(**{f"g{n}": busy(1410) for n in (0, 1, 2, 3)})
    assert odd(judged(mixed, states=states)) == set()
    assert odd(judged(history(**{f"g{n}": busy(1410) for n in (0, 2, 3)}, g1=busy(900)), states=states)) == {1}
    mig = [s._replace(identity=s.identity._replace(mig=n == 3)) for n, s in enumerate(gpu(n) for n in ALL)]
    assert odd(judged(history(g3=busy(900)), states=mig)) == set()


def test_a_gpu_without_the_reading_is_left_out_and_the_others_compared() -> None:
    assert odd(judged(history(g0=busy(None), g3=busy(1410)))) == {3}
    few = {f"g{n}": busy(None) for n in (0, 1, 2, 4, 5)}
    assert odd(judged(history(**few, g3=busy(1410)))) == set()


def test_heat_stands_out_upwards_and_cold_does_not() -> None:
    level = Level(peers=Peers("above", 15.0))
    rest = {f"g{n}": busy(gpu_temp=62) for n in ALL if n != 3}
    assert odd(judged(history(g3=busy(gpu_temp=78), **rest), level, "gpu_temp")) == {3}
    assert odd(judged(history(g3=busy(gpu_temp=76), **rest), level, "gpu_temp")) == set()
    assert odd(judged(history(g3=busy(gpu_temp=30), **rest), level, "gpu_temp")) == set()


def test_counters_are_compared_by_their_growth_and_time_counters_by_their_share() -> None:
    level = Level(peers=Peers("above", 0.05, True))
    start = [gpu(n, hw_thermal_slowdown_ns=0) for n in ALL]

    def after(seconds: float) -> list[Any]:
        return [gpu(n, hw_thermal_slowdown_ns=int(seconds * 1e9) if n == 3 else 0) for n in ALL]

    judgement = judged(history(), level, "hw_thermal_slowdown_ns", start=start, states=after(200.0))
    assert odd(judgement) == {3}
    assert "5.56 % over the job, median of its 8 GPUs 0 %" in judgement.findings[0].message
    assert odd(judged(history(), level, "hw_thermal_slowdown_ns", start=start, states=after(170.0))) == set()


def test_a_counter_that_was_reset_is_not_compared() -> None:
    level = Level(peers=Peers("above", 100.0))
    start = [gpu(n, pcie_replay=5000 if n == 3 else 0) for n in ALL]
    after = [gpu(n, pcie_replay=900 if n == 3 else 0) for n in ALL]
    judgement = judged(history(), level, "pcie_replay", start=start, states=after)
    assert {f.code for f in judgement.findings} == {"COUNTER-RESET"}
    grown = judged(history(), level, "pcie_replay", start=[gpu(n, pcie_replay=0) for n in ALL], states=after)
    assert odd(grown) == {3}
    assert "PCIe replay +900 over the job, median of its 8 GPUs +0" in grown.findings[0].message


def test_a_reading_of_samples_only_needs_no_live_one() -> None:
    level = Level(peers=Peers("below", 0.3, True))
    rest = {f"g{n}": busy(nvlink_throughput=200_000) for n in ALL if n != 3}
    assert odd(judged(history(g3=busy(nvlink_throughput=90_000), **rest), level, "nvlink_throughput")) == {3}


def test_it_returns_over_jobs_before_it_counts() -> None:
    level = SLOW._replace(hits=3, of_last=5)
    memory: dict[str, Any] = {}
    seen = []
    for number, slow in enumerate((True, False, True, False, True, True)):
        judgement = judged(history(g3=busy(1410 if slow else 1980)), level, key=f"job{number}", memory=memory)
        memory = dict(judgement.memory)
        seen.append(odd(judgement))
    assert seen == [set(), set(), set(), set(), {3}, {3}]


@pytest.mark.parametrize("hook", ["prolog", "health_check"])
def test_only_the_end_of_a_job_compares(hook: str) -> None:
    before = snapshot(*(gpu(n) for n in ALL))
    now = later(before, HOUR_S)
    rules = policy(rule("r", "sm_clock", warn=SLOW))
    judgement = run(hook, now, rules, before, gpus=ALL if hook == "prolog" else None, history=history(g3=busy(900)))
    assert judgement.findings == ()


@given(st.lists(st.integers(0, 3000), min_size=8, max_size=8), st.integers(0, 7))
def test_whoever_stands_out_is_beyond_amount_and_deviation(clocks: list[int], who: int) -> None:
    judgement = judged(history(**{f"g{n}": busy(clock) for n, clock in enumerate(clocks)}))
    middle = sorted(clocks)
    median = (middle[3] + middle[4]) / 2
    assert odd(judgement) <= {n for n, clock in enumerate(clocks) if clock <= 0.85 * median}
    assert len(odd(judgement)) < 4  # half of them can not be odd
    assert (who in odd(judgement)) <= (clocks[who] < median)


@given(
    st.floats(0, 1e6, allow_nan=False),
    st.floats(0, 1e6, allow_nan=False),
    st.floats(0, 1e3, allow_nan=False),
    st.sampled_from(["above", "below"]),
)
def test_nobody_is_odd_on_both_sides(own: float, median: float, mad: float, side: str) -> None:
    standing = Standing(own, median, mad, 8, 600.0)
    other = "below" if side == "above" else "above"
    if stands_out(Peers(side, 0.1, True), standing, "sm_clock"):
        assert not stands_out(Peers(other, 0.1, True), standing, "sm_clock")
        assert not stands_out(Peers(side, 0.1, True), standing._replace(own=median), "sm_clock")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{field: sm_clock, fail: {peers: {below: 15%}}, action: drain}", "peers can warn only"),
        ("{field: nvlink_throughput, warn: {value_below: 5}}", "no value of this moment"),
        ("{field: nvlink_replay, warn: {peers: {above: 5}}}", "peers compares numbers of GPUs"),
    ],
)
def test_a_policy_that_asks_what_can_not_be_asked_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        compile_policy(f"schema: 1\nrules:\n  r: {text}\n", "policy")
