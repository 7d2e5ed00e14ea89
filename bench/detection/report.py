"""Figures as text and as JSON, and whether the goals are met."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from detection import exact, score, theirs
from detection.exact import Power, RuleTests, Worse
from detection.score import KindScore, Outcome, Score, Suspicion
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.times import duration
from slurm_nvhc.policy.compiled import FalseAlarms

SCHEMA = 1
PER_NODES = 10_000
SHOWN = 20  # false drains that are listed by name


class Trapped(NamedTuple):
    """One structural trap. drained: nodes that were, and by which rules. theirs: published rule -> nodes."""

    trap: str
    nodes: int
    drained: int
    by: tuple[str, ...]
    warned: int
    theirs: Mapping[str, int]


class Simulated(NamedTuple):
    """Jobs of one hour on a node with a link at marin's rate, through the generator and all hooks."""

    jobs: int
    flagged: int


class Figures(NamedTuple):
    """Everything that a run found. seconds: wall time of it."""

    seed: int
    nodes: int
    days: float
    outcomes: tuple[Outcome, ...]
    traps: tuple[Trapped, ...]
    marin: Power
    simulated: Simulated
    powers: Mapping[str, tuple[Power, ...]]
    tests: tuple[RuleTests, ...]
    worse: tuple[Worse, ...]
    budget: FalseAlarms
    seconds: float


class Goal(NamedTuple):
    what: str
    wanted: str
    seen: str
    met: bool


def goals(f: Figures) -> list[Goal]:
    """What the judge should reach; a goal about something that did not happen in this run is missed."""
    sound = [o for o in f.outcomes if not o.kind]
    ours = score.score(score.OURS, f.outcomes)
    wrong, days = _false(sound)
    tails = exact.false_alarms(f.tests, fd.FAIL)
    trapped = sum(t.drained for t in f.traps)
    s = score.suspicion(f.outcomes)
    named = s.right + s.coarse + s.wrong
    power = f.marin
    return [
        Goal("false drains on sound nodes", "0", f"{wrong} in {days:,.0f} node-days", wrong == 0),
        Goal("their exact tails, 10,000 nodes", "<= 0.1 a day", f"{tails:.2g} a day", tails <= 0.1),
        Goal("drains in the structural traps", "0", str(trapped), trapped == 0),
        Goal("8.6/h in a job of 1 h is flagged", ">= 0.99", f"{power.detected:.4f}", power.detected >= 0.99),
        Goal("a healthy link in it is", "<= 0.001", f"{power.null:.2g}", power.errors is not None and power.null <= 1e-3),
        Goal("precision", ">= 0.99", _share(ours.precision), (ours.precision or 0.0) >= 0.99),
        Goal("F1", ">= 0.95", _share(ours.f1), (ours.f1 or 0.0) >= 0.95),
        Goal("named suspects that are right", ">= 95 %", _part(s.right, named), named > 0 and s.right >= 0.95 * named),
        Goal("faults without a named suspect", "<= 10 %", _part(s.abstained, s.faults), s.faults > 0 and s.abstained <= 0.1 * s.faults),
        Goal("faults with a healthy part blamed", "<= 1 %", _part(s.blaming, s.faults), s.faults > 0 and s.blaming <= 0.01 * s.faults),
    ]


def _false(sound: Sequence[Outcome]) -> tuple[int, float]:
    wrong = sum(o.wrongly is not None for o in sound)
    days = sum((o.seconds if o.wrongly is None else o.wrongly) for o in sound) / score.DAY_S
    return wrong, days


def text(f: Figures) -> str:
    """Tables for a terminal of 140 columns."""
    sound = [o for o in f.outcomes if not o.kind]
    wrong, days = _false(sound)
    upper = exact.upper_rate(wrong, days) * PER_NODES
    ill = len(f.outcomes) - len(sound)
    lines = [
        f"seed {f.seed}: {len(sound)} sound nodes for {f.days:g} days, {ill} nodes with a fault; took {duration(f.seconds)}",
        f"sound nodes: {days:,.0f} node-days, {sum(o.looks for o in sound):,} looks judged one by one, the others with them",
        f"false drains: {wrong}; with 95 % confidence at most {upper:.3g} per 10,000 nodes and day",
        f"warnings about sound nodes: {_rate(sum(len(o.false_warnings) for o in sound), days)} false, "
        f"{_rate(sum(o.statements for o in sound), days)} that state what happened, per 10,000 nodes and day",
    ]
    lines += [f"  {count} x {name}" for name, count in Counter(c for o in sound for c in o.false_warnings).most_common(8)]
    wrongly = [o for o in f.outcomes if o.wrongly is not None]
    lines += [f"  drained: {o.node} ({o.board}) after {duration(o.wrongly or 0)} by {', '.join(o.wrongly_by)}" for o in wrongly[:SHOWN]]
    lines += ["", "Faults that must be drained", *_table(_scores(f, nvlink=False))]
    lines += ["", "Faults that error counters of links show", *_table(_scores(f, nvlink=True))]
    lines += ["", *_kinds(score.by_kind(f.outcomes))]
    lines += ["", *_suspects(score.suspicion(f.outcomes))]
    lines += ["", *_traps(f.traps)]
    lines += ["", *_exact(f)]
    lines += ["", "Goals"]
    for goal in goals(f):
        lines.append(f"  {'met   ' if goal.met else 'MISSED'}  {goal.what:45} {goal.wanted:>12}   {goal.seen}")
    return "\n".join(lines)


def _scores(f: Figures, nvlink: bool) -> list[Score]:
    rules = [score.OURS, score.PACKAGED, *(theirs.RULES if nvlink else ())]
    return [score.score(rule, f.outcomes, nvlink) for rule in rules]


def _table(scores: Sequence[Score]) -> list[str]:
    width = max(len(s.rule) for s in scores)
    head = f"  {'':{width}} {'precision':>9} {'recall':>7} {'F1':>7}  {'median':>7} {'p95':>7}  false drains, 10,000 nodes and day"
    rows = [
        f"  {s.rule:{width}} {_share(s.precision):>9} {_share(s.recall):>7} {_share(s.f1):>7}  {_time(s.median_s):>7} {_time(s.p95_s):>7}"
        f"  {s.false_per_day:9.1f} ({s.false} in {s.node_days:,.0f} node-days)"
        for s in scores
    ]
    return [head, *rows]


def _legend() -> str:
    return ", ".join(f"({n}) {name}" for n, name in enumerate(theirs.RULES, 1))


def _numbers() -> str:
    return " ".join(f"({n})" for n in range(1, len(theirs.RULES) + 1))


def _kinds(kinds: Sequence[KindScore]) -> list[str]:
    head = f"  {'':18} {'calls for':>9} {'found':>9}  {'median':>7} {'p95':>7}   {'right':>5} {'coarse':>6} {'wrong':>5} {'none':>5}"
    title = "Faults by kind: how many got what they call for, after what time, and their suspects"
    lines = [title, f"  {_legend()}", f"{head}   {_numbers()}"]
    for k in kinds:
        fits = [k.suspects.get(fit, 0) for fit in (score.RIGHT, score.COARSE, score.WRONG)]
        rules = " ".join(f"{k.rules[name]:3}" for name in theirs.RULES) if k.nvlink else ""
        times = f"{_time(k.median_s):>7} {_time(k.p95_s):>7}"
        suspects = f"{fits[0]:5} {fits[1]:6} {fits[2]:5} {k.abstained:5}"
        lines.append(f"  {k.kind:18} {k.severity:>9} {f'{k.found}/{k.of}':>9}  {times}   {suspects}   {rules}".rstrip())
    return lines


def _suspects(s: Suspicion) -> list[str]:
    named = s.right + s.coarse + s.wrong
    fits = f"{_part(s.right, named)} right, {_part(s.coarse, named)} too coarse or too fine, {_part(s.wrong, named)} healthy"
    faults = f"{_part(s.abstained, s.faults)} without a name, {_part(s.blaming, s.faults)} with a healthy part blamed"
    return [f"Suspects: of {named} named {fits};", f"  of {s.faults} faults {faults}"]


def _traps(traps: Sequence[Trapped]) -> list[str]:
    lines = ["Structural traps: sound nodes drained", f"  {'':55} {'nodes':>5} {'ours':>5} {'warned':>6}   {_numbers()}"]
    for t in traps:
        rules = " ".join(f"{t.theirs[name]:3}" for name in theirs.RULES)
        by = f"   {', '.join(t.by)}" if t.by else ""
        lines.append(f"  {t.trap:55} {t.nodes:5} {t.drained:5} {t.warned:6}   {rules}{by}")
    return lines


def _exact(f: Figures) -> list[str]:
    b, marin = f.budget, f.marin
    lines = [
        f"One budget: {b.per_day:g} false alarms a day in {b.nodes:,.0f} nodes of {b.tests:,.0f} tests a day: each test at {b.alpha:.2g}",
        f"  {'false alarms a day in 10,000 nodes':34} {'test':8} {'counters':>8} {'looks a day':>11} {'at most':>10} {'exact':>10}",
    ]
    for t in f.tests:
        figures = f"{t.counters:8} {t.looks:11.0f} {t.bound * PER_NODES:10.3g} {t.expected * PER_NODES:10.2g}"
        lines.append(f"  {f'{t.rule}, {t.verdict}':34} {t.test:8} {figures}")
    for verdict in (fd.FAIL, fd.WARN):
        lines.append(f"  {f'all that {verdict}':76} {exact.false_alarms(f.tests, verdict):10.2g}")
    worse = ", ".join(f"{w.per_h:g}/h {w.false:.2g}" for w in f.worse)
    lines.append(f"  if all links were worse than that, errors an hour: drains a day in 10,000 nodes: {worse}")
    lines.append(
        f"A job of 1 h on a link with 8.6 recoveries an hour is flagged from {marin.errors} on: P = {marin.detected:.4f}, "
        f"of a healthy link (0.001/h) {marin.null:.2g}; simulated: {f.simulated.flagged} of {f.simulated.jobs}"
    )
    for name, row in f.powers.items():
        lines.append(f"P(flagged within one job), {name}:")
        lines.append("  " + ", ".join(f"{duration(p.hours * 3600)} {p.detected:.3f}" for p in row))
    return lines


def document(f: Figures) -> dict[str, Any]:
    """The same as data."""
    sound = [o for o in f.outcomes if not o.kind]
    wrong, days = _false(sound)
    return {
        "schema": SCHEMA,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": f.seed,
        "seconds": round(f.seconds, 1),
        "sound": {
            "nodes": len(sound),
            "node_days": days,
            "looks": sum(o.looks for o in sound),
            "false_drains": wrong,
            "upper_95_per_10000_nodes_and_day": exact.upper_rate(wrong, days) * PER_NODES,
            "false_warnings_per_10000_nodes_and_day": sum(len(o.false_warnings) for o in sound) / days * PER_NODES if days else None,
            "false_warnings": dict(Counter(c for o in sound for c in o.false_warnings)),
            "statements_per_10000_nodes_and_day": sum(o.statements for o in sound) / days * PER_NODES if days else None,
        },
        "wrong_drains": [_wrong(o) for o in f.outcomes if o.wrongly is not None],
        "scores": {name: [_score(s) for s in _scores(f, nv)] for name, nv in (("all", False), ("nvlink", True))},
        "kinds": [k._asdict() for k in score.by_kind(f.outcomes)],
        "suspects": score.suspicion(f.outcomes)._asdict(),
        "traps": [t._asdict() for t in f.traps],
        "tests": [t._asdict() for t in f.tests],
        "worse": [w._asdict() for w in f.worse],
        "budget": {**f.budget._asdict(), "alpha": f.budget.alpha},
        "marin": f.marin._asdict(),
        "simulated": f.simulated._asdict(),
        "powers": {name: [p._asdict() for p in row] for name, row in f.powers.items()},
        "goals": [g._asdict() for g in goals(f)],
    }


def _wrong(o: Outcome) -> dict[str, Any]:
    return {"node": o.node, "board": o.board, "at_s": o.wrongly, "by": list(o.wrongly_by)}


def _score(s: Score) -> dict[str, Any]:
    more = {"precision": s.precision, "recall": s.recall, "f1": s.f1, "false_per_10000_nodes_and_day": s.false_per_day}
    return {**s._asdict(), **more}


def _share(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3f}"


def _part(some: int, of: int) -> str:
    return f"{some / of * 100:.1f} %" if of else "-"


def _time(seconds: Optional[float]) -> str:
    return "-" if seconds is None else duration(seconds)


def _rate(count: int, days: float) -> str:
    return f"{count / days * PER_NODES:.1f}" if days else "-"
