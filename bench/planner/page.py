"""The figures in docs/planner.md, from a run's JSON: `python bench/planner/page.py FILE.json` keeps the file and writes them anew."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final, Mapping

from slurm_nvhc.model.times import duration

DOCS: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
PAGE: Final = os.path.join(DOCS, "planner.md")
FIGURES: Final = os.path.join(DOCS, "planner.json")
BEGIN, END = "<!-- figures: written by bench/planner/page.py -->\n", "<!-- end of figures -->\n"

Document = Mapping[str, Any]


def block(f: Document) -> str:
    """Everything between the marks."""
    made = (
        f"`./run bench planner --steps {f['steps']}`, seed {f['seed']}, {f['made']}, {f['processes']} processes ({f['machine']}, "
        f"Python {f['python']}), {duration(f['seconds'])}: **{f['steps']:,} steps, {sum(f['broken'].values())} broken rules**.\n"
    )
    rules = ["| rule | broken |", "| --- | --- |", *(f"| {rule} | {number} |" for rule, number in f["broken"].items())]
    seen = ["| what happened on the way | times |", "| --- | --- |", *(f"| {what} | {number:,} |" for what, number in f["counts"].items())]
    return "\n".join([made, *rules, "", *seen, "", _window(f["window"])])


def _window(w: Document) -> str:
    if "drain" not in w:
        return f"The window was not measured: {w['not']}." if "not" in w else "The window was not measured."
    told = []
    for name in ("drain", "resume"):
        told.append(f"{name}: median {_ms(w[name]['median_s'])}, p95 {_ms(w[name]['p95_s'])}, longest {_ms(w[name]['max_s'])}")
    return (
        f"The window on a private real Slurm {w['slurm']} on this machine, from the beginning of the last reading to the answer to "
        f"the change ({w['drain']['times']} times each): {'; '.join(told)}.\n"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


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
