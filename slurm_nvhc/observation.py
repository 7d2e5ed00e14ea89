"""Sense, compare, judge: what a run sees and thinks, without doing anything."""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.compare import compare, window_seconds
from slurm_nvhc.context import Context
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, Input, Judgement, Window, judge
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity, settled
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.history import Health
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot, Trouble
from slurm_nvhc.model.times import duration
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.memory import read_health
from slurm_nvhc.slurm import gres as gres_file

SECOND_LOOK_RESERVE_S: Final = 1.0  # a second reading must leave at least this much for judging


class Observation(NamedTuple):
    """What a run saw and thought. ``baseline`` is the ledger's key of the job's start, None without one."""

    snapshot: Snapshot
    before: Optional[Snapshot]
    baseline: Optional[int]
    changes: tuple[Change, ...]
    window: Window
    mapping: GpuMapping
    exclusions: Mapping[str, Exclusion]
    judgement: Judgement


def observe(context: Context) -> Observation:
    """Read the node and judge it; once more when a second look would confirm a fault."""
    baseline, before = _window_start(context)
    cursor = _cursor(context, before)
    snapshot = _read(context, cursor)
    run_id = f"{context.hook}:{snapshot.boot_id}:{snapshot.boot_ns}"
    health = _health(context, snapshot)
    observation = judge_snapshots(context, before, snapshot, baseline, cursor, run_id, health)
    wait_s = context.policy.reread_wait_s
    if observation.judgement.second_look and 0 < wait_s < context.budget.sense_s() - SECOND_LOOK_RESERVE_S:
        again = _read(context, cursor, wait_s)
        if again.gpus is not None or snapshot.gpus is None:
            observation = judge_snapshots(context, before, again, baseline, cursor, run_id, health)
    return observation


def read_now(context: Context) -> Snapshot:
    """A snapshot of the node within the run's budget, with the whole kernel log of this boot."""
    return _read(context, "")


def _read(context: Context, cursor: str, wait_s: float = 0.0) -> Snapshot:
    deadline_s = min(context.policy.engine.timeout_s + wait_s, context.budget.sense_s())
    return read_snapshot(context.node, context.policy.engine, deadline_s, kernel_cursor=cursor, wait_s=wait_s)


def _window_start(context: Context) -> tuple[Optional[int], Optional[Snapshot]]:
    """(baseline key, snapshot) at the start of the window: the job's prolog, or the last health check."""
    book, job = context.book, context.job
    if context.hook == EPILOG and job is not None:
        job_id = job.job_id
        found = book.ask(lambda led: led.baseline(job_id), None)
        return found if found is not None else (None, None)
    if context.hook == HEALTH_CHECK:
        return None, book.ask(lambda led: led.last_seen(), None)
    return None, None


def _cursor(context: Context, before: Optional[Snapshot]) -> str:
    """Where to read the kernel log from: the job's start in an epilog, else what this hook has not seen yet."""
    if context.hook == EPILOG:
        return before.kernel_cursor if before is not None else ""
    return context.book.ask(lambda led: led.get(f"kernel_cursor:{context.hook}"), "")


def _health(context: Context, snapshot: Snapshot) -> Optional[Health]:
    """DCGM's own verdict, where the policy wants it; not from an engine that gave no GPU. Health check only."""
    engine = context.policy.engine
    if context.hook != HEALTH_CHECK or engine.health == "off" or not snapshot.gpus:
        return None
    return read_health(context.node, engine, min(engine.timeout_s, context.budget.sense_s()))


def judge_snapshots(
    context: Context,
    before: Optional[Snapshot],
    snapshot: Snapshot,
    baseline: Optional[int] = None,
    cursor: str = "",
    run_id: str = "",
    health: Optional[Health] = None,
) -> Observation:
    """Judge ``snapshot`` and what changed since ``before``, with what the ledger knows of this node.

    cursor: where the kernel log was read from; '' = from its start. run_id, health: see judge.Input.
    """
    book, job = context.book, context.job
    kept = book.protective()
    known, exclusions = kept.gpus, {e.uuid: e for e in kept.exclusions}
    gres, gres_trouble = _gres(context)
    # Without a listing, the GPUs known from before say which are the job's: the kernel log may convict one of them.
    present = [g.identity for g in snapshot.gpus.values()] if snapshot.gpus is not None else known
    mapping = gres_file.resolve(job.positions if job is not None else None, gres, present, known, context.policy.slurm.job_gpus)
    window = _window(context, snapshot, baseline, before)
    scope = None if job is None else frozenset(mapping.uuids)
    changes = compare(before, snapshot, scope) if before is not None else ()
    troubles = [*context.troubles, *book.troubles, *([gres_trouble] if gres_trouble is not None else [])]
    troubles += health.troubles if health is not None else ()
    if _not_applicable(context, snapshot, known, gres):
        snapshot = snapshot._replace(troubles=())
    inp = Input(
        hook=context.hook,
        snapshot=snapshot,
        before=before,
        changes=changes,
        window=window,
        policy=context.policy,
        job=job,
        mapping=mapping,
        known=known,
        exclusions=exclusions,
        expected_gpus=len(gres.files) or None if gres is not None and not gres.problem else None,
        troubles=tuple(troubles),
        reset_since=_reset_since(context, before, snapshot),
        settled=settled.table(kept.settled),
        events_are_new=bool(cursor),
        run_id=run_id,
        health=health,
    )

    def fold(memory: dict[str, Any]) -> tuple[Judgement, dict[str, Any]]:
        judgement = judge(inp, memory)
        return judgement, dict(judgement.memory) if context.keep else memory

    judgement = book.ask(lambda led: led.fold_memory(fold), None)
    if judgement is None:
        judgement = judge(inp._replace(troubles=tuple(dict.fromkeys([*troubles, *book.troubles]))), {})
    return Observation(snapshot, before, baseline, changes, window, mapping, exclusions, judgement)


def _gres(context: Context) -> tuple[Optional[gres_file.GresList], Optional[Trouble]]:
    if not context.slurm_conf:
        return None, None
    gres, trouble = gres_file.read(context.slurm_conf, context.node)
    needs_it = context.job is not None and bool(context.job.positions)
    return gres, trouble if needs_it else None


def _window(context: Context, snapshot: Snapshot, baseline: Optional[int], before: Optional[Snapshot]) -> Window:
    seconds = window_seconds(before, snapshot) if before is not None else 0.0
    start = before.wall_ns if before is not None else None
    job_text = f"job {context.job.job_id}" if context.job is not None else ""
    if context.hook == HEALTH_CHECK:
        text = f"last {duration(seconds)}" if before is not None else ""
        return Window("watch" if before is not None else "none", f"watch:{snapshot.wall_ns}", start, snapshot.wall_ns, seconds, text)
    kind = "job" if context.hook == EPILOG and before is not None else "none"
    return Window(kind, f"{job_text}:{baseline}", start, snapshot.wall_ns, seconds, job_text)


def _not_applicable(context: Context, snapshot: Snapshot, known: tuple[GpuIdentity, ...], gres: Optional[gres_file.GresList]) -> bool:
    """A node without NVIDIA hardware and without the expectation of any: an absent engine is no trouble there."""
    expected = context.policy.expect.gpus or (gres is not None and gres.files)
    return snapshot.pci_gpus == () and not snapshot.gpus and not known and not expected


def _reset_since(context: Context, before: Optional[Snapshot], snapshot: Snapshot) -> dict[str, int]:
    """GPUs whose counters were reset since an earlier reading -> when that reading was.

    A prolog has no window, but a reset between the last health check and now may be the repair of
    what the kernel log still tells.
    """
    reference = before if before is not None else context.book.ask(lambda led: led.last_seen(), None)
    if reference is None or reference.boot_id != snapshot.boot_id:
        return {}
    went_back = (c for c in compare(reference, snapshot) if c.kind == ch.AT_LEAST)
    return {entity.gpu_of(c.entity): reference.wall_ns for c in went_back}
