"""Where a GPU's links go when they go straight to another GPU: bridged pairs, DGX-1, HGX A100 4-GPU.

DCGM tells for each pair of GPUs which links of the first lead to the second, and not which link of the second
they end in: that is known only where there is one link in each direction. Behind switches it tells nothing of use;
there the switches' side is asked (switches.py).
"""

from __future__ import annotations

from typing import Any, Final, Mapping, Sequence

from slurm_nvhc.model import entity
from slurm_nvhc.sense.dcgm import switches
from slurm_nvhc.sense.dcgm.connection import Connection

MAX_LINKS: Final = 64  # bits of the largest mask (DCGM 4.6)

# GPU -> peer -> links of the GPU that lead there
Wires = Mapping[int, Mapping[int, Sequence[int]]]


def remotes(connection: Connection, uuids: Mapping[int, str]) -> dict[int, dict[int, str]]:
    """{DCGM GPU id: {link: entity at its far end}} for direct links; empty where the engine does not tell.

    uuids: of all GPUs by DCGM id. One call, and one per GPU when there is no switch. Never raises: wiring
    is for naming a part, and not worth a reading.
    """
    try:
        if switches.switch_ids(connection):
            return {}
        wires = {gpu: _wires(connection.bindings.agent.dcgmGetDeviceTopology(connection.handle, gpu)) for gpu in uuids}
    except Exception:
        return {}
    return far_ends(wires, uuids)


def far_ends(wires: Wires, uuids: Mapping[int, str]) -> dict[int, dict[int, str]]:
    """The far end of each link as an entity: a link where there is one between the two GPUs, else the GPU.

    A link that leads to several GPUs leads to a switch: of such a GPU nothing is known.
    """
    out: dict[int, dict[int, str]] = {}
    for gpu, peers in wires.items():
        links = [link for there in peers.values() for link in there]
        if len(links) != len(set(links)):
            continue
        ends = out.setdefault(gpu, {})
        for peer, there in peers.items():
            back = wires.get(peer, {}).get(gpu, ())
            if uuids.get(peer):
                single = len(there) == len(back) == 1
                ends.update(dict.fromkeys(there, entity.link(uuids[peer], back[0]) if single else uuids[peer]))
    return out


def _wires(answer: Any) -> dict[int, list[int]]:
    paths = answer.gpuPaths[: int(answer.numGpus)]
    return {int(path.gpuId): [n for n in range(MAX_LINKS) if int(path.localNvLinkIds) >> n & 1] for path in paths}
