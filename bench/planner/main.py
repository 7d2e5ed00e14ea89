"""`./run bench planner`: the planner against the model, many steps on all cores; and how long the window is on a real Slurm.

Exit 0: no rule broke; 1: one did, and the shortest trace found is printed; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from typing import Any, Final, Optional, Sequence

from planner import trace, window
from planner.hook import machine
from planner.truth import RULES
from planner.walk import Report, play, walk
from slurm_nvhc.errors import NvhcError

CHUNK: Final = 10_000  # steps of one seed: the figures do not depend on how many processes there are
WINDOWS: Final = 25  # times that each window is measured


def main(argv: Optional[Sequence[str]] = None) -> int:
    given = _arguments(argv)
    try:
        if given.replay:
            return replay(given.replay)
        figures = run(given.steps, given.seed, given.processes, given.windows)
        if given.json:
            trace.write(given.json, figures)
    except NvhcError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 2
    print(text(figures))
    return 1 if figures["failures"] else 0


def replay(file: str) -> int:
    """Play a trace that was printed or kept before."""
    setting, steps = trace.read(file)
    with machine():
        broken = play(setting, steps)
    print(f"{broken.rule}: {broken.what}" if broken is not None else f"no rule breaks in these {len(steps)} steps")
    return 0 if broken is None else 1


def run(steps: int, seed: int, processes: int, windows: int) -> dict[str, Any]:
    began = time.monotonic()
    chunks = [(f"{seed}.{n}", min(CHUNK, steps - n * CHUNK)) for n in range((steps + CHUNK - 1) // CHUNK)]
    counts: dict[str, int] = {}
    failures: list[Any] = []
    done = 0
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for report in pool.imap_unordered(_chunk, chunks):
            done += report.steps
            for failure in report.failures:
                failures.append(trace.as_json(failure))
                print(f"bench: {failure.rule}: {failure.what}\n{json.dumps(failures[-1])}", file=sys.stderr, flush=True)
            for what, number in report.counts.items():
                counts[what] = counts.get(what, 0) + number
            print(f"bench: {time.strftime('%H:%M:%S')} {done:,} of {steps:,} steps", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    return {
        "schema": 1,
        "seed": seed,
        "steps": done,
        "seconds": round(seconds, 1),
        "processes": processes,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "made": time.strftime("%Y-%m-%d"),
        "counts": dict(sorted(counts.items())),
        "broken": {rule: sum(f["rule"] == rule for f in failures) for rule in RULES},
        "failures": failures,
        "window": _summary(window.measure(windows)) if windows else {},
    }


def _chunk(chunk: tuple[str, int]) -> Report:
    with machine():
        return walk(chunk[0], chunk[1])


def _summary(measured: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in measured.items():
        if isinstance(value, list):
            ordered = sorted(value)
            p95 = ordered[round(0.95 * (len(ordered) - 1))]
            out[name] = {"times": len(ordered), "median_s": statistics.median(ordered), "p95_s": p95, "max_s": ordered[-1]}
        else:
            out[name] = value
    return out


def text(f: dict[str, Any]) -> str:
    lines = [f"{f['steps']:,} steps in {f['seconds']:.0f} s, seed {f['seed']}", ""]
    lines += [f"{number:>10,}  {what}" for what, number in f["counts"].items()]
    lines += ["", *(f"{number:>10}  broken: {rule}" for rule, number in f["broken"].items())]
    for name, w in f["window"].items():
        if isinstance(w, dict):
            lines.append(f"window of a {name}: median {w['median_s'] * 1000:.0f} ms, p95 {w['p95_s'] * 1000:.0f} ms ({w['times']} times)")
        else:
            lines.append(f"window: {name} {w}")
    for failure in f["failures"][:3]:
        lines += ["", f"{failure['rule']}: {failure['what']}", json.dumps({k: failure[k] for k in ("setting", "steps")})]
    return "\n".join(lines)


def _arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    what = "the planner against a model of Slurm and of all who act on a node"
    parser = argparse.ArgumentParser(prog="./run bench planner", description=what)
    parser.add_argument("--steps", type=_count, default=1_000_000, help="steps (1000000)")
    parser.add_argument("--seed", type=int, default=1, help="other walks of the same kind (1)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    parser.add_argument("--processes", type=_count, default=os.cpu_count() or 1, help="as many as there are cores")
    parser.add_argument("--windows", type=int, default=WINDOWS, help="times that each window is measured on a real Slurm (25); 0: not")
    parser.add_argument("--replay", metavar="FILE", help="play a trace that a failure printed, instead")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000_000:
        raise argparse.ArgumentTypeError("a number from 1 to 1000000000 was expected")
    return int(text)
