"""Sense, compare, judge: what a run sees and thinks, without doing anything."""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.compare import compare, since, tally, window_seconds
from slurm_nvhc.context import Context
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, Input, Judgement, Window, judge, when, with_diag
from slurm_nvhc.judge.learn import lesson
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity, learned, settled, timeline
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.diag import Report
from slurm_nvhc.model.earlier import Earlier
from slurm_nvhc.model.given import Given
from slurm_nvhc.model.history import Health, History
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.protective import SUSPECTED, Exclusion
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot, Trouble
from slurm_nvhc.model.times import duration
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.memory import read_health, read_history
from slurm_nvhc.slurm import gres as gres_file

SECOND_LOOK_RESERVE_S: Final = 1.0  # a second reading must leave at least this much for judging
# A shorter window has a handful of samples: nothing to compare GPUs by, and "in which minute" is no question.
LEAST_HISTORY_S: Final = 120.0
LEAST_RECALL_S: Final = 0.5  # with less time left the engine is not asked for its samples
# Of the time of one reading. A day of 8 GPUs is half a million samples of 4 µs each in the reader, and the engine's part.
RECALL_TIMEOUTS: Final = 2.0


_Folded = tuple[Judgement, Optional[tuple[Change, ...]]]  # and what has grown since the last look


class Observation(NamedTuple):
    """What a run saw and thought. ``baseline`` is the ledger's key of the job's start, None without one.

    given: what judge was told besides.
    first_look: (wall_ns, boot_ns) of the reading before, when a second one was taken; its own is not kept.
    taught: what this look taught about the node, entity -> field -> reading.
    cursor: where the kernel log was read from.
    """

    snapshot: Snapshot
    before: Optional[Snapshot]
    baseline: Optional[int]
    changes: tuple[Change, ...]
    window: Window
    mapping: GpuMapping
    exclusions: Mapping[str, Exclusion]
    judgement: Judgement
    given: Given
    first_look: Optional[tuple[int, int]] = None
    taught: learned.Table = {}
    cursor: str = ""


def observe(context: Context) -> Observation:
    """Read the node and judge it; once more when a second look would confirm a fault."""
    baseline, before = _window_start(context)
    cursor = _cursor(context, before)
    snapshot = _read(context, cursor)
    run_id = f"{context.hook}:{snapshot.boot_id}:{snapshot.boot_ns}"
    health = _health(context, snapshot)
    history = _history_of_job(context, before, snapshot)
    observation = judge_snapshots(context, before, snapshot, baseline, cursor, run_id, health, history)
    wait_s = context.policy.reread_wait_s
    if observation.judgement.second_look and 0 < wait_s < context.budget.sense_s() - SECOND_LOOK_RESERVE_S:
        again = _read(context, cursor, wait_s)
        if again.gpus is not None or snapshot.gpus is None:
            observation = judge_snapshots(context, before, again, baseline, cursor, run_id, health, history)
            observation = observation._replace(first_look=(snapshot.wall_ns, snapshot.boot_ns))
    return _with_moments(context, observation) if context.hook == HEALTH_CHECK else observation


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


def _history_of_job(context: Context, before: Optional[Snapshot], snapshot: Snapshot) -> Optional[History]:
    """What the engine sampled during the job, for the epilog of a job with GPUs that ran for some minutes."""
    job = context.job
    if context.hook != EPILOG or job is None or not job.positions or before is None or not snapshot.gpus:
        return None
    return _recall(context, before.wall_ns, snapshot.wall_ns) if window_seconds(before, snapshot) >= LEAST_HISTORY_S else None


def _earlier(context: Context, before: Optional[Snapshot], snapshot: Snapshot) -> tuple[Earlier, ...]:
    """What was seen in the time of a job with GPUs that ends: its own prolog, health checks, hooks of other jobs."""
    job = context.job
    if context.hook != EPILOG or job is None or not job.positions or before is None:
        return ()
    runs = context.book.ask(lambda led: led.runs_within(before.wall_ns, snapshot.wall_ns), ())
    return tuple(Earlier(r.hook, r.started_ns, r.ended_ns, r.findings, r.changes) for r in runs)


def _recall(context: Context, since_ns: int, until_ns: int) -> Optional[History]:
    """The engine's samples, within the time that sensing has left. Without them nothing else is judged differently."""
    deadline_s = min(RECALL_TIMEOUTS * context.policy.engine.timeout_s, context.budget.sense_s() - SECOND_LOOK_RESERVE_S)
    if deadline_s < LEAST_RECALL_S:
        return None
    return read_history(context.node, context.policy.engine, deadline_s, since_ns, until_ns, timeline.FIELDS)


def _with_moments(context: Context, observation: Observation) -> Observation:
    """A health check asks for samples only once it found growth that they can place: most find none."""
    window, judgement = observation.window, observation.judgement
    if window.start_ns is None or window.seconds < LEAST_HISTORY_S or not any(when.askable(f) for f in judgement.findings):
        return observation
    history = _recall(context, window.start_ns, window.end_ns)
    findings = when.with_moments(judgement.findings, observation.changes, window, history)
    return observation._replace(judgement=judgement._replace(findings=findings))


def judge_snapshots(
    context: Context,
    before: Optional[Snapshot],
    snapshot: Snapshot,
    baseline: Optional[int] = None,
    cursor: str = "",
    run_id: str = "",
    health: Optional[Health] = None,
    history: Optional[History] = None,
) -> Observation:
    """Judge ``snapshot`` and what changed since ``before``, with what the ledger knows of this node.

    cursor: where the kernel log was read from; '' = from its start. run_id, health, history: see judge.Input.
    """
    kept, job = context.book.protective(), context.job
    known = kept.gpus
    gres, gres_trouble = _gres(context)
    # Without a listing, the GPUs known from before say which are the job's: the kernel log may convict one of them.
    present = [g.identity for g in snapshot.gpus.values()] if snapshot.gpus is not None else known
    mapping = gres_file.resolve(job.positions if job is not None else None, gres, present, known, context.policy.slurm.job_gpus)
    troubles = [*context.troubles, *context.book.troubles, *([gres_trouble] if gres_trouble is not None else [])]
    troubles += health.troubles if health is not None else ()
    if _not_applicable(context, snapshot, known, gres):
        snapshot = snapshot._replace(troubles=())
    given = Given(
        mapping=mapping,
        known=known,
        exclusions={e.uuid: e for e in kept.exclusions if e.stage != SUSPECTED},
        expected_gpus=len(gres.files) or None if gres is not None and not gres.problem else None,
        troubles=tuple(troubles),
        settled=kept.settled,
        learned=learned.table(kept.learned),
        events_are_new=bool(cursor),
        health=health,
        history=history,
        earlier=_earlier(context, before, snapshot),
    )
    return judge_given(context, before, snapshot, baseline, run_id, given)._replace(cursor=cursor)


def judge_given(
    context: Context, before: Optional[Snapshot], snapshot: Snapshot, baseline: Optional[int], run_id: str, given: Given
) -> Observation:
    """As judge_snapshots, with all that is known of the node and the job passed in: only memory is taken from the ledger."""
    book, job = context.book, context.job
    window = _window(context, snapshot, baseline, before)
    scope = None if job is None else frozenset(given.mapping.uuids)
    changes = compare(before, snapshot, scope) if before is not None else ()
    inp = _input(context, snapshot, before, changes, window, given)._replace(run_id=run_id)

    def fold(memory: dict[str, Any], look: Optional[Look]) -> tuple[_Folded, dict[str, Any], Optional[Look]]:
        grown, new_look = since(look, snapshot)
        judgement = judge(inp._replace(since_look=grown, reset_since=_reset_since(look, snapshot, grown or ())), memory)
        if not context.keep:
            return (judgement, grown), memory, look
        return (judgement, grown), dict(judgement.memory), new_look

    folded = book.ask(lambda led: led.fold_memory(fold, lambda result: tally(result[1] or (), snapshot)), None)
    if folded is not None:
        judgement = folded[0]
    else:
        judgement = judge(inp._replace(troubles=tuple(dict.fromkeys([*given.troubles, *book.troubles]))), {})
    taught = lesson(inp, judgement.findings)
    return Observation(snapshot, before, baseline, changes, window, given.mapping, given.exclusions, judgement, given, taught=taught)


def _input(
    context: Context, snapshot: Snapshot, before: Optional[Snapshot], changes: tuple[Change, ...], window: Window, given: Given
) -> Input:
    return Input(
        hook=context.hook,
        snapshot=snapshot,
        before=before,
        changes=changes,
        window=window,
        policy=context.judged_by,
        job=context.job,
        mapping=given.mapping,
        known=given.known,
        exclusions=given.exclusions,
        expected_gpus=given.expected_gpus,
        troubles=given.troubles,
        settled=settled.table(given.settled),
        events_are_new=given.events_are_new,
        health=given.health,
        history=given.history,
        learned=given.learned,
        earlier=given.earlier,
        diag=given.diag,
    )


def look_again(context: Context, seen: Observation) -> Observation:
    """A prolog's look once more, judged anew: something of ours has loaded the GPUs since, and the job begins now.

    ``seen`` itself when the node can not be read any more.
    """
    snapshot = _read(context, seen.cursor)
    if snapshot.gpus is None:
        return seen
    first = seen.first_look or (seen.snapshot.wall_ns, seen.snapshot.boot_ns)
    run_id = f"{context.hook}:{seen.snapshot.boot_id}:{first[1]}"
    return judge_snapshots(context, None, snapshot, None, seen.cursor, run_id)._replace(first_look=first)


def with_report(context: Context, seen: Observation, report: Report) -> Observation:
    """With what a diagnostic said, judged beside what was judged before."""
    given = seen.given._replace(diag=report)
    inp = _input(context, seen.snapshot, seen.before, seen.changes, seen.window, given)
    return seen._replace(given=given, judgement=with_diag(inp, seen.judgement, report))


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


def _reset_since(look: Optional[Look], snapshot: Snapshot, grown: tuple[Change, ...]) -> dict[str, int]:
    """GPUs whose counters were reset since the last look, in this boot -> when that look was."""
    out: dict[str, int] = {}
    if look is not None and look.boot_id == snapshot.boot_id:
        for change in grown:
            if change.kind == ch.AT_LEAST:
                uuid, read_ns = entity.gpu_of(change.entity), look.moment(change.entity, change.field)[0]
                if uuid:  # a part of the node is none
                    out[uuid] = min(read_ns, out.get(uuid, read_ns))
    return out
