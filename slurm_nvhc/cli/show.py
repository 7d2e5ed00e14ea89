"""Findings, changes and runs as tables."""

from __future__ import annotations

from typing import Any, Final, Iterable, Optional, Sequence

from rich.console import Console
from rich.text import Text

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.cli import common
from slurm_nvhc.compare import noteworthy
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity, suspect
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.protective import QUARANTINE, SUSPECTED, Ended, Exclusion, Hold
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.model.times import duration, iso, minutes
from slurm_nvhc.record.run import Run

_TOUCHED: Final = {suspect.CLEAN: "green", suspect.UNKNOWN: "magenta", suspect.SUSPECTED: "yellow", suspect.HIT: "bold red"}


def place(finding: Finding) -> str:
    """'gpu3 0000:4b:00.0 link11' or the entity as it is."""
    head, link = entity.split_link(finding.entity)
    if finding.gpu:
        parts = [common.gpu_name(finding.gpu), str(finding.gpu.get("pci") or ""), "" if link is None else f"link{link}"]
        return " ".join(p for p in parts if p)
    return finding.entity if not head.startswith("GPU-") else finding.entity[:12] + "…"


def findings(out: Console, title: str, rows: Sequence[Finding]) -> None:
    if rows:
        columns = ("verdict", "code", "where", "what", "asks for")
        out.print(common.table(title, columns, [_finding_row(f) for f in rows]))


def _finding_row(f: Finding) -> tuple[Any, ...]:
    asks = f.action if f.mode == fd.ENFORCE else f"{f.action} (observe: not done)"
    return common.verdict_text(f.verdict), f.code, place(f), f.message, asks if f.action != fd.NONE else "-"


def evidence(out: Console, f: Finding) -> None:
    """Everything behind one finding."""
    e = f.evidence
    out.print(Text.assemble(common.verdict_text(f.verdict), f"  {f.code}  {place(f)}"))
    meaning = codes.BY_CODE[f.code].meaning if f.code in codes.BY_CODE else ""
    facts = cat.BY_NAME.get(e.field)
    rate = "" if e.rate is None or (facts is not None and facts.unit == "ns") else f"  ({e.rate * 60:.3g} per minute)"
    least = "at least " if e.bound == "at_least" else ""
    rows = [
        ("means", meaning),
        ("what", f.message),
        ("before", common.plain(e.before) if e.amount is not None else ""),
        ("after", common.plain(e.after)),
        ("change", f"{least}{e.amount:g}{rate}" if e.amount is not None else ""),
        ("normal", normal(e)),
        ("window", " ".join(x for x in (e.window, f"({duration(e.seconds)})" if e.seconds is not None else "") if x)),
        ("when", moments(e) or (iso(e.at_ns) if e.at_ns is not None else "")),
        ("rule", f"{e.rule}: {e.threshold}" if e.threshold else e.rule),
        ("source", e.source),
        ("detail", e.text if e.text != f.message else ""),
        ("asks for", f"{f.action}{'' if f.mode == fd.ENFORCE else ' (observe mode: not done)'}" if f.action != fd.NONE else ""),
        ("GPU", f"{f.gpu.get('uuid')}  {f.gpu.get('model', '')}  serial {f.gpu.get('serial') or '?'}" if f.gpu.get("uuid") else ""),
        ("advice", codes.BY_CODE[f.code].advice if f.code in codes.BY_CODE else ""),
        ("policy", f.policy),
    ]
    for name, value in rows:
        if value and value != "-":
            out.print(f"    {name:<9} {value}")


def normal(e: fd.Evidence) -> str:
    """'0.001 in that time; as much or more by chance alone: 1.7e-10': what a statistical rule reckoned with; '' for others."""
    if e.expected is None:
        return ""
    return f"{e.expected:.3g} in that time" + (f"; as much or more by chance alone: {e.chance:.2g}" if e.chance is not None else "")


def moments(e: fd.Evidence) -> str:
    """'14:08-14:10Z (within 2 of 41 minutes)': when in the window it happened; '' when that is not known."""
    return minutes([(begin, end) for begin, end, _amount in e.moments], e.seconds)


def entity_name(name: str, gpus: Sequence[GpuIdentity]) -> str:
    """'gpu3 link11' for a GPU or link of this node; other entities as they are."""
    head, link = entity.split_link(name)
    identity = next((g for g in gpus if g.uuid == head), None)
    if identity is None:
        return name
    return common.gpu_name(identity._asdict()) + ("" if link is None else f" link{link}")


def changes(out: Console, rows: Iterable[Change], gpus: Sequence[GpuIdentity], most: int = 20) -> None:
    """Counters that moved or could not be compared, largest first."""
    by_uuid = {g.uuid: g for g in gpus}
    told = [c for c in rows if noteworthy(c)]
    told.sort(key=lambda c: (c.amount is None, -(c.amount or 0.0)))
    if not told:
        out.print("what changed: no counter moved")
        return
    columns = ("where", "reading", "before", "after", "change", "")
    out.print(common.table("what changed", columns, [_change_row(c, by_uuid) for c in told[:most]]))
    if len(told) > most:
        out.print(f"  and {len(told) - most} more (--json shows all)")


def _change_row(c: Change, gpus: dict[str, GpuIdentity]) -> tuple[Any, ...]:
    head, link = entity.split_link(c.entity)
    identity = gpus.get(head)
    name = common.gpu_name(identity._asdict()) if identity is not None else head[:12]
    where = f"{name} link{link}" if link is not None else name
    facts = cat.BY_NAME.get(c.field)
    if c.amount is None:
        amount = "unknown" if c.kind == ch.UNKNOWN else "-"
    else:
        amount = f"{'at least ' if c.kind == ch.AT_LEAST else ''}+{c.amount:g}"
    label = f"{facts.label} [{facts.unit}]" if facts is not None and facts.unit else (facts.label if facts is not None else c.field)
    return where, label, common.plain(c.before), common.plain(c.after), amount, c.why


def touched(out: Console, runs: Iterable[Run]) -> None:
    """Was the job touched by a fault: one line per epilog with its minutes and counters, the newest first."""
    for run in runs:
        if run.touched:
            told = suspect.touched_from_json(run.touched)
            out.print(Text.assemble("touched: ", (told.verdict, _TOUCHED.get(told.verdict, "")), f"  {told.why}"))
            for begin, end, what in told.minutes:
                out.print(f"    when      {minutes([(begin, end)], (run.ended_ns - run.started_ns) / 1e9)}  {what}")
            for counter in told.counters:
                out.print(f"    counted   {counter}")


def suspects(out: Console, rows: Iterable[Suspect], gpus: Sequence[GpuIdentity]) -> None:
    """One line each: the part, the far end of a link, and why; who is not named is not accused."""
    names = {g.uuid: common.gpu_name(g._asdict()) for g in gpus}
    for s in rows:
        far = f", far end {suspect.place(s.far, names)}" if s.far else ""
        told = f"{suspect.label(s, names)}{far}" if s.named else "none named"
        out.print(f"    suspect   {told}: {s.why}")


def way(exclusion: Exclusion, hold: Optional[Hold]) -> str:
    """How jobs are kept off the GPU: "narrow", "quarantine, job 812", "quarantine, not held"; "-" when nothing does."""
    if exclusion.stage == SUSPECTED:
        return "-"
    if exclusion.way != QUARANTINE:
        return exclusion.way
    return f"{exclusion.way}, job {hold.job_id}" if hold is not None else f"{exclusion.way}, not held"


def exclusion(one: Exclusion, hold: Optional[Hold]) -> str:
    """One line about an exclusion that is in force."""
    by = way(one, hold)
    return f"{one.stage}{'' if by == '-' else f' ({by})'} since {iso(one.since_ns)} by {one.who}: {one.code} {one.why}"


def ended(one: Ended) -> str:
    """One line about an exclusion that is over."""
    before = one.exclusion
    why = f": {one.why}" if one.why else ""
    return f"{before.stage} {iso(before.since_ns)} by {before.who} ({before.code}), {one.how} {iso(one.at_ns)} by {one.who}{why}"


def did(outcome: Any) -> str:
    """What a run did, in a few words."""
    rows = outcome.get("done") if isinstance(outcome, dict) else None
    parts = [f"{d['kind']}{'' if d['ok'] else ' FAILED'}" for d in rows or () if d.get("kind") != "note"]
    return ", ".join(parts) or "nothing"
