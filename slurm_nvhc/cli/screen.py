"""`nvhc screen`: run the site's command on each GPU and compare the digests. An administrator's command: it drains nothing."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any, Final, NamedTuple

from slurm_nvhc import ground
from slurm_nvhc.cli import by_hand, common, show
from slurm_nvhc.context import Context
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.ground import Ground
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.model.times import duration, iso
from slurm_nvhc.observation import read_now
from slurm_nvhc.screen import run
from slurm_nvhc.screen.compare import NODE, Comparison, Subject

MOST_REPEAT: Final = 1000


class Seen(NamedTuple):
    """verdict: of all that was asked for, what was left alone included."""

    snapshot: Snapshot
    ground: Ground
    subjects: tuple[Subject, ...]
    found: Comparison
    verdict: str
    seconds: float


def screen(args: argparse.Namespace) -> int:
    if not 1 <= args.repeat <= MOST_REPEAT:
        raise InputError("--repeat", "", f"{args.repeat} is no number of runs", f"1 to {MOST_REPEAT}")
    for number in by_hand.ENDING:
        signal.signal(number, _interrupted)  # a child in a group of its own would outlive us
    context = by_hand.context(args)
    try:
        run.command(context)
        snapshot = read_now(context)
        if snapshot.gpus is None:
            raise MonitorError("engine", "", "does not list the GPUs now", "`nvhc doctor` says why")
        wanted = by_hand.gpus("--gpus", args.gpus, [gpu.identity for gpu in snapshot.gpus.values()])
        stood = ground.stand(context, snapshot, os.environ, wanted)
        began = time.monotonic()
        subjects, found = run.screen(context, os.environ, snapshot, run.Wanted(stood.uuids, args.repeat, args.together, args.forget), _say)
        # What was asked for and not looked at is unknown, and unknown is not ok.
        verdict = fd.worst([found.verdict, *([fd.UNKNOWN] if stood.skipped or not stood.uuids or context.book.troubles else [])])
        seen = Seen(snapshot, stood, subjects, found, verdict, round(time.monotonic() - began, 3))
        if args.json:
            common.say_json(_document(context, seen))
        else:
            _print(context, seen)
        return common.exit_code(verdict)
    finally:
        context.book.close()


def _interrupted(_number: int, _frame: object) -> None:
    for number in by_hand.ENDING:
        signal.signal(number, lambda _number, _frame: None)  # once is enough: the command is ended first
    raise KeyboardInterrupt


def _say(what: str) -> None:
    by_hand.say(f"screening {what}")


def _document(context: Context, seen: Seen) -> dict[str, Any]:
    """As `nvhc diag` has it: a sweep reads both."""
    node = [f.message for f in seen.found.findings if f.entity == NODE]
    return {
        "schema": 1, "what": "screen", "node": context.node, "verdict": seen.verdict,
        "why": "; ".join(node) if seen.subjects else seen.ground.why, "command": list(context.policy.screen.command),
        "at": iso(seen.snapshot.wall_ns), "seconds": seen.seconds, "driver": seen.snapshot.driver, "policy": context.policy.hash,
        "ground": {"how": seen.ground.how, "job": seen.ground.job, "why": seen.ground.why},
        "gpus": [*(_gpu(seen, s) for s in seen.subjects), *(_skipped(seen, uuid, why) for uuid, why in seen.ground.skipped.items())],
        "findings": [fd.to_json(f) for f in seen.found.findings], "notes": list(seen.found.notes),
        "troubles": [t._asdict() for t in context.book.troubles],
    }  # fmt: skip


def _gpu(seen: Seen, s: Subject) -> dict[str, Any]:
    told = [f.message for f in seen.found.findings if f.entity == s.identity.uuid]
    before = {"digest": s.before.digest, "at": iso(s.before.at_ns)} if s.before is not None else None
    return {
        **_names(s.identity), "verdict": seen.found.verdicts[s.identity.uuid], "left_alone": "", "why": "; ".join(told),
        "digests": list(s.digests), "before": before, "key": s.key._asdict(),
    }  # fmt: skip


def _skipped(seen: Seen, uuid: str, why: str) -> dict[str, Any]:
    state = (seen.snapshot.gpus or {}).get(uuid)
    names = _names(state.identity if state is not None else GpuIdentity(uuid))
    return {**names, "verdict": fd.UNKNOWN, "left_alone": why, "why": why, "digests": [], "before": None, "key": None}


def _names(identity: GpuIdentity) -> dict[str, Any]:
    return {"gpu": identity.name, "uuid": identity.uuid, "pci": identity.pci, "serial": identity.serial, "model": identity.model}


def _print(context: Context, seen: Seen) -> None:
    out, found = common.console(), seen.found
    rows = [(common.verdict_text(found.verdicts[s.identity.uuid]), s.name, s.identity.uuid, _digests(s), _before(s)) for s in seen.subjects]
    if rows:
        out.print(common.table(f"{context.node}: {seen.ground.why}", ("verdict", "gpu", "uuid", "digests", "before"), rows))
    else:
        out.print(f"{context.node}: no GPU was screened: {seen.ground.why}")
    for uuid, why in seen.ground.skipped.items():
        out.print(f"left alone: {_skipped(seen, uuid, why)['gpu']} {uuid}: {why}")
    for note in found.notes:
        out.print(f"note: {note}")
    for trouble in context.book.troubles:
        out.print(f"trouble: {trouble.code}: {trouble.detail}")
    show.findings(out, "", found.findings)
    out.print(common.verdict_text(seen.verdict), f" {_summary(seen)}", sep="")
    for s in seen.subjects:
        if found.verdicts[s.identity.uuid] == fd.FAIL:
            out.print(f"  {by_hand.take_out(context.policy, context.node, s.name, 'screen: its digest differs')}")  # nothing was done


def _summary(seen: Seen) -> str:
    took = f"{len(seen.subjects)} GPUs in {duration(seen.seconds)}"
    if seen.found.verdict == fd.OK and seen.subjects:
        return f"{took}: nothing differs. That clears no GPU: it is one piece of work, and it came out as expected"
    return f"{took}: see above" if seen.found.findings else "nothing is known of any GPU"


def _digests(s: Subject) -> str:
    counted = {digest: s.digests.count(digest) for digest in dict.fromkeys(s.digests)}
    return ", ".join(f"{digest[:24]}{f' ×{n}' if n > 1 else ''}" for digest, n in counted.items()) or "-"


def _before(s: Subject) -> str:
    if s.before is None:
        return "-"
    same = "the same" if s.before.digest == s.steady else s.before.digest[:24]
    return f"{same}, {iso(s.before.at_ns)}"
