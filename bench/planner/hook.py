"""One hook run through the real pipeline (plan and execute), with the model's Slurm, ledger and judgement in place of the machine's."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Final, Iterator, Optional
from unittest import mock

from planner import truth
from planner.commands import Budget, Commands
from planner.kept import NEVER, Book, EpilogRun
from planner.truth import RAISED, Run
from planner.world import Cell, Killed, Step, Violation, World
from slurm_nvhc import pipeline
from slurm_nvhc.act import narrow
from slurm_nvhc.act.tools import Tools
from slurm_nvhc.act.words import plain
from slurm_nvhc.context import Context, Site
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.judge import Window
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.given import Given
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.protective import SUSPECTED
from slurm_nvhc.model.snapshot import OK, GpuIdentity, GpuState, Snapshot
from slurm_nvhc.observation import Observation
from slurm_nvhc.proc import log, mounts
from slurm_nvhc.record import lock
from slurm_nvhc.slurm import conf

SITE: Final = Site("/nonexistent/policy.yaml", "/nonexistent/state", "/nonexistent/run")
CONF: Final = {True: "/nonexistent/alone/slurm.conf", False: "/nonexistent/slurm.conf"}
BUDGET_S: Final = {"prolog": 8.0, "epilog": 20.0, "health_check": 30.0}


def run_hook(world: World, cell: Cell, hook: str, job_id: str, step: Step, manner: tuple[Any, ...]) -> bool:
    """One run, to its end or until it is killed; True: the prolog fails the job. manner: (late, refuses, ledger_fails_from, killed_at)."""
    late, refuses, fails_from, killed_at = manner
    if not cell.inside:
        cell.released, cell.resumed_inside, cell.together = set(), False, False
    elif world.slurmctld == "ok":
        world.count("hooks that waited for the lock of another one")
        return False
    else:
        cell.together = True
    pause = cell.kept.state.pause
    if pause is not None and world.now_ns >= pause.until_ns:
        pause = None
    policy = world.policy
    positions = cell.jobs[job_id].positions if job_id in cell.jobs else None
    exclusions = {e.uuid: e for e in cell.kept.state.exclusions if e.stage != SUSPECTED}
    judged = policy._replace(mode=fd.OBSERVE) if pause is not None else policy
    look = cell.hw.look(judged, hook, positions, frozenset(exclusions), cell.kept.state.settled)
    run = Run(hook, policy, look, [f for f in cell.hw.faults if cell.hw.readable(f)], cell.inside > 0)
    run.quiet = policy.mode == fd.OBSERVE or pause is not None
    run.began_ns = world.now_ns
    run.disk_full = refuses and fails_from is not None
    run.excluded = frozenset(exclusions)
    run.intents, run.own = cell.kept.state.intents, cell.kept.state.own_drain
    budget = Budget(BUDGET_S[hook])
    saved = (world.at, world.during, world.killed_at)
    world.at, world.during, world.killed_at = 0, step.during, killed_at
    cell.inside += 1
    book = Book(cell.kept, world.moment, NEVER if fails_from is None else fails_from)
    book.commands = Commands(world, cell, run, budget, late, refuses)  # type: ignore[attr-defined]
    book.commands.book = book
    book.run = run  # type: ignore[attr-defined]
    job = Job(job_id, 1001, "ada", "gpu", positions or None, "", 1, 1) if positions is not None else None
    context: Any = Context(hook, SITE, cell.node.name, job, policy, budget, book, CONF[world.setting.alone], (), pause=pause)  # type: ignore[arg-type]
    fails = False
    try:
        seen = _observation(world, cell, look, positions, exclusions)
        pipeline._keep_start(context, seen)
        pipeline._count_looks(context, seen)
        result = pipeline._act(context, seen)
        fails = result.fail_hook
        ours = [t.detail for t in result.late if t.code == "MON-INTERNAL" and t.detail.startswith("step ")]
        if ours:
            raise Violation(RAISED, ours[0])  # kept from the other steps, but a fault all the same
    except Killed:
        run.killed = True
        world.count("hooks killed")
    except Exception as exc:
        raise Violation(RAISED, f"{type(exc).__name__}: {exc}") from exc
    finally:
        cell.inside -= 1
        world.at, world.during, world.killed_at = saved
    world.count(f"runs of {hook.replace('_', ' ')}s")
    if hook == "epilog" and not run.killed and not book.failed:
        cell.kept.epilogs = [*cell.kept.epilogs[-20:], EpilogRun(job_id, run.began_ns)]
        cell.kept.baselines.pop(job_id, None)
    if not run.killed:
        truth.after(world, run, cell, book.failed)
        if hook == "prolog" and positions is not None:
            truth.prolog(world, run, cell, positions, fails, book.failed, job_id not in cell.jobs or cell.jobs[job_id].state != "RUNNING")
    return fails


def _observation(world: World, cell: Cell, look: Any, positions: Optional[tuple[int, ...]], exclusions: Any) -> Observation:
    snapshot = Snapshot(
        cell.node.name, "sim", "4.2.3", f"boot{cell.boots}", world.now_ns, world.now_ns - cell.node.booted_ns,
        gpus=_gpus(cell.hw.uuids, frozenset(cell.hw.quiet)) if cell.hw.engine else None, events_known=True,
    )  # fmt: skip
    mapping = cell.hw.mapping(positions or ())
    window = Window("none", "", None, world.now_ns, 0.0, "")
    return Observation(snapshot, None, None, (), window, mapping, exclusions, look, Given(mapping))


@functools.lru_cache(maxsize=256)
def _gpus(uuids: tuple[str, ...], quiet: frozenset[int]) -> dict[str, GpuState]:
    out = {}
    for n, uuid in enumerate(uuids):
        readings: dict[str, Any] = {} if n in quiet else {"fault": 0}
        out[uuid] = GpuState(GpuIdentity(uuid, f"0000:{n:02x}:00.0", nvml_index=n), OK, readings, {5: readings})
    return out


class _Jobs:
    """The pipeline asks for jobs after it has asked for the node: by the same run's commands."""

    def job(self, job_id: str, node: str, timeout_s: Optional[float] = None) -> Any:
        return _current[node].job(job_id, node)

    def of_node(self, node: str, timeout_s: Optional[float] = None) -> Any:
        return _current[node].of_node(node)


@contextlib.contextmanager
def machine() -> Iterator[None]:
    """Within it the pipeline meets the model instead of scontrol, lock file, templates, exclusion files and syslog."""

    def write(run_dir: str, node: str, job: Job, mapping: Any, uuids: tuple[str, ...], constrain: Any, why: str) -> None:
        run = _prologs[node, job.job_id]
        if run.disk_full:
            raise MonitorError("exclusion file", "", "no space left on device")
        run.hidden |= frozenset(uuids)

    @contextlib.contextmanager
    def held(path: str, timeout_s: float) -> Iterator[bool]:
        yield True

    def rendered(told: Any, job: Any, node_gpus: int, drain: Any, *rest: Any) -> tuple[str, tuple[Any, ...]]:
        return plain(told, job.job_id if job else "", drain.max_length), ()

    def tools(**given: Any) -> Any:
        slurm = given["slurm"]
        return Tools(**{**given, "fleet": slurm, "pause": slurm.pause, "jobs": slurm, "hold_program": ()})

    def commands(context: Context) -> Any:
        _current[context.node] = context.book.commands  # type: ignore[attr-defined]
        if context.job is not None:
            _prologs[context.node, context.job.job_id] = context.book.run  # type: ignore[attr-defined]
        return context.book.commands  # type: ignore[attr-defined]

    def only_ours(path: str, names: Any) -> bool:
        return path == CONF[True]

    def jobs(*given: Any) -> _Jobs:
        return _Jobs()

    def true(path: str) -> bool:
        return True

    def logged(text: str) -> None:
        if "MON-INTERNAL" in text:
            raise Violation(RAISED, text)

    def silent(*given: Any) -> None:  # not a Mock, which would remember every call
        pass

    with (
        mock.patch.object(pipeline, "_commands", commands),
        mock.patch.object(lock, "held", held),
        mock.patch.object(pipeline, "render", rendered),
        mock.patch.object(pipeline, "Tools", tools),
        mock.patch.object(mounts, "durable", true),
        mock.patch.object(pipeline, "SlurmJobs", jobs),
        mock.patch.object(conf, "only_hooks", only_ours),
        mock.patch.object(conf, "prolog_alloc", true),
        mock.patch.object(log, "warning", logged),
        mock.patch.object(narrow, "write", write),
        mock.patch.object(narrow, "remove", silent),
    ):
        yield
    _prologs.clear()
    _current.clear()


_current: dict[str, Commands] = {}
_prologs: dict[tuple[str, str], Run] = {}
