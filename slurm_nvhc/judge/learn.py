"""What a look teaches about this node. Pure; record/ keeps it."""

from __future__ import annotations

from typing import Iterable

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge.context import HEALTH_CHECK, Input
from slurm_nvhc.judge.parts import rdma_gone
from slurm_nvhc.judge.settle import settling
from slurm_nvhc.model import entity, learned
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import OK


def lesson(inp: Input, findings: Iterable[Finding]) -> dict[str, dict[str, Reading]]:
    """entity -> field -> reading that is not known yet and is normal from now on; {} for most looks.

    Only a health check teaches, which could see the GPUs, and not while links may still train or readings settle
    after boot or driver load. Each GPU with its links, each switch with its ports, each RDMA port and the node
    teach by themselves: one lasting warning somewhere must not keep the rest of the node from being learned for ever.
    Which of them do not teach now is said at ``_doubted``. What is known already is never changed here: a drift is
    accepted by an administrator (`nvhc baseline accept`), or it is a finding for as long as it lasts.
    """
    findings = tuple(findings)
    blind = not inp.gpus() or any(f.klass == "monitor" and f.verdict == fd.UNKNOWN for f in findings)
    if inp.hook != HEALTH_CHECK or not inp.policy.learn.enabled or blind or settling(inp, inp.policy.learn.settle_s):
        return {}
    doubted = _doubted(inp, findings)
    convicted = {(f.entity, f.evidence.field) for f in findings if f.verdict in (fd.WARN, fd.FAIL)}
    names_changed = bool(rdma_gone(inp))
    out: dict[str, dict[str, Reading]] = {}
    for name, readings in learned.places(inp.snapshot):
        if entity.whole(name) in doubted or (names_changed and entity.scope(name) == cat.RDMA):
            continue
        known = inp.learned.get(name, {})
        taught = learned.teaches(readings).items()
        new = {field: value for field, value in taught if field not in known and (name, field) not in convicted}
        if new:
            out[name] = new
    return out


def _doubted(inp: Input, findings: Iterable[Finding]) -> set[str]:
    """What teaches nothing now: it was taken from jobs, does not answer, or something is said about it or a part of it.

    A failure always counts; a warning where its rule is enforced and asks for more than a note, or holds against
    what was learned (a new card that is unlike its siblings must not become its own measure). A reading that could
    not be had is no trouble: it teaches nothing by itself.
    """
    gpus = {uuid for uuid, gpu in inp.gpus().items() if gpu.status != OK}
    return {*gpus, *inp.exclusions, *(entity.whole(f.entity) for f in findings if _speaks_against(f))}


def _speaks_against(finding: Finding) -> bool:
    if finding.verdict != fd.WARN:
        return finding.verdict == fd.FAIL
    light = finding.mode != fd.ENFORCE or finding.action in (fd.NONE, fd.NOTE)
    return finding.evidence.learned or not light
