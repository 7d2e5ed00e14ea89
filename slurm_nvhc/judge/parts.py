"""The node's parts as they are judged: those that were seen, and those that should have been. Pure."""

from __future__ import annotations

from typing import Final, Mapping

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge.context import HEALTH_CHECK, Input
from slurm_nvhc.judge.say import note
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import OK

# What a part that is gone still says of itself. Its other readings are not there.
_ABSENT: Final[Mapping[str, Mapping[str, Reading]]] = {cat.SWITCH: {"switch_state": 0}, cat.RDMA: {"rdma_state": 0}}
_ACTIVE: Final = 4  # rdma_state
_LINK_OUT_OF_USE: Final = ("disabled", "not_supported")


def with_absent(inp: Input) -> Mapping[str, Mapping[str, Reading]]:
    """The snapshot's parts, and as ``absent`` each switch and RDMA port that was there at the window's start or was learned.

    Only where the list was had that it is missing from: RDMA ports when the kernel was read at all (it always tells of the
    node) and not all of them are gone at once (``rdma_gone``), switches when the engine still lists another. An engine that
    knows no switch any more lacks its library, or was upgraded; that is no fault of four switches. Ports of a switch that is
    gone are not judged beside it.
    """
    seen = inp.snapshot.parts
    listed = {entity.scope(name) for name in seen}
    at_once = rdma_gone(inp)
    known = (*(inp.before.parts if inp.before is not None else ()), *inp.learned)
    gone: dict[str, Mapping[str, Reading]] = {}
    for name in known:
        scope = entity.scope(name)
        if name in seen or scope not in _ABSENT or name in at_once:
            continue
        if (cat.NODE if scope == cat.RDMA else cat.SWITCH) in listed:
            gone[name] = _ABSENT[scope]
    return {**seen, **dict(sorted(gone.items()))}


def rdma_gone(inp: Input) -> frozenset[str]:
    """RDMA ports that were there before or were learned, where none of these is listed any more; else empty.

    Ports go by the kernel's name of their device. When a new kernel or a udev rule renames the devices, or their
    driver is not loaded, every port is missing by its name at once; no port broke. A port that was the only one in use
    is missed all the same while others that are not in use are still listed.
    """
    seen = inp.snapshot.parts
    if entity.NODE not in seen:
        return frozenset()
    listed = {name for name in seen if entity.scope(name) == cat.RDMA}
    was = {name for name in (inp.before.parts if inp.before is not None else ()) if entity.scope(name) == cat.RDMA}
    learned = {name for name in inp.learned if entity.scope(name) == cat.RDMA}
    gone = set() if was & listed else was
    if not learned & listed and (not listed or any(seen[name].get("rdma_state") == _ACTIVE for name in listed)):
        gone |= learned
    return frozenset(gone)


def no_rdma(inp: Input) -> tuple[Finding, ...]:
    """One word for all RDMA ports that are gone at once, from health checks, where any rule asks about ports."""
    asked = any("rdma_state" in rule.fields and rule.mode != fd.OFF for rule in inp.policy.rules.values())
    gone = rdma_gone(inp) if asked and inp.hook == HEALTH_CHECK else ()
    if not gone:
        return ()
    others = sum(entity.scope(name) == cat.RDMA for name in inp.snapshot.parts)
    instead = f"there are {others} under other names: were the devices renamed?" if others else "is the driver of the adapters loaded?"
    return (note(inp, "RDMA-NONE", entity.NODE, fd.WARN, f"none of {len(gone)} RDMA ports is listed any more; {instead}"),)


def far_end_unused(inp: Input, port: str) -> bool:
    """Is it known that the link behind a switch's port is not in use? Then nothing is expected of the port.

    Its GPU is in MIG mode (instances use no NVLink), does not answer (presence.py speaks for it), or the link itself is
    disabled. A port that is down may not tell its far end any more: then the window's start does, and without that it counts.
    """
    snapshots = (inp.snapshot, inp.before) if inp.before is not None else (inp.snapshot,)
    ends = (s.parts.get(port, {}).get("port_remote") for s in snapshots)
    end = next((e for e in ends if isinstance(e, str)), "")
    head, link = entity.split_link(end)
    if link is None or inp.snapshot.gpus is None:
        return False
    gpu = inp.gpus().get(head)
    if gpu is None or gpu.status != OK or gpu.identity.mig is True:
        return True
    return gpu.links.get(link, {}).get("nvlink_state") in _LINK_OUT_OF_USE
