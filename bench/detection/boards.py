"""Healthy nodes to start from: each board of the simulated node, read once through the real reader.

So the readings, and what a generation lacks, are those that hooks get; nothing of it is written here a second time.
"""

from __future__ import annotations

import functools
import os
import tempfile
from typing import Mapping, NamedTuple

from slurm_nvhc.model import entity
from slurm_nvhc.model.reading import number
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.sim.world import World

READING_S = 60.0  # the deadline of the one reading; a busy machine may need long

# Links of a GPU per NVSwitch, where the reading does not tell the far ends. HGX A100: 2 to each of 6;
# HGX H100 and H200: 5, 4, 4, 5 (NVIDIA's fabric manager guide).
_SPLIT: Mapping[str, tuple[int, ...]] = {"hgx-a100-8": (2,) * 6, "hgx-h100-8": (5, 4, 4, 5), "hgx-h200-8": (5, 4, 4, 5)}


class Board(NamedTuple):
    """snapshot: the node at rest. remote: (GPU, link) -> entity at the far end, as read; switch_of: the same as a switch's address.

    counts_4, counts_5: links have counters of NVLink up to 4, of NVLink 5. fields: what the GPUs of this board read.
    """

    name: str
    snapshot: Snapshot
    gpus: int
    links: int
    remote: Mapping[tuple[int, int], str]
    switch_of: Mapping[tuple[int, int], str]
    counts_4: bool
    counts_5: bool
    fields: frozenset[str]


@functools.cache
def board(name: str) -> Board:
    """Raises RuntimeError when the simulated node does not answer."""
    with tempfile.TemporaryDirectory(prefix="nvhc-bench-") as folder:
        path = os.path.join(folder, "world.json")
        World.preset(name).save(path)
        snapshot = read_snapshot("n1", Engine("sim", world=path), READING_S)
    if not snapshot.gpus or snapshot.troubles:
        raise RuntimeError(f"{name}: no reading of the simulated node: {'; '.join(t.detail for t in snapshot.troubles)}")
    gpus = list(snapshot.gpus.values())
    first = gpus[0]
    up = [n for n, readings in first.links.items() if readings.get("nvlink_state") == "up"]
    far_ends = [((g, n), readings.get("nvlink_remote")) for g, gpu in enumerate(gpus) for n, readings in gpu.links.items()]
    remote = {place: far for place, far in far_ends if isinstance(far, str)}
    return Board(
        name,
        snapshot,
        len(gpus),
        len(up),
        remote,
        _switches(name, len(gpus), remote),
        counts_4=bool(up) and number(first.links[up[0]].get("nvlink_replay")) is not None,
        counts_5=bool(up) and number(first.readings.get("nvlink5_symbol_errors")) is not None,
        fields=frozenset(name for name, value in first.readings.items() if number(value) is not None),
    )


def _switches(name: str, gpus: int, remote: Mapping[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    if remote:
        return {place: far.partition("/")[0] for place, far in remote.items() if entity.scope(far) == "switch_port"}
    out: dict[tuple[int, int], str] = {}
    for gpu in range(gpus):
        link = 0
        for number_, count in enumerate(_SPLIT.get(name, ())):
            for _ in range(count):
                out[gpu, link] = f"switch:{number_}"
                link += 1
    return out
