"""Rows of samples: values that hold, moments of growth, and the timeline that a run keeps."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.model import series, timeline
from slurm_nvhc.model.history import MOST_SAMPLES, History, Sample
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.series import Growth, Step
from slurm_nvhc.model.times import minutes
from slurm_nvhc.record.run import pack

S = 10**9
M = 60 * S
T0 = 1_793_606_400 * S  # 2026-11-02T08:00:00Z


def rows(*pairs: tuple[int, object]) -> list[Sample]:
    """(seconds, value) as samples."""
    return [Sample(at * S, value) for at, value in pairs]  # type: ignore[arg-type]


def test_a_value_holds_until_the_next_and_the_last_one_to_the_end() -> None:
    assert list(series.steps(rows((10, 1), (20, 2)), 0, 50 * S)) == [Step(10 * S, 20 * S, 1), Step(20 * S, 50 * S, 2)]
    assert list(series.steps(rows((10, 1), (20, 2)), 15 * S, 18 * S)) == [Step(15 * S, 18 * S, 1)]
    assert list(series.steps([], 0, 50 * S)) == []


def test_growth_lies_within_one_interval_before_the_sample_that_shows_it() -> None:
    found = series.growth(rows((0, 5), (600, 505)), (0, 5), (2400 * S, 505))
    assert found == [Growth(570 * S, 600 * S, 500.0)]


def test_growth_after_the_last_sample_is_seen_by_the_reading_at_the_end() -> None:
    assert series.growth(rows((0, 5)), (0, 5), (2400 * S, 8)) == [Growth(2370 * S, 2400 * S, 3.0)]


def test_before_the_first_sample_all_that_is_known_is_the_start() -> None:
    """The watch was made in the middle of the job: what the counter shows then grew since the job began."""
    assert series.growth(rows((600, 9)), (0, 5), (2400 * S, 9)) == [Growth(0, 600 * S, 4.0)]


def test_a_gap_without_data_makes_the_moment_as_long_as_the_gap() -> None:
    found = series.growth(rows((0, 5), (60, NoData(BLANK)), (600, 7)), (0, 5), (2400 * S, 7))
    assert found == [Growth(0, 600 * S, 2.0)]


def test_a_counter_that_went_back_counted_since() -> None:
    assert series.growth(rows((0, 50), (600, 3)), (0, 50), (2400 * S, 3)) == [Growth(570 * S, 600 * S, 3.0)]


def test_without_samples_the_moment_is_not_known() -> None:
    assert series.growth([], (0, 5), (2400 * S, 50)) == []


def test_a_thinned_row_does_not_pretend_to_an_interval() -> None:
    many = rows(*((i * 100, i) for i in range(MOST_SAMPLES)))
    assert series.growth(many, (0, 0), (40_000 * S, MOST_SAMPLES - 1))[0] == Growth(0, 100 * S, 1.0)


def test_moments_that_touch_are_one_and_of_many_the_nearest_are_joined() -> None:
    touching = [Growth(0, 30, 1), Growth(30, 60, 2), Growth(90, 120, 4)]
    assert series.merged(touching, 5) == (Growth(0, 60, 3), Growth(90, 120, 4))
    apart = [Growth(0, 1, 1), Growth(100, 101, 1), Growth(110, 111, 1), Growth(500, 501, 1)]
    assert series.merged(apart, 3) == (Growth(0, 1, 1), Growth(100, 111, 2), Growth(500, 501, 1))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 300), st.integers(1, 50)), max_size=40), st.integers(1, 6))
def test_merging_loses_no_growth_and_covers_every_moment(raw: list[tuple[int, int, int]], most: int) -> None:
    moments = [Growth(at, at + length, float(amount)) for at, length, amount in raw]
    out = series.merged(moments, most)
    assert len(out) <= most
    assert sum(m.amount for m in out) == sum(m.amount for m in moments)
    assert all(any(o.from_ns <= m.from_ns and m.to_ns <= o.to_ns for o in out) for m in moments)


def test_the_median_over_time_weighs_by_time() -> None:
    assert series.lasting_median([(100.0, 10), (2000.0, 90)]) == 2000.0
    assert series.lasting_median([(100.0, 0)]) is None
    assert series.median([3.0, 1.0, 2.0]) == 2.0
    assert series.median([4.0, 1.0, 2.0, 3.0]) == 2.5
    with pytest.raises(ValueError, match="nothing"):
        series.median([])


@pytest.mark.parametrize(
    ("spans", "seconds", "text"),
    [
        ([(T0 + 8 * M, T0 + 10 * M)], 41 * 60.0, "08:08-08:10Z (within 2 of 41 minutes)"),
        ([(T0 + 8 * M + 30 * S, T0 + 9 * M + 10 * S)], None, "08:08-08:10Z"),
        ([(T0 + 8 * M, T0 + 8 * M)], None, "08:08Z"),
        ([(T0, T0 + M), (T0 + 5 * M, T0 + 6 * M)], 600.0, "08:00-08:01Z, 08:05-08:06Z (within 2 of 10 minutes)"),
        ([(T0, T0 + M)], 2 * 86400.0, "2026-11-02 08:00-08:01Z (within 1 of 2880 minutes)"),
        ([(T0 - 9 * 60 * M, T0)], None, "2026-11-01 23:00-2026-11-02 08:00Z"),
        ([], 600.0, ""),
    ],
)
def test_minutes_in_words(spans: list[tuple[int, int]], seconds: float | None, text: str) -> None:
    assert minutes(spans, seconds) == text


def history(**fields: list[Sample]) -> History:
    return History(True, {"GPU-a": {name: tuple(samples) for name, samples in fields.items()}})


def test_a_timeline_has_medians_of_gauges_and_the_growth_of_counters() -> None:
    samples = history(
        sm_clock=rows((0, 1980), (600, 1410), (1200, 1980)), nvlink_replay_total=rows((0, 0), (610, 7)), pcie_max_gen=rows((0, 5))
    )
    line = timeline.build(samples, ["GPU-a", "GPU-b"], 0, 2400 * S)
    assert line is not None
    assert line.bucket_s == 60
    assert line.gpus == {"GPU-a": {"sm_clock": ((0, 1980), (10, 1410), (20, 1980)), "nvlink_replay_total": ((10, 7),)}}
    assert line.at(615 * S) == {"GPU-a": {"sm_clock": 1410, "nvlink_replay_total": 7}}
    assert line.at(1500 * S) == {"GPU-a": {"sm_clock": 1980}}
    assert timeline.from_json(json.loads(json.dumps(timeline.to_json(line)))) == line


def test_clock_event_reasons_keep_every_reason_of_the_bucket() -> None:
    line = timeline.build(history(clock_event_reasons=rows((0, 4), (20, 0x40), (30, 4))), ["GPU-a"], 0, 120 * S)
    assert line is not None
    assert line.gpus["GPU-a"]["clock_event_reasons"] == ((0, 0x44), (1, 4))


def test_no_data_in_between_is_no_value() -> None:
    line = timeline.build(history(gpu_temp=rows((0, 60), (60, NoData(BLANK)), (180, 61))), ["GPU-a"], 0, 300 * S)
    assert line is not None
    assert line.gpus["GPU-a"]["gpu_temp"] == ((0, 60), (1, None), (3, 61))
    assert line.at(100 * S) == {"GPU-a": {"gpu_temp": None}}


def test_without_samples_there_is_no_timeline() -> None:
    assert timeline.build(History(False, {}), ["GPU-a"], 0, 2400 * S) is None
    assert timeline.build(history(), ["GPU-a"], 0, 2400 * S) is None
    assert timeline.build(history(gpu_temp=rows((0, 60))), ["GPU-a"], 5, 5) is None


@pytest.mark.parametrize("hours", [1, 24, 24 * 14])
def test_a_timeline_stays_small_whatever_the_job_was(hours: int) -> None:
    """8 GPUs of which every gauge and every counter changes in every sample: far beyond any real one."""
    dice = random.Random(hours)
    step = hours * 3600 / MOST_SAMPLES
    moments = [int(i * step * S) for i in range(MOST_SAMPLES)]
    series_ = {
        f"GPU-{n}": {
            name: tuple(
                Sample(at, dice.random() * 1000 if name in timeline.GAUGES else int((i * 3 + dice.random()) * 1e10))
                for i, at in enumerate(moments)
            )
            for name in timeline.FIELDS
        }
        for n in range(8)
    }
    line = timeline.build(History(True, series_), list(series_), 0, hours * 3600 * S)
    assert line is not None
    buckets = (line.end_ns - line.start_ns) / 1e9 / line.bucket_s
    assert buckets <= timeline.MOST_BUCKETS
    assert line.bucket_s % 60 == 0
    assert len(pack(timeline.to_json(line))) < 300 * 1024
