"""DCGM's own health check, as a second opinion.

It judges cached samples of the last 60 s only, so it is set once on the persistent watch
group and asked later; a check right after setting sees levels but no increase.
"""

from __future__ import annotations

from typing import Any, Final, Mapping, Optional

from slurm_nvhc.model import entity
from slurm_nvhc.model.history import FAIL, WARN, Incident
from slurm_nvhc.sense.dcgm import live, status, watch
from slurm_nvhc.sense.dcgm.connection import Connection

# Systems that a release implements at all; PMU, MCU and SM never were. Older releases
# refuse bits that they do not know, so the newest are left out.
WANTED: Final = 0x1 | 0x2 | 0x10 | 0x40 | 0x80 | 0x100 | 0x200
_SYSTEMS: Final[Mapping[int, str]] = {
    0x1: "pcie",
    0x2: "nvlink",
    0x10: "memory",
    0x40: "inforom",
    0x80: "thermal",
    0x100: "power",
    0x200: "driver",
    0x400: "nvswitch",
    0x800: "nvswitch",
    0x1000: "connectx",
    0xFFFFFFFF: "all",  # an Xid that is fatal whatever is watched
}
_RESULTS: Final[Mapping[int, str]] = {10: WARN, 20: FAIL}
INTERVAL_US: Final = 30_000_000  # DCGM's own default, and the least for half of its systems
KEEP_S: Final = 600.0
MAX_INCIDENTS: Final = 200


def check(connection: Connection, uuids: Mapping[int, str]) -> Optional[list[Incident]]:
    """What DCGM complains about now; None when there is no watch group to ask about. Raises PartFailed.

    uuids: DCGM GPU id -> UUID. An interval above 60 s would make every windowed rule pass
    silently, and a group that was never set passes too: both are avoided by setting it here.
    """
    agent = connection.bindings.agent
    found = watch.find(connection)
    if found is None:
        return None
    try:
        # Not compared bit by bit: the engine drops NVLINK where there is no such hardware.
        if not int(agent.dcgmHealthGet(connection.handle, found.group)) & WANTED:
            agent.dcgmHealthSet_v2(connection.handle, found.group, WANTED, INTERVAL_US, KEEP_S)
            agent.dcgmUpdateAllFields(connection.handle, 1)
        answer = agent.dcgmHealthCheck(connection.handle, found.group)
    except Exception as exc:
        raise status.failed(exc, "DCGM's health check") from exc
    count = min(int(answer.incidentCount), len(answer.incidents), MAX_INCIDENTS)
    return [_incident(answer.incidents[i], uuids) for i in range(count)]


def _incident(raw: Any, uuids: Mapping[int, str]) -> Incident:
    message = raw.error.msg
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    system = int(raw.system) & 0xFFFFFFFF
    return Incident(
        system=_SYSTEMS.get(system, f"system {system:#x}"),
        code=int(raw.error.code),
        result=_RESULTS.get(int(raw.health), WARN),
        entity=_entity(int(raw.entityInfo.entityGroupId), int(raw.entityInfo.entityId), uuids),
        text=text,
    )


def _entity(kind: int, number: int, uuids: Mapping[int, str]) -> str:
    if kind == live.GPU:
        return uuids.get(number, entity.NODE)
    if kind == live.LINK and number & 0xFF == live.GPU and number >> 24 in uuids:
        return entity.link(uuids[number >> 24], (number >> 8) & 0xFFFF)
    return entity.NODE
