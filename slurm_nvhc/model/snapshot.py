"""A snapshot: everything one node said at one moment. Plain JSON, versioned, keyed by GPU UUID.

Units: wall time in integer nanoseconds UTC, ``boot_ns`` in nanoseconds of the
boot-time clock (0 at boot; comparable only within one ``boot_id``). Readings
are keyed by catalogue names (``slurm_nvhc.catalog.fields``).
"""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple, Optional, TypeVar

from slurm_nvhc.errors import InputError
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import Reading

SCHEMA: Final = 1

# GpuState.status
OK: Final = "ok"
LOST: Final = "lost"  # the engine lists it but says it is lost (DCGM -18) or it answers nothing
UNRESPONSIVE: Final = "unresponsive"


class GpuIdentity(NamedTuple):
    """One row of the identity table. None or '' means that the source did not say."""

    uuid: str
    pci: str = ""  # entity.pci() form
    minor: Optional[int] = None  # /dev/nvidiaN
    nvml_index: Optional[int] = None  # NVML index: not stable over reboots or GPU loss
    dcgm_id: Optional[int] = None
    serial: str = ""
    model: str = ""  # NVML name, e.g. "NVIDIA H100 80GB HBM3"
    slot: str = ""
    vbios: str = ""
    mig: Optional[bool] = None

    @property
    def name(self) -> str:
        """For people: "gpu3"; where it has no index, the beginning of its UUID, which commands take as well."""
        return f"gpu{self.nvml_index}" if self.nvml_index is not None else self.uuid[:12]


class GpuState(NamedTuple):
    identity: GpuIdentity
    status: str
    readings: Mapping[str, Reading]
    links: Mapping[int, Mapping[str, Reading]]


class PciGpu(NamedTuple):
    """An NVIDIA GPU on the PCI bus. ``responds`` is False when config space reads all ones."""

    pci: str
    responds: bool = True


class Event(NamedTuple):
    """Something that happened at a moment.

    kind:   "xid", "sxid" or "off_bus" (fallen off the bus without an Xid number)
    code:   Xid or SXid number; 79 for off_bus
    ident:  stays the same each time the same occurrence is read; used to count it once
    fatal:  SXids and NVLink 5 Xids: the line, or where it is silent the SXid catalogue, says that a link or more is lost
    link:   the NVLink that the line names: a GPU's, or for an SXid the switch's port
    """

    kind: str
    code: int
    at_ns: int
    pci: str
    text: str
    source: str  # "kernel" or "engine"
    ident: str
    uuid: str = ""
    pid: int = 0
    process: str = ""
    fatal: bool = False
    link: Optional[int] = None


class Trouble(NamedTuple):
    """Our own means failed: becomes a monitor finding. ``code`` is a MON- finding code."""

    code: str
    part: str  # engine, reader, kernel_log, pci, policy, ledger, slurm, gres, environment, hook
    detail: str


class Snapshot(NamedTuple):
    """``gpus`` is None when no GPU listing was obtained: that is *unknown*, not "no GPUs".

    parts: what the node has beside its GPUs: entity (switch:…, switch:…/port5, rdma:…/port1, node) -> readings.
           A part that is absent was not seen; who expects it must say so.
    """

    node: str
    source: str  # backend name: "sim" or "dcgm"
    engine: str  # engine version, '' when unknown
    boot_id: str
    wall_ns: int
    boot_ns: int
    driver: str = ""
    driver_loaded_ns: Optional[int] = None  # wall time of the last driver load, when known
    gpus: Optional[Mapping[str, GpuState]] = None
    pci_gpus: Optional[tuple[PciGpu, ...]] = None
    parts: Mapping[str, Mapping[str, Reading]] = {}
    events: tuple[Event, ...] = ()
    events_known: bool = False  # False: the kernel log could not be read
    kernel_cursor: str = ""  # where the next read of the kernel log continues
    troubles: tuple[Trouble, ...] = ()

    def uptime_s(self) -> float:
        return self.boot_ns / 1e9


def _gpu_to_json(gpu: GpuState) -> dict[str, Any]:
    return {
        "identity": gpu.identity._asdict(),
        "status": gpu.status,
        "readings": {k: rd.to_json(v) for k, v in gpu.readings.items()},
        "links": {str(n): {k: rd.to_json(v) for k, v in r.items()} for n, r in gpu.links.items()},
    }


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    out = snapshot._asdict()
    out["schema"] = SCHEMA
    if snapshot.gpus is not None:
        out["gpus"] = {uuid: _gpu_to_json(gpu) for uuid, gpu in snapshot.gpus.items()}
    if snapshot.pci_gpus is not None:
        out["pci_gpus"] = [p._asdict() for p in snapshot.pci_gpus]
    out["parts"] = {name: {k: rd.to_json(v) for k, v in readings.items()} for name, readings in snapshot.parts.items()}
    out["events"] = [e._asdict() for e in snapshot.events]
    out["troubles"] = [t._asdict() for t in snapshot.troubles]
    return out


def gpu_from_json(value: Mapping[str, Any]) -> GpuState:
    """Raises KeyError, TypeError, ValueError or AttributeError for what is not a GPU's state."""
    links = {_link_number(n): _readings(readings) for n, readings in value["links"].items()}
    return GpuState(_typed(GpuIdentity, value["identity"]), _text(value["status"]), _readings(value["readings"]), links)


def from_json(value: Any, thing: str = "snapshot") -> Snapshot:
    """Decode a snapshot. Raises InputError naming ``thing`` for anything that is not one."""
    if not isinstance(value, dict):
        raise InputError(thing, "", "is not a snapshot: a JSON object was expected")
    if value.get("schema") != SCHEMA:
        raise InputError(thing, "key schema", f"schema {value.get('schema')!r} is not known", f"this version reads {SCHEMA}")
    try:
        fields = {k: value[k] for k in Snapshot._fields if k in value}
        if fields.get("gpus") is not None:
            fields["gpus"] = {_text(u): gpu_from_json(g) for u, g in value["gpus"].items()}
        if fields.get("pci_gpus") is not None:
            fields["pci_gpus"] = tuple(_typed(PciGpu, p) for p in value["pci_gpus"])
        fields["parts"] = {_text(name): _readings(readings) for name, readings in value.get("parts", {}).items()}
        fields["events"] = tuple(_typed(Event, e) for e in value.get("events", ()))
        fields["troubles"] = tuple(_typed(Trouble, t) for t in value.get("troubles", ()))
        return _typed(Snapshot, fields)
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as exc:
        raise InputError(thing, "", f"is not a snapshot: {str(exc) or type(exc).__name__}") from exc


_N = TypeVar("_N")

# What a field's annotation means for a JSON value; bool is no int.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "Optional[int]": (int, type(None)),
    "Optional[bool]": (bool, type(None)),
}


def _typed(kind: type[_N], values: Any) -> _N:
    """A NamedTuple of plain fields from a mapping, every value of its annotated type."""
    for name, annotation in getattr(kind, "__annotations__", {}).items():
        wanted = getattr(annotation, "__forward_arg__", annotation)
        allowed = _TYPES.get(str(wanted))
        if allowed is None or name not in values:
            continue
        given = values[name]
        if not isinstance(given, allowed) or (isinstance(given, bool) and bool not in allowed):
            raise ValueError(f"{name} is {type(given).__name__}, not {wanted}")
    return kind(**values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"text was expected, not {type(value).__name__}")
    return value


def _link_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise ValueError(f"{text[:20]!r} is not a link number")
    return int(text)


def _readings(values: Any) -> dict[str, Reading]:
    return {_text(k): rd.from_json(v) for k, v in values.items()}
