"""What `nvhc baseline accept --all` leaves, in few lines: a lost GPU is one line, and so are the links of one GPU."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import figures
from slurm_nvhc.model import drift, entity
from slurm_nvhc.model.drift import Row
from slurm_nvhc.model.snapshot import OK, Snapshot


def lines(left: Sequence[Row], found: Sequence[Row], snapshot: Snapshot, names: Mapping[str, str]) -> Iterator[str]:
    """One line each for a GPU that is gone, a part that is gone with all it had, all RDMA ports that are gone at
    once, and parts of one whole of which the same is to be said. found: all rows, those that were accepted too."""
    answering = {uuid for uuid, gpu in (snapshot.gpus or {}).items() if gpu.status == OK}
    rdma_is_gone = drift.none_left([row for row in found if entity.scope(row.entity) == cat.RDMA])
    groups: dict[tuple[Any, ...], list[Row]] = {}
    down = {row.entity for row in left if row.state == drift.OUT_OF_USE and cat.BY_NAME[row.field].learned}
    for row in left:
        if row.state == drift.OUT_OF_USE and row.entity in down and not cat.BY_NAME[row.field].learned:
            continue  # the rate of a port that is down: its state says it
        uuid = entity.gpu_of(row.entity)
        if uuid and uuid not in answering:
            key: tuple[Any, ...] = ("lost", uuid)
        elif rdma_is_gone and entity.scope(row.entity) == cat.RDMA:
            key = ("rdma",)
        elif row.state == drift.GONE and entity.whole(row.entity) not in snapshot.parts and not uuid:
            key = ("gone", entity.whole(row.entity))
        else:
            key = ("same", entity.whole(row.entity), row.field, change(row))
        groups.setdefault(key, []).append(row)
    for key, rows in groups.items():
        yield f"left: {_line(key, rows, names)}"


def _line(key: tuple[Any, ...], rows: Sequence[Row], names: Mapping[str, str]) -> str:
    places = list(dict.fromkeys(row.entity for row in rows))
    if key[0] == "lost":
        name = place_name(key[1], names)
        return f"{name} does not answer. Taken out on purpose: `nvhc gpu forget {name}`"
    if key[0] == "rdma":
        gone = len({row.entity for row in rows if row.state == drift.GONE})
        return f"none of {gone} RDMA ports is listed any more. Renamed or taken out: `nvhc baseline accept rdma` takes that for normal"
    if key[0] == "gone":
        return f"{key[1]}{_many(p for p in places if p != key[1])} is gone. `nvhc baseline accept {key[1]}` takes that for normal"
    if len(places) == 1:
        name = place_name(places[0], names)
        return f"{name}  {key[3]}. `nvhc baseline accept {name}` takes that for normal"
    name = place_name(key[1], names)
    return f"{name}{_many(places)}  {key[3]}. `nvhc baseline accept {name} --field {key[2]}` takes that for normal"


def _many(parts: Iterable[str]) -> str:
    """ " (40 ports)", '' for none."""
    parts = list(parts)
    kind = "link" if parts and entity.gpu_of(parts[0]) else "port"
    return f" ({len(parts)} {kind}{'s' if len(parts) > 1 else ''})" if parts else ""


def place_name(place: str, names: Mapping[str, str]) -> str:
    """An entity with its GPU's name in the place of the UUID: gpu3/link11."""
    uuid = entity.gpu_of(place)
    return names.get(uuid, uuid) + place.removeprefix(uuid) if uuid else place


def change(row: Row) -> str:
    """ "PCIe width possible: 16 lanes -> 8 lanes" """
    facts = cat.BY_NAME[row.field]
    was = figures.value(row.normal.value, facts) if row.normal is not None else "-"
    if row.state == drift.GONE:
        return f"{facts.label}: {was} -> gone"
    down = " (not in use)" if row.state == drift.OUT_OF_USE else ""
    return f"{facts.label}: {was} -> {shown_now(row, facts)}{down}"


def shown_now(row: Row, facts: cat.Field) -> str:
    return "-" if row.now is None else figures.value(row.now, facts)
