"""Forgetting old runs, a few at a time, so that no hook pays for a month at once."""

from __future__ import annotations

import sqlite3
from typing import Final

_DAY_NS: Final = 86_400 * 1_000_000_000
# Our judgement: a baseline whose epilog has not come is kept this long whatever the policy
# says, since a job may run longer than runs are kept. Then its epilog never comes (node crash).
OPEN_DAYS: Final = 90.0
_PAGES: Final = 256  # given back to the file system per call: 1 MiB


def prune(conn: sqlite3.Connection, keep_days: float, now_ns: int, limit: int) -> int:
    """Delete at most ``limit`` runs that ended more than ``keep_days`` before ``now_ns``; returns how many.

    A run stays while a run that is itself kept was measured from it. Protective
    state, memory and notes are never touched. Call it inside a write transaction.
    """
    if not 0 <= keep_days < 1e6:
        return 0  # "for ever", or nonsense: losing records is the worse mistake
    cutoff = now_ns - int(keep_days * _DAY_NS)
    open_cutoff = now_ns - int(max(keep_days, OPEN_DAYS) * _DAY_NS)
    ids = conn.execute(
        """SELECT id FROM runs AS old
           WHERE ended_ns < ? AND (open = 0 OR ended_ns < ?)
             AND NOT EXISTS (SELECT 1 FROM runs AS kept WHERE kept.before_run = old.id AND kept.ended_ns >= ?)
           ORDER BY ended_ns LIMIT ?""",
        (cutoff, open_cutoff, cutoff, max(0, limit)),
    ).fetchall()
    conn.executemany("DELETE FROM run_gpus WHERE run_id = ?", ids)
    conn.executemany("DELETE FROM runs WHERE id = ?", ids)
    return len(ids)


def give_space_back(conn: sqlite3.Connection) -> None:
    """Shrink the file by what deletions left free. Call it inside a write transaction."""
    free = int(conn.execute("PRAGMA freelist_count").fetchone()[0])
    for _page in range(min(free, _PAGES)):
        # One page a call: the sqlite3 module takes only the first step of this statement.
        conn.execute("PRAGMA incremental_vacuum(1)")
