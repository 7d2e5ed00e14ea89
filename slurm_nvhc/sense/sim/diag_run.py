"""A diagnostic on the simulated node, as the reader's backend runs and stops it.

Time passes by the world's clock; only a plan with real_seconds sleeps. That one runs is in the world file before time
passes, and is taken away when it ended or was stopped: a reader that is killed meanwhile leaves it running, as with a real engine.
"""

from __future__ import annotations

import os
import time
from typing import Final, Optional

from slurm_nvhc.catalog import diags
from slurm_nvhc.model import diag
from slurm_nvhc.model.diag import Ask, Report, Stopped
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.sense import diag_json
from slurm_nvhc.sense.sim import diag_output
from slurm_nvhc.sense.sim.diag import NS, Running, tests_of, usual_s
from slurm_nvhc.sense.sim.diag_output import Answer
from slurm_nvhc.sense.sim.world import World

LOOK_S: Final = 0.05


def run(path: str, ask: Ask, seconds: float) -> Report:
    """See reader.backend.Backend.diagnose."""
    with World.edit(path) as world:
        refused = _refused(world)
        if refused is not None:
            return _report(world, ask, refused, world.wall_ns)
        plan = world.diag.plan
        stubborn = plan.behaviour == "stubborn"
        until = None if stubborn else world.wall_ns + int(seconds * NS)
        running = world.diag.running = Running(world.wall_ns, until, ask.uuids, stubborn)
    usual = usual_s(tests_of(ask.tests, world.engine_version)) if plan.seconds is None else plan.seconds
    late = plan.behaviour in ("hangs", "stubborn") or max(usual, plan.real_seconds) > seconds
    if plan.real_seconds:
        _sleep(path, running, min(plan.real_seconds, seconds))
    with World.edit(path) as world:
        if world.diag.running == running:
            world.advance(seconds if late else usual)
        if world.diag.running != running:
            return _stopped(world, ask, running, "somebody ended it")
        if late:
            return _late(world, ask, running, seconds)
        world.diag.running = None
        if plan.behaviour == "crashes":
            told = diag_output.failure(world, diag_output.KILLED)
        else:
            told = diag_output.answer(world, ask) if plan.output is None else Answer(plan.output, plan.rc)
        return _report(world, ask, told, running.since_ns)


def stop(path: str, seconds: float) -> Stopped:
    """See reader.backend.Backend.stop_diag."""
    with World.edit(path) as world:
        running = world.diag.now(world.wall_ns)
        if running is None:
            return Stopped(True, gone=True)
        if not running.stubborn:
            world.diag.running = None
            return Stopped(True, ran=True, gone=True)
        world.advance(seconds)
        return Stopped(True, ran=True, troubles=(Trouble("MON-DIAG", "engine", "the diagnostic does not stop"),))


def _refused(world: World) -> Optional[Answer]:
    if world.diag.now(world.wall_ns) is not None:
        return diag_output.failure(world, diag_output.RUNNING)
    return diag_output.failure(world, diag_output.NO_NVVS) if world.diag.plan.behaviour == "absent" else None


def _sleep(path: str, running: Running, seconds: float) -> None:
    """Real time passes, until it is over or somebody stops the diagnostic."""
    end, seen = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left))
        written = os.stat(path).st_mtime_ns
        if written != seen and World.load(path).diag.running != running:
            return
        seen = written


def _late(world: World, ask: Ask, running: Running, seconds: float) -> Report:
    if not running.stubborn:
        world.diag.running = None
        return _stopped(world, ask, running, f"it had not come to its end after {seconds:g} s")
    report = _stopped(world, ask, running, f"it had not come to its end after {seconds:g} s, and does not stop")
    return report._replace(left=True, troubles=(Trouble("MON-DIAG", "engine", "the diagnostic does not stop"),))


def _stopped(world: World, ask: Ask, running: Running, why: str) -> Report:
    return Report(
        diag.STOPPED, ask.tests, ask.uuids, why=why, version=world.engine_version, driver=world.driver, through="sim",
        started_ns=running.since_ns, ended_ns=world.wall_ns,
    )  # fmt: skip


def _report(world: World, ask: Ask, told: Answer, started_ns: int) -> Report:
    parsed = diag_json.parse(told.text, told.rc, diag_output.ids(world))
    begun = parsed.outcome != diag.NOT_STARTED
    seen = {result.test for result in parsed.results}
    missing = [t for t in ask.tests if t not in diags.LEVELS and diags.name(t) not in seen] if parsed.outcome == diag.DONE else []
    return Report(
        parsed.outcome, ask.tests, ask.uuids, parsed.results, parsed.why, parsed.version, parsed.driver, "sim" if begun else "",
        started_ns if begun else 0, world.wall_ns if begun else 0, missing=tuple(missing),
    )  # fmt: skip
