"""Requests, cursors, and the reader's reply to bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_nvhc.errors import InputError
from slurm_nvhc.sense import protocol
from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.protocol import Cursor, Request, cursor, decode, encode
from slurm_nvhc.sense.reader.backend import Clock
from slurm_nvhc.sense.reader.serve import serve, since
from slurm_nvhc.sense.sim.world import World

S = 1_000_000_000
REQUEST = Request("sim", "n1", {"world": "/x"}, 4.0, "b:1:2", 1.5, ("pcie_replay",), 7)


def test_a_request_survives_the_way() -> None:
    assert decode(encode(REQUEST)) == REQUEST
    assert encode(REQUEST).count("\n") == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"schema": 2}, "schema"),
        ({"op": "sing"}, "op"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": "x"}, "deadline_s"),
        ({"wait_s": -1}, "wait_s"),
        ({"fields": "all"}, "fields"),
        ({"options": []}, "options"),
        ({"backend": None}, "backend"),
    ],
)
def test_a_wrong_request_names_its_key(change: dict[str, Any], word: str) -> None:
    raw = json.loads(encode(REQUEST))
    with pytest.raises(InputError, match=word):
        decode(json.dumps({**raw, **change}))
    del raw["node"]
    with pytest.raises(InputError, match="node"):
        decode(json.dumps(raw))


@pytest.mark.parametrize("text", ["", "x", "[]", "[" * 100_000, "9" * 5000])
def test_what_is_no_request_gives_trouble_and_an_end(text: str) -> None:
    out: list[Any] = []
    serve(text, out.append, lambda request: None)
    assert [p["part"] for p in out] == ["trouble", "done"]
    assert out[0]["code"] == "MON-READER"


def test_an_unknown_backend() -> None:
    out: list[Any] = []
    serve(encode(REQUEST._replace(backend="nvml")), out.append, lambda request: None)
    assert out[0]["code"] == "MON-READER"
    assert "unknown backend 'nvml'; known: dcgm, sim" in out[0]["detail"]
    assert out[-1] == {"part": "done"}


def test_sentinels_never_leave_the_reader(tmp_path: Path) -> None:
    world = World.preset("hgx-h100-8", gpus=1)
    world.engine("lying", kind="sentinel")
    world.save(str(tmp_path / "w.json"))
    out: list[Any] = []
    serve(encode(REQUEST._replace(options={"world": str(tmp_path / "w.json")}, fields=("pcie_replay",))), out.append, lambda request: None)
    (gpus,) = [p["gpus"] for p in out if p["part"] == "gpus"]
    assert [gpu["readings"] for gpu in gpus.values()] == [{"pcie_replay": {"no": "blank"}}]


def test_cursor_text() -> None:
    assert cursor(str(Cursor("b", 3, 4))) == Cursor("b", 3, 4)
    for bad in ("", "b", "b:x:4", "b:3", "b:3:4:5", "b:" + "9" * 30 + ":1", "b:²:1"):
        assert cursor(bad) is None


XID = "NVRM: Xid (PCI:0000:5e:00): {}, pid=1, name=a, x"


def lines(*rows: tuple[int, float, str]) -> list[Line]:
    return [Line(seq, int(at * S), text) for seq, at, text in rows]


def test_since_reports_only_what_is_new_and_remembers_what_was() -> None:
    log = lines((4, 100, XID.format(31)), (5, 200, XID.format(13)))
    clock = Clock(300 * S, 10 * S, "b")
    new, reported, after = since(log, None, clock)
    assert ([e.code for e in new], reported, after) == ([31, 13], [], Cursor("b", 6, 300 * S))
    new, reported, after = since(log, Cursor("b", 5, 110 * S), clock)
    assert ([e.code for e in new], [e.code for e in reported]) == ([13], [31])
    assert since(log, Cursor("b", 6, 300 * S), clock)[0] == []


def test_since_remembers_what_the_engine_may_echo_with_a_drifting_clock() -> None:
    """An echo that the last read has not seen yet (5 s), its record 60 s before, and the events before that one."""
    log = lines((4, 900, XID.format(31)), (5, 1000, XID.format(13)))
    new, reported, _ = since(log, Cursor("b", 6, 1060 * S), Clock(1100 * S, 10 * S, "b"))
    assert (new, [e.code for e in reported]) == ([], [31, 13])


def test_since_starts_over_after_a_boot_and_keeps_its_place_in_an_empty_log() -> None:
    log = lines((0, 100, XID.format(31)))
    assert len(since(log, Cursor("older boot", 50, 1), Clock(300 * S, 1, "b"))[0]) == 1
    assert since([], Cursor("b", 6, 1), Clock(9 * S, 1, "b"))[2] == Cursor("b", 6, 9 * S)


def test_the_companion_line_of_a_fall_that_was_reported_is_not_a_second_fall() -> None:
    log = lines((7, 100, XID.format(79)), (8, 101, "NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus."))
    clock = Clock(102 * S, 1, "b")
    first, _, after = since(log[:1], None, Clock(int(100.5 * S), 1, "b"))
    assert len(first) == 1
    assert since(log, after, clock)[0] == []


def test_all_fields_are_asked_for_by_default() -> None:
    assert len(protocol.ALL_FIELDS) == len(set(protocol.ALL_FIELDS)) > 40
