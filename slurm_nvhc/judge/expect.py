"""What is expected of this node's parts: what was learned of it, and of a new card what its siblings agree on.

Pure; nothing learned is no expectation, and a condition on it then has no answer. What the policy
says (``expect``) outranks what was learned: rules.py asks it first.
"""

from __future__ import annotations

from typing import Iterable, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import figures
from slurm_nvhc.judge.context import Input
from slurm_nvhc.model import entity
from slurm_nvhc.model.reading import NoData, Reading, number
from slurm_nvhc.policy.compiled import Level


class Expected(NamedTuple):
    """of_siblings: the GPU is new here, and this is what the others of its model have."""

    value: Reading
    of_siblings: bool = False


Table = Mapping[str, Mapping[str, Expected]]  # entity -> field -> what is expected


def table(inp: Input) -> Table:
    """What is expected of each entity. A GPU of which nothing was learned (a swapped card) is measured by its siblings."""
    out = {name: {field: Expected(value) for field, value in readings.items()} for name, readings in inp.learned.items()}
    for uuid, gpu in inp.gpus().items():
        if uuid not in inp.learned:
            for name, field, value in _agreed(inp, uuid, gpu.identity.model):
                out.setdefault(name, {})[field] = Expected(value, of_siblings=True)
    return out


def _agreed(inp: Input, uuid: str, model: str) -> Iterable[tuple[str, str, Reading]]:
    """(entity of the new GPU, field, value) for what all learned GPUs of its model agree on."""
    siblings = {row.uuid for row in inp.known if model and row.model == model and row.uuid != uuid} & set(inp.learned)
    seen: dict[tuple[str, str], set[Reading]] = {}
    for name, readings in inp.learned.items():
        sibling = entity.gpu_of(name)
        if sibling in siblings:
            for field, value in readings.items():
                seen.setdefault((name.removeprefix(sibling), field), set()).add(value)
    for (part, field), values in seen.items():
        if len(values) == 1:
            yield uuid + part, field, values.pop()


def asks(level: Level) -> bool:
    return level.below_learned or level.not_as_learned


def answers(level: Level, reading: Optional[Reading], expected: Optional[Expected]) -> list[Optional[bool]]:
    """Answers to the level's questions about what was learned; none when it asks none. None: no data on one side."""
    out: list[Optional[bool]] = []
    known = reading is not None and not isinstance(reading, NoData) and expected is not None
    if level.not_as_learned:
        out.append(reading != expected.value if known and expected is not None else None)
    if level.below_learned:
        now, normal = number(reading), number(expected.value) if expected is not None else None
        out.append(None if now is None or normal is None else now < normal)
    return out


def describe(place: str, field: str, reading: Optional[Reading], expected: Expected) -> str:
    """'driver: 575.57 (learned 570.86)', 'link11 link state: down (its siblings have up)'."""
    facts = cat.BY_NAME[field]
    _, link = entity.split_link(place)
    where = f"link{link} " if link is not None else ""
    normal = figures.value(expected.value, facts)
    return f"{where}{facts.label}: {figures.value(reading, facts)} ({'its siblings have' if expected.of_siblings else 'learned'} {normal})"
