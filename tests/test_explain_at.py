"""`nvhc explain JOB`: was it touched, when, and what is known of one minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from site_ import Site

from slurm_nvhc.cli import moment
from slurm_nvhc.cli.moment import Window
from slurm_nvhc.errors import InputError

M = 60 * 10**9
DAY = 1440 * M
T0 = 1_793_606_400 * 10**9  # 2026-11-02T08:00:00Z, where the simulated clock begins


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A job of 41 minutes with samples: a slow GPU from 08:05, replays on a link at 08:10, an Xid at 08:20, health checks."""
    site = Site(tmp_path_factory.mktemp("story"))
    assert site.hook("health_check").returncode == 0
    assert site.hook("prolog", 8812, gpus="0,1,2,3").returncode == 0
    _advance(site, 5)
    with site.edit() as world:
        world.set("g3.sm_clock", 1410)
    _advance(site, 3)
    site.hook("health_check")
    _advance(site, 2)
    with site.edit() as world:
        world.add("g3.link11.replay", 70)
    _advance(site, 8)
    site.hook("health_check")
    _advance(site, 2)
    with site.edit() as world:
        world.xid("g2", 31)
    _advance(site, 21)
    assert site.hook("epilog", 8812, gpus="0,1,2,3").returncode == 0
    return site


def _advance(site: Site, minutes: float) -> None:
    with site.edit() as world:
        world.advance(minutes * 60)


def test_the_first_line_says_whether_the_job_was_touched(story: Site) -> None:
    lines = story.nvhc("explain", "8812", code=1).splitlines()
    assert lines[0] == "job 8812"
    assert lines[1].startswith("touched: ")
    assert "gpu3 link11" in lines[1]
    document = story.nvhc_json("explain", "8812", code=1)
    assert document["touched"]["verdict"] in ("hit", "suspect")
    assert {"gpu3 link11 replay +70"} == set(document["touched"]["counters"])
    assert all("timeline" not in run for run in document["runs"])


def test_a_finding_says_in_which_minute(story: Site) -> None:
    assert "when      08:09-08:10Z (within 1 of 41 minutes)" in story.nvhc("explain", "8812", code=1)


def test_a_minute_of_a_job(story: Site) -> None:
    text = story.nvhc("explain", "8812", "--at", "08:09")
    assert "2026-11-02T08:00:00Z to 2026-11-02T08:41:00Z (UTC)" in text
    assert "gpu3 link11: replay +70" in text
    assert "1410 MHz" in text
    assert "logged    nothing" in text
    before, after = (line for line in text.splitlines() if "look  " in line)
    assert "2026-11-02T08:08:00Z  health_check" in before
    assert "2026-11-02T08:18:00Z  health_check" in after


def test_an_event_is_found_at_its_minute_and_not_elsewhere(story: Site) -> None:
    assert "gpu2: XID-APP: Xid 31" in story.nvhc("explain", "8812", "--at", "2026-11-02T08:20Z")
    other = story.nvhc("explain", "8812", "--at", "08:35")
    assert "Xid 31" not in other
    assert "grew      nothing" in other


def test_growth_that_ends_at_the_minute_asked_for_is_around_it(story: Site) -> None:
    assert "08:09-08:10Z  gpu3 link11: replay +70" in story.nvhc("explain", "8812", "--at", "08:10")
    assert "replay +70" not in story.nvhc("explain", "8812", "--at", "08:12")
    assert "replay +70" not in story.nvhc("explain", "8812", "--at", "08:07")


def test_an_event_that_health_check_and_epilog_tell_is_listed_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.hook("health_check")
    site.hook("prolog", 7)
    _advance(site, 5)
    with site.edit() as world:
        world.xid("g2", 31)
    _advance(site, 1)
    site.hook("health_check")
    _advance(site, 20)  # long after it: the epilog says when it was logged
    site.hook("epilog", 7)
    text = site.nvhc("explain", "7", "--at", "08:05")
    assert text.count("Xid 31") == 1


def test_growth_without_a_finding_has_its_minutes_in_the_first_lines(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.hook("health_check")
    site.hook("prolog", 7)
    _advance(site, 5)
    with site.edit() as world:
        world.add("g3.link11.replay", 1)
        world.add("rdma0.port1.rdma_link_downed", 1)
    _advance(site, 5)
    site.hook("health_check")
    _advance(site, 30)
    site.hook("epilog", 7)
    text = site.nvhc("explain", "7")
    assert "touched: suspect" in text
    assert "when      08:04-08:05Z (within 1 of 40 minutes)  gpu3 link11: replay +1" in text
    assert "when      08:00-08:10Z (within 10 of 40 minutes)  rdma:mlx5_0/port1: RDMA link downed +1 (by health checks)" in text
    assert "08:00-08:10Z  rdma:mlx5_0/port1: RDMA link downed +1" in site.nvhc("explain", "7", "--at", "08:03")


def test_the_same_for_programs(story: Site) -> None:
    document = story.nvhc_json("explain", "8812", "--at", "08:03")
    assert (document["schema"], document["at"]) == (1, "2026-11-02T08:03:00Z")
    clocks = [rows["sm_clock"] for rows in document["gpus"].values()]
    assert clocks == [345] * 4  # the job's GPUs, before one of them was slow
    assert document["grew"] == document["events"] == []


@pytest.mark.parametrize(
    ("what", "at", "says"),
    [
        ("8812", "07:59", "not within the job's time"),
        ("8812", "2026-11-03T08:10", "not within the job's time"),
        ("8812", "half past", "is no time"),
        ("8812", "25:00", "is no time"),
        ("8812", "2026-13-40T08:10", "is no time"),
        ("gpu3", "08:10", "is no job id"),
    ],
)
def test_a_time_that_can_not_be_told_is_one_line(story: Site, what: str, at: str, says: str) -> None:
    text = story.nvhc("explain", what, "--at", at, code=2)
    assert says in text
    assert len(text.strip().splitlines()) == 1


def test_without_samples_the_health_checks_give_bounds(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.hook("prolog", 8812)
    _advance(site, 5)
    _seen_without_samples(site)
    with site.edit() as world:
        world.advance(120)
        world.add("g3.link11.replay", 12)
        world.advance(180)
    _seen_without_samples(site)
    _advance(site, 30)
    site.hook("epilog", 8812)
    text = site.nvhc("explain", "8812", code=None)
    assert "seen      08:05-08:10Z  gpu3 link11: replay +12 (by a health check)" in text
    assert "08:05-08:10Z  gpu3 link11: replay +12" in site.nvhc("explain", "8812", "--at", "08:07")
    elsewhere = site.nvhc("explain", "8812", "--at", "08:20")
    assert "replay +12" not in elsewhere
    assert "the engine did not sample" in elsewhere


def _seen_without_samples(site: Site) -> None:
    site.hook("health_check")
    with site.edit() as world:
        world.unwatch()


def test_why_the_gpus_were_not_compared_is_said(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.hook("prolog", 7, gpus="0,1")
    _advance(site, 5)
    site.hook("epilog", 7, gpus="0,1")
    assert "peers     not compared: 2 GPUs, 4 are needed" in site.nvhc("explain", "7")


def windows(*spans: tuple[int, int]) -> list[Window]:
    return [Window(T0 + a * M, T0 + b * M, None) for a, b in spans]


@pytest.mark.parametrize(
    ("text", "known", "minute"),
    [
        ("08:00", windows((0, 41)), 0),
        ("8:40", windows((0, 41)), 40),
        ("08:41", windows((0, 41)), 41),  # the minute of the end
        ("07:59", windows((-1, 41)), -1),
        ("00:10", windows((0, 1440)), 970),  # the next day
        ("2026-11-03 00:10", windows((0, 2 * 1440)), 970),
        ("08:30Z", windows((0, 10), (20, 41)), 30),  # a requeued job: the run it lies in
    ],
)
def test_times_in_words(text: str, known: list[Window], minute: int) -> None:
    at_ns, window = moment.parse(text, known)
    assert at_ns == T0 + minute * M
    assert window.start_ns - M < at_ns <= window.end_ns


def test_a_time_of_day_that_came_twice_has_to_be_dated() -> None:
    with pytest.raises(InputError, match="came 2 times") as caught:
        moment.parse("09:00", windows((0, 1440 + 120)))
    assert "2026-11-02T09:00, 2026-11-03T09:00" in str(caught.value)


def test_a_job_that_runs_has_a_window_up_to_now() -> None:
    from slurm_nvhc.record.run import Run

    def run(hook: str, start: int, end: int, number: int) -> Any:
        return Run(hook=hook, started_ns=start, ended_ns=end, verdict="ok", id=number)

    (only,) = moment.windows([run("prolog", 10, 10, 1)])
    assert (only.start_ns, only.epilog) == (10, None)
    assert only.end_ns > 10
    first, second = moment.windows([run("prolog", 10, 10, 1), run("epilog", 10, 20, 2), run("prolog", 30, 30, 3)])
    assert (first.start_ns, first.end_ns) == (10, 20)
    assert second.start_ns == 30
    assert len(moment.windows([run("epilog", 10, 20, 2), run("prolog", 10, 10, 1)])) == 1
