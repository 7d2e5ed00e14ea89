"""`nvhc baseline show|accept`: what is normal on this node, and taking what it shows now for normal."""

from __future__ import annotations

import argparse
import time
from typing import Any, Mapping, Optional, Sequence

from rich.console import Console

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import figures
from slurm_nvhc.cli import baseline_left, common
from slurm_nvhc.cli.baseline_left import change, place_name, shown_now
from slurm_nvhc.cli.explain import find_gpu
from slurm_nvhc.context import prepare
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.judge import HEALTH_CHECK
from slurm_nvhc.judge.memory import forget_links
from slurm_nvhc.model import drift, entity, learned
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.drift import Row
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.reading import to_json
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.model.times import duration, iso
from slurm_nvhc.observation import judge_snapshots, read_now
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.record.ledger import Ledger


def show(args: argparse.Namespace) -> int:
    """What is normal beside what is shown now. 1 where they differ, 3 where nothing can be compared, or no GPU."""
    policy, snapshot, _ = _read(args)
    with common.open_ledger(args) as ledger:
        rows, gpus = _rows(ledger, snapshot), ledger.known_gpus()
        last = ledger.last_run(HEALTH_CHECK)
    differing = [row for row in rows if row.state in drift.DIFFERENCES]
    compared = any(row.state in (drift.SAME, *drift.DIFFERENCES) for row in rows)
    # An engine that does not answer leaves the GPUs without data: that is not "nothing differs".
    blind = snapshot.gpus is None or not compared
    code = common.FOUND if differing else common.TROUBLE if blind else common.OK
    if args.json:
        common.say_json({"schema": 1, "node": common.node(args), "learn": policy.learn.enabled, "rows": [_as_json(r) for r in rows]})
        return code
    out, names = common.console(), _names(gpus)
    if not any(row.normal for row in rows):
        seen = f"; the last one was {last.verdict}" if last is not None else "; none has run yet"
        late = f"from {duration(policy.learn.settle_s)} after boot"
        when = f"health checks, {late}, learn what they find nothing wrong with{seen}" if policy.learn.enabled else "learn.enabled is false"
        out.print(f"nothing is learned yet: {when}. `nvhc baseline accept --all` takes what the node shows now")
        return code
    _table(out, "as learned", [row for row in rows if row.normal and row.state == drift.SAME], names)
    _table(out, "no data now", [row for row in rows if row.state == drift.UNKNOWN], names)
    _table(out, "different", differing, names)
    if not differing:
        out.print("nothing can be compared now" if not compared else "the GPUs can not be read now" if blind else "nothing differs")
    return code


def accept(args: argparse.Namespace) -> int:
    """Take what the node shows now for normal. 1 when differences are left that have to be named."""
    if args.entity and args.all:
        raise InputError("baseline accept", "", f"{args.entity} and --all are two things", "--all is the whole node: give one of them")
    if not args.entity and not args.all:
        raise InputError("baseline accept", "", "say what is to be accepted", "a GPU, link, port, switch or node, or --all")
    if args.field and (args.field not in cat.BY_NAME or cat.BY_NAME[args.field].learned is None):
        known = ", ".join(f.name for f in cat.ALL if f.learned is not None)
        raise InputError("--field", "", f"{args.field} is nothing that is learned", f"known: {known}")
    policy, snapshot, convicted = _read(args)
    if snapshot.gpus is None:
        raise MonitorError("baseline accept", "", "the GPUs can not be read now", "`nvhc check` says why")
    with common.open_ledger(args) as ledger:
        gpus, rows = ledger.known_gpus(), _rows(ledger, snapshot)
        name = _entity(args.entity, gpus, rows) if args.entity else ""
        accepted = drift.accept(rows, name, args.field, convicted)
        ledger.accept(Lesson(snapshot.wall_ns, common.user(), accepted.readings), accepted.gone)
        _forget_links(ledger, accepted.gone)
    taken = [r for r in rows if r.field in accepted.readings.get(r.entity, {}) or (r.entity, r.field) in accepted.gone]
    code = common.FOUND if accepted.left else common.OK
    if args.json:
        common.say_json({"schema": 1, "accepted": [_as_json(r) for r in taken], "left": [_as_json(r) for r in accepted.left]})
        return code
    names = _names(gpus)
    for row in taken:
        if row.state != drift.NEW:
            print(f"{place_name(row.entity, names)}  {change(row)}")
    new = sum(row.state == drift.NEW for row in taken)
    if new:
        print(f"{new} readings that were not learned yet")
    if not taken:
        print("nothing to accept: nothing differs" if not accepted.left else "nothing else differs")
    for line in baseline_left.lines(accepted.left, rows, snapshot, names):
        print(line)
    _warn_of_policy(policy, snapshot, accepted.gone)
    return code


def _read(args: argparse.Namespace) -> tuple[Policy, Snapshot, set[tuple[str, str]]]:
    """The policy in force, the node as it is now, and which readings (entity, field) rules are against now.

    Rules against what was learned do not count: whether that is to change is the question.
    """
    common.open_ledger(args).close()  # before the engine is asked: a node without a ledger has nothing to compare
    environment = {"SLURMD_NODENAME": common.node(args)}
    context = prepare(HEALTH_CHECK, common.site(args), environment, time.monotonic(), "node", keep=False)
    try:
        snapshot = read_now(context)
        findings = judge_snapshots(context, None, snapshot).judgement.findings
    finally:
        context.book.close()
    against = (f for f in findings if f.verdict in (fd.WARN, fd.FAIL) and not f.evidence.learned)
    return context.policy, snapshot, {(f.entity, f.evidence.field) for f in against}


def _rows(ledger: Ledger, snapshot: Snapshot) -> list[Row]:
    return drift.rows(learned.normals(ledger.protective().learned), snapshot)


def _entity(what: str, gpus: Sequence[GpuIdentity], rows: Sequence[Row]) -> str:
    """'gpu3', 'gpu3/link11', a UUID, a PCI address, or an entity's own name. InputError for what is not here."""
    head, link = entity.split_link(what)
    identity = find_gpu(head, gpus)
    name = what if identity is None else identity.uuid if link is None else entity.link(identity.uuid, link)
    if not any(drift.covers(name, row.entity) for row in rows):
        parts = dict.fromkeys(row.entity for row in rows if not entity.gpu_of(row.entity))
        known = [*(_names(gpus).values()), *parts]
        raise InputError(what, "", "is nothing that this node has", f"known: {', '.join(known[:20])}")
    uuid = entity.gpu_of(name)
    if uuid and all(row.state == drift.GONE for row in rows if entity.gpu_of(row.entity) == uuid):
        raise InputError(what, "", "is gone, so there is nothing to accept", "taken out on purpose: `nvhc gpu forget`")
    return name


def _forget_links(ledger: Ledger, gone: Sequence[tuple[str, str]]) -> None:
    """A link that is accepted as down is not missed for having been up once."""
    places = [entity.split_link(place) for place, field in gone if field == "nvlink_state"]
    links = [(uuid, link) for uuid, link in places if link is not None]
    if links:
        ledger.fold_memory(lambda memory, look: (None, forget_links(memory, links), look))


def _warn_of_policy(policy: Policy, snapshot: Snapshot, gone: Sequence[tuple[str, str]]) -> None:
    """What the policy expects outranks what is accepted."""
    for uuid in dict.fromkeys(entity.gpu_of(place) for place, field in gone if field == "nvlink_state"):
        gpu = (snapshot.gpus or {}).get(uuid)
        expected = policy.for_model(gpu.identity.model).expect.links if gpu is not None else None
        if expected is not None and gpu is not None:
            print(f"note: the policy expects {expected} links of {gpu.identity.model} (expect.links): rules for links go by that")


def _names(gpus: Sequence[GpuIdentity]) -> dict[str, str]:
    """uuid -> 'gpu3'; GPUs without a number go by their UUID."""
    return {g.uuid: f"gpu{g.nvml_index}" if g.nvml_index is not None else g.uuid for g in gpus}


def _table(out: Console, title: str, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    """Parts that say the same are one line: 144 links that are up as learned are no news."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        facts = cat.BY_NAME[row.field]
        normal = row.normal
        key = (
            facts.label,
            figures.value(normal.value, facts) if normal is not None else "-",
            "gone" if row.state == drift.GONE else shown_now(row, facts),
            f"{normal.who} {iso(normal.at_ns)}" if normal is not None else "-",
            facts.scope,
        )
        groups.setdefault(key, []).append(place_name(row.entity, names))
    if groups:
        lines = [(_some(places), label, normal, now, since) for (label, normal, now, since, _), places in groups.items()]
        out.print(common.table(title, ("where", "reading", "normal", "now", "learned or accepted by"), lines))


def _some(places: Sequence[str], most: int = 2) -> str:
    if len(places) <= most:
        return " ".join(places)
    return f"{places[0]} … {places[-1]} ({len(places)})"


def _as_json(row: Row) -> dict[str, Any]:
    normal: Optional[learned.Normal] = row.normal
    return {
        "entity": row.entity,
        "field": row.field,
        "state": row.state,
        "normal": None if normal is None else normal.value,
        "now": None if row.now is None else to_json(row.now),
        "since": None if normal is None else iso(normal.at_ns),
        "who": None if normal is None else normal.who,
    }
