"""`./run bench detection`: make the fleets, judge them on all cores, print the figures.

Exit 0: every goal met; 1: one missed; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from typing import Any, Callable, Iterable, Optional, Sequence, TypeVar

from detection import exact, fleet, params, report, score, theirs, traps
from detection.boards import board
from detection.exact import Power
from detection.faulty import KINDS
from detection.ours import judged, policy_of, use_policy
from detection.params import Params
from detection.report import Figures, Simulated, Trapped
from detection.score import Outcome
from slurm_nvhc.errors import NvhcError
from slurm_nvhc.model import finding as fd

TRAP_NODES = 2  # of each board
SIMULATED_JOBS = 200
HOURS = (0.25, 0.35, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 24.0, 48.0)
WORSE = (0.001, 0.002, 0.005, 0.01)  # errors an hour of every healthy link
CHUNK = 8
_RATES = (
    ("recoveries an hour", "nvlink_recovery", exact.MARIN_PER_H),
    ("replays an hour", "nvlink_replay", exact.EMBER_PER_H),
)

_T = TypeVar("_T")
_R = TypeVar("_R")
_setting: Optional[Params] = None  # of a worker


def main(argv: Optional[Sequence[str]] = None) -> int:
    given = _arguments(argv)
    try:
        setting = _sized(params.load(given.params), given)
        use_policy(given.policy)
        figures = run(setting, given.processes, _progress)
        _write(given.json, figures)
    except NvhcError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 2
    print(report.text(figures))
    return 0 if all(goal.met for goal in report.goals(figures)) else 1


def run(setting: Params, processes: int, told: Callable[[str], None] = lambda text: None) -> Figures:
    """All of it. The figures do not depend on ``processes``."""
    began = time.monotonic()
    for name in setting.fleet.boards:
        board(name)  # read once, before there are workers
    sound = [("", number) for number in range(setting.fleet.nodes)]
    ill = [(kind, number) for kind in KINDS for number in range(setting.fleet.faulty)]
    with multiprocessing.get_context("fork").Pool(processes, _start, (setting,)) as pool:
        told(f"{len(ill)} nodes with a fault")
        outcomes = [o for o in pool.imap(_outcome, ill, CHUNK) if o is not None]
        told("structural traps")
        trapped = pool.map(_trapped, traps.TRAPS, 1)
        told("one job of an hour")
        flagged = pool.map(_flagged, range(SIMULATED_JOBS), CHUNK)
        powers: dict[str, tuple[Power, ...]] = {}
        for name, field, rate in _RATES:
            powers[f"{rate:g} {name}"] = tuple(pool.starmap(exact.power, [(field, rate, hours) for hours in HOURS], 1))
        told(f"{len(sound)} sound nodes")
        outcomes += [o for o in _counted(pool.imap(_outcome, sound, CHUNK), len(sound), told) if o is not None]
    policy, _ = policy_of(exact.BOARD)
    return Figures(
        seed=setting.seed,
        nodes=setting.fleet.nodes,
        days=setting.fleet.days,
        outcomes=tuple(outcomes),
        traps=tuple(trapped),
        marin=_at(powers, 1.0),
        simulated=Simulated(SIMULATED_JOBS, sum(flagged)),
        powers=powers,
        tests=tuple(exact.all_tests()),
        worse=tuple(exact.if_worse(per_h) for per_h in WORSE),
        budget=policy.false_alarms,
        seconds=time.monotonic() - began,
    )


def _at(powers: dict[str, tuple[Power, ...]], hours: float) -> Power:
    return next(p for p in next(iter(powers.values())) if p.hours == hours)


def _start(setting: Params) -> None:
    global _setting
    _setting = setting


def _outcome(which: tuple[str, int]) -> Optional[Outcome]:
    assert _setting is not None
    kind, number = which
    plan = fleet.ill(_setting, kind, number) if kind else fleet.sound(_setting, number)
    return None if plan is None else score.outcome(plan)


def _trapped(name: str) -> Trapped:
    assert _setting is not None
    plans = traps.plans(_setting, name, TRAP_NODES)
    seen = [judged(plan, every=traps.TRAPS[name].every) for plan in plans]
    return Trapped(
        name,
        len(plans),
        sum(s.wrongly is not None for s in seen),
        tuple(dict.fromkeys(rule for s in seen for rule in s.wrongly_by)),
        sum(any(v.verdict == fd.WARN and v.code not in score.STATEMENTS for v in s.verdicts) for s in seen),
        {rule: sum(theirs.alarm(p, board(p.board), rule).before is not None for p in plans) for rule in theirs.RULES},
    )


def _flagged(number: int) -> bool:
    """One simulated job of an hour on a link with marin's rate: does its epilog warn or fail?"""
    assert _setting is not None
    return exact.simulated(_setting.seed, number)


def _counted(found: Iterable[_T], of: int, told: Callable[[str], None]) -> Iterable[_T]:
    """Tells how far it is, ten times."""
    step = max(1, of // 10)
    for number, one in enumerate(found, 1):
        if number % step == 0:
            told(f"{number} of {of}")
        yield one


def _progress(what: str) -> None:
    print(f"bench: {time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def _write(file: Optional[str], figures: Figures) -> None:
    if file:
        try:
            with open(file, "w", encoding="utf-8") as out:
                json.dump(report.document(figures), out, indent=1)
        except OSError as exc:
            raise NvhcError(file, "", f"can not be written: {exc.strerror}") from None


def _sized(setting: Params, given: argparse.Namespace) -> Params:
    changes: dict[str, Any] = {k: v for k, v in (("nodes", given.nodes), ("days", given.days), ("faulty", given.faulty)) if v is not None}
    return params.sized(setting, given.seed, **changes)


def _arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    what = "synthetic fleets with a known truth, through the real judge and through published rules"
    parser = argparse.ArgumentParser(prog="./run bench detection", description=what)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    parser.add_argument("--policy", metavar="FILE", help="judge by this policy of yours (on top of the packaged one)")
    parser.add_argument("--params", metavar="FILE", help="parameters of the fleets (bench/detection/fleet.yaml)")
    parser.add_argument("--nodes", type=_count, help="sound nodes")
    parser.add_argument("--days", type=_days, help="days of each sound node")
    parser.add_argument("--faulty", type=_count, help="nodes of each kind of fault")
    parser.add_argument("--seed", type=int, help="another fleet of the same kind")
    parser.add_argument("--processes", type=_count, default=os.cpu_count() or 1, help="as many as there are cores")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError("a number from 1 to 1000000 was expected")
    return int(text)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0.1 <= days <= 3650:
        raise argparse.ArgumentTypeError("days from 0.1 to 3650 were expected")
    return days
