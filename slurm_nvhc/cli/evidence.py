"""`nvhc evidence [GPU]`: write an evidence bundle by hand, e.g. before a reset; `--list` shows those that there are."""

from __future__ import annotations

import argparse
import os
from typing import Final

from slurm_nvhc import aftermath
from slurm_nvhc.act import evidence, remedy
from slurm_nvhc.cli import common
from slurm_nvhc.cli.explain import find_gpu
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.protective import SUSPECTED
from slurm_nvhc.observation import observe

# By hand nobody waits for a hook: the vendor's script takes a minute or two on a node of 8 GPUs. Our judgement.
BUG_REPORT_S: Final = 600.0


def write(args: argparse.Namespace) -> int:
    context = common.context(args)
    try:
        folder = evidence.folder(context.policy.evidence.dir, os.path.join(context.site.state, context.node), context.node)
        if args.list:
            return _list(args, folder)
        seen = observe(context)
        kept = context.book.protective()
        known = [*(g.identity for g in (seen.snapshot.gpus or {}).values()), *kept.gpus]
        identity = find_gpu(args.gpu, list({g.uuid: g for g in known}.values())) if args.gpu else None
        if args.gpu and identity is None:
            raise InputError(args.gpu, "", "is no GPU that this node knows", "gpu3, a UUID or its beginning, or a PCI address")
        excluded = {e.uuid: e for e in kept.exclusions if e.stage != SUSPECTED}
        past = remedy.Past(kept.strikes, kept.own_drain, excluded, remedy.asked_for(seen.snapshot), seen.snapshot.wall_ns)
        bad = [f for f in seen.judgement.findings if f.verdict != fd.OK]
        uuid = identity.uuid if identity is not None else ""
        scene = aftermath.scene(context, seen, remedy.all_of(bad, past), uuid)
        about = next((f.code for f in bad if not uuid or f.entity.startswith(uuid)), "by-hand")
        reason = kept.own_drain.reason if kept.own_drain is not None else ""
        occasion = evidence.Occasion("by hand", about, uuid, reason, f"asked for by {common.user()}")
        written = evidence.write(folder, scene, occasion, context.policy.evidence.keep)
    finally:
        context.book.close()
    if written.problem:
        raise MonitorError("evidence", "", written.problem, "run it as root")
    report = evidence.bug_report(written.path, BUG_REPORT_S) if args.bug_report else ""
    if args.bug_report and not report:
        report = f"{evidence.BUG_REPORT} is not there"
    made = bool(report) and os.path.exists(report)
    if args.json:
        common.say_json({"schema": 1, "path": written.path, "bug_report": report if made else "", "problem": "" if made else report})
    else:
        print(written.path)
        if report:
            print(report)
    return common.OK if made or not args.bug_report else common.TROUBLE


def _list(args: argparse.Namespace, folder: str) -> int:
    paths = evidence.listed(folder)
    if args.json:
        common.say_json({"schema": 1, "bundles": list(paths)})
        return common.OK
    for path in paths:
        print(path)
    if not paths:
        print(f"no bundle in {folder}")
    return common.OK
