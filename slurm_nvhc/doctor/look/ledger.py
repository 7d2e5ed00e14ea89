"""The ledger, read without opening it for writing: an ordinary open would set a damaged file aside."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from typing import Final, Optional
from urllib.parse import quote

from slurm_nvhc import diagnose
from slurm_nvhc.doctor.facts import LastRun, LedgerFacts
from slurm_nvhc.doctor.ledger import HOOKS
from slurm_nvhc.doctor.look.edges import Edges, within
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model import tested
from slurm_nvhc.model.tested import Tested
from slurm_nvhc.record import mirror, query, schema, store

LEDGER_S: Final = 5.0
_Kept = tuple[dict[str, Optional[LastRun]], str, tuple[Tested, ...]]


def look(edges: Edges, state: str, node: str) -> LedgerFacts:
    directory = os.path.join(state, node)
    slow = LedgerFacts(directory, True, f"did not answer within {LEDGER_S:g} s", denied=True)
    return within(LEDGER_S, lambda: _look(edges, directory), slow)


def _look(edges: Edges, directory: str) -> LedgerFacts:
    real = edges.at(directory)
    path = os.path.join(real, store.FILE)
    try:
        names = os.listdir(real)
        size = sum(os.stat(os.path.join(real, name)).st_size for name in names if name in (store.FILE, f"{store.FILE}-wal"))
    except FileNotFoundError:
        return LedgerFacts(directory, False)
    except OSError as exc:
        return LedgerFacts(directory, True, exc.strerror or str(exc), denied=True)
    mirrored = mirror.read(real)
    kept = mirrored.state
    aside = tuple(sorted(n for n in names if n.startswith(f"{store.FILE}.corrupt-") and not n.endswith(("-wal", "-shm"))))
    facts = LedgerFacts(
        directory,
        store.FILE in names,
        size=size,
        set_aside=aside,
        protective_problem=f"{mirror.path_in(directory)}: {mirrored.problem}" if mirrored.problem else "",
    )
    if kept is not None:
        facts = facts._replace(exclusions=kept.exclusions, holds=kept.holds, own_drain=kept.own_drain, intents=kept.intents)
        facts = facts._replace(known=kept.gpus, pause=kept.pause)
    if not facts.there:
        return facts
    try:
        runs, mark, so_far = _without_trace(path)
        return facts._replace(runs=runs, tested=so_far, diag=diagnose.parse_mark(mark), diag_alive=_held(os.path.join(real, diagnose.LOCK)))
    except sqlite3.OperationalError as exc:
        return facts._replace(problem=str(exc), denied=not os.access(path, os.R_OK))
    except (sqlite3.Error, schema.Damaged) as exc:
        return facts._replace(problem=" ".join(str(exc).split()))
    except MonitorError as exc:
        return facts._replace(problem=exc.problem)


def _held(path: str) -> bool:
    """Does whoever runs a diagnostic still live? Its lock dies with it."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _without_trace(path: str) -> _Kept:
    """Without a write-ahead log no hook is at work, and the file alone is the ledger: read as unchangeable, no log is made.

    One that begins meanwhile makes such a reading worthless; there is a log then.
    """
    if not os.path.exists(f"{path}-wal"):
        try:
            return _kept(path, "immutable=1")
        except (sqlite3.Error, schema.Damaged):
            if not os.path.exists(f"{path}-wal"):
                raise
    return _kept(path, "mode=ro")


def _kept(path: str, how: str) -> _Kept:
    """The last run of each hook, the mark of a diagnostic, and what diagnostics said of each GPU."""
    conn = sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, timeout=LEDGER_S / 2, isolation_level=None)
    try:
        conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
        if not schema.is_ready(conn, path):
            raise schema.Damaged("is empty")
        runs = {hook: query.last_run(conn, hook, []) for hook in HOOKS}
        mark = conn.execute("SELECT value FROM notes WHERE key = ?", (diagnose.MARK,)).fetchone()
        last = {hook: None if r is None else LastRun(hook, r.ended_ns, r.verdict, r.job_id) for hook, r in runs.items()}
        notes = conn.execute("SELECT value FROM notes WHERE key GLOB 'diag:*'").fetchall()
        return last, str(mark[0]) if mark else "", tuple(found for (note,) in notes if (found := tested.loads(str(note))) is not None)
    finally:
        conn.close()
