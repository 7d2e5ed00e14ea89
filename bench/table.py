"""Rows of figures, printed as a table and kept as JSON. Times in seconds, memory in MiB."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

SCHEMA = 1


class Row(NamedTuple):
    """value, p95: in ``unit``; p95 is None for a single figure. bound: what the figure should stay below, None for no such wish."""

    what: str
    value: float
    unit: str
    p95: float | None = None
    bound: float | None = None
    note: str = ""


def of_times(what: str, seconds: Sequence[float], note: str = "") -> Row:
    """Median and 95th percentile of some times, as ms."""
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return Row(what, statistics.median(ordered) * 1000, "ms", p95 * 1000, note=note or f"{len(ordered)} times")


def stop(problem: str) -> NoReturn:
    """What should be measured is not there, or is not what it should be: exit 2."""
    print(f"bench: {problem}", file=sys.stderr)
    raise SystemExit(2)


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    parser.add_argument("--times", type=_times, default=20, help="repetitions of each measurement (20)")
    return parser.parse_args()


def _times(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError("a number from 1 to 10000 was expected")
    return int(text)


def show(rows: Sequence[Row], file: str | None) -> int:
    """Print, write, and tell by the exit code whether every bound holds (0) or not (1)."""
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}  {'median':>10}  {'p95':>10}  {'bound':>7}")
    for row in rows:
        cells = [_figure(row.value, row.unit), _figure(row.p95, row.unit), _figure(row.bound, row.unit, "<= ")]
        mark = "  OVER" if over(row) else ""
        print(f"{row.what:{width}}  {cells[0]:>10}  {cells[1]:>10}  {cells[2]:>7}{mark}  {row.note}".rstrip())
    if file:
        try:
            with open(file, "w", encoding="utf-8") as out:
                json.dump(document(rows), out, indent=1)
        except OSError as exc:
            stop(f"{file}: can not be written: {exc.strerror}")
    return 1 if any(over(row) for row in rows) else 0


def over(row: Row) -> bool:
    return row.bound is not None and row.value > row.bound


def document(rows: Sequence[Row]) -> dict[str, Any]:
    machine = {"machine": platform.machine(), "python": platform.python_version()}
    return {"schema": SCHEMA, **machine, "rows": [{**row._asdict(), "over": over(row)} for row in rows]}


def _figure(value: float | None, unit: str, before: str = "") -> str:
    if value is None:
        return ""
    if before:
        return f"{before}{value:g}"
    return f"{value:.2f}" if unit == "x" else f"{value:.0f} {unit}"
