"""Names of the things that findings are about.

``GPU-…``         a GPU, by UUID
``GPU-…/link11``  one NVLink, by its GPU's UUID and the link number on that GPU
``pci:0000:5e:00.0``  a GPU of which only the PCI address is known
``switch:0000:…`` an NVSwitch, by PCI address
``switch:0000:…/port5``  one port of an NVSwitch
``rdma:mlx5_0/port1``  one port of an RDMA device, by the kernel's name of the device
``node``          the node as a whole
``monitor:part``  our own means (engine, reader, slurm, policy, ledger)
"""

from __future__ import annotations

import re
from typing import Final

NODE: Final = "node"
_PCI = re.compile(r"^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?$")


def link(uuid: str, number: int) -> str:
    return f"{uuid}/link{number}"


def split_link(entity: str) -> tuple[str, int | None]:
    """(GPU part, link number or None): works for any entity name."""
    head, sep, tail = entity.rpartition("/link")
    if sep and tail.isascii() and tail.isdigit():
        return head, int(tail)
    return entity, None


def switch(address: str) -> str:
    return f"switch:{address}"


def switch_port(address: str, number: int) -> str:
    return f"switch:{address}/port{number}"


def rdma(device: str, port: int) -> str:
    return f"rdma:{device}/port{port}"


def scope(entity: str) -> str:
    """What kind of thing an entity is: gpu, link, switch, switch_port, rdma, node or monitor. The words are the catalogue's scopes."""
    head, link_number = split_link(entity)
    if entity.startswith("switch:"):
        return "switch_port" if "/port" in entity else "switch"
    if head.startswith(("GPU-", "pci:")):
        return "gpu" if link_number is None else "link"
    return entity.partition(":")[0]


def gpu_of(entity: str) -> str:
    """The UUID an entity belongs to, or '' when it is not (part of) a GPU with a known UUID."""
    head, _ = split_link(entity)
    return head if head.startswith("GPU-") else ""


def whole(entity: str) -> str:
    """What an entity is a part of: a link's GPU, a port's switch; anything else is its own whole."""
    return gpu_of(entity) or (entity.partition("/port")[0] if entity.startswith("switch:") else entity)


def pci(address: str) -> str:
    """The one form of a PCI address: lower case, 4-digit domain, with function.

    Accepts DCGM's 8-digit domain, the kernel log's form without function, and
    a missing domain (taken as 0000). The domain is always kept: two GPUs of a
    multi-domain machine may share bus and device. Returns '' for anything else.
    """
    match = _PCI.match(address.strip())
    if not match:
        return ""
    domain = int(match.group(1) or "0", 16)
    bus, device, function = match.group(2), match.group(3), match.group(4) or "0"
    return f"{domain:04x}:{bus}:{device}.{function}".lower()
