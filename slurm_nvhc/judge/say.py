"""Findings in words. Every finding is made here, so that all carry the same facts."""

from __future__ import annotations

from typing import Any, Final, Mapping, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import figures
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.judge.context import Input
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.times import duration
from slurm_nvhc.policy.compiled import Rule

_KLASS: Final = {"link": "link", "switch": "switch", "switch_port": "switch", "rdma": "node", "node": "node"}  # by the entity's scope


def effective_mode(inp: Input, rule: Rule) -> str:
    """The policy's observe mode overrides every rule's own."""
    return fd.OBSERVE if inp.policy.mode == fd.OBSERVE else rule.mode


def make_finding(
    inp: Input,
    rule: Rule,
    place: str,
    verdict: str,
    evidence: Evidence,
    identity: Optional[GpuIdentity],
    *,
    absolute: bool,
    idents: tuple[str, ...] = (),
    message: str = "",
) -> Finding:
    """A finding of a rule. ``place`` is the entity; ``absolute``: it counts whichever job's hook sees it."""
    uuid = identity.uuid if identity is not None else entity.gpu_of(place)
    klass = _KLASS.get(entity.scope(place), "gpu")
    return Finding(
        code=rule.finding,
        entity=place,
        klass=klass,
        verdict=verdict,
        message=message or describe(place, evidence),
        evidence=evidence,
        gpu=gpu_facts(inp, identity),
        mode=effective_mode(inp, rule),
        action=rule.action,
        of_job=bool(uuid) and uuid in inp.job_uuids(),
        absolute=absolute,
        idents=idents,
        policy=inp.policy.hash,
    )


def note(inp: Input, code: str, place: str, verdict: str, message: str, identity: Optional[GpuIdentity] = None) -> Finding:
    """A statement that no rule made: it never leads to an action on a GPU."""
    facts = codes.BY_CODE[code]
    uuid = identity.uuid if identity is not None else ""
    evidence = Evidence(window=inp.window.text, text=message, at_ns=inp.now_ns)
    return Finding(
        code, place, facts.klass, verdict, message, evidence, gpu_facts(inp, identity),
        of_job=uuid in inp.job_uuids(), policy=inp.policy.hash,
    )  # fmt: skip


def gpu_facts(inp: Input, identity: Optional[GpuIdentity]) -> Mapping[str, Any]:
    if identity is None:
        return {}
    facts = dict(identity._asdict())
    if inp.mapping is not None:
        positions = [p for p, uuid in inp.mapping.by_position.items() if uuid == identity.uuid]
        if positions:
            facts["position"] = positions[0]
    return facts


def describe(place: str, evidence: Evidence) -> str:
    """'link11 replay +21200 in 41m' or 'row remap failed: 1'."""
    _, link = entity.split_link(place)
    facts = cat.BY_NAME.get(evidence.field)
    label = facts.label if facts is not None else evidence.field
    where = f"link{link} " if link is not None else ""
    if evidence.amount is not None:
        least = "at least " if evidence.bound == "at_least" else ""
        over = f" in {duration(evidence.seconds)}" if evidence.seconds is not None else ""
        return f"{where}{label} {least}+{figures.amount(evidence.amount, facts)}{over}"
    return f"{where}{label}: {figures.value(evidence.after, facts)}"
