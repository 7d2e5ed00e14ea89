"""What a search is about: the node's GPUs, their links, and where the links lead. Pure.

    Snapshot ─► Board

A link is a *wire* with two ends. Each end counts errors of its own; a switch's end is its port. Where the far end of a link is
not known (NVLink 5: the switches are not the host's; V100), its parts are told less precisely, and nothing is guessed.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Optional

from slurm_nvhc.judge.wiring import device, far_ends, is_end
from slurm_nvhc.model import entity
from slurm_nvhc.model.snapshot import OK, Snapshot
from slurm_nvhc.model.suspect import place

# Links in these states carry no traffic: a PCIe board without a bridge, a port that is switched off.
_UNUSED: Final = ("down", "disabled", "not_supported")


class Card(NamedTuple):
    """A GPU where it sits. name: for people, "gpu3"; slot, pci, serial: '' where they were not told."""

    uuid: str
    name: str
    pci: str = ""
    slot: str = ""
    serial: str = ""
    model: str = ""


class Board(NamedTuple):
    """cards: the GPUs of the search, in the order of the snapshot; GPUs that are left out of it are not here.

    links: UUID -> its links that are in use, as entities, in the order of their numbers
    fars:  end -> its far end, or only the device there ("GPU-…"), as far as it is known; of switches' ports too
    ports: switch -> its ports, as entities
    names: UUID -> name, of all the node's GPUs: also of those that are left out
    """

    cards: tuple[Card, ...]
    links: Mapping[str, tuple[str, ...]] = {}
    fars: Mapping[str, str] = {}
    ports: Mapping[str, tuple[str, ...]] = {}
    names: Mapping[str, str] = {}

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(card.uuid for card in self.cards)

    @property
    def switches(self) -> tuple[str, ...]:
        return tuple(self.ports)

    @property
    def direct(self) -> bool:
        """Do links lead from GPU to GPU?"""
        return any(entity.scope(device(far)) == "gpu" for end, far in self.fars.items() if device(end) in self.links)

    def name(self, what: str) -> str:
        """An entity for people: "gpu3 link11", "switch 0000:c3:00.0 port5"."""
        return place(what, self.names)

    def far_device(self, end: str) -> str:
        """The GPU or switch that an end leads to, '' when it is not known."""
        return device(self.fars.get(end, ""))

    def card(self, uuid: str) -> Optional[Card]:
        return next((card for card in self.cards if card.uuid == uuid), None)


def of(snapshot: Snapshot, uuids: Optional[Iterable[str]] = None) -> Board:
    """The board that a snapshot shows; ``uuids``: only these GPUs are searched. GPUs that do not answer are left out."""
    known = snapshot.gpus or {}
    wanted = set(known) if uuids is None else set(uuids)
    names = {u: g.identity.name for u, g in known.items()}
    chosen = {uuid: gpu for uuid, gpu in known.items() if uuid in wanted and gpu.status == OK}
    links = {
        uuid: tuple(entity.link(uuid, n) for n, readings in sorted(gpu.links.items()) if readings.get("nvlink_state") not in _UNUSED)
        for uuid, gpu in chosen.items()
    }
    ports: dict[str, tuple[str, ...]] = {name: () for name in sorted(snapshot.parts) if entity.scope(name) == "switch"}
    for name in sorted(snapshot.parts):
        if entity.scope(name) == "switch_port":
            ports[device(name)] = (*ports.get(device(name), ()), name)
    return Board(
        cards=tuple(
            Card(u, names[u], g.identity.pci, g.identity.slot, g.identity.serial, g.identity.model) for u, g in chosen.items()
        ),
        links=links,
        fars={end: far for end, far in far_ends(snapshot).items() if is_end(end)},
        ports=ports,
        names=names,
    )
