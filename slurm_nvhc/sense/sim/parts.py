"""What the simulated node has beside its GPUs: NVSwitches with their ports, RDMA ports, the node itself.

In a scenario's targets they are switch0, switch0.port5, rdma0.port1 and node, numbered in the
order of their names; ``*`` stands for all. On fields the scope's prefix may be left out:
``switch0.temp``, ``switch0.port5.fatal``, ``rdma0.port1.state``, ``node.fabric_manager``.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Final, Mapping, NoReturn, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import entity
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NOT_FOUND, NoData, Reading
from slurm_nvhc.sense.sim import inventory

SHOWS: Final = ("present", "absent")
KERNEL: Final = "5.15.0-119-generic"
# Links of each GPU to each of the board's switches. Vendor: HGX H100 and H200 split their 18 links over 4
# switches as 5, 4, 4, 5; HGX A100 has 2 links to each of 6.
_SPLITS: Final[Mapping[int, tuple[int, ...]]] = {4: (5, 4, 4, 5), 6: (2, 2, 2, 2, 2, 2)}
_PREFIXES: Final = {cat.SWITCH: "switch_", cat.SWITCH_PORT: "port_", cat.RDMA: "rdma_", cat.NODE: ""}
_TARGET = re.compile(r"^(?:(switch|rdma)(\*|\d{1,2})(?:\.port(\*|\d{1,3}))?|node)$")
_FAR_END = re.compile(r"^(?:g(\d{1,2})\.link(\d{1,2})|switch(\d{1,2})\.port(\d{1,3}))$")

# A switch at rest and a port that works. Temperatures as an idle board's; limits of NVSwitch 3.
_HEALTHY: Final[Mapping[str, Reading]] = {
    "switch_state": 1,
    "switch_temp": 42,
    "switch_temp_slowdown": 100,
    "switch_temp_shutdown": 105,
    "switch_firmware": "96.10.55.00.01",
    "port_state": 2,
    "rdma_state": 4,
    "rdma_phys_state": 5,
    "rdma_link_layer": 1,
}


class SimPart:
    """One part. present: False when nobody lists it any more."""

    def __init__(self, readings: dict[str, Reading], present: bool = True) -> None:
        self.readings = readings
        self.present = present

    def clear(self, by: str) -> None:
        """Counters and flags back to 0 as the catalogue says."""
        for name, value in self.readings.items():
            if by in cat.BY_NAME[name].cleared_by and not isinstance(value, NoData):
                self.readings[name] = 0


Parts = dict[str, SimPart]  # by entity


def healthy(kind: inventory.Preset, gpus: int, switches: Sequence[str]) -> Parts:
    """Of a healthy node with so many GPUs. ``switches``: PCI addresses.

    A port's far end is kept as a scenario writes it ("g3.link11"), see told().
    """
    out: Parts = {entity.NODE: SimPart(_node(kind))}
    first = 0
    for number, address in enumerate(switches):
        out[entity.switch(address)] = SimPart(_fresh(cat.SWITCH))
        split = _SPLITS[len(switches)][number]
        for gpu in range(gpus):
            for link in range(split):
                ends: dict[str, Reading] = {"port_remote": f"g{gpu}.link{first + link}"}
                out[entity.switch_port(address, gpu * split + link)] = SimPart({**_fresh(cat.SWITCH_PORT), **ends})
        first += split
    for number in range(kind.rdma):
        out[entity.rdma(f"mlx5_{number}", 1)] = SimPart({**_fresh(cat.RDMA), "rdma_rate": float(kind.rdma_gb_s)})
    return out


def _fresh(scope: str) -> dict[str, Reading]:
    return {f.name: _HEALTHY.get(f.name, 0) for f in cat.ALL if f.scope == scope}


def _node(kind: inventory.Preset) -> dict[str, Reading]:
    """A fabric manager runs where there is a fabric: switches on the board, the host's or not."""
    manager: Reading = inventory.DRIVER if kind.fabric_manager else NoData(NOT_FOUND)
    return {"kernel_release": KERNEL, "nvidia_driver": inventory.DRIVER, "fabric_manager": manager}


def told(parts: Parts, gpus: Sequence[str], scopes: Sequence[str], wanted: Sequence[str]) -> dict[str, dict[str, Reading]]:
    """What is present of some scopes, as a source tells it: far ends as "pci:<address>/link<n>". gpus: PCI addresses."""
    switches = [name.removeprefix("switch:") for name in parts if entity.scope(name) == cat.SWITCH]
    return {
        name: {f: _far_end(value, gpus, switches) if f == "port_remote" else value for f, value in part.readings.items() if f in wanted}
        for name, part in parts.items()
        if part.present and entity.scope(name) in scopes
    }


def _far_end(said: Reading, gpus: Sequence[str], switches: Sequence[str]) -> Reading:
    match = _FAR_END.match(said) if isinstance(said, str) else None
    if match is None:
        return said
    listed, number, link = (gpus, int(match[1]), match[2]) if match[1] else (switches, int(match[3]), match[4])
    return entity.link(f"pci:{listed[number]}", int(link)) if number < len(listed) else NoData(rd.BLANK, "nothing is connected")


# -- targets ---------------------------------------------------------------------


def names(text: Any) -> bool:
    """Is a target about a part, and not about a GPU?"""
    return isinstance(text, str) and text.partition(".")[0].rstrip("*0123456789") in ("switch", "rdma", "node")


def aim(parts: Parts, text: str) -> tuple[cat.Field, list[dict[str, Reading]]]:
    """(field, the readings that a target means). Raises InputError naming what is wrong and the nearest valid name."""
    head, _, name = text.rpartition(".")
    chosen = find(parts, head)
    scope = entity.scope(next(iter(chosen)))
    field = _field(text, scope, name)
    return field, [part.readings for part in chosen.values()]


def find(parts: Parts, text: str) -> Parts:
    """The parts that "switch0", "switch*.port5", "rdma3.port1" or "node" names; never none. Raises InputError."""
    match = _TARGET.match(text)
    if not match:
        _wrong(text, "is not a part of the node", "switch0, switch0.port5, rdma0.port1 or node, and a field")
    kind, which, port = match.groups()
    if kind is None:
        return {entity.NODE: parts[entity.NODE]}
    if kind == "rdma" and port is None:
        _wrong(text, "is a device", f"its readings are its port's: {text}.port1")
    devices = list(dict.fromkeys(name.partition("/")[0] for name in parts if name.startswith(f"{kind}:")))
    if which != "*" and int(which) >= len(devices):
        _wrong(text, "is not on this node", f"it has {kind}0 to {kind}{len(devices) - 1}" if devices else f"it has no {kind}")
    of = devices if which == "*" else [devices[int(which)]]
    wanted = {cat.SWITCH if kind == "switch" and port is None else cat.SWITCH_PORT if kind == "switch" else cat.RDMA}
    chosen = {
        name: part
        for name, part in parts.items()
        if entity.scope(name) in wanted and name.partition("/")[0] in of and (port in (None, "*") or name.endswith(f"/port{port}"))
    }
    if not chosen:
        _wrong(text, f"has no port {port}" if port not in (None, "*") else "is not on this node", "")
    return chosen


def _field(text: str, scope: str, name: str) -> cat.Field:
    known = {f.name: f for f in cat.ALL if f.scope == scope}
    known.update({n.removeprefix(_PREFIXES[scope]): f for n, f in list(known.items())})
    known.update({str(f.dcgm_id): f for f in list(known.values()) if f.dcgm_id is not None})
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, [n for n in known if not n.isdigit()], n=1)
    _wrong(text, f"{name[:40]!r} is not a field of a {scope.replace('_', ' ')}", f"did you mean {near[0]}?" if near else "")


def show(parts: Parts, text: str, shows: str) -> None:
    """Make a part, a switch with its ports, absent or present again. Raises InputError."""
    if shows not in SHOWS:
        raise InputError("part", "key shows", f"{str(shows)[:40]!r} is not known", "known: " + ", ".join(SHOWS))
    if text == entity.NODE:
        _wrong(text, "is always there", "switch0 or rdma0.port1")
    for name in find(parts, text):
        for other, part in parts.items():
            if other == name or other.startswith(f"{name}/"):
                part.present = shows == "present"



def _wrong(text: str, problem: str, hint: str) -> NoReturn:
    raise InputError(f"target {text[:60]!r}", "", problem, hint)


# -- JSON ------------------------------------------------------------------------


def to_json(parts: Parts) -> dict[str, Any]:
    return {
        name: {"readings": {k: rd.to_json(v) for k, v in part.readings.items()}, "present": part.present} for name, part in parts.items()
    }


def from_json(raw: Mapping[str, Any]) -> Parts:
    """Raises KeyError, TypeError or ValueError."""
    out: Parts = {}
    for name, item in raw.items():
        scope = entity.scope(name)
        for field in item["readings"]:
            if field not in cat.BY_NAME or cat.BY_NAME[field].scope != scope:
                raise ValueError(f"{str(field)[:40]!r} is not a field of {name[:60]}")
        if not isinstance(item["present"], bool):
            raise TypeError("key present must be true or false")
        out[str(name)] = SimPart({str(k): rd.from_json(v) for k, v in item["readings"].items()}, item["present"])
    if "nvidia_driver" not in out[entity.NODE].readings:
        raise ValueError("the node has no nvidia_driver")
    return out
