"""Judge the past by another policy: the stored runs again, in their order, under two policies side by side.

Each side has a ledger of its own in a temporary directory, which begins empty: only what judge remembers is
kept there. The node's real ledger is read, nothing is done, and no Slurm command is run. Compared is what
judge proposes; whether act/ would have done it depends on the node's state in Slurm, which is not known.
"""

from __future__ import annotations

import tempfile
import time
from typing import Callable, Final, Iterator, Mapping, NamedTuple, Optional

from slurm_nvhc import run_text
from slurm_nvhc.book import Book
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.context import Context, Site
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, Judgement
from slurm_nvhc.model import diag, learned
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import given as given_facts
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.given import Given
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.protective import Pause
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.observation import judge_given
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run

NOTHING: Final = "nothing"
BATCH: Final = 200  # runs read from the ledger at once
# Jobs that run at once on a node have their start at hand. Of others it is read again; of many no epilog ever comes.
KEPT_PROLOGS: Final = 32
LEDGER_WAIT_S: Final = 30.0  # nobody else uses the scratch ledgers
# Why a run does not come out as it was recorded.
ACCEPTED: Final = "other values were accepted as normal since"
SAMPLES: Final = "the engine's samples, such as the traffic of NVLink up to 4, are not stored"
MEMORY: Final = "what was remembered before the first run is not known"
NOT_KNOWN: Final = "it is not known why"
PolicyOf = Callable[[str], Policy]  # partition ('' for health checks) -> the policy in force there


class Effect(NamedTuple):
    """What one finding asks for: an action's name, with " (observed)" where the rule only observes."""

    asks: str
    finding: Finding


Effects = Mapping[tuple[str, str, str], Effect]  # (code, entity, rule) -> what it asks for


class Difference(NamedTuple):
    """One finding of one run that asks for something else under the new policy. was, now: NOTHING or as Effect.asks."""

    run_id: int
    hook: str
    job_id: str
    at_ns: int
    was: str
    now: str
    finding: Finding


class Otherwise(NamedTuple):
    """A run that was recorded under the policy in force and does not come out as it was recorded.

    codes: of the findings that differ. why: what is known of the reasons, one clause each, never empty.
    """

    run_id: int
    hook: str
    job_id: str
    at_ns: int
    codes: tuple[str, ...]
    why: tuple[str, ...]


class Report(NamedTuple):
    """runs: those stored in the time asked for; judged: those of them that could be judged again.

    skipped:        why the others could not -> how many
    first_ns, last_ns: moments of the first and last run judged, 0 without any
    same_hash:      runs that were recorded under the policy in force
    otherwise:      those of them that are not judged here as they were then, in their order
    unconfirmed:    runs in which the new policy would have looked a second time, and no second reading is stored
    without_start:  epilogs whose job's start is not kept: they are judged as if no prolog had been seen
    """

    runs: int = 0
    judged: int = 0
    differences: tuple[Difference, ...] = ()
    skipped: Mapping[str, int] = {}
    first_ns: int = 0
    last_ns: int = 0
    same_hash: int = 0
    otherwise: tuple[Otherwise, ...] = ()
    unconfirmed: int = 0
    without_start: int = 0
    seconds: float = 0.0

    @property
    def reproduced(self) -> int:
        return self.same_hash - len(self.otherwise)


class _Side:
    """One policy with its own scratch ledger."""

    def __init__(self, node: str, policy_of: PolicyOf, directory: str) -> None:
        self._node = node
        self._policy_of = policy_of
        self._policies: dict[str, Policy] = {}
        self._book = Book(directory, LEDGER_WAIT_S)

    def policy(self, partition: str) -> Policy:
        if partition not in self._policies:
            self._policies[partition] = self._policy_of(partition)
        return self._policies[partition]

    def judge(self, past: _Past) -> tuple[Judgement, bool]:
        """(what judge makes of the run, would it have looked again although no second reading is stored)"""
        run = past.run
        site, budget = Site("", "", ""), Budget(LEDGER_WAIT_S)
        context = Context(run.hook, site, self._node, past.job, self.policy(run.partition), budget, self._book, "", ())
        if run.given.get("paused"):
            context = context._replace(pause=Pause(run.ended_ns, "", "", run.ended_ns))  # it only observed, whatever the policy says
        first = past.snapshot if past.first_look is None else past.snapshot._replace(wall_ns=past.first_look[0], boot_ns=past.first_look[1])
        run_id = f"{run.hook}:{first.boot_id}:{first.boot_ns}"
        # The first of two readings is not stored. The second one stands for it: had they differed in a fault,
        # that fault would not have been confirmed.
        judgement = judge_given(context, past.before, first, run.before_run, run_id, past.given).judgement
        if judgement.second_look and past.first_look is not None:
            judgement = judge_given(context, past.before, past.snapshot, run.before_run, run_id, past.given).judgement
        return judgement, judgement.second_look and past.first_look is None

    def effects(self, judgement: Judgement, partition: str) -> Effects:
        """What is asked for; findings that ask for nothing are left out."""
        narrows = self.policy(partition).narrow.enabled or self.policy(partition).quarantine.enabled
        out: dict[tuple[str, str, str], Effect] = {}
        for proposals, mark in ((judgement.decision.observed, " (observed)"), (judgement.decision.proposals, "")):
            for proposal in proposals:
                asks = f"{fd.told_action(proposal.action, narrows)}{mark}"
                out.update({(f.code, f.entity, f.evidence.rule): Effect(asks, f) for f in proposal.findings})
        return out

    def close(self) -> None:
        self._book.close()


class _Past(NamedTuple):
    """A stored run with all that judging it takes. first_look: (wall_ns, boot_ns) of the first of two readings."""

    run: Run
    snapshot: Snapshot
    before: Optional[Snapshot]
    job: Optional[Job]
    given: Given
    first_look: Optional[tuple[int, int]]


class _Starts:
    """Which snapshot a run's window began with, as the runs go by."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._prologs: dict[int, Snapshot] = {}
        self._last_seen: Optional[Snapshot] = None

    def before(self, run: Run) -> Optional[Snapshot]:
        if run.hook == HEALTH_CHECK:
            return self._last_seen
        if run.hook != EPILOG or run.before_run is None:
            return None
        found = self._prologs.pop(run.before_run, None)
        return found if found is not None else self._ledger.snapshot_of(run.before_run)

    def passed(self, run: Run, snapshot: Snapshot) -> None:
        if snapshot.gpus is not None and run.hook == HEALTH_CHECK:
            self._last_seen = snapshot
        elif run.hook not in (HEALTH_CHECK, EPILOG):
            self._prologs[run.id] = snapshot
            if len(self._prologs) > KEPT_PROLOGS:
                del self._prologs[next(iter(self._prologs))]


def simulate(
    ledger: Ledger, node: str, in_force: PolicyOf, new: PolicyOf, since_ns: int, tell: Callable[[int], object] = lambda judged: None
) -> Report:
    """Judge the runs that ended at ``since_ns`` or later by both policies. MonitorError when a ledger can not be used.

    tell: told how many runs were judged, now and then: a month of a node takes minutes.
    """
    began = time.monotonic()
    lessons = ledger.protective().learned
    starts = _Starts(ledger)
    report, skipped, differences, otherwise = Report(), dict[str, int](), list[Difference](), list[Otherwise]()
    with tempfile.TemporaryDirectory(prefix="nvhc-simulate-") as scratch:
        old_side, new_side = _Side(node, in_force, f"{scratch}/in_force"), _Side(node, new, f"{scratch}/new")
        try:
            for run in _runs(ledger, since_ns):
                report = report._replace(runs=report.runs + 1)
                past, why = _past(run, starts, lessons)
                if past is None:
                    skipped[why] = skipped.get(why, 0) + 1
                    continue
                (old_judged, _), (new_judged, unsure) = old_side.judge(past), new_side.judge(past)
                old, now = old_side.effects(old_judged, run.partition), new_side.effects(new_judged, run.partition)
                differences += _differences(run, old, now)
                known = run.policy_hash == old_side.policy(run.partition).hash
                if known and not _as_recorded(run, old_judged):
                    otherwise.append(_otherwise(run, old_judged, old_side.policy(run.partition), lessons))
                report = report._replace(
                    judged=report.judged + 1,
                    first_ns=report.first_ns or run.ended_ns,
                    last_ns=run.ended_ns,
                    same_hash=report.same_hash + known,
                    unconfirmed=report.unconfirmed + unsure,
                    without_start=report.without_start + (run.hook == EPILOG and run.before_run is not None and past.before is None),
                )
                if report.judged % BATCH == 0:
                    tell(report.judged)
        finally:
            old_side.close()
            new_side.close()
    report = report._replace(differences=tuple(differences), otherwise=tuple(otherwise), skipped=skipped)
    return report._replace(seconds=time.monotonic() - began)


def history_rules(policy: Policy) -> tuple[str, ...]:
    """Rules that ask for the engine's samples, which are not stored: they can not be judged again."""
    asking = (r.name for r in policy.rules.values() if r.mode != fd.OFF and any(level.peers is not None for level in (*r.warn, *r.fail)))
    return tuple(asking)


def _runs(ledger: Ledger, since_ns: int) -> Iterator[Run]:
    after = (since_ns, -1)
    while batch := ledger.runs_from(after, BATCH):
        yield from batch
        after = (batch[-1].ended_ns, batch[-1].id)


def _past(run: Run, starts: _Starts, lessons: tuple[Lesson, ...]) -> tuple[Optional[_Past], str]:
    """(the run with all that it takes to judge it, or None, and why not)"""
    snapshot = run.snapshot
    if snapshot is None:
        return None, "no snapshot of it can be read"
    before = starts.before(run)
    starts.passed(run, snapshot)
    if not run.given:
        return None, "recorded by an earlier version, without what judge was told"
    try:
        given = given_facts.from_json(run.given, snapshot)
        look, uid = run.given.get("first_look"), run.given.get("uid")
        first_look = None if look is None else (int(look[0]), int(look[1]))
        tested = run.outcome.get("diag")
        given = given._replace(diag=None if tested is None else diag.from_json(tested))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None, "what judge was told can not be read"
    job = Job(run.job_id, uid if isinstance(uid, int) else None, run.user, run.partition) if run.job_id else None
    # A lesson of this very look was learned after it was judged.
    table = learned.table([lesson for lesson in lessons if lesson.at_ns < snapshot.wall_ns])
    return _Past(run, snapshot, before, job, given._replace(learned=table), first_look), ""


def _differences(run: Run, old: Effects, new: Effects) -> Iterator[Difference]:
    for key in dict.fromkeys((*new, *old)):
        was, now = old.get(key), new.get(key)
        if was is None or now is None or was.asks != now.asks:
            shown = now or was
            assert shown is not None
            asks = (was.asks if was else NOTHING, now.asks if now else NOTHING)
            yield Difference(run.id, run.hook, run.job_id, run.ended_ns, *asks, shown.finding)


def _as_recorded(run: Run, judgement: Judgement) -> bool:
    """Does the decision come out as it was written down?"""
    made = run_text.decision_to_json(judgement.decision)
    return all(run.decision.get(key) == made[key] for key in ("proposals", "observed"))


def _otherwise(run: Run, judgement: Judgement, policy: Policy, lessons: tuple[Lesson, ...]) -> Otherwise:
    def told(findings: tuple[Finding, ...]) -> dict[tuple[str, ...], Finding]:
        return {(f.code, f.entity, f.evidence.rule, f.verdict, f.mode): f for f in findings if f.evidence.rule in policy.rules}

    then, now = told(run.findings), told(judgement.findings)
    differing = [f for key, f in {**then, **now}.items() if (key in then) != (key in now)]
    why = dict.fromkeys(_cause(f, run, policy, lessons) for f in differing)
    codes = tuple(dict.fromkeys(f.code for f in differing))
    return Otherwise(run.id, run.hook, run.job_id, run.ended_ns, codes, tuple(why) or (NOT_KNOWN,))


def _cause(finding: Finding, run: Run, policy: Policy, lessons: tuple[Lesson, ...]) -> str:
    """As far as it is known: what of that which judge was told then is not stored, or was stored over."""
    field, rule = finding.evidence.field, policy.rules[finding.evidence.rule]
    levels = (*rule.warn, *rule.fail)
    for lesson in lessons:
        if lesson.at_ns >= run.ended_ns and lesson.who != learned.ITSELF and field in lesson.readings.get(finding.entity, {}):
            return ACCEPTED
    by_traffic = any(level.poisson is not None and level.poisson.ber is not None for level in levels)
    if any(level.peers is not None for level in levels) or (by_traffic and not cat.is_nvlink5(cat.BY_NAME[field])):
        return SAMPLES
    remembers = any(level.cusum is not None or level.hits > 1 or level.users is not None or level.consecutive > 1 for level in levels)
    return MEMORY if remembers or rule.sticky else NOT_KNOWN
