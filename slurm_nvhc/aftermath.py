"""After the steps: keep the evidence, count the fault, tell the site. For what was really done, and nothing else.

It comes last and only takes the time that acting left. What fails becomes a trouble; it never undoes or stops a step.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.act import evidence, outbox, remedy, site_hooks
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.execute import Outcome
from slurm_nvhc.act.plan import PlanInput
from slurm_nvhc.act.remedy import Remedy
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.words import clean
from slurm_nvhc.compare import noteworthy
from slurm_nvhc.context import Context
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.judge import PROLOG
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import suspect
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.protective import CLEARED, Intent, Strike
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.model.times import iso
from slurm_nvhc.observation import Observation
from slurm_nvhc.proc import log
from slurm_nvhc.record.run import Run
from slurm_nvhc.slurm import conf as slurm_conf_files

RESERVE_S: Final = 0.5  # of the hook's time, for writing the run down afterwards
REBOOT_RESERVE_S: Final = 2.0  # before a reboot: for asking Slurm
MOST_BUNDLES: Final = 4  # of one run; each tells all findings
MOST_TOLD_AGAIN: Final = 3  # events of earlier runs that one run tells
LEDGER_RUNS: Final = 10  # about a GPU, in its bundle
NOTIFY: Final = "notify"
LIMIT: Final = "limit"  # Strike.kind: a limit was told
DAY_NS: Final = 86400 * 10**9

# Steps whose success is an event of the site, and for which evidence is kept.
_EVENTS: Final[Mapping[str, str]] = {
    st.DRAIN: site_hooks.DRAIN,
    st.EXCLUDE: site_hooks.EXCLUDE,
    st.RESUME: site_hooks.RESUME,
    st.REQUEUE: site_hooks.REQUEUE,
    st.ALERT: site_hooks.LIMIT,
    st.END_EXCLUSION: site_hooks.RELEASE,
}
_KEPT: Final = (st.DRAIN, st.EXTEND, st.EXCLUDE)


class Aftermath(NamedTuple):
    """bundles: what was kept and where, and what came of a bug report; told: what the site's programs said.

    remedies: what is to be done about each fault of this run.
    """

    bundles: tuple[Mapping[str, str], ...] = ()
    told: tuple[Mapping[str, Any], ...] = ()
    troubles: tuple[Trouble, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the run's outcome; only what there is."""
        rows = {"evidence": list(self.bundles), "told": list(self.told), "remedies": [r._asdict() for r in self.remedies]}
        return {name: value for name, value in rows.items() if value}


class Teller:
    """What one run keeps and tells; collects what came of it."""

    def __init__(self, context: Context, seen: Observation, given: PlanInput, remedies: Sequence[Remedy]) -> None:
        self._context, self._seen, self._given, self._remedies = context, seen, given, remedies
        self._directory = f"{context.site.state}/{context.node}"
        self._bundles: list[Mapping[str, str]] = []
        self._told: list[Mapping[str, Any]] = []
        self._troubles: list[Trouble] = []

    def before_reboot(self, step: Step) -> None:
        """Evidence, then the site's word, while there is still a node to look at. Never raises."""
        self._guarded(lambda: self._before_reboot(step))

    def after(self, outcome: Outcome) -> Aftermath:
        """Never raises: whether the job of a prolog may run is decided already, and must not be lost here."""
        self._guarded(lambda: self._after(outcome))
        return Aftermath(tuple(self._bundles), tuple(self._told), tuple(dict.fromkeys(self._troubles)), tuple(self._remedies))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:
            self._troubles.append(Trouble("MON-INTERNAL", "hook", clean(f"after the steps: {type(exc).__name__}: {exc}", 200)))

    def _before_reboot(self, step: Step) -> None:
        bundle = self._keep("reboot", step, _codes(step))
        if bundle:
            self._bug_report(bundle, REBOOT_RESERVE_S + self._context.policy.site_hooks.timeout_s)
        self._tell(site_hooks.REBOOT, step, bundle, REBOOT_RESERVE_S)

    def _after(self, outcome: Outcome) -> None:
        deeds = done(outcome)
        self._count([s for s in deeds if s.kind in _KEPT])
        kept: dict[Step, str] = {}
        for step in [s for s in deeds if s.kind in _KEPT][:MOST_BUNDLES]:
            kept[step] = self._keep(step.kind, step, _codes(step))
        for step in deeds:
            if step.kind in _EVENTS and (step.kind != st.ALERT or self._first_today(step)):
                self._tell(_EVENTS[step.kind], step, kept.get(step, ""), RESERVE_S)
        if self._context.hook != PROLOG:  # a job waits for its prolog
            self._tell_again()
        for bundle in filter(None, kept.values()):
            self._bug_report(bundle, RESERVE_S)

    # ---- evidence

    def _keep(self, kind: str, step: Step, codes: Sequence[str]) -> str:
        """The bundle's path, '' when none was written."""
        wanted = self._context.policy.evidence
        if not wanted.enabled:
            return ""
        code = codes[0] if codes else ""
        uuid = step.uuid or next((u for u in (ent.gpu_of(k.partition(" ")[2]) for k in step.keys) if u), "")
        occasion = evidence.Occasion(kind, code, uuid, step.reason, step.why)
        folder = evidence.folder(wanted.dir, self._directory, self._context.node)
        written = evidence.write(folder, scene(self._context, self._seen, self._remedies, uuid), occasion, wanted.keep)
        if written.problem:
            self._troubles.append(Trouble("MON-EVIDENCE", "evidence", written.problem))
            return ""
        self._bundles.append({"kind": kind, "path": written.path})
        return written.path

    def _bug_report(self, bundle: str, reserve_s: float) -> None:
        if not self._context.policy.evidence.bug_report:
            return
        told = evidence.bug_report(bundle, self._context.budget.left_s() - reserve_s)
        if told:
            self._bundles.append({"kind": "bug report", "path": told})

    # ---- counting

    def _count(self, steps: Sequence[Step]) -> None:
        """Each fault that was drained or excluded for leaves a strike: so its next rung is known when it comes back."""
        given = self._given
        for step in steps:
            for strike in remedy.struck(step.keys, remedy.past(given)):
                self._change(lambda s=strike: self._context.book.add_strike(s))
                given = given._replace(strikes=(*given.strikes, strike))

    def _first_today(self, step: Step) -> bool:
        """A limit is told once a day for what it keeps us from: a health check meets it every few minutes."""
        given, key = self._given, " ".join((step.about or step.kind, *step.keys))[:500]
        if any(s.kind == LIMIT and s.key == key and 0 <= given.now_ns - s.at_ns < DAY_NS for s in given.strikes):
            return False
        self._change(lambda: self._context.book.add_strike(Strike(LIMIT, key, given.now_ns)))
        log.warning(f"{self._context.node}: {step.why}")
        return True

    # ---- telling

    def _tell(self, event: str, step: Step, bundle: str, reserve_s: float) -> None:
        context, given = self._context, self._given
        program = site_hooks.program(context.policy.site_hooks, event)
        if not program or context.policy.mode == fd.OBSERVE:
            return
        # A reboot that is asked for again is the same event.
        asked = (i.since_ns for i in given.intents if (i.kind, i.reason) == (step.kind, step.reason))
        name = site_hooks.ident(event, context.node, next(asked, given.now_ns), (step.reason, step.uuid, step.job, *step.keys))
        document = {
            **told_of(event, name, context.node, given.now_ns, step.reason, step.why),
            "cluster": cluster_name(context.slurm_conf),
            "hook": context.hook,
            "mode": context.policy.mode,
            "boot_id": given.boot_id,
            "uuid": step.uuid,
            "job": _job(context, step),
            "findings": [_finding(f) for f in self._about(step)],
            "suspects": [suspect.to_json(s) for s in self._seen.judgement.suspects],
            "remedies": [r._asdict() for r in self._remedies],
            "evidence": bundle,
        }
        trouble = site_hooks.keep(self._directory, document)
        if trouble is not None:
            self._troubles.append(trouble)
        # Written before it is tried, and already put off: another hook that comes meanwhile does not tell it a second time.
        intent = outbox.postponed(Intent(NOTIFY, name, given.now_ns), given.now_ns, context.node)
        self._change(lambda: context.book.add_intent(intent))
        self._run(program, event, document, intent, reserve_s)

    def _about(self, step: Step) -> tuple[Finding, ...]:
        """The findings behind a step; all that are not ok, of the hardware, where it names none."""
        findings = self._seen.judgement.findings
        named = tuple(f for f in findings if f"{f.code} {f.entity}" in step.keys)
        return named or tuple(f for f in findings if f.verdict in (fd.FAIL, fd.WARN) and f.klass != "monitor")

    def _tell_again(self) -> None:
        """What earlier runs could not tell."""
        context, given = self._context, self._given
        waiting = [i for i in given.intents if i.kind == NOTIFY]
        tried = 0
        for intent in waiting:
            if outbox.expired(intent, given.now_ns):
                self._end(intent)
                continue
            if tried >= MOST_TOLD_AGAIN or not outbox.due(intent, given.now_ns) or context.policy.mode == fd.OBSERVE:
                continue
            try:
                document = site_hooks.kept(self._directory, intent.reason)
            except MonitorError as exc:
                self._troubles.append(site_hooks.trouble("again", str(exc)))
                document = None
            program = site_hooks.program(context.policy.site_hooks, str(document["event"])) if document is not None else ""
            if document is None or not program:
                self._end(intent)
                continue
            tried += 1
            again = outbox.postponed(intent, given.now_ns, context.node)
            self._change(lambda i=again: context.book.update_intent(i))
            self._run(program, str(document["event"]), document, again, RESERVE_S)

    def _run(self, program: str, event: str, document: Mapping[str, Any], intent: Intent, reserve_s: float) -> None:
        left_s = self._context.budget.left_s() - reserve_s
        ran = site_hooks.run(program, document, min(self._context.policy.site_hooks.timeout_s, left_s))
        self._told.append({"event": event, "program": program, "ok": ran.ok, "told": ran.told, "id": document["id"]})
        if ran.ok:
            self._end(intent)
        else:
            self._troubles.append(site_hooks.trouble(event, ran.told))

    def _end(self, intent: Intent) -> None:
        self._change(lambda: self._context.book.end_intent(intent))
        site_hooks.drop(self._directory, intent.reason)

    def _change(self, call: Any) -> None:
        try:
            call()
        except MonitorError as exc:
            self._troubles.append(Trouble("MON-LEDGER", "ledger", str(exc)))


def done(outcome: Outcome) -> tuple[Step, ...]:
    """The steps by which something was really changed, in their order."""
    # A drain counts where it was placed: the step's aim is also reached on a node that somebody took out meanwhile.
    plain = (
        d.step
        for d in outcome.done
        if d.ok
        and (
            d.step.kind in (st.EXTEND, st.RESUME, st.REQUEUE, st.ALERT)
            or (d.step.kind == st.END_EXCLUSION and d.step.about != CLEARED)
        )
    )
    return tuple(dict.fromkeys([*outcome.deeds, *plain]))


def scene(context: Context, seen: Observation, remedies: Sequence[Remedy], uuid: str = "") -> evidence.Scene:
    kept = context.book.protective()
    out = evidence.Scene(
        node=context.node,
        hook=context.hook,
        job=context.job,
        mapping=seen.mapping,
        findings=seen.judgement.findings,
        suspects=seen.judgement.suspects,
        remedies=remedies,
        changes=tuple(c for c in seen.changes if noteworthy(c)),
        now=seen.snapshot,
        before=seen.before,
        exclusions=kept.exclusions,
        own=kept.own_drain,
        strikes=kept.strikes,
        policy=context.policy.hash,
        mode=context.policy.mode,
        diag=seen.given.diag,
    )
    extract = {u: [_row(r) for r in context.book.ask(_runs_of(u), ())] for u in evidence.concerned(out, uuid)}
    return out._replace(ledger=extract)


def _runs_of(uuid: str) -> Any:
    return lambda led: led.runs_of_gpu(uuid, LEDGER_RUNS)


def _row(run: Run) -> dict[str, Any]:
    """One earlier run about a GPU, short."""
    return {
        "id": run.id,
        "hook": run.hook,
        "job_id": run.job_id,
        "time": iso(run.ended_ns),
        "verdict": run.verdict,
        "findings": [{"code": f.code, "entity": f.entity, "verdict": f.verdict, "message": f.message} for f in run.findings][:20],
        "reason": run.outcome.get("reason", "") if isinstance(run.outcome, Mapping) else "",
    }


def told_of(event: str, name: str, node: str, at_ns: int, reason: str, why: str) -> dict[str, Any]:
    """The head of every document for a program of the site."""
    return {"schema": site_hooks.SCHEMA, "id": name, "event": event, "node": node, "time": iso(at_ns), "reason": reason, "why": why}


def _job(context: Context, step: Step) -> Optional[dict[str, Any]]:
    if context.job is not None:
        return {"id": context.job.job_id, "user": context.job.user, "partition": context.job.partition}
    return {"id": step.job, "user": "", "partition": ""} if step.job else None


def _finding(finding: Finding) -> dict[str, Any]:
    gpu = finding.gpu
    row = {"code": finding.code, "entity": finding.entity, "verdict": finding.verdict, "message": finding.message}
    return {**row, "gpu": {k: gpu.get(k) for k in ("uuid", "serial", "slot", "pci", "model", "nvml_index", "minor")} if gpu else None}


def _codes(step: Step) -> tuple[str, ...]:
    return tuple(k.partition(" ")[0] for k in step.keys) or ((step.code,) if step.code else ())


def cluster_name(slurm_conf: str) -> str:
    """ClusterName of slurm.conf; '' when it can not be told."""
    try:
        lines = slurm_conf_files.lines(slurm_conf_files.read(slurm_conf))
        return next((name for name in (slurm_conf_files.pairs(line).get("clustername", "") for line in lines) if name), "")
    except (OSError, ValueError):
        return ""
