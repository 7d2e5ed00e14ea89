"""`nvhc rates`: how fast this node's error counters grow, by driver, VBIOS, fabric manager and model."""

from __future__ import annotations

import argparse
from typing import Any, Final, NamedTuple

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.cli import common
from slurm_nvhc.errors import InputError
from slurm_nvhc.judge.chance import upper_mean
from slurm_nvhc.model.tally import Versions
from slurm_nvhc.model.times import iso

CONFIDENCE: Final = 0.95
PER_HOURS: Final = 1000.0


class _Rate(NamedTuple):
    key: tuple[str, ...]
    field: str
    amount: float
    hours: float
    first_ns: int
    last_ns: int

    def per_thousand_hours(self) -> float:
        return self.amount / self.hours * PER_HOURS if self.hours else 0.0

    def at_most(self) -> float:
        """The highest true rate that this much growth does not rule out: few hours prove little."""
        return upper_mean(self.amount, CONFIDENCE) / self.hours * PER_HOURS if self.hours else float("inf")


def rates(args: argparse.Namespace) -> int:
    keys = tuple(dict.fromkeys(k.strip() for k in args.by.split(",") if k.strip()))
    unknown = [k for k in keys if k not in Versions._fields]
    if unknown or not keys:
        raise InputError("--by", "", f"{', '.join(unknown) or 'nothing'} is no version", f"known: {', '.join(Versions._fields)}")
    with common.open_ledger(args) as ledger:
        stored = ledger.rates()
    sums: dict[tuple[tuple[str, ...], str], _Rate] = {}
    for one, first_ns, last_ns in stored:
        key = tuple(getattr(one.versions, k) for k in keys)
        old = sums.get((key, one.field), _Rate(key, one.field, 0.0, 0.0, first_ns, last_ns))
        sums[key, one.field] = _Rate(
            key, one.field, old.amount + one.amount, old.hours + one.hours, min(old.first_ns, first_ns), max(old.last_ns, last_ns)
        )
    order = {f.name: n for n, f in enumerate(cat.ALL)}
    rows = sorted(sums.values(), key=lambda r: (order.get(r.field, len(order)), r.key))
    if args.json:
        common.say_json({"schema": 1, "node": common.node(args), "rates": [_as_json(row, keys) for row in rows]})
        return common.OK
    _show(rows, keys)
    return common.OK


def _show(rows: list[_Rate], keys: tuple[str, ...]) -> None:
    """Counters that ever grew, with every version they were seen under: those under which they did not are the comparison."""
    out = common.console()
    grew = {row.field for row in rows if row.amount and row.field in cat.BY_NAME and cat.BY_NAME[row.field].unit in _ERRORS}
    shown = [row for row in rows if row.field in grew]
    if not rows:
        out.print("no growth of counters is known yet: it is counted from look to look of the hooks")
        return
    if not shown:
        hours = max(row.hours for row in rows)
        out.print(f"no error counter grew (the longest watched one in {hours:.1f} hours of its GPUs, links or ports)")
        return
    columns = ("counter", "of", *(k.replace("_", " ") for k in keys), "errors", "hours", "per 1000 h", "at most", "until")
    out.print(common.table("errors of GPUs, links and ports", columns, [_row(row) for row in shown]))
    out.print(f"hours: of one GPU, link or port each. at most: the highest rate still likely ({CONFIDENCE:.0%}): few hours prove little")


# Counters of what should not happen; traffic and times grow on every healthy node.
_ERRORS: Final = frozenset({"errors", "replays", "rows", "pages", "events", "symbols", "codes"})


def _row(row: _Rate) -> tuple[Any, ...]:
    facts = cat.BY_NAME[row.field]
    values = (f"{row.amount:g}", f"{row.hours:.1f}", f"{row.per_thousand_hours():.3g}", f"{row.at_most():.3g}")
    return (facts.label, facts.scope.replace("_", " "), *(k or "-" for k in row.key), *values, iso(row.last_ns))


def _as_json(row: _Rate, keys: tuple[str, ...]) -> dict[str, Any]:
    return {
        **dict(zip(keys, row.key)),
        "field": row.field,
        "amount": row.amount,
        "hours": round(row.hours, 6),
        "per_1000_hours": round(row.per_thousand_hours(), 6),
        "at_most_per_1000_hours": round(row.at_most(), 6),
        "first": iso(row.first_ns),
        "last": iso(row.last_ns),
    }
