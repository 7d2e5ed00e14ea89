"""`nvhc explain JOB|GPU|NODE`: what happened, by which numbers and which rule, and what was done."""

from __future__ import annotations

import argparse
import re
import time
from typing import Any, Final, Mapping, Optional, Sequence

from rich.console import Console

from slurm_nvhc.act import steps as st
from slurm_nvhc.catalog import diags
from slurm_nvhc.cli import common, moment, pause, show
from slurm_nvhc.cli.status import run_json
from slurm_nvhc.errors import InputError
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK
from slurm_nvhc.judge.diag import standing, why_not
from slurm_nvhc.model import diag as dg
from slurm_nvhc.model import entity, suspect
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.times import duration, iso, minutes
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run

MOST_RUNS: Final = 50
MOST_SEEN: Final = 10
_DIAG_ORDER: Final = (dg.FAIL, dg.WARN, dg.BUSY, dg.NOT_RUN, dg.SKIP, dg.PASS)
_INDEX = re.compile(r"^(?:gpu|g)(\d+)$")


def explain(args: argparse.Namespace) -> int:
    what = args.what.strip()
    if args.at and not what.isdigit():
        raise InputError("--at", "", f"{what} is no job id", "a minute is asked of a job: nvhc explain JOB --at 14:10")
    with common.open_ledger(args) as ledger:
        gpus = ledger.known_gpus()
        identity = find_gpu(what, gpus)
        if identity is not None:
            runs = ledger.runs_of_gpu(identity.uuid, MOST_RUNS + 1)
            title = f"{common.gpu_name(identity._asdict())} {identity.uuid}"
            about = _exclusions(ledger, identity.uuid)
            return _show(args, title, runs[:MOST_RUNS], gpus, only=identity.uuid, cut=len(runs) > MOST_RUNS, about=about)
        if what.isdigit():
            runs = ledger.runs_of_job(what)
            if not runs:
                raise InputError(what, "", "no run of this job is in this node's ledger", _recent_jobs(ledger))
            if args.at:
                return moment.explain(args, ledger, what, runs, gpus)
            return _show(args, f"job {what}", runs, gpus, seen=_sightings(ledger, runs))
        if what in ("node", common.node(args)):
            runs, now_ns = ledger.runs_not_ok(MOST_RUNS + 1), time.time_ns()
            paused = pause.in_force(ledger, now_ns)
            about = [pause.line(paused, now_ns)] if paused is not None else []
            return _show(args, f"node {common.node(args)}", runs[:MOST_RUNS], gpus, cut=len(runs) > MOST_RUNS, about=about)
    known = ", ".join(common.gpu_name(g._asdict()) for g in gpus)
    raise InputError(what, "", "is neither a job id, nor a GPU of this node, nor its name", f"GPUs: {known}" if known else "")


def find_gpu(what: str, gpus: Sequence[GpuIdentity]) -> Optional[GpuIdentity]:
    """The GPU that 'gpu3', 'g3', a UUID or its beginning, or a PCI address names. InputError when several fit.

    A UUID may end in "…", as a drain reason shortens it.
    """
    what = what.removesuffix("…").removesuffix("...")
    index = _INDEX.match(what.lower())
    if index:
        fit = [g for g in gpus if g.nvml_index == int(index.group(1))]
    elif what.upper().startswith("GPU-"):
        fit = [g for g in gpus if g.uuid.lower().startswith(what.lower())]
    else:
        address = entity.pci(what)
        fit = [g for g in gpus if address and g.pci == address]
    if len(fit) > 1:
        raise InputError(what, "", "several GPUs fit", ", ".join(g.uuid for g in fit))
    return fit[0] if fit else None


def _exclusions(ledger: Ledger, uuid: str) -> list[str]:
    """How this GPU was and is kept from jobs, the oldest first."""
    kept = ledger.protective()
    hold = next((h for h in kept.holds if h.uuid == uuid), None)
    return [
        *(show.ended(e) for e in kept.ended if e.exclusion.uuid == uuid),
        *(show.exclusion(e, hold) for e in kept.exclusions if e.uuid == uuid),
    ]


def _recent_jobs(ledger: Ledger) -> str:
    jobs = list(dict.fromkeys(r.job_id for r in ledger.recent_runs(MOST_RUNS) if r.job_id))
    return f"recent jobs: {', '.join(jobs[:8])}" if jobs else "no job ran here yet"


def _sightings(ledger: Ledger, runs: Sequence[Run]) -> dict[int, list[moment.Seen]]:
    """What health checks saw grow within each epilog's window: run id -> sightings."""
    epilogs = [r for r in runs if r.hook == EPILOG]
    return {r.id: moment.sightings(ledger.runs_between(HEALTH_CHECK, r.started_ns, r.ended_ns), r) for r in epilogs}


def _show(
    args: argparse.Namespace,
    title: str,
    runs: Sequence[Run],
    gpus: Sequence[GpuIdentity],
    only: str = "",
    cut: bool = False,
    seen: Mapping[int, Sequence[moment.Seen]] = {},
    about: Sequence[str] = (),
) -> int:
    """only: what is said about this GPU. cut: older runs were left out. seen: by health checks within a run's window.

    about: lines about a GPU that is kept, or was kept, from jobs.
    """
    verdict = fd.worst(f.verdict for r in runs for f in _of(r, only)) if only else fd.worst(r.verdict for r in runs)
    if args.json:
        document = {"schema": 1, "what": title, "verdict": verdict, "cut": cut, "runs": [run_json(r) for r in runs]}
        if only:
            document["exclusions"] = list(about)
        touched = [r.touched for r in runs if r.touched]
        common.say_json({**document, "touched": touched[0]} if touched and not only else document)
        return common.exit_code(verdict)
    out = common.console()
    out.print(title, style="bold")
    for line in about:
        out.print(f"  {line}")
    if not only:
        show.touched(out, runs)
    if cut:
        out.print(f"only the newest {len(runs)} runs are shown; `nvhc explain JOB` finds older ones")
    for run in sorted(runs, key=lambda r: r.ended_ns):
        _one(out, run, gpus, only, seen.get(run.id, ()))
    if not runs:
        out.print("nothing but clean runs is known")
    return common.exit_code(verdict)


def _one(out: Console, run: Run, gpus: Sequence[GpuIdentity], only: str, seen: Sequence[moment.Seen]) -> None:
    who = " ".join(x for x in (f"job {run.job_id}" if run.job_id else "", f"user {run.user}" if run.user else "") if x)
    length = (run.ended_ns - run.started_ns) / 1e9
    window = f", window {duration(length)}" if length > 0 else ""
    out.print(common.verdict_text(run.verdict), f"  {iso(run.ended_ns)}  {run.hook}  {who}{window}", sep="")
    findings = _of(run, only)
    for finding in findings:
        show.evidence(out, finding)
    show.suspects(out, _suspects(run, only), gpus)
    for line in _diag(run, gpus, only):
        out.print(f"    diag      {line}")
    changes = [c for c in run.changes if not only or entity.gpu_of(c.entity) == only]
    if changes and run.hook == "epilog":
        show.changes(out, changes, gpus)
    for sight in seen[:MOST_SEEN]:
        when = minutes([(sight.from_ns, sight.to_ns)])
        out.print(f"    seen      {when}  {show.entity_name(sight.entity, gpus)}: {sight.what} (by a health check)")
    if len(seen) > MOST_SEEN:
        out.print(f"    seen      and {len(seen) - MOST_SEEN} more times")
    if run.outcome.get("not_compared"):
        out.print(f"    peers     not compared: {run.outcome['not_compared']}")
    reason = run.outcome.get("reason")
    if reason:
        out.print(f"    reason    {reason}")
    _remedies(out, run, gpus, only)
    for bundle in run.outcome.get("evidence", ()):
        out.print(f"    evidence  {bundle.get('path')}{'' if bundle.get('kind') != 'bug report' else ' (bug report)'}")
    for told in run.outcome.get("told", ()):
        ended = "told" if told.get("ok") else "FAILED"
        out.print(f"    on_{told.get('event')}: {ended} {told.get('told') or told.get('program')}")
    for step in run.steps:
        if step.get("kind") == st.NOTE and ": would " in step.get("why", "") and (not only or _about(step, only)):
            out.print(f"    not done  {step['why']}")
    if findings or run.verdict != fd.OK:
        out.print(f"    did       {show.did(run.outcome)}")
        for trouble in run.outcome.get("troubles", ()):
            out.print(f"    trouble   {trouble.get('code')}: {trouble.get('detail')}")


def _diag(run: Run, gpus: Sequence[GpuIdentity], only: str) -> list[str]:
    """What a diagnostic in the run came to, and what its tests said: of each GPU, and of the node where it has results of its own."""
    try:
        report = dg.from_json(run.outcome["diag"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    places = [p for p in dict.fromkeys((*report.uuids, *sorted(r.entity for r in report.results))) if not only or p in (only, entity.NODE)]
    if only and only not in places:
        return []
    said: dict[str, list[str]] = {}
    for place in places:
        own = {r.test for r in report.of(place)}
        told = {test: status for test, status in standing(report, place).items() if place != entity.NODE or test in own}
        by_status = ((status, [t for t in told if told[t] == status]) for status in _DIAG_ORDER)
        text = "; ".join(f"{', '.join(tests)}: {status.replace('_', ' ')}" for status, tests in by_status if tests)
        if text:
            said.setdefault(text, []).append(show.entity_name(place, gpus))
    version = f" (DCGM {report.version})" if report.version else ""
    state = f"done in {duration(report.seconds)}" if report.outcome == dg.DONE else why_not(report)
    head = f"{diags.told(report.tests)}: {state}{version}"
    return [head, *(f"{', '.join(names)}: {text}" for text, names in said.items())]


def _remedies(out: Console, run: Run, gpus: Sequence[GpuIdentity], only: str) -> None:
    """What is to be done about each fault: the rung of the ladder, why this one, and which comes next."""
    for remedy in run.outcome.get("remedies", ()):
        if only and remedy.get("part") != only:
            continue
        name = show.entity_name(str(remedy.get("part")), gpus)
        if remedy.get("rung") is None:
            out.print(f"    remedy    {name} {remedy.get('code')}: none of the ladder; {remedy.get('why')}")
            continue
        then = f"; if it comes back: {remedy['then']}" if remedy.get("then") else ""
        out.print(f"    remedy    {name} {remedy.get('code')}: {remedy.get('do')} ({remedy.get('why')}){then}")


def _about(step: Mapping[str, Any], uuid: str) -> bool:
    named = (step.get("uuid"), *step.get("uuids", ()), *(entity.gpu_of(key.partition(" ")[2]) for key in step.get("keys", ())))
    return uuid in named


def _suspects(run: Run, only: str) -> list[suspect.Suspect]:
    """Those behind what is said about the GPU ``only``, or all."""
    keys = {f"{f.code} {f.entity}" for f in _of(run, only)}
    rows = (suspect.from_json(value) for value in run.outcome.get("suspects", ()))
    return [s for s in rows if keys & set(s.findings)]


def _of(run: Run, only: str) -> list[fd.Finding]:
    return [f for f in run.findings if not only or entity.gpu_of(f.entity) == only]
