"""Replays: exit codes, output, what the stage plays, and what breaks on it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import forked
import pytest

from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.hooks import install
from slurm_nvhc.scenario import load, stage
from slurm_nvhc.scenario.replay import replay
from slurm_nvhc.scenario.run import Report, run

HEAD = "schema: 1\nname: a test\n"
FAULT = """\
node: {readings: {g6.395: 1}}
steps:
  - prolog: {job: 8812}
expect:
  - {verdict: fail, exit: 1}
"""


def play(tmp_path: Path, text: str) -> Report:
    tmp_path.chmod(0o755)
    return run(load.parse(HEAD + text, "s.yaml"), str(tmp_path))


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + text)
    return str(path)


def missed(report: Report) -> list[tuple[str, str, str]]:
    return [(c.where, c.wanted, c.seen) for c in report.checks if not c.ok]


# --- exit codes and output --------------------------------------------------------------------


def test_exit_0_and_a_plain_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(write(tmp_path, FAULT)) == 0
    out = capsys.readouterr().out
    assert "MEM-REMAP-FAILED g6 fail" in out
    assert "2 of 2 expectations hold" in out
    assert "\x1b" not in out


def test_exit_1_when_an_expectation_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(write(tmp_path, FAULT.replace("exit: 1", "exit: 0"))) == 1
    out = capsys.readouterr().out
    assert "MISSED" in out
    assert "1 of 2 expectations missed" in out


def test_exit_2_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, FAULT.replace("prolog", "prollog"))
    assert replay(path) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert path in shown.err
    assert "did you mean prolog?" in shown.err


def test_exit_3_when_the_replay_itself_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_options: install.Options) -> install.Report:
        raise MonitorError("libexec", "", "can not be written")

    monkeypatch.setattr(install, "install", broken)
    assert replay(write(tmp_path, FAULT)) == 3
    assert capsys.readouterr().err == "libexec: can not be written\n"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(write(tmp_path, FAULT), json_output=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["ok"], told["name"]) == (1, True, "a test")
    (hook,) = told["runs"]
    assert (hook["hook"], hook["status"], hook["verdict"]) == ("prolog", 1, "fail")
    assert [(f["code"], f["name"]) for f in hook["findings"]] == [("MEM-REMAP-FAILED", "g6")]
    assert hook["node"]["word"] == "drained"
    assert {"where", "wanted", "seen", "ok"} == set(told["checks"][0])


def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert replay(write(tmp_path, FAULT)) == 0
    assert os.listdir(folder) == []


def test_several_replays_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, FAULT)

    def one(_number: int) -> None:
        assert replay(path) == 0

    assert forked.at_once(3, one) == [0, 0, 0]


# --- what the stage plays ---------------------------------------------------------------------


def test_the_simulated_node_sees_neither_policy_nor_expectations(tmp_path: Path) -> None:
    play(tmp_path, FAULT + "policy: {drain: {max_length: 199}}\n")
    world = (tmp_path / "world.json").read_text()
    assert "max_length" not in world
    assert "expect" not in world
    assert "verdict" not in world


def test_slurm_drains_by_itself_when_a_hook_fails_but_keeps_a_reason(tmp_path: Path) -> None:
    built = stage.build(load.parse(HEAD + FAULT, "s").scenario, str(tmp_path), 8)
    stage.slurmd_drain(built, "Prolog error")
    assert stage.node_seen(built).reason == "Prolog error"
    stage.slurmd_drain(built, "Epilog error")
    assert stage.node_seen(built).reason == "Prolog error"


def test_a_node_is_busy_while_its_jobs_run(tmp_path: Path) -> None:
    report = play(
        tmp_path,
        """\
steps:
  - prolog: {job: 1, gpus: [0, 1]}
  - prolog: {job: 2, gpus: all}
  - epilog: {job: 2}
  - epilog: {job: 1}
expect:
  - {after: "prolog#1", node: {state: mixed}}
  - {after: "prolog#2", node: {state: allocated}}
  - {after: "epilog#1", node: {state: mixed}}
  - {after: "epilog#2", node: {state: idle}}
""",
    )
    assert report.ok, missed(report)


def test_waiting_takes_no_time_and_is_seen_in_the_evidence(tmp_path: Path) -> None:
    report = play(
        tmp_path,
        """\
steps:
  - prolog: {job: 1}
  - slow_burn: {link: g3.link11, per_hour: 2, over: 400h}
  - epilog: {job: 1}
expect:
  - {finding: {gpu: g3, link: 11, amount: 800}}
""",
    )
    assert report.ok, missed(report)
    (said,) = [f for f in report.runs[1].findings if f.code == "NVL-REPLAY"]
    assert said.evidence.seconds == 400 * 3600
    assert sum(r.seconds for r in report.runs) < 100


def test_a_reset_a_reload_a_reboot_and_a_swap(tmp_path: Path) -> None:
    report = play(
        tmp_path,
        """\
node: {readings: {"*.429": 70}}
steps:
  - prolog: {job: 1}
  - gpu_reset: g3
  - epilog: {job: 1, as: reset}
  - health_check: {}
  - reboot: {down: 4m}
  - wait: 10m
  - health_check: {as: rebooted}
  - swap: {gpu: g2, uuid: GPU-99999999-0000-0000-0000-000000000000, serial: "42"}
  - wait: 1m
  - health_check: {as: swapped}
expect:
  - {after: reset, finding: {code: COUNTER-RESET, gpu: g3}, no_finding: {verdict: fail}}
  - {after: rebooted, no_finding: {verdict: fail}, action: none}
  - {after: swapped, finding: {code: GPU-SWAPPED, gpu: g2}, action: none}
""",
    )
    assert report.ok, missed(report)


@pytest.mark.parametrize(
    "what", ["policy: delete", "policy: corrupt", "ledger: delete", "ledger: corrupt", "state: delete", "interpreter: delete"]
)
def test_whatever_breaks_no_hook_fails_and_nothing_is_drained(tmp_path: Path, what: str) -> None:
    report = play(
        tmp_path,
        f"""\
steps:
  - prolog: {{job: 1}}
  - break: {{{what}}}
  - wait: 10m
  - epilog: {{job: 1}}
  - prolog: {{job: 2}}
expect:
  - {{after: epilog, exit: 0, node: {{state: idle}}}}
  - {{after: prolog, exit: 0, node: {{state: up}}}}
""",
    )
    assert report.ok, missed(report)


def test_a_missing_interpreter_is_no_run(tmp_path: Path) -> None:
    text = FAULT.replace("  - prolog", "  - break: {interpreter: delete}\n  - prolog").replace("verdict: fail, exit: 1", "exit: 0")
    report = play(tmp_path, text)
    assert report.ok, missed(report)
    assert report.runs[0].verdict == ""


def test_the_kill_switch(tmp_path: Path) -> None:
    report = play(
        tmp_path,
        """\
node: {readings: {g6.395: 1}}
steps:
  - kill_switch: on
  - prolog: {job: 1, as: off}
  - kill_switch: off
  - prolog: {job: 1, as: on-again}
expect:
  - {after: off, exit: 0, node: {state: up}, scontrol_calls: 0}
  - {after: on-again, exit: 1, verdict: fail, node: {state: drained}}
""",
    )
    assert report.ok, missed(report)


def test_an_administrator_and_a_node_state(tmp_path: Path) -> None:
    report = play(
        tmp_path,
        """\
slurm: {node: {state: DOWN, reason: fan, user: bob}}
steps:
  - health_check: {as: down}
  - admin_resume: {}
  - health_check: {as: up}
  - admin_drain: {reason: psu, user: carol}
  - health_check: {as: drained}
  - node_state: {state: IDLE}
  - health_check: {as: idle}
expect:
  - {after: down, node: {state: down, reason: fan, user: bob}}
  - {after: up, node: {state: idle}}
  - {after: drained, node: {state: drained, reason: psu, user: carol}}
  - {after: idle, node: {state: idle, reason: ""}}
""",
    )
    assert report.ok, missed(report)


# --- the policy's text ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n", "  \n# nothing but words\n"])
def test_an_empty_policy_stays_empty(text: str) -> None:
    assert stage.policy_text(text, "/w", "/b") == text


def test_raw_policy_text_keeps_its_lines() -> None:
    text = stage.policy_text("rules:\n  a: [broken\n", "/w", "/b")
    assert text.startswith("rules:\n  a: [broken\n")
    assert 'engine: {"backend": "sim", "world": "/w"}' in text


def test_a_policy_keeps_what_it_says_about_engine_and_slurm() -> None:
    for given in ({"engine": {"timeout": "2s"}}, "engine: {timeout: 2s}\n"):
        text = stage.policy_text(given, "/w", "/b")
        assert "timeout: 2s" in text
        assert "world: /w" in text
        assert "bin_dir: /b" in text
        assert text.count("engine:") == 1


def test_a_nonsense_engine_section_is_left_to_the_policy_check() -> None:
    assert "engine: 7" in stage.policy_text({"engine": 7}, "/w", "/b")


@pytest.mark.parametrize("overlay", ["partitions: {'*': {slurm: {bin_dir: /usr/bin}}}", "nodes: {n1: {engine: {backend: dcgm}}}"])
def test_a_policy_can_not_lead_to_a_real_slurm_or_engine(tmp_path: Path, overlay: str) -> None:
    with pytest.raises(InputError, match="the replay's own"):
        play(tmp_path, FAULT + "policy:\n  " + overlay + "\n")


def test_a_mapping_for_engine_and_scontrol_gives_way(tmp_path: Path) -> None:
    report = play(tmp_path, FAULT + "policy: {slurm: {bin_dir: /usr/bin}, engine: {backend: dcgm, world: /elsewhere}}\n")
    assert report.ok, missed(report)
