"""Links as wires: which two ends belong together, and what the counters of either end say. Pure.

Which end counts what is the catalogue's to say (Field.counted_by).
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model.change import EXACT, Change
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot

_OF_ENDS: Final = tuple(f for f in cat.ALL if f.scope in (cat.LINK, cat.SWITCH_PORT))
# Counted by the sender too, but a link retrains as a whole.
RETRAINED: Final = frozenset({"nvlink_recovery", "port_recovery", "nvlink5_link_recovery", "nvlink5_link_phy_recovery"})
SENT: Final = frozenset(f.name for f in _OF_ENDS if f.counted_by == cat.SENDER) - RETRAINED
RECEIVED: Final = frozenset(f.name for f in _OF_ENDS if f.counted_by == cat.RECEIVER)
REMOTE: Final = ("nvlink_remote", "port_remote")  # readings that tell the far end, as an entity

_ENDS: Final = (cat.LINK, cat.SWITCH_PORT)
_DEVICES: Final = (cat.GPU, cat.SWITCH)


class Wire(NamedTuple):
    """One link. Both ends in the order of their names; or the only end that is known and, beyond it, '' or the far device."""

    end: str
    far: str

    @property
    def ends(self) -> tuple[str, ...]:
        return (self.end, self.far) if is_end(self.far) else (self.end,)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(d for d in (device(self.end), device(self.far)) if d)

    def other(self, end: str) -> str:
        """What is at the other end of ``end``, as far as it is known."""
        return self.end if end == self.far else self.far


class Grown(NamedTuple):
    """Errors that an end counted lately, by where they point."""

    sent: float = 0.0
    received: float = 0.0
    retrained: float = 0.0


def is_end(name: str) -> bool:
    return entity.scope(name) in _ENDS


def device(name: str) -> str:
    """The GPU or switch that an end belongs to; a device itself as it is; '' for anything else."""
    if entity.scope(name) in _DEVICES:
        return name
    return name.rpartition("/")[0] if is_end(name) else ""


def far_ends(snapshot: Snapshot, known: Iterable[GpuIdentity] = ()) -> Mapping[str, str]:
    """End -> its far end (or only the far device), from what GPUs and switches say about their wiring.

    What one end says holds for the other, unless anything says otherwise: then neither is believed.
    known: the node's GPUs as remembered: a port that leads to a lost one tells its PCI address only. A GPU that is
    neither here nor remembered is nobody's far end.
    """
    said: dict[str, str] = {}
    for uuid, gpu in (snapshot.gpus or {}).items():
        for number, readings in gpu.links.items():
            said[entity.link(uuid, number)] = str(readings.get(REMOTE[0], ""))
    for name, readings in snapshot.parts.items():
        if is_end(name):
            said[name] = str(readings.get(REMOTE[1], ""))
    by_address = {f"pci:{row.pci}": row.uuid for row in known if row.pci}
    here = {*(snapshot.gpus or {}), *by_address.values()}
    known_far = {}
    for end, word in said.items():
        head, slash, tail = word.partition("/")
        far = f"{by_address.get(head, head)}{slash}{tail}"
        if device(far) != device(end) and (device(far) in here or device(far).startswith("switch:")):
            known_far[end] = far
    claims: dict[str, set[str]] = {}
    for end, far in known_far.items():
        claims.setdefault(far, set()).add(end)

    def agreed(end: str, far: str) -> bool:
        return claims[far] == {end} and known_far.get(far, end) == end and claims.get(end, {far}) == {far}

    out = {end: far for end, far in known_far.items() if not is_end(far) or agreed(end, far)}
    for end, far in list(out.items()):
        if is_end(far):
            out.setdefault(far, end)
    return out


def wire_of(end: str, fars: Mapping[str, str]) -> Wire:
    """The wire at an end; the same for both its ends."""
    far = fars.get(end, "")
    return Wire(*sorted((end, far))) if is_end(far) else Wire(end, far)


def growth(*changes: Iterable[Change]) -> Mapping[tuple[str, str], float]:
    """(entity, field) -> how much it grew, > 0. Of several windows the largest: each is a lower bound of what happened lately.

    What a counter shows since a reset is left out: all links count errors while they train.
    """
    out: dict[tuple[str, str], float] = {}
    for window in changes:
        for change in window:
            amount = change.amount if change.kind == EXACT and change.amount is not None else 0.0
            if amount > out.get((change.entity, change.field), 0.0):
                out[change.entity, change.field] = amount
    return out


def by_end(grown: Mapping[tuple[str, str], float]) -> Mapping[str, Grown]:
    """What each end of a link counted. Ends that counted nothing are left out."""
    out: dict[str, Grown] = {}
    for (name, field), amount in sorted(grown.items()):
        was = out.get(name, Grown())
        if field in SENT:
            out[name] = was._replace(sent=was.sent + amount)
        elif field in RECEIVED:
            out[name] = was._replace(received=was.received + amount)
        elif field in RETRAINED:
            out[name] = was._replace(retrained=was.retrained + amount)
    return out
