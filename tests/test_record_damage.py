"""Files that are not what they should be, disks that are full, directories that may not be written."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from typing import Any, Callable

import forked
import patient
import pytest

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.protective import Exclusion, Intent, OwnDrain
from slurm_nvhc.record import mirror, schema
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run

DRAIN = OwnDrain("nvhc: NVL-STORM gpu3", 7, True, ("NVL-STORM GPU-1",), ("e",))
INTENT = Intent("drain", "nvhc: x", 5, ("k",), (), 2)
EXCLUSION = Exclusion("GPU-1", "NVL-STORM", "why", "alice", 9)


def filled(folder: str) -> str:
    """A ledger with protective state and enough rows for several pages; its path."""
    import build

    with Ledger.open(folder, 5.0) as ledger:
        ledger.exclude(EXCLUSION)
        ledger.set_own_drain(DRAIN)
        ledger.add_intent(INTENT)
        ledger.remember_gpus(build.snapshot(build.gpu(0), build.gpu(1)))
        for i in range(30):
            ledger.record_run(Run("epilog", i, i, "ok", job_id=str(i), outcome={"x": os.urandom(300).hex()}))
    return os.path.join(folder, "ledger.sqlite3")


@pytest.fixture
def folder(tmp_path: Any) -> str:
    return str(tmp_path / "n1")


def put(path: str, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def a_damaged_page(path: str) -> None:
    """Both the file and its log, so that neither page 1 is to be had from the other."""
    for name in (path, path + "-wal"):
        with open(name, "r+b") as file:
            file.write(b"x" * os.path.getsize(name))


def a_directory(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)
    put(os.path.join(path, "inside"), b"keep me")


def a_fifo(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path)


def a_foreign_database(path: str) -> None:
    os.unlink(path)
    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE songs (x)")
    conn.commit()
    conn.close()


def without_a_table(path: str) -> None:
    conn = sqlite3.connect(path)
    conn.execute("DROP TABLE state")
    conn.commit()
    conn.close()


BROKEN: dict[str, Callable[[str], None]] = {
    "random bytes": lambda p: put(p, os.urandom(50_000)),
    "random after the header": lambda p: put(p, content(p)[:100] + os.urandom(50_000)),
    "cut in the middle of a page": lambda p: put(p, content(p)[:10_001]),
    "cut after the first page": lambda p: put(p, content(p)[:4096]),
    "text": lambda p: put(p, b"not a database\n" * 1000),
    "a directory": a_directory,
    "a fifo": a_fifo,
    "another program's database": a_foreign_database,
    "a table gone": without_a_table,
}


def expect_protective(ledger: Ledger) -> None:
    assert ledger.exclusions() == (EXCLUSION,)
    assert ledger.own_drain() == DRAIN
    assert ledger.intents() == (INTENT,)
    assert len(ledger.known_gpus()) == 2


@pytest.mark.parametrize("how", BROKEN)
def test_a_damaged_file_is_set_aside_and_protective_state_restored(folder: str, how: str) -> None:
    path = filled(folder)
    BROKEN[how](path)
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
        assert ledger.record_run(Run("epilog", 1, 2, "ok")) > 0
        assert "set aside as ledger.sqlite3.corrupt-" in ledger.restored
        assert "restored from protective.json: 1 exclusion, own drain, 1 intent, 2 known GPUs" in ledger.restored
        assert "\n" not in ledger.restored
    assert len([n for n in os.listdir(folder) if ".corrupt-" in n]) == 1
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
        assert ledger.restored == ""
        assert len(ledger.recent_runs(9)) == 1


@pytest.mark.parametrize("how", ["zero length", "one byte", "deleted", "deleted, old log left"])
def test_a_missing_ledger_is_restored_too(folder: str, how: str) -> None:
    path = filled(folder)
    if how in ("zero length", "one byte"):
        put(path, b"x" * (how == "one byte"))  # less than a page: SQLite takes it for empty
    else:
        os.unlink(path)
    if "log" in how:
        put(path + "-wal", os.urandom(9000))
        put(path + "-shm", os.urandom(32768))
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
        assert "restored from protective.json" in ledger.restored
        assert ("missing" if "deleted" in how else "empty") in ledger.restored
    with Ledger.open(folder, 5.0) as ledger:
        assert ledger.restored == ""


@pytest.mark.parametrize("what", ["random", "cut", "one byte changed"])
def test_garbage_in_the_log_costs_no_protective_state(folder: str, what: str) -> None:
    def dies() -> None:
        ledger = Ledger.open(folder, 5.0)
        ledger.exclude(EXCLUSION)
        ledger.set_own_drain(DRAIN)
        ledger.add_intent(INTENT)
        import build

        ledger.remember_gpus(build.snapshot(build.gpu(0), build.gpu(1)))
        os.kill(os.getpid(), 9)  # so that the log is not folded into the file

    with Ledger.open(folder, 5.0):
        pass
    assert forked.wait([forked.start(dies)]) == [-9]
    log = os.path.join(folder, "ledger.sqlite3-wal")
    raw = content(log)
    assert len(raw) > 8192
    changed = raw[:60] + bytes([raw[60] ^ 255]) + raw[61:]
    put(log, {"random": os.urandom(len(raw)), "cut": raw[: len(raw) // 3], "one byte changed": changed}[what])
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
        assert "lost its latest protective changes; restored from protective.json" in ledger.restored


def test_the_log_goes_with_the_file_that_is_set_aside(folder: str) -> None:
    """So that what was in it can still be studied."""
    filled(folder)

    def dies() -> None:
        Ledger.open(folder, 5.0).set_own_drain(None)
        os.kill(os.getpid(), 9)

    assert forked.wait([forked.start(dies)]) == [-9]
    path = os.path.join(folder, "ledger.sqlite3")
    with Ledger.open(folder, 5.0) as ledger:
        a_damaged_page(path)
        ledger.put("a", "b")
        assert "set aside" in ledger.restored
        assert ledger.own_drain() is None
    assert sorted(n[-4:] for n in os.listdir(folder) if "corrupt" in n and n[-4:] in ("-wal", "-shm")) == ["-shm", "-wal"]


def test_damage_behind_the_first_pages_is_found_when_it_is_read(folder: str) -> None:
    path = filled(folder)
    raw = content(path)
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
    pages = len(raw) // 4096
    put(path, raw[: 4096 * 8] + b"\xff" * (4096 * (pages - 8)))
    with Ledger.open(folder, 5.0) as ledger:
        ledger.recent_runs(100)
        ledger.record_run(Run("epilog", 1, 2, "ok"))
        expect_protective(ledger)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"schema": 99}', b'{"schema": 1}', b"\xff", b"[" * 100_000])
def test_a_broken_mirror_beside_a_good_ledger_is_made_anew(folder: str, raw: bytes) -> None:
    filled(folder)
    put(mirror.path_in(folder), raw)
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
        assert ledger.restored == ""
    state = mirror.read(folder).state
    assert state is not None
    assert state.own_drain == DRAIN


def test_a_fifo_in_the_mirror_s_place_hangs_nobody(folder: str) -> None:
    filled(folder)
    a_fifo(mirror.path_in(folder))
    pid = forked.start(lambda: Ledger.open(folder, 5.0).close())
    deadline = time.monotonic() + patient.LEDGER_S
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            forked.kill(pid)
            pytest.fail("hangs")
        time.sleep(0.01)
    assert done[1] == 0
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)


def test_a_missing_mirror_is_made_anew(folder: str) -> None:
    filled(folder)
    os.unlink(mirror.path_in(folder))
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
    assert mirror.read(folder).state is not None


def test_both_broken_is_said_and_both_are_kept(folder: str) -> None:
    put(filled(folder), os.urandom(9999))
    put(mirror.path_in(folder), b"{ broken")
    with Ledger.open(folder, 5.0) as ledger:
        assert ledger.exclusions() == ()
        assert "protective state is lost" in ledger.restored
        ledger.exclude(EXCLUSION)
    kept = [n for n in os.listdir(folder) if "corrupt" in n]
    assert len(kept) == 2
    assert any(content(os.path.join(folder, n)) == b"{ broken" for n in kept)


def test_one_broken_entry_in_the_mirror_does_not_cost_the_others(folder: str) -> None:
    path = filled(folder)
    document = json.loads(content(mirror.path_in(folder)))
    document["exclusions"] += [{"uuid": 5}, None, "x", {}]
    document["intents"] = "no list"
    put(mirror.path_in(folder), json.dumps(document).encode())
    os.unlink(path)
    with Ledger.open(folder, 5.0) as ledger:
        assert ledger.exclusions() == (EXCLUSION,)
        assert ledger.own_drain() == DRAIN
        assert ledger.intents() == ()
        assert "5 of its entries could not be read" in ledger.restored


def test_a_damaged_protective_row_is_restored(folder: str) -> None:
    path = filled(folder)
    conn = sqlite3.connect(path)
    conn.execute("UPDATE state SET value = 'junk' WHERE key = 'protective'")
    conn.commit()
    conn.close()
    with Ledger.open(folder, 5.0) as ledger:
        expect_protective(ledger)
        assert "restored" in ledger.restored


def test_a_ledger_without_protective_state_needs_no_mirror(folder: str) -> None:
    with Ledger.open(folder, 5.0) as ledger:
        ledger.put("a", "b")
    put(os.path.join(folder, "ledger.sqlite3"), b"x" * 5000)
    with Ledger.open(folder, 5.0) as ledger:
        assert "no protective state had been recorded" in ledger.restored
    assert not os.path.exists(mirror.path_in(folder))


def test_only_the_newest_damaged_files_are_kept(folder: str) -> None:
    for _ in range(6):
        put(filled(folder), b"x" * 5000)
    Ledger.open(folder, 5.0).close()
    assert len([n for n in os.listdir(folder) if "corrupt" in n]) == 3


def test_only_the_newest_mirrors_set_aside_are_kept(folder: str) -> None:
    os.makedirs(folder)
    for n in range(6):
        put(mirror.path_in(folder), b"broken %d" % n)
        assert mirror.keep_unreadable(folder, f"2026010{n}T000000Z") in os.listdir(folder)
    assert sorted(os.listdir(folder)) == [f"{mirror.FILE}.corrupt-2026010{n}T000000Z" for n in (3, 4, 5)]
    assert content(os.path.join(folder, f"{mirror.FILE}.corrupt-20260105T000000Z")) == b"broken 5"


def test_a_ledger_of_a_newer_version_is_left_alone(folder: str) -> None:
    path = filled(folder)
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA user_version=99")
    conn.commit()
    conn.close()
    before = content(path)
    with pytest.raises(MonitorError, match=f"has schema 99, this version knows {schema.VERSION}"):
        Ledger.open(folder, 5.0)
    assert content(path) == before
    assert not [n for n in os.listdir(folder) if "corrupt" in n]
    state = mirror.read(folder).state  # what a hook falls back on
    assert state is not None
    assert state.exclusions == (EXCLUSION,)


@pytest.mark.parametrize("name", ["", "ledger.lock", "protective.json"])
def test_things_in_the_way(folder: str, name: str) -> None:
    if name:
        os.makedirs(os.path.join(folder, name))
    else:
        put(folder, b"a file")
    descriptors = len(os.listdir("/proc/self/fd"))
    if name == "protective.json":
        with Ledger.open(folder, 5.0) as ledger:  # the directory is moved out of the way
            ledger.exclude(EXCLUSION)
            assert ledger.exclusions() == (EXCLUSION,)
    else:
        with pytest.raises(MonitorError) as caught:
            Ledger.open(folder, 5.0)
        assert "\n" not in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_directory_vanishes_under_an_open_ledger(folder: str) -> None:
    with Ledger.open(folder, 5.0) as ledger:
        shutil.rmtree(folder)
        with pytest.raises(MonitorError):
            ledger.put("a", "b")
    with Ledger.open(folder, 5.0) as ledger:
        ledger.put("a", "b")


FULL = """
import sys
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run
import os, resource
folder, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
lines = []
def attempt(work):
    try:
        work()
    except MonitorError as exc:
        assert chr(10) not in str(exc)
        lines.append(str(exc))
try:
    ledger = Ledger.open(folder, 2.0)
except MonitorError as exc:
    print("open:", exc)
    sys.exit(0)
kept = 0
for i in range(300):
    attempt(lambda: ledger.record_run(Run("epilog", i, i, "ok", outcome={"x": os.urandom(3000).hex()})))
    attempt(lambda: ledger.exclude(Exclusion(f"GPU-x{i}", "X", "", "nvhc", i)))
    kept = len(ledger.exclusions()) if not lines else kept
    if len(lines) > 4:
        break
attempt(lambda: ledger.prune(0.0, 10**18))
ledger.close()
print(kept, len(lines), lines[0] if lines else "")
"""


def full(folder: str, limit: int) -> str:
    done = subprocess.run([sys.executable, "-c", FULL, folder, str(limit)], capture_output=True, text=True, timeout=patient.PROCESS_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def expect_survived(folder: str, told: str) -> None:
    kept, failures, line = told.split(" ", 2)
    assert int(failures) > 0, told
    assert "ledger.sqlite3" in line or "protective.json" in line
    with Ledger.open(folder, 5.0) as ledger:
        excluded = {e.uuid for e in ledger.exclusions()}
        assert {f"GPU-x{i}" for i in range(int(kept) - 1)} <= excluded
        assert not [n for n in os.listdir(folder) if "corrupt" in n]
        ledger.put("works", "again")


def test_files_that_may_not_grow(folder: str) -> None:
    filled(folder)
    assert "open:" in full(folder, 2000)
    expect_survived(folder, full(folder, 600_000))


def test_a_full_disk(tmp_path: Any) -> None:
    disk = str(tmp_path / "disk")
    os.mkdir(disk)
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", disk]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root and mount; test_files_that_may_not_grow covers the same without")
    try:
        folder = os.path.join(disk, "n1")
        told = full(folder, 0)
        put_until_full(os.path.join(disk, "filler"))
        with pytest.raises(MonitorError):
            Ledger.open(os.path.join(disk, "n2"), 1.0)
        state = mirror.read(folder).state  # what a hook has when the ledger can not be opened
        assert state is not None
        assert len(state.exclusions) >= int(told.split()[0])
        os.unlink(os.path.join(disk, "filler"))
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        expect_survived(folder, told)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(MonitorError, match="can not be used"):
            Ledger.open(folder, 1.0)
    finally:
        subprocess.run(["umount", disk], check=True)


def put_until_full(path: str) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
    except OSError:
        pass


def as_nobody(work: Callable[[], None]) -> None:
    def demoted() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        work()

    assert forked.wait([forked.start(demoted)]) == [0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_directory_of_somebody_else(tmp_path: Any, mode: int) -> None:
    import tempfile

    top = tempfile.mkdtemp()  # tmp_path is closed to other users
    try:
        os.chmod(top, 0o755)
        folder = os.path.join(top, "n1")
        filled(folder)
        os.chmod(folder, mode)

        def work() -> None:
            for place in (folder, os.path.join(top, "n2")):
                with pytest.raises(MonitorError) as caught:
                    Ledger.open(place, 0.5)
                assert "\n" not in str(caught.value)
                assert place in str(caught.value)

        as_nobody(work)
        assert not [n for n in os.listdir(folder) if "corrupt" in n]
    finally:
        shutil.rmtree(top)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_file_of_somebody_else_in_a_directory_of_ours(tmp_path: Any) -> None:
    import tempfile

    top = tempfile.mkdtemp()
    try:
        folder = os.path.join(top, "n1")
        filled(folder)
        os.chown(top, 65534, 65534)
        os.chown(folder, 65534, 65534)
        os.chown(os.path.join(folder, "ledger.lock"), 65534, 65534)

        def work() -> None:
            with pytest.raises(MonitorError):
                Ledger.open(folder, 0.5)

        as_nobody(work)
        assert not [n for n in os.listdir(folder) if "corrupt" in n]
    finally:
        shutil.rmtree(top)
