"""What is normal on this node: learned once of a healthy look, or accepted by an administrator.

Kept by record/ with the protective state: losing it would take whatever the node shows next for its normal.
"""

from __future__ import annotations

from typing import Callable, Collection, Final, Iterator, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Snapshot

ITSELF: Final = "nvhc"  # Lesson.who of what no administrator accepted

Table = Mapping[str, Mapping[str, Reading]]  # entity -> field -> reading
_Keep = Callable[[str, str], bool]  # (entity, field)


class Lesson(NamedTuple):
    """What was taken as normal at one moment: entity -> field -> reading, never no data.

    who: ITSELF, or the administrator who accepted it.
    """

    at_ns: int
    who: str
    readings: Table


class Normal(NamedTuple):
    """One reading that is normal here, since when and by whom."""

    value: Reading
    at_ns: int
    who: str


def normals(lessons: Collection[Lesson]) -> dict[str, dict[str, Normal]]:
    """entity -> field -> what is normal. A later lesson wins."""
    out: dict[str, dict[str, Normal]] = {}
    for lesson in lessons:
        for name, readings in lesson.readings.items():
            out.setdefault(name, {}).update({field: Normal(value, lesson.at_ns, lesson.who) for field, value in readings.items()})
    return out


def table(lessons: Collection[Lesson]) -> dict[str, dict[str, Reading]]:
    """entity -> field -> the reading that is normal."""
    out: dict[str, dict[str, Reading]] = {}
    for lesson in lessons:
        for name, readings in lesson.readings.items():
            out.setdefault(name, {}).update(readings)
    return out


def learn(lessons: tuple[Lesson, ...], new: Lesson) -> tuple[Lesson, ...]:
    """With ``new``, which replaces what earlier lessons say about the same field of the same entity."""
    if not any(new.readings.values()):
        return lessons
    said = {(name, field) for name, readings in new.readings.items() for field in readings}
    return (*unlearn(lessons, said), new)


def unlearn(lessons: tuple[Lesson, ...], pairs: Collection[tuple[str, str]]) -> tuple[Lesson, ...]:
    """Without what is known about these (entity, field)."""
    return _kept(lessons, lambda name, field: (name, field) not in pairs)


def unlearn_gpus(lessons: tuple[Lesson, ...], uuids: Collection[str]) -> tuple[Lesson, ...]:
    """Without everything about these GPUs and their links: they left the node."""
    return _kept(lessons, lambda name, _field: entity.gpu_of(name) not in uuids) if uuids else lessons


def _kept(lessons: tuple[Lesson, ...], keep: _Keep) -> tuple[Lesson, ...]:
    out = []
    for lesson in lessons:
        readings = {n: {f: v for f, v in fields.items() if keep(n, f)} for n, fields in lesson.readings.items()}
        left = {name: fields for name, fields in readings.items() if fields}
        if left:
            out.append(lesson._replace(readings=left))
    return tuple(out)


def teaches(readings: Mapping[str, Reading]) -> dict[str, Reading]:
    """Of one entity's readings those that can be its normal: configuration, and states in which it is in use.

    A part that is not in use (a link that is down, a port without a cable) teaches nothing at all: what else
    it shows, such as its rate, is no normal of a working one.
    """
    out: dict[str, Reading] = {}
    for name, value in readings.items():
        facts: Optional[cat.Field] = cat.BY_NAME.get(name)
        if facts is None or facts.learned is None or isinstance(value, NoData):
            continue
        if facts.learned and value not in facts.learned:
            return {}
        out[name] = value
    return out


def places(snapshot: Snapshot) -> Iterator[tuple[str, Mapping[str, Reading]]]:
    """(entity, readings) of everything in a snapshot."""
    for uuid, gpu in (snapshot.gpus or {}).items():
        yield uuid, gpu.readings
        for link, readings in gpu.links.items():
            yield entity.link(uuid, link), readings
    yield from snapshot.parts.items()
