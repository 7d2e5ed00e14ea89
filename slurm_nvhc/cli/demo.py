"""`nvhc demo`: the main job on a simulated node, through the real launchers, hooks and ledger.

Two scenario files of the package (etc/demo/) are replayed; what is printed comes
from the ledger that the hooks wrote and from what they did to the played Slurm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from typing import Optional

from rich.console import Console

from slurm_nvhc import resources
from slurm_nvhc.cli import common, show
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model import suspect
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.times import duration
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run
from slurm_nvhc.scenario import load
from slurm_nvhc.scenario.run import Report
from slurm_nvhc.scenario.run import run as replay
from slurm_nvhc.scenario.seen import Seen

PARTS = (
    ("drain", "A link goes bad while job 8812 runs"),
    ("narrow", "The same fault where the policy keeps the other GPUs working"),
)


def demo(args: argparse.Namespace) -> int:
    root = os.path.abspath(args.keep) if args.keep else tempfile.mkdtemp(prefix="nvhc-demo-")
    try:
        os.makedirs(root, exist_ok=True)
        os.chmod(root, 0o755)
        reports = [_part(root, name, title, args.json) for name, title in PARTS]
    except OSError as exc:
        raise MonitorError(root, "", f"the demo needs a directory it can write: {exc.strerror or exc}") from exc
    finally:
        if not args.keep:
            shutil.rmtree(root, ignore_errors=True)
    if args.json:
        common.say_json({"schema": 1, "parts": [r.to_json() for r in reports]})
    elif args.keep:
        print(f"kept: nvhc explain 8812 --node n1 --state {root}/drain/state --config {root}/drain/etc/policy.yaml")
    return common.OK if all(r.ok for r in reports) else common.FOUND


def _part(root: str, name: str, title: str, quiet: bool) -> Report:
    loading = load.read(resources.find(f"etc/demo/{name}.yaml"))
    workdir = os.path.join(root, name)
    os.makedirs(workdir)
    os.chmod(workdir, 0o755)
    report = replay(loading, workdir)
    if not quiet:
        with Ledger.open(os.path.join(workdir, "state", loading.scenario.node.name), common.LEDGER_WAIT_S) as ledger:
            runs = sorted(ledger.recent_runs(50), key=lambda r: r.id)
            gpus = ledger.known_gpus()
        _tell(common.console(), name, title, report, runs, gpus)
    return report


def _tell(out: Console, name: str, title: str, report: Report, runs: list[Run], gpus: tuple[GpuIdentity, ...]) -> None:
    out.print(f"\n== {title}", style="bold")
    if gpus and name == PARTS[0][0]:
        out.print(f"node n1, simulated: {len(gpus)} x {gpus[0].model}, 18 NVLinks each over 4 NVSwitches")
    left = list(runs)
    announced: set[str] = set()
    for seen in report.runs:
        run = next((r for r in left if r.hook == seen.hook and r.job_id == seen.job), None)
        if run is not None:
            left.remove(run)
        _one(out, seen, run, gpus, brief=name != PARTS[0][0])
        for gpu in [g for g in seen.excluded if g not in announced]:
            announced.add(gpu)
            out.print(f"  {gpu.replace('g', 'gpu')} is excluded from jobs until `nvhc gpu release`; the node stays in service")


def _one(out: Console, seen: Seen, run: Optional[Run], gpus: tuple[GpuIdentity, ...], brief: bool) -> None:
    if seen.hook == "task_prolog":
        out.print(f"\n[task prolog] job {seen.job}, as the job's user")
        for line in seen.task_prints:
            out.print(f"  the job's output begins with: {line}")
        out.print(f"  the task starts with CUDA_VISIBLE_DEVICES={seen.task_env.get('CUDA_VISIBLE_DEVICES', '')}", style="bold")
        return
    job = f" job {seen.job}," if seen.job else ""
    head = f"\n[{seen.hook.replace('_', ' ')}]{job} {seen.seconds * 1000:.0f} ms, exit {seen.status}: "
    out.print(head, common.verdict_text(seen.verdict), sep="")
    if run is None:
        return
    if seen.hook == "epilog":
        length = (run.ended_ns - run.started_ns) / 1e9
        out.print(f"  {duration(length)} (simulated) after the prolog; the counters are compared with those at the job's start")
        if brief:
            show.findings(out, "", run.findings)
        else:
            show.changes(out, run.changes, gpus)
            for finding in run.findings:
                show.evidence(out, finding)
            show.suspects(out, [suspect.from_json(row) for row in run.outcome.get("suspects", ())], gpus)
            show.touched(out, [run])
    elif seen.hook == "health_check":
        out.print("  the engine samples from now on, so that a fault can be placed within a job")
    elif seen.hook == "prolog" and not run.findings:
        out.print("  every counter is written down; nothing is wrong, so Slurm is asked nothing")
    if seen.actions:
        out.print(f"  done: {', '.join(seen.actions)}")
    if "drain" in seen.actions:
        out.print("  sinfo -R shows:")
        out.print(f"    {seen.node.reason}", style="bold")
        out.print(f"  node n1 is {seen.node.word}; the job itself is not touched")
