"""In which minutes of the window did it happen? From the engine's samples (Input.history), else from the looks in it.

A finding about growth gets the moments at which its counter grew. The engine samples a GPU's totals, not each link:
a link's moments are its GPU's when the link alone explains the whole growth of the total.
"""

from __future__ import annotations

from typing import Final, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge.context import HEALTH_CHECK, Window
from slurm_nvhc.model import entity, series
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.earlier import Earlier
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.history import History

MOST_MOMENTS: Final = 5  # what a person reads; more are joined to the nearest

Moments = tuple[tuple[int, int, float], ...]  # (from ns, to ns, amount), oldest first


def askable(finding: Finding) -> bool:
    """Is this finding about growth that the engine's samples could place?"""
    return bool(finding.evidence.amount) and _sampled_as(finding.evidence.field) is not None and bool(entity.gpu_of(finding.entity))


def with_moments(findings: Sequence[Finding], changes: Sequence[Change], window: Window, history: Optional[History]) -> tuple[Finding, ...]:
    """The findings, with the moments of those whose growth over the window can be placed. All else stays as it is."""
    if history is None or not history.watched or window.start_ns is None:
        return tuple(findings)
    table = {(c.entity, c.field): c for c in changes}
    return tuple(_placed(f, table, window, history) if askable(f) and not f.evidence.moments else f for f in findings)


def _placed(finding: Finding, changes: Mapping[tuple[str, str], Change], window: Window, history: History) -> Finding:
    evidence = finding.evidence
    change = changes.get((finding.entity, evidence.field))
    # Evidence that was gathered over several windows has no moment in this one.
    if change is None or change.amount != evidence.amount:
        return finding
    return finding._replace(evidence=evidence._replace(moments=sampled(change, changes, window, history)))


def sampled(change: Change, changes: Mapping[tuple[str, str], Change], window: Window, history: Optional[History]) -> Moments:
    """A counter's growth over the window by the engine's samples; () when they do not tell."""
    uuid, name = entity.gpu_of(change.entity), _sampled_as(change.field)
    total = changes.get((uuid, name)) if name is not None else None
    if history is None or not history.watched or total is None or total.amount != change.amount or window.start_ns is None:
        return ()
    samples = history.series.get(uuid, {}).get(total.field, ())
    found = series.growth(samples, (window.start_ns, total.before), (window.end_ns, total.after))
    return _as_moments(found)


def seen(change: Change, earlier: Sequence[Earlier], start_ns: int) -> Moments:
    """The health checks between which a counter grew in a job that began at start_ns; () where none saw it.

    A look that reaches back to before the job is left out when the others explain all of the growth.
    """
    looks = [look for look in earlier if look.hook == HEALTH_CHECK and look.at_ns > start_ns]
    grown = [(look, c.amount) for look in looks for c in look.changes if (c.entity, c.field) == (change.entity, change.field) and c.amount]
    inside = [(look, amount) for look, amount in grown if look.from_ns >= start_ns]
    if sum(amount for _look, amount in inside) >= (change.amount or 0.0):
        grown = inside
    return _as_moments([series.Growth(max(look.from_ns, start_ns), look.at_ns, amount) for look, amount in grown])


def _as_moments(found: Sequence[series.Growth]) -> Moments:
    return tuple((m.from_ns, m.to_ns, m.amount) for m in series.merged(found, MOST_MOMENTS))


def _sampled_as(field: str) -> Optional[str]:
    """The GPU's counter that holds what this one counts: itself, or the total over its links. None when there is none."""
    facts = cat.BY_NAME.get(field)
    if facts is None or facts.kind != cat.COUNTER:
        return None
    if facts.scope == cat.GPU:
        return field
    total = f"{field}_total"
    return total if facts.scope == cat.LINK and total in cat.BY_NAME else None
