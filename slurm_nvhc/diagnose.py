"""Diagnostics in hooks, between judging and acting; and the one way in which anything of ours runs a diagnostic.

A diagnostic is the engine's child, not ours: whoever asked for it may die, and it goes on, into the next job. So one lock
and one mark per node hold: the lock is held while one of ours runs, and dies with whoever holds it; the mark is in the
ledger before a diagnostic begins, and until it is seen to be over. A mark without a lock is what a dead run has left, and
the next hook ends it.
"""

from __future__ import annotations

import json
import time
from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.act.ownership import same_drain
from slurm_nvhc.catalog import diags
from slurm_nvhc.context import Context
from slurm_nvhc.ground import left_alone
from slurm_nvhc.judge import HEALTH_CHECK, PROLOG, wanted_diag
from slurm_nvhc.model import diag, placeholder, tested
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.diag import Ask, Report, Result
from slurm_nvhc.model.protective import OwnDrain
from slurm_nvhc.model.snapshot import Snapshot, Trouble
from slurm_nvhc.model.tested import Tested
from slurm_nvhc.observation import Observation, look_again, with_report
from slurm_nvhc.proc import log
from slurm_nvhc.record import lock
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.sense import diag as engine_diag
from slurm_nvhc.sense.diag import STOP_S
from slurm_nvhc.slurm import gres as gres_file
from slurm_nvhc.slurm.command import SlurmError
from slurm_nvhc.slurm.jobs import SlurmJobs
from slurm_nvhc.slurm.node import SlurmCommands

MARK: Final = "diag_running"  # the ledger's note
LOCK: Final = "diag.lock"  # in the node's state directory
CODE: Final = "MON-DIAG"
END_SHARE: Final = 0.5  # of what sensing has left may be spent on ending what a dead run has left
LOOK_S: Final = 2.0  # for reading the node: 0.1 s on a simulated one, and our judgement for an engine
SLURM_SHARE: Final = 0.25  # of what sensing has left, for each call that tells whether the node is empty
_DRAINED: Final = "diag_drained"  # the ledger's note of what was done about our drain: "<set_ns> told" or "<set_ns> done"
_WORST: Final = (diag.FAILED, diag.STOPPED, diag.NOT_STARTED, diag.DONE)


class Mark(NamedTuple):
    """A diagnostic of ours that runs, or was left. by: who runs it; since_ns: the node's clock."""

    by: str
    since_ns: int
    tests: tuple[str, ...]
    uuids: tuple[str, ...]


# --- the hook's step


def diagnosed(context: Context, seen: Observation) -> Observation:
    """The run's diagnostics, judged with everything else. ``seen`` itself where the policy wants none, and in a pause.

    In observe mode they do run: a site that tries the policy out wants to see what they find. They load the GPUs, and change nothing.
    """
    if context.pause is not None or not seen.snapshot.gpus:
        return seen
    report = _drained(context, seen) if context.hook == HEALTH_CHECK else _of_job(context, seen)
    if report is None:
        return seen
    if report.outcome != diag.NOT_STARTED and _looks_again(context, report.tests):
        seen = look_again(context, seen)
    return with_report(context, seen, report)


def _of_job(context: Context, seen: Observation) -> Optional[Report]:
    job = context.job
    if job is None or not job.positions or (context.hook == PROLOG and _decided(seen)):
        return None
    # A GPU that is kept from this job anyway is no ground to make it wait.
    gpus = [u for u in seen.mapping.uuids if context.hook != PROLOG or u not in seen.exclusions]
    asks = wanted_diag.asks(context.hook, job, gpus, seen.snapshot, seen.judgement.findings, context.policy)
    # A job of all GPUs is certain whatever the numbers mean, unless one that is gone may be among them.
    known = {row.uuid for row in seen.given.known}
    certain = seen.mapping.exact or set(seen.mapping.uuids) == set(seen.snapshot.gpus or {}) >= known
    reports = []
    for ask in asks:
        if diags.active(ask.tests) and not certain:
            why = f"not run: which GPUs the job has is not certain: {seen.mapping.why}"
            reports.append(not_run(ask, why, seen.snapshot))
        else:
            reports.append(_short_of_time(context, seen.snapshot, ask) or _on_free(context, seen.snapshot, ask))
    return _together(reports)


def _decided(seen: Observation) -> bool:
    """Is something wrong with the job's GPUs already, and will be acted on? Then nothing waits for a test."""
    return any(p.of_job and p.action in (fd.NARROW, fd.DRAIN) for p in seen.judgement.decision.proposals)


def _drained(context: Context, seen: Observation) -> Optional[Report]:
    """A health check's, once per drain of ours, while that keeps the node empty."""
    asks = wanted_diag.asks(HEALTH_CHECK, None, tuple(seen.snapshot.gpus or {}), seen.snapshot, (), context.policy)
    own = context.book.protective().own_drain if asks else None
    if own is None or not own.confirmed:
        return None
    name, _, stage = context.book.ask(lambda led: led.get(_DRAINED), "").partition(" ")
    stage = stage if name == str(own.set_ns) else ""
    short = [report for ask in asks if (report := _short_of_time(context, seen.snapshot, ask)) is not None]
    if stage == "done" or (short and stage):
        return None
    if short:
        _keep_stage(context, own, "told")  # not again at each health check: that would only hide what else is found
        return _together(short)
    if not _empty(context, own):
        return None
    report = _together([_short_of_time(context, seen.snapshot, ask) or _on_free(context, seen.snapshot, ask) for ask in asks])
    if report is not None and report.outcome != diag.NOT_STARTED:
        _keep_stage(context, own, "done")
    return report


def _keep_stage(context: Context, own: OwnDrain, stage: str) -> None:
    _put(context, _DRAINED, f"{own.set_ns} {stage}")


def _empty(context: Context, own: OwnDrain) -> bool:
    """Is the node out by this very drain, and without jobs? Our placeholder jobs compute nothing. False when Slurm does not say."""
    slurm, seconds = context.policy.slurm, context.budget.sense_s() * SLURM_SHARE
    try:
        state = SlurmCommands(slurm.bin_dir, context.slurm_conf, slurm.timeout_s).node_state(context.node, seconds)
        if state.rebooting or not same_drain(own, state):
            return False
        jobs = SlurmJobs(slurm.bin_dir, context.slurm_conf, slurm.timeout_s).of_node(context.node, seconds)
    except SlurmError:
        return False  # act asks for the state too, and tells the trouble
    return all(placeholder.is_ours(job) for job in jobs)


def _on_free(context: Context, snapshot: Snapshot, ask: Ask) -> Report:
    """On those of the GPUs that nobody uses; the others have no result, and it says why."""
    taken = {uuid: why for uuid in ask.uuids if (why := left_alone(snapshot, uuid))} if diags.active(ask.tests) else {}
    free = tuple(uuid for uuid in ask.uuids if uuid not in taken)
    if not free:
        return not_run(ask, "not run: " + _each(snapshot, taken), snapshot)
    report = run(context, snapshot, ask._replace(uuids=free), _time_s(context, ask), who(context))
    if report.outcome == diag.NOT_STARTED:
        return report._replace(uuids=ask.uuids)
    return report._replace(results=(*report.results, *_no_results(ask, taken)))


def _no_results(ask: Ask, taken: Mapping[str, str]) -> tuple[Result, ...]:
    tests = diags.core(ask.tests)
    status = {uuid: diag.BUSY if why.startswith("busy") else diag.NOT_RUN for uuid, why in taken.items()}
    return tuple(Result(test, uuid, status[uuid], info=why) for uuid, why in taken.items() for test in tests)


def _each(snapshot: Snapshot, taken: Mapping[str, str]) -> str:
    """'gpu0 busy: 2 processes compute on it; gpu1 lost'"""
    gpus = snapshot.gpus or {}
    index = {uuid: gpus[uuid].identity.nvml_index if uuid in gpus else None for uuid in taken}
    return "; ".join(f"{uuid if index[uuid] is None else f'gpu{index[uuid]}'} {why}" for uuid, why in taken.items())


def _together(reports: Sequence[Report]) -> Optional[Report]:
    """GPUs of different models may want different tests: one report of all, which has come to its end when each has."""
    if len(reports) < 2:
        return reports[0] if reports else None
    worst = min(reports, key=lambda r: _WORST.index(r.outcome))
    return worst._replace(
        tests=tuple(dict.fromkeys(t for r in reports for t in r.tests)),
        uuids=tuple(u for r in reports for u in r.uuids),
        results=tuple(result for r in reports for result in r.results),
        why="; ".join(dict.fromkeys(r.why for r in reports if r.why)),
        started_ns=min(r.started_ns for r in reports),
        ended_ns=max(r.ended_ns for r in reports),
        left=any(r.left for r in reports),
        missing=tuple(dict.fromkeys(t for r in reports for t in r.missing)),
        troubles=tuple(t for r in reports for t in r.troubles),
    )


def who(context: Context) -> str:
    name = context.hook.replace("_", " ")
    return f"{name} of job {context.job.job_id}" if context.job is not None else name


# --- time


def usual_s(context: Context, ask: Ask) -> float:
    """How long this usually takes, seconds: as it took on these GPUs, or else as the catalogue says."""
    return tested.usual_s(ask.tests, [found for uuid in ask.uuids if (found := last(context, uuid)) is not None])


def _time_s(context: Context, ask: Ask) -> float:
    """What this hook has for it, its stop included, seconds. A prolog reads the node again after a test that loads it."""
    return max(0.0, context.budget.sense_s() - (LOOK_S if _looks_again(context, ask.tests) else 0.0))


def _looks_again(context: Context, tests: tuple[str, ...]) -> bool:
    """The job begins after it: what the diagnostic did to the counters is none of the job's."""
    return context.hook == PROLOG and diags.active(tests)


def _short_of_time(context: Context, snapshot: Snapshot, ask: Ask) -> Optional[Report]:
    """A report that says so when it does not fit in what sensing has left; None when it fits.

    The hook's share for acting stays untouched, and STOP_S is for ending one that takes longer than it should.
    """
    usual, left = usual_s(context, ask), _time_s(context, ask) - STOP_S
    if usual <= left:
        return None
    take = "takes" if len(ask.tests) == 1 else "take"
    why = f"{diags.told(ask.tests)} usually {take} {usual:.0f} s, {max(0.0, left):.0f} s are left"
    return not_run(ask, f"not run (budget): {why}", snapshot)


# --- the marked run


def run(context: Context, snapshot: Snapshot, ask: Ask, seconds: float, by: str) -> Report:
    """Run a diagnostic within ``seconds``, the stop of one that takes longer included, and keep what it said of each GPU.

    by: who runs it, for people. Whether the GPUs may be used was decided before (ground.py). One at a time: the engine knows
    no more, and which one a stop would end could not be told.
    """
    with lock.held(_lock(context), 0.0) as ours:
        if not ours:
            other = _mark(context)
            why = f"one is running already, begun by {other.by}" if other else f"{_lock(context)} is held, or can not be"
            return not_run(ask, f"not run: {why}", snapshot)
        left = _end(context, min(STOP_S, seconds * END_SHARE))
        if left:
            return not_run(ask, f"not run: {left[0].detail}", snapshot)._replace(troubles=left)
        mark = Mark(by, snapshot.wall_ns, ask.tests, ask.uuids)
        if not _put(context, MARK, json.dumps(mark._asdict())):
            # Killed now, nobody would know that one runs.
            return not_run(ask, "not run: the ledger can not keep that one is running", snapshot)
        end = time.monotonic() + seconds
        report = engine_diag.run(context.node, context.policy.engine, ask, seconds)
        if report.left and not _stopped(context, mark, min(STOP_S, end - time.monotonic())):
            # The reader died, not the engine.
            report = report._replace(left=False, troubles=tuple(t for t in report.troubles if t.code != CODE))
        if not report.left:
            _clear(context)
    if report.outcome != diag.NOT_STARTED:
        _keep(context, snapshot, report, by)
    return report


def not_run(ask: Ask, why: str, snapshot: Snapshot) -> Report:
    return Report(diag.NOT_STARTED, ask.tests, ask.uuids, why=why, started_ns=snapshot.wall_ns, ended_ns=snapshot.wall_ns)


def _keep(context: Context, snapshot: Snapshot, report: Report, by: str) -> None:
    gpus = snapshot.gpus or {}
    for uuid in report.uuids:
        policy = context.policy.for_model(gpus[uuid].identity.model) if uuid in gpus else context.policy
        found = tested.dumps(tested.after(last(context, uuid), report, uuid, by, policy.diagnostics.require))
        _put(context, _key(uuid), found)


def last(context: Context, uuid: str) -> Optional[Tested]:
    """What diagnostics have said of this GPU so far; None when none was begun on it, or nobody knows."""
    return tested.loads(context.book.ask(lambda led: led.get(_key(uuid)), ""))


def stands_failed(context: Context, uuid: str) -> bool:
    """Has a test of hardware failed on this GPU, and not passed there after that? A look shows no more of it."""
    known = last(context, uuid)
    return known is not None and diags.active(tuple(known.failed))


def _key(uuid: str) -> str:
    return f"diag:{uuid}"


# --- what was left running


def end_left(context: Context) -> tuple[Trouble, ...]:
    """End the diagnostic that a dead run of ours has left in the engine, before anything else of the hook looks at the node.

    One whose run is alive is somebody's work and goes on; but not beside a job that was given its GPUs (somebody resumed a
    node that was being tested) or whose time on them is over. Troubles: what may still run, and could not be ended.
    """
    mark = _mark(context)
    if mark is None:
        return ()
    seconds = min(STOP_S, context.budget.sense_s() * END_SHARE)
    with lock.held(_lock(context), 0.0) as ours:
        if ours:
            return _end(context, seconds)
    if not _in_the_way(context, mark):
        return ()
    log.warning(f"{context.hook} {context.node}: the diagnostic begun by {mark.by} is stopped: it loads GPUs of this job")
    return _stopped(context, mark, seconds)


def _end(context: Context, seconds: float) -> tuple[Trouble, ...]:
    """With the lock held: end what a dead run has left, and take its mark away once it is seen to be gone."""
    mark = _mark(context)
    if mark is None:
        return ()
    troubles = _stopped(context, mark, seconds)
    if not troubles:
        _clear(context)
        log.warning(f"{context.hook} {context.node}: the diagnostic that {mark.by} had left is over")
    return troubles


def _stopped(context: Context, mark: Mark, seconds: float) -> tuple[Trouble, ...]:
    found = engine_diag.stop(context.node, context.policy.engine, seconds)
    if found.gone:
        return ()
    why = "; ".join(t.detail for t in found.troubles)
    state = "could not be ended" if found.known and found.ran else "may still run"
    said = f"the diagnostic ({diags.told(mark.tests)}) begun by {mark.by} {state}{f': {why}' if why else ''}"
    return (Trouble(CODE, "diag", said),)


def _in_the_way(context: Context, mark: Mark) -> bool:
    """Does it load GPUs of this hook's job? Before the node is read: by the GPUs that the ledger knows. What is not certain counts."""
    job = context.job
    if job is None or not job.positions or not diags.active(mark.tests):
        return False
    known = context.book.protective().gpus
    gres = gres_file.read(context.slurm_conf, context.node)[0] if context.slurm_conf else None
    mapping = gres_file.resolve(job.positions, gres, known, known, context.policy.slurm.job_gpus)
    return not mapping.exact or bool(set(mapping.uuids) & set(mark.uuids))


def _lock(context: Context) -> str:
    return f"{context.site.state}/{context.node}/{LOCK}"


def _mark(context: Context) -> Optional[Mark]:
    return parse_mark(context.book.ask(lambda led: led.get(MARK), ""))


def parse_mark(text: str) -> Optional[Mark]:
    """None for '': none of ours runs."""
    if not text:
        return None
    try:
        raw = json.loads(text)
        return Mark(str(raw["by"]), int(raw["since_ns"]), tuple(map(str, raw["tests"])), tuple(map(str, raw["uuids"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Mark("an earlier run", 0, (), ())  # one was left, whatever it was


def _clear(context: Context) -> None:
    _put(context, MARK, "")


def _put(context: Context, key: str, text: str) -> bool:
    """False when the ledger could not keep it."""

    def work(ledger: Ledger) -> bool:
        ledger.put(key, text)
        return True

    return context.book.ask(work, False)
