"""From findings to what should be done. Pure; act/ decides whether it may be done."""

from __future__ import annotations

from typing import Final

from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Decision, Finding, Proposal

_PROTECTIVE: Final = (fd.NARROW, fd.DRAIN)


def decide(findings: tuple[Finding, ...]) -> Decision:
    """Protective actions follow a fail only; note and notify follow a warning too."""
    enforced = [f for f in findings if f.mode == fd.ENFORCE and _acts(f)]
    observed = [f for f in findings if f.mode != fd.ENFORCE and _acts(f)]
    return Decision(fd.worst(f.verdict for f in findings), _proposals(enforced), _proposals(observed))


def _acts(finding: Finding) -> bool:
    if finding.action == fd.NONE:
        return False
    if finding.klass == "monitor":
        return True
    return finding.verdict == fd.FAIL or (finding.verdict == fd.WARN and finding.action not in _PROTECTIVE)


def _proposals(findings: list[Finding]) -> tuple[Proposal, ...]:
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.action, entity.gpu_of(finding.entity)), []).append(finding)
    strongest_first = sorted(groups, key=lambda k: -fd.ACTIONS.index(k[0]))
    return tuple(
        Proposal(action, uuid, tuple(groups[action, uuid]), any(f.of_job for f in groups[action, uuid])) for action, uuid in strongest_first
    )
