"""Reading runs back. Lists hold finished runs only, newest first but for runs_from."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, Optional, Sequence

from slurm_nvhc.errors import NvhcError
from slurm_nvhc.model.finding import OK
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.record.run import Run, unpack_snapshot, with_body

# What decoding a damaged row can raise: our own errors and those of wrong shapes.
DECODE_ERRORS: Final = (NvhcError, ValueError, TypeError, KeyError, AttributeError)

MOST_BETWEEN: Final = 5000  # two weeks of health checks at the usual 5 minutes
# An epilog reads them, some 1 ms each: half a day of health checks, and of a longer job the worst and the newest.
MOST_WITHIN: Final = 150

_COLUMNS: Final = "id, hook, job_id, user, partition, started_ns, ended_ns, verdict, policy_hash, exit_code, before_run, body"


def runs_of_job(conn: sqlite3.Connection, job_id: str, damaged: list[str]) -> tuple[Run, ...]:
    return _runs(conn, "WHERE finished = 1 AND job_id = ? ORDER BY id DESC", (job_id,), damaged)


def runs_of_gpu(conn: sqlite3.Connection, uuid: str, limit: int, damaged: list[str]) -> tuple[Run, ...]:
    where = "WHERE finished = 1 AND id IN (SELECT run_id FROM run_gpus WHERE uuid = ?) ORDER BY id DESC LIMIT ?"
    return _runs(conn, where, (uuid, limit), damaged)


def recent_runs(conn: sqlite3.Connection, limit: int, damaged: list[str]) -> tuple[Run, ...]:
    return _runs(conn, "WHERE finished = 1 ORDER BY id DESC LIMIT ?", (limit,), damaged)


def runs_not_ok(conn: sqlite3.Connection, limit: int, damaged: list[str]) -> tuple[Run, ...]:
    return _runs(conn, "WHERE finished = 1 AND verdict <> ? ORDER BY id DESC LIMIT ?", (OK, limit), damaged)


def runs_from(conn: sqlite3.Connection, after: tuple[int, int], limit: int, damaged: list[str]) -> tuple[Run, ...]:
    """Runs after (ended_ns, id), oldest first, with their snapshots."""
    statement = f"SELECT {_COLUMNS}, snapshot FROM runs WHERE finished = 1 AND (ended_ns, id) > (?, ?) ORDER BY ended_ns, id LIMIT ?"
    out = []
    for row in conn.execute(statement, (*after, limit)).fetchall():
        run = _run(row, damaged)
        if run is not None:
            out.append(run._replace(snapshot=unpacked(row[-1], f"snapshot of run {run.id}", damaged)))
    return tuple(out)


def runs_between(conn: sqlite3.Connection, hook: str, start_ns: int, end_ns: int, damaged: list[str]) -> tuple[Run, ...]:
    """The runs of a hook whose window overlaps a time."""
    where = "WHERE finished = 1 AND hook = ? AND ended_ns > ? AND started_ns < ? ORDER BY id DESC LIMIT ?"
    return _runs(conn, where, (hook, start_ns, end_ns, MOST_BETWEEN), damaged)


def runs_within(conn: sqlite3.Connection, start_ns: int, end_ns: int, damaged: list[str]) -> tuple[Run, ...]:
    """Runs of all hooks that ended in a time, oldest first. Of more than MOST_WITHIN the worst are taken, then the newest."""
    where = """WHERE id IN (SELECT id FROM runs WHERE finished = 1 AND ended_ns BETWEEN ? AND ?
               ORDER BY CASE verdict WHEN 'fail' THEN 0 WHEN 'warn' THEN 1 ELSE 2 END, id DESC LIMIT ?) ORDER BY ended_ns, id"""
    return _runs(conn, where, (start_ns, end_ns, MOST_WITHIN), damaged)


def last_run(conn: sqlite3.Connection, hook: str, damaged: list[str]) -> Optional[Run]:
    found = _runs(conn, "WHERE finished = 1 AND hook = ? ORDER BY id DESC LIMIT 1", (hook,), damaged)
    return found[0] if found else None


def snapshot_of(conn: sqlite3.Connection, run_id: int, damaged: list[str]) -> Optional[Snapshot]:
    row = conn.execute("SELECT snapshot FROM runs WHERE id = ?", (run_id,)).fetchone()
    return unpacked(row[0], f"snapshot of run {run_id}", damaged) if row else None


def unpacked(raw: Any, what: str, damaged: list[str]) -> Optional[Snapshot]:
    """The snapshot, or None when there is none or it can not be read; the latter is added to ``damaged``."""
    if raw is None:
        return None
    try:
        return unpack_snapshot(raw)
    except DECODE_ERRORS as exc:
        damaged.append(f"{what}: {' '.join(str(exc).split())}")
        return None


def _runs(conn: sqlite3.Connection, where: str, values: Sequence[Any], damaged: list[str]) -> tuple[Run, ...]:
    rows = conn.execute(f"SELECT {_COLUMNS} FROM runs {where}", values).fetchall()
    return tuple(run for run in (_run(row, damaged) for row in rows) if run is not None)


def _run(row: Sequence[Any], damaged: list[str]) -> Optional[Run]:
    """A row whose body is damaged still tells who, when and which verdict."""
    try:
        run = Run(
            id=int(row[0]),
            hook=str(row[1]),
            job_id=str(row[2]),
            user=str(row[3]),
            partition=str(row[4]),
            started_ns=int(row[5]),
            ended_ns=int(row[6]),
            verdict=str(row[7]),
            policy_hash=str(row[8]),
            exit_code=int(row[9]),
            before_run=None if row[10] is None else int(row[10]),
        )
    except (TypeError, ValueError) as exc:
        damaged.append(f"run {row[0]!r}: {exc}")
        return None
    try:
        return with_body(run, row[11])
    except DECODE_ERRORS as exc:
        damaged.append(f"run {run.id}: {' '.join(str(exc).split())}")
        return run
