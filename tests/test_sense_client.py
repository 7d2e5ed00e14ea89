"""The hook's side of the reader: nothing raises, what arrived is kept, every trouble has its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import patient
import pytest

from slurm_nvhc.model.snapshot import Snapshot, from_json, to_json
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.proc import child
from slurm_nvhc.sense import client
from slurm_nvhc.sense.client import read_snapshot

CLOCK = '{"part": "clock", "wall_ns": 5, "boot_ns": 6, "boot_id": "b"}\n'
KERNEL = '{"part": "kernel_log", "known": true, "cursor": "b:9:5", "events": [], "reported": []}\n'
PCI = '{"part": "pci", "gpus": [{"pci": "0000:3b:00.0", "responds": true}]}\n'
HOST = '{"part": "host", "parts": {}}\n'
ENGINE = '{"part": "engine", "version": "4.6.0", "driver": "575", "driver_loaded_ns": 1}\n'
GPUS = json.dumps({"part": "gpus", "gpus": {"GPU-a": {
    "identity": {"uuid": "GPU-a", "pci": "0000:3b:00.0"}, "status": "ok", "readings": {"pcie_replay": 1}, "links": {}}}}) + "\n"
DONE = '{"part": "done"}\n'


def answer(monkeypatch: pytest.MonkeyPatch, reply: str, rc: int | None = 0, problem: str = "", err: str = "", **more: Any) -> Snapshot:
    asked: list[str] = []

    def run(argv: Any, timeout_s: float, environment: Any = None, request: str = "") -> child.Result:
        asked.append(request)
        assert argv[1:] == ["-I", "-m", "slurm_nvhc.sense.reader"]
        return child.Result(rc, "", err, problem, reply)

    monkeypatch.setattr(client.child, "run", run)
    return read_snapshot("n1", Engine("sim", "", "/w"), 2.0, fields=["pcie_replay"], **more)


def codes(snapshot: Snapshot) -> list[str]:
    return [t.code for t in snapshot.troubles]


def test_a_whole_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    s = answer(monkeypatch, CLOCK + KERNEL + PCI + ENGINE + GPUS + DONE)
    assert s.troubles == ()
    assert (s.wall_ns, s.boot_ns, s.boot_id, s.engine, s.driver, s.driver_loaded_ns) == (5, 6, "b", "4.6.0", "575", 1)
    assert (s.events_known, s.kernel_cursor, s.node, s.source) == (True, "b:9:5", "n1", "sim")
    assert s.gpus is not None
    assert s.gpus["GPU-a"].readings == {"pcie_replay": 1}
    assert from_json(json.loads(json.dumps(to_json(s)))) == s


def test_a_timeout_keeps_what_arrived_and_names_what_was_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    for rc, problem in ((None, "timeout"), (-14, "")):
        s = answer(monkeypatch, CLOCK + KERNEL + PCI + HOST + '{"part": "eng', rc, problem)
        assert codes(s) == ["MON-ENGINE-HUNG"]
        assert "engine part" in s.troubles[0].detail
        assert (s.gpus, s.wall_ns, s.events_known) == (None, 5, True)
        assert s.pci_gpus is not None


def test_a_timeout_before_the_clock_is_the_readers_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    s = answer(monkeypatch, "", None, "timeout", kernel_cursor="b:3:4")
    assert codes(s) == ["MON-READER"]
    assert s.wall_ns > 1_600_000_000_000_000_000  # the real clock
    assert s.boot_ns > 0
    assert len(s.boot_id) == 36
    assert (s.events_known, s.kernel_cursor) == (False, "b:3:4")  # nothing of the log is lost


def test_a_crash_names_signal_place_and_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    s = answer(monkeypatch, CLOCK + PCI, -11, err="loading\nlibdcgm: bad pointer\n")
    assert codes(s) == ["MON-READER"]
    for word in ("SIGSEGV", "after the pci part", "bad pointer"):
        assert word in s.troubles[0].detail
    s = answer(monkeypatch, "", 1, err="ImportError: no module\n")
    assert "status 1 before any part: ImportError" in s.troubles[0].detail
    s = answer(monkeypatch, "", None, "can not start /no/python: No such file or directory")
    assert "can not start" in s.troubles[0].detail


def test_after_done_the_way_it_ended_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(monkeypatch, CLOCK + KERNEL + PCI + ENGINE + GPUS + DONE, -11).troubles == ()


def test_lies_are_one_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    s = answer(monkeypatch, CLOCK + "%$#\n" * 9 + DONE)
    assert codes(s) == ["MON-ENGINE-LIES"]
    assert "and 6 more" in s.troubles[0].detail


def test_an_engine_without_gpus_on_a_node_with_some(monkeypatch: pytest.MonkeyPatch) -> None:
    none = '{"part": "gpus", "gpus": {}}\n'
    s = answer(monkeypatch, CLOCK + KERNEL + PCI + ENGINE + none + DONE)
    assert codes(s) == ["MON-ENGINE-EMPTY"]
    assert s.gpus == {}
    assert answer(monkeypatch, CLOCK + KERNEL + '{"part": "pci", "gpus": []}\n' + ENGINE + none + DONE).troubles == ()


def test_no_time_left_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.child, "run", None)
    s = read_snapshot("n1", Engine("sim"), 0.0)
    assert codes(s) == ["MON-BUDGET"]


@pytest.mark.parametrize(
    ("engine", "code"),
    [(Engine("dcgm"), "MON-ENGINE-ABSENT"), (Engine("nvml"), "MON-READER"), (Engine("sim"), "MON-ENGINE-ABSENT"),
     (Engine("sim", "", "/no/such/world"), "MON-ENGINE-ABSENT")],
)
def test_backends_that_can_not_be_had(engine: Engine, code: str) -> None:
    s = read_snapshot("n1", engine, patient.READ_S)
    assert codes(s) == [code]
    assert s.gpus is None
    assert s.wall_ns > 0


def test_a_broken_world_file_is_trouble_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text("{")
    s = read_snapshot("n1", Engine("sim", "", str(path)), patient.READ_S)
    assert codes(s) == ["MON-ENGINE-ABSENT"]
    assert "w.json" in s.troubles[0].detail


HEAVY = ("dataclasses", "logging", "argparse", "subprocess", "msgspec", "yaml", "jinja2", "pathlib", "tempfile", "shutil", "inspect",
         "email", "urllib", "ctypes", "slurm_nvhc.sense.sim", "slurm_nvhc.sense.reader")


def test_the_client_imports_light_modules_only() -> None:
    program = "import sys; before = set(sys.modules); import slurm_nvhc.sense.client; print(*(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in out if name.startswith(HEAVY)] == []


def test_started_by_hand_it_says_so() -> None:
    result = subprocess.run([sys.executable, "-I", "-m", client.MODULE], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 1
    assert "not by hand" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_request_of_another_parent_is_not_served() -> None:
    from slurm_nvhc.sense.protocol import Request, encode

    request = encode(Request("dcgm", "n1", {}, 5.0, parent=os.getpid() + 1))
    result = child.run([sys.executable, "-I", "-m", client.MODULE], patient.READ_S, request=request)
    assert (result.rc, result.reply) == (1, "")
