"""Who is who: DCGM's GPU ids, and the row of the identity table behind each."""

from __future__ import annotations

import ctypes
from typing import Any, Final, Mapping, Optional

from slurm_nvhc.model import entity
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.sense.dcgm import live, status
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.dcgm.live import GPU, Table
from slurm_nvhc.sense.values import sentinel

DRIVER: Final = 1  # of the node, not of a GPU
MODEL, NVML_INDEX, SERIAL, UUID, MINOR, PCI, MIG, VBIOS = 50, 52, 53, 54, 55, 57, 67, 85
IDS: Final = (MODEL, NVML_INDEX, SERIAL, UUID, MINOR, PCI, MIG, VBIOS)

# DcgmEntityStatus: 0 unknown, 1 ok, 2 unsupported, 3 inaccessible, 4 lost, 5 fake, 6 disabled, 7 detached.
# A GPU that a person disabled or detached does not answer either, but nothing is wrong with it.
STATUSES: Final[Mapping[int, str]] = {3: snap.LOST, 4: snap.LOST, 6: snap.UNRESPONSIVE, 7: snap.UNRESPONSIVE}


def gpu_ids(connection: Connection) -> list[int]:
    """All GPUs that the engine has listed since its start, lost and detached ones included. Raises PartFailed."""
    try:
        return [int(number) for number in connection.bindings.agent.dcgmGetAllDevices(connection.handle)]
    except Exception as exc:
        raise status.failed(exc, "listing the GPUs") from exc


def gpu_status(connection: Connection, gpu: int) -> str:
    """GpuState.status as the engine sees it; "ok" when this version does not tell. Raises PartFailed.

    The C function is older than its wrapper (4.0), hence the call through the library.
    """
    structs = connection.bindings.structs
    value = ctypes.c_uint(0)
    try:
        call = structs._dcgmGetFunctionPointer("dcgmGetGpuStatus")
        structs._dcgmCheckReturn(call(connection.handle, ctypes.c_uint(gpu), ctypes.byref(value)))
    except Exception as exc:
        if status.code(exc) == status.GPU_IS_LOST:
            return snap.LOST
        if status.code(exc) in status.HOPELESS:
            raise status.failed(exc, f"the status of GPU {gpu}") from exc
        return snap.OK
    return STATUSES.get(value.value, snap.OK)


def row(table: Table, remembered: Table, gpu: int, slots: Mapping[str, str]) -> Optional[GpuIdentity]:
    """The identity of one GPU, None when the engine does not give a UUID for it.

    remembered: what the watch has of it: a lost GPU answers nothing any more, not even its name.
    """

    def value(field_id: int) -> Any:
        for source in (table, remembered):
            reading: Reading = source.reading((GPU, gpu), field_id)
            if isinstance(reading, (int, str)) and sentinel(reading) is None:
                return reading
        return None

    uuid = value(UUID)
    if not isinstance(uuid, str) or not uuid.startswith("GPU-"):
        return None
    address = entity.pci(_text(value(PCI)))
    mig = value(MIG)
    return GpuIdentity(
        uuid=uuid,
        pci=address,
        minor=_count(value(MINOR)),
        nvml_index=_count(value(NVML_INDEX)),
        dcgm_id=gpu,
        serial=_text(value(SERIAL)),
        model=_text(value(MODEL)),
        slot=slots.get(address, ""),
        vbios=_text(value(VBIOS)),
        mig=None if not isinstance(mig, int) else mig == 1,
    )


def driver(connection: Connection, gpus: list[int]) -> str:
    """The driver's version as the engine reads it; '' without any GPU to ask. Raises PartFailed."""
    if not gpus:
        return ""
    table = live.read(connection, [(GPU, gpus[0])], [[DRIVER]])
    # It belongs to the node: versions differ in the entity that they name in the answer.
    for (_, _, field), found in table.items():
        if field == DRIVER and isinstance(found.reading, str) and sentinel(found.reading) is None:
            return found.reading
    return ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and value >= 0 else None
