"""A run in JSON for the ledger, and in one line for syslog. Pure."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from slurm_nvhc.act.execute import Done
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Decision, Finding, Proposal
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.snapshot import Trouble


def decision_to_json(decision: Decision) -> dict[str, Any]:
    def rows(proposals: tuple[Proposal, ...]) -> list[dict[str, Any]]:
        return [{"action": p.action, "uuid": p.uuid, "of_job": p.of_job, "codes": [f.code for f in p.findings]} for p in proposals]

    return {"verdict": decision.verdict, "proposals": rows(decision.proposals), "observed": rows(decision.observed)}


def done_to_json(done: Iterable[Done]) -> list[dict[str, Any]]:
    return [{"kind": d.step.kind, "ok": d.ok, "detail": d.detail} for d in done]


def node_state_to_json(state: NodeState | None) -> dict[str, Any] | None:
    return None if state is None else {"base": state.base, "flags": sorted(state.flags), "reason": state.reason}


def line(
    head: str, verdict: str, findings: Sequence[Finding], late: Sequence[Trouble], done: Sequence[Done], decision: Decision, narrows: bool
) -> str:
    """'epilog n1 job 8812: fail: NVL-STORM gpu3/link11: … -> drain (observe mode: would drain)'."""
    said = [f"{f.code} {_short(f)}: {f.message}" for f in findings][:4]
    if len(findings) > len(said):
        said.append(f"and {len(findings) - len(said)} more")
    said += [f"{t.code} {t.part}: {t.detail}" for t in late][:2]
    did = ", ".join(f"{d.step.kind}{'' if d.ok else ' FAILED'}" for d in done if d.step.kind != "note")
    would = ", ".join(dict.fromkeys(fd.told_action(p.action, narrows) for p in decision.observed))
    tail = (f" -> {did}" if did else "") + (f" (observe mode: would {would})" if would else "")
    return f"{head}: {verdict}: {'; '.join(said)}{tail}"


def _short(finding: Finding) -> str:
    head, sep, tail = finding.entity.partition("/")
    index = finding.gpu.get("nvml_index")
    name = f"gpu{index}" if isinstance(index, int) else (head[:12] if head.startswith("GPU-") else head)
    return name + sep + tail
