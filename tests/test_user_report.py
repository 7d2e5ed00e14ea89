"""The file that a job's user can read: what is in it, whose it is, and where it is refused to be written."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from site_ import Site

from slurm_nvhc.act import user_report
from slurm_nvhc.act.user_report import Span
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.suspect import HIT, Touched

S = 10**9
T0 = 1_793_606_400 * S
SPAN = Span(T0, T0 + 2460 * S)
TOUCHED = Touched(
    HIT, "gpu3 link11: data was sent again", ((T0 + 600 * S, T0 + 660 * S, "gpu3 link11: replay +7"),), ("gpu3 link11 replay +7",)
)
OTHER = 65534  # nobody


def job(job_id: str = "8812", uid: int | None = None) -> Job:
    return Job(job_id, os.geteuid() if uid is None else uid, "alice")


def write(folder: Path, the_job: Job | None = None) -> None:
    user_report.write(str(folder), "n1", the_job or job(), SPAN, TOUCHED)


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    write(folder)
    text = (folder / "8812.n1.txt").read_text()
    assert text.startswith("job 8812 on n1: hit\n")
    for words in ("why: gpu3 link11", "08:10-08:11Z (within 1 of 41 minutes)  gpu3 link11: replay +7", "gpu3 link11 replay +7", "UTC"):
        assert words in text
    document = json.loads((folder / "8812.n1.json").read_text())
    assert (document["schema"], document["job"], document["node"], document["verdict"]) == (1, "8812", "n1", "hit")
    assert (document["start_ns"], document["end_ns"]) == SPAN
    assert document["minutes"] == [[T0 + 600 * S, T0 + 660 * S, "gpu3 link11: replay +7"]]


def test_clean_does_not_promise_more_than_counters_see(tmp_path: Path) -> None:
    text = user_report.text("n1", job(), SPAN, Touched("clean", "nothing was counted"))
    assert "silence" in text


@pytest.mark.parametrize("umask", [0, 0o077])
def test_only_the_user_can_read_it_and_nobody_can_list_the_folder(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "reports"
    old = os.umask(umask)
    try:
        write(folder)
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o711
    for name in ("8812.n1.txt", "8812.n1.json"):
        assert (folder / name).stat().st_mode & 0o777 == 0o400
    assert sorted(os.listdir(folder)) == ["8812.n1.json", "8812.n1.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_it_belongs_to_the_user(tmp_path: Path) -> None:
    write(tmp_path / "reports", job(uid=OTHER))
    assert (tmp_path / "reports" / "8812.n1.txt").stat().st_uid == OTHER


@pytest.mark.skipif(os.geteuid() == 0, reason="root can give files away")
def test_without_the_right_to_give_it_away_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(MonitorError):
        write(tmp_path / "reports", job(uid=OTHER))
    assert os.listdir(tmp_path / "reports") == []


def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    """A requeued job keeps its id."""
    write(tmp_path)
    tmp_path.chmod(0o755)
    user_report.write(str(tmp_path), "n1", job(), SPAN, TOUCHED._replace(verdict="clean"))
    assert (tmp_path / "8812.n1.txt").read_text().startswith("job 8812 on n1: clean\n")


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    folder, target = tmp_path / "reports", tmp_path / "precious"
    target.write_text("keep me")
    folder.mkdir(0o755)
    (folder / "8812.n1.txt").symlink_to(target)
    (folder / f".8812.n1.txt.{os.getpid()}.new").symlink_to(target)
    write(folder)
    assert target.read_text() == "keep me"
    assert not (folder / "8812.n1.txt").is_symlink()


def test_a_link_in_the_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for folder in (tmp_path / "link", tmp_path / "link" / "reports"):
        with pytest.raises(MonitorError, match="symbolic link"):
            write(folder)
    assert os.listdir(tmp_path / "real") == []


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o757])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(MonitorError, match="written by others"):
        write(folder)
    assert os.listdir(folder) == []


def test_a_folder_below_one_that_others_can_write_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(MonitorError, match="written by others"):
        write(open_to_all / "reports")
    open_to_all.chmod(0o1777)
    write(open_to_all / "reports")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_users_own_folder_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, OTHER, -1)
    for folder in (home, home / "reports"):
        with pytest.raises(MonitorError, match="belongs to user"):
            write(folder)
    assert os.listdir(home) == []


@pytest.mark.parametrize("folder", ["/tmp/../tmp/reports", "reports", "/tmp/./reports"])
def test_a_path_that_is_not_plain_is_refused(folder: str) -> None:
    with pytest.raises(MonitorError, match="plain absolute"):
        user_report.write(folder, "n1", job(), SPAN, TOUCHED)


@pytest.mark.parametrize("bad", [job("../8812"), job("8812/x"), Job("8812", None)])
def test_a_job_without_a_number_or_a_user_has_no_report(tmp_path: Path, bad: Job) -> None:
    with pytest.raises(MonitorError):
        write(tmp_path / "reports", bad)
    assert not (tmp_path / "reports").exists()


def test_a_missing_parent_is_an_error_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match="No such file"):
        write(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []


def test_old_reports_of_this_node_go_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    write(folder)
    foreign = ["8812.n2.txt", "8812.n11.txt", "notes.n1.txt", "8812.n1.txt.bak"]
    for name in (*foreign, ".9.n1.txt.123.new"):
        (folder / name).write_text("")
    now = time.time()
    assert user_report.prune(str(folder), "n1", 7.0, now) == 0
    os.utime(folder / "8812.n1.txt", (0, 0))  # the owner can set that to anything: it is not what counts
    assert user_report.prune(str(folder), "n1", 7.0, now) == 0
    assert user_report.prune(str(folder), "n1", 7.0, now + 8 * 86400) == 3
    assert sorted(os.listdir(folder)) == sorted(foreign)


def test_pruning_makes_no_folder_and_refuses_the_same_ones(tmp_path: Path) -> None:
    assert user_report.prune(str(tmp_path / "none"), "n1", 7.0, time.time()) == 0
    assert os.listdir(tmp_path) == []
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(MonitorError, match="symbolic link"):
        user_report.prune(str(tmp_path / "link"), "n1", 7.0, time.time())


# Through the hooks


def run_job(site: Site, uid: int) -> None:
    assert site.hook("prolog", 8812, SLURM_JOB_UID=str(uid)).returncode == 0
    with site.edit() as world:
        world.advance(600)
        world.add("g3.link11.replay", 5)
    assert site.hook("epilog", 8812, SLURM_JOB_UID=str(uid)).returncode == 0


def test_an_epilog_writes_it_where_the_policy_says(tmp_path: Path) -> None:
    site = Site(tmp_path, policy={"user_report": {"dir": str(tmp_path / "reports")}})
    run_job(site, os.geteuid())
    text = (tmp_path / "reports" / "8812.n1.txt").read_text()
    assert "gpu3 link11 replay +5" in text
    assert site.last("epilog").outcome["troubles"] == []


def test_without_a_folder_in_the_policy_nothing_is_written(tmp_path: Path) -> None:
    site = Site(tmp_path)
    before = set(os.listdir(tmp_path))
    run_job(site, os.geteuid())
    assert set(os.listdir(tmp_path)) - before <= {"state", "run", "world.json.lock", "scontrol.calls"}


def test_a_report_that_can_not_be_written_is_trouble_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    rules = {"replay": {"field": "nvlink_replay", "fail": {"increase_above": 0}, "action": "drain"}}
    site = Site(tmp_path, policy={"user_report": {"dir": str(tmp_path / "link")}, "rules": rules})
    drained = site.slurm()
    run_job(site, os.geteuid())
    run = site.last("epilog")
    assert drained.exists()
    assert run.verdict == "fail"
    assert [t["code"] for t in run.outcome["troubles"]] == ["MON-REPORT"]
    assert "symbolic link" in run.outcome["troubles"][0]["detail"]
