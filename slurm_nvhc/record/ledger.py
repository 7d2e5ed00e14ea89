"""The node's memory: ``<dir>/ledger.sqlite3`` and its mirror ``<dir>/protective.json``.

Two kinds of things are in it. *Protective* state (exclusions, own drain, intents,
known GPUs, what was learned) is durable and mirrored before a call returns. Everything else (runs,
baselines, memory, notes) survives kill -9 at any moment; a power cut may take
back its last moments, never a part of them.

Every method ends within the timeout given to ``open`` and raises nothing but
MonitorError. A hook goes on without its ledger: it never stops a protective step.
Moments are integer nanoseconds UTC.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any, Callable, Collection, Optional, Sequence, TypeVar

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.protective import Ended, Exclusion, Hold, Intent, OwnDrain, Pause, Strike
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.model.tally import Tally
from slurm_nvhc.record import mirror, protective, query, rates, remembered, retention
from slurm_nvhc.record.protective import Protective
from slurm_nvhc.record.run import Run, body_of, gpus_concerned, int64, pack_snapshot, text
from slurm_nvhc.record.store import Store

T = TypeVar("T")


class Ledger:
    """Open with ``Ledger.open``; close it or use it as a context manager.

    restored: '' normally; else one line on what became of a damaged or missing
              ledger and what was restored. For the MON-LEDGER finding.
    damaged:  what could not be read back and was treated as no data, one line each.
    """

    def __init__(self, directory: str, timeout_s: float) -> None:
        self.restored = ""
        self.damaged: list[str] = []
        self._directory = directory
        self._store = Store(directory, timeout_s, self._settle)

    @classmethod
    def open(cls, directory: str, timeout_s: float) -> Ledger:
        """Open the ledger in ``directory``, making both when missing.

        timeout_s bounds this call and each later one. Raises MonitorError: no access,
        no space, locked for the whole time, or written by a newer version.
        """
        ledger = cls(directory, timeout_s)
        try:
            ledger._store.read(lambda conn: None)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # --- protective state ----------------------------------------------------

    def protective(self) -> Protective:
        """All of the protective state at once."""
        return self._store.read(self._kept)

    def exclusions(self) -> tuple[Exclusion, ...]:
        return self.protective().exclusions

    def exclude(self, exclusion: Exclusion) -> None:
        """Exclude a GPU. One that is excluded already keeps its first exclusion."""
        self._protect(lambda state: protective.exclude(state, exclusion))

    def change_exclusion(self, exclusion: Exclusion) -> bool:
        """Another stage, way or age of an exclusion. False when there is none, or nothing differs."""
        return self._protect(lambda state: protective.change_exclusion(state, exclusion))

    def end_exclusion(self, ended: Ended) -> bool:
        """The exclusion is over; it stays among ``protective().ended``. False when there was none."""
        return self._protect(lambda state: protective.end_exclusion(state, ended))

    def set_hold(self, hold: Hold) -> None:
        self._protect(lambda state: protective.set_hold(state, hold))

    def end_hold(self, uuid: str) -> None:
        self._protect(lambda state: protective.end_hold(state, uuid))

    def add_strike(self, strike: Strike) -> None:
        """Count one deed against its limit."""
        self._protect(lambda state: protective.add_strike(state, strike))

    def set_pause(self, pause: Optional[Pause]) -> None:
        """Maintenance until then; None ends it."""
        self._protect(lambda state: state._replace(pause=pause))

    def own_drain(self) -> Optional[OwnDrain]:
        return self.protective().own_drain

    def set_own_drain(self, drain: Optional[OwnDrain]) -> None:
        """The drain that we placed; None once it has ended."""
        self._protect(lambda state: state._replace(own_drain=drain))

    def intents(self) -> tuple[Intent, ...]:
        """Oldest first."""
        return self.protective().intents

    def add_intent(self, intent: Intent) -> None:
        """Note what could not be done yet. One of the same kind and reason is kept, with the keys of both."""
        self._protect(lambda state: protective.add_intent(state, intent))

    def update_intent(self, intent: Intent) -> None:
        """Replace the intent of this kind and reason; one that another hook has ended stays ended."""
        self._protect(lambda state: protective.update_intent(state, intent))

    def end_intent(self, intent: Intent) -> None:
        self._protect(lambda state: protective.end_intent(state, intent))

    def settle(self, names: Sequence[str]) -> None:
        """Sticky events that an administrator settled (model/settled.py names)."""
        self._protect(lambda state: protective.settle(state, names))

    def known_gpus(self) -> tuple[GpuIdentity, ...]:
        """The GPUs that this node has, present or not, by PCI address."""
        return self.protective().gpus

    def remember_gpus(self, snapshot: Snapshot) -> None:
        """Take the snapshot's GPUs as known.

        A known GPU that is not listed stays known until another UUID has its PCI
        address or forget_gpu is called. Written only when the set changed.
        """
        if protective.remember_gpus(before := self.protective(), snapshot) != before:
            self._protect(lambda state: protective.remember_gpus(state, snapshot))

    def forget_gpu(self, uuid: str) -> bool:
        """Forget a GPU that was taken out. False when it was not known."""
        return self._protect(lambda state: protective.forget_gpu(state, uuid))

    def learn(self, lesson: Lesson) -> bool:
        """Keep what a healthy look taught, as far as it is not known yet. False when all of it was."""
        return self._protect(lambda state: protective.learn(state, lesson))

    def accept(self, lesson: Lesson, gone: Collection[tuple[str, str]] = ()) -> bool:
        """An administrator takes ``lesson`` for normal, and expects nothing more of ``gone`` (entity, field). False: no change."""
        return self._protect(lambda state: protective.accept(state, lesson, gone))

    # --- baselines and the last snapshot -------------------------------------

    def save_baseline(self, job_id: str, snapshot: Snapshot) -> int:
        """Keep a job's first snapshot; returns its key, which is the prolog run's id.

        The newest wins: an earlier run of the same job whose epilog never came is ended.
        Slurm's restart count is no key: it differs between prolog and epilog of one run.
        """
        packed, job, at_ns = pack_snapshot(snapshot), text(job_id), int64(snapshot.wall_ns)

        def work(conn: sqlite3.Connection) -> int:
            conn.execute("UPDATE runs SET open = 0 WHERE job_id = ? AND open = 1", (job,))
            return _insert(
                conn,
                """INSERT INTO runs (hook, job_id, user, partition, started_ns, ended_ns, verdict, policy_hash, exit_code, snapshot, open)
                   VALUES ('prolog', ?, '', '', ?, ?, '', '', 0, ?, 1)""",
                (job, at_ns, at_ns, packed),
            )

        return self._store.write(work)

    def baseline(self, job_id: str) -> Optional[tuple[int, Snapshot]]:
        """(key, snapshot) of the job's run that has not ended; None when there is none or it can not be read."""
        row = self._store.read(
            lambda conn: conn.execute(
                "SELECT id, snapshot FROM runs WHERE job_id = ? AND open = 1 ORDER BY id DESC LIMIT 1", (text(job_id),)
            ).fetchone()
        )
        snapshot = query.unpacked(row[1], f"baseline of job {job_id}", self.damaged) if row else None
        return (int(row[0]), snapshot) if snapshot else None

    def end_baseline(self, key: int) -> None:
        """The job's epilog has used it. Its snapshot stays until it is pruned."""
        self._store.write(lambda conn: conn.execute("UPDATE runs SET open = 0 WHERE id = ?", (int64(key),)))

    def last_seen(self) -> Optional[Snapshot]:
        """The health check's previous snapshot; None when there is none or it can not be read."""
        raw = self._store.read(lambda conn: _state(conn, "last_seen"))
        return query.unpacked(raw, "last seen snapshot", self.damaged)

    def save_last_seen(self, snapshot: Snapshot) -> None:
        packed = pack_snapshot(snapshot)
        self._store.write(lambda conn: _set_state(conn, "last_seen", packed))

    # --- memory and notes ----------------------------------------------------

    def fold_memory(
        self,
        fn: Callable[[dict[str, Any], Optional[Look]], tuple[T, dict[str, Any], Optional[Look]]],
        grown: Callable[[T], Sequence[Tally]] = lambda result: (),
    ) -> T:
        """Read the memory and the last look, let ``fn`` return (result, new memory, new last look), write both.

        It is one step for all hooks at once: what has grown since the last look is evidence in the memory exactly
        when the look has moved on. fn must be pure: it may be called twice (a damaged file was replaced between),
        and it must not use the ledger. What it raises is passed on, and nothing is written. A memory that can not
        be read is {}, a look None.

        grown: from the result, the growth since the last look, for the table of rates; added when the look moves on.
        """

        def work(conn: sqlite3.Connection) -> T:
            raw, raw_look = _state(conn, "memory"), _state(conn, "last_look")
            memory, look = remembered.memory_from(raw, self.damaged), remembered.look_from(raw_look, self.damaged)
            result, new, new_look = fn(memory, look)
            try:
                packed = remembered.memory_to(new)
            except (TypeError, ValueError, RecursionError) as exc:
                raise MonitorError(self._store.path, "memory", f"can not be kept: {exc}") from exc
            if packed != raw and (raw is not None or new):
                _set_state(conn, "memory", packed)
            if new_look is not None and new_look is not look:
                _set_state(conn, "last_look", remembered.look_to(new_look))
                rates.add(conn, grown(result), new_look.wall_ns)
            return result

        return self._store.write(work)

    def get(self, key: str) -> str:
        """A note; '' when it was never put."""
        row = self._store.read(lambda conn: conn.execute("SELECT value FROM notes WHERE key = ?", (text(key),)).fetchone())
        return str(row[0]) if row else ""

    def put(self, key: str, value: str) -> None:
        """Keep a small string: kernel log cursor, boot id, hashes of what was reported."""
        statement = "INSERT INTO notes VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        self._store.write(lambda conn: conn.execute(statement, (text(key), text(value))))

    # --- runs ------------------------------------------------------------------

    def record_run(self, run: Run) -> int:
        """Keep a run; returns its id. With ``run.id`` from save_baseline, it finishes that row."""
        try:
            body = body_of(run)
            packed = pack_snapshot(run.snapshot) if run.snapshot else None
            concerned = [text(uuid) for uuid in gpus_concerned(run)]
        except (TypeError, ValueError, RecursionError) as exc:
            raise MonitorError(self._store.path, f"run of {run.hook}", f"can not be kept: {exc}") from exc
        before = None if run.before_run is None else int64(run.before_run)
        values = (
            *(text(s) for s in (run.hook, run.user, run.partition, run.verdict, run.policy_hash)),
            *(int64(n) for n in (run.started_ns, run.ended_ns, run.exit_code)),
            before,
            body,
            packed,
            text(run.job_id),
        )

        def work(conn: sqlite3.Connection) -> int:
            run_id = int64(run.id)
            updated = conn.execute(
                """UPDATE runs SET hook = ?, user = ?, partition = ?, verdict = ?, policy_hash = ?, started_ns = ?, ended_ns = ?,
                   exit_code = ?, before_run = ?, body = ?, snapshot = coalesce(?, snapshot), finished = 1
                   WHERE job_id = ? AND id = ? AND finished = 0""",
                (*values, run_id),
            ).rowcount
            if not updated:
                run_id = _insert(
                    conn,
                    """INSERT INTO runs (hook, user, partition, verdict, policy_hash, started_ns, ended_ns, exit_code,
                       before_run, body, snapshot, job_id, finished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)""",
                    values,
                )
            conn.executemany("INSERT OR IGNORE INTO run_gpus VALUES (?, ?)", [(uuid, run_id) for uuid in concerned])
            return run_id

        return self._store.write(work)

    def runs_of_job(self, job_id: str) -> tuple[Run, ...]:
        """Newest first, without snapshots."""
        return self._store.read(lambda conn: query.runs_of_job(conn, text(job_id), self.damaged))

    def runs_of_gpu(self, uuid: str, limit: int) -> tuple[Run, ...]:
        """Runs of jobs that had this GPU, and runs with a change or finding about it; newest first."""
        return self._store.read(lambda conn: query.runs_of_gpu(conn, text(uuid), int64(limit), self.damaged))

    def recent_runs(self, limit: int) -> tuple[Run, ...]:
        return self._store.read(lambda conn: query.recent_runs(conn, int64(limit), self.damaged))

    def runs_not_ok(self, limit: int) -> tuple[Run, ...]:
        """The newest runs with a verdict other than ok, newest first, without snapshots."""
        return self._store.read(lambda conn: query.runs_not_ok(conn, int64(limit), self.damaged))

    def runs_from(self, after: tuple[int, int], limit: int) -> tuple[Run, ...]:
        """The runs after (ended_ns, id), oldest first, with their snapshots, None for what can not be read."""
        return self._store.read(lambda conn: query.runs_from(conn, (int64(after[0]), int64(after[1])), int64(limit), self.damaged))

    def runs_between(self, hook: str, start_ns: int, end_ns: int) -> tuple[Run, ...]:
        """A hook's runs whose window overlaps a time, newest first, without snapshots; bounded, see query.MOST_BETWEEN."""
        return self._store.read(lambda conn: query.runs_between(conn, text(hook), int64(start_ns), int64(end_ns), self.damaged))

    def runs_within(self, start_ns: int, end_ns: int) -> tuple[Run, ...]:
        """Runs of any hook that ended in a time, both ends included, oldest first, without snapshots; see query.MOST_WITHIN."""
        return self._store.read(lambda conn: query.runs_within(conn, int64(start_ns), int64(end_ns), self.damaged))

    def last_run(self, hook: str) -> Optional[Run]:
        return self._store.read(lambda conn: query.last_run(conn, text(hook), self.damaged))

    def snapshot_of(self, run_id: int) -> Optional[Snapshot]:
        """A run's snapshot (a baseline's by its key); None when there is none or it can not be read."""
        return self._store.read(lambda conn: query.snapshot_of(conn, int64(run_id), self.damaged))

    def rates(self) -> tuple[tuple[Tally, int, int], ...]:
        """(growth of a counter under some versions, first and last moment of it) of all that is known."""
        return self._store.read(rates.read)

    def prune(self, keep_days: float, now_ns: int, limit: int = 500) -> int:
        """Forget at most ``limit`` runs older than ``keep_days``; returns how many. See retention.prune."""

        def work(conn: sqlite3.Connection) -> int:
            deleted = retention.prune(conn, keep_days, int64(now_ns), limit)
            rates.prune(conn)
            if deleted:
                retention.give_space_back(conn)
            mirror.remove_leftovers(self._directory)  # whoever writes the mirror holds this same lock
            return deleted

        return self._store.write(work)

    # --- how the protective state is kept ------------------------------------

    def _kept(self, conn: sqlite3.Connection) -> Protective:
        """What the database says; an empty state when it says nothing readable."""
        raw = _state(conn, "protective")
        if raw is None:
            return Protective()
        try:
            state, lost = protective.loads(raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw))
        except ValueError as exc:
            self.damaged.append(f"protective state: {exc}")
            return Protective()
        if lost:
            self.damaged.append(f"protective state: {lost} entries")
        return state

    def _newest(self, conn: sqlite3.Connection) -> Protective:
        """Database or mirror, whichever is further. Under the write lock both stand still."""
        kept = self._kept(conn)
        mirrored = mirror.read(self._directory).state
        return mirrored if mirrored is not None and mirrored.generation > kept.generation else kept

    def _protect(self, change: Callable[[Protective], Protective]) -> bool:
        """Change the protective state durably in both places. True when there was something to change."""
        changed: list[bool] = []

        def work(conn: sqlite3.Connection) -> None:
            before = self._newest(conn)
            after = change(before)
            changed.append(after != before)
            if after != before:
                self._commit_both(conn, after._replace(generation=before.generation + 1))

        self._store.write(work, durable=True)
        return any(changed)

    def _commit_both(self, conn: sqlite3.Connection, state: Protective) -> None:
        """Mirror first, then the database (committed by the caller's transaction).

        Killed between the two, the mirror is one generation ahead, and whoever opens
        the ledger next rolls the database forward to it: the mirror serves as a redo
        log. The other way round, a change that another hook had already seen in the
        database would be missing from the mirror, and lost if the file were damaged then.
        """
        mirror.write(self._directory, state)
        _set_state(conn, "protective", protective.dumps(state).encode("utf-8"))

    def _settle(self, conn: sqlite3.Connection, why: str) -> None:
        """On a new connection: bring database and mirror together, and say what was restored."""
        kept = self._kept(conn)
        found = mirror.read(self._directory)
        agreed = found.state.generation == kept.generation if found.state else kept.generation == 0
        if not agreed or found.problem:
            self._reconcile(conn)
        damaged = "set aside" in why
        ahead = found.state.generation - kept.generation if found.state else 0
        if found.state and (ahead > 1 or (why and found.state.generation)):
            # One ahead is a writer killed between mirror and commit: nothing was wrong.
            cause = why or "ledger had lost its latest protective changes"
            partly = f" ({found.problem})" if found.problem else ""
            self.restored = f"{cause}; restored from {mirror.FILE}{partly}: {found.state.summary()}"
        elif found.problem and not kept.generation:
            self.restored = f"{why or 'ledger is new'}; {mirror.FILE} can not be used ({found.problem}): protective state is lost"
        elif damaged:
            self.restored = f"{why}; no protective state had been recorded"

    def _reconcile(self, conn: sqlite3.Connection) -> None:
        conn.execute("PRAGMA synchronous=FULL")
        conn.execute("BEGIN IMMEDIATE")
        try:
            kept, found = self._kept(conn), mirror.read(self._directory)
            if found.problem:
                mirror.keep_unreadable(self._directory, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
            if found.state and found.state.generation > kept.generation:
                if found.problem:
                    mirror.write(self._directory, found.state)
                _set_state(conn, "protective", protective.dumps(found.state).encode("utf-8"))
            elif kept.generation and (not found.state or found.problem or found.state.generation < kept.generation):
                try:
                    mirror.write(self._directory, kept)
                except MonitorError as exc:
                    self.damaged.append(str(exc))  # the database has it all: no reason to refuse to work
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            raise


def _state(conn: sqlite3.Connection, key: str) -> Any:
    row = conn.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def _set_state(conn: sqlite3.Connection, key: str, value: bytes) -> None:
    conn.execute("INSERT INTO state VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


def _insert(conn: sqlite3.Connection, statement: str, values: tuple[Any, ...]) -> int:
    return int(conn.execute(statement, values).lastrowid or 0)
