"""The hooks as processes: environment in, ledger and exit code out."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from site_ import Site

from slurm_nvhc import pipeline
from slurm_nvhc.context import Site as Places
from slurm_nvhc.sense.sim.world import World

HEAVY = (
    "argparse", "asyncio", "ctypes", "dataclasses", "email", "http", "inspect", "jinja2", "logging", "msgspec", "pathlib",
    "rich", "shutil", "subprocess", "tempfile", "unittest", "urllib", "yaml",
)  # fmt: skip

DRAINS = {"rules": {"nvl_storm": {"mode": "enforce"}}}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_healthy_hooks_import_light_modules_only_and_call_nothing(site: Site):
    site.hook("prolog", 1)  # compiles the policy; from now on it is loaded compiled
    listing = (
        "import sys, runpy, atexit, json\n"
        "atexit.register(lambda: print(json.dumps(sorted(m.partition('.')[0] for m in sys.modules))))\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module('slurm_nvhc.hooks', run_name='__main__', alter_sys=True)\n"
    )
    for hook in ("prolog", "epilog", "health_check"):
        arguments = site.arguments(hook)
        command = [sys.executable, "-I", "-c", listing, *arguments[3:]]
        done = site.run(command, site.environment(2))
        loaded = set(json.loads(done.stdout)) - {"runpy", "importlib", "pkgutil"}
        assert not loaded & set(HEAVY), (hook, sorted(loaded & set(HEAVY)))
    assert site.last("epilog").verdict == "ok"
    assert site.calls() == []


def test_the_main_job(site: Site):
    site.write_policy(DRAINS)
    site.slurm()
    assert site.hook("prolog", 8812).returncode == 0
    with site.edit() as world:
        world.storm("g3.link11", "replay", 21200, 2460)
    assert site.hook("epilog", 8812).returncode == 0
    run = site.last("epilog")
    assert run.verdict == "fail"
    assert [d["kind"] for d in run.outcome["done"] if d["ok"]] == ["drain"]
    update = [c for c in site.calls() if c.startswith("update")]
    assert len(update) == 1
    for part in ("nvhc: NVL-STORM gpu3", "0000:4b:00.0", "link11", "replay", "+21200", "41m", "job 8812"):
        assert part in update[0]
    assert "state=drain" in update[0].lower()


def test_a_fault_at_prolog_fails_on_purpose_once_the_node_is_drained(site: Site):
    with site.edit() as world:
        world.set("g1.395", 1)
    refused = site.hook("prolog", 1)
    assert refused.returncode == 0, "without a drain in place, failing would leave an anonymous Prolog error"
    with site.ledger() as ledger:
        assert len(ledger.intents()) == 1
    site.slurm()
    assert site.hook("prolog", 2).returncode == 97
    assert site.hook("prolog", 3, gpus="4,5").returncode == 0, "a job without the bad GPU runs"


def test_many_hooks_at_once(site: Site):
    site.hook("prolog", 1)
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda n: site.hook("prolog", 100 + n, gpus=str(n % 8)).returncode, range(16)))
        codes += list(pool.map(lambda n: site.hook("epilog", 100 + n, gpus=str(n % 8)).returncode, range(16)))
    assert set(codes) == {0}
    with site.ledger() as ledger:
        jobs = {r.job_id: r.verdict for r in ledger.recent_runs(200) if r.hook == "epilog"}
    assert jobs == {str(100 + n): "ok" for n in range(16)}


@pytest.mark.parametrize(
    "more",
    [
        {"SLURM_JOB_ID": ""},
        {"SLURM_JOB_ID": "x" * 100_000},
        {"SLURM_JOB_GPUS": "one,two"},
        {"SLURM_JOB_GPUS": "0-999999999"},
        {"SLURM_JOB_GPUS": ","},
        {"SLURM_JOB_USER": "al\nice\x1b[31m"},
        {"SLURM_JOB_USER": "\udcff\udcfe"},
        {"SLURM_JOB_UID": "-1"},
        {"SLURMD_NODENAME": "../../etc"},
        {"SLURMD_NODENAME": ""},
        {"SLURM_JOB_PARTITION": "p" * 5000},
        {"SLURM_CONF": "/nonexistent/slurm.conf"},
        {"CUDA_VISIBLE_DEVICES": "GPU-\x00"[:4]},
    ],
)
def test_hostile_environments(site: Site, more: dict[str, str]):
    for hook in ("prolog", "epilog"):
        done = site.hook(hook, 7, **more)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert site.calls() == []


def test_nothing_in_the_environment(site: Site):
    for hook in ("prolog", "epilog", "health_check"):
        done = site.run(site.arguments(hook), {})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("arguments", [[], ["prolog"], ["nonsense", "--config", "x"], ["prolog", "--state"], ["prolog", "--what", "x"]])
def test_wrong_arguments_never_fail_a_job(arguments: list[str]):
    done = subprocess.run([sys.executable, "-I", "-m", "slurm_nvhc.hooks", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_epilog_without_prolog_and_a_job_without_gpus(site: Site):
    site.hook("epilog", 5)
    run = site.last("epilog")
    assert (run.verdict, [f.code for f in run.findings]) == ("unknown", ["NO-BASELINE"])
    environment = site.environment(6)
    del environment["SLURM_JOB_GPUS"], environment["CUDA_VISIBLE_DEVICES"]
    for hook in ("prolog", "epilog"):
        assert site.run(site.arguments(hook), environment).returncode == 0
    assert site.last("epilog").verdict == "ok"


def test_a_requeued_job_is_compared_with_its_own_start(site: Site):
    """Restart counts differ between a run's prolog and epilog; the newest unfinished prolog counts."""
    site.hook("prolog", 9, SLURM_JOB_RESTART_COUNT="0")
    with site.edit() as world:
        world.add("g0.link1.replay", 50)
    site.hook("epilog", 9, SLURM_JOB_RESTART_COUNT="1")
    assert site.last("epilog").verdict != "ok"
    site.hook("prolog", 9, SLURM_JOB_RESTART_COUNT="1")
    site.hook("epilog", 9, SLURM_JOB_RESTART_COUNT="2")
    assert [c for c in site.last("epilog").changes if c.amount] == []


def test_a_node_without_gpus_is_nothing_to_worry_about(tmp_path: Path):
    site = Site(tmp_path, "cpu-only")
    (tmp_path / "gres.conf").write_text("")
    with site.edit() as world:
        world.engine("absent")
    for hook in ("prolog", "epilog", "health_check"):
        site.hook(hook, 1)
        assert site.last(hook).verdict == "ok", site.last(hook).findings


def test_a_state_directory_that_can_not_be_used_stops_no_protection(site: Site):
    site.write_policy(DRAINS)
    (site.root / "state").write_text("in the way")
    reason = site.slurm()
    assert site.hook("prolog", 1).returncode == 0
    with site.edit() as world:
        world.set("g0.395", 1)
    assert site.hook("epilog", 1).returncode == 0
    assert "MEM-REMAP-FAILED" in reason.read_text(), "an absolute fault needs no memory"


def syslog_lines(monkeypatch: pytest.MonkeyPatch, site: Site, hook: str, job: int) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(pipeline.log, "warning", lines.append)
    places = Places(str(site.config), str(site.root / "state"), str(site.root / "run"), str(site.slurm_conf))
    pipeline.run_hook(hook, places, site.environment(job), time.monotonic(), "n1")
    return lines


def test_one_syslog_line_for_a_run_that_is_not_ok(site: Site, monkeypatch: pytest.MonkeyPatch):
    assert syslog_lines(monkeypatch, site, "prolog", 1) == []
    with site.edit() as world:
        world.storm("g3.link11", "replay", 21200, 2460)
    (line,) = syslog_lines(monkeypatch, site, "epilog", 1)
    for part in ("epilog n1 job 1", "fail", "NVL-STORM", "observe mode: would drain"):
        assert part in line


def test_a_broken_policy_is_announced_once(site: Site, monkeypatch: pytest.MonkeyPatch):
    syslog_lines(monkeypatch, site, "prolog", 1)
    site.config.write_text("schema: 1\nrules:\n  nvl_strom: {mode: enforce}\n")
    assert "MON-POLICY" in "".join(syslog_lines(monkeypatch, site, "prolog", 2))
    assert syslog_lines(monkeypatch, site, "prolog", 3) == []
    assert site.last("prolog").verdict == "warn", "it is still recorded"
    site.config.write_text("schema: 1\nrules:\n  nvl_stork: {mode: enforce}\n")
    assert "nvl_stork" in "".join(syslog_lines(monkeypatch, site, "prolog", 4))


def test_exclusions_hold_when_the_ledger_can_not_be_opened(site: Site):
    site.write_policy({**DRAINS, "narrow": {"enabled": True}})
    site.slurm()
    site.hook("prolog", 1, SLURM_JOB_NUM_NODES="1", SLURM_JOB_NTASKS="1")
    with site.edit() as world:
        world.storm("g2.link1", "replay", 9000, 600)
    site.hook("epilog", 1)
    ledger = site.root / "state" / "n1" / "ledger.sqlite3"
    for file in ledger.parent.glob("ledger*"):
        file.unlink()
    ledger.mkdir()
    (ledger / "in the way").touch()
    site.hook("prolog", 2, SLURM_JOB_NUM_NODES="1", SLURM_JOB_NTASKS="1")
    assert (site.root / "run" / "n1" / "narrow" / "2").exists()


def test_the_health_check_has_the_engine_sample_and_remove_ends_it(site: Site):
    site.hook("prolog", 1)
    assert not World.load(site.world_file).to_json()["watched"]
    site.hook("health_check")
    assert World.load(site.world_file).to_json()["watched"]
    assert "samples nothing" in site.nvhc("hooks", "remove", "--libdir", str(site.root / "lib"))
    assert not World.load(site.world_file).to_json()["watched"]


def test_a_locked_ledger_costs_one_wait_and_stops_no_protection(site: Site):
    site.write_policy({"budgets": {"prolog": "15s"}})
    site.hook("prolog", 1)
    reason = site.slurm()
    with site.edit() as world:
        world.set("g1.395", 1)
    with sqlite3.connect(site.root / "state" / "n1" / "ledger.sqlite3", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        assert site.hook("prolog", 2).returncode == 97
        assert time.monotonic() - began < 15.0, "within the budget"
        other.execute("ROLLBACK")
    assert "MEM-REMAP-FAILED" in reason.read_text()


def test_two_hooks_that_drain_at_once_leave_one_drain_that_is_ours(site: Site):
    site.hook("prolog", 1)
    reason = site.slurm()
    script = (site.root / "scontrol").read_text().replace("update)", "update) sleep 0.3;")
    (site.root / "scontrol").write_text(script)
    with site.edit() as world:
        world.set("g1.395", 1)
        world.set("g5.346", 1)
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda job: site.hook("prolog", job, gpus="1" if job == 2 else "5").returncode, (2, 3)))
    assert codes == [97, 97]
    assert len([c for c in site.calls() if c.startswith("update")]) == 1
    with site.ledger() as ledger:
        assert ledger.own_drain().reason == reason.read_text()
        assert ledger.intents() == ()


def test_a_resume_settles_an_xid_also_when_the_ledger_is_lost(site: Site):
    reason = site.slurm()
    site.hook("health_check")
    with site.edit() as world:
        world.xid("g1", 119)
        world.advance(5)
    assert site.hook("prolog", 1).returncode == 97
    reason.unlink()  # the administrator resumes the node
    assert site.hook("prolog", 2).returncode == 0
    for file in (site.root / "state" / "n1").glob("ledger*"):
        file.unlink()
    assert site.hook("prolog", 3).returncode == 0
    assert not reason.exists()
    with site.edit() as world:
        world.advance(60)
        world.xid("g1", 119)
    assert site.hook("prolog", 4).returncode == 97, "it happened again"


def test_a_drain_of_somebody_else_that_is_resumed_settles_an_xid_too(site: Site):
    reason = site.slurm()
    site.hook("health_check")
    with site.edit() as world:
        world.xid("g1", 119)
        world.advance(5)
    reason.write_text("ADMIN: looking at gpu1")
    site.hook("health_check")
    assert reason.read_text() == "ADMIN: looking at gpu1"
    reason.unlink()
    assert site.hook("prolog", 2).returncode == 0
    assert not reason.exists()


def test_a_gpu_reset_settles_an_xid(site: Site):
    reason = site.slurm()
    with site.edit() as world:
        world.add("g1.240", 10**9)
        world.xid("g1", 119)
        world.advance(5)
    site.hook("health_check")
    reason.unlink()
    with site.edit() as world:
        world.advance(60)
        world.gpu_reset("g1")
    with site.ledger() as ledger:
        ledger.set_own_drain(None)
    assert site.hook("prolog", 2).returncode == 0
    assert not reason.exists()


def test_a_health_check_says_the_same_thing_once_a_day(site: Site, monkeypatch: pytest.MonkeyPatch):
    with site.edit() as world:
        world.set("g1.396", 1)
    said = [len(syslog_lines(monkeypatch, site, "health_check", 0)) for _ in range(3)]
    assert said == [1, 0, 0]
    with site.edit() as world:
        world.advance(86400)
    assert len(syslog_lines(monkeypatch, site, "health_check", 0)) == 1


def test_a_released_gpu_is_not_excluded_again_for_the_same_xid(tmp_path: Path):
    xid_rule = {
        "defaults": False,
        "rules": {"x": {"finding": "MEM-UNCORRECTABLE", "fail": {"xid": 95}, "sticky": True, "action": "narrow"}},
    }
    site = Site(tmp_path, policy={**xid_rule, "narrow": {"enabled": True}})
    site.slurm()
    with site.edit() as world:
        world.xid("g1", 95)
        world.advance(5)
    site.hook("health_check")
    with site.ledger() as ledger:
        assert len(ledger.exclusions()) == 1
    site.nvhc("gpu", "release", "gpu1")
    site.hook("health_check")
    with site.ledger() as ledger:
        assert ledger.exclusions() == ()


@pytest.mark.parametrize(("reason", "settles"), [("ADMIN: fan 3", False), ("ADMIN: Xid 119 on GPU 1", True), ("gpu1 dead?", True)])
def test_only_a_drain_that_names_the_xid_settles_it(site: Site, reason: str, settles: bool):
    drained = site.slurm()
    drained.write_text(reason)
    with site.edit() as world:
        world.xid("g1", 119)
        world.advance(5)
    site.hook("health_check")
    drained.unlink()
    assert site.hook("prolog", 2).returncode == (0 if settles else 97)
