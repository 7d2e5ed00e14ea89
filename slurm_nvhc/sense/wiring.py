"""Who is at the other end of a link: what switches say about their ports, told to the GPUs. Pure.

DCGM tells a GPU's links nothing about their far ends behind switches; a switch names the PCI
address and the link number at the other end of each port. Turned around, that is the wiring.
"""

from __future__ import annotations

from typing import Final, Mapping, Optional

from slurm_nvhc.model import entity
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import OK, GpuState

_LINK: Final = "nvlink_remote"
_PORT: Final = "port_remote"

Gpus = Optional[Mapping[str, GpuState]]
Parts = Mapping[str, Mapping[str, Reading]]


def join(gpus: Gpus, parts: Parts) -> tuple[Gpus, Parts]:
    """(gpus, parts) with far ends named as entities, on both sides of a wire.

    A port's end becomes "GPU-…/link11" or "switch:…/port5" where its address is one of this node's; a stranger
    stays "pci:…/link11". The link of that GPU, if it answers, gets the port as its ``nvlink_remote``, where it was asked for (it is
    in the link's readings). A link that two ports claim gets neither: one of them is wrong, and which can not be known.
    """
    owners = {gpu.identity.pci: uuid for uuid, gpu in (gpus or {}).items() if gpu.identity.pci}
    switches = {name.removeprefix("switch:") for name in parts if entity.scope(name) == "switch"}
    named: dict[str, Mapping[str, Reading]] = {}
    claims: dict[str, list[str]] = {}
    for name, readings in parts.items():
        end = _end(readings.get(_PORT), owners, switches)
        if end:
            claims.setdefault(end, []).append(name)
            readings = {**readings, _PORT: end}
        named[name] = readings
    return _told(gpus, claims), named


def _end(said: Optional[Reading], owners: Mapping[str, str], switches: set[str]) -> str:
    """The entity that "pci:<address>/link<n>" is on this node; '' when it is none of this node's, or not said."""
    head, number = entity.split_link(said) if isinstance(said, str) else ("", None)
    if number is None or not head.startswith("pci:"):
        return ""
    address = head.removeprefix("pci:")
    if address in owners:
        return entity.link(owners[address], number)
    return entity.switch_port(address, number) if address in switches else ""


def _told(gpus: Gpus, claims: Mapping[str, list[str]]) -> Gpus:
    if gpus is None or not claims:
        return gpus
    out = dict(gpus)
    for uuid, gpu in gpus.items():
        if gpu.status != OK:
            continue  # it says nothing more, and nothing is said for it
        links = dict(gpu.links)
        for number, readings in gpu.links.items():
            ports = claims.get(entity.link(uuid, number), [])
            if len(ports) == 1 and _LINK in readings:
                links[number] = {**readings, _LINK: ports[0]}
        out[uuid] = gpu._replace(links=links)
    return out
