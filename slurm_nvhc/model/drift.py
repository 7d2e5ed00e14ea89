"""What this node shows beside what is normal for it, and what changes when an administrator takes it for normal. Pure."""

from __future__ import annotations

from typing import Collection, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity, learned
from slurm_nvhc.model.learned import Normal
from slurm_nvhc.model.reading import NoData, Reading, number
from slurm_nvhc.model.snapshot import Snapshot

# Row.state
SAME: Final = "same"
DIFFERS: Final = "differs"
OUT_OF_USE: Final = "not in use"  # a link or port that is down, with everything it showed while it was up
GONE: Final = "gone"  # the part is not seen any more
UNKNOWN: Final = "no data"
NEW: Final = "not learned"  # it could be normal, and nothing says so yet

DIFFERENCES: Final = (DIFFERS, OUT_OF_USE, GONE)


class Row(NamedTuple):
    """One reading. normal: None where nothing is known; now: None where the part is not seen."""

    entity: str
    field: str
    state: str
    normal: Optional[Normal]
    now: Optional[Reading]


class Acceptance(NamedTuple):
    """What accepting comes to. readings: normal from now on; gone: (entity, field) of which nothing is expected any more.

    left: differences that are only taken for normal when their part is named.
    """

    readings: dict[str, dict[str, Reading]]
    gone: tuple[tuple[str, str], ...]
    left: tuple[Row, ...]


def rows(normals: Mapping[str, Mapping[str, Normal]], snapshot: Snapshot) -> list[Row]:
    """Everything that is normal or could be, in the order of the snapshot; what is not seen any more comes last."""
    shown = dict(learned.places(snapshot))
    out: list[Row] = []
    for place in dict.fromkeys((*shown, *normals)):
        known, now = normals.get(place, {}), shown.get(place)
        in_use = learned.teaches(now) if now is not None else {}
        for field in dict.fromkeys((*in_use, *known)):
            normal, value = known.get(field), None if now is None else now.get(field)
            out.append(Row(place, field, _state(normal, value, now, field in in_use, _answered(place, snapshot)), normal, value))
    return out


def _state(normal: Optional[Normal], value: Optional[Reading], now: Optional[Mapping[str, Reading]], in_use: bool, answered: bool) -> str:
    if normal is None:
        return NEW
    if now is None:
        return GONE if answered else UNKNOWN
    if value is None or isinstance(value, NoData):
        return UNKNOWN
    if not in_use:
        return OUT_OF_USE
    return SAME if value == normal.value else DIFFERS


def _answered(place: str, snapshot: Snapshot) -> bool:
    """Did whoever tells of such parts tell anything? Otherwise a part that is not seen is unknown, not gone."""
    if entity.scope(place) in (cat.RDMA, cat.NODE):
        return entity.NODE in snapshot.parts
    return bool(snapshot.gpus)


def fell(row: Row) -> bool:
    """Is it a gauge (lanes, generation, watts, memory, rate) that is lower than normal? No upgrade does that; hardware does."""
    if row.state != DIFFERS or row.normal is None or cat.BY_NAME[row.field].kind != cat.GAUGE:
        return False
    now, normal = number(row.now), number(row.normal.value)
    return now is not None and normal is not None and now < normal


def none_left(found: Collection[Row]) -> bool:
    """Of these rows' parts, is none of those that are known seen any more? They were renamed then, or their driver is not loaded."""
    known = [row for row in found if row.normal is not None]
    return bool(known) and all(row.state == GONE for row in known)


def covers(name: str, place: str) -> bool:
    """Is ``place`` what ``name`` names, or part of it (a GPU's link, a switch's port), or of its kind ("rdma")?"""
    return place == name or place.startswith((f"{name}/", f"{name}:"))


def accept(found: Collection[Row], name: str, field: str = "", convicted: Collection[tuple[str, str]] = ()) -> Acceptance:
    """Take what is shown for normal: of ``name`` and its parts, or with '' of the whole node; of one field or of all.

    For the whole node only configuration is taken: a link that is dead on one of a thousand nodes, or a riser
    that lost lanes, must not become normal by the word that follows an upgrade of all. What is down, gone or
    less than it was has to be named, and so has what a rule is against now (``convicted``: (entity, field)).
    """
    rdma_is_gone = none_left([row for row in found if entity.scope(row.entity) == cat.RDMA])
    readings: dict[str, dict[str, Reading]] = {}
    gone: list[tuple[str, str]] = []
    left: list[Row] = []
    for row in found:
        if (name and not covers(name, row.entity)) or (field and field != row.field):
            continue
        kept_back = fell(row) or (row.entity, row.field) in convicted or (rdma_is_gone and entity.scope(row.entity) == cat.RDMA)
        if not name and kept_back and row.state in (DIFFERS, NEW):
            left.append(row)
        elif row.state in (DIFFERS, NEW) and row.now is not None:
            readings.setdefault(row.entity, {})[row.field] = row.now
        elif row.state in (OUT_OF_USE, GONE):
            if name:
                gone.append((row.entity, row.field))
            else:
                left.append(row)
    return Acceptance(readings, tuple(gone), tuple(left))
