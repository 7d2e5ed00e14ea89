"""The rooms in order: sense, compare, judge, act, record. The only place that knows all of them.

One run reads the node, judges what it sees over the run's window, does what
the policy asks for, and writes down what it saw, thought and did. Trouble on
the way (ledger, policy, Slurm, engine) becomes a monitor finding; it never
stops a protective step and never makes one.
"""

from __future__ import annotations

import time
import zlib
from typing import Any, Callable, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc import run_text
from slurm_nvhc.act import narrow
from slurm_nvhc.act.execute import Outcome, Tools, execute
from slurm_nvhc.act.plan import PlanInput, Step, needs_node_state, plan, reason_findings
from slurm_nvhc.act.reason import render
from slurm_nvhc.book import Book
from slurm_nvhc.compare import compare, noteworthy, window_seconds
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG, Input, Judgement, Window, judge
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity, settled
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.history import Health
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot, Trouble
from slurm_nvhc.model.times import duration
from slurm_nvhc.policy import source
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc import log
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.record import lock
from slurm_nvhc.record.run import Run
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.memory import ensure_watch, read_health
from slurm_nvhc.slurm import conf as slurm_conf_files
from slurm_nvhc.slurm import gres as gres_file
from slurm_nvhc.slurm.environment import job_from_environment, node_name
from slurm_nvhc.slurm.node import SlurmCommands, SlurmError

LEDGER_SHARE: Final = 0.2  # of the budget is the longest that a run waits for the ledger
LOCK_SHARE: Final = 0.5  # of what is left may be spent on waiting for another hook that is acting
MOST_FORGOTTEN: Final = 500  # old runs deleted by one health check
FEW_FORGOTTEN: Final = 20
DAY_NS: Final = 86400 * 10**9
LEAST_WATCH_S: Final = 0.5  # with less time left the engine is not asked to sample; the next health check asks
SECOND_LOOK_RESERVE_S: Final = 1.0  # a second reading must leave at least this much for judging


class Site(NamedTuple):
    """Where things are on this node; baked into the launchers by `nvhc hooks install`."""

    config: str
    state: str
    run: str
    slurm_conf: str = ""


class Context(NamedTuple):
    """What a run knows before it looks at the node.

    troubles: those met so far
    told:     finding codes that an earlier run has announced: a broken policy edit is reported once
    keep:     False for a look by hand: what judge would remember is thrown away
    """

    hook: str
    site: Site
    node: str
    job: Optional[Job]
    policy: Policy
    budget: Budget
    book: Book
    slurm_conf: str
    troubles: tuple[Trouble, ...]
    told: frozenset[str] = frozenset()
    keep: bool = True


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


class Result(NamedTuple):
    """fail_hook: the hook is to fail on purpose, so that Slurm does not start the job here."""

    context: Context
    observation: Observation
    steps: tuple[Step, ...]
    outcome: Outcome
    verdict: str
    reason: str
    node_state: Optional[NodeState]
    late: tuple[Trouble, ...]

    @property
    def fail_hook(self) -> bool:
        return self.outcome.fail_hook

    def with_late(self, troubles: tuple[Trouble, ...]) -> Result:
        """With troubles that were met after judging."""
        if not troubles:
            return self
        return self._replace(late=(*self.late, *troubles), verdict=fd.worst((self.verdict, fd.WARN)))


def run_hook(
    hook: str,
    site: Site,
    environment: Mapping[str, str],
    started: float,
    hostname: str,
    registering: bool = False,
    on_budget: Callable[[float], object] = lambda seconds: None,
) -> Result:
    """One hook run, start to end. ``started`` is time.monotonic() of the first instruction.

    on_budget: told how many seconds the run has left once the policy is known.
    """
    context = prepare(hook, site, environment, started, hostname, registering)
    on_budget(context.budget.left_s())
    try:
        observation = observe(context)
        key = _keep_start(context, observation)
        result = _act(context, observation)
        result = result.with_late(_keep_watch(context, observation))
        _remember(result, key)
        _log(result)
        return result
    finally:
        context.book.close()


def prepare(
    hook: str, site: Site, environment: Mapping[str, str], started: float, hostname: str, registering: bool = False, keep: bool = True
) -> Context:
    """Environment, policy, budget and ledger of a run. Never raises for what an administrator did wrong.

    keep: False for a look by hand, which leaves memory and last good policy as they are.
    """
    node = node_name(environment, hostname)
    state_dir = f"{site.state}/{node}"
    job, troubles = (None, ()) if hook == HEALTH_CHECK else job_from_environment(environment)
    loaded = source.load(site.config, state_dir, node, job.partition if job is not None else "", keep)
    policy = loaded.policy
    budgets = {PROLOG: policy.budgets.prolog_s, EPILOG: policy.budgets.epilog_s, HEALTH_CHECK: policy.budgets.health_check_s}
    seconds = policy.budgets.registration_s if registering else budgets[hook]
    budget = Budget(max(0.0, seconds - (time.monotonic() - started)))
    slurm_conf = environment.get("SLURM_CONF") or site.slurm_conf or policy.slurm.conf
    book = Book(state_dir, seconds * LEDGER_SHARE)
    told = frozenset() if loaded.first else frozenset(t.code for t in loaded.troubles)
    return Context(hook, site, node, job, policy, budget, book, slurm_conf, (*troubles, *loaded.troubles), told, keep)


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


def _keep_start(context: Context, observation: Observation) -> int:
    """Keep what later runs compare with, before anything is done: acting may use up the time.

    The ledger's key of the job's start, 0 for other hooks.
    """
    snapshot = observation.snapshot._replace(events=())
    book, job, key = context.book, context.job, 0
    if context.hook == PROLOG and job is not None and snapshot.gpus is not None:
        job_id = job.job_id
        key = book.ask(lambda led: led.save_baseline(job_id, snapshot), 0)
    if context.hook == HEALTH_CHECK:
        clean = observation.judgement.decision.verdict == fd.OK
        passes = str(_kept_passes(context) + 1 if clean else 0)
        book.ask(lambda led: led.put("clean_passes", passes), None)
        if snapshot.gpus is not None:
            book.ask(lambda led: led.save_last_seen(snapshot), None)
    if snapshot.gpus:
        book.ask(lambda led: led.remember_gpus(snapshot), None)
    if context.hook != EPILOG and snapshot.events_known:
        book.ask(lambda led: led.put(f"kernel_cursor:{context.hook}", snapshot.kernel_cursor), None)
    return key


def _act(context: Context, observation: Observation) -> Result:
    """Plan and do. Only one hook of a node at a time: two that drain at once would lose whose drain it is."""
    given = _given(context, observation)
    if not needs_node_state(given):
        return _carry_out(context, observation, given, [])
    with lock.held(f"{context.site.state}/{context.node}/act.lock", context.budget.left_s() * LOCK_SHARE):
        given = _given(context, observation)  # another hook may have acted meanwhile
        late: list[Trouble] = []
        try:
            timeout_s = min(context.policy.slurm.timeout_s, context.budget.left_s())
            state = _commands(context).node_state(context.node, timeout_s)
            given = _with_state(context, given, state)
        except SlurmError as exc:
            late.append(Trouble("MON-SLURM", "slurm", str(exc)))
        return _carry_out(context, observation, given, late)


def _keep_watch(context: Context, observation: Observation) -> tuple[Trouble, ...]:
    """Have the engine sample for us between our looks; made again here when it was restarted. Health check only."""
    deadline_s = min(context.policy.engine.timeout_s, context.budget.left_s())
    if context.hook != HEALTH_CHECK or not observation.snapshot.gpus or deadline_s < LEAST_WATCH_S:
        return ()
    return ensure_watch(context.node, context.policy.engine, deadline_s).troubles


def _commands(context: Context) -> SlurmCommands:
    return SlurmCommands(context.policy.slurm.bin_dir, context.slurm_conf, context.policy.slurm.timeout_s)


def _given(context: Context, observation: Observation) -> PlanInput:
    kept = context.book.protective()
    return PlanInput(
        hook=context.hook,
        node=context.node,
        job=context.job,
        mapping=observation.mapping,
        decision=observation.judgement.decision,
        node_state=None,
        exclusions=observation.exclusions,
        own=kept.own_drain,
        intents=kept.intents,
        policy=context.policy,
        reason="",
        now_ns=observation.snapshot.wall_ns,
        node_gpus=len(observation.snapshot.gpus or {}),
        clean_passes=_kept_passes(context) if context.hook == HEALTH_CHECK else 0,
        names=_gpu_names(observation.snapshot),
        booted_ns=observation.snapshot.wall_ns - observation.snapshot.boot_ns,
    )


def _with_state(context: Context, given: PlanInput, state: NodeState) -> PlanInput:
    """The node's state, and which sticky events were open when the node was last seen out of service.

    Whoever takes a node out for them and resumes it again, by whatever drain, has settled them.
    """
    book = context.book
    if not state.out:
        names = settled.newest(book.ask(lambda led: led.get("seen_out"), "").split("\n"))
        return given._replace(node_state=state, seen_out=names)
    told = given.decision.proposals + given.decision.observed
    names = settled.newest(i for p in told for f in p.findings for i in f.idents)
    if names:
        book.ask(lambda led: led.put("seen_out", "\n".join(names)), None)
    return given._replace(node_state=state)


def _carry_out(context: Context, observation: Observation, given: PlanInput, late: list[Trouble]) -> Result:
    policy, decision = context.policy, observation.judgement.decision
    told = reason_findings(given)
    if told:
        reason, troubles = render(told, context.job, given.node_gpus, policy.drain, given.now_ns)
        late.extend(troubles)
        given = given._replace(reason=reason)
    steps = plan(given)
    if context.hook == PROLOG and context.job is not None:
        # A requeued job keeps its id: what an earlier run of it was not to see is decided anew.
        narrow.remove(context.site.run, context.node, context.job.job_id)
    tools = Tools(
        slurm=_commands(context),
        node=context.node,
        protective=context.book,
        run_dir=context.site.run,
        job=context.job,
        mapping=observation.mapping,
        constrain=lambda: slurm_conf_files.constrain_devices(context.slurm_conf),
        log=log.warning,
        left_s=context.budget.left_s,
        now_ns=given.now_ns,
    )
    outcome = execute(steps, tools)
    if outcome.accepted:
        context.book.ask(lambda led: led.settle(outcome.accepted), None)
    late.extend(outcome.troubles)
    verdict = fd.worst((decision.verdict, fd.WARN if late else fd.OK))
    return Result(context, observation, steps, outcome, verdict, given.reason, given.node_state, tuple(late))


def _gpu_names(snapshot: Snapshot) -> dict[str, str]:
    rows = (g.identity for g in (snapshot.gpus or {}).values())
    return {row.uuid: f"gpu{row.nvml_index}" for row in rows if row.nvml_index is not None}


def _kept_passes(context: Context) -> int:
    """How many health checks in a row found nothing at all wrong."""
    kept = context.book.ask(lambda led: led.get("clean_passes"), "")
    return int(kept) if kept.isascii() and kept.isdigit() else 0


def _remember(result: Result, key: int) -> None:
    context, seen = result.context, result.observation
    book, job = context.book, context.job
    run = Run(
        hook=context.hook,
        job_id=job.job_id if job is not None else "",
        user=job.user if job is not None else "",
        partition=job.partition if job is not None else "",
        gpus=seen.mapping.uuids if job is not None else (),
        started_ns=seen.window.start_ns if seen.window.start_ns is not None else seen.snapshot.wall_ns,
        ended_ns=seen.snapshot.wall_ns,
        verdict=result.verdict,
        policy_hash=context.policy.hash,
        snapshot=seen.snapshot,
        before_run=seen.baseline,
        changes=tuple(c for c in seen.changes if noteworthy(c)),
        findings=seen.judgement.findings,
        decision=run_text.decision_to_json(seen.judgement.decision),
        steps=tuple(step._asdict() for step in result.steps),
        outcome={
            "reason": result.reason,
            "fail_hook": result.fail_hook,
            "done": run_text.done_to_json(result.outcome.done),
            "troubles": [t._asdict() for t in result.late],
            "node_state": run_text.node_state_to_json(result.node_state),
            "gpu_verdicts": dict(seen.judgement.gpu_verdicts),
            "mapping": {"exact": seen.mapping.exact, "why": seen.mapping.why},
        },
        exit_code=1 if result.fail_hook and context.hook == PROLOG else 0,
        id=key,
    )
    book.ask(lambda led: led.record_run(run), 0)
    if context.hook == EPILOG and job is not None:
        if seen.baseline is not None:
            key = seen.baseline
            book.ask(lambda led: led.end_baseline(key), None)
        narrow.remove(context.site.run, context.node, job.job_id)
    if context.hook != PROLOG:
        # A site may have no health check; an epilog forgets a few at a time.
        most = MOST_FORGOTTEN if context.hook == HEALTH_CHECK else FEW_FORGOTTEN
        book.ask(lambda led: led.prune(context.policy.record.keep_days, seen.snapshot.wall_ns, most), 0)


def _log(result: Result) -> None:
    """One syslog line per run that is not ok. A health check that finds the same as before says so once a day."""
    context, decision = result.context, result.observation.judgement.decision
    findings = [f for f in result.observation.judgement.findings if f.verdict != fd.OK and f.code not in context.told]
    if result.verdict == fd.OK or (not findings and not result.late):
        return
    if context.hook == HEALTH_CHECK and _said_today(result, findings):
        return
    head = f"{context.hook} {context.node}" + (f" job {context.job.job_id}" if context.job is not None else "")
    narrows = context.policy.narrow.enabled
    log.warning(run_text.line(head, result.verdict, findings, result.late, result.outcome.done, decision, narrows))


def _said_today(result: Result, findings: Sequence[Finding]) -> bool:
    what = [f"{f.code} {f.entity} {f.verdict}" for f in findings]
    what += [f"{t.code} {t.part}" for t in result.late] + [d.step.kind for d in result.outcome.done]
    day = result.observation.snapshot.wall_ns // DAY_NS
    said = f"{day} {zlib.crc32(repr(sorted(what)).encode('utf-8', 'replace')):08x}"
    book = result.context.book
    if book.ask(lambda led: led.get("said"), "") == said:
        return True
    book.ask(lambda led: led.put("said", said), None)
    return False
