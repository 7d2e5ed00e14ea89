"""What a diagnostic by hand found, as a table and as JSON."""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple

from rich.text import Text

from slurm_nvhc import ground
from slurm_nvhc.catalog import diags
from slurm_nvhc.cli import by_hand, common, show
from slurm_nvhc.context import Context
from slurm_nvhc.ground import Ground
from slurm_nvhc.model import diag as dg
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.diag import Report
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.model.times import duration, iso

_STYLES: Final = {dg.PASS: "green", dg.WARN: "yellow", dg.FAIL: "bold red", dg.BUSY: "magenta"}
_ORDER: Final = (dg.FAIL, dg.WARN, dg.BUSY, dg.PASS, dg.NOT_RUN, dg.SKIP)


class Seen(NamedTuple):
    """verdicts: of each GPU that was asked for, those that were left alone (ground.skipped) included: UUID -> verdict."""

    report: Report
    ground: Ground
    findings: tuple[Finding, ...]
    verdicts: Mapping[str, str]
    verdict: str


def document(context: Context, snapshot: Snapshot, seen: Seen) -> dict[str, Any]:
    report = seen.report
    return {
        "schema": 1, "what": "diag", "node": context.node, "verdict": seen.verdict, "outcome": report.outcome, "why": _why(seen),
        "tests": list(report.tests), "at": iso(report.ended_ns), "seconds": report.seconds, "policy": context.policy.hash,
        "ground": {"how": seen.ground.how, "job": seen.ground.job, "why": seen.ground.why},
        "gpus": [_gpu(snapshot, seen, uuid) for uuid in seen.verdicts],
        "findings": [fd.to_json(f) for f in seen.findings],
        "report": dg.to_json(report),
        "troubles": [t._asdict() for t in context.book.troubles],
    }  # fmt: skip


def _gpu(snapshot: Snapshot, seen: Seen, uuid: str) -> dict[str, Any]:
    told = [f.message for f in seen.findings if f.entity == uuid and f.verdict != fd.OK]
    identity = (snapshot.gpus or {})[uuid].identity
    return {
        "gpu": gpu_of(snapshot, uuid), "uuid": uuid, "pci": identity.pci, "serial": identity.serial, "verdict": seen.verdicts[uuid],
        "left_alone": seen.ground.skipped.get(uuid, ""), "why": "; ".join(told) or seen.ground.skipped.get(uuid, ""),
    }  # fmt: skip


def _why(seen: Seen) -> str:
    """What is known of the run as a whole: why it did not come to its end, or what is wrong with the node."""
    node = [f.message for f in seen.findings if f.entity == entity.NODE and f.verdict != fd.OK]
    return seen.report.why or "; ".join(node)


def print_out(context: Context, snapshot: Snapshot, seen: Seen) -> None:
    out, report = common.console(), seen.report
    tests = tuple(dict.fromkeys(r.test for r in report.results))
    places = [*seen.verdicts, *([entity.NODE] if any(r.entity == entity.NODE for r in report.results) else [])]
    if tests:
        rows = [_row(snapshot, seen, place, tests) for place in places]
        out.print(common.table(f"{context.node}: {diags.told(report.tests)}; {seen.ground.why}", ("verdict", "gpu", *tests), rows))
    for uuid, why in seen.ground.skipped.items():
        out.print(f"left alone: {gpu_of(snapshot, uuid)} {uuid}: {why}")
    show.findings(out, "", [f for f in seen.findings if f.verdict != fd.OK])
    for trouble in context.book.troubles:
        out.print(f"trouble: {trouble.code}: {trouble.detail}")
    took = f" in {duration(report.seconds)}" if report.outcome != dg.NOT_STARTED else ""
    out.print(common.verdict_text(seen.verdict), f" {context.node}: {diags.told(report.tests)}: {_summary(seen)}{took}", sep="")
    for line in commands(context, snapshot, seen):
        out.print(f"  {line}")


def _summary(seen: Seen) -> str:
    if seen.report.outcome != dg.DONE:
        word = {dg.NOT_STARTED: "not run", dg.STOPPED: "stopped", dg.FAILED: "could not be run"}[seen.report.outcome]
        return seen.report.why if seen.report.why.startswith(word) else f"{word}: {seen.report.why}"
    passed = sum(verdict == fd.OK for verdict in seen.verdicts.values())
    through = {dg.API: "the engine's API", dg.DCGMI: "dcgmi"}.get(seen.report.through, "")
    return f"passed on {passed} of {len(seen.verdicts)} GPUs{f' (DCGM {seen.report.version}, {through})' if through else ''}"


def _row(snapshot: Snapshot, seen: Seen, place: str, tests: tuple[str, ...]) -> list[Any]:
    of_place = [f.verdict for f in seen.findings if f.entity == place]
    verdict = seen.verdicts[place] if place in seen.verdicts else fd.worst(of_place)
    cells = []
    for test in tests:
        found = [r.status for r in seen.report.results if r.entity == place and r.test == test]
        status = min(found, key=_ORDER.index, default="")
        cells.append(Text(status.upper() if status == dg.FAIL else status.replace("_", " ") or "-", style=_STYLES.get(status, "")))
    name = place if place == entity.NODE else f"{gpu_of(snapshot, place)} {_pci(snapshot, place)}".rstrip()
    return [common.verdict_text(verdict), name, *cells]


def commands(context: Context, snapshot: Snapshot, seen: Seen) -> list[str]:
    """What takes the bad parts out of service, ready to be copied: a diagnostic by hand does none of it."""
    out = []
    for uuid, verdict in seen.verdicts.items():
        if verdict == fd.FAIL:
            failed = dict.fromkeys(r.test for r in seen.report.of(uuid) if r.status == dg.FAIL)
            out.append(by_hand.take_out(context.policy, context.node, gpu_of(snapshot, uuid), f"diag {', '.join(failed)} failed"))
    if any(f.entity == entity.NODE and f.verdict == fd.FAIL for f in seen.findings):
        out.append(by_hand.drain(context.node, "diag failed"))
    if seen.ground.how == ground.NONE and diags.active(seen.report.tests):
        out.append("nvhc diag --level 1 needs neither: it loads no GPU")
    return list(dict.fromkeys(out))


def gpu_of(snapshot: Snapshot, uuid: str) -> str:
    gpu = (snapshot.gpus or {}).get(uuid)
    return gpu.identity.name if gpu is not None else uuid[:12]


def _pci(snapshot: Snapshot, uuid: str) -> str:
    gpu = (snapshot.gpus or {}).get(uuid)
    return gpu.identity.pci if gpu is not None else ""
