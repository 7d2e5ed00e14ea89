"""`nvhc simulate --policy NEW`: what another policy would have made of the runs in the ledger."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NamedTuple, Optional

from slurm_nvhc import simulate as sim
from slurm_nvhc.cli import common, show
from slurm_nvhc.errors import InputError
from slurm_nvhc.model.finding import to_json
from slurm_nvhc.model.times import duration, iso, parse_duration
from slurm_nvhc.policy import compiled, source
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.simulate import Difference, Report

MOST_OTHERWISE = 5  # lines


class _Group(NamedTuple):
    """Differences of one kind: the same finding of the same entity that asks for one thing instead of another."""

    first: Difference
    last: Difference
    runs: int
    jobs: tuple[str, ...]


def simulate(args: argparse.Namespace) -> int:
    """1 when the new policy would have asked for something else, 3 when no run could be judged."""
    where, node = common.site(args), common.node(args)
    path = os.path.abspath(args.policy)
    text = source.read_site(path)
    if text is None:
        raise InputError(path, "", "does not exist")
    document = compile_policy(text, path)
    try:
        seconds = parse_duration(args.since) if args.since is not None else None
    except ValueError as exc:
        raise InputError("--since", "", str(exc)) from None
    with common.open_ledger(args) as ledger:
        newest = ledger.recent_runs(1)
        since_ns = 0 if seconds is None or not newest else newest[0].ended_ns - int(seconds * 1e9)
        report = sim.simulate(
            ledger,
            node,
            lambda partition: source.load(where.config, f"{where.state}/{node}", node, partition, keep=False).policy,
            lambda partition: compiled.resolve(document, node, partition),
            since_ns,
            _progress,
        )
    loaded = source.load(where.config, f"{where.state}/{node}", node, "", keep=False)
    hashes = (loaded.policy.hash, str(document["hash"]))
    code = common.FOUND if report.differences else common.OK if report.judged else common.TROUBLE
    groups, notes = _groups(report), [f"in force is not what the file says: {t.detail}" for t in loaded.troubles]
    notes += _notes(report, compiled.resolve(document, node), seconds)
    if args.json:
        common.say_json({"schema": 1, "node": node, "in_force": hashes[0], "new": hashes[1], **_as_json(report, groups, notes)})
    else:
        _show(args, report, groups, notes, hashes)
    return code


def _progress(judged: int) -> None:
    if sys.stderr.isatty():
        print(f"{judged} runs judged", file=sys.stderr)


def _groups(report: Report) -> list[_Group]:
    """Those under which something new is asked for come first, then by when they began."""
    found: dict[tuple[str, ...], _Group] = {}
    for one in report.differences:
        key = (one.finding.code, one.finding.entity, one.finding.evidence.rule, one.was, one.now)
        old = found.get(key)
        jobs = (one.job_id,) if one.job_id else ()
        if old is None:
            found[key] = _Group(one, one, 1, jobs)
        else:
            found[key] = _Group(old.first, one, old.runs + 1, tuple(dict.fromkeys((*old.jobs, *jobs))))
    return sorted(found.values(), key=lambda g: (g.first.now == sim.NOTHING, g.first.at_ns))


def _notes(report: Report, new: compiled.Policy, seconds: Optional[float]) -> list[str]:
    """What the comparison can not know."""
    out = [f"{count} runs could not be judged: {why}" for why, count in report.skipped.items()]
    if report.same_hash:
        differ = report.same_hash - report.reproduced
        out.append(
            f"of {report.same_hash} runs recorded under the policy in force, "
            + (f"{differ} come out otherwise than they were recorded" if differ else "all come out as they were recorded")
        )
    for one in report.otherwise[:MOST_OTHERWISE]:
        job = f" of job {one.job_id}" if one.job_id else ""
        out.append(f"  {one.hook}{job} at {iso(one.at_ns)}{': ' if one.codes else ''}{', '.join(one.codes)}: {'; '.join(one.why)}")
    if len(report.otherwise) > MOST_OTHERWISE:
        out.append(f"  and {len(report.otherwise) - MOST_OTHERWISE} more (--json lists them all)")
    if report.unconfirmed:
        out.append(f"in {report.unconfirmed} runs the new policy would have looked a second time: what that would have shown is not known")
    if report.without_start:
        out.append(f"the start of {report.without_start} jobs is no longer kept: what changed in them is not known")
    asking = sim.history_rules(new)
    if asking:
        out.append(f"can not be judged, since the engine's samples are not stored: {', '.join(asking)}")
    if report.judged and seconds is not None and (report.last_ns - report.first_ns) / 1e9 < seconds * 0.9:
        out.append(f"only {duration((report.last_ns - report.first_ns) / 1e9)} of runs are kept (record.keep)")
    if report.judged:
        out.append("evidence over several jobs begins empty at the first run; the node's state in Slurm is not known")
    return out


def _show(args: argparse.Namespace, report: Report, groups: list[_Group], notes: list[str], hashes: tuple[str, str]) -> None:
    out = common.console()
    rate = report.judged / report.seconds if report.seconds > 0 else 0.0
    span = f"{iso(report.first_ns)} to {iso(report.last_ns)}" if report.judged else "none"
    out.print(f"policy {hashes[0]} in force, {args.policy} {hashes[1]}")
    out.print(f"{report.judged} of {report.runs} runs judged ({span}), {rate:.0f} runs a second")
    if groups:
        columns = ("in force", "new", "code", "where", "what", "runs", "first", "last", "jobs")
        out.print(common.table("what would have been asked for otherwise", columns, [_row(g) for g in groups]))
    elif report.judged:
        out.print("nothing would have been asked for otherwise")
    for note in notes:
        out.print(f"note: {note}")


def _row(group: _Group) -> tuple[Any, ...]:
    finding = group.first.finding
    jobs = ", ".join(group.jobs[:3]) + (f" and {len(group.jobs) - 3} more" if len(group.jobs) > 3 else "")
    what = f"{finding.message} [{finding.evidence.rule}: {finding.evidence.threshold}]"
    span = (iso(group.first.at_ns), iso(group.last.at_ns) if group.runs > 1 else "")
    return (group.first.was, group.first.now, finding.code, show.place(finding), what, group.runs, *span, jobs or "-")


def _as_json(report: Report, groups: list[_Group], notes: list[str]) -> dict[str, Any]:
    def one(group: _Group) -> dict[str, Any]:
        return {
            "was": group.first.was,
            "now": group.first.now,
            "finding": to_json(group.first.finding),
            "runs": group.runs,
            "first": iso(group.first.at_ns),
            "last": iso(group.last.at_ns),
            "jobs": list(group.jobs),
        }

    return {
        "runs": report.runs,
        "judged": report.judged,
        "skipped": dict(report.skipped),
        "recorded_under_policy_in_force": report.same_hash,
        "reproduced": report.reproduced,
        "otherwise": [{**one._asdict(), "at": iso(one.at_ns)} for one in report.otherwise],
        "unconfirmed": report.unconfirmed,
        "without_start": report.without_start,
        "seconds": round(report.seconds, 3),
        "differences": [one(group) for group in groups],
        "each": [
            {"run": d.run_id, "hook": d.hook, "job": d.job_id, "at": iso(d.at_ns), "code": d.finding.code, "entity": d.finding.entity,
             "was": d.was, "now": d.now} for d in report.differences
        ],
        "notes": notes,
    }  # fmt: skip
