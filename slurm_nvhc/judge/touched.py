"""Did a fault touch this job? For the user whose loss curve broke; asked when a job ends.

  hit      something failed on the job's GPUs, or on the node beside them, while the job ran, whatever a rule's mode
  suspect  a warning, or an error counter that grew at all; a fault that stood there before the job began
  unknown  nothing was seen, but not all of it could be seen
  clean    all of it was seen, and nothing happened. What no counter sees (silent corruption) is not in any of these

It is said honestly what it means: an NVLink that resends loses no data, an uncorrectable error does. What is
configured, and trouble of our own, touches nobody's results.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import effects, figures
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.judge.context import EPILOG, Input
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import EVENTS, Finding
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.model.suspect import CLEAN, HIT, SUSPECTED, UNKNOWN, Touched

MOST_SAID: Final = 3  # reasons; --json and the findings have all
MOST_COUNTERS: Final = 30
MOST_MINUTES: Final = 30


class _Mark(NamedTuple):
    """One thing that touched the job."""

    verdict: str
    effect: str
    what: str
    minutes: tuple[tuple[int, int, str], ...] = ()


def touched(inp: Input, findings: Sequence[Finding]) -> Optional[Touched]:
    """None where no job with GPUs ends."""
    if inp.hook != EPILOG or not inp.job_uuids():
        return None
    grown = _counted(inp)
    marks = [m for m in (_mark(inp, f) for f in _once(findings)) if m is not None]
    told = {(f.entity, f.evidence.field) for f in findings}
    marks += [_growth_mark(inp, c) for c in grown if (c.entity, c.field) not in told]
    unseen = _unseen(inp, findings)
    minutes = tuple(sorted({m for mark in marks for m in mark.minutes}))[:MOST_MINUTES]
    counters = tuple(_counter(inp, c) for c in grown[:MOST_COUNTERS])
    if not marks and unseen:
        return Touched(UNKNOWN, "; ".join(unseen))
    if not marks:
        count = len(inp.job_uuids())
        return Touched(CLEAN, f"nothing was counted or logged about {'its GPU' if count == 1 else f'its {count} GPUs'}")
    verdict = HIT if any(m.verdict == HIT for m in marks) else SUSPECTED
    return Touched(verdict, _why(marks, unseen), minutes, counters)


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Without the weaker of findings about one counter: two rules that see the same growth are one thing to the user."""
    out: dict[tuple[str, str], Finding] = {}
    for finding in findings:  # worst first
        field = finding.evidence.field
        about = (finding.entity, field if field in cat.BY_NAME else f"{finding.code} {finding.message}")
        if finding.verdict in (fd.WARN, fd.FAIL):
            out.setdefault(about, finding)
    return list(out.values())


def _mark(inp: Input, finding: Finding) -> Optional[_Mark]:
    """What a finding means for the job; None when it means nothing."""
    effect = effects.OF_FIELD.get(finding.evidence.field) or effects.OF_CODE.get(finding.code, effects.UNKNOWN)
    if finding.klass == "monitor" or effect == effects.NONE:
        return None
    if not finding.of_job and entity.scope(finding.entity) in (cat.GPU, cat.LINK):
        return None  # another job's GPU
    stood = _stood_before(inp.before, finding)
    if stood and finding.verdict == fd.WARN:
        return None
    verdict = HIT if finding.verdict == fd.FAIL and not stood else SUSPECTED
    where = _name(inp, finding.entity)
    meaning = codes.BY_CODE[finding.code].meaning if finding.code in codes.BY_CODE else finding.code
    what = f"{where}: {meaning} ({finding.message}){', as before the job began' if stood else ''}"
    return _Mark(verdict, effect, what, _minutes(finding, where))


def _stood_before(before: Optional[Snapshot], finding: Finding) -> bool:
    """A state, not a change: did the same reading show it when the job began?"""
    if before is None or not finding.absolute:
        return False
    was = _reading(before, finding.entity, finding.evidence.field)
    return was is not None and was == finding.evidence.after


def _reading(snapshot: Snapshot, place: str, field: str) -> Optional[Reading]:
    uuid, link = entity.split_link(place)
    gpu = (snapshot.gpus or {}).get(uuid)
    if gpu is None:
        return snapshot.parts.get(place, {}).get(field)
    return (gpu.readings if link is None else gpu.links.get(link, {})).get(field)


def _minutes(finding: Finding, where: str) -> tuple[tuple[int, int, str], ...]:
    """When: an event has its own stamp, growth its moments. A reading's stamp is that of the look, and says nothing."""
    evidence = finding.evidence
    if evidence.field in EVENTS and evidence.at_ns is not None:
        return ((evidence.at_ns, evidence.at_ns, f"{where}: {finding.message}"),)
    label = cat.BY_NAME[evidence.field].label if evidence.field in cat.BY_NAME else finding.code
    facts = cat.BY_NAME.get(evidence.field)
    return tuple((begin, end, f"{where}: {label} +{figures.amount(amount, facts)}") for begin, end, amount in evidence.moments)


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
    return _Mark(HIT if lost else SUSPECTED, effect, _counter(inp, change))


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
