"""Growth beyond chance: by time, by traffic, by the counter's own past; and what the first policy makes of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from build import T0, gpu, later, policy, rule, run, snapshot, uuid, with_link

from slurm_nvhc.cli import show
from slurm_nvhc.judge import chance, rates
from slurm_nvhc.judge.memory import Notes
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Evidence
from slurm_nvhc.model.history import History, Sample
from slurm_nvhc.model.reading import NOT_SUPPORTED, NoData
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import FalseAlarms, Level, Poisson, Policy, resolve

HOUR = 3600.0
NULL = Poisson(0.001 / HOUR)
ALPHA = FalseAlarms().alpha
LINK1 = f"{uuid(1)}/link0"


def judged(before: Snapshot, now: Snapshot, level: Level, *fields: str, verdict: str = "warn", **more: Any):
    """The finding of one rule after a job on GPU 1, or None."""
    rules = policy(rule("r", *fields, **{verdict: level}))
    found = run("epilog", now, rules, before, gpus=(1,), **more)
    assert len(found.findings) <= 1
    return found.findings[0] if found.findings else None


def replays(count: float, hours: float):
    """After a job of so many hours in which link 0 of GPU 1 had to resend so often."""
    before = snapshot(gpu(1))
    now = later(before, hours * HOUR, with_link(gpu(1), 0, nvlink_replay=count))
    return judged(before, now, Level(poisson=NULL), "nvlink_replay")


@pytest.mark.parametrize(("hours", "enough"), [(1, 3), (8, 4), (24, 5), (96, 7), (240, 8)])
def test_what_is_too_much_follows_from_the_length_of_the_job(hours: float, enough: int) -> None:
    assert replays(enough - 1, hours) is None
    found = replays(enough, hours)
    assert found is not None
    assert found.evidence.expected == pytest.approx(0.001 * hours)
    assert found.evidence.chance == pytest.approx(chance.tail(enough, 0.001 * hours))
    assert found.evidence.chance <= ALPHA


def test_a_window_of_no_time_has_no_rate_and_a_short_one_is_a_second() -> None:
    assert replays(1, 0) is None
    assert replays(1000, 0) is None
    assert replays(1, 1e-6 / HOUR) is None
    assert replays(2, 1e-6 / HOUR) is not None


def test_the_budget_is_the_policys() -> None:
    small = FalseAlarms(per_day=0.1, nodes=10, tests=10_000)
    before = snapshot(gpu(1))
    now = later(before, HOUR, with_link(gpu(1), 0, nvlink_replay=2))
    found = run("epilog", now, policy(rule("r", "nvlink_replay", warn=Level(poisson=NULL)), false_alarms=small), before, gpus=(1,))
    assert [f.evidence.amount for f in found.findings] == [2.0]


def test_a_lower_bound_after_a_reset_warns_at_most() -> None:
    before = snapshot(with_link(gpu(1), 0, nvlink_replay=900))
    now = later(before, HOUR, with_link(gpu(1), 0, nvlink_replay=50))
    rules = policy(rule("r", "nvlink_replay", fail=Level(poisson=NULL)))
    found = [f for f in run("epilog", now, rules, before, gpus=(1,)).findings if f.code == "SITE-RULE"]
    assert [(f.verdict, f.evidence.bound, f.evidence.amount) for f in found] == [("warn", "at_least", 50.0)]


def test_a_total_is_held_against_all_its_links() -> None:
    """18 healthy links show 18 times what one does; where the links are not known either, a GPU has that many."""
    for links in (0, 18):
        before = snapshot(gpu(1, links=links))
        for count, holds in ((4, False), (5, True)):  # of one link alone, 4 in 8 hours are too much
            now = later(before, 8 * HOUR, gpu(1, links=links, nvlink_replay_total=count))
            assert (judged(before, now, Level(poisson=NULL), "nvlink_replay_total") is not None) is (chance.tail(count, 0.144) <= ALPHA)
            assert holds or chance.tail(count, 0.144) > ALPHA


def test_what_was_reckoned_with_is_shown() -> None:
    assert show.normal(replays(3, 1).evidence) == "0.001 in that time; as much or more by chance alone: 1.7e-10"
    assert show.normal(Evidence(amount=3.0)) == ""


# Traffic

BER = Poisson(720 / HOUR, ber=1e-12)
LINE_RATE_MBS = 25_000.0


def crc(count: float, hours: float, level: Level, history: History | None = None, links: int = 2) -> Any:
    before = snapshot(with_link(gpu(1, links=links), 0, nvlink_crc_flit=0))
    now = later(before, hours * HOUR, with_link(gpu(1, links=links), 0, nvlink_crc_flit=count))
    return judged(before, now, level, "nvlink_crc_flit", history=history)


def sampled(mbs: float, start_s: float = 0.0, watched: bool = True, **more: Any) -> History:
    return History(watched, {uuid(1): {"nvlink_throughput": (Sample(T0 + int(start_s * 1e9), mbs),)}}, **more)


def test_traffic_takes_the_place_of_time() -> None:
    """Two links at full rate in both directions: each received 9e13 bytes an hour, 720 errors at 1e-12."""
    full = crc(2000, 1, Level(poisson=BER), sampled(2 * 2 * LINE_RATE_MBS))
    assert full.evidence.expected == pytest.approx(720, rel=1e-6)
    tenth = crc(2000, 1, Level(poisson=BER), sampled(0.2 * 2 * LINE_RATE_MBS))
    assert tenth.evidence.expected == pytest.approx(72, rel=1e-6)
    assert crc(150, 1, Level(poisson=BER)) is None  # not known: the most that a link can move
    assert crc(150, 1, Level(poisson=BER), sampled(0.2 * 2 * LINE_RATE_MBS)) is not None


def test_an_idle_link_has_some_traffic_that_nobody_counts() -> None:
    assert crc(2, 1, Level(poisson=BER), sampled(0.0)) is None
    assert crc(20, 1, Level(poisson=BER), sampled(0.0)).evidence.expected == pytest.approx(0.72)


@pytest.mark.parametrize(
    "history",
    [
        sampled(1.0, watched=False),
        sampled(1.0, start_s=600),  # the engine began to sample in the middle
        History(True, {}),
        History(True, {uuid(1): {"nvlink_throughput": (Sample(T0, 1.0), Sample(T0 + 10**9, NoData(NOT_SUPPORTED)))}}),
        None,
    ],
)
def test_traffic_that_is_not_known_for_the_whole_window_is_not_known(history: History | None) -> None:
    assert crc(2000, 1, Level(poisson=BER), history).evidence.expected == pytest.approx(720)


def test_nvlink_5_counts_bytes_by_direction() -> None:
    """What the receiving end counts is held against what was received, the transmitting end's against what was sent."""

    def after(**readings: Any) -> Any:
        zero = {name: 0 for name in readings}
        before = snapshot(gpu(1, links=4, model="NVIDIA B200", nvlink5_rx_bytes=10**6, nvlink5_tx_bytes=10**6, **zero))
        grown = {"nvlink5_rx_bytes": 10**6 + 10**15, "nvlink5_tx_bytes": 10**6 + 10**14}
        now = later(before, HOUR, gpu(1, links=4, model="NVIDIA B200", **grown, **readings))
        return judged(before, now, Level(poisson=Poisson(1.0, ber=1e-12)), *readings)

    assert after(nvlink5_rx_errors=10**6).evidence.expected == pytest.approx(8000)
    assert after(nvlink5_recovery_successful=10**6).evidence.expected == pytest.approx(800)


@pytest.mark.parametrize(
    ("field", "expected"), [("nvlink5_retry_events", 200), ("nvlink5_link_recovery", 200), ("nvlink5_code_errors", 2000)]
)
def test_nvlink_5_links_too(field: str, expected: float) -> None:
    """Of 800 Tbit sent and 8000 Tbit received by four links, a quarter went over each."""

    def node(n: int) -> Any:
        traffic = {"nvlink5_tx_bytes": 10**6 + n * 10**14, "nvlink5_rx_bytes": 10**6 + n * 10**15}
        return with_link(gpu(1, links=4, model="NVIDIA B200", **traffic), 0, **{field: n * 10**6})

    before = snapshot(node(0))
    found = judged(before, later(before, HOUR, node(1)), Level(poisson=Poisson(1.0, ber=1e-12)), field)
    assert found.evidence.expected == pytest.approx(expected)


# The counter's own past

OWN = Poisson(1 / HOUR, own_per_s=100.0)


def past(count: float, seconds: float) -> dict[str, Any]:
    """What earlier looks have seen of link 0's CRC errors."""
    return {"past": {f"nvlink_crc_flit|{LINK1}": [count, seconds]}}


def own(count: float, hours: float, memory: dict[str, Any], level: Poisson = OWN) -> Any:
    """The job's own growth has been gathered as well by the time it is judged: by this look, or by health checks within it."""
    before = snapshot(with_link(gpu(1), 0, nvlink_crc_flit=0))
    now = later(before, hours * HOUR, with_link(gpu(1), 0, nvlink_crc_flit=count))
    growth = Change(LINK1, "nvlink_crc_flit", 0, count, "exact", float(count), hours * HOUR)
    return judged(before, now, Level(poisson=level), "nvlink_crc_flit", memory=memory, since_look=(growth,))


def test_a_noisy_counter_is_held_against_its_own_past() -> None:
    noisy = past(100 * 240, 240 * HOUR)  # a hundred an hour for ten days
    assert own(120, 1, past(0, 0)) is not None
    assert own(120, 1, noisy) is None
    found = own(300, 1, noisy)
    assert found.evidence.expected == pytest.approx(100)


def test_the_window_does_not_excuse_itself() -> None:
    """Its own growth is no past, else a counter that runs away would call that normal."""
    assert own(5000, 1, past(1, 24 * HOUR)).evidence.expected < 1.01


def test_the_past_raises_what_is_normal_up_to_a_limit_and_never_lowers_it() -> None:
    assert own(500_000, 1, past(1e9, 240 * HOUR)).evidence.expected == pytest.approx(100 * HOUR)
    assert own(20, 1, past(1, 720 * HOUR)).evidence.expected == pytest.approx(1.0)


def test_a_past_of_minutes_says_nothing_yet() -> None:
    assert own(20, 1, past(1, 600)).evidence.expected == pytest.approx(1.0)


def test_the_past_begins_with_the_first_error_and_fades() -> None:
    notes = Notes({}, T0, "boot-1")
    notes.add_past("c", 0, 60, 1000)
    assert notes.memory()["past"] == {}  # most counters never have any
    notes.add_past("c", 7, 60, 1000)
    notes.add_past("c", 3, 100, 1000)
    assert notes.past("c") == (3.0, 100.0)
    notes.add_past("c", 0, 1900, 1000)
    assert notes.past("c") == (1.5, 1000.0)
    quiet = Notes({"past": {"c": [0, 900]}}, T0, "boot-1")
    quiet.add_past("c", 0, 200, 1000)
    assert quiet.memory()["past"] == {}


@pytest.mark.parametrize("normal", [0.05, 0.7, 5.0, 60.0, 900.0])
@pytest.mark.parametrize("windows", [1, 3, 30])
def test_a_past_that_was_lucky_does_not_break_the_budget(normal: float, windows: int) -> None:
    """Over all pasts that a counter of a steady rate may have had, its window alarms less often than alpha.

    Holding the window against the past's own rate, or an upper bound of it, would not keep to it (Heidema 2026).
    """
    poisson, alpha, mean = Poisson(1e-12, own_per_s=1e9), 1e-6, normal * windows
    total = 0.0
    for count in range(1, math.ceil(mean + 9 * math.sqrt(mean) + 9)):
        weight = chance.tail(count, mean) - chance.tail(count + 1, mean)
        if weight > 1e-12:
            known = rates.Normal(alpha, past_count=count, past_s=windows * HOUR)
            low, high = 0, 100 + 20 * count  # the smallest count of the window that alarms
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if rates.answer(poisson, middle, HOUR, known).chance <= alpha else (middle, high)
            total += weight * chance.tail(high, normal)
    assert 0 < total <= alpha


# The packaged policy


def packaged() -> Policy:
    return resolve(compile_policy(None, ""))


def test_the_link_that_recovered_8_6_times_an_hour_is_flagged_within_a_job_of_an_hour() -> None:
    """P >= 0.99, by the exact chances of each count and the judge's answer to it; and a healthy link keeps to the budget."""
    rules = packaged()
    before = snapshot(with_link(gpu(1), 0, nvlink_recovery=505))
    flagged, false = 0.0, 0.0
    for count in range(40):
        now = later(before, HOUR, with_link(gpu(1), 0, nvlink_recovery=505 + count))
        codes = {f.code for f in run("epilog", now, rules, before, gpus=(1,)).findings if f.entity == LINK1}
        assert codes <= {"NVL-RECOVERY"}
        if codes:
            flagged += chance.tail(count, 8.6) - chance.tail(count + 1, 8.6)
            false += chance.tail(count, 0.001) - chance.tail(count + 1, 0.001)
    assert flagged >= 0.99
    assert false <= ALPHA


def test_three_errors_in_ten_days_are_no_fail() -> None:
    rules = packaged()
    memory: Any = {}
    for job in range(5):
        before = snapshot(gpu(1))
        now = later(before, 10 * 86400, with_link(gpu(1), 0, nvlink_replay=3))
        found = run("epilog", now, rules, before, gpus=(1,), memory=memory, key=f"job{job}")
        memory = found.memory
        assert [(f.code, f.verdict) for f in found.findings if f.entity == LINK1] == [("NVL-REPLAY", "warn")]


def test_twice_in_five_jobs_is_a_fail() -> None:
    rules, memory, seen = packaged(), {}, []
    for job, count in enumerate((4, 0, 0, 3)):
        before = snapshot(gpu(1))
        now = later(before, HOUR, with_link(gpu(1), 0, nvlink_replay=count))
        found = run("epilog", now, rules, before, gpus=(1,), memory=memory, key=f"job{job}")
        memory = found.memory
        seen.append([f.verdict for f in found.findings if f.entity == LINK1])
    assert seen == [["warn"], [], [], ["fail"]]
