"""Kernel log lines in, events out. Pure.

Forms (seen in drivers from R418 to R590):

- ``NVRM: Xid (PCI:0000:3b:00): 79, pid=123, name=python, text``; pid may be the literal
  ``'<unknown>'``, the name empty, both absent, the prefix ``PCI:`` absent; with MIG
  `` GPU-I:05 GPU-CI:00`` follows the address.
- NVLink 5 Xids (144 to 150) tell severity and link in their text, see catalog/nvlink5.py.
- ``nvidia-nvswitch2: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 text``, followed by
  lines of the same number with severity, engine and data, which are no events.
- A GPU that fell off the bus: a companion line beside Xid 79, or, at driver load, a
  message over several lines without any Xid, with the address on another line than the
  words.
- ``NVRM: GPU at PCI:0000:3b:00: GPU-…`` before a GPU's first Xid: address to UUID.

Only lines that begin with the driver's own prefix count: other kernel lines carry
text that users choose (file names, process names).
"""

from __future__ import annotations

import re
from typing import Final, Iterable, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import nvlink5, sxids
from slurm_nvhc.catalog.xids import FALLEN_OFF_BUS
from slurm_nvhc.model import entity
from slurm_nvhc.model.snapshot import Event
from slurm_nvhc.sense.text import clean

# Xid 79 and its companion line come within a second; 10 s leaves room for a busy console.
# A GPU can not fall off twice in that time.
SAME_FALL_NS: Final = 10_000_000_000
# The message at driver load has three lines, the address on the first: look back first.
_BACK: Final = (-1, -2, -3)
_AHEAD: Final = (1, 2)
_MAX_LINE: Final = 2000

_START = r"^\s*(?:<\d{1,3}>)?\s*(?:\[[\s\d.]{1,24}\]\s*)?(?:kernel:\s*)?"
_XID = re.compile(
    _START + r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{5,20})(?P<mig>[^)]{0,60})\):\s*(?P<code>\d{1,6})(?!\d)[,:]?\s*(?P<rest>.*)$",
    re.DOTALL,
)
_PID = re.compile(r"pid=(?P<pid>\d{1,10}|'?<[^>,]{0,20}>'?)(?:,\s*name=(?P<name>[^,]*))?(?:,|$)")
_SXID = re.compile(
    _START + r"nvidia-nvswitch\d{1,4}: SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{5,20})\):\s*(?P<code>\d{1,6})(?!\d)[,:]?\s*(?P<rest>.*)$",
    re.DOTALL,
)
_SXID_DETAIL = re.compile(r"(?:Severity|Engine|Sub-engine|Data)\b", re.IGNORECASE)
_SXID_FATAL = re.compile(r"(Non-?fatal|Fatal)\b", re.IGNORECASE)
_LINK = re.compile(r"\bLink\s+(\d{1,3})\b", re.IGNORECASE)
_DRIVER = re.compile(_START + r"(?:NVRM:|nvidia(?:\s|-nvlink|-modeset|:))")
_FALLEN = re.compile(r"fallen\s+off\s+the\s+bus", re.IGNORECASE)
# In free text an address must come with its domain: 12:34 may be a time, 10de:2330 a device id.
_ADDRESS = re.compile(r"(?<![0-9a-fA-F:])([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)(?![0-9a-fA-F:])")
_UUID = re.compile(_START + r"NVRM: GPU at (?:PCI:)?(?P<pci>[0-9a-fA-F:.]{5,20}):\s*(?P<uuid>GPU-[0-9a-fA-F-]{4,60})")


class Line(NamedTuple):
    """One kernel log record. seq: the kernel's own sequence number; wall_ns: ns UTC."""

    seq: int
    wall_ns: int
    text: str


def parse(lines: Iterable[Line], boot_id: str) -> tuple[Event, ...]:
    """All events in some consecutive lines, in their order. Lines that are none are passed over.

    Event.ident is ``boot id:sequence number`` of the occurrence's first line: reading the
    same lines again gives the same ident. uuid is filled only where a line says so.
    """
    rows = [line._replace(text=line.text[:_MAX_LINE].replace("\\x0a", "\n")) for line in lines]
    uuids: dict[str, str] = {}
    events: list[Event] = []
    claimed: set[int] = set()
    for index, line in enumerate(rows):
        named = _UUID.match(line.text)
        if named:
            uuids[entity.pci(named["pci"])] = named["uuid"]
            continue
        event = _xid(line) or _sxid(line) or _off_bus(rows, index, claimed)
        if event is None:
            continue
        event = event._replace(ident=f"{boot_id}:{line.seq}", uuid=uuids.get(event.pci, "") if event.kind != "sxid" else "")
        _add(events, event)
    return tuple(events)


def _add(events: list[Event], event: Event) -> None:
    """Append, or fold into the same GPU's fall that is already there."""
    if event.code == FALLEN_OFF_BUS and event.kind != "sxid":
        for at in range(len(events) - 1, -1, -1):
            before = events[at]
            if before.kind == "sxid" or before.code != FALLEN_OFF_BUS or abs(event.at_ns - before.at_ns) > SAME_FALL_NS:
                continue
            # A companion line without an address belongs to the fall beside it.
            if before.pci == event.pci or not event.pci or not before.pci:
                events[at] = _one_fall(before, event)
                return
    events.append(event)


def _one_fall(first: Event, second: Event) -> Event:
    """Two lines about one fall: the Xid line tells more, the first line gives ident and time."""
    told = second if second.kind == "xid" and first.kind != "xid" else first
    return told._replace(
        ident=first.ident,
        at_ns=min(first.at_ns, second.at_ns),
        pci=told.pci or first.pci or second.pci,
        uuid=first.uuid or second.uuid,
    )


def _xid(line: Line) -> Optional[Event]:
    match = _XID.match(line.text)
    if not match:
        return None
    pid, name = 0, ""
    process = _PID.match(match["rest"])
    if process:
        pid = int(process["pid"]) if process["pid"].isdigit() else 0
        name = clean(process["name"] or "", 64)
    code = int(match["code"])
    decoded = nvlink5.decode(code, match["rest"])
    return Event(
        kind="xid",
        code=code,
        at_ns=line.wall_ns,
        pci=entity.pci(match["pci"]),
        text=clean(line.text),
        source="kernel",
        ident="",
        pid=pid,
        process="" if name == "<unknown>" else name,
        fatal=decoded is not None and decoded.fatal,
        link=None if decoded is None else decoded.link,
    )


def _sxid(line: Line) -> Optional[Event]:
    match = _SXID.match(line.text)
    if not match or _SXID_DETAIL.match(match["rest"]):
        return None
    code = int(match["code"])
    said = _SXID_FATAL.match(match["rest"])
    link = _LINK.search(match["rest"])
    return Event(
        kind="sxid",
        code=code,
        at_ns=line.wall_ns,
        pci=entity.pci(match["pci"]),
        text=clean(line.text),
        source="kernel",
        ident="",
        # The line's own word; the catalogue speaks only where it has none.
        fatal=said[1].lower() == "fatal" if said else sxids.is_fatal(code),
        link=int(link[1]) if link else None,
    )


def _off_bus(rows: Sequence[Line], index: int, claimed: set[int]) -> Optional[Event]:
    """The words on this line; the address here, or on the nearest line of the same message."""
    line = rows[index]
    if not _FALLEN.search(line.text) or not _DRIVER.match(line.text):
        return None
    return Event(
        kind="off_bus",
        code=FALLEN_OFF_BUS,
        at_ns=line.wall_ns,
        pci=_address(line.text) or _address_beside(rows, index, claimed),
        text=clean(line.text),
        source="kernel",
        ident="",
    )


def _address(text: str) -> str:
    match = _ADDRESS.search(text)
    return entity.pci(match[1]) if match else ""


def _address_beside(rows: Sequence[Line], index: int, claimed: set[int]) -> str:
    """``claimed`` holds lines whose address another such line has used: two GPUs may go one after the other."""
    for steps in (_BACK, _AHEAD):
        for other in (index + step for step in steps):
            if not 0 <= other < len(rows) or (_FALLEN.search(rows[other].text) and not _XID.match(rows[other].text)):
                break
            near = rows[other]
            if other in claimed or abs(near.wall_ns - rows[index].wall_ns) > SAME_FALL_NS or not _DRIVER.match(near.text):
                continue
            xid = _XID.match(near.text)
            # Another Xid's address is that Xid's; only 79 speaks of the same thing.
            if xid and int(xid["code"]) != FALLEN_OFF_BUS:
                continue
            found = entity.pci(xid["pci"]) if xid else _address(near.text)
            if found:
                claimed.add(other)
                return found
    return ""
