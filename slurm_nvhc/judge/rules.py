"""Rules over readings: every field of every GPU and link in scope against every level.

Job hooks judge the job's GPUs over the job's window. What is absolutely wrong
with another GPU (a value, not a change) counts too, but not against the job
(nebius/soperator#1246: neighbours' counters drained a job's node).
"""

from __future__ import annotations

from typing import Final, Iterable, Iterator, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge import conditions, expect, memory, peers, rates
from slurm_nvhc.judge.conditions import Subject
from slurm_nvhc.judge.context import EPILOG, HEALTH_CHECK, Input
from slurm_nvhc.judge.events import xids_by_gpu
from slurm_nvhc.judge.evidence import Gathering, as_told
from slurm_nvhc.judge.parts import far_end_unused, with_absent
from slurm_nvhc.judge.say import make_finding
from slurm_nvhc.judge.settle import settling
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.reading import BLANK, NOT_FOUND, NOT_SUPPORTED, NoData, number
from slurm_nvhc.model.snapshot import OK, GpuIdentity, GpuState
from slurm_nvhc.policy.compiled import Level, Policy, Rule

# A gauge that stays bad is seen by an epilog, the next prolog and a second look within seconds: one occurrence. Health
# checks are minutes apart, and the shortest time between two looks that packaged rules ask for is a minute as well.
APART_S: Final = 60.0
SOON: Final = "links may have been training: soon after boot, driver load or reset"


class Outcome(NamedTuple):
    """missing: (uuid, field, why) of readings that an active rule needed and did not get. not_compared: see Judgement."""

    findings: tuple[Finding, ...]
    missing: tuple[tuple[str, str, str], ...]
    second_look: bool
    not_compared: str


class _Hit(NamedTuple):
    """why: what makes it less than its level says, '' mostly."""

    verdict: str
    level: Level
    why: str = ""


def judge_readings(inp: Input, notes: memory.Notes) -> Outcome:
    changes = {(c.entity, c.field): c for c in inp.changes}
    findings: list[Finding] = []
    missing: list[tuple[str, str, str]] = []
    second_look = False
    policies = {model: inp.policy.for_model(model) for model in {g.identity.model for g in inp.gpus().values() if g.status == OK}}
    compared = peers.compare(inp, frozenset[str]().union(*map(peers.asked, policies.values())))
    learned = expect.table(inp)
    gathered = Gathering(inp, notes, policies)
    rates.remember(inp, notes, (*policies.values(), inp.policy))
    normals = rates.Normals(inp, notes, changes)
    xids = xids_by_gpu(inp)
    for uuid, gpu in inp.gpus().items():
        if gpu.status != OK:
            continue  # presence.py speaks for it; its readings mean nothing
        policy = policies[gpu.identity.model]
        in_scope = inp.in_scope(uuid)
        if inp.window.kind == "job" and in_scope:
            notes.count_job(uuid, inp.window.key)
        _remember_links(uuid, gpu, notes)
        for rule in policy.rules.values():
            if rule.kind != "reading" or rule.mode == fd.OFF or _of_parts(rule):
                continue
            needs_growth = _needs_growth(rule, inp)
            for field, place in _places(rule, uuid, gpu, findings):
                if needs_growth and _is_idle(changes.get((place, field)), gathered):
                    continue
                subject = _subject(field, place, uuid, gpu, changes, policy, notes, learned)
                subject = subject._replace(
                    xids=xids.get(uuid, frozenset()), standing=compared.standings.get((place, field)), in_scope=in_scope
                )
                subject = _with_statistics(subject, rule, place, policy, normals, gathered)
                hit, wants_look = _strongest(rule, place, subject, inp, notes)
                second_look = second_look or wants_look
                if _lacks(rule, subject, inp, uuid):
                    missing.append((uuid, field, _why_missing(subject)))
                if hit is not None:
                    findings.append(_finding(rule, hit, place, gpu.identity, subject, inp))
    parts, wants_look = _judge_parts(inp, notes, changes, learned, normals, gathered)
    return Outcome(_dominant([*findings, *parts]), tuple(missing), second_look or wants_look, compared.why)


def _judge_parts(
    inp: Input,
    notes: memory.Notes,
    changes: Mapping[tuple[str, str], Change],
    learned: expect.Table,
    normals: rates.Normals,
    gathered: Gathering,
) -> tuple[list[Finding], bool]:
    """What the node has beside its GPUs: switches, their ports, RDMA ports, the node itself.

    A part that lacks a reading is no "no data": most nodes have no switch that the host sees. They are the
    node's, whoever has a job on it: every hook judges them, and nothing of it is held against a job.
    """
    findings: list[Finding] = []
    second_look = False
    if inp.window.kind == "job":
        notes.count_job("", inp.window.key)  # "of the last jobs" of a part are the node's jobs
    rules = [r for r in inp.policy.rules.values() if r.kind == "reading" and r.mode != fd.OFF and _of_parts(r)]
    needs_growth = {rule.name: _needs_growth(rule, inp) for rule in rules}
    for place, readings in with_absent(inp).items():
        scope = entity.scope(place)
        for rule in rules:
            for field in rule.fields:
                if cat.BY_NAME[field].scope != scope:
                    continue
                change = changes.get((place, field))
                if needs_growth[rule.name] and _is_idle(change, gathered):
                    continue
                normal = None if scope == cat.SWITCH_PORT and far_end_unused(inp, place) else learned.get(place, {}).get(field)
                subject = Subject(field, readings.get(field), change, readings, learned=normal)
                subject = _with_statistics(subject, rule, place, inp.policy, normals, gathered)
                hit, wants_look = _strongest(rule, place, subject, inp, notes)
                second_look = second_look or wants_look
                if hit is not None:
                    findings.append(_finding(rule, hit, place, None, subject, inp))
    return findings, second_look


def _with_statistics(subject: Subject, rule: Rule, place: str, policy: Policy, normals: rates.Normals, gathered: Gathering) -> Subject:
    """With what is normal for a counter that grew, and what was gathered about it; most have neither."""
    if subject.change is not None and subject.change.amount:
        subject = subject._replace(normal=normals.of(place, subject.field, policy))
    found = gathered.of(rule, place, subject.field)
    return subject._replace(gathered=found) if found else subject


def _needs_growth(rule: Rule, inp: Input) -> bool:
    """Can no level of the rule hold, nor remember anything, of a counter that did not grow and has no evidence?"""
    return all(
        level.cusum is not None
        or (conditions.asks_growth(level) and level.consecutive == 1 and (level.of_last is None or inp.hook != EPILOG))
        for level in (*rule.warn, *rule.fail)
    )


def _is_idle(change: Optional[Change], gathered: Gathering) -> bool:
    """Nearly all counters, nearly always: it is known not to have grown, and no earlier look saw errors of it."""
    return (
        change is not None and change.amount == 0 and change.kind == ch.EXACT and not gathered.knows(change.entity, change.field)
    )


def _of_parts(rule: Rule) -> bool:
    return cat.BY_NAME[rule.fields[0]].scope in cat.PART_SCOPES


def _remember_links(uuid: str, gpu: GpuState, notes: memory.Notes) -> None:
    notes.links_are_up(uuid, (link for link, readings in gpu.links.items() if readings.get("nvlink_state") == "up"))


def _places(rule: Rule, uuid: str, gpu: GpuState, findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """(field, entity) that the rule looks at on this GPU.

    Link fields come first. A GPU's total is asked only when no link of the GPU
    explains it: it can not say which link it was.
    """
    fields = rule.fields
    if gpu.identity.mig is True:
        # Instances do not use NVLink, and DCGM's health does not look at the links of such a GPU either.
        fields = tuple(f for f in fields if not cat.of_links(cat.BY_NAME[f]))
    ordered = sorted(fields, key=lambda f: cat.BY_NAME[f].scope != cat.LINK)
    links_explain = False
    for field in ordered:
        if cat.BY_NAME[field].scope == cat.LINK:
            for link in sorted(gpu.links):
                yield field, entity.link(uuid, link)
            links_explain = any(f.evidence.rule == rule.name and entity.gpu_of(f.entity) == uuid for f in findings)
        elif not links_explain:
            yield field, uuid


def _subject(
    field: str,
    place: str,
    uuid: str,
    gpu: GpuState,
    changes: Mapping[tuple[str, str], Change],
    policy: Policy,
    notes: memory.Notes,
    learned: expect.Table,
) -> Subject:
    _, link = entity.split_link(place)
    readings = gpu.readings if link is None else gpu.links.get(link, {})
    was_up = expected = False
    normal = learned.get(place, {}).get(field)
    if field == "nvlink_state" and link is not None:
        before = changes.get((place, field))
        expected = link < policy.expect.links if policy.expect.links is not None else normal is not None
        was_up = notes.link_was_up(uuid, link) or (before is not None and before.before == "up")
    return Subject(field, readings.get(field), changes.get((place, field)), gpu.readings, was_up, expected, learned=normal)


def _strongest(rule: Rule, place: str, subject: Subject, inp: Input, notes: memory.Notes) -> tuple[Optional[_Hit], bool]:
    """The strongest level that holds, and whether a second look would confirm a stronger one.

    Every level's memory is brought up to date, whichever wins.
    """
    best: Optional[_Hit] = None
    wants_look = False
    for verdict, levels in ((fd.FAIL, rule.fail), (fd.WARN, rule.warn)):
        for level in levels:
            if not _asked(level, inp, subject.in_scope) or (verdict == fd.WARN and _is_told_elsewhere(level, inp)):
                continue
            now = conditions.holds(level, subject)
            if now is None:
                if level.consecutive > 1:
                    notes.no_answer(_row(rule, level, place, subject.field), level.spacing_s)
                continue
            if not now and _asks_one_look(level):
                continue  # nothing is remembered of a level that asks for one look
            if conditions.windowed(level) and _began_settling(level, place, subject, inp):
                if now and _asks_one_look(level):
                    best = _stronger(best, _after_reset(rule, _Hit(fd.WARN, level, SOON), subject))
                continue
            lasting, could_confirm = _persists(rule, level, place, subject, now, inp, notes)
            wants_look = wants_look or could_confirm
            if lasting:
                best = _stronger(best, _after_reset(rule, _Hit(verdict, level), subject))
    return best, wants_look


def _asked(level: Level, inp: Input, in_scope: bool) -> bool:
    """Windows are judged where a window is; "of the last jobs" only when a job ends."""
    if level.cusum is not None:
        return in_scope  # what was gathered about other GPUs is the health check's to tell
    if not conditions.windowed(level):
        return True
    if level.of_last is not None and inp.hook != EPILOG:
        return False
    return inp.window.kind != "none" and in_scope


def _is_told_elsewhere(level: Level, inp: Input) -> bool:
    """A drift from what was learned is the node's, not a job's: an upgraded fleet tells it once a day in its
    health checks, not in the prolog and epilog of every job. What leads to more than a warning counts everywhere."""
    return expect.asks(level) and inp.hook != HEALTH_CHECK


def _stronger(one: Optional[_Hit], other: Optional[_Hit]) -> Optional[_Hit]:
    """The first of equals: a level that is held back to a warning must not hide another that fails."""
    return one if other is None or (one is not None and not other.verdict == fd.FAIL != one.verdict) else other


def _asks_one_look(level: Level) -> bool:
    return level.hits == 1 and level.consecutive == 1 and level.of_last is None


def _began_settling(level: Level, place: str, subject: Subject, inp: Input) -> bool:
    """Did the window begin before its ``settle`` was over? Then it may hold what links count while they train: a job that
    starts 40 s after boot has it all. Such growth is at most a warning, and no hit that is counted with later ones."""
    if not level.settle_s:
        return False
    seconds = inp.window.seconds if subject.change is None else subject.change.seconds
    return settling(inp, level.settle_s + seconds, entity.gpu_of(place))


def _persists(rule: Rule, level: Level, place: str, subject: Subject, now: bool, inp: Input, notes: memory.Notes) -> tuple[bool, bool]:
    """(does it hold with all the persistence that the level asks for, would a second look help)"""
    name = memory.key(rule, level, place)
    if settling(inp, level.settle_s, entity.gpu_of(place)):
        if not now and level.consecutive > 1:  # what is seen to be well ends the row, at any time
            notes.seen_in_a_row(_row(rule, level, place, subject.field), False, level.spacing_s)
        return False, False
    if level.of_last is not None:
        return notes.job_hits(name, entity.gpu_of(place), now, level.of_last) >= level.hits, False
    if level.hits > 1:
        new = [(inp.now_ns, _occurrence(place, subject, inp), "")] if now else []
        # Growth is named by where the counter stood, so that it counts once; what has no such name needs time between.
        apart_s = 0.0 if subject.change is not None and subject.change.amount is not None else APART_S
        count, _ = notes.occurrences(name, new, level, apart_s)
        return now and count >= level.hits, False
    if level.consecutive > 1:
        # A health check looks again minutes later: two looks within one run of it are one observation.
        spacing_s = level.spacing_s or inp.policy.reread_wait_s
        seen = notes.seen_in_a_row(_row(rule, level, place, subject.field), now, spacing_s, once_a_run=inp.hook == HEALTH_CHECK)
        return now and seen >= level.consecutive, now and seen < level.consecutive and spacing_s <= inp.policy.reread_wait_s
    return now, False


def _row(rule: Rule, level: Level, place: str, field: str) -> str:
    """Observations in a row are of one field: another field of the same rule and place that is well must not end them."""
    name = memory.key(rule, level, place)
    return name if len(rule.fields) == 1 else f"{name}|{field}"


def _occurrence(place: str, subject: Subject, inp: Input) -> str:
    """Names growth by where the counter stood after it: a health check and an epilog that both see it count it once."""
    if subject.change is None or subject.change.amount is None:
        return inp.window.key
    return f"{place}|{subject.field}|{subject.change.after}|{inp.snapshot.boot_id}"


def _after_reset(rule: Rule, hit: _Hit, subject: Subject) -> Optional[_Hit]:
    """A lower bound after a reset leads at most to what the rule allows (default: a warning)."""
    change = subject.change
    if change is None or change.kind != ch.AT_LEAST or not conditions.windowed(hit.level):
        return hit
    if rule.after_reset == "ignore":
        return None
    if rule.after_reset == fd.WARN:
        return hit._replace(verdict=fd.WARN)
    return hit


def _lacks(rule: Rule, subject: Subject, inp: Input, uuid: str) -> bool:
    """Did an active rule go without an answer for want of data? "Not supported" is an answer."""
    if not subject.in_scope or _does_not_apply(subject, inp.gpus()[uuid].identity):
        return False
    if all(level.peers is not None for level in (*rule.fail, *rule.warn)):
        return False  # most jobs have too few GPUs to be compared: no answer is no lack
    if isinstance(subject.reading, NoData):
        return True
    if subject.change is None or subject.change.kind != ch.UNKNOWN or inp.window.kind == "none":
        return False
    asks_growth = any(conditions.windowed(level) for level in (*rule.fail, *rule.warn))
    was = subject.change.before
    return asks_growth and not (isinstance(was, NoData) and was.kind == NOT_SUPPORTED) and not cat.BY_NAME[subject.field].shrinks


def _does_not_apply(subject: Subject, identity: GpuIdentity) -> bool:
    """The GPU has no such thing: it says so, or its kind is known not to (no row remapping on a V100, nor with MIG on: blank is right)."""
    if not isinstance(subject.reading, NoData):
        return False
    if subject.reading.kind == NOT_SUPPORTED:
        return True
    return subject.reading.kind in (BLANK, NOT_FOUND) and not cat.exists_on(
        cat.BY_NAME[subject.field], identity.model, identity.mig is True
    )


def _why_missing(subject: Subject) -> str:
    if isinstance(subject.reading, NoData):
        return subject.reading.kind.replace("_", " ")
    return subject.change.why if subject.change is not None else "no reading"


def _finding(rule: Rule, hit: _Hit, place: str, identity: Optional[GpuIdentity], subject: Subject, inp: Input) -> Finding:
    uses_window = conditions.windowed(hit.level)
    change = subject.change if uses_window else None
    normal = subject.learned if expect.asks(hit.level) else None
    evidence = fd.Evidence(
        field=subject.field,
        before=None if change is None else change.before,
        after=subject.reading,
        amount=None if change is None else change.amount,
        bound="at_least" if change is not None and change.kind == ch.AT_LEAST else "exact",
        seconds=None if change is None else change.seconds,
        rate=None if change is None or change.amount is None or change.seconds <= 0 else change.amount / change.seconds,
        threshold=rule.text[0] if hit.verdict == fd.WARN and hit.level in rule.warn else rule.text[1],
        rule=rule.name,
        window=inp.window.text if uses_window else "",
        text="; ".join(filter(None, (change.why if change is not None else "", hit.why))),
        at_ns=inp.now_ns,
        source=rule.source,
        limit=number(subject.readings.get(hit.level.below_field or hit.level.above_field or "")) if normal is None else normal.value,
        learned=normal is not None,
    )
    if hit.level.poisson is not None and subject.normal is not None:
        evidence = rates.as_told(evidence, hit.level.poisson, subject.normal)
    message = expect.describe(place, subject.field, subject.reading, normal) if normal is not None else ""
    if hit.level.peers is not None and subject.standing is not None:
        evidence, message = peers.told(evidence, subject.standing), peers.say(subject.field, subject.standing)
    found = subject.gathered.get(hit.level.cusum) if hit.level.cusum is not None else None
    if found is not None:
        evidence, message = as_told(evidence, place, found)
    idents = (found.ident,) if found is not None and found.ident else ()
    return make_finding(inp, rule, place, hit.verdict, evidence, identity, absolute=not uses_window, idents=idents, message=message)


def _dominant(findings: list[Finding]) -> tuple[Finding, ...]:
    """Without findings that a stronger one about the same field of the same entity makes pointless."""
    order = {fd.FAIL: 2, fd.WARN: 1}
    best: dict[tuple[str, str], tuple[int, int]] = {}  # of all, of those that are enforced
    for f in findings:
        rank, key = order.get(f.verdict, 0), (f.entity, f.evidence.field)
        any_, enforced = best.get(key, (0, 0))
        best[key] = (max(any_, rank), max(enforced, rank) if f.mode == fd.ENFORCE else enforced)
    return tuple(
        f for f in findings if order.get(f.verdict, 0) >= best[f.entity, f.evidence.field][1 if f.mode == fd.ENFORCE else 0]
    )
