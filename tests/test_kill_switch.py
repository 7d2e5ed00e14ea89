"""The cluster's kill switch: a file on shared storage that switches hooks or single rules off."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from site_ import Site

from slurm_nvhc.model import finding as fd
from slurm_nvhc.policy import compiled, kill_switch
from slurm_nvhc.policy.compile import compile_policy

KNOWN = ("nvl_storm", "nvl_down")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """GPU 6 has a fault that every health check drains for."""
    site = Site(tmp_path, policy={"kill_switch": str(tmp_path / "off")})
    site.slurm()
    with site.edit() as world:
        world.set("g6.395", 1)
    return site


def switch(site: Site) -> Path:
    return site.root / "off"


def troubles(site: Site) -> list[str]:
    return [f.message for f in site.last("health_check").findings if f.code == "MON-POLICY"]


# --- the file


@pytest.mark.parametrize("text", ["\n", "# driver upgrade, back at five\n", "   \n\n"])
def test_an_empty_file_switches_everything_off(text: str) -> None:
    found = kill_switch.parse("/off", text, KNOWN)
    assert found.everything
    assert "OFF" in str(found)


def test_lines_switch_off_rules() -> None:
    found = kill_switch.parse("/off", "nvl_storm  # see 4711\nnvl_storm, nvl_dwon\n", KNOWN)
    assert (found.everything, found.rules, found.unknown) == (False, ("nvl_storm",), ("nvl_dwon",))
    assert str(found) == "rules off by /off: nvl_storm"
    assert str(kill_switch.parse("/off", "driver upgrade", KNOWN)) == "", "nothing is switched off by what names nothing"


def test_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "off"
    assert kill_switch.look("", KNOWN, 1.0) == kill_switch.Switch()
    assert kill_switch.look(str(file), KNOWN, 1.0) == kill_switch.Switch(str(file))
    assert kill_switch.look(str(tmp_path / "none" / "off"), KNOWN, 1.0).problem == ""
    file.touch()
    assert kill_switch.look(str(file), KNOWN, 1.0).everything
    file.write_text("nvl_down\n")
    assert kill_switch.look(str(file), KNOWN, 1.0).rules == ("nvl_down",)
    assert "can not be read" in kill_switch.look(str(tmp_path), KNOWN, 1.0).problem


def test_one_that_does_not_answer_costs_its_time_and_no_more(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "off")
    began = time.monotonic()
    found = kill_switch.look(str(tmp_path / "off"), KNOWN, 0.2)
    assert "no answer within 0.2 s" in found.problem
    assert time.monotonic() - began < 30, "it would wait for ever"


def test_a_rule_is_off_whatever_overlays_say() -> None:
    text = b"""schema: 1
defaults: false
rules:
  storm: {finding: NVL-STORM, field: nvlink_replay, fail: {increase_above: 100}, action: drain}
  remap: {finding: MEM-REMAP-FAILED, field: row_remap_failure, fail: {value_is: 1}, action: drain}
models: {"NVIDIA *": {rules: {storm: {mode: enforce}}}}
nodes: {n1: {rules: {storm: {mode: enforce}}}}
"""
    policy = compiled.resolve(compile_policy(text, "p"), "n1")
    less = kill_switch.without(policy, ["storm", "nothing"])
    for one in (less, less.for_model("NVIDIA H100 80GB HBM3")):
        assert (one.rules["storm"].mode, one.rules["remap"].mode) == (fd.OFF, fd.ENFORCE)
    assert less.hash != policy.hash, "what that policy asked for is not asked for any more"
    assert kill_switch.without(policy, ["nothing"]) is policy


# --- hooks


def test_hooks_do_nothing_at_all(site: Site) -> None:
    switch(site).touch()
    for hook, job in (("health_check", None), ("prolog", 8812), ("epilog", 8812)):
        done = site.hook(hook, job, gpus="6")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert site.calls() == []
    with site.ledger() as ledger:
        assert ledger.recent_runs(9) == ()
    switch(site).unlink()
    site.hook("health_check")
    assert (site.root / "drained").exists()


def test_one_rule(site: Site) -> None:
    switch(site).write_text("row_remap_failure\n")
    site.hook("health_check")
    assert not (site.root / "drained").exists()
    assert [f.code for f in site.last("health_check").findings if f.code == "MEM-REMAP-FAILED"] == []
    assert troubles(site) == []
    switch(site).write_text("nvl_storm\n")
    site.hook("health_check")
    assert (site.root / "drained").exists()


def test_a_typing_error_is_told_and_switches_nothing_off(site: Site) -> None:
    switch(site).write_text("row_remap_failures\n")
    site.hook("health_check")
    (told,) = troubles(site)
    assert "no rule of the policy is called row_remap_failures" in told
    assert (site.root / "drained").exists()


def test_one_that_can_not_be_read_is_as_it_was(site: Site) -> None:
    switch(site).write_text("row_remap_failure\n")
    site.hook("health_check")
    switch(site).unlink()
    switch(site).mkdir()  # reading it fails, as on a file system in trouble
    site.hook("health_check")
    (told,) = troubles(site)
    assert "rules off by" in told
    assert not (site.root / "drained").exists()


def test_one_that_can_never_be_read_stops_no_protection(site: Site) -> None:
    os.mkfifo(switch(site))
    site.hook("health_check")
    (told,) = troubles(site)
    assert "nothing was switched off" in told
    assert (site.root / "drained").exists()


def test_it_shows(site: Site) -> None:
    site.hook("health_check")
    assert "OFF" not in site.nvhc("status", code=None) + site.nvhc("check", code=None)
    switch(site).touch()
    line = f"hooks are OFF on every node that reads {switch(site)}"
    for command in ("status", "check", "doctor"):
        assert line in site.nvhc(command, code=None)
    assert site.nvhc_json("status", code=1)["cluster_switch"]["everything"] is True
    switch(site).write_text("nvl_storm\n")
    for command in ("status", "check", "doctor"):
        assert f"rules off by {switch(site)}: nvl_storm" in site.nvhc(command, code=None)
    assert site.nvhc_json("check", code=None)["cluster_switch"]["rules"] == ["nvl_storm"]
