"""The figures in docs/detection.md, from a run's JSON: `python bench/detection/page.py FILE.json` keeps the file and writes them anew."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final, Mapping, Optional, Sequence

from slurm_nvhc.model.times import duration

DOCS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
PAGE: Final = os.path.join(DOCS, "detection.md")
FIGURES: Final = os.path.join(DOCS, "detection.json")
BEGIN, END = "<!-- figures: written by bench/detection/page.py -->\n", "<!-- end of figures -->\n"

Document = Mapping[str, Any]


def block(f: Document) -> str:
    """Everything between the marks."""
    parts = [_made(f), _goals(f), _rules(f), _kinds(f), _traps(f), _budget(f)]
    return "\n".join(parts)


def _made(f: Document) -> str:
    s = f["sound"]
    return (
        f"`./run bench detection`, seed {f['seed']}, {f['made']}, {f['cores']} cores ({f['machine']}, Python {f['python']}), "
        f"{duration(f['seconds'])}: {s['nodes']:,} sound nodes, together {s['node_days']:,.0f} node-days, and "
        f"{sum(k['of'] for k in f['kinds'])} nodes with a fault. "
        f"{s['looks']:,} looks at sound nodes were judged one by one.\n\n"
        f"False drains of sound nodes: **{s['false_drains']}**, so with 95 % confidence at most "
        f"**{s['upper_95_per_10000_nodes_and_day']:.3g} in 10,000 nodes and day**. False warnings: "
        f"{s['false_warnings_per_10000_nodes_and_day']:.1f} in 10,000 nodes and day, beside "
        f"{s['statements_per_10000_nodes_and_day']:.0f} that state what did happen (a program failed, a driver is another).\n"
    )


def _goals(f: Document) -> str:
    rows = [[g["what"], g["wanted"], g["seen"], "met" if g["met"] else "**missed**"] for g in f["goals"]]
    return _table(["goal", "wanted", "seen", ""], rows)


def _rules(f: Document) -> str:
    rows = [
        [s["rule"], _share(s["precision"]), _share(s["recall"]), _share(s["f1"]), _time(s["median_s"]), _time(s["p95_s"]),
         f"{s['false_per_10000_nodes_and_day']:.1f}"]
        for s in f["scores"]["nvlink"]
    ]  # fmt: skip
    head = ["faults that counters of links show", "precision", "recall", "F1", "median time", "p95", "false drains in 10,000 nodes and day"]
    return _table(head, rows)


def _kinds(f: Document) -> str:
    rows = []
    for k in f["kinds"]:
        fits = k["suspects"]
        named = f"{fits.get('right', 0)} / {fits.get('coarse', 0)} / {fits.get('wrong', 0)} / {k['abstained']}"
        wanted = "a drain" if k["severity"] == "act" else "a warning"
        rows.append([k["kind"].replace("_", " "), wanted, f"{k['found']} of {k['of']}", _time(k["median_s"]), _time(k["p95_s"]), named])
    return _table(["fault", "calls for", "got it", "median", "p95", "suspects: right / coarse / healthy part / none"], rows)


def _traps(f: Document) -> str:
    rules = list(f["traps"][0]["theirs"]) if f["traps"] else []
    rows = [[t["trap"], str(t["nodes"]), str(t["drained"]), *(str(t["theirs"][r]) for r in rules)] for t in f["traps"]]
    return _table(["sound nodes drained", "nodes", "ours", *rules], rows)


def _budget(f: Document) -> str:
    rows = [
        [f"`{t['rule']}`, {t['verdict']}", t["test"], str(t["counters"]), f"{t['looks']:.0f}", _figure(t["bound"]), _figure(t["expected"])]
        for t in f["tests"]
    ]
    head = ["false alarms a day in 10,000 nodes", "test", "counters", "looks a day", "granted by the budget", "exact"]
    worse = "; ".join(f"{w['per_h']:g} an hour: {w['false']:.2g}" for w in f["worse"])
    return (
        _table(head, rows)
        + f"\nIf *every* healthy link made more errors than that, drains a day in 10,000 nodes by the gathered evidence: {worse}.\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def _figure(per_node: float) -> str:
    return f"{per_node * 10_000:.2g}"


def _share(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.3f}"


def _time(seconds: Optional[float]) -> str:
    return "" if seconds is None else duration(seconds)


def with_block(page: str, figures: str) -> str:
    """The page with other figures. Raises ValueError when the marks are not there."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def write(file: str) -> None:
    with open(file, encoding="utf-8") as opened:
        figures = json.load(opened)
    with open(PAGE, encoding="utf-8") as opened:
        page = opened.read()
    with open(FIGURES, "w", encoding="utf-8") as out:
        json.dump(figures, out, indent=1)
        out.write("\n")
    with open(PAGE, "w", encoding="utf-8") as out:
        out.write(with_block(page, block(figures)))


if __name__ == "__main__":
    write(sys.argv[1])
