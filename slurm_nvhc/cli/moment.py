"""`nvhc explain JOB --at 14:10`: what is known of a job around one minute. And which health checks saw a counter grow."""

from __future__ import annotations

import argparse
import calendar
import re
import time
from typing import Any, Final, Iterable, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import effects, figures
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.cli import common, show
from slurm_nvhc.errors import InputError
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model import entity, timeline
from slurm_nvhc.model.finding import EVENTS
from slurm_nvhc.model.settled import SAME_MOMENT_NS
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.timeline import Timeline
from slurm_nvhc.model.times import iso, minutes
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run

MINUTE_NS: Final = 60 * 10**9
DAY_NS: Final = 1440 * MINUTE_NS
MOST_LINES: Final = 12
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})Z?")
_DATED: Final = re.compile(r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2})(?::\d{2})?Z?")


class Window(NamedTuple):
    """A job's time on this node, ns UTC. epilog: None while it runs, or when its epilog never came."""

    start_ns: int
    end_ns: int
    epilog: Optional[Run]


class Seen(NamedTuple):
    """Something about one entity within a span of time."""

    from_ns: int
    to_ns: int
    entity: str
    what: str


def windows(runs: Iterable[Run]) -> list[Window]:
    """The windows of a job's runs, oldest first: a requeued job has several."""
    ordered = sorted(runs, key=lambda r: r.id)
    out = [Window(r.started_ns, r.ended_ns, r) for r in ordered if r.hook == EPILOG]
    began = [r for r in ordered if r.hook == PROLOG]
    if began and not any(w.end_ns >= began[-1].ended_ns for w in out):
        out.append(Window(began[-1].ended_ns, time.time_ns(), None))
    return out


def parse(text: str, known: Sequence[Window]) -> tuple[int, Window]:
    """(start of the minute that ``text`` names, the window that it lies in). UTC. InputError when it is in none, or in several."""
    candidates = _moments(text.strip(), known)
    if candidates is None:
        raise InputError("--at", "", f"{text[:40]!r} is no time", "14:10, or 2026-12-01T14:10 (UTC)")
    found = {at_ns: window for at_ns in candidates for window in known if _within(at_ns, window)}
    if not found:
        told = ", ".join(f"{iso(w.start_ns)} to {iso(w.end_ns)}" for w in known)
        raise InputError("--at", "", f"{text} is not within the job's time on this node", f"{told}; all times are UTC")
    if len(found) > 1:
        raise InputError(
            "--at", "", f"{text} came {len(found)} times in the job", "say which: " + ", ".join(iso(ns)[:16] for ns in sorted(found))
        )
    return next(iter(found.items()))


def _moments(text: str, known: Sequence[Window]) -> Optional[list[int]]:
    """What a text can mean, in ns UTC: a time of day on any day that a window touches. None when it is no time."""
    dated, clock = _DATED.fullmatch(text), _CLOCK.fullmatch(text)
    if dated is not None:
        try:
            return [calendar.timegm(time.strptime(" ".join(dated.groups()), "%Y-%m-%d %H:%M")) * 10**9]
        except ValueError:
            return None
    if clock is None or int(clock[1]) > 23 or int(clock[2]) > 59:
        return None
    of_day = (int(clock[1]) * 60 + int(clock[2])) * MINUTE_NS
    days = {day for w in known for day in range(w.start_ns // DAY_NS, w.end_ns // DAY_NS + 1)}
    return [day * DAY_NS + of_day for day in sorted(days)]


def _within(at_ns: int, window: Window) -> bool:
    return at_ns + MINUTE_NS > window.start_ns and at_ns <= window.end_ns


def explain(args: argparse.Namespace, ledger: Ledger, job: str, runs: Sequence[Run], gpus: Sequence[GpuIdentity]) -> int:
    """Print what is known around ``args.at``. The exit code says only that it could be told."""
    at_ns, window = parse(args.at, windows(runs))
    looks = sorted(
        {r.id: r for r in (*runs, *ledger.runs_between(HEALTH_CHECK, window.start_ns, window.end_ns))}.values(), key=lambda r: r.ended_ns
    )
    line = _timeline(window)
    begin, end = _bucket(line, at_ns) if line is not None else (at_ns, at_ns + MINUTE_NS)
    events = _events(looks, min(begin, at_ns), max(end, at_ns + MINUTE_NS))
    grew = _grew(looks, line, begin, max(end, at_ns + MINUTE_NS))
    readings = line.at(at_ns) if line is not None else {}
    near = _neighbours(looks, at_ns)
    if args.json:
        common.say_json(
            {
                "schema": 1, "what": f"job {job}", "at": iso(at_ns), "from": iso(begin), "to": iso(end),
                "events": [s._asdict() for s in events], "grew": [s._asdict() for s in grew], "gpus": readings,
                "looks": [{"hook": r.hook, "at": iso(r.ended_ns), "verdict": r.verdict} for r in near],
            }
        )  # fmt: skip
        return common.OK
    out = common.console()
    out.print(f"job {job} around {iso(at_ns)}, its time here {iso(window.start_ns)} to {iso(window.end_ns)} (UTC)", style="bold")
    for title, rows in (("logged", events), ("grew", grew)):
        for seen in rows[:MOST_LINES]:
            out.print(f"    {title:<9} {minutes([(seen.from_ns, seen.to_ns)])}  {show.entity_name(seen.entity, gpus)}: {seen.what}")
        if not rows:
            out.print(f"    {title:<9} nothing that is known of")
    if readings:
        out.print(common.table(f"readings, medians of {minutes([(begin, end)])}", *_table(readings, gpus)))
    else:
        out.print("    readings  none: the engine did not sample, or the job's epilog has not come yet")
    for run in near:
        out.print(f"    look      {iso(run.ended_ns)}  {run.hook}  {run.verdict}")
    return common.OK


def sightings(looks: Iterable[Run], epilog: Run) -> list[Seen]:
    """Growth of the job's error counters by the health checks within it: bounds where there are no samples to place it."""
    placed = {(f.entity, f.evidence.field) for f in epilog.findings if f.evidence.moments}
    wanted = {(c.entity, c.field) for c in epilog.changes if c.amount and c.field in effects.OF_FIELD} - placed
    out = []
    for look in looks:
        for change in look.changes:
            if (change.entity, change.field) in wanted and change.amount:
                out.append(
                    Seen(
                        max(look.started_ns, epilog.started_ns),
                        min(look.ended_ns, epilog.ended_ns),
                        change.entity,
                        _grown(change.field, change.amount),
                    )
                )
    return sorted(out)


def _grown(field: str, amount: float) -> str:
    facts = cat.BY_NAME.get(field)
    return f"{facts.label if facts is not None else field} +{figures.amount(amount, facts)}"


def _timeline(window: Window) -> Optional[Timeline]:
    """What the epilog kept; None when it kept nothing that can be read."""
    if window.epilog is None or not window.epilog.timeline:
        return None
    try:
        return timeline.from_json(window.epilog.timeline)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _bucket(line: Timeline, at_ns: int) -> tuple[int, int]:
    width = line.bucket_s * 10**9
    begin = line.start_ns + line.bucket(max(at_ns, line.start_ns)) * width
    return begin, min(begin + width, line.end_ns)


def _events(looks: Iterable[Run], begin: int, end: int) -> list[Seen]:
    """Logged around then, each once: health check and epilog both tell of it, with another stamp and in other words."""
    out: list[Seen] = []
    known: dict[tuple[str, str, str], list[int]] = {}
    for run in looks:
        for f in run.findings:
            at_ns = f.evidence.at_ns
            if f.evidence.field not in EVENTS or at_ns is None or not begin <= at_ns <= end:
                continue
            stamps = known.setdefault((f.entity, f.evidence.field, f"{f.evidence.after}"), [])
            if all(abs(at_ns - other) > SAME_MOMENT_NS for other in stamps):
                out.append(Seen(at_ns, at_ns, f.entity, f"{f.code}: {f.message}"))
            stamps.append(at_ns)
    return sorted(out)


def _grew(looks: Iterable[Run], line: Optional[Timeline], begin: int, end: int) -> list[Seen]:
    """Growth that may have been then: by the engine's samples of each link's or GPU's counter, else by health checks.

    What a sample shows at 08:30:00 happened in the minute before, and a person who asks for 08:30 means it: what ends
    where the time asked for begins is told too.
    """
    looks = list(looks)
    out = {
        Seen(since, until, f.entity, _grown(f.evidence.field, amount))
        for run in looks
        for f in run.findings
        for since, until, amount in f.evidence.moments
        if since < end and until >= begin
    }
    if line is not None:
        told = {(entity.gpu_of(s.entity), s.what.partition(" +")[0]) for s in out}
        for since, until in {_bucket(line, ns) for ns in (begin - 1, begin, end - 1)}:
            for uuid, rows in line.at(since).items():
                for name, amount in rows.items():
                    if name in timeline.COUNTERS and amount and (uuid, cat.BY_NAME[name].label) not in told:
                        out.add(Seen(since, until, uuid, _grown(name, amount)))
    for run in looks:
        if run.hook == HEALTH_CHECK and run.started_ns < end and run.ended_ns >= begin:
            for change in run.changes:
                sampled = line is not None and not {change.field, f"{change.field}_total"}.isdisjoint(cat.SAMPLED)
                if change.amount and change.field in effects.OF_FIELD and not sampled:
                    out.add(Seen(run.started_ns, run.ended_ns, change.entity, _grown(change.field, change.amount)))
    return sorted(out)


def _neighbours(looks: Sequence[Run], at_ns: int) -> list[Run]:
    """The last look before the minute and the first one after its beginning."""
    before = [r for r in looks if r.ended_ns <= at_ns]
    after = [r for r in looks if r.ended_ns > at_ns]
    return [*before[-1:], *after[:1]]


def _table(readings: dict[str, dict[str, Optional[float]]], gpus: Sequence[GpuIdentity]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: a GPU each, in the order of their indices; gauges only."""
    names = [name for name in timeline.GAUGES if any(name in rows for rows in readings.values())]
    order = {g.uuid: (g.nvml_index is None, g.nvml_index or 0) for g in gpus}
    rows = []
    for uuid in sorted(readings, key=lambda u: order.get(u, (True, 0))):
        rows.append([show.entity_name(uuid, gpus), *(_cell(name, readings[uuid].get(name)) for name in names)])
    return ["GPU", *(cat.BY_NAME[name].label for name in names)], rows


def _cell(name: str, value: Optional[float]) -> str:
    if value is None:
        return "-"
    facts = cat.BY_NAME[name]
    return f"{int(value):#x}" if facts.unit == "bit mask" else figures.value(value, facts)
