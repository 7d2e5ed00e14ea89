"""The table of error rates: how much each counter grew, in how many hours, under which versions."""

from __future__ import annotations

import sqlite3
from typing import Final, Iterable

from slurm_nvhc.model.tally import Tally, Versions
from slurm_nvhc.record.run import int64, text

TABLE: Final = """CREATE TABLE rates (
        model TEXT NOT NULL, driver TEXT NOT NULL, vbios TEXT NOT NULL, fabric_manager TEXT NOT NULL, field TEXT NOT NULL,
        amount REAL NOT NULL, hours REAL NOT NULL, first_ns INTEGER NOT NULL, last_ns INTEGER NOT NULL,
        PRIMARY KEY (model, driver, vbios, fabric_manager, field)) WITHOUT ROWID"""

# A node has some sixty counters and sees a handful of driver versions a year: a decade fits.
KEEP_ROWS: Final = 4096


def add(conn: sqlite3.Connection, tallies: Iterable[Tally], now_ns: int) -> None:
    """Add growth and hours to their rows. Call it inside the transaction that moves the last look on: once for each look."""
    now = int64(now_ns)
    conn.executemany(
        """INSERT INTO rates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
           amount = amount + excluded.amount, hours = hours + excluded.hours, last_ns = max(last_ns, excluded.last_ns)""",
        [(*(text(v) for v in t.versions), text(t.field), t.amount, t.hours, now, now) for t in tallies],
    )


def read(conn: sqlite3.Connection) -> tuple[tuple[Tally, int, int], ...]:
    """(tally, first and last moment in ns) of every row."""
    rows = conn.execute("SELECT model, driver, vbios, fabric_manager, field, amount, hours, first_ns, last_ns FROM rates").fetchall()
    return tuple((Tally(Versions(*map(str, r[:4])), str(r[4]), float(r[5]), float(r[6])), int(r[7]), int(r[8])) for r in rows)


def prune(conn: sqlite3.Connection) -> None:
    """Keep the KEEP_ROWS that grew last. Call it inside a write transaction."""
    conn.execute(
        """DELETE FROM rates WHERE (model, driver, vbios, fabric_manager, field) IN
           (SELECT model, driver, vbios, fabric_manager, field FROM rates ORDER BY last_ns DESC LIMIT -1 OFFSET ?)""",
        (KEEP_ROWS,),
    )
