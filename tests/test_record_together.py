"""Many hooks at once, and hooks killed at any moment."""

from __future__ import annotations

import functools
import os
import random
import select
import sqlite3
import time
from typing import Any

import forked
import patient
import pytest
from build import gpu, later, snapshot

from slurm_nvhc.compare import since
from slurm_nvhc.model.protective import Ended, Exclusion, Intent, OwnDrain
from slurm_nvhc.record import ledger as ledger_module
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run


def _ended(uuid: str) -> Ended:
    return Ended(Exclusion(uuid, "NVL-STORM", "", "nvhc", 0), "released", "alice", "", 0)


@pytest.fixture
def folder(tmp_path: Any) -> str:
    return str(tmp_path / "n1")


def one_hook(folder: str, i: int) -> None:
    with Ledger.open(folder, patient.LEDGER_S) as ledger:
        ledger.fold_memory(lambda m, look: (None, {**m, "count": m.get("count", 0) + 1, f"hook{i}": i}, look))
        ledger.record_run(Run("epilog", i, i, "ok", job_id=str(i), gpus=(f"GPU-{i % 8}",)))
        if i % 5 == 0:
            ledger.exclude(Exclusion(f"GPU-{i}", "X", "", "nvhc", i))


def expect_all(folder: str, number: int) -> str:
    with Ledger.open(folder, patient.LEDGER_S) as ledger:
        memory: dict[str, Any] = ledger.fold_memory(lambda m, look: (m, m, look))
        assert memory["count"] == number
        assert len(memory) == number + 1
        assert sorted(int(r.job_id) for r in ledger.recent_runs(1000)) == list(range(number))
        assert sorted(e.since_ns for e in ledger.exclusions()) == list(range(0, number, 5))
        assert ledger.damaged == []
        return ledger.restored


def test_50_hooks_at_once_on_a_node_without_a_ledger(folder: str) -> None:
    assert forked.at_once(50, lambda i: one_hook(folder, i)) == [0] * 50
    assert expect_all(folder, 50) == ""
    assert sorted(os.listdir(folder)) == ["ledger.lock", "ledger.sqlite3", "protective.json"]


def one_look(folder: str, i: int) -> None:
    """A hook that reads the node's counter, which stands at i, and folds it when its turn comes."""

    def fold(memory: dict[str, Any], look: Any) -> tuple[None, dict[str, Any], Any]:
        changes, new = since(look, later(snapshot(gpu(0, links=0, nvlink_replay_total=i)), i))
        grown = sum(c.amount or 0 for c in changes or () if c.field == "nvlink_replay_total")
        return None, {"first": memory.get("first", i), "grown": memory.get("grown", 0) + grown}, new

    with Ledger.open(folder, patient.LEDGER_S) as ledger:
        ledger.fold_memory(fold)


def test_hooks_at_once_count_each_increment_once(folder: str) -> None:
    """In whatever order they come: the growth from the first look on, not more and not less."""
    assert forked.at_once(20, lambda i: one_look(folder, i)) == [0] * 20
    with Ledger.open(folder, patient.LEDGER_S) as ledger:
        memory: dict[str, Any] = ledger.fold_memory(lambda m, look: (m, m, look))
    assert memory["grown"] == 19 - memory["first"]


def test_50_hooks_at_once_on_a_damaged_ledger_lose_nothing_and_set_it_aside_once(folder: str) -> None:
    os.mkdir(folder)
    with open(os.path.join(folder, "ledger.sqlite3"), "wb") as file:
        file.write(os.urandom(20_000))
    assert forked.at_once(50, lambda i: one_hook(folder, i)) == [0] * 50
    expect_all(folder, 50)
    assert len([n for n in os.listdir(folder) if "corrupt" in n]) == 1


def test_a_hook_that_has_the_old_file_open_follows_to_the_new_one(folder: str) -> None:
    with Ledger.open(folder, 5.0) as early:
        early.exclude(Exclusion("GPU-1", "X", "", "nvhc", 1))
        key = early.save_baseline("8", _snapshot())
        damage(folder)
        with Ledger.open(folder, 5.0) as late:
            assert "set aside" in late.restored
            early.put("from", "early")
            early.exclude(Exclusion("GPU-2", "X", "", "nvhc", 2))
            assert late.get("from") == "early"
            assert late.record_run(Run("epilog", 1, 2, "ok", job_id="9")) > key + 1_000_000  # no key of before means another run
        early.put("still", "here")  # the closing of others did not pull its files away
    with Ledger.open(folder, 5.0) as again:
        assert again.get("still") == "here"
        assert [e.uuid for e in again.exclusions()] == ["GPU-1", "GPU-2"]


def test_a_file_is_not_set_aside_under_a_running_transaction(folder: str) -> None:
    from slurm_nvhc.errors import MonitorError

    def fold(memory: dict[str, Any], look: Any) -> tuple[None, dict[str, Any], Any]:
        with open(os.path.join(folder, "ledger.sqlite3"), "r+b") as file:
            file.write(b"x" * 100)
        with pytest.raises(MonitorError, match="held by another process"):
            Ledger.open(folder, 0.2)
        return None, {"kept": 1}, look

    with Ledger.open(folder, 5.0) as ledger:
        ledger.fold_memory(fold)
        assert not [n for n in os.listdir(folder) if "corrupt" in n]


def test_damage_found_in_the_middle_is_survived_by_the_same_call(folder: str) -> None:
    with Ledger.open(folder, 5.0) as ledger:
        ledger.set_own_drain(OwnDrain("nvhc: x", 1, True))
        damage(folder)
        ledger.put("a", "b")
        assert ledger.get("a") == "b"
        assert ledger.own_drain() == OwnDrain("nvhc: x", 1, True)
        assert "set aside as ledger.sqlite3.corrupt-" in ledger.restored


def test_the_exclusive_lock_is_bounded(folder: str) -> None:
    import fcntl

    from slurm_nvhc.errors import MonitorError

    with Ledger.open(folder, 0.2) as ledger:
        fd = os.open(os.path.join(folder, "ledger.lock"), os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(MonitorError, match="held by another process"):
            ledger.get("a")
        os.close(fd)
        assert ledger.get("a") == ""


def damage(folder: str) -> None:
    """What a broken disk leaves: the file's pages overwritten, its log gone."""
    path = os.path.join(folder, "ledger.sqlite3")
    with open(path, "r+b") as file:
        file.write(os.urandom(os.path.getsize(path)))
    for suffix in ("-wal", "-shm"):
        if os.path.exists(path + suffix):
            with open(path + suffix, "r+b") as file:
                file.write(os.urandom(os.path.getsize(path + suffix)))


def _snapshot() -> Any:
    import build

    return build.snapshot(build.gpu(0))


def writer(folder: str, start: int, acks: int) -> None:
    """Write protective and ordinary rows, telling each one once it is promised."""
    with Ledger.open(folder, patient.LEDGER_S) as ledger:
        for i in range(start, start + 1_000_000):
            ledger.exclude(Exclusion(f"GPU-{i}", "X", "", "nvhc", i))
            ledger.add_intent(Intent("drain", f"nvhc: {i}", i))
            ledger.set_own_drain(OwnDrain(f"nvhc: {i}", i, True))
            if i >= 3:
                ledger.end_exclusion(_ended(f"GPU-{i - 3}"))  # bounds the state; promised as well
                ledger.end_intent(Intent("drain", f"nvhc: {i - 3}", i))
            ledger.fold_memory(lambda m, look, i=i: (None, {"last": i}, look))
            os.write(acks, b"%d\n" % i)


def test_kill_at_random_moments_loses_nothing_promised(folder: str) -> None:
    chance = random.Random(7)
    promised = -1
    for _round in range(40):
        reading, acks = os.pipe()
        pid = forked.start(functools.partial(writer, folder, promised + 1, acks))
        os.close(acks)
        select.select([reading], [], [], 30)
        time.sleep(chance.uniform(0, 0.02))  # not to wait for something: the moment of the kill is the point
        forked.kill(pid)
        told = b""
        while part := os.read(reading, 65536):
            told += part
        os.close(reading)
        promised = int(told.split()[-1])
        with Ledger.open(folder, patient.LEDGER_S) as ledger:
            excluded = {e.since_ns for e in ledger.exclusions()}
            assert set(range(max(0, promised - 1), promised + 1)) <= excluded  # the next round may have released one more
            assert not {n for n in excluded if n < promised - 2}
            assert promised in {i.since_ns for i in ledger.intents()}
            drain = ledger.own_drain()
            assert drain is not None
            assert drain.set_ns >= promised
            assert ledger.fold_memory(lambda m, look: (m["last"], m, look)) >= promised
            assert (ledger.restored, ledger.damaged) == ("", [])
    assert promised >= 39  # every round promised something


@pytest.mark.parametrize("change", ["exclude", "release"])
def test_killed_between_mirror_and_database_the_change_is_made(folder: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(folder, 5.0) as ledger:
        ledger.exclude(Exclusion("GPU-1", "X", "", "nvhc", 1))

    def dies() -> None:
        monkeypatch.setattr(ledger_module, "_set_state", lambda *_: os.kill(os.getpid(), 9))
        with Ledger.open(folder, 5.0) as ledger:
            if change == "exclude":
                ledger.exclude(Exclusion("GPU-2", "X", "", "nvhc", 2))
            else:
                ledger.end_exclusion(_ended("GPU-1"))

    assert forked.wait([forked.start(dies)]) == [-9]
    with Ledger.open(folder, 5.0) as ledger:
        assert [e.uuid for e in ledger.exclusions()] == (["GPU-1", "GPU-2"] if change == "exclude" else [])
        assert ledger.restored == ""  # nothing was wrong


def test_killed_between_mirror_and_database_another_open_hook_builds_on_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies() -> None:
        monkeypatch.setattr(ledger_module, "_set_state", lambda *_: os.kill(os.getpid(), 9))
        with Ledger.open(folder, 5.0) as ledger:
            ledger.exclude(Exclusion("GPU-1", "X", "", "nvhc", 1))

    with Ledger.open(folder, 5.0):
        pass
    pid = forked.start(dies)
    with Ledger.open(folder, 5.0) as ledger:
        assert forked.wait([pid]) == [-9]
        ledger.exclude(Exclusion("GPU-2", "X", "", "nvhc", 2))
        assert [e.uuid for e in ledger.exclusions()] == ["GPU-1", "GPU-2"]


def test_killed_before_the_mirror_nothing_is_half_done(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies() -> None:
        monkeypatch.setattr(ledger_module.mirror, "write", lambda *_: os.kill(os.getpid(), 9))
        with Ledger.open(folder, 5.0) as ledger:
            ledger.exclude(Exclusion("GPU-1", "X", "", "nvhc", 1))

    assert forked.wait([forked.start(dies)]) == [-9]
    with Ledger.open(folder, 5.0) as ledger:
        assert ledger.exclusions() == ()
        assert ledger.restored == ""


def test_killed_while_the_file_is_made(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurm_nvhc.record import schema

    def dies() -> None:
        monkeypatch.setattr(schema, "_TABLES", (*schema._TABLES[:3], "SELECT kill()"))
        real = sqlite3.connect

        def connect(*args: Any, **more: Any) -> sqlite3.Connection:
            conn = real(*args, **more)
            conn.create_function("kill", 0, lambda: os.kill(os.getpid(), 9))
            return conn

        monkeypatch.setattr(sqlite3, "connect", connect)
        Ledger.open(folder, 5.0)

    assert forked.wait([forked.start(dies)]) == [-9]
    with Ledger.open(folder, 5.0) as ledger:
        ledger.put("a", "b")
        assert ledger.restored == ""
    assert not [n for n in os.listdir(folder) if "corrupt" in n]
