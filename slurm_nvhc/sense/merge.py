"""One list of events out of the kernel's and the engine's. Pure.

The engine learns of Xids from the driver and tails the kernel log itself, so most
occurrences are seen twice. The kernel's record is kept: it has the text, the process
and an identity that survives the engine.
"""

from __future__ import annotations

from typing import Final, Mapping, Sequence

from slurm_nvhc.model.snapshot import Event

# The engine's event loop wakes about once per second; 5 s covers a busy engine.
SAME_EVENT_NS: Final = 5_000_000_000


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
    """
    known = [_named(e, uuids) for e in (*kernel, *reported)]
    out = known[: len(kernel)]
    seen: set[str] = set()
    for event in (_named(e, uuids) for e in engine):
        if event.at_ns < engine_from_ns or event.ident in seen:
            continue
        seen.add(event.ident)
        if not any(_same(event, other) for other in known):
            out.append(event)
    return tuple(sorted(out, key=lambda e: e.at_ns))


def _named(event: Event, uuids: Mapping[str, str]) -> Event:
    if event.uuid or event.kind == "sxid" or not event.pci:
        return event
    return event._replace(uuid=uuids.get(event.pci, ""))


def _same(a: Event, b: Event) -> bool:
    if a.code != b.code or "sxid" in (a.kind, b.kind) or abs(a.at_ns - b.at_ns) > SAME_EVENT_NS:
        return False
    return bool((a.uuid and a.uuid == b.uuid) or (a.pci and a.pci == b.pci))
