"""What counted errors over a step, and what can not be told: two snapshots in, growth and unread parts out. Pure."""

from __future__ import annotations

from typing import Collection, Final, Mapping, NamedTuple

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.compare import compare
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import OK, Event, Snapshot

_NO_ERRORS: Final = ("nvlink5_tx_packets", "nvlink5_rx_packets")
# Everything that counts errors. A GPU's sums over its links too: where links do not say it themselves they are all there is.
FIELDS: Final = frozenset(
    f.name
    for f in cat.ALL
    if f.kind == cat.COUNTER
    and f.scope in (cat.GPU, cat.LINK, cat.SWITCH_PORT)
    and f.unit not in ("ns", "bytes")
    and f.name not in _NO_ERRORS
)
GONE: Final = "not seen after the step"
_STATES: Final = {cat.LINK: "nvlink_state", cat.SWITCH_PORT: "port_state"}
_PORT_ACTIVE: Final = 2


class Counted(NamedTuple):
    """As in model.Seen."""

    growth: Mapping[str, Mapping[str, int]]
    unread: Mapping[str, str]
    events: tuple[str, ...]


def between(before: Snapshot, after: Snapshot, uuids: Collection[str]) -> Counted:
    """Over a step, of these GPUs, their links and the switches' ports.

    A counter that was reset says nothing: all links count errors while they train. A link that went down "grew" by 1 in its state.
    A counter that gives no data before and after is one that this node does not have, as long as the part has others.
    """
    first, last = _in_use(before, uuids), _in_use(after, uuids)
    went_down = [name for name in first if name not in last and _says_down(after, name)]
    growth: dict[str, dict[str, int]] = {name: {_STATES[entity.scope(name)]: 1} for name in went_down}
    unread = {name: GONE for name in first if name not in last and name not in growth}
    unread.update((name, "none of its error counters can be read" if name in first else "not seen before the step") for name in last)
    blind: dict[str, str] = {}
    for change in compare(before, after, uuids):
        if change.field not in FIELDS or change.entity not in last or _never_read(change):
            continue
        if change.kind != ch.EXACT:
            # One counter of a part that can not be read may be the one that grew.
            blind.setdefault(change.entity, f"{cat.BY_NAME[change.field].label}: {change.why}")
            continue
        unread.pop(change.entity, None)
        if change.amount:
            growth.setdefault(change.entity, {})[change.field] = int(change.amount)
    return Counted(growth, {**unread, **blind}, tuple(dict.fromkeys(_line(event) for event in after.events)))


def _in_use(snapshot: Snapshot, uuids: Collection[str]) -> dict[str, None]:
    """GPUs, their links and the ports that are up, as an ordered set. Of a port whose state is not known it is assumed."""
    out: dict[str, None] = {}
    for uuid, gpu in (snapshot.gpus or {}).items():
        if uuid in uuids and gpu.status == OK:
            out[uuid] = None
            out.update((entity.link(uuid, n), None) for n, readings in gpu.links.items() if readings.get("nvlink_state") == "up")
    for name, readings in snapshot.parts.items():
        if entity.scope(name) == cat.SWITCH_PORT and not _inactive(readings.get("port_state")):
            out[name] = None
    return out


def _inactive(state: object) -> bool:
    return isinstance(state, int) and state != _PORT_ACTIVE


def _says_down(snapshot: Snapshot, name: str) -> bool:
    """Does a link or port itself say that it is not up? One that says nothing may be."""
    head, number = entity.split_link(name)
    if number is not None:
        gpu = (snapshot.gpus or {}).get(head)
        return gpu is not None and gpu.links.get(number, {}).get("nvlink_state") in ("down", "disabled")
    return name in snapshot.parts and _inactive(snapshot.parts[name].get("port_state"))


def _never_read(change: Change) -> bool:
    sides: tuple[Reading | None, ...] = (change.before, change.after)
    return all(side is None or isinstance(side, NoData) for side in sides)


def _line(event: Event) -> str:
    """"Xid 74 on GPU-…/link11", "SXid 20034 on switch:0000:c1:00.0/port30"."""
    if event.kind == "sxid":
        place = entity.switch(event.pci) if event.link is None else entity.switch_port(event.pci, event.link)
        return f"SXid {event.code} on {place}"
    owner = event.uuid or f"pci:{event.pci}"
    return f"Xid {event.code} on {owner if event.link is None else entity.link(owner, event.link)}"
