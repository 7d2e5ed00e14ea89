"""slurm/node.py: what scontrol prints and how it fails, in the forms of 22.05 and 24.11."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.slurm.node import MISSING, REFUSED, TIMEOUT, UNREACHABLE, SlurmCommands, SlurmError, parse_node

V22 = """NodeName=n1 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 CPUEfctv=32 CPUTot=32 CPULoad=0.60
   Gres=gpu:h100:8
   NodeAddr=127.0.0.1 NodeHostName=host Port=17001 Version=22.05.8
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   CapWatts=n/a
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s
{reason}
"""
V24 = """NodeName=n1 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 CPUEfctv=32 CPUTot=32 CPULoad=0.60
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   CfgTRES=cpu=32,mem=20000M,billing=32
{reason}
   Comment=State=FAIL Reason=x
   Extra=e
"""


def state(words: str, reason: str = "", shape: str = V22) -> NodeState:
    found = parse_node(shape.format(state=words, reason=reason))
    assert found is not None
    return found


@pytest.mark.parametrize("shape", [V22, V24])
@pytest.mark.parametrize(
    ("words", "base", "flags", "out"),
    [
        ("IDLE", "IDLE", set(), False),
        ("IDLE+DRAIN", "IDLE", {"DRAIN"}, True),
        ("MIXED+DRAIN+REBOOT_REQUESTED", "MIXED", {"DRAIN", "REBOOT_REQUESTED"}, True),
        ("IDLE+DRAIN+INVALID_REG", "IDLE", {"DRAIN", "INVALID_REG"}, True),
        ("IDLE*", "IDLE", {"NOT_RESPONDING"}, False),
        ("IDLE*+DRAIN", "IDLE", {"NOT_RESPONDING", "DRAIN"}, True),
        ("DOWN*", "DOWN", {"NOT_RESPONDING"}, True),
        ("DOWN+DRAIN", "DOWN", {"DRAIN"}, True),
        ("ALLOCATED+FAIL", "ALLOCATED", {"FAIL"}, True),
        ("MIXED", "MIXED", set(), False),
    ],
)
def test_states(shape: str, words: str, base: str, flags: set[str], out: bool) -> None:
    found = state(words, "", shape)
    assert (found.base, found.flags, found.out) == (base, flags, out)


@pytest.mark.parametrize("shape", [V22, V24])
@pytest.mark.parametrize(
    "reason",
    [
        "nvhc: NVL-STORM gpu3 GPU-1f2e3d4c… link11",
        "ADMIN: psu [slot 2] swap",
        "a=b, c='d' \"e\" $x %y | z",
        "Prolog error",
        "[x@y]",
        "é\tü",
    ],
)
def test_reasons(shape: str, reason: str) -> None:
    found = state("IDLE+DRAIN", f"   Reason={reason} [root@2026-12-01T04:11:25]", shape)
    assert found.reason == reason


@pytest.mark.parametrize("shape", [V22, V24])
def test_a_reason_of_several_lines_has_its_author_after_the_first(shape: str) -> None:
    found = state("IDLE+DRAIN", "   Reason=first [root@2026-12-01T04:11:25]\n       second", shape)
    assert found.reason == "first\nsecond"


def test_a_stale_reason_on_an_idle_node_is_no_drain() -> None:
    found = state("IDLE", "   Reason=nvhc: old [root@2026-12-01T04:11:25]", V24)
    assert found.reason == "nvhc: old"
    assert not found.out


@pytest.mark.parametrize("text", ["", "slurm_load_node error", "Node n1 not found", "\x00\xff"])
def test_no_state_is_none(text: str) -> None:
    assert parse_node(text) is None


def scontrol(folder: Path, body: str) -> SlurmCommands:
    path = folder / "scontrol"
    path.write_text(f'#!/bin/sh\nfor a; do printf "%s\\n" "$a" >>{folder}/args; done\nenv >{folder}/env\n{body}\n')
    path.chmod(0o755)
    return SlurmCommands(str(folder), "/x/slurm.conf", 5.0)


def test_commands_and_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_X", "evil")
    commands = scontrol(tmp_path, f"cat {tmp_path}/show")
    (tmp_path / "show").write_text(V22.format(state="IDLE+DRAIN", reason="   Reason=x y [root@t]"))
    assert commands.node_state("n1") == NodeState("IDLE", frozenset({"DRAIN"}), "x y", "root@t", ("gpu",))
    commands.drain("n1", "nvhc: a 'b' $(c) …")
    commands.resume("n1")
    assert (tmp_path / "args").read_text().splitlines() == [
        "show", "node", "n1", "update", "nodename=n1", "state=drain", "reason=nvhc: a 'b' $(c) …", "update", "nodename=n1", "state=resume",
    ]  # fmt: skip
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "SLURM_CONF=/x/slurm.conf" in (tmp_path / "env").read_text().splitlines()
    assert names <= {"SLURM_CONF", "PATH", "LC_ALL", "PWD", "_", "OLDPWD", "SHLVL"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("echo 'slurm_update error: Unable to contact slurm controller (connect failure)' >&2; exit 1", UNREACHABLE),
        ("echo 'slurm_update error: Socket timed out on send/recv operation' >&2; exit 1", TIMEOUT),
        ("echo 'fatal: Could not establish a configuration source' >&2; exit 1", MISSING),
        ("echo 'slurm_update error: Invalid user id' >&2; exit 1", REFUSED),
        ("echo 'Invalid node state specified'; exit 1", REFUSED),
        ("exit 3", REFUSED),
        ("kill -9 $$", REFUSED),
    ],
)
def test_failures(tmp_path: Path, body: str, kind: str) -> None:
    commands = scontrol(tmp_path, body)
    with pytest.raises(SlurmError) as caught:
        commands.drain("n1", "x")
    assert caught.value.kind == kind
    assert isinstance(caught.value, MonitorError)
    assert "\n" not in str(caught.value)


def test_an_answer_without_a_state(tmp_path: Path) -> None:
    with pytest.raises(SlurmError) as caught:
        scontrol(tmp_path, "echo nonsense").node_state("n1")
    assert caught.value.kind == REFUSED


def test_timeout_is_the_smaller_one(tmp_path: Path) -> None:
    commands = scontrol(tmp_path, "sleep 60")
    for call in (lambda: commands.drain("n1", "x", 0.2), lambda: SlurmCommands(str(tmp_path), "", 0.2).node_state("n1", 30.0)):
        with pytest.raises(SlurmError) as caught:
            call()
        assert caught.value.kind == TIMEOUT


def test_missing(tmp_path: Path) -> None:
    for commands in (SlurmCommands(str(tmp_path / "nowhere"), "", 1.0), SlurmCommands("bin", "", 1.0)):
        with pytest.raises(SlurmError) as caught:
            commands.node_state("n1")
        assert caught.value.kind == MISSING
