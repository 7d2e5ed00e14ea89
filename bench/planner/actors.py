"""Who acts on a node, and what each of them does. Every deed is a function of the world and plain arguments."""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping

from planner import truth
from planner.hook import run_hook
from planner.node import ISSUED, OURS, QUIET, REQUESTED
from planner.world import MINUTE_NS, Cell, Job, Step, World
from slurm_nvhc.model import protective as pm
from slurm_nvhc.record import protective as pr

Deed = Callable[..., None]
DEEDS: dict[str, Deed] = {}

NO_MANNER: Final = (None, False, None, None)


def deed(function: Deed) -> Deed:
    """A function (world, cell, step, *args): one deed of somebody."""
    DEEDS[function.__name__] = function
    return function


def do(world: World, step: Step) -> None:
    cell = world.cells[step.node % len(world.cells)]
    DEEDS[step.what](world, cell, step, *step.args)


def _asks(world: World, cell: Cell, change: Callable[[], None]) -> None:
    """Somebody's request to slurmctld about this node."""

    def watched() -> None:
        node = cell.node
        was = (node.owner, node.drain, node.reason)
        change()
        truth.ended(cell, was)

    world.request(watched)


# Time and the machinery


@deed
def wait(world: World, cell: Cell, step: Step, minutes: float) -> None:
    world.now_ns += int(minutes * MINUTE_NS)
    for each in world.cells:
        if not each.node.down and world.slurmctld == "ok":
            each.node.flags.discard(QUIET)


@deed
def slurmctld(world: World, cell: Cell, step: Step, now: str) -> None:
    world.slurmctld_is(now)
    for each in world.cells:
        if not each.inside:
            _end_jobs(world, each, step)


@deed
def edit(world: World, cell: Cell, step: Step, changes: Mapping[str, Any], modes: Mapping[str, str]) -> None:
    """The administrator edits the policy."""
    world.modes = {**world.modes, **modes}
    world.edit(**changes)


# Administrators


@deed
def drains(world: World, cell: Cell, step: Step, reason: str) -> None:
    _asks(world, cell, lambda: cell.node.set_drain("admin", reason, world.now_ns, "ada"))


@deed
def same_reason_again(world: World, cell: Cell, step: Step) -> None:
    """Takes our drain over by the very words it has; root does it too."""
    _asks(world, cell, lambda: cell.node.set_drain("admin", cell.node.reason, world.now_ns) if cell.node.out else None)


@deed
def resumes(world: World, cell: Cell, step: Step) -> None:
    _asks(world, cell, cell.node.resume)


@deed
def undrains(world: World, cell: Cell, step: Step) -> None:
    _asks(world, cell, cell.node.undrain)


@deed
def downs(world: World, cell: Cell, step: Step, reason: str) -> None:
    def change() -> None:
        cell.node.set_down("admin", reason, world.now_ns, "ada")
        cell.jobs.clear()

    _asks(world, cell, change)


@deed
def fails(world: World, cell: Cell, step: Step, reason: str) -> None:
    _asks(world, cell, lambda: cell.node.set_fail("admin", reason, world.now_ns, "ada"))


@deed
def reboots(world: World, cell: Cell, step: Step, reason: Any, next_state: str) -> None:
    _asks(world, cell, lambda: cell.node.ask_reboot("admin", reason, next_state, world.now_ns, "ada"))


@deed
def cancels_reboot(world: World, cell: Cell, step: Step) -> None:
    _asks(world, cell, cell.node.cancel_reboot)


@deed
def excludes(world: World, cell: Cell, step: Step, slot: int) -> None:
    new = pm.Exclusion(cell.hw.uuid(slot), "BY-HAND", "looks odd", "ada", world.now_ns)
    cell.kept.state = pr.exclude(cell.kept.state, new)


@deed
def releases_gpu(world: World, cell: Cell, step: Step) -> None:
    for exclusion in cell.kept.state.exclusions[:1]:
        cell.released.add(exclusion.uuid)
        cell.kept.state = pr.end_exclusion(cell.kept.state, pm.Ended(exclusion, pm.RELEASED, "ada", "repaired", world.now_ns))


@deed
def pauses(world: World, cell: Cell, step: Step, minutes: float) -> None:
    """`nvhc pause`; 0 ends it."""
    pause = pm.Pause(world.now_ns + int(minutes * MINUTE_NS), "driver", "ada", world.now_ns) if minutes else None
    cell.kept.state = cell.kept.state._replace(pause=pause)


# Other health checkers, which know their own drains by a prefix


@deed
def nhc_drains(world: World, cell: Cell, step: Step) -> None:
    _asks(world, cell, lambda: None if cell.node.out else cell.node.set_drain("nhc", "NHC: check_fs_mount failed", world.now_ns))


@deed
def nhc_resumes(world: World, cell: Cell, step: Step) -> None:
    _asks(world, cell, lambda: cell.node.resume() if cell.node.out and cell.node.reason.startswith("NHC:") else None)


@deed
def careless_drains(world: World, cell: Cell, step: Step) -> None:
    """A checker that drains whatever is there already."""
    _asks(world, cell, lambda: cell.node.set_drain("checker", "check: disk slow", world.now_ns))


# slurmd


def hook_error(world: World, cell: Cell, which: str, site: bool) -> None:
    """A prolog or epilog failed, the site's or ours. slurmctld is told, or hears of it later."""
    _asks(world, cell, lambda: cell.node.hook_failed(which, world.now_ns, site))


@deed
def quiet(world: World, cell: Cell, step: Step, times: int) -> None:
    """It does not answer slurmctld; the second time in a row it is down."""
    if world.slurmctld == "ok":
        for _ in range(times):
            _asks(world, cell, lambda: cell.node.quiet(world.now_ns))
        if cell.node.down:
            cell.jobs.clear()


@deed
def answers(world: World, cell: Cell, step: Step) -> None:
    if world.slurmctld == "ok":
        _asks(world, cell, lambda: cell.node.answers(world.setting.returns))


@deed
def boots(world: World, cell: Cell, step: Step) -> None:
    """The reboot that Slurm was asked for, or a crash."""
    cell.jobs.clear()
    cell.boots += 1
    cell.hw.boots()
    if world.slurmctld == "ok":
        cell.node.issue_reboot(world.now_ns)
    cell.node.jobs = cell.node.ending = 0
    _asks(world, cell, lambda: cell.node.boots(world.now_ns))
    if world.slurmctld == "ok":
        run_hook(world, cell, "health_check", "", step, NO_MANNER)


# Hardware


@deed
def breaks(world: World, cell: Cell, step: Step, code: str, slot: int) -> None:
    cell.hw.breaks(code, slot, world.now_ns)


@deed
def breaks_everywhere(world: World, cell: Cell, step: Step, code: str, slot: int) -> None:
    """What all nodes have in common: power, cooling, a driver."""
    for each in world.cells:
        each.hw.breaks(code, slot, world.now_ns)


@deed
def mends(world: World, cell: Cell, step: Step) -> None:
    """Somebody sees to the whole node, and tells nobody."""
    cell.hw.faults, cell.hw.engine, cell.hw.quiet = [], True, set()


@deed
def resets(world: World, cell: Cell, step: Step, slot: int) -> None:
    cell.hw.reset(slot)


@deed
def swaps(world: World, cell: Cell, step: Step, slot: int) -> None:
    cell.hw.swap(slot)


@deed
def engine(world: World, cell: Cell, step: Step, up: bool, silent: tuple[int, ...]) -> None:
    """The engine answers or not, and some GPUs give no data."""
    cell.hw.engine, cell.hw.quiet = up, set(silent)


# Jobs, and with them our own hooks


@deed
def starts(world: World, cell: Cell, step: Step, gpus: int, full: bool, site: str, manner: tuple[Any, ...]) -> None:
    """site: "fails": another prolog of the site fails after ours."""
    node, free = cell.node, cell.free()
    site = "" if world.setting.alone else site
    if node.out or QUIET in node.flags or REQUESTED in node.flags or ISSUED in node.flags or world.slurmctld != "ok" or len(free) < gpus:
        return
    job = next((j for j in world.queued if cell.node.name not in j.excluded.split(",")), None)
    if job is not None:
        world.queued.remove(job)
    else:
        world.job_number += 1
        job = Job(str(world.job_number), full or gpus > 1)
    job_id, job.state, job.positions = job.job_id, "RUNNING", tuple(free[:gpus])
    cell.jobs[job_id] = job
    node.jobs, node.cores_full = len(cell.jobs), full
    failed = run_hook(world, cell, "prolog", job_id, step, manner)
    if job_id not in cell.jobs:
        return
    if failed or site or _by_slurmd(manner) or job.state != "RUNNING":
        if failed or site or _by_slurmd(manner):
            hook_error(world, cell, "Prolog", bool(site))
        cell.unended.append(job)
        _end_jobs(world, cell, step)


@deed
def ends(world: World, cell: Cell, step: Step, which: int, site: str, manner: tuple[Any, ...]) -> None:
    """A job ends, by itself or cancelled; which: of those that run.

    site: "before": another epilog of the site fails, and ours is not run any more; "after": it fails after ours.
    """
    node = cell.node
    site = "" if world.setting.alone else site
    if not cell.jobs or world.slurmctld != "ok":
        return
    running = sorted(j for j, job in cell.jobs.items() if job not in cell.unended)
    if not running:
        return
    job_id = running[which % len(running)]
    if site == "before":
        cell.jobs.pop(job_id, None)
        node.jobs = len(cell.jobs)
    else:
        _over(world, cell, step, job_id, manner)
    if site or _by_slurmd(manner):
        hook_error(world, cell, "Epilog", bool(site))
    if world.slurmctld == "ok":
        node.issue_reboot(world.now_ns)


def _end_jobs(world: World, cell: Cell, step: Step) -> None:
    """The epilog runs after a prolog that failed as well, and only when slurmctld asks for it."""
    while cell.unended and world.slurmctld == "ok":
        job = cell.unended.pop(0)
        if cell.jobs.get(job.job_id) is not job:
            continue  # the node went down meanwhile
        _over(world, cell, step, job.job_id, NO_MANNER)
        if job.state == "COMPLETING" and job.restarts:
            world.queued.append(job)


@deed
def cancels(world: World, cell: Cell, step: Step) -> None:
    """scancel: from now on the job is at its end; its epilog runs when its prolog has ended."""
    for job in list(cell.jobs.values())[:1] if world.slurmctld == "ok" else ():
        job.state = "CANCELLED"


def _over(world: World, cell: Cell, step: Step, job_id: str, manner: tuple[Any, ...]) -> None:
    node = cell.node
    node.jobs, node.ending = len(cell.jobs) - 1, node.ending + 1
    run_hook(world, cell, "epilog", job_id, step._replace(during=()), manner)
    cell.jobs.pop(job_id, None)
    node.jobs, node.ending = len(cell.jobs), 0


def _by_slurmd(manner: tuple[Any, ...]) -> bool:
    """Half of the hooks that are killed are killed by slurmd, for which that is an error of the hook."""
    return manner[3] is not None and manner[3] % 2 == 1


@deed
def checks(world: World, cell: Cell, step: Step, manner: tuple[Any, ...]) -> None:
    run_hook(world, cell, "health_check", "", step, manner)


def ours(step: Step) -> bool:
    return step.what in ("starts", "ends", "checks")


__all__ = ["DEEDS", "OURS", "do", "ours"]
