"""`nvhc pause`, and what hooks do meanwhile: look, judge, record, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from site_ import Site

from slurm_nvhc.cli.pause import until
from slurm_nvhc.errors import InputError
from slurm_nvhc.model.protective import Pause
from slurm_nvhc.model.times import iso

NOON_NS = 1_796_126_400 * 10**9  # 2026-12-01T12:00:00Z
RULES = {
    "defaults": False,
    "rules": {
        "remap": {"finding": "MEM-REMAP-FAILED", "field": "row_remap_failure", "fail": {"value_is": 1}, "action": "drain"},
        "storm": {"finding": "NVL-STORM", "field": "nvlink_replay", "fail": {"increase_above": 100}, "action": "narrow"},
        "fatal": {"finding": "XID-FATAL", "fail": {"xid": 79}, "action": "drain", "sticky": True},
    },
    "narrow": {"enabled": True, "jobs": "any"},
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path, policy=RULES)
    site.slurm()
    site.hook("health_check")
    return site


def paused(site: Site) -> None:
    site.nvhc("pause", "--until", "2h", "--why", "driver upgrade")


def let_it_end(site: Site) -> None:
    """As if its time had come."""
    now_ns = time.time_ns()
    with site.ledger() as ledger:
        ledger.set_pause(Pause(now_ns - 1, "driver upgrade", "ada", now_ns - 10**9))


# --- the command


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2h", "2026-12-01T14:00:00Z"), ("14:00", "2026-12-01T14:00:00Z"), ("09:30", "2026-12-02T09:30:00Z"),
        ("2026-12-05T08:00", "2026-12-05T08:00:00Z"), ("2026-12-05 08:00:30Z", "2026-12-05T08:00:00Z"), ("7d", "2026-12-08T12:00:00Z"),
    ],
)  # fmt: skip
def test_until(text: str, moment: str) -> None:
    assert iso(until(text, NOON_NS)) == moment


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01T00:00", "2026-12-01T11:59", "0s", "7d1s", "2027-12-01T00:00", "-2h"])
def test_no_time(text: str) -> None:
    with pytest.raises(InputError) as problem:
        until(text, NOON_NS)
    assert "--until" in str(problem.value)


def test_setting_showing_ending(site: Site) -> None:
    assert "is not paused" in site.nvhc("pause")
    said = site.nvhc("pause", "--until", "2h", "--why", "driver\nupgrade")
    assert "(for 2h more)" in said.replace("1h59m", "2h")
    assert "driver upgrade" in said
    kept = site.nvhc_json("pause")["pause"]
    assert kept["why"] == "driver upgrade"
    for command in (("status",), ("check",), ("doctor",), ("explain", "node")):
        assert "paused until" in site.nvhc(*command, code=None), command
    assert site.nvhc_json("status")["pause"] == kept == site.nvhc_json("check", code=None)["pause"]
    assert "is over" in site.nvhc("pause", "--end")
    assert site.nvhc_json("pause")["pause"] is None
    assert "is not paused" in site.nvhc("pause", "--end")
    assert "paused" not in site.nvhc("status") + site.nvhc("doctor", code=None)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--why", "x"), "--until"), (("--until", "2h"), "--why"), (("--until", "2h", "--why", " "), "--why"),
        (("--end", "--until", "2h"), "--end"), (("--until", "8d", "--why", "x"), "7d"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_in_one_line(site: Site, words: tuple[str, ...], named: str) -> None:
    done = site.command("pause", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert named in done.stderr
    assert site.nvhc_json("pause")["pause"] is None


# --- hooks meanwhile


def test_a_fault_is_recorded_and_nothing_is_done_until_it_is_over(site: Site) -> None:
    paused(site)
    with site.edit() as world:
        world.set("g6.395", 1)
    assert site.hook("prolog", 8812, gpus="6").returncode == 0, "the job runs"
    site.hook("health_check")
    assert [c for c in site.calls() if c.startswith("update")] == []
    with site.ledger() as ledger:
        kept = ledger.protective()
    assert (kept.intents, kept.own_drain, kept.exclusions) == ((), None, ())
    run = site.last("health_check")
    assert run.verdict == "fail"
    notes = [s["why"] for s in run.steps if s["kind"] == "note"]
    assert any(why.startswith("paused until ") and "would drain for MEM-REMAP-FAILED gpu6" in why for why in notes)
    assert {s["kind"] for s in run.steps} <= {"note", "suspect"}
    assert "would drain for MEM-REMAP-FAILED gpu6" in site.nvhc("explain", "8812", code=None)
    let_it_end(site)
    site.hook("health_check")
    assert "MEM-REMAP-FAILED gpu6" in (site.root / "drained").read_text(), "what still shows is acted on"


def test_a_gpu_that_is_excluded_stays_hidden_and_no_other_is_excluded(site: Site) -> None:
    site.hook("prolog", 8811)
    with site.edit() as world:
        world.storm("g2.link5", "replay", 500, 600)
    site.hook("epilog", 8811)
    paused(site)
    site.hook("prolog", 8812, SLURM_JOB_NUM_NODES="1", SLURM_JOB_NTASKS="1")
    assert [s["kind"] for s in site.last("prolog").steps if s["kind"] == "narrow"] == ["narrow"]
    assert (site.root / "run" / "n1" / "narrow" / "8812").exists()
    with site.edit() as world:
        world.storm("g3.link5", "replay", 500, 600)
    site.hook("epilog", 8812)
    with site.ledger() as ledger:
        assert len([e for e in ledger.exclusions() if e.stage == "excluded"]) == 1


def test_what_is_logged_in_a_pause_is_not_drained_for_later(site: Site) -> None:
    paused(site)
    with site.edit() as world:
        world.xid("g3", 79)
    site.hook("health_check")
    assert site.last("health_check").verdict == "fail"
    let_it_end(site)
    site.hook("health_check")
    site.hook("prolog", 8813, gpus="3")
    assert not (site.root / "drained").exists()


def test_an_intent_waits_for_the_end(site: Site) -> None:
    site.scontrol("exit 1")
    with site.edit() as world:
        world.set("g6.395", 1)
    site.hook("health_check")
    with site.ledger() as ledger:
        (intent,) = ledger.intents()
        ledger.update_intent(intent._replace(next_ns=0))
    site.slurm()
    paused(site)
    site.hook("health_check")
    assert not (site.root / "drained").exists()
    with site.ledger() as ledger:
        assert [i.kind for i in ledger.intents()] == ["drain"]
        ledger.update_intent(ledger.intents()[0]._replace(next_ns=0))
    let_it_end(site)
    site.hook("health_check")
    assert (site.root / "drained").exists()


def test_a_run_of_a_pause_judged_again_only_observes_too(site: Site) -> None:
    paused(site)
    with site.edit() as world:
        world.set("g6.395", 1)
    site.hook("health_check")
    found = site.nvhc_json("simulate", "--policy", str(site.config))
    assert found["differences"] == []
    assert found["otherwise"] == []


def test_nothing_is_learned_in_a_pause(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.hook("prolog", 1)
    paused(site)
    site.hook("health_check")
    with site.ledger() as ledger:
        assert ledger.protective().learned == ()
        ledger.set_pause(None)
    site.hook("health_check")
    with site.ledger() as ledger:
        assert ledger.protective().learned != ()
