"""The ledger's file: connections, transactions, and setting a damaged file aside."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from typing import Callable, Final, Optional, TypeVar

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.proc.files import make_private_dir
from slurm_nvhc.record import schema
from slurm_nvhc.record.lock import DirectoryLock

T = TypeVar("T")

FILE: Final = "ledger.sqlite3"
LOCK: Final = "ledger.lock"
KEEP_ASIDE: Final = 3  # our judgement: enough to study, and a dying disk can not fill itself with copies
_ATTEMPTS: Final = 3  # make the file, replace a damaged one, do the work


class Store:
    """One connection to ``<directory>/ledger.sqlite3``.

    settle: called once on every new connection with (connection, why), before any work.
            ``why`` is '' or one clause on what became of the file before ("was missing", …).
    Every call ends within ``timeout_s`` apart from the disk's own slowness, and fails
    with MonitorError only (besides what the caller's own function raises).
    """

    def __init__(self, directory: str, timeout_s: float, settle: Callable[[sqlite3.Connection, str], None]) -> None:
        self.directory = directory
        self.path = os.path.join(directory, FILE)
        self._timeout_s = timeout_s
        self._settle = settle
        self._conn: Optional[sqlite3.Connection] = None
        self._ident: Optional[tuple[int, int]] = None  # device and inode of the file that _conn is on
        self._why = ""
        try:
            make_private_dir(directory)
            self._lock = DirectoryLock(os.path.join(directory, LOCK))
        except OSError as exc:
            raise MonitorError(directory, "", f"can not be used: {exc.strerror or exc}", "check its permissions and free space") from exc

    def close(self) -> None:
        self._disconnect()
        self._lock.close()

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """``work`` with a connection; it only reads."""
        return self._guarded(work)

    def write(self, work: Callable[[sqlite3.Connection], T], durable: bool = False) -> T:
        """``work`` inside one write transaction. It may be called again on a new file after damage.

        durable: on disk before this returns (synchronous=FULL). Otherwise a power cut may
        take back the last transactions, never a part of one; kill -9 takes back nothing.
        """

        def transaction(conn: sqlite3.Connection) -> T:
            conn.execute("PRAGMA synchronous=FULL" if durable else "PRAGMA synchronous=NORMAL")
            conn.execute("BEGIN IMMEDIATE")
            try:
                result = work(conn)
                conn.execute("COMMIT")
            except BaseException:
                if conn.in_transaction:
                    try:
                        conn.execute("ROLLBACK")
                    except sqlite3.Error:
                        pass  # the file is beyond that; the first error tells
                raise
            return result

        return self._guarded(transaction)

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        deadline = time.monotonic() + self._timeout_s
        for _attempt in range(_ATTEMPTS):
            try:
                return self._once(work, deadline)
            except schema.Damaged as exc:
                problem = str(exc)
            except sqlite3.Error as exc:
                if not schema.is_damage(exc):
                    raise schema.trouble(self.path, exc) from exc
                problem = str(exc)
            self._replace(problem, deadline)
        raise MonitorError(self.path, "", f"is damaged again right after a new one was made: {problem}", "check the disk")

    def _once(self, work: Callable[[sqlite3.Connection], T], deadline: float) -> T:
        self._lock.acquire(exclusive=False, deadline=deadline)
        try:
            conn = self._connected(deadline)
            _limit(conn, deadline)
            return work(conn)
        finally:
            self._lock.release()

    def _connected(self, deadline: float) -> sqlite3.Connection:
        """The connection, on the file that has the ledger's name now: another hook may have replaced it."""
        ident = self._look()
        if self._conn is not None and ident == self._ident:
            return self._conn
        self._disconnect()
        self._ident = ident
        if ident is None:
            raise schema.Damaged("was missing")
        conn = _connect(self.path, deadline)
        try:
            if not schema.is_ready(conn, self.path):
                raise schema.Damaged("was empty")
            self._settle(conn, self._why)
        except BaseException:
            conn.close()
            raise
        self._why = ""
        self._conn = conn
        return conn

    def _look(self) -> Optional[tuple[int, int]]:
        """Device and inode under the ledger's name; None when there is nothing. Raises Damaged, MonitorError."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise MonitorError(self.path, "", f"can not be looked at: {exc.strerror}") from exc
        ident = (found.st_dev, found.st_ino)
        if not stat.S_ISREG(found.st_mode):
            self._ident = ident
            raise schema.Damaged("is not a regular file")
        return ident

    def _replace(self, problem: str, deadline: float) -> None:
        """Set the file aside and make a new one, unless another hook has done so meanwhile."""
        self._lock.acquire(exclusive=True, deadline=deadline)
        try:
            found = _identity(self.path)
            if found is not None and found != self._ident:
                return  # replaced by another hook: use theirs
            why = f"ledger {problem}"
            if found is not None and problem != "was empty":
                name = self._set_aside()
                why += f": set aside as {name}"
                # Ids go on from a number that the old file can not have reached, so that a
                # baseline's key handed out before the damage never means another run.
                first_id = int(time.time())
            else:
                first_id = 1
            self._disconnect()
            try:
                if _identity(self.path) is None:
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except OSError as exc:
                raise MonitorError(self.path, "", f"can not be made: {exc.strerror}") from exc
            conn = _connect(self.path, deadline)
            try:
                if not schema.is_ready(conn, self.path):
                    schema.create(conn, first_id)
                    self._why = why
            finally:
                conn.close()
        except sqlite3.Error as exc:
            raise schema.trouble(self.path, exc) from exc
        except schema.Damaged as exc:
            raise MonitorError(self.path, "", str(exc)) from exc
        finally:
            self._lock.release()

    def _set_aside(self) -> str:
        """Rename the file and its -wal and -shm; returns the new name.

        The write-ahead log goes first. Killed in between, the damaged file is still in
        place and the next hook goes on here; the other way round SQLite could replay
        the old log into the new file. Renamed before our own connection is closed: SQLite
        sees that its file has moved and leaves the files of the new one alone.
        """
        base = f"{FILE}.corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        name, number = base, 1
        while os.path.lexists(os.path.join(self.directory, name)):
            number += 1
            name = f"{base}.{number}"
        try:
            for suffix in ("-wal", "-shm", ""):
                if os.path.lexists(self.path + suffix):
                    os.rename(self.path + suffix, os.path.join(self.directory, name) + suffix)
        except OSError as exc:
            raise MonitorError(self.path, "", f"is damaged and can not be set aside: {exc.strerror}") from exc
        _forget_older(self.directory)
        return name

    def _disconnect(self) -> None:
        if self._conn is not None:
            try:
                self._conn.close()
            except sqlite3.Error:
                pass  # nothing is pending: every transaction has ended
            self._conn = None


def _connect(path: str, deadline: float) -> sqlite3.Connection:
    conn = sqlite3.connect(path, isolation_level=None)
    # Text that is not UTF-8 can only come from damage or a foreign hand: show it, do not fail on it.
    conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
    _limit(conn, deadline)
    return conn


def _limit(conn: sqlite3.Connection, deadline: float) -> None:
    conn.execute(f"PRAGMA busy_timeout={max(1, int((deadline - time.monotonic()) * 1000))}")


def _identity(path: str) -> Optional[tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _forget_older(directory: str) -> None:
    """Keep the newest KEEP_ASIDE files that were set aside; a directory among them is left alone."""
    prefix = f"{FILE}.corrupt-"
    try:
        names = sorted(n for n in os.listdir(directory) if n.startswith(prefix) and not n.endswith(("-wal", "-shm")))
    except OSError:
        return
    for name in names[:-KEEP_ASIDE]:
        for suffix in ("-wal", "-shm", ""):
            try:
                os.unlink(os.path.join(directory, name) + suffix)
            except OSError:
                pass
