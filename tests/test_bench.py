"""bench/: it measures what it says. What the figures are is not asserted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_nvhc.sense.sim.world import World

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
import hooks
import reader
import table
from table import Row

ROOT = Path(__file__).resolve().parents[1]


def figures(module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, Any]]:
    out = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(out), "--times", "1"])
    assert module.main() in (0, 1)  # 1: a bound was missed, on a machine that does something else as well
    document = json.loads(out.read_text())
    assert document["schema"] == 1
    assert all(row["value"] >= 0 for row in document["rows"])
    return {row["what"]: row for row in document["rows"]}


def test_hooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = "slurm: {{scontrol: {{behaviour: slow, seconds: 0.5}}}}\npolicy:"  # what a call costs stands out on a busy machine too
    monkeypatch.setattr(hooks, "FAULT", hooks.FAULT.replace("policy:", slow))
    rows = figures(hooks, monkeypatch, tmp_path)
    assert {"prolog, healthy", "epilog, healthy", "health check, healthy", "epilog, fault: drained"} < set(rows)
    assert rows["epilog, fault: drained"]["value"] > rows["epilog, healthy"]["value"] > 0
    assert "5 calls" in rows["epilog, fault: drained"]["note"]


def test_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stand-in bindings are an engine like any other here."""
    World.preset("hgx-h100-8").save(str(tmp_path / "engine.json"))
    monkeypatch.setenv("NVHC_DCGM_ADDRESS", f"unix://{tmp_path}/engine.json")
    monkeypatch.setenv("NVHC_DCGM_BINDINGS", str(ROOT / "tests" / "engines" / "bindings"))
    monkeypatch.setattr(reader, "SHORT_S", 0.6)
    monkeypatch.setattr(reader, "LATE_TIMES", 1)
    rows = figures(reader, monkeypatch, tmp_path)
    for name in ("sim", "dcgm"):
        assert rows[f"cold read, {name}"]["note"].startswith("8 GPUs, 144 links, ")
        memory = rows[f"reader's peak memory, {name}"]
        assert (memory["unit"], memory["bound"], memory["over"]) == ("MiB", 80, False)
        assert memory["value"] > 5
    assert rows["cold read / bare process"]["bound"] == 1.5
    assert len([what for what in rows if what.startswith("past the deadline")]) == 8


def test_an_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NVHC_DCGM_ADDRESS", "unix:///no/such")
    monkeypatch.setattr(sys, "argv", ["bench", "--times", "1"])
    with pytest.raises(SystemExit) as end:
        reader.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("bench: dcgm: no reading: ")


def test_what_does_not_hold_is_marked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fine, much = Row("fine", 1.43, "x", bound=1.5), Row("much", 81.0, "MiB", bound=80.0)
    assert table.show([fine], None) == 0
    assert table.show([fine, much], None) == 1
    assert [line.endswith("OVER") for line in capsys.readouterr().out.splitlines()[-2:]] == [False, True]
    with pytest.raises(SystemExit) as end:
        table.show([fine], str(tmp_path / "no" / "such"))
    assert end.value.code == 2


def test_median_and_p95() -> None:
    row = table.of_times("x", [n / 1000 for n in range(1, 21)])
    assert (round(row.value, 6), round(row.p95 or 0, 6), row.unit) == (10.5, 19.0, "ms")
