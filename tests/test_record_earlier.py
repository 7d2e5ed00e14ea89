"""Protective state as an earlier version wrote it is carried on: an upgrade must not give users an excluded GPU, or orphan a drain."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from slurm_nvhc.model.protective import EXCLUDED, NARROW, Exclusion, Intent, OwnDrain
from slurm_nvhc.record import mirror, protective
from slurm_nvhc.record.ledger import Ledger

GPU = "GPU-94b35ec1-1111-2222-3333-444444444444"
EARLIER = {
    "schema": 1,
    "generation": 7,
    "exclusions": [{"uuid": GPU, "code": "NVL-STORM", "why": "gpu3 NVL-STORM", "who": "nvhc", "since_ns": 5}],
    "own_drain": {
        "reason": "nvhc: NVL-CRC gpu1", "set_ns": 6, "confirmed": True, "keys": ["NVL-CRC x"], "idents": ["x|79|5"], "standing": True,
    },
    "intents": [
        {
            "kind": "drain", "reason": "nvhc: GPU-LOST", "since_ns": 7, "keys": ["GPU-LOST y"], "idents": [], "tries": 1,
            "standing": False, "events": True, "policy": "abc",
        }
    ],
    "gpus": [],
    "settled": ["x|31|4"],
    "learned": [],
}  # fmt: skip


def expect(state: protective.Protective) -> None:
    assert state.exclusions == (Exclusion(GPU, "NVL-STORM", "gpu3 NVL-STORM", "nvhc", 5, EXCLUDED, NARROW),)
    assert state.own_drain == OwnDrain("nvhc: NVL-CRC gpu1", 6, True, ("NVL-CRC x",), ("x|79|5",), standing=True)
    assert state.intents == (Intent("drain", "nvhc: GPU-LOST", 7, ("GPU-LOST y",), tries=1, events=True, policy="abc"),)
    assert state.settled == ("x|31|4",)


def test_it_is_read_whole() -> None:
    state, lost = protective.loads(json.dumps(EARLIER))
    expect(state)
    assert lost == 0
    assert protective.loads(protective.dumps(state)) == (state, 0)


@pytest.mark.parametrize(("key", "value"), [("exclusions", 7), ("own_drain", "x"), ("intents", [3, None]), ("exclusions", [{"uuid": 1}])])
def test_what_is_broken_in_it_costs_nothing_else(key: str, value: object) -> None:
    state, lost = protective.loads(json.dumps({**EARLIER, key: value}))
    assert lost
    assert state.settled == ("x|31|4",)


def test_an_upgrade_of_a_node_keeps_it(tmp_path: Path) -> None:
    folder = str(tmp_path)
    Ledger.open(folder, 5.0).close()
    with sqlite3.connect(f"{folder}/ledger.sqlite3") as conn:
        conn.execute("INSERT OR REPLACE INTO state VALUES ('protective', ?)", (json.dumps(EARLIER).encode(),))
    Path(mirror.path_in(folder)).write_text(json.dumps(EARLIER))
    with Ledger.open(folder, 5.0) as ledger:
        expect(ledger.protective())
        assert ledger.restored == ""
        ledger.settle(["x|32|9"])
    with Ledger.open(folder, 5.0) as ledger:
        assert ledger.protective().own_drain is not None
        assert ledger.protective().settled == ("x|31|4", "x|32|9")
    assert json.loads(Path(mirror.path_in(folder)).read_text())["schema"] == 2
