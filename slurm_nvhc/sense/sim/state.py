"""The state of the simulated node: clock, GPUs, kernel log, engine; and its file.

Everything that the reader's backend may see is here, and nothing else: no policy, no
expectation. Time passes only when advance() says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from typing import Any, Final, Iterable, Iterator, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import entity, history
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Event, GpuIdentity
from slurm_nvhc.proc.files import write_atomic
from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.sim import diag, faults, inventory, parts

SCHEMA: Final = 1
MAX_FILE: Final = 64 * 1024 * 1024
NS: Final = 1_000_000_000

_TEXTS: Final = ("uuid", "pci", "serial", "model", "slot", "vbios")
_NUMBERS: Final = ("minor", "nvml_index", "dcgm_id")


class SimGpu:
    """One card in its slot. listed: the engine knows it; status as in GpuState.

    traffic_mb_s: what it sends over NVLink, and receives as well.
    """

    def __init__(self, identity: GpuIdentity, readings: dict[str, Reading], links: dict[int, dict[str, Reading]]) -> None:
        self.identity = identity
        self.readings = readings
        self.links = links
        self.listed = True
        self.status = snap.OK
        self.on_pci = True
        self.responds = True
        self.traffic_mb_s = 0.0

    def flow(self, step_ns: int) -> None:
        """Traffic of some time, on the counters of NVLink 5. Earlier ones have a rate only, see World.traffic."""
        moved = int(self.traffic_mb_s * 1e6 * step_ns / NS) if self.status == snap.OK else 0
        for name in ("nvlink5_tx_bytes", "nvlink5_rx_bytes"):
            now = rd.number(self.readings.get(name))
            if moved and now is not None:
                self.readings[name] = now + moved

    def clear(self, by: str, actions: Sequence[int]) -> None:
        """Counters and flags back to 0 as the catalogue says; recovery ``actions`` that were carried out are settled.

        Nothing is left running, and a change of the ECC mode takes effect.
        """
        for readings in (self.readings, *self.links.values()):
            for name, value in readings.items():
                if by in cat.BY_NAME[name].cleared_by and not isinstance(value, NoData):
                    readings[name] = 0
        if self.readings.get("recovery_action") in actions:
            self.readings["recovery_action"] = 0
        if by in (cat.GPU_RESET, cat.REBOOT):
            self.readings["ecc_mode"] = self.readings["ecc_pending"]
        self.traffic_mb_s = 0.0
        if not isinstance(self.readings["nvlink_throughput"], NoData):
            self.readings["nvlink_throughput"] = 0


class SimState:
    """Attributes are the node's state as it is now; wall_ns, boot_ns and at_ns are nanoseconds.

    base:     the preset it was made from
    parts:    what it has beside its GPUs, see sim/parts.py
    pending:  changes that happen later: (wall time, operation), see World.schedule
    watched:  what the engine has sampled: uuid -> name -> [[wall time, value], …], changes
              only; None while nobody asked it to
    incidents: what the engine's own health check complains about
    blind:    what can not be read: part ("clock", "kernel_log", "pci") -> reason
    faults:   planted ones, see sim/faults.py; step: the last one of a search in which data moved, and when it began (sim/traffic.py)
    diag:     its diagnostics, see sim/diag.py
    behaviour, options: what the engine does, see World.engine
    """

    def __init__(self, preset: str, node: str, gpus: Optional[int], uptime_s: float) -> None:
        kind = inventory.PRESETS.get(preset)
        if kind is None:
            raise InputError(f"preset {preset!r}", "", "is not known", "known: " + ", ".join(sorted(inventory.PRESETS)))
        count = kind.gpus if gpus is None else gpus
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 64:
            raise InputError(f"preset {preset}", "key gpus", "must be a number from 0 to 64")
        if isinstance(uptime_s, bool) or not isinstance(uptime_s, (int, float)) or not 0 <= uptime_s < 1e9:
            raise InputError(f"preset {preset}", "key uptime_s", "must be a number of seconds, 0 or more")
        self.node = node
        self.base = preset
        self.wall_ns = inventory.WALL_NS
        self.boot_ns = int(uptime_s * NS)
        self.boots = 0
        self.driver_loaded_ns: Optional[int] = self.wall_ns - self.boot_ns
        self.engine_version = inventory.ENGINE
        rows = [inventory.identity(preset, node, i) for i in range(count)]
        fresh = inventory.link_readings(kind, kind.link_state)
        self.gpus = [SimGpu(row, inventory.gpu_readings(kind, row), {n: dict(fresh) for n in range(kind.links)}) for row in rows]
        self.wire(range(count))
        self.switches = inventory.switch_addresses(kind.switches)
        self.parts = parts.healthy(kind, count, self.switches)
        self.kernel: list[Line] = []
        self.next_seq = 0
        self.engine_events: list[Event] = []
        self.pending: list[tuple[int, dict[str, Any]]] = []
        self.watched: Optional[dict[str, dict[str, list[history.Sample]]]] = None
        self.incidents: list[history.Incident] = []
        self.behaviour = "ok"
        self.options: dict[str, Any] = {}
        self.blind: dict[str, str] = {}
        self.faults: list[faults.Fault] = []
        self.diag = diag.Diags()
        self.step: tuple[str, int] = ("", 0)

    @property
    def driver(self) -> str:
        """The NVIDIA driver's version; '' when none is loaded. It is a reading of the node."""
        word = self.parts[entity.NODE].readings["nvidia_driver"]
        return word if isinstance(word, str) else ""

    @property
    def boot_id(self) -> str:
        """As random and as fixed as the UUIDs: by node and number of boots."""
        return inventory.uuid_form(hashlib.sha256(f"{self.node}/boot{self.boots}".encode()).hexdigest())

    # -- JSON ------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "node": self.node,
            "base": self.base,
            "wall_ns": self.wall_ns,
            "boot_ns": self.boot_ns,
            "boots": self.boots,
            "driver_loaded_ns": self.driver_loaded_ns,
            "engine_version": self.engine_version,
            "gpus": [_gpu_to_json(gpu) for gpu in self.gpus],
            "switches": self.switches,
            "parts": parts.to_json(self.parts),
            "kernel": [list(line) for line in self.kernel],
            "next_seq": self.next_seq,
            "engine_events": [event._asdict() for event in self.engine_events],
            "pending": [[at, op] for at, op in self.pending],
            "watched": _watched_to_json(self.watched),
            "incidents": [incident._asdict() for incident in self.incidents],
            "engine": {"behaviour": self.behaviour, **self.options},
            "unreadable": self.blind,
            "faults": [fault.to_json() for fault in self.faults],
            "diag": self.diag.to_json(),
            "step": list(self.step),
        }

    def fill(self, raw: Any, thing: str) -> None:
        """Take the state from a document. Raises InputError naming ``thing``."""
        if not isinstance(raw, dict):
            raise InputError(thing, "", "is not a simulated node: a JSON object was expected")
        if raw.get("schema") != SCHEMA:
            raise InputError(thing, "key schema", f"schema {str(raw.get('schema'))[:20]} is not known", f"this version reads {SCHEMA}")
        try:
            for key in ("node", "base", "engine_version"):
                setattr(self, key, _of(raw, key, str))
            for key in ("wall_ns", "boot_ns", "boots", "next_seq"):
                setattr(self, key, _of(raw, key, int))
            self.driver_loaded_ns = None if raw["driver_loaded_ns"] is None else _of(raw, "driver_loaded_ns", int)
            self.gpus = [gpu_from_json(item) for item in _of(raw, "gpus", list)]
            self.switches = [str(s) for s in _of(raw, "switches", list)]
            self.parts = parts.from_json(_of(raw, "parts", dict))
            self.kernel = [Line(int(seq), int(at), str(text)) for seq, at, text in _of(raw, "kernel", list)]
            self.engine_events = [Event(**item) for item in _of(raw, "engine_events", list)]
            self.pending = [(int(at), dict(op)) for at, op in _of(raw, "pending", list)]
            self.watched = _watched_from_json(raw["watched"])
            self.incidents = [history.Incident(**item) for item in _of(raw, "incidents", list)]
            options = dict(_of(raw, "engine", dict))
            self.behaviour = str(options.pop("behaviour"))
            self.options = options
            self.blind = {str(k): str(v) for k, v in _of(raw, "unreadable", dict).items()}
            self.faults = [faults.from_json(item) for item in _of(raw, "faults", list)]
            self.diag = diag.from_json(_of(raw, "diag", dict))
            self.step = (str(raw["step"][0]), int(raw["step"][1]))
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            what = f"key {exc.args[0]!r} is missing" if isinstance(exc, KeyError) else str(exc)
            raise InputError(thing, "", f"is not a simulated node: {what}") from exc

    # -- wiring ----------------------------------------------------------------

    def wire(self, indices: Iterable[int]) -> None:
        """Say where the direct links of some cards lead. Which link of the other card it is, an engine would not tell
        where there are several between two cards."""
        kind = inventory.PRESETS[self.base]
        for index in indices:
            for number, readings in self.gpus[index].links.items():
                other = inventory.peer(kind, len(self.gpus), index, number)
                if other is not None:
                    readings["nvlink_remote"] = self.gpus[other].identity.uuid

    # -- clock -----------------------------------------------------------------

    def sample(self) -> None:
        """Let the engine take its samples: of what changed since the last ones. A GPU that does not answer gives none."""
        if self.watched is None:
            return
        for gpu in self.gpus:
            series = self.watched.setdefault(gpu.identity.uuid, {})
            for name, value in gpu.readings.items() if gpu.listed and gpu.status == snap.OK else ():
                taken = series.setdefault(name, [])
                if not taken or taken[-1].value != value:
                    taken.append(history.Sample(self.wall_ns, value))

    def move_clock(self, to_ns: int) -> None:
        self.sample()  # before the time passes: what was done so far was done by now
        step = max(0, to_ns - self.wall_ns)
        self.wall_ns += step
        self.boot_ns += step
        for gpu in self.gpus:
            gpu.flow(step)


def _of(raw: Mapping[str, Any], key: str, kind: Any) -> Any:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"key {key} must be of type {kind.__name__}")
    return value


def _gpu_to_json(gpu: SimGpu) -> dict[str, Any]:
    return {
        "identity": gpu.identity._asdict(),
        "readings": {k: rd.to_json(v) for k, v in gpu.readings.items()},
        "links": {str(n): {k: rd.to_json(v) for k, v in link.items()} for n, link in gpu.links.items()},
        "listed": gpu.listed,
        "status": gpu.status,
        "on_pci": gpu.on_pci,
        "responds": gpu.responds,
        "traffic_mb_s": gpu.traffic_mb_s,
    }


def _watched_to_json(watched: Optional[dict[str, dict[str, list[history.Sample]]]]) -> Any:
    if watched is None:
        return None
    return {uuid: {n: [[s.at_ns, rd.to_json(s.value)] for s in taken] for n, taken in series.items()} for uuid, series in watched.items()}


def _watched_from_json(raw: Any) -> Optional[dict[str, dict[str, list[history.Sample]]]]:
    if raw is None:
        return None
    return {
        str(uuid): {str(n): [history.Sample(int(at), rd.from_json(value)) for at, value in taken] for n, taken in series.items()}
        for uuid, series in raw.items()
    }


def gpu_from_json(raw: Any) -> SimGpu:
    gpu = SimGpu(
        checked_identity(GpuIdentity(**raw["identity"])),
        _readings(raw["readings"], cat.GPU),
        {int(n): _readings(link, cat.LINK) for n, link in raw["links"].items()},
    )
    for key in ("listed", "on_pci", "responds"):
        if not isinstance(raw[key], bool):
            raise TypeError(f"key {key} must be true or false")
        setattr(gpu, key, raw[key])
    gpu.status = str(raw["status"])
    gpu.traffic_mb_s = float(raw["traffic_mb_s"])
    return gpu


def _readings(raw: Mapping[str, Any], scope: str) -> dict[str, Reading]:
    for name in raw:
        field = cat.BY_NAME.get(name)
        if field is None or field.scope != scope:
            raise ValueError(f"{str(name)[:40]!r} is not a field of a {scope}")
    return {name: rd.from_json(value) for name, value in raw.items()}


def checked_identity(row: GpuIdentity) -> GpuIdentity:
    """The row with its PCI address in the one form. Raises ValueError or TypeError."""
    for key, value in row._asdict().items():
        if key in _TEXTS and not isinstance(value, str):
            raise TypeError(f"{key} must be text")
        if key in _NUMBERS and value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise TypeError(f"{key} must be a number, 0 or more")
    if row.mig is not None and not isinstance(row.mig, bool):
        raise TypeError("mig must be true or false")
    if not row.uuid.startswith("GPU-"):
        raise ValueError("uuid must begin with GPU-")
    address = entity.pci(row.pci)
    if row.pci and not address:
        raise ValueError(f"pci {row.pci[:24]!r} is not a PCI address")
    return row._replace(pci=address)


# -- files ---------------------------------------------------------------------


def read_document(path: str) -> Any:
    """Raises InputError when the file can not be read or is not JSON."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE)
        return json.loads(text)
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise InputError(path, "", f"is not JSON: {exc}") from exc


def write_document(path: str, document: Mapping[str, Any]) -> None:
    """Whole or not at all; readable by all, as the reader may run as another user. Raises OSError."""
    write_atomic(path, json.dumps(document) + "\n", mode=0o644, durable=False)


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """One writer of a world file at a time: several hooks may let time pass at once."""
    try:
        fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as exc:
        raise InputError(path, "", f"can not be locked: {exc.strerror}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
