"""One list of events out of the kernel's and the engine's. Pure.

The engine learns of Xids from the driver and tails the kernel log itself, so most
occurrences are seen twice. The kernel's record is kept: it has the text, the process
and an identity that survives the engine.
"""

from __future__ import annotations

from typing import Final, Mapping, Sequence

from slurm_nvhc.model.snapshot import Event

# How far the two stamps of one occurrence can be apart. The engine's is the wall clock; the kernel log's
# is made from printk's own clock, which drifts against it while a node is up (30 s were observed).
SAME_EVENT_NS: Final = 60_000_000_000
# How late the engine tells of an event: its loop wakes about once per second; 5 s covers a busy engine.
ENGINE_LATE_NS: Final = 5_000_000_000


def merge(
    kernel: Sequence[Event],
    reported: Sequence[Event],
    engine: Sequence[Event],
    uuids: Mapping[str, str],
    engine_from_ns: int = 0,
) -> tuple[Event, ...]:
    """Every occurrence once, in order of time.

    kernel:   new records of the kernel log
    reported: records that an earlier read has reported: never returned again, only recognised
    engine:   the engine's own events, as far as it remembers
    uuids:    PCI address -> UUID of the GPUs present
    engine_from_ns: engine events before this moment were reported with an earlier read

    Records and engine events of one GPU and number are paired one to one, so that two
    occurrences that both sources tell of stay two.
    """
    addresses = {uuid: pci for pci, uuid in uuids.items()}
    known = [_named(e, uuids) for e in (*kernel, *reported)]
    told = list({e.ident: _named(e, uuids) for e in engine}.values())
    out = known[: len(kernel)]
    for place in dict.fromkeys(_place(e, addresses) for e in told):
        own = [e for e in told if _place(e, addresses) == place]
        alone = _without_twin(own, [e for e in known if _place(e, addresses) == place])
        out += [e for e in alone if e.at_ns >= engine_from_ns]
    return tuple(sorted(out, key=lambda e: e.at_ns))


def _named(event: Event, uuids: Mapping[str, str]) -> Event:
    if event.uuid or event.kind == "sxid" or not event.pci:
        return event
    return event._replace(uuid=uuids.get(event.pci, ""))


def _place(event: Event, addresses: Mapping[str, str]) -> tuple[bool, str, int]:
    """What must agree: GPU (by address: a GPU that fell has lost its UUID here) and number. A switch is no GPU."""
    return event.kind == "sxid", addresses.get(event.uuid, "") or event.pci or event.uuid, event.code


def _without_twin(engine: Sequence[Event], kernel: Sequence[Event]) -> list[Event]:
    """The engine's events that no record is left for, both taken in order of time: the drift is the same for all."""
    records = sorted(e.at_ns for e in kernel)
    alone: list[Event] = []
    at = 0
    for event in sorted(engine, key=lambda e: e.at_ns):
        while at < len(records) and records[at] < event.at_ns - SAME_EVENT_NS:
            at += 1
        if at < len(records) and records[at] <= event.at_ns + SAME_EVENT_NS:
            at += 1
        else:
            alone.append(event)
    return alone
