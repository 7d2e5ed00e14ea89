"""The persistent watch: one group and its field groups in the engine, and what it has sampled.

Live reads show the present only. Load-dependent rules, and the moment at which something
happened, need the engine to sample during the job. The watch is found by name, made where
it is missing (first time, after an engine restart, after GPUs came or went), and never made
per job. It is made over a connection that persists, else it would vanish with the reader.
"""

from __future__ import annotations

import zlib
from typing import Any, Container, Final, Iterator, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import history
from slurm_nvhc.sense.dcgm import identity, live, owned, status
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.dcgm.live import GPU, Sample, Table
from slurm_nvhc.sense.values import sentinel

NAME: Final = "nvhc-watch"
# A lost GPU answers nothing, and its newest samples are blank: older samples of its name are
# how it is told which one it is.
NAMES: Final = (identity.UUID, identity.PCI)

# Our judgement: fine enough to place a throttle within a job, about 35 MB of the engine's
# memory for 8 GPUs over a day (22 fields of 2880 samples, some 70 bytes each). DCGM polls at the fastest interval that
# anybody asked for.
INTERVAL_US: Final = int(history.INTERVAL_S * 1_000_000)
KEEP_S: Final = 86_400.0
NAMES_INTERVAL_US: Final = 3_600_000_000
NAMES_KEEP_S: Final = 7 * 86_400.0
_EMPTY_GROUP: Final = 1


class Found(NamedTuple):
    """Ids of the engine's objects; values: field group of catalog.SAMPLED, xids: of field 230, names: of NAMES."""

    group: Any
    values: Any
    xids: Any
    names: Any


class _Part(NamedTuple):
    """One field group, and how its fields are sampled."""

    name: str
    ids: list[int]
    interval_us: int = INTERVAL_US
    keep_s: float = KEEP_S


def _parts(connection: Connection) -> tuple[_Part, _Part, _Part]:
    """In the order of Found. The name carries what is in it: another version's fields are another group.

    Three, so that asking for Xids or names does not fetch a day of samples.
    """
    wanted = [cat.BY_NAME[name].dcgm_id for name in cat.SAMPLED]
    ids = live.known(connection, [i for i in wanted if i is not None])
    return (
        _Part(f"{NAME}-{zlib.crc32(repr(ids).encode()):08x}", ids),
        _Part(f"{NAME}-xid", [cat.XID_FIELD_ID]),
        _Part(f"{NAME}-names", list(NAMES), NAMES_INTERVAL_US, NAMES_KEEP_S),
    )


def find(connection: Connection) -> Optional[Found]:
    """The watch, when it is whole. Raises PartFailed when the engine can not be asked."""
    groups = [group for group, _ in _groups(connection)]
    by_name = dict(_field_groups(connection))
    parts = _parts(connection)
    if len(groups) != 1 or not all(part.name in by_name for part in parts):
        return None
    values, xids, names = (by_name[part.name] for part in parts)
    return Found(groups[0], values, xids, names)


def ensure(connection: Connection) -> bool:
    """True when it had to be made. Raises PartFailed when it can not be."""
    gpus = [g for g in identity.gpu_ids(connection) if identity.gpu_status(connection, g) == "ok"]
    found = find(connection)
    if not gpus or (found is not None and _covers(connection, found, gpus)):
        return False  # with every GPU lost, what the watch remembers of them is all there is
    remove(connection)
    _make(connection, gpus)
    return True


def remove(connection: Connection) -> bool:
    """Take away everything of ours, of other versions too. True when there was something. Raises PartFailed."""
    groups = [group for group, _ in _groups(connection)]
    fields = [number for _, number in _field_groups(connection)]
    return owned.take_away(connection, groups, fields, "removing the watch")


def samples(
    connection: Connection, group: Any, fields: Any, since_us: int, wanted: Optional[Container[int]] = None
) -> list[tuple[int, int, Sample]]:
    """(DCGM GPU id, field id, sample) of every value since a moment (µs), oldest first per GPU and field.

    wanted: field ids; others of the field group are passed over (a day of 8 GPUs is 700,000 values). Raises PartFailed.
    """
    agent = connection.bindings.agent
    out: list[tuple[int, int, Sample]] = []

    def take(kind: int, number: int, values: Any, count: int, _user: Any) -> int:
        if kind == GPU:
            for value in values[:count]:
                if wanted is None or int(value.fieldId) in wanted:
                    out.append((number, int(value.fieldId), live.sample(value)))
        return 0

    try:
        agent.dcgmGetValuesSince_v2(connection.handle, group, fields, since_us, agent.dcgmFieldValueEntityEnumeration_f(take), None)
    except Exception as exc:
        if status.code(exc) == status.NO_DATA:
            return []
        raise status.failed(exc, "the history of the watch") from exc
    return out


def remembered(connection: Connection) -> Table:
    """The newest UUID and PCI address that the watch has of each GPU; empty without a watch. Raises PartFailed."""
    table = Table()
    found = find(connection)
    if found is not None:
        for gpu, field, sample in samples(connection, found.group, found.names, 0):
            if isinstance(sample.reading, str) and sentinel(sample.reading) is None:
                table[(GPU, gpu, field)] = sample
    return table


def _groups(connection: Connection) -> Iterator[tuple[Any, list[int]]]:
    """(group, its GPUs) of every group of our name."""
    for number, info in owned.groups(connection, NAME.__eq__):
        members = info.entityList[: int(info.count)]
        yield number, [int(m.entityId) for m in members if int(m.entityGroupId) == GPU]


def _field_groups(connection: Connection) -> Iterator[tuple[str, Any]]:
    return owned.field_groups(connection, f"{NAME}-")


def _covers(connection: Connection, found: Found, gpus: Sequence[int]) -> bool:
    """Does it watch exactly these GPUs, and does the engine know of it?"""
    members = next((m for group, m in _groups(connection) if group == found.group), [])
    if not set(gpus) <= set(members):
        return False
    ids = [part.ids[0] for part in _parts(connection)]
    table = live.read(connection, [(GPU, gpus[0])], [ids], live.CACHED)
    return all(sample.status != status.NOT_WATCHED for sample in table.values())


def _make(connection: Connection, gpus: Sequence[int]) -> None:
    agent = connection.bindings.agent
    handle = connection.handle
    try:
        group = agent.dcgmGroupCreate(handle, _EMPTY_GROUP, NAME.encode())
        for gpu in gpus:
            agent.dcgmGroupAddEntity(handle, group, GPU, gpu)
        for part in _parts(connection):
            fields = agent.dcgmFieldGroupCreate(handle, part.ids, part.name.encode())
            agent.dcgmWatchFields(handle, group, fields, part.interval_us, part.keep_s, 0)
        # Watched but not yet sampled reads as blank: have the first sample now.
        agent.dcgmUpdateAllFields(handle, 1)
    except Exception as exc:
        trouble = status.failed(exc, "making the watch")
        if status.code(exc) not in status.HOPELESS:
            remove(connection)
        raise trouble from exc
