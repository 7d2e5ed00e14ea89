"""The reader's reply, checked line by line. Pure; never raises.

Whatever can not be is replaced by no data and told in ``lies``: a wrong reply is our
monitor's trouble and never a GPU's fault.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.model import entity
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Event, GpuIdentity, GpuState, PciGpu, Trouble
from slurm_nvhc.sense.text import MAX_NAME, clean
from slurm_nvhc.sense.values import check

_UUID = re.compile(r"^GPU-[0-9A-Za-z-]{1,64}$")
_LIMIT: Final = 2**63
MAX_LINKS: Final = 36  # NVLink 5 and Rubin; the largest array of DCGM
_STATUSES: Final = (snap.OK, snap.LOST, snap.UNRESPONSIVE)
_KINDS: Final = ("xid", "sxid", "off_bus")

_FIELDS: Final[Mapping[str, Mapping[str, cat.Field]]] = {
    scope: {f.name: f for f in cat.ALL if f.scope == scope} for scope in (cat.GPU, cat.LINK, *cat.PART_SCOPES)
}
_GPU_FIELDS: Final = _FIELDS[cat.GPU]
_LINK_FIELDS: Final = _FIELDS[cat.LINK]
_SUMS: Final = tuple(f for f in cat.ALL if f.sum_of)  # of GPUs
_PARTS: Final = {
    "host": re.compile(r"^(?:node|rdma:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/port\d{1,3})$"),
    "switches": re.compile(r"^switch:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?:/port\d{1,3})?$"),
}


class Reply(NamedTuple):
    """What arrived. A part that did not is None; ``last`` is the last part that did, '' for none.

    kernel: (new events, events reported by an earlier read, cursor) when the log could be read
    gpus:   None when no listing was obtained
    lies:   what was impossible, one phrase each
    done:   the reader said that it is through
    """

    clock: Optional[tuple[int, int, str]] = None
    kernel: Optional[tuple[tuple[Event, ...], tuple[Event, ...], str]] = None
    pci: Optional[tuple[PciGpu, ...]] = None
    engine: Optional[tuple[str, str, Optional[int]]] = None
    gpus: Optional[Mapping[str, GpuState]] = None
    parts: Mapping[str, Mapping[str, Reading]] = {}
    events: tuple[Event, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    lies: tuple[str, ...] = ()
    done: bool = False
    last: str = ""


class _Twice(dict[str, Any]):
    """A JSON object in which a name came twice."""

    names: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    twice = _Twice(plain)
    keys = [k for k, _ in pairs]
    twice.names = tuple(sorted({k for k in keys if keys.count(k) > 1}))
    return twice


def decode(text: str, asked: Sequence[str]) -> Reply:
    """Check a whole reply. ``asked`` are the catalogue names of the request: what lacks becomes no data."""
    reply = Reply()
    lies: list[str] = []
    lines = text.split("\n")
    # Without its newline the last line is a part that was still being written: dropped, not a lie.
    for line in lines[:-1]:
        try:
            part = json.loads(line, object_pairs_hook=_object)
            name = part["part"]
        except (ValueError, RecursionError, KeyError, TypeError):
            lies.append("a line that is no part of a reply")
            continue
        if name == "done":
            reply = reply._replace(done=True)
            continue
        take = _TAKE.get(name) if isinstance(name, str) else None
        if take is None:
            lies.append(f"an unknown part {clean(str(name), 30)!r}")
            continue
        reply = take(reply, part, asked, lies)
        if name != "trouble":
            reply = reply._replace(last=name)
    return reply._replace(lies=tuple(lies))


def _clock(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    wall, boot, boot_id = _int(part.get("wall_ns")), _int(part.get("boot_ns")), clean(part.get("boot_id"), MAX_NAME)
    if wall is None or boot is None:
        lies.append("a clock that is no time")
        return reply
    return reply._replace(clock=(wall, boot, boot_id))


def _kernel_log(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    if part.get("known") is not True:
        return reply
    new = _event_list(part.get("events"), "kernel", lies)
    return reply._replace(kernel=(new, _event_list(part.get("reported"), "kernel", lies), clean(part.get("cursor"), 200)))


def _pci(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    listing = part.get("gpus")
    if listing is None:
        return reply
    out: dict[str, PciGpu] = {}
    for item in listing if isinstance(listing, list) else [{}]:
        item = item if isinstance(item, dict) else {}
        address = entity.pci(item["pci"]) if isinstance(item.get("pci"), str) else ""
        if not address or not isinstance(item.get("responds"), bool):
            lies.append("a PCI device without an address")
            continue
        out[address] = PciGpu(address, item["responds"])
    return reply._replace(pci=tuple(out.values()))


def _engine(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    loaded = part.get("driver_loaded_ns")
    if loaded is not None and _int(loaded) is None:
        lies.append("a driver load time that is no time")
    return reply._replace(engine=(clean(part.get("version"), MAX_NAME), clean(part.get("driver"), MAX_NAME), _int(loaded)))


def _gpus(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    listing = part.get("gpus")
    if not isinstance(listing, dict):
        lies.append("a GPU listing that is none")
        return reply
    doubtful = set(listing.names) if isinstance(listing, _Twice) else set()
    out: dict[str, GpuState] = {}
    for uuid, value in listing.items():
        if not _UUID.match(uuid):
            # Who is missing can not be told from a listing with a nameless GPU in it: no listing.
            lies.append(f"a GPU with the UUID {clean(uuid, 40)!r}")
            return reply
        state = _gpu(uuid, value, asked, lies)
        if uuid in doubtful:
            lies.append(f"{uuid} is listed twice")
            state = state._replace(readings={k: NoData(rd.ERROR, "the GPU is listed twice") for k in state.readings}, links={})
        out[uuid] = state
    return reply._replace(gpus=_distinct_addresses(out, lies))


def _parts(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    """What the node has beside its GPUs: "host" tells of the node and its RDMA ports, "switches" of switches and theirs."""
    given = part.get("parts")
    if not isinstance(given, dict):
        lies.append("a list of parts that is none")
        return reply
    out = dict(reply.parts)
    for name, raw in given.items():
        if not _PARTS[part["part"]].match(name):
            lies.append(f"a part of the node called {clean(name, 40)!r}")
            continue
        out[name] = _readings(raw, _FIELDS[entity.scope(name)], asked, name, lies)
    return reply._replace(parts=out)


def _distinct_addresses(gpus: dict[str, GpuState], lies: list[str]) -> dict[str, GpuState]:
    """Two GPUs can not share an address; which of them has it is not ours to guess."""
    owners: dict[str, list[str]] = {}
    for uuid, gpu in gpus.items():
        if gpu.identity.pci:
            owners.setdefault(gpu.identity.pci, []).append(uuid)
    for address, uuids in owners.items():
        if len(uuids) > 1:
            lies.append(f"{len(uuids)} GPUs at {address}")
            for uuid in uuids:
                gpus[uuid] = gpus[uuid]._replace(identity=gpus[uuid].identity._replace(pci=""))
    return gpus


def _gpu(uuid: str, value: Any, asked: Sequence[str], lies: list[str]) -> GpuState:
    value = value if isinstance(value, dict) else {}
    identity = _identity(uuid, value.get("identity"), lies)
    status = value.get("status")
    if status not in _STATUSES:
        lies.append(f"{uuid} has an unknown status")
        # Not "lost": that would make a GPU's fault out of a wrong reply.
        return GpuState(identity, snap.OK, {n: NoData(rd.ERROR, "unknown status") for n in asked if n in _GPU_FIELDS}, {})
    readings = _readings(value.get("readings"), _GPU_FIELDS, asked, uuid, lies)
    readings |= {f.name: _sum([readings.get(part) for part in f.sum_of]) for f in _SUMS if f.name in asked}
    links: dict[int, dict[str, Reading]] = {}
    raw_links = value.get("links")
    if not isinstance(raw_links, dict):
        lies.append(f"{uuid} has no list of links")
        raw_links = {}
    for number, raw in raw_links.items():
        if not (number.isascii() and number.isdigit() and int(number[:4]) < MAX_LINKS and len(number) <= 2):
            lies.append(f"{uuid} has a link {clean(number, 12)!r}")
            continue
        links[int(number)] = _readings(raw, _LINK_FIELDS, asked, entity.link(uuid, int(number)), lies)
    return GpuState(identity, str(status), readings, dict(sorted(links.items())))


def _sum(parts: Sequence[Optional[Reading]]) -> Reading:
    """No data in one part is no data: a sum of the rest could hide a fault."""
    total: float = 0
    for part in parts:
        if isinstance(part, NoData):
            return part
        value = rd.number(part)
        if value is None:
            return NoData(rd.BLANK, "a part of the sum was not read")
        total += value
    return total


def _readings(raw: Any, known: Mapping[str, cat.Field], asked: Sequence[str], where: str, lies: list[str]) -> dict[str, Reading]:
    if not isinstance(raw, dict):
        lies.append(f"{where} has no readings")
        raw = {}
    out: dict[str, Reading] = {}
    for name, value in raw.items():
        field = known.get(name)
        if field is None:
            lies.append(f"{where} has a field {clean(name, 40)!r}")
            continue
        reading, lie = check(field, value)
        if lie:
            lies.append(f"{where} {name}: {lie}")
        out[name] = reading
    for name in asked:
        if name in known and name not in out:
            out[name] = NoData(rd.BLANK, "not in the reply")
    return out


def _identity(uuid: str, raw: Any, lies: list[str]) -> GpuIdentity:
    raw = raw if isinstance(raw, dict) else {}
    if raw.get("uuid") != uuid:
        lies.append(f"{uuid} says that it is another GPU")
    address = raw.get("pci")
    pci = entity.pci(address) if isinstance(address, str) else ""
    if address and not pci:
        lies.append(f"{uuid} has the PCI address {clean(str(address), 24)!r}")
    numbers: dict[str, Any] = {}
    for key in ("minor", "nvml_index", "dcgm_id"):
        numbers[key] = _int(raw.get(key))
        if raw.get(key) is not None and numbers[key] is None:
            lies.append(f"{uuid} has a {key} that is no number")
    words: dict[str, Any] = {key: _word(raw.get(key)) for key in ("serial", "model", "slot", "vbios")}
    mig = raw.get("mig")
    return GpuIdentity(uuid=uuid, pci=pci, mig=mig if isinstance(mig, bool) else None, **numbers, **words)


def _word(value: Any) -> str:
    text = clean(value, MAX_NAME)
    return "" if text.startswith("<<<") and text.endswith(">>>") else text  # DCGM's text for no value


def _events(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    return reply._replace(events=_event_list(part.get("events"), "engine", lies))


def _event_list(raw: Any, source: str, lies: list[str]) -> tuple[Event, ...]:
    out = []
    for item in raw if isinstance(raw, list) else [None]:
        event = _event(item, source) if isinstance(item, dict) else None
        if event is None:
            lies.append(f"an event of the {source} that is none")
        else:
            out.append(event)
    return tuple(out)


def _event(raw: Mapping[str, Any], source: str) -> Optional[Event]:
    code, at, ident = _int(raw.get("code")), _int(raw.get("at_ns")), clean(raw.get("ident"), 200)
    kind = raw.get("kind")
    if kind not in _KINDS or code is None or at is None or not ident:
        return None
    address, uuid = raw.get("pci"), raw.get("uuid")
    return Event(
        kind=str(kind),
        code=code,
        at_ns=at,
        pci=entity.pci(address) if isinstance(address, str) else "",
        text=clean(raw.get("text")),
        source=source,
        ident=ident,
        uuid=uuid if isinstance(uuid, str) and _UUID.match(uuid) else "",
        pid=_int(raw.get("pid")) or 0,
        process=clean(raw.get("process"), 64),
        fatal=raw.get("fatal") is True,
        link=_int(raw.get("link")),
    )


def _trouble(reply: Reply, part: Mapping[str, Any], asked: Sequence[str], lies: list[str]) -> Reply:
    code = part.get("code")
    if not isinstance(code, str) or code not in BY_CODE:
        code = "MON-READER"
    trouble = Trouble(code, clean(part.get("where"), 40) or "reader", clean(part.get("detail")))
    return reply._replace(troubles=(*reply.troubles, trouble))


def _int(value: Any) -> Optional[int]:
    """A whole number that is not negative and fits 63 bits, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
        return None
    return value


_TAKE: Final[Mapping[str, Callable[[Reply, Mapping[str, Any], Sequence[str], list[str]], Reply]]] = {
    "clock": _clock,
    "kernel_log": _kernel_log,
    "pci": _pci,
    "engine": _engine,
    "gpus": _gpus,
    "host": _parts,
    "switches": _parts,
    "events": _events,
    "trouble": _trouble,
}
