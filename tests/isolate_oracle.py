"""Nodes with a planted fault, and what a step of `nvhc isolate` would see of it. Knows nothing of how causes are found."""

from __future__ import annotations

import random
from typing import Iterator, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.isolate import board as boards
from slurm_nvhc.isolate import plan
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.model import TRAFFIC, Group, Seen, Step
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.sense.sim.backend import SimBackend
from slurm_nvhc.sense.sim.world import World
from slurm_nvhc.sense.wiring import join

# One of each wiring: an H200 board is wired as an H100's.
TOPOLOGIES = ("hgx-h100-8", "hgx-a100-8", "hgx-b200-8", "v100-8", "hgx-a100-4", "a100-pcie-nvlink-2", "a100-pcie-8")


class Fault(NamedTuple):
    """kind, at: link and connector: an end; gpu: a UUID; switch: an entity; pair: two UUIDs, joined by "+".

    shows: counters, command or both. share: how often.
    """

    kind: str
    at: str
    shows: str = "counters"
    share: float = 1.0
    amount: int = 50


def snapshot(preset: str, gpus: Optional[int] = None) -> Snapshot:
    world = World.preset(preset, gpus=gpus)
    backend = SimBackend("", world, 10.0)
    names = [f.name for f in cat.ALL]
    states = {state.identity.uuid: state for state in backend.gpus(names)}
    found, parts = join(states, backend.switches(names))
    return Snapshot("n1", "sim", "4.6.0", "boot", world.wall_ns, world.boot_ns, gpus=found, parts=parts)


def board(preset: str, gpus: Optional[int] = None) -> Board:
    return boards.of(snapshot(preset, gpus))


def wires(here: Board) -> list[tuple[str, str]]:
    """(end, far end), each wire once; '' where the far end is not known. Links between two GPUs are joined in their order."""
    out: list[tuple[str, str]] = []
    loose: dict[tuple[str, str], list[str]] = {}
    for uuid, links in here.links.items():
        for end in links:
            far = here.fars.get(end, "")
            if far.startswith("GPU-"):
                loose.setdefault((uuid, far), []).append(end)
            else:
                out.append((end, far))
    for (one, other), ends in loose.items():
        if one < other:
            out += list(zip(ends, loose.get((other, one), [])))
    return out


def sides(here: Board, end: str) -> tuple[str, str]:
    """An end and its far end."""
    return next((w if w[0] == end else (w[1], w[0])) for w in wires(here) if end in w)


def owner(end: str) -> str:
    return end.partition("/")[0]


def passes(wire: tuple[str, str], group: Sequence[str]) -> bool:
    near, far = owner(wire[0]), owner(wire[1])
    return len(group) > 1 and all(gpu in group for gpu in (near, far) if gpu.startswith("GPU-"))


class Node:
    """A board with faults. seed: of those that show only at times."""

    def __init__(self, here: Board, *faults: Fault, seed: int = 1) -> None:
        self.board = here
        self.faults = faults
        self.random = random.Random(seed)
        self.wires = wires(here)
        self.five = any("B200" in card.model for card in here.cards)

    def search(self, limits: plan.Limits = plan.USUAL, seen: Sequence[Seen] = ()) -> tuple[Seen, ...]:
        done = list(seen)
        while (step := plan.next_step(self.board, done, limits)) is not None:
            done.append(self.play(step))
        return tuple(done)

    def play(self, step: Step) -> Seen:
        growth: dict[str, dict[str, int]] = {}
        groups = []
        for group in step.groups:
            ok = True
            for fault in self.faults:
                if self._meets(fault, group) and self.random.random() < fault.share:
                    ok = ok and fault.shows == "counters"
                    if fault.shows in ("counters", "both"):
                        self._count(fault, group, growth)
            groups.append(Group(tuple(group), ok, "" if ok else "data differ"))
        return Seen(step, tuple(groups), growth, seconds=30.0)

    def _meets(self, fault: Fault, group: Sequence[str]) -> bool:
        if fault.kind == "gpu":  # "silent": a command between GPUs, never alone
            return fault.at in group and (len(group) > 1 or fault.shows in ("command", "both"))
        if fault.kind == "pair":
            return set(fault.at.split("+")) <= set(group)
        if fault.kind == "switch":
            return len(group) > 1
        return any(fault.at in wire and passes(wire, group) for wire in self.wires)

    def _count(self, fault: Fault, group: Sequence[str], growth: dict[str, dict[str, int]]) -> None:
        for sender, receiver in self._damaged(fault, group):
            self._add(growth, sender, True, fault.amount)
            self._add(growth, receiver, False, fault.amount)

    def _damaged(self, fault: Fault, group: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Directions, as sending end and receiving end."""
        for one, other in self.wires:
            if not passes((one, other), group):
                continue
            for sender, receiver in ((one, other), (other, one)):
                link = fault.kind in ("link", "connector") and fault.at in ((sender,) if fault.kind == "link" else (sender, receiver))
                if link or (fault.kind in ("gpu", "switch") and owner(sender) == fault.at):
                    yield sender, receiver

    def _add(self, growth: dict[str, dict[str, int]], end: str, sends: bool, amount: int) -> None:
        if not end:
            return
        if end.startswith("switch:"):
            field = "port_replay" if sends else "port_crc_flit"
        elif self.five:
            field = "nvlink5_retry_events" if sends else "nvlink5_code_errors"
        else:
            field = "nvlink_replay" if sends else "nvlink_crc_flit"
        row = growth.setdefault(end, {})
        row[field] = row.get(field, 0) + amount


def traffic(seen: Sequence[Seen]) -> int:
    return sum(one.step.kind == TRAFFIC for one in seen)


