"""Did a fault touch this job? For the user whose loss curve broke; asked when a job ends.

  hit      something failed on the job's GPUs, or on the node beside them, while the job ran, whatever a rule's mode;
           lost data that was counted or logged then, whatever the rules are
  suspect  a warning, or an error counter that grew at all; a fault that stood there before the job began; a test of the
           hardware that failed after it
  unknown  nothing was seen, but not all of it could be seen
  clean    all of it was seen, and nothing happened. What no counter sees (silent corruption) is not in any of these

It is said honestly what it means: an NVLink that resends loses no data, an uncorrectable error does. What is
configured, and trouble of our own, touches nobody's results.

A fault that came and went within the job is in no reading of its end: what the runs in between found counts as well.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import effects, figures
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.judge import when
from slurm_nvhc.judge.context import EPILOG, Input
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.earlier import Earlier
from slurm_nvhc.model.finding import EVENTS, Finding
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.settled import SAME_MOMENT_NS
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.model.suspect import CLEAN, HIT, SUSPECTED, UNKNOWN, Touched

MOST_SAID: Final = 3  # reasons; --json and the findings have all
MOST_COUNTERS: Final = 30
MOST_MINUTES: Final = 30


class _Mark(NamedTuple):
    """One thing that touched the job. about: (entity, what), the same for all that is found about one counter, state or Xid.

    looks: from when to when other runs found it.
    """

    about: tuple[str, str]
    verdict: str
    effect: str
    what: str
    minutes: tuple[tuple[int, int, str], ...] = ()
    looks: Optional[tuple[int, int]] = None


def touched(inp: Input, findings: Sequence[Finding]) -> Optional[Touched]:
    """None where no job with GPUs ends."""
    if inp.hook != EPILOG or not inp.job_uuids():
        return None
    grown = _counted(inp)
    table = {(c.entity, c.field): c for c in inp.changes}
    own = [_mark(inp, f, table) for f in findings]
    marks = _once([*own, *_of_earlier(inp, table), *(_growth_mark(inp, c) for c in grown)])
    unseen = _unseen(inp, findings)
    minutes = tuple(sorted({m for mark in marks for m in _when(inp, mark, table)}))[:MOST_MINUTES]
    counters = tuple(_counter(inp, c) for c in grown[:MOST_COUNTERS])
    if not marks and unseen:
        return Touched(UNKNOWN, "; ".join(unseen))
    if not marks:
        count = len(inp.job_uuids())
        return Touched(CLEAN, f"nothing was counted or logged about {'its GPU' if count == 1 else f'its {count} GPUs'}")
    verdict = HIT if any(m.verdict == HIT for m in marks) else SUSPECTED
    return Touched(verdict, _why(marks, unseen), minutes, counters)


def _once(marks: Iterable[Optional[_Mark]]) -> list[_Mark]:
    """One mark for all that is found about one thing, the worst: of equals the first. It has the minutes of all of them."""
    out: dict[tuple[str, str], _Mark] = {}
    for mark in marks:
        if mark is None:
            continue
        known = out.setdefault(mark.about, mark)
        if known is mark:
            continue
        worse = mark if mark.verdict == HIT != known.verdict else known
        # One event has another stamp in each reading. Minutes of counters are told for the whole job (_when).
        later = [m for m in mark.minutes if all(abs(m[0] - other[0]) > SAME_MOMENT_NS for other in known.minutes)]
        looks = [looks for looks in (known.looks, mark.looks) if looks is not None]
        span = (min(begin for begin, _end in looks), max(end for _begin, end in looks)) if looks else None
        out[mark.about] = worse._replace(minutes=(*known.minutes, *later), looks=span)
    return list(out.values())


def _mark(inp: Input, finding: Finding, changes: Mapping[tuple[str, str], Change], look: Optional[Earlier] = None) -> Optional[_Mark]:
    """What a finding means for the job; None when it means nothing. look: the run that made it, None for this one."""
    evidence = finding.evidence
    effect = effects.OF_FIELD.get(evidence.field) or effects.OF_CODE.get(finding.code, effects.UNKNOWN)
    if finding.verdict not in (fd.WARN, fd.FAIL) or finding.klass == "monitor" or effect == effects.NONE:
        return None
    if not finding.of_job and entity.scope(finding.entity) in (cat.GPU, cat.LINK):
        return None  # another job's GPU
    stood = _stood_before(inp, finding, look)
    if stood and finding.verdict == fd.WARN:
        return None
    whole = look is None or _is_of_the_job(inp, finding, changes, look)
    if whole is None:
        return None
    # What was counted or logged did happen: a rule that only warns makes it no less. A state that one look saw may be none.
    lost = effect == effects.LOST and evidence.bound == "exact" and bool(evidence.amount) and (_is_event(finding) or not finding.absolute)
    # A test was run beside the job, not in it; what it only warns of (a library, a slow link) touched nobody.
    tested = finding.code in codes.PROOFS
    if tested and finding.verdict == fd.WARN:
        return None
    verdict = HIT if (finding.verdict == fd.FAIL or lost) and whole and not stood and not tested else SUSPECTED
    where = _name(inp, finding.entity)
    meaning = codes.BY_CODE[finding.code].meaning if finding.code in codes.BY_CODE else finding.code
    what = f"{where}: {meaning} ({finding.message}){', as before the job began' if stood else ''}"
    minutes = () if stood else _minutes(finding, where)
    looks = (look.at_ns, look.at_ns) if look is not None and not stood and not _is_event(finding) else None
    return _Mark(_about(finding), verdict, effect, what, minutes, looks)


def _about(finding: Finding) -> tuple[str, str]:
    field = finding.evidence.field
    if _is_event(finding):
        return finding.entity, f"{field} {finding.evidence.after}"
    return finding.entity, field if field in cat.BY_NAME else finding.code


def _is_event(finding: Finding) -> bool:
    return finding.evidence.field in EVENTS


def _of_earlier(inp: Input, changes: Mapping[tuple[str, str], Change]) -> list[Optional[_Mark]]:
    """What other runs found in the job's time, the prolog first."""
    if inp.window.kind != "job":
        return []
    mine = inp.job_uuids()
    return [_mark(inp, f._replace(of_job=entity.gpu_of(f.entity) in mine), changes, look) for look in inp.earlier for f in look.findings]


def _is_of_the_job(inp: Input, finding: Finding, changes: Mapping[tuple[str, str], Change], look: Earlier) -> Optional[bool]:
    """Did what another run found happen in the job's time? None: no, it was over. False: perhaps, the run looked back to before."""
    start_ns = inp.window.start_ns or 0
    if _is_event(finding):
        return True if finding.absolute or (finding.evidence.at_ns or 0) >= start_ns else None
    change = changes.get((finding.entity, finding.evidence.field))
    if not finding.absolute and change is not None and change.kind == ch.EXACT and change.amount == 0:
        return None
    return finding.absolute or look.from_ns >= start_ns


def _stood_before(inp: Input, finding: Finding, look: Optional[Earlier]) -> bool:
    """A state, not a change: did the same reading show it, or the prolog find it, when the job began?"""
    start_ns = inp.window.start_ns or 0
    if look is not None and look.at_ns <= start_ns:
        return True
    if inp.before is None or not finding.absolute:
        return False
    if _is_event(finding):
        # An epilog of its own finds new events only, whatever their stamps say (judge/events.py).
        return look is not None and (finding.evidence.at_ns or 0) < start_ns
    was = _reading(inp.before, finding.entity, finding.evidence.field)
    if was is not None and was == finding.evidence.after:
        return True
    # What is not there has no reading: a switch that is gone, a GPU that does not answer.
    prologs = (f for e in inp.earlier if e.at_ns <= start_ns for f in e.findings)
    return any((f.code, *_about(f), f.evidence.after) == (finding.code, *_about(finding), finding.evidence.after) for f in prologs)


def _reading(snapshot: Snapshot, place: str, field: str) -> Optional[Reading]:
    uuid, link = entity.split_link(place)
    gpu = (snapshot.gpus or {}).get(uuid)
    if gpu is None:
        return snapshot.parts.get(place, {}).get(field)
    return (gpu.readings if link is None else gpu.links.get(link, {})).get(field)


def _minutes(finding: Finding, where: str) -> tuple[tuple[int, int, str], ...]:
    """When: an event has its own stamp, growth its moments. A reading's stamp is that of the look, and says nothing."""
    evidence = finding.evidence
    if _is_event(finding) and evidence.at_ns is not None:
        return ((evidence.at_ns, evidence.at_ns, f"{where}: {finding.message}"),)
    return _grew(where, evidence.field, evidence.moments)


def _grew(where: str, field: str, moments: when.Moments, by: str = "") -> tuple[tuple[int, int, str], ...]:
    facts = cat.BY_NAME.get(field)
    label = field if facts is None else facts.label
    return tuple((begin, end, f"{where}: {label} +{figures.amount(amount, facts)}{by}") for begin, end, amount in moments)


def _when(inp: Input, mark: _Mark, changes: Mapping[tuple[str, str], Change]) -> tuple[tuple[int, int, str], ...]:
    """The minutes of a mark: those of its counter over the whole job, else its own, else when other runs found it."""
    change, where = changes.get(mark.about), _name(inp, mark.about[0])
    if change is not None and change.amount:
        by_samples = when.sampled(change, changes, inp.window, inp.history)
        if by_samples:
            return _grew(where, change.field, by_samples)
        by_looks = when.seen(change, inp.earlier, inp.window.start_ns or 0)
        if by_looks:
            return _grew(where, change.field, by_looks, " (by health checks)")
    if mark.minutes:
        return mark.minutes
    return () if mark.looks is None else ((*mark.looks, f"{mark.what} (found then)"),)


def _counted(inp: Input) -> list[Change]:
    """Error counters that grew (a job's hook is given its own GPUs' only), each error once, the graver and the more first."""
    grown = [c for c in inp.changes if c.field in effects.OF_FIELD and c.amount]
    seen = {(entity.gpu_of(c.entity), c.field) for c in grown}
    once = [c for c in grown if (entity.gpu_of(c.entity), effects.SAME_AS.get(c.field, "")) not in seen]
    return sorted(once, key=lambda c: (effects.ORDER.index(effects.OF_FIELD[c.field]), -(c.amount or 0.0), c.entity, c.field))


def _growth_mark(inp: Input, change: Change) -> _Mark:
    """An error counter that grew without any rule saying something. Lost data is a hit, whatever the rules are."""
    effect = effects.OF_FIELD[change.field]
    lost = effect == effects.LOST and change.kind == ch.EXACT
    return _Mark((change.entity, change.field), HIT if lost else SUSPECTED, effect, _counter(inp, change))


def _counter(inp: Input, change: Change) -> str:
    """'gpu3 link11 replay +21200'."""
    facts = cat.BY_NAME[change.field]
    least = "at least " if change.kind == ch.AT_LEAST else ""
    return f"{_name(inp, change.entity)} {facts.label} {least}+{figures.amount(change.amount or 0.0, facts)}"


def _name(inp: Input, place: str) -> str:
    """'gpu3 link11' for a person; other parts by their own name."""
    uuid, link = entity.split_link(place)
    gpu = inp.gpus().get(uuid)
    index = gpu.identity.nvml_index if gpu is not None else next((i.nvml_index for i in inp.known if i.uuid == uuid), None)
    name = uuid if index is None else f"gpu{index}"
    return name if link is None else f"{name} link{link}"


def _unseen(inp: Input, findings: Iterable[Finding]) -> list[str]:
    """Why "nothing was seen" would not mean that nothing happened."""
    out = []
    if inp.window.kind != "job":
        out.append("the job's start was not seen on this node")
    if inp.snapshot.gpus is None:
        out.append("the GPUs could not be read at the job's end")
    if not inp.snapshot.events_known:
        out.append("the kernel log could not be read")
    lacking: Mapping[str, None] = {_name(inp, f.entity): None for f in findings if f.code == "NO-DATA" and f.of_job}
    if lacking:
        out.append(f"readings of {', '.join(lacking)} could not be had")
    if any(c.kind == ch.AT_LEAST and entity.gpu_of(c.entity) for c in inp.changes):
        out.append("counters were cleared in the job, what they held before is lost")
    return out


def _why(marks: Sequence[_Mark], unseen: Sequence[str]) -> str:
    """The worst reasons, each kind of effect once after the things that had it."""
    ordered = sorted(marks, key=lambda m: (m.verdict != HIT, effects.ORDER.index(m.effect)))
    said = ordered[:MOST_SAID]
    parts = []
    for i, mark in enumerate(said):
        last_of_kind = i + 1 == len(said) or said[i + 1].effect != mark.effect
        parts.append(f"{mark.what}: {mark.effect}" if last_of_kind else mark.what)
    if len(ordered) > len(said):
        parts.append(f"and {len(ordered) - len(said)} more")
    return "; ".join([*parts, *unseen])
