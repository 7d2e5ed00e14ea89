"""Planted faults: parts of the simulated node that err only while data moves through them. Deterministic.

What passes where: data between two GPUs takes the wires that join them, or, where there are none, every link of both to every
switch. GPUs whose links are down move it over PCIe, past every link. A GPU alone uses no link.

Which end counts what is the catalogue's to say (Field.counted_by): what a bad end sends is damaged, so that end counts replays
and the end that receives counts CRC errors. A connector damages both directions.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Iterable, Iterator, Mapping, NamedTuple, NoReturn, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import entity
from slurm_nvhc.model import reading as rd
from slurm_nvhc.sense.sim import inventory, target

if TYPE_CHECKING:
    from slurm_nvhc.sense.sim.world import World

LINK: Final = "link"  # one end of a wire: what it sends is damaged
CONNECTOR: Final = "connector"  # both directions of one wire
GPU: Final = "gpu"  # what it sends over any of its links, or its work alone
SWITCH: Final = "switch"  # what it sends to any GPU
PAIR: Final = "pair"  # two GPUs that can not work together; no counter says so
KINDS: Final = (LINK, CONNECTOR, GPU, SWITCH, PAIR)
NONE: Final = "none"  # as a kind: takes all planted faults away

COUNTERS: Final = "counters"
COMMAND: Final = "command"  # only the exit status of what moves the data
BOTH: Final = "both"
SHOWS: Final = (COUNTERS, COMMAND, BOTH)

LINK_GB_S: Final = 20.0  # what moves over each link, for faults that err per gigabyte; NVLink 3 and 4 carry 25 GB/s each way
_LINK_AT = re.compile(r"^g(\d{1,3})\.link(\d{1,3})$")
_PAIR_AT = re.compile(r"^g(\d{1,3})\+g(\d{1,3})$")
_SWITCH_AT = re.compile(r"^switch(\d{1,2})$")
# What a link counts, on the port at its other end, and on NVLink 5.
_OF_PORTS: Final[Mapping[str, str]] = {
    "nvlink_replay": "port_replay",
    "nvlink_recovery": "port_recovery",
    "nvlink_crc_flit": "port_crc_flit",
    "nvlink_crc_data": "port_crc_data",
}
_USUAL: Final = ("nvlink_replay", "nvlink_crc_flit")
_USUAL_5: Final = ("nvlink5_retry_events", "nvlink5_code_errors")

End = tuple[int, int]  # GPU's index, link's number


class Fault(NamedTuple):
    """at: "g3.link11", "g3", "switch0" or "g1+g5". counters: catalogue names, of links or (kind gpu) of GPUs; () = replay and CRC.

    per_second, per_gb: errors per counter while data passes, one of them 0.
    share: how often it shows at all, 0 to 1. runs: GPUs of a run -> how many of their runs have passed it: what chance goes by.
    """

    kind: str
    at: str
    shows: str = COUNTERS
    per_second: float = 0.0
    per_gb: float = 0.0
    counters: tuple[str, ...] = ()
    share: float = 1.0
    runs: Mapping[str, int] = {}

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "counters": list(self.counters), "runs": dict(self.runs)}


def from_json(raw: Any) -> Fault:
    """KeyError, TypeError or ValueError for what is none."""
    return Fault(**{**raw, "counters": tuple(raw["counters"]), "runs": {str(k): int(n) for k, n in raw["runs"].items()}})


def plant(
    world: World,
    kind: str,
    at: str,
    shows: str,
    per_second: Optional[float],
    per_gb: Optional[float],
    counters: Optional[Sequence[str]],
    share: float,
) -> Fault:
    """A fault that this node can have. Raises InputError naming what is wrong."""
    if kind not in KINDS:
        _wrong("kind", f"{str(kind)[:40]!r} is not known", "known: " + ", ".join((*KINDS, NONE)))
    _check_place(world, kind, at)
    shows = shows or (COMMAND if kind == PAIR else COUNTERS)
    if shows not in SHOWS:
        _wrong("shows", f"{str(shows)[:40]!r} is not known", "known: " + ", ".join(SHOWS))
    if kind == PAIR and shows != COMMAND:
        _wrong("shows", "a pair's fault shows in the command only")
    if per_second is not None and per_gb is not None:
        _wrong("per_gb", "and per_second exclude each other")
    rates = {"per_second": 5.0} if per_second is None and per_gb is None else {"per_second": per_second or 0.0, "per_gb": per_gb or 0.0}
    for name, value in (*rates.items(), ("share", share)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= (1 if name == "share" else 1e9):
            _wrong(name, f"{str(value)[:40]} is not a number from 0 to {'1' if name == 'share' else '1e9'}")
    names = tuple(_field(kind, name) for name in counters or ())
    return Fault(kind, at, shows, float(rates["per_second"]), float(rates.get("per_gb", 0.0)), names, float(share))


def strike(world: World, group: Sequence[int], seconds: float) -> list[str]:
    """Let the GPUs of a group move data among each other for some time: counters grow. What the command that moves it would say."""
    said = [f"GPU {index} does not answer" for index in group if not world.gpus[index].responds or world.gpus[index].status != "ok"]
    kept = []
    for fault in world.faults:
        if _meets(world, fault, group):
            run = "+".join(map(str, sorted(group)))
            before = fault.runs.get(run, 0)
            fault = fault._replace(runs={**fault.runs, run: before + 1})
            if _chance(world, fault, run, before) < fault.share:
                if fault.shows != COMMAND:
                    _count(world, fault, group, seconds)
                if fault.shows != COUNTERS:
                    said.append("the data that arrived is not the data that was sent")
        kept.append(fault)
    world.faults = kept
    return said


# -- what passes where ---------------------------------------------------------------


def passing(world: World, group: Sequence[int]) -> list[End]:
    """The links that carry data when these GPUs send to each other."""
    out = []
    for index in group if len(group) > 1 else ():
        up = {number for number, readings in world.gpus[index].links.items() if readings["nvlink_state"] == "up"}
        peers = {number: _peer(world, (index, number)) for number in up}
        direct = {number for number, peer in peers.items() if peer is not None}
        inside = {number for number in direct if peers[number] in group}
        out += [(index, number) for number in sorted(inside | (up - direct))]
    return out


def _peer(world: World, end: End) -> Optional[int]:
    """The GPU that a link leads straight to; None where it leads to a switch, or nobody knows."""
    return inventory.peer(inventory.PRESETS[world.base], len(world.gpus), *end)


def _far_link(world: World, end: End) -> Optional[End]:
    """The other end of a direct wire: the links between two GPUs are joined in their order."""
    peer = _peer(world, end)
    if peer is None:
        return None
    back = [number for number in sorted(world.gpus[peer].links) if _peer(world, (peer, number)) == end[0]]
    forth = [number for number in sorted(world.gpus[end[0]].links) if _peer(world, (end[0], number)) == peer]
    place = forth.index(end[1])
    return (peer, back[place]) if place < len(back) else None


def _ports(world: World, ends: Iterable[End]) -> Iterator[tuple[str, End]]:
    """The switch ports at the far ends of links, as entities."""
    named = {f"g{gpu}.link{number}": (gpu, number) for gpu, number in ends}
    for name, part in world.parts.items():
        end = named.get(str(part.readings.get("port_remote", "")))
        if end is not None and part.present:
            yield name, end


def _meets(world: World, fault: Fault, group: Sequence[int]) -> bool:
    if fault.kind == GPU:
        index = int(fault.at[1:])
        alone = fault.shows != COUNTERS or any(cat.BY_NAME[name].scope == cat.GPU for name in fault.counters)
        return index in group and (alone or any(end[0] == index for end in passing(world, group)))
    if fault.kind == PAIR:
        return set(_pair(fault.at)) <= set(group)
    if fault.kind == SWITCH:
        return bool(_ports_of(world, fault, passing(world, group)))
    return _end(fault.at) in passing(world, group)


def _ports_of(world: World, fault: Fault, ends: Iterable[End]) -> list[tuple[str, End]]:
    switch = entity.switch(world.switches[int(fault.at.removeprefix("switch"))])
    return [(port, end) for port, end in _ports(world, ends) if entity.whole(port) == switch]


# -- what is counted ------------------------------------------------------------------


def _count(world: World, fault: Fault, group: Sequence[int], seconds: float) -> None:
    amount = max(1, round(fault.per_second * seconds + fault.per_gb * LINK_GB_S * seconds))
    for name in fault.counters:
        if cat.BY_NAME[name].scope == cat.GPU and rd.number(world.gpu(fault.at).readings[name]) is not None:
            world.add(f"{fault.at}.{name}", amount)
    ends = passing(world, group)
    if fault.kind == GPU:
        ends = [end for end in ends if end[0] == int(fault.at[1:])]
    elif fault.kind != SWITCH:
        ends = [_end(fault.at)]
    ports = _ports_of(world, fault, ends) if fault.kind == SWITCH else list(_ports(world, ends))
    for place, sends in _sides(world, fault, ends, ports):
        for name in _names(world, fault):
            facts = cat.BY_NAME[name]
            mine = facts.counted_by in ("", cat.SENDER) if sends else facts.counted_by == cat.RECEIVER
            if mine:
                _add(world, place, name, amount)


def _sides(world: World, fault: Fault, ends: Sequence[End], ports: Sequence[tuple[str, End]]) -> Iterator[tuple[str, bool]]:
    """(target's beginning, whether it is the sending side of a damaged direction). Both are told where both directions are damaged."""
    if fault.kind == SWITCH:
        for port, (gpu, number) in ports:
            yield port, True
            yield f"g{gpu}.link{number}", False
        return
    fars = {end: port for port, end in ports}
    for end in ends:
        here = f"g{end[0]}.link{end[1]}"
        direct = _far_link(world, end)
        far = fars.get(end) or (f"g{direct[0]}.link{direct[1]}" if direct else "")
        for sends in (True, False) if fault.kind == CONNECTOR else (True,):
            yield here, sends
            if far:
                yield far, not sends


def _names(world: World, fault: Fault) -> tuple[str, ...]:
    if fault.counters:
        return tuple(name for name in fault.counters if cat.BY_NAME[name].scope == cat.LINK)
    first = world.gpus[0].links.get(0, {})
    return _USUAL_5 if isinstance(first.get("nvlink_replay"), rd.NoData) else _USUAL


def _add(world: World, place: str, name: str, amount: int) -> None:
    """What has no number now (a port without that counter, a blind engine) counts nothing."""
    if place.startswith("switch:"):
        readings = world.parts[place].readings
        name = _OF_PORTS.get(name, "")
        now = rd.number(readings.get(name))
        if now is not None:
            readings[name] = now + amount
        return
    gpu, number = _end(place)
    if rd.number(world.gpus[gpu].links[number].get(name)) is not None:
        world.add(f"{place}.{name}", amount)


def _chance(world: World, fault: Fault, run: str, before: int) -> float:
    """From 0 to 1, the same each time the same is done."""
    text = f"{world.node}/{fault.kind}/{fault.at}/{run}/{before}"
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


# -- places ---------------------------------------------------------------------------


def _end(at: str) -> End:
    gpu, _, number = at.removeprefix("g").partition(".link")
    return int(gpu), int(number)


def _pair(at: str) -> End:
    one, _, other = at.partition("+")
    return int(one[1:]), int(other[1:])


def _check_place(world: World, kind: str, at: str) -> None:
    forms = {LINK: (_LINK_AT, "g3.link11"), CONNECTOR: (_LINK_AT, "g3.link11"), SWITCH: (_SWITCH_AT, "switch0"), PAIR: (_PAIR_AT, "g1+g5")}
    if kind == GPU:
        if at == "*":
            _wrong("at", "one GPU was expected", "such as g3")
        target.gpu_index(at, len(world.gpus))
        return
    pattern, example = forms[kind]
    found = pattern.match(at) if isinstance(at, str) else None
    if found is None:
        _wrong("at", f"{str(at)[:40]!r} is not the place of a {kind}", f"such as {example}")
    if kind == SWITCH:
        if int(found[1]) >= len(world.switches):
            _wrong("at", f"{at} is not on this node", f"it has {len(world.switches)} switches")
        return
    for number in found.groups() if kind == PAIR else found.groups()[:1]:
        target.gpu_index(f"g{number}", len(world.gpus))
    if kind != PAIR and _end(at)[1] not in world.gpus[_end(at)[0]].links:
        _wrong("at", f"{at} is no link of the GPU")


def _field(kind: str, name: str) -> str:
    of_link = target.field_name(name)
    field = cat.BY_NAME.get(of_link)
    if field is None or field.kind != cat.COUNTER or field.scope not in ((cat.LINK, cat.GPU) if kind == GPU else (cat.LINK,)):
        _wrong("counters", f"{str(name)[:40]!r} is no counter of a {'GPU or link' if kind == GPU else 'link'}", "replay, crc_flit")
    return field.name


def _wrong(key: str, problem: str, hint: str = "") -> NoReturn:
    raise InputError("fault", f"key {key}", problem, hint)
