"""The ledger's tables, and what a SQLite error says about the file."""

from __future__ import annotations

import sqlite3
from typing import Final

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.record import rates

VERSION: Final = 2
APPLICATION_ID: Final = 0x6E766863  # "nvhc": tells our file from any other SQLite file

# state: one document a key (protective, memory, last_seen, last_look). notes: small strings.
# runs:  every hook run; a prolog's row is made early, as the job's baseline, and finished later.
#        open = 1: a baseline whose epilog has not come yet.
# run_gpus: which runs say something about a GPU.
# rates: growth of counters by versions, record/rates.py.
_TABLES: Final = (
    "CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        hook TEXT NOT NULL, job_id TEXT NOT NULL, user TEXT NOT NULL, partition TEXT NOT NULL,
        started_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL,
        verdict TEXT NOT NULL, policy_hash TEXT NOT NULL, exit_code INTEGER NOT NULL,
        before_run INTEGER, snapshot BLOB, body BLOB,
        open INTEGER NOT NULL DEFAULT 0, finished INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX runs_job ON runs (job_id, id)",
    "CREATE INDEX runs_hook ON runs (hook, id)",
    "CREATE INDEX runs_end ON runs (ended_ns)",
    "CREATE INDEX runs_before ON runs (before_run) WHERE before_run IS NOT NULL",
    "CREATE TABLE run_gpus (uuid TEXT NOT NULL, run_id INTEGER NOT NULL, PRIMARY KEY (uuid, run_id)) WITHOUT ROWID",
    "CREATE INDEX run_gpus_run ON run_gpus (run_id)",
    rates.TABLE,
)
# What a ledger of an earlier version lacks. It holds drains and exclusions, so it is carried on, never begun anew.
_SINCE: Final = {1: (rates.TABLE,)}


class Damaged(Exception):
    """The file is not a ledger, or not one any more. The text says why."""


def create(conn: sqlite3.Connection, first_id: int) -> None:
    """Make the tables in an empty file. Run ids start at ``first_id``. Raises sqlite3.Error.

    Killed half way, the file is still empty for ``is_ready`` and the next one starts anew.
    """
    conn.execute("PRAGMA auto_vacuum=INCREMENTAL")  # so that retention gives space back; only possible now
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        conn.execute(statement)
    conn.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('runs', ?)", (first_id - 1,))
    conn.execute(f"PRAGMA application_id={APPLICATION_ID}")
    conn.execute(f"PRAGMA user_version={VERSION}")
    conn.execute("COMMIT")


def is_ready(conn: sqlite3.Connection, path: str) -> bool:
    """True for our ledger, which is brought up to this version, False for an empty file.

    Raises Damaged for anything else, MonitorError for a ledger of a newer version
    (which is left alone: the newer version will want it back), sqlite3.Error.
    """
    version = int(conn.execute("PRAGMA user_version").fetchone()[0])
    application = int(conn.execute("PRAGMA application_id").fetchone()[0])
    if application == APPLICATION_ID:
        if version == VERSION:
            return True
        if version in _SINCE:
            _bring_up(conn)
            return True
        raise MonitorError(path, "", f"has schema {version}, this version knows {VERSION}", "was slurm-nvhc downgraded?")
    if application == 0 and version == 0 and not conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return False
    raise Damaged("is a SQLite file of something else")


def _bring_up(conn: sqlite3.Connection) -> None:
    """Add what the file lacks: all of it or nothing, once, whoever else has opened it."""
    conn.execute("BEGIN IMMEDIATE")
    try:
        version = int(conn.execute("PRAGMA user_version").fetchone()[0])
        for step in range(version, VERSION):
            for statement in _SINCE[step]:
                conn.execute(statement)
        conn.execute(f"PRAGMA user_version={VERSION}")
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def is_damage(exc: sqlite3.Error) -> bool:
    """True when the file itself is at fault, not its surroundings (lock, space, permission).

    SQLITE_CORRUPT and SQLITE_NOTADB arrive as plain DatabaseError; a table or column
    of ours that is missing means that somebody else wrote the schema.
    """
    if type(exc) is sqlite3.DatabaseError:
        return True
    text = str(exc)
    return isinstance(exc, sqlite3.OperationalError) and text.startswith(("no such table", "no such column", "malformed"))


def trouble(path: str, exc: sqlite3.Error) -> MonitorError:
    """A SQLite error that is not damage, in an administrator's words."""
    text = str(exc)
    hints = (
        ("is full", "free some space"),
        ("readonly", "is the file system mounted read-only, and does this run as root?"),
        ("unable to open", "check the directory's permissions and free space"),
        ("disk I/O", "check free space and the disk itself"),
        ("locked", "another hook held it for the whole time allowed"),
    )
    return MonitorError(path, "", text, next((hint for key, hint in hints if key in text), ""))
