"""Run a scenario: its steps in order, the hooks for real, then its expectations.

Nothing sleeps: waiting moves the simulated node's clock. Only an engine or a scontrol that
the scenario lets hang costs real time, up to the hook's own budget.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from msgspec import UNSET

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.suspect import from_json as suspect_from_json
from slurm_nvhc.model.suspect import touched_from_json
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run
from slurm_nvhc.scenario import check, environment, load, process, stage, world_steps
from slurm_nvhc.scenario import seen as seen_
from slurm_nvhc.scenario.check import Check
from slurm_nvhc.scenario.environment import JobValues
from slurm_nvhc.scenario.format import Scenario
from slurm_nvhc.scenario.load import Loading
from slurm_nvhc.scenario.seen import Seen
from slurm_nvhc.scenario.stage import Stage
from slurm_nvhc.scenario.steps import HookStep, JobStep, Step, TaskStep
from slurm_nvhc.sense.sim.world import World

EXIT_OK, EXIT_MISSED, EXIT_BAD_INPUT, EXIT_MONITOR = 0, 1, 2, 3
SCHEMA = 1


class Report(NamedTuple):
    """What came of a scenario. runs: one per hook, in order; checks: one per thing that was expected."""

    name: str
    report: str
    runs: Tuple[Seen, ...]
    checks: Tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.checks)

    @property
    def exit_code(self) -> int:
        """0 when every expectation holds, 1 when one was missed."""
        return EXIT_OK if self.ok else EXIT_MISSED

    def to_json(self) -> Dict[str, Any]:
        """``{"schema": 1, "name", "report", "ok", "runs": [...], "checks": [{"where", "wanted", "seen", "ok"}]}``"""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "report": self.report,
            "ok": self.ok,
            "runs": [seen_.to_json(r) for r in self.runs],
            "checks": [c._asdict() for c in self.checks],
        }


def run(loading: Loading, workdir: str) -> Report:
    """Run a scenario in an empty directory. Raises InputError (the scenario) and MonitorError (the replay itself)."""
    player = _Player(loading, workdir)
    for number, step in enumerate(loading.scenario.steps):
        player.play(number, step)
    scenario = loading.scenario
    return Report(scenario.name, scenario.report, tuple(player.runs), check.check(player.runs, scenario.expect))


def run_file(path: str) -> Report:
    """Run a scenario file in a directory of its own, which is removed afterwards."""
    loading = load.read(path)
    # The launchers' path goes into slurm.conf, which can not have blanks in it.
    where = tempfile.gettempdir() if " " not in tempfile.gettempdir() else "/tmp"
    workdir = tempfile.mkdtemp(prefix="nvhc-replay-", dir=where)
    try:
        os.chmod(workdir, 0o755)  # the task prolog runs as the user
        return run(loading, workdir)
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


class _Player:
    """The state of a replay between its steps."""

    def __init__(self, loading: Loading, workdir: str) -> None:
        self.loading = loading
        self.scenario: Scenario = loading.scenario
        world = world_steps.build(self.scenario, loading.source)
        self.positions = len(world.gpus)
        self.stage: Stage = stage.build(self.scenario, workdir, self.positions)
        world.save(self.stage.world)
        stage.set_others(self.stage, self.scenario.slurm.others, world.wall_ns)
        self.runs: List[Seen] = []
        self.jobs: Dict[str, JobValues] = {}
        self.last_run = 0

    def play(self, number: int, step: Step) -> None:
        kind, value = load.kind_of(step), load.value_of(step)
        if isinstance(value, HookStep):
            self._hook(kind, value)
        elif kind in _STAGE_STEPS:
            _STAGE_STEPS[kind](self.stage, value)
        else:
            with World.edit(self.stage.world) as world:
                world_steps.apply(world, step, self.loading.source, ("steps", number))
            if kind == "reboot":
                stage.rebooted(self.stage)

    def _hook(self, kind: str, step: HookStep) -> None:
        world = World.load(self.stage.world)
        stage.set_clock(self.stage, world.wall_ns)
        env, job = self._environment(kind, step)
        if job is not None and kind != "task_prolog":
            whole = job.exclusive or job.gpus == environment.positions_text(UNSET, self.positions)
            stage.set_job(self.stage, job, "all" if whole else job.gpus, "COMPLETING" if kind == "epilog" else "RUNNING")
        before = len(stage.calls(self.stage))
        until = self.stage.world if step.terminate_after == "diagnostic" else step.terminate_after
        ended = process.run([self.stage.launcher(kind)], env, self._cwd(step.cwd), stdin=step.stdin, terminate_after=until)
        self._slurmd_reacts(kind, job, ended.status)
        self.runs.append(self._seen(kind, step, job, ended, env, before, world))

    def _cwd(self, cwd: str) -> str:
        return {"log": self.stage.path("log"), "root": "/"}.get(cwd, cwd)

    def _environment(self, kind: str, step: HookStep) -> Tuple[Dict[str, str], Optional[JobValues]]:
        slurm, conf = self.scenario.slurm, self.stage.conf
        job: Optional[JobValues] = None
        if isinstance(step, JobStep):
            job = environment.job_values(step, self.jobs.get(str(step.job)), slurm.partition, self.positions)
            self.jobs[job.job] = job
            env = environment.slurmd_hook(kind, job, self.stage.node, conf)
        elif isinstance(step, TaskStep):
            job = self.jobs.get(str(step.job)) or environment.job_values(JobStep(job=step.job), None, slurm.partition, self.positions)
            env = environment.task(step, job, self.stage.node, conf, slurm.constrain_devices)
        else:
            env = environment.health_check(self.stage.node)
        return environment.apply_extra(env, (slurm.environment, step.environment)), job

    def _slurmd_reacts(self, kind: str, job: Optional[JobValues], status: Optional[int]) -> None:
        """What Slurm does by itself: a failed prolog or epilog drains, and a job ends with either."""
        failed = status != 0
        if failed and kind in ("prolog", "epilog"):
            stage.slurmd_drain(self.stage, "Prolog error" if kind == "prolog" else "Epilog error")
        if job is not None and (kind == "epilog" or (kind == "prolog" and failed)):
            stage.set_job(self.stage, job, None)

    def _seen(
        self, kind: str, step: HookStep, job: Optional[JobValues], ended: process.Ended, env: Mapping[str, str], before: int, world: World
    ) -> Seen:
        recorded, intents, excluded = self._ledger()
        names = _names(world)
        task_env, unset, prints = environment.after_task_prolog(env, ended.out) if kind == "task_prolog" else ({}, (), ())
        done = [] if recorded is None else recorded.outcome.get("done", [])
        troubles = [] if recorded is None else recorded.outcome.get("troubles", [])
        findings: Tuple[Finding, ...] = () if recorded is None else recorded.findings
        return Seen(
            hook=kind,
            number=1 + sum(r.hook == kind for r in self.runs),
            label=step.label,
            job=job.job if job is not None else "",
            status=ended.status,
            seconds=ended.seconds,
            timed_out=ended.timed_out,
            out=ended.out,
            left=ended.left,
            verdict="" if recorded is None else recorded.verdict,
            findings=findings,
            suspects=() if recorded is None else tuple(suspect_from_json(s) for s in recorded.outcome.get("suspects", ())),
            diag=None if recorded is None else recorded.outcome.get("diag"),
            diag_running=_diag_runs(self.stage.world),
            troubles=tuple(f"{t['code']} {t['detail']}" for t in troubles),
            actions=tuple(d["kind"] for d in done if d["ok"]),
            failed=tuple(d["kind"] for d in done if not d["ok"]),
            node=stage.node_seen(self.stage),
            names=names,
            calls=tuple(stage.calls(self.stage)[before:]),
            intents=intents,
            excluded=tuple(names.get(uuid, uuid) for uuid in excluded),
            touched=touched_from_json(recorded.touched) if recorded is not None and recorded.touched else None,
            task_env=task_env,
            task_unset=unset,
            task_prints=prints,
        )

    def _ledger(self) -> Tuple[Optional[Run], int, Tuple[str, ...]]:
        """(this hook's run, intents, excluded UUIDs). Without a ledger there is nothing, which is not an error here."""
        if not os.path.exists(os.path.join(self.stage.node_state, "ledger.sqlite3")):
            return None, 0, ()
        try:
            with Ledger.open(self.stage.node_state, 5.0) as ledger:
                newest = ledger.recent_runs(1)
                intents, excluded = len(ledger.intents()), tuple(e.uuid for e in ledger.exclusions())
        except MonitorError:
            return None, 0, ()
        if not newest or newest[0].id == self.last_run:
            return None, intents, excluded
        self.last_run = newest[0].id
        return newest[0], intents, excluded


def _names(world: World) -> Dict[str, str]:
    names: Dict[str, str] = {}
    for number, gpu in enumerate(world.gpus):
        names[gpu.identity.uuid] = f"g{number}"
        names[f"pci:{gpu.identity.pci}"] = f"g{number}"
    return names


def _diag_runs(path: str) -> bool:
    world = World.load(path)
    return world.diag.now(world.wall_ns) is not None


_STAGE_STEPS: Dict[str, Callable[[Stage, Any], Any]] = {
    "scontrol": stage.behave,
    "sinfo": stage.behave_sinfo,
    "other_resumed": stage.others_resumed,
    "admin_drain": lambda s, v: stage.admin_drain(s, v.reason, v.user),
    "admin_resume": lambda s, v: stage.admin_resume(s),
    "node_state": stage.set_node,
    "policy": stage.write_policy,
    "kill_switch": lambda s, v: stage.kill_switch(s, v == "on"),
    "break": stage.damage,
}
