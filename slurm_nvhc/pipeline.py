"""The rooms in order: sense, compare, judge, act, record. The only place that knows all of them.

One run reads the node, judges what it sees over the run's window, does what
the policy asks for, and writes down what it saw, thought and did. Trouble on
the way (ledger, policy, Slurm, engine) becomes a monitor finding; it never
stops a protective step and never makes one.
"""

from __future__ import annotations

import time
import zlib
from typing import Any, Callable, Final, Mapping, NamedTuple, Optional, Sequence, TypeVar

from slurm_nvhc import diagnose, run_text, since_drain
from slurm_nvhc.act import exclusions, narrow, outbox, quiet, remedy, user_report
from slurm_nvhc.act.execute import Outcome, Tools, execute
from slurm_nvhc.act.plan import PlanInput, Step, comes_back, needs_job, needs_jobs, needs_node_state, plan, reason_findings
from slurm_nvhc.act.reason import render
from slurm_nvhc.act.tools import LEAST_S
from slurm_nvhc.act.words import names_it
from slurm_nvhc.aftermath import NOTIFY, Aftermath, Teller
from slurm_nvhc.compare import noteworthy
from slurm_nvhc.context import Context, Site, at_switch, durable, prepare
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.hold import launch
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model import diag, settled, suspect, timeline
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import given as given_facts
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.learned import ITSELF, Lesson
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import QUARANTINE, SUSPECTED, Exclusion
from slurm_nvhc.model.snapshot import Snapshot, Trouble
from slurm_nvhc.observation import Observation, observe
from slurm_nvhc.proc import log
from slurm_nvhc.record import lock
from slurm_nvhc.record.run import Run
from slurm_nvhc.sense.memory import ensure_watch
from slurm_nvhc.slurm import conf as slurm_conf_files
from slurm_nvhc.slurm.fleet import SlurmFleet
from slurm_nvhc.slurm.jobs import SlurmJobs
from slurm_nvhc.slurm.node import TIMEOUT, SlurmCommands, SlurmError

T = TypeVar("T")

LOCK_SHARE: Final = 0.5  # of what is left may be spent on waiting for another hook that is acting
DRAIN_CALLS: Final = 4  # of Slurm: the node's state again, who else is out, the drain itself, and a look at it
JOB_CALLS: Final = 2  # at least, to know about a job
MOST_FORGOTTEN: Final = 500  # old runs deleted by one health check
FEW_FORGOTTEN: Final = 20
DAY_NS: Final = 86400 * 10**9
LEAST_WATCH_S: Final = 0.5  # with less time left the engine is not asked to sample; the next health check asks


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
    after: Aftermath = Aftermath()

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
    on_decided: Callable[[Result], object] = lambda result: None,
) -> Optional[Result]:
    """One hook run, start to end. ``started`` is time.monotonic() of the first instruction. None: switched off for the cluster.

    on_budget: told how many seconds the run has left once the policy is known.
    on_decided: told what was done as soon as it is; what follows keeps and tells it, and may be cut short.
    """
    context = prepare(hook, site, environment, started, hostname, registering)
    on_budget(context.budget.left_s())
    try:
        context, switch = at_switch(context)
        if switch.everything:
            return None
        # First of all: it would be seen as load on the GPUs, and may be in the way of a job.
        context = _whatever(context, lambda: _nothing_left(context), context)
        first = observe(context)
        # A fault of our own in what is kept and told costs neither the protection nor what it has decided.
        key = _whatever(context, lambda: _keep_start(context, first), 0)
        observation = _whatever(context, lambda: diagnose.diagnosed(context, first), first)
        _whatever(context, lambda: _count_looks(context, observation), None)
        result = _act(context, observation, on_decided)
        result = result.with_late(_whatever(context, lambda: _keep_watch(context, observation), ()))
        result = result.with_late(_whatever(context, lambda: _user_report(context, observation), ()))
        _whatever(context, lambda: _remember(result, key), None)
        _whatever(context, lambda: _log(result), None)
        return result
    finally:
        context.book.close()


def _whatever(context: Context, work: Callable[[], T], default: T) -> T:
    try:
        return work()
    except Exception as exc:
        log.warning(f"{context.hook} {context.node}: MON-INTERNAL: {type(exc).__name__}: {exc}")
        return default


def _nothing_left(context: Context) -> Context:
    """The context with what is known of a diagnostic that a dead run has left, and that could not be ended."""
    return context._replace(troubles=(*context.troubles, *diagnose.end_left(context)))


def _keep_start(context: Context, observation: Observation) -> int:
    """Keep what later runs compare with, before anything is done: acting may use up the time.

    The ledger's key of the job's start, 0 for other hooks.
    """
    snapshot = observation.snapshot._replace(events=())
    book, job, key = context.book, context.job, 0
    if context.hook == PROLOG and job is not None and snapshot.gpus is not None:
        job_id = job.job_id
        key = book.ask(lambda led: led.save_baseline(job_id, snapshot), 0)
    if context.hook == HEALTH_CHECK and snapshot.gpus is not None:
        book.ask(lambda led: led.save_last_seen(snapshot), None)
    if snapshot.gpus:
        book.ask(lambda led: led.remember_gpus(snapshot), None)
    if observation.taught and context.pause is None and book.protective().own_drain is None:
        lesson = Lesson(snapshot.wall_ns, ITSELF, observation.taught)
        book.ask(lambda led: led.learn(lesson), None)
    if context.hook != EPILOG and snapshot.events_known:
        book.ask(lambda led: led.put(f"kernel_cursor:{context.hook}", snapshot.kernel_cursor), None)
    return key


def _count_looks(context: Context, observation: Observation) -> None:
    """What a health check found, a diagnostic included, counts for ending our own drain and clearing suspicions."""
    if context.hook == HEALTH_CHECK:
        since_drain.count_pass(context, observation)
        _keep_clean_looks(context, observation)


def _act(context: Context, observation: Observation, on_decided: Callable[[Result], object] = lambda result: None) -> Result:
    """Plan and do. Only one hook of a node at a time: two that drain at once would lose whose drain it is."""
    given = _given(context, observation)
    if not needs_node_state(given):
        return _told(*_carry_out(context, observation, given, []))
    with lock.held(f"{context.site.state}/{context.node}/act.lock", context.budget.left_s() * LOCK_SHARE):
        given = _given(context, observation)  # another hook may have acted meanwhile
        late: list[Trouble] = []
        try:
            timeout_s, before_s = min(context.policy.slurm.timeout_s, context.budget.left_s()), context.budget.left_s()
            state = _commands(context).node_state(context.node, timeout_s)
            given = _with_state(context, given, state)
            given = _with_jobs(context, given, before_s - context.budget.left_s())
        except SlurmError as exc:
            late.append(Trouble("MON-SLURM", "slurm", str(exc)))
            _ask_later(context, given)
        done = _carry_out(context, observation, given, late)
    on_decided(done[0])
    # Programs of the site and the vendor's report take seconds: nobody's prolog waits for them.
    return _told(*done)


def _ask_later(context: Context, given: PlanInput) -> None:
    """Slurm says nothing: what was due waits, so that not every hook spends its time on asking."""
    for intent in given.intents:
        # A quarantine's tries are placeholder jobs that were submitted, and telling the site takes no Slurm.
        if outbox.due(intent, given.now_ns) and intent.kind not in (QUARANTINE, NOTIFY):
            later = outbox.unanswered(intent, given.now_ns, given.node)
            context.book.ask(lambda led, i=later: led.update_intent(i), None)  # type: ignore[misc]


def _keep_watch(context: Context, observation: Observation) -> tuple[Trouble, ...]:
    """Have the engine sample for us between our looks; made again here when it was restarted. Health check only."""
    deadline_s = min(context.policy.engine.timeout_s, context.budget.left_s())
    if context.hook != HEALTH_CHECK or not observation.snapshot.gpus or deadline_s < LEAST_WATCH_S:
        return ()
    return ensure_watch(context.node, context.policy.engine, deadline_s).troubles


def _user_report(context: Context, seen: Observation) -> tuple[Trouble, ...]:
    """Tell the job's user whether a fault touched the job, where the policy names a folder for it; forget old reports."""
    wanted, job, touched = context.policy.user_report, context.job, seen.judgement.touched
    if not wanted.dir or context.hook == PROLOG:
        return ()
    try:
        if job is not None and touched is not None:
            start_ns = seen.window.start_ns if seen.window.start_ns is not None else seen.window.end_ns
            span = user_report.Span(start_ns, seen.window.end_ns)
            user_report.write(wanted.dir, context.node, job, span, touched)
        # The age of files is by the machine's clock, whatever the node's readings say.
        user_report.prune(wanted.dir, context.node, wanted.keep_days, time.time())
    except MonitorError as exc:
        return (Trouble("MON-REPORT", "user_report", str(exc)),)
    return ()


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
        exclusions={e.uuid: e for e in kept.exclusions if e.stage != SUSPECTED},  # another hook may have excluded one meanwhile
        own=kept.own_drain,
        intents=kept.intents,
        policy=context.policy,
        reason="",
        now_ns=observation.snapshot.wall_ns,
        node_gpus=len(observation.snapshot.gpus or {}),
        names=_gpu_names(observation.snapshot),
        booted_ns=observation.snapshot.wall_ns - observation.snapshot.boot_ns,
        settled=kept.settled,
        judged_ok=frozenset(u for u, v in observation.judgement.gpu_verdicts.items() if v == fd.OK),
        suspected={e.uuid: e for e in kept.exclusions if e.stage == SUSPECTED},
        holds={hold.uuid: hold for hold in kept.holds},
        strikes=kept.strikes,
        pause=context.pause,
        boot_id=observation.snapshot.boot_id,
        recovery=remedy.asked_for(observation.snapshot),
        slots={g.identity.pci: uuid for uuid, g in (observation.snapshot.gpus or {}).items() if g.identity.pci},
        clean_looks=_clean_looks(context) if any(e.stage == SUSPECTED for e in kept.exclusions) else {},
        **_grounds(context, observation, kept.exclusions),
        **since_drain.facts(context, kept.own_drain, observation.snapshot),
    )


def _grounds(context: Context, observation: Observation, excluded: tuple[Exclusion, ...]) -> dict[str, Any]:
    """What only a run with something to do needs to know."""
    decision = observation.judgement.decision
    if not (decision.proposals or decision.observed or excluded):
        return {}
    alloc = slurm_conf_files.prolog_alloc(context.slurm_conf) if context.slurm_conf else None
    return {"durable": durable(context.policy, f"{context.site.state}/{context.node}"), "alloc": alloc}


def _with_jobs(context: Context, given: PlanInput, pace_s: float) -> PlanInput:
    """The node's jobs and the hook's own one, where the plan depends on them. Raises SlurmError.

    pace_s: how long Slurm took to answer just now. The time for a drain is kept: what becomes of jobs comes second.
    """
    slurm, job = context.policy.slurm, context.job
    jobs = SlurmJobs(slurm.bin_dir, context.slurm_conf, slurm.timeout_s)
    if job is not None and needs_job(given):
        given = given._replace(slurm_job=jobs.job(job.job_id, context.node, _for_jobs(context, pace_s)))
    if not needs_jobs(given):
        return given
    return given._replace(jobs=jobs.of_node(context.node, _for_jobs(context, pace_s)))


def _for_jobs(context: Context, pace_s: float) -> float:
    left_s = context.budget.left_s() - DRAIN_CALLS * pace_s
    if left_s < max(LEAST_S, JOB_CALLS * pace_s):
        raise SlurmError(TIMEOUT, "squeue", context.node, "not run: Slurm is slow, and the time left is for a drain")
    return min(context.policy.slurm.timeout_s, left_s)


def _with_state(context: Context, given: PlanInput, state: NodeState) -> PlanInput:
    """The node's state, and the sticky events that somebody else's drain named when the node was last seen out.

    Whoever drains a node for such an event and resumes it has settled it. (What our own drain answers is
    known from the drain; a node that is down may come back without anybody having done anything.)
    """
    book = context.book
    if not state.out:
        return given._replace(node_state=state, seen_out=settled.newest(book.ask(lambda led: led.get("seen_out"), "").split("\n")))
    if not comes_back(state) and (given.own is None or state.reason != given.own.reason):
        told = [f for p in given.decision.proposals + given.decision.observed for f in p.findings]
        names = settled.newest(i for f in told if names_it(state.reason, f) for i in f.idents)
        if names:
            book.ask(lambda led: led.put("seen_out", "\n".join(names)), None)
    return given._replace(node_state=state)


def _carry_out(context: Context, observation: Observation, given: PlanInput, late: list[Trouble]) -> tuple[Result, Teller]:
    """What was done, and who keeps and tells it afterwards."""
    policy, decision = context.policy, observation.judgement.decision
    told = reason_findings(given)
    remedies = remedy.all_of([f for p in (*decision.proposals, *decision.observed) for f in p.findings], remedy.past(given))
    if told:
        suspects, do = observation.judgement.suspects, remedy.in_reason(remedies, told)
        reason, troubles = render(told, context.job, given.node_gpus, policy.drain, given.now_ns, suspects, given.names, do)
        late.extend(troubles)
        given = given._replace(reason=reason)
    steps = plan(given)
    if context.hook == PROLOG and context.job is not None:
        # A requeued job keeps its id: what an earlier run of it was not to see is decided anew.
        narrow.remove(context.site.run, context.node, context.job.job_id)
    tools = tools_of(context, observation.mapping, given.now_ns)._replace(quiet=quiet.label(given.pause, given.policy.mode))
    teller = Teller(context, observation, given, remedies)
    outcome = execute(steps, tools._replace(before_reboot=teller.before_reboot))
    late.extend(outcome.troubles)
    verdict = fd.worst((decision.verdict, fd.WARN if late else fd.OK))
    return Result(context, observation, steps, outcome, verdict, given.reason, given.node_state, tuple(late)), teller


def _told(result: Result, teller: Teller) -> Result:
    after = teller.after(result.outcome)
    return result._replace(after=after).with_late(after.troubles)


def tools_of(context: Context, mapping: GpuMapping, now_ns: int) -> Tools:
    """What a run does its steps with; also for what an administrator does by hand."""
    policy = context.policy
    return Tools(
        slurm=_commands(context),
        node=context.node,
        protective=context.book,
        run_dir=context.site.run,
        job=context.job,
        mapping=mapping,
        constrain=lambda: slurm_conf_files.constrain_devices(context.slurm_conf),
        log=log.warning,
        left_s=context.budget.left_s,
        now_ns=now_ns,
        policy=policy,
        fleet=SlurmFleet(policy.slurm.bin_dir, context.slurm_conf, policy.slurm.timeout_s),
        jobs=SlurmJobs(policy.slurm.bin_dir, context.slurm_conf, policy.slurm.timeout_s),
        hold_program=launch.program(context.site, context.node, context.slurm_conf),
    )


def _gpu_names(snapshot: Snapshot) -> dict[str, str]:
    rows = (g.identity for g in (snapshot.gpus or {}).values())
    return {row.uuid: f"gpu{row.nvml_index}" for row in rows if row.nvml_index is not None}


def _clean_looks(context: Context) -> dict[str, int]:
    """Suspected GPU -> health checks in a row that found it well."""
    kept = context.book.ask(lambda led: led.get("clean_looks"), "").split()
    return {uuid: int(n) for uuid, n in zip(kept[::2], kept[1::2]) if n.isascii() and n.isdigit()}


def _keep_clean_looks(context: Context, observation: Observation) -> None:
    suspected = [e.uuid for e in context.book.protective().exclusions if e.stage == SUSPECTED]
    before = _clean_looks(context)
    if suspected or before:
        failed = [uuid for uuid in suspected if diagnose.stands_failed(context, uuid)]  # a look shows nothing of that
        verdicts = {uuid: verdict for uuid, verdict in observation.judgement.gpu_verdicts.items() if uuid not in failed}
        looks = exclusions.clean_looks(before, suspected, verdicts)
        context.book.ask(lambda led: led.put("clean_looks", " ".join(f"{uuid} {n}" for uuid, n in looks.items())), None)


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
            "suspects": [suspect.to_json(s) for s in seen.judgement.suspects],
            "mapping": {"exact": seen.mapping.exact, "why": seen.mapping.why},
            "not_compared": seen.judgement.not_compared,
            **({} if seen.given.diag is None else {"diag": diag.to_json(seen.given.diag)}),
            **result.after.to_json(),
        },
        given=_facts(context, seen),
        exit_code=1 if result.fail_hook and context.hook == PROLOG else 0,
        touched=suspect.touched_to_json(seen.judgement.touched) if seen.judgement.touched is not None else {},
        timeline=_timeline(seen),
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


def _facts(context: Context, seen: Observation) -> dict[str, Any]:
    """What judging this run again takes beside its snapshots."""
    uid = context.job.uid if context.job is not None else None
    facts = {**given_facts.to_json(seen.given, seen.snapshot), "uid": uid, "first_look": seen.first_look}
    return facts if context.pause is None else {**facts, "paused": True}


def _timeline(seen: Observation) -> dict[str, Any]:
    """What the job's GPUs did minute by minute, as far as the engine sampled it."""
    history, start_ns = seen.given.history, seen.window.start_ns
    if history is None or start_ns is None:
        return {}
    built = timeline.build(history, seen.mapping.uuids, start_ns, seen.window.end_ns)
    return timeline.to_json(built) if built is not None else {}


def _log(result: Result) -> None:
    """One syslog line per run that is not ok. A health check that finds the same as before says so once a day."""
    context, decision = result.context, result.observation.judgement.decision
    findings = [f for f in result.observation.judgement.findings if f.verdict != fd.OK and f.code not in context.told]
    if result.verdict == fd.OK or (not findings and not result.late):
        return
    if context.hook == HEALTH_CHECK and _said_today(result, findings):
        return
    head = f"{context.hook} {context.node}" + (f" job {context.job.job_id}" if context.job is not None else "")
    narrows = context.policy.narrow.enabled or context.policy.quarantine.enabled
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
