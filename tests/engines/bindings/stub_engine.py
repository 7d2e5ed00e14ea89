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
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.sim.world import World

GPU, LINK = 1, 6
INT_BLANK, FLOAT_BLANK = 0x7FFFFFFFFFFFFFF0, 140737488355328.0
NO_DATA = {"blank": 0, "not_found": 1, "not_supported": 2, "not_permitted": 3}
WORDS = ("<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>")
STATUS = {"stale": -15, "error": -3}
IDENTITY = {50: "model", 52: "nvml_index", 53: "serial", 54: "uuid", 55: "minor", 57: "pci", 67: "mig", 85: "vbios"}
LINK_STATE = {"not_supported": 0, "disabled": 1, "down": 2, "up": 3}
SYSTEM = {"pcie": 1, "nvlink": 2, "memory": 0x10, "inforom": 0x40, "thermal": 0x80, "power": 0x100, "driver": 0x200, "all": 0xFFFFFFFF}
EVERY_ID = {1, 230, 450, *IDENTITY, *cat.BY_ID, *(f.link_entity_id for f in cat.ALL if f.link_entity_id)}

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

    def value(self, kind, entity, field, live):
        only_entities = self._options.get("link_entities")
        if kind == LINK:
            card, number = self._cards()[entity >> 24], (entity >> 8) & 0xFFFF
            name = next(f.name for f in cat.ALL if f.link_entity_id == field)
            return self._raw(card.links[number][name], field)
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
        name, number = cat.BY_ID[field]
        if number is None:
            return self._raw(card.readings[name], field)
        if only_entities or number not in card.links:
            return "i", 0, INT_BLANK + 2, self._at_us
        return self._raw(card.links[number][name], field)

    def _raw(self, reading, field):
        lie = self._w.options.get("kind") if self._w.behaviour == "lying" else ""
        at = self._at_us - (3_600_000_000 if lie == "stale" else 0)
        float_field = cat.BY_ID.get(field, ("", None))[0] in ("power_usage", "power_limit_enforced", "power_limit_default")
        if lie == "sentinel" and not isinstance(reading, NoData):
            reading = NoData("blank")
        if lie == "negative" and not isinstance(reading, NoData):
            reading = -reading - 1
        if isinstance(reading, NoData):
            if reading.kind in STATUS:
                return "i", STATUS[reading.kind], INT_BLANK, 0
            step = NO_DATA[reading.kind]
            return ("d", 0, FLOAT_BLANK + step, at) if float_field else ("i", 0, INT_BLANK + step, at)
        return ("d" if float_field else "i"), 0, reading, at

    def incidents(self):
        ids = {card.identity.uuid: (GPU, gpu) for gpu, card in self._cards().items()}
        return [(SYSTEM[i.system], i.code, 20 if i.result == "fail" else 10, ids.get(i.entity, (0, 0)), i.text) for i in self._w.incidents]


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


def _watched_ids(gpu):
    now = state()
    for found in now["groups"].values():
        if [GPU, gpu] in found["entities"]:
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
