"""What was learned, and the rates by version, in the ledger: kept once, durable, carried on from earlier ledgers."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import build
import pytest

from slurm_nvhc.model import learned
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.tally import Tally, Versions
from slurm_nvhc.record import mirror, protective, rates, schema
from slurm_nvhc.record.ledger import Ledger

T0 = build.T0
U = build.uuid
FIRST = Lesson(T0, learned.ITSELF, {"node": {"nvidia_driver": "570"}, U(0): {"ecc_mode": 1}, f"{U(0)}/link1": {"nvlink_state": "up"}})


@pytest.fixture
def folder(tmp_path: Any) -> str:
    return str(tmp_path / "state" / "n1")


def opened(folder: str) -> Ledger:
    return Ledger.open(folder, 5.0)


# --- what was learned -----------------------------------------------------------


def test_what_was_learned_is_learned_once(folder: str) -> None:
    with opened(folder) as ledger:
        assert ledger.learn(FIRST) is True
        assert ledger.learn(FIRST._replace(at_ns=T0 + 1)) is False
        other = Lesson(T0 + 2, learned.ITSELF, {"node": {"nvidia_driver": "575", "fabric_manager": "575"}})
        assert ledger.learn(other) is True, "what is new in it is kept"
    with opened(folder) as ledger:
        assert learned.table(ledger.protective().learned)["node"] == {"nvidia_driver": "570", "fabric_manager": "575"}


def test_an_administrator_changes_it_and_is_named(folder: str) -> None:
    with opened(folder) as ledger:
        ledger.learn(FIRST)
        ledger.accept(Lesson(T0 + 5, "alice", {"node": {"nvidia_driver": "575"}}), [(f"{U(0)}/link1", "nvlink_state")])
        normals = learned.normals(ledger.protective().learned)
    assert normals["node"]["nvidia_driver"] == ("575", T0 + 5, "alice")
    assert normals[U(0)]["ecc_mode"].who == learned.ITSELF
    assert f"{U(0)}/link1" not in normals


def test_it_survives_the_loss_of_the_database(folder: str) -> None:
    with opened(folder) as ledger:
        ledger.learn(FIRST)
    assert mirror.read(folder).state == protective.Protective(generation=1, learned=(FIRST,))
    with open(os.path.join(folder, "ledger.sqlite3"), "r+b") as file:
        file.write(b"garbage, not a database" * 100)
    with opened(folder) as ledger:
        assert ledger.protective().learned == (FIRST,)


def test_a_lesson_that_a_hand_has_broken_costs_only_itself() -> None:
    state = protective.Protective(learned=(FIRST, Lesson(T0, "nvhc", {"node": {"fabric_manager": "1"}})))
    text = protective.dumps(state).replace('"nvidia_driver": "570"', '"nvidia_driver": null')
    back, lost = protective.loads(text)
    assert (back.learned, lost) == ((state.learned[1],), 1)
    assert protective.loads(protective.dumps(state)) == (state, 0)


def test_a_card_that_left_takes_what_was_learned_of_it_along(folder: str) -> None:
    with opened(folder) as ledger:
        ledger.remember_gpus(build.snapshot(build.gpu(0), build.gpu(1)))
        ledger.learn(FIRST)
        ledger.learn(Lesson(T0, learned.ITSELF, {U(1): {"ecc_mode": 1}}))
        new = build.gpu(9)
        ledger.remember_gpus(build.snapshot(new._replace(identity=new.identity._replace(pci=build.gpu(0).identity.pci)), build.gpu(1)))
        assert set(learned.table(ledger.protective().learned)) == {"node", U(1)}
        ledger.forget_gpu(U(1))
        assert set(learned.table(ledger.protective().learned)) == {"node"}


# --- rates ------------------------------------------------------------------------

OLD = Versions("H100", "570", "96.00", "570")
NEW = OLD._replace(driver="575", fabric_manager="575")


def look(at_ns: int) -> Look:
    return Look(at_ns, at_ns, "boot-1", "", None, {})


def count(ledger: Ledger, at_ns: int, *tallies: Tally) -> None:
    ledger.fold_memory(lambda memory, last: ("result", memory, look(at_ns)), lambda result: tallies)


def test_growth_is_summed_up_by_versions(folder: str) -> None:
    with opened(folder) as ledger:
        count(ledger, T0, Tally(OLD, "nvlink_replay", 2, 10.0), Tally(OLD, "nvlink_recovery", 0, 10.0))
        count(ledger, T0 + 1, Tally(OLD, "nvlink_replay", 1, 5.0), Tally(NEW, "nvlink_replay", 7, 1.0))
    with opened(folder) as ledger:
        assert sorted(ledger.rates()) == [
            (Tally(OLD, "nvlink_recovery", 0, 10.0), T0, T0),
            (Tally(OLD, "nvlink_replay", 3, 15.0), T0, T0 + 1),
            (Tally(NEW, "nvlink_replay", 7, 1.0), T0 + 1, T0 + 1),
        ]


def test_growth_counts_only_when_the_look_moves_on(folder: str) -> None:
    """A look by hand leaves the last look where it is: its growth comes again in the next hook."""
    with opened(folder) as ledger:
        count(ledger, T0)
        ledger.fold_memory(lambda memory, last: ("result", memory, last), lambda result: (Tally(OLD, "nvlink_replay", 9, 1.0),))
        assert ledger.rates() == ()


def test_growth_and_look_are_one_step(folder: str) -> None:
    def fails(_result: str) -> tuple[Tally, ...]:
        raise RuntimeError("in between")

    with opened(folder) as ledger:
        count(ledger, T0)
        with pytest.raises(RuntimeError):
            ledger.fold_memory(lambda memory, last: ("result", {"x": 1}, look(T0 + 1)), fails)
        assert ledger.fold_memory(lambda memory, last: ((memory, last), memory, last)) == ({}, look(T0))


def test_rows_are_bounded_and_the_ones_that_grew_last_stay(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "KEEP_ROWS", 2)
    with opened(folder) as ledger:
        for n in range(4):
            count(ledger, T0 + n, Tally(OLD._replace(driver=str(n)), "nvlink_replay", 1, 1.0))
        ledger.prune(30.0, T0)
        assert sorted(row[0].versions.driver for row in ledger.rates()) == ["2", "3"]


# --- a ledger of the version before -------------------------------------------------


def test_an_earlier_ledger_is_carried_on(folder: str) -> None:
    """It holds drains and exclusions: an update must neither refuse it nor begin anew."""
    with opened(folder) as ledger:
        ledger.exclude(Exclusion(U(1), "MEM-SRAM", "", "nvhc", T0))
        ledger.put("a", "b")
    conn = sqlite3.connect(os.path.join(folder, "ledger.sqlite3"), isolation_level=None)
    conn.execute("DROP TABLE rates")
    conn.execute("PRAGMA user_version=1")
    conn.close()
    with opened(folder) as first, opened(folder) as second:
        for ledger in (first, second):
            count(ledger, T0, Tally(OLD, "nvlink_replay", 1, 1.0))
            assert (ledger.get("a"), len(ledger.exclusions()), ledger.restored) == ("b", 1, "")
        assert first.rates() == second.rates()
        assert first.rates()[0][0].amount == 2
    conn = sqlite3.connect(os.path.join(folder, "ledger.sqlite3"))
    assert conn.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    conn.close()
