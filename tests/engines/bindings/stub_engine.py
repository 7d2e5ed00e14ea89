"""The engine behind the stand-in bindings: it plays a capture or a simulated node.

Connecting to "unix:///path/of/file" makes the file the engine: a table of captured values
(tests/engines/h100x8.json) or the state of a simulated node. Connecting to anything else
opens a real socket and waits for the line "DCGM <path>", without any time limit, as DCGM's
library does with an engine that does not answer.

What DCGM keeps in its memory (groups, watches) is in "<path>.engine"; how the stub shall
misbehave is in "<path>.stub":
  unknown: ids that the library does not know      refuse: ids that fail a whole live call
  nameless: GPUs that answer all but their UUID
  silent: GPUs of which every driver call fails
  refuse_gpus: GPUs that fail a whole live call    hang / crash: name of a call
  old_s: age of every value in seconds             mismatch: every structure is of another version
  cached_switches: fields of switches and their ports are not read live, but watched by somebody
  unread_switches: the same, but nobody watches them
  refuse_switch_groups: no group takes a switch
  no_switches: status with which listing the switches fails
  addressless: switches that do not give their PCI address
  link_entities: per-link counters exist on LINK entities only
  offset_ns: from the simulated node's clock to the real one
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import time

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity as names
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.sim import parts
from slurm_nvhc.sense.sim.world import World

GPU, SWITCH, LINK = 1, 3, 6
INT_BLANK, FLOAT_BLANK = 0x7FFFFFFFFFFFFFF0, 140737488355328.0
NO_DATA = {"blank": 0, "not_found": 1, "not_supported": 2, "not_permitted": 3}
WORDS = ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>")
STATUS = {"stale": -15, "error": -3}
IDENTITY = {50: "model", 52: "nvml_index", 53: "serial", 54: "uuid", 55: "minor", 57: "pci", 67: "mig", 85: "vbios"}
LINK_STATE = {"not_supported": 0, "disabled": 1, "down": 2, "up": 3}
SYSTEM = {"pcie": 1, "nvlink": 2, "memory": 0x10, "inforom": 0x40, "thermal": 0x80, "power": 0x100, "driver": 0x200, "all": 0xFFFFFFFF}
PACKED = {f.packed_id: f for f in cat.ALL if f.packed_id is not None}
MASK = {f.dcgm_id: [g for g in cat.ALL if g.bits and g.dcgm_id == f.dcgm_id] for f in cat.ALL if f.bits}
PORT_END = {872: 0, 873: 1, 874: 2, 875: 3, 876: 4}  # parts of a port's far end
SWITCH_PCI = {866: 0, 867: 1, 868: 2, 869: 3}
OF_SWITCHES = {*PORT_END, *SWITCH_PCI}
EVERY_ID = {1, 230, *OF_SWITCHES, 450, *IDENTITY, *cat.BY_ID, *PACKED, *MASK, *(f.link_entity_id for f in cat.ALL if f.link_entity_id)}
FLOATS = {f.dcgm_id for f in cat.ALL if f.unit in ("W", cat.PER_BIT)}

_path = ""
_kept: list[socket.socket] = []


def _error(code):
    import dcgm_structs

    return dcgm_structs.DCGMError(code)


# -- how it behaves ------------------------------------------------------------


def options():
    return _document(_path + ".stub")


def reach(call):
    """On the way into a call: it may never come back."""
    said = options()
    if said.get("hang") == call:
        while True:
            signal.pause()
    if said.get("crash") == call:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)
    for link in _kept:
        if call != "connect" and _closed(link):
            raise _error(-21)
    if said.get("mismatch") and call.startswith("dcgm"):
        raise _error(-12)
    if said.get("fail", {}).get(call):
        raise _error(said["fail"][call])


def _closed(link):
    try:
        return link.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def connect(tcp, unix, persist):
    global _path
    if unix and not os.path.exists(unix):
        raise _error(-21)
    _path = unix if unix and os.path.isfile(unix) else _greeting(tcp, unix)
    reach("connect")
    world = _world()
    if world is not None:
        if world.behaviour == "absent":
            raise _error(-21)
        if world.behaviour in ("hung", "crash") and world.options.get("after", "pci") == "pci":
            _end(world)
        if world.watched is None:  # a simulated engine that was restarted
            _write(_path + ".engine", {})
    count("persist" if persist else "connect", 1)


def _greeting(tcp, unix):
    try:
        if unix:
            link = socket.socket(socket.AF_UNIX)
            link.connect(unix)
        else:
            host, _, port = tcp.rpartition(":")
            link = socket.create_connection((host, int(port)))
        _kept.append(link)
        link.sendall(b"HELLO\n")
        line = b""
        while not line.endswith(b"\n"):
            more = link.recv(1)
            if not more:
                raise _error(-21)
            line += more
    except OSError as exc:
        raise _error(-21) from exc
    if not line.startswith(b"DCGM "):
        raise _error(-21)
    return line[5:].strip().decode()


def _end(world):
    if world.behaviour == "hung":
        while True:
            signal.pause()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.Signals[world.options.get("signal", "SIGSEGV")])
    signal.pause()


def known(field):
    return field in EVERY_ID and field not in options().get("unknown", ())


def refusal(wanted, live):
    """Status of a whole call, 0 when it succeeds."""
    world = _world()
    if world is not None and live and world.behaviour in ("hung", "crash") and any(field != 1 for _, _, field in wanted):
        _end(world)
    said = options()
    for kind, entity, field in wanted:
        if live and (field in (230, 450) or 1000 < field < 1100):
            return -3
        if kind == LINK and entity & 0xFF == GPU and not Node(world).has_link_field(entity, field):
            return -3  # observed on 4.6.0: a link entity's field of another NVLink generation
        if field in said.get("refuse", ()) or (kind == GPU and entity in said.get("refuse_gpus", ()) and field not in IDENTITY):
            return -3
    return 0


# -- what it is ------------------------------------------------------------------


def engine():
    document = _document(_path)
    return Capture(document) if "fields" in document else Node(_world())


def _world():
    return None if not _path or "fields" in _document(_path) else World.load(_path)


def _now_us():
    return time.time_ns() // 1000 - int(options().get("old_s", 0)) * 1_000_000


class Capture:
    def __init__(self, document):
        self._d = document
        self.version = document["version"]

    def gpu_ids(self):
        return list(self._d["gpus"])

    def status(self, gpu):
        return 1

    def link_states(self):
        return {gpu: dict(enumerate(self._d["link_states"])) for gpu in self.gpu_ids()}

    def value(self, kind, entity, field, live):
        if kind == LINK:
            return "i", 0, 0, _now_us()
        type_, status, raw = self._d["fields"][str(field)]
        pick = [x[entity] if isinstance(x, list) else x for x in (status, raw)]
        return type_, pick[0], pick[1], _now_us()

    def incidents(self):
        return []

    def switch_ids(self):
        return []

    def port_states(self):
        return {}


class Node:
    def __init__(self, world):
        self._w = world
        self._options = options()
        self._at_us = _now_us()
        self.version = world.engine_version

    def _cards(self):
        if self._w.behaviour == "empty":
            return {}
        cards = [card for card in self._w.gpus if card.listed]
        if self._w.behaviour == "lying" and self._w.options["kind"] == "missing_gpus":
            cards = cards[:-1]
        return {card.identity.dcgm_id: card for card in cards}

    def gpu_ids(self):
        return list(self._cards())

    def status(self, gpu):
        return 1 if self._cards()[gpu].status == "ok" else 4

    def link_states(self):
        return {
            gpu: {n: LINK_STATE[link["nvlink_state"]] for n, link in card.links.items() if link["nvlink_state"] in LINK_STATE}
            for gpu, card in self._cards().items()
        }

    # Switches are numbered in the order of their addresses.
    def _switches(self):
        return [n for n, p in self._w.parts.items() if names.scope(n) == "switch" and p.present]

    def switch_ids(self):
        if self._options.get("no_switches"):
            raise _error(self._options["no_switches"])
        return [] if self._w.behaviour == "empty" else list(range(len(self._switches())))

    def port_states(self):
        """Switch -> port -> state, 0 for none, as wide as the structure."""
        out = {}
        for number in [] if self._options.get("no_switches") else self.switch_ids():
            at = self._switches()[number]
            out[number] = {
                int(n.rpartition("port")[2]): 3 if p.readings["port_state"] == 2 else 2
                for n, p in self._w.parts.items()
                if n.startswith(f"{at}/") and p.present
            }
        return out

    def _of_part(self, kind, number, field, live):
        watched = not live and any(field in ids for ids in _watched_ids(number, kind))
        if live and (self._options.get("cached_switches") or self._options.get("unread_switches")):
            return "i", -3, INT_BLANK, 0
        if not live and not watched and not self._options.get("cached_switches"):
            return "i", -16, INT_BLANK, 0
        at = self._switches()[number if kind == SWITCH else number >> 24]
        if kind == LINK:
            at = f"{at}/port{(number >> 8) & 0xFFFF}"
        if field in SWITCH_PCI:
            known = number not in self._options.get("addressless", ())
            return self._raw(_numbers(at.removeprefix("switch:"))[SWITCH_PCI[field]] if known else NoData("blank"), field)
        if field in PORT_END:
            end = parts.told(self._w.parts, [c.identity.pci for c in self._w.gpus], ("switch_port",), ("port_remote",))[at]["port_remote"]
            if isinstance(end, NoData):
                return self._raw(end, field)
            where, link = names.split_link(end)
            return self._raw([*_numbers(where.removeprefix("pci:")), link][PORT_END[field]], field)
        return self._raw(self._w.parts[at].readings[cat.BY_ID[field][0]], field)

    def topology(self, gpu):
        """Peer -> links that lead there, as the cards' links say of themselves."""
        ids = {card.identity.uuid: other for other, card in self._cards().items()}
        out = {}
        for number, link in self._cards()[gpu].links.items():
            peer = ids.get(str(link["nvlink_remote"]).partition("/")[0])
            if peer is not None:
                out.setdefault(peer, []).append(number)
        return out

    def has_link_field(self, entity, field):
        return self._of_link(entity, field) != NoData("not_supported")

    def _of_link(self, entity, field):
        card, number = self._cards()[entity >> 24], (entity >> 8) & 0xFFFF
        return card.links[number][next(f.name for f in cat.ALL if f.link_entity_id == field)]

    def value(self, kind, entity, field, live):
        if kind == SWITCH or (kind == LINK and entity & 0xFF == SWITCH):
            return self._of_part(kind, entity, field, live)
        only_entities = self._options.get("link_entities")
        if kind == LINK:
            return self._raw(self._of_link(entity, field), field)
        card = self._cards()[entity]
        if not live:
            if not any(field in ids for ids in _watched_ids(entity)):
                return "i", -16, INT_BLANK, 0
            return "i", 0, 0, self._at_us
        if entity in self._options.get("silent", ()):  # the driver's call fails, the engine has not noticed
            return ("i", 0, card.identity.minor, self._at_us) if field in (52, 55) else ("i", 0, INT_BLANK, self._at_us)
        if field == 54 and entity in self._options.get("nameless", ()):
            return "s", 0, WORDS[0], self._at_us
        if card.status != "ok":
            return ("s", 0, WORDS[0], self._at_us) if IDENTITY.get(field) in ("uuid", "pci") else ("i", 0, INT_BLANK, self._at_us)
        if field == 1:
            return "s", 0, self._w.driver, self._at_us
        if field == 57:
            return "s", 0, _pci(card), self._at_us
        if field in IDENTITY:
            raw = getattr(card.identity, IDENTITY[field])
            return ("s" if isinstance(raw, str) else "i"), 0, raw, self._at_us
        if field in MASK:
            return self._raw(_mask(card, MASK[field]), field)
        if field in PACKED:
            return self._raw(_packed(card.readings[PACKED[field].name]), field)
        name, number = cat.BY_ID[field]
        if number is None:
            return self._raw(card.readings[name], field)
        if only_entities or number not in card.links:
            return "i", 0, INT_BLANK + 2, self._at_us
        return self._raw(card.links[number][name], field)

    def _raw(self, reading, field):
        lie = self._w.options.get("kind") if self._w.behaviour == "lying" else ""
        at = self._at_us - (3_600_000_000 if lie == "stale" else 0)
        if lie == "sentinel" and not isinstance(reading, NoData):
            reading = NoData("blank")
        if lie == "negative" and isinstance(reading, (int, float)):
            reading = -reading - 1
        if isinstance(reading, NoData):
            if reading.kind in STATUS:
                return "i", STATUS[reading.kind], INT_BLANK, 0
            step = NO_DATA[reading.kind]
            return ("d", 0, FLOAT_BLANK + step, at) if field in FLOATS else ("i", 0, INT_BLANK + step, at)
        return ("s" if isinstance(reading, str) else "d" if field in FLOATS else "i"), 0, reading, at

    def incidents(self):
        ids = {card.identity.uuid: (GPU, gpu) for gpu, card in self._cards().items()}
        return [(SYSTEM[i.system], i.code, 20 if i.result == "fail" else 10, ids.get(i.entity, (0, 0)), i.text) for i in self._w.incidents]


def _numbers(address):
    """Domain, bus, device and function."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    return [int(domain, 16), int(bus, 16), int(device, 16), int(function)]


def _mask(card, items):
    """NVML's: 1 and 2 for true and false in items of two bits, the number in others, 0 for what is not supported."""
    out = 0
    for field in items:
        shift, width = field.bits
        value = card.readings[field.name]
        if not isinstance(value, NoData):
            out |= ({1: 1, 0: 2}[value] if width == 2 else value) << shift
    return out


def _packed(rate):
    """NVML's: mantissa in bits 8 to 11, exponent in bits 0 to 7; 15 and 255 for no errors."""
    if isinstance(rate, NoData):
        return rate
    if rate == 0:
        return 15 << 8 | 255
    digits, _, exponent = f"{rate:.0e}".partition("e")
    return int(digits) << 8 | -int(exponent)


def _pci(card):
    """As DCGM writes it: eight digits of domain, capital letters."""
    domain, rest = card.identity.pci.split(":", 1)
    return f"{domain:0>8}:{rest}".upper()


# -- what it keeps ------------------------------------------------------------------


def state():
    return {"groups": {}, "field_groups": {}, "next": 2, "calls": {}, **_document(_path + ".engine")}


@contextlib.contextmanager
def change():
    now = state()
    yield now
    if _world() is not None:  # beside a captured table nothing is kept
        _write(_path + ".engine", now)


def count(what, number):
    with change() as now:
        now["calls"].setdefault(what, []).append(number)


def key(number):
    return str(getattr(number, "value", number))


def make(kind, what):
    reach("dcgmGroupCreate")
    with change() as now:
        now[kind][str(now["next"])] = what
        now["next"] += 1
        return now["next"] - 1


def drop(kind, number):
    with change() as now:
        if now[kind].pop(key(number), None) is None:
            raise _error(-5)


def group(number):
    found = state()["groups"].get(key(number))
    if found is None:
        raise _error(-5)
    return found


def watch(group_id, fields, interval_us, keep_s, keep_samples):
    reach("dcgmWatchFields")
    with change() as now:
        now["groups"][key(group_id)]["watched"][key(fields)] = [interval_us, keep_s, keep_samples]
    if _world() is not None:
        with World.edit(_path) as world:
            world.watch()


def _watched_ids(number, kind=GPU):
    now = state()
    for found in now["groups"].values():
        if [kind, number] in found["entities"]:
            for fields in found["watched"]:
                yield now["field_groups"][fields]["ids"]


def samples(group_id, fields, since_us):
    """((kind, entity, field), [(type, status, value, ts), …]) per GPU and field."""
    found, ids = group(group_id), state()["field_groups"][key(fields)]["ids"]
    world = _world()
    if world is None or world.watched is None or key(fields) not in found["watched"]:
        return
    offset = int(options().get("offset_ns", 0))
    node = Node(world)
    cards = {card.identity.dcgm_id: card for card in world.gpus}
    for kind, gpu in found["entities"]:
        uuid = cards[gpu].identity.uuid
        for field in ids:
            if field == 230:
                rows = [("i", 0, INT_BLANK, 1)]
                rows += [("i", 0, e.code, (e.at_ns + offset) // 1000) for e in world.engine_events if e.uuid == uuid]
            elif field in cat.BY_ID:
                taken = world.watched.get(uuid, {}).get(cat.BY_ID[field][0], [])
                rows = [(*node._raw(s.value, field)[:3], (s.at_ns + offset) // 1000) for s in taken]
            else:
                rows = [("s", 0, uuid if field == 54 else _pci(cards[gpu]), 1)]
                if cards[gpu].status != "ok":  # sampled on, without an answer
                    rows.append(("s", 0, WORDS[0], _now_us()))
            rows = [row for row in rows if row[3] >= since_us]
            if rows:
                yield (kind, gpu, field), rows


def _document(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def _write(path, document):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(path + ".new", path)


# -- C functions without a wrapper -----------------------------------------------------


def dcgmHostengineVersionInfo(handle, info):
    reach("dcgmHostengineVersionInfo")
    info._obj.rawBuildInfoString = f"version:{engine().version};arch:x86_64;buildtype:Release".encode()
    return 0


def dcgmGetGpuStatus(handle, gpu, out):
    reach("dcgmGetGpuStatus")
    out._obj.value = engine().status(gpu.value)
    return 0
