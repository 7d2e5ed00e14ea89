"""A watch of the switches, for engines that do not read them live (see switches.py): only what is watched is fetched.

Like the watch of the GPUs it is found by name, made over a connection that persists, and never made
per job. It keeps minutes only: the newest values are all that is asked of it.
"""

from __future__ import annotations

from typing import Final, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.sense.dcgm import live, owned, status, switches
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.dcgm.live import LINK, SWITCH, Entity
from slurm_nvhc.sense.dcgm.watch import INTERVAL_US

NAME: Final = "nvhc-switches"
KEEP_S: Final = 300.0
_EMPTY_GROUP: Final = 1


def ensure(connection: Connection, version: str) -> bool:
    """True when it had to be made: there are switches, they are not read live, and nobody watches them all.

    Raises PartFailed.
    """
    ids = switches.switch_ids(connection) if switches.speaks_of_switches(version) else []
    if not ids or switches.how(connection, ids[0]) == live.LIVE_DATA:
        return False
    ports = [(LINK, switches.port_id(s, n)) for s, numbers in switches.port_numbers(connection).items() for n in numbers]
    of_switches = live.known(connection, [*switches.PCI, *(f.dcgm_id for f in cat.ALL if f.scope == cat.SWITCH and f.dcgm_id)])
    of_ports = live.known(
        connection, [*switches.REMOTE, switches.REMOTE_LINK, *(f.dcgm_id for f in cat.ALL if f.scope == cat.SWITCH_PORT and f.dcgm_id)]
    )
    if _watched(connection, [(SWITCH, i) for i in ids], of_switches) and _watched(connection, ports, of_ports):
        return False
    remove(connection)
    try:
        _make(connection, [(SWITCH, i) for i in ids], of_switches, "switches")
        _make(connection, ports, of_ports, "ports")
        connection.bindings.agent.dcgmUpdateAllFields(connection.handle, 1)  # the first values now
    except Exception as exc:
        trouble = status.failed(exc, "watching the switches")
        if status.code(exc) not in status.HOPELESS:
            remove(connection)
        raise trouble from exc
    return True


def remove(connection: Connection) -> bool:
    """Take away everything of this watch. True when there was something. Raises PartFailed."""
    groups = [group for group, _ in owned.groups(connection, lambda name: name.startswith(f"{NAME}-"))]
    fields = [number for _, number in owned.field_groups(connection, f"{NAME}-")]
    return owned.take_away(connection, groups, fields, "removing the watch of the switches")


def _watched(connection: Connection, places: Sequence[Entity], ids: Sequence[int]) -> bool:
    """By one field: all of them are watched together."""
    for start in range(0, len(places), switches.MAX_ENTITIES):
        table = live.read(connection, places[start : start + switches.MAX_ENTITIES], [ids[:1]], live.CACHED)
        if any(sample.status == status.NOT_WATCHED for sample in table.values()):
            return False
    return True


def _make(connection: Connection, places: Sequence[Entity], ids: Sequence[int], what: str) -> None:
    """Raises DCGM's errors."""
    agent, handle = connection.bindings.agent, connection.handle
    if not places or not ids:
        return
    fields = agent.dcgmFieldGroupCreate(handle, list(ids), f"{NAME}-{what}".encode())
    for start in range(0, len(places), switches.MAX_ENTITIES):
        group = agent.dcgmGroupCreate(handle, _EMPTY_GROUP, f"{NAME}-{what}-{start}".encode())
        for kind, number in places[start : start + switches.MAX_ENTITIES]:
            agent.dcgmGroupAddEntity(handle, group, kind, number)
        agent.dcgmWatchFields(handle, group, fields, INTERVAL_US, KEEP_S, 0)
