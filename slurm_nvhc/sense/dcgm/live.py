"""Live readings: straight from the driver, by numeric field id, without any watch or group.

One call takes all entities and all fields. Its values come back in any order (fields that
NVML answers in bulk come last), so each is known by its entity and id. One bad id or
entity can fail a whole call: then the halves are asked, down to the one at fault.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.dcgm import status
from slurm_nvhc.sense.dcgm.connection import Connection

# DCGM's numbers for kinds of entities.
GPU: Final = 1
SWITCH: Final = 3
LINK: Final = 6
LIVE_DATA: Final = 1
CACHED: Final = 0

# The engine takes at most 128 fields in one call (DCGM_MAX_FIELD_IDS_PER_FIELD_GROUP).
MAX_FIELDS: Final = 120
# Halving one bad id out of 120 takes about 15 calls; a reading with more failures than
# this is not worth the engine's time.
MAX_CALLS: Final = 120
# Events and profiling metrics: one of them fails the whole live call (observed on 4.6.0).
_PROFILING: Final = range(1001, 1100)
NEVER_LIVE: Final = frozenset({cat.XID_FIELD_ID, 450})

_STRING_SIZE: Final = 256
_I64, _F64, _STR, _TIME = ord("i"), ord("d"), ord("s"), ord("t")

Entity = tuple[int, int]  # kind, id


class Sample(NamedTuple):
    """at_us: when it was taken, µs since 1970; 0 when it never was."""

    reading: Reading
    at_us: int
    status: int


class Table(dict[tuple[int, int, int], Sample]):
    """(entity kind, entity id, field id) -> sample. unknown: ids that were not asked for, see known()."""

    unknown: frozenset[int] = frozenset()

    def reading(self, entity: Entity, field_id: int) -> Reading:
        if field_id in self.unknown:
            return NoData(rd.NOT_SUPPORTED, "unknown to this version of DCGM")
        sample = self.get((*entity, field_id))
        return NoData(rd.BLANK, "the engine gave no value") if sample is None else sample.reading


def known(connection: Connection, ids: Iterable[int]) -> list[int]:
    """Those ids that this DCGM's library knows and that may be asked for live, each once.

    Asking for an unknown id is an error of the whole call in some versions.
    """
    ask = connection.bindings.fields.DcgmFieldGetById
    return [i for i in dict.fromkeys(ids) if i not in NEVER_LIVE and i not in _PROFILING and ask(i) is not None]


class Budget:
    """How many calls a reading may still make; shared by the parts that belong to one."""

    def __init__(self) -> None:
        self.left = MAX_CALLS


def read(
    connection: Connection,
    entities: Sequence[Entity],
    families: Iterable[Sequence[int]],
    flags: int = LIVE_DATA,
    budget: Optional[Budget] = None,
) -> Table:
    """Every id of every family for every entity; what fails alone is no data with the status as its reason.

    families: ids that may be asked together. Raises PartFailed when the engine itself is in trouble.
    """
    table = Table()
    if entities:
        calls = _Calls(connection, flags, table, budget or Budget())
        for family in families:
            for start in range(0, len(family), MAX_FIELDS):
                calls.ask(entities, family[start : start + MAX_FIELDS])
    return table


class _Calls:
    """Calls for one table."""

    def __init__(self, connection: Connection, flags: int, table: Table, budget: Budget) -> None:
        self._connection = connection
        self._flags = flags
        self._table = table
        self._budget = budget

    def ask(self, entities: Sequence[Entity], ids: Sequence[int]) -> None:
        if not ids:
            return
        self._budget.left -= 1
        if self._budget.left < 0:
            self._drop(entities, ids, NoData(rd.ERROR, "too many failed calls"))
            return
        connection = self._connection
        pair = connection.bindings.structs.c_dcgmGroupEntityPair_t
        try:
            values = connection.bindings.agent.dcgmEntitiesGetLatestValues(
                connection.handle, [pair(kind, number) for kind, number in entities], list(ids), self._flags
            )
        except Exception as exc:
            number = status.code(exc)
            if not number or number in status.HOPELESS:
                raise status.failed(exc, "reading the GPUs") from exc
            # Fields first: an unsupported field is far more common than a GPU that fails calls.
            if len(ids) > 1:
                half = len(ids) // 2
                self.ask(entities, ids[:half])
                self.ask(entities, ids[half:])
            elif len(entities) > 1:
                half = len(entities) // 2
                self.ask(entities[:half], ids)
                self.ask(entities[half:], ids)
            else:
                self._drop(entities, ids, status.no_data(number), number)
            return
        for value in values:
            self._table[(int(value.entityGroupId), int(value.entityId), int(value.fieldId))] = sample(value)

    def _drop(self, entities: Sequence[Entity], ids: Sequence[int], why: NoData, number: int = status.GENERIC) -> None:
        for kind, entity in entities:
            for field in ids:
                self._table[(kind, entity, field)] = Sample(why, 0, number)


def sample(value: Any) -> Sample:
    """A c_dcgmFieldValue of either version. Blanks stay the constants that they are: they end in the reader's serve."""
    number = int(value.status)
    if number:
        return Sample(status.no_data(number), int(value.ts), number)
    kind = int(value.fieldType)
    if kind in (_I64, _TIME):
        reading: Reading = int(value.value.i64)
    elif kind == _F64:
        reading = float(value.value.dbl)
    elif kind == _STR:
        # Not through the attribute: the bindings decode it strictly, and a serial may be anything.
        reading = ctypes.string_at(ctypes.addressof(value.value), _STRING_SIZE).split(b"\0")[0].decode("utf-8", "replace")
    else:
        reading = NoData(rd.ERROR, f"a value of the type {kind}")
    return Sample(reading, int(value.ts), 0)


def newest_us(table: Mapping[tuple[int, int, int], Sample]) -> int:
    """The time of the newest sample that holds a value; 0 when none does."""
    return max((s.at_us for s in table.values() if not s.status), default=0)
