"""`nvhc check`: look at this node now (or at captures), judge, do nothing."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any, Final

from slurm_nvhc import run_text
from slurm_nvhc.cli import common, pause, show
from slurm_nvhc.compare import noteworthy
from slurm_nvhc.context import Context, at_switch
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import suspect
from slurm_nvhc.model.snapshot import Snapshot, Trouble, from_json, to_json
from slurm_nvhc.observation import Observation, judge_snapshots, observe, read_now
from slurm_nvhc.policy.kill_switch import Switch
from slurm_nvhc.slurm.node import SlurmCommands

MAX_CAPTURE_BYTES: Final = 64 * 1024 * 1024


def read_capture(path: str) -> Snapshot:
    """A snapshot from a file that `nvhc capture` wrote. InputError for anything else."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_CAPTURE_BYTES + 1)
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror or exc}") from exc
    if len(raw) > MAX_CAPTURE_BYTES:
        raise InputError(path, "", "is too large for a capture", f"at most {MAX_CAPTURE_BYTES >> 20} MiB")
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        place = f"line {exc.lineno}" if isinstance(exc, json.JSONDecodeError) else ""
        raise InputError(path, place, "is not JSON", "a capture is what `nvhc capture` writes") from exc
    return from_json(value, path)


def check(args: argparse.Namespace) -> int:
    context, switch = at_switch(common.context(args))
    off = common.hooks_off(args)
    unusable = SlurmCommands(context.policy.slurm.bin_dir, context.slurm_conf, context.policy.slurm.timeout_s).unusable()
    if unusable is not None:
        # Slurm is asked only when there is something to do, so without this line it would be found out on the day of a fault.
        context = context._replace(troubles=(*context.troubles, Trouble("MON-SLURM", "slurm", str(unusable))))
    try:
        if args.since or args.now:
            before = read_capture(args.since) if args.since else None
            now = read_capture(args.now) if args.now else read_now(context)
            seen = judge_snapshots(context, before, now)
        else:
            seen = observe(context)
    finally:
        context.book.close()
    judgement = seen.judgement
    if args.json:
        common.say_json({**_as_json(context, seen), "hooks_off": off._asdict() if off is not None else None, **_held_back(context, switch)})
        return common.exit_code(judgement.decision.verdict)
    out = common.console()
    if off is not None:
        out.print(str(off), style="bold red")
    if str(switch):
        out.print(str(switch), style="bold red")
    if context.pause is not None:
        out.print(pause.line(context.pause, time.time_ns()), style="bold yellow")
    gpus = seen.snapshot.gpus
    engine = f"{seen.snapshot.source} {seen.snapshot.engine}".strip()
    count = "GPUs unknown" if gpus is None else f"{len(gpus)} GPUs"
    out.print(f"{context.node}: {count}, engine {engine or '?'}, driver {seen.snapshot.driver or '?'}, policy {context.policy.hash}")
    if seen.before is not None:
        show.changes(out, seen.changes, [g.identity for g in (gpus or {}).values()])
    if args.verbose:
        for finding in judgement.findings:
            show.evidence(out, finding)
    else:
        show.findings(out, "", judgement.findings)
    show.suspects(out, judgement.suspects, [*seen.given.known, *(g.identity for g in (gpus or {}).values())])
    would = ", ".join(dict.fromkeys(p.action for p in judgement.decision.proposals)) or "nothing"
    out.print(common.verdict_text(judgement.decision.verdict), f" a health check would do: {would}", sep="")
    return common.exit_code(judgement.decision.verdict)


def capture(args: argparse.Namespace) -> int:
    context = common.context(args)
    try:
        snapshot = read_now(context)
    finally:
        context.book.close()
    text = json.dumps(to_json(snapshot), indent=1, ensure_ascii=True) + "\n"
    if args.output == "-":
        print(text, end="")
    else:
        try:
            with open(args.output, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as exc:
            raise InputError(args.output, "", f"can not be written: {exc.strerror or exc}") from exc
    for trouble in snapshot.troubles:
        common.die(InputError(trouble.code, trouble.part, trouble.detail), common.TROUBLE)
    return common.TROUBLE if snapshot.gpus is None else common.OK


def _held_back(context: Context, switch: Switch) -> dict[str, Any]:
    paused = context.pause._asdict() if context.pause is not None else None
    return {"cluster_switch": {k: v for k, v in switch._asdict().items() if k != "text"}, "pause": paused}


def _as_json(context: Context, seen: Observation) -> dict[str, Any]:
    judgement = seen.judgement
    return {
        "schema": 1,
        "node": context.node,
        "verdict": judgement.decision.verdict,
        "policy": context.policy.hash,
        "mode": context.policy.mode,
        "gpus": dict(judgement.gpu_verdicts),
        "findings": [fd.to_json(f) for f in judgement.findings],
        "changes": [c._asdict() for c in seen.changes if noteworthy(c)],
        "suspects": [suspect.to_json(s) for s in judgement.suspects],
        "decision": run_text.decision_to_json(judgement.decision),
        "snapshot": to_json(seen.snapshot),
    }
