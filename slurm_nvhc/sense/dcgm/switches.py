"""NVSwitches and their ports, as far as the engine sees them (its NvSwitch module with NSCQ: HGX A100 to H200).

Where there is no such module, and on NVLink 5, whose switches are not the host's, there is no
switch: that is no trouble. A switch is called by its PCI address; one without is left out, and said.

The module fetches its fields when they are watched. Whether an engine also reads them live is found
out with the address of the first switch; where it does not, all is taken from what is watched
(switch_watch.py has that done).
"""

from __future__ import annotations

import time
from typing import Final, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.dcgm import live, status
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.dcgm.live import LINK, SWITCH, Entity, Table
from slurm_nvhc.sense.values import sentinel

# Ids 700 to 860 meant other things before DCGM 3 (latency and bandwidth of ports).
FIRST_MAJOR: Final = 3
DOMAIN, BUS, DEVICE, FUNCTION = PCI = (866, 867, 868, 869)
REMOTE: Final = (872, 873, 874, 875)  # the same of what is at the other end of a port
REMOTE_LINK: Final = 876
# A call takes 64 entities before DCGM 4 (DCGM_GROUP_MAX_ENTITIES); an NVSwitch has no more ports.
MAX_ENTITIES: Final = 64
# What is watched is fetched every 30 s; as old as this it is not of now (the age of dcgm/backend.py).
STALE_S: Final = 60.0
_NO_LINK: Final = 0  # DcgmNvLinkLinkState: there is no such port
_MAX_LINK: Final = 255
_UNKNOWN_STATE: Final = -1

Parts = dict[str, dict[str, Reading]]


def read(connection: Connection, version: str, fields: Sequence[str]) -> tuple[Parts, str]:
    """({entity: the readings asked for}, what went wrong or ''). Raises PartFailed when the engine itself is in trouble."""
    wanted = [cat.BY_NAME[name] for name in fields]
    of_switches = [f for f in wanted if f.scope == cat.SWITCH]
    of_ports = [f for f in wanted if f.scope == cat.SWITCH_PORT]
    if not (of_switches or of_ports) or not speaks_of_switches(version):
        return {}, ""
    ids = switch_ids(connection)
    if not ids:
        return {}, ""
    flags = how(connection, ids[0])
    table = _read(connection, [(SWITCH, i) for i in ids], [*PCI, *(f.dcgm_id for f in of_switches if f.dcgm_id)], flags)
    addresses = {i: address(table, (SWITCH, i), PCI) for i in ids}
    out: Parts = {}
    for number, at in addresses.items():
        if at:
            out[entity.switch(at)] = {f.name: _of_switch(table, number, f) for f in of_switches}
    nameless = [i for i, at in addresses.items() if not at]
    # When none has an address, none is watched, or the engine has no NSCQ: that is not known to be wrong.
    trouble = f"switches {nameless} have no PCI address" if out and nameless else ""
    if out and of_ports:
        out.update(_ports(connection, {i: at for i, at in addresses.items() if at}, of_ports, flags))
    return out, trouble


def speaks_of_switches(version: str) -> bool:
    """Are the ids those of switches in this DCGM? A version that is not told is an old one."""
    major = version.partition(".")[0]
    return major.isdigit() and int(major) >= FIRST_MAJOR


def switch_ids(connection: Connection) -> list[int]:
    """The engine's numbers of the switches that it sees; [] when it sees none or does not know what that is. Raises PartFailed."""
    try:
        return [int(i) for i in connection.bindings.agent.dcgmGetEntityGroupEntities(connection.handle, SWITCH, 0)]
    except Exception as exc:
        if status.code(exc) in status.HOPELESS:
            raise status.failed(exc, "listing the switches") from exc
        return []


def port_numbers(connection: Connection) -> dict[int, list[int]]:
    """Switch -> its ports that exist. {} when that can not be had: switches are then without ports. Raises PartFailed."""
    try:
        answer = connection.bindings.agent.dcgmGetNvLinkLinkStatus(connection.handle)
        rows = answer.nvSwitches[: int(answer.numNvSwitches)]
        return {int(row.entityId): [n for n, state in enumerate(row.linkState) if int(state) != _NO_LINK] for row in rows}
    except Exception as exc:
        if status.code(exc) in status.HOPELESS - {status.VERSION_MISMATCH}:
            raise status.failed(exc, "the switches' ports") from exc
        return {}  # the same call is asked for the GPUs' links, which tells of its failure


def port_id(switch: int, port: int) -> int:
    """How DCGM packs a switch's port into an entity id: 8 bits of switch, 16 of port, 8 of the kind of its owner."""
    return (switch << 24) | (port << 8) | SWITCH


def how(connection: Connection, switch: int) -> int:
    """live.LIVE_DATA when this engine reads switches live, else live.CACHED: what is watched. Raises PartFailed."""
    table = live.read(connection, [(SWITCH, switch)], [live.known(connection, PCI)])
    return live.LIVE_DATA if address(table, (SWITCH, switch), PCI) else live.CACHED


def address(table: Table, place: Entity, ids: Sequence[int]) -> str:
    """The PCI address that four fields (domain, bus, device, function) give, in entity.pci's form; '' when one is missing or impossible."""
    parts = [_number(table.reading(place, field)) for field in ids]
    domain, bus, device, function = parts
    if domain is None or bus is None or device is None or function is None:
        return ""
    if not (domain <= 0xFFFFFFFF and bus <= 0xFF and device <= 0x1F and function <= 7) or not any(parts):
        return ""
    return entity.pci(f"{domain:04x}:{bus:02x}:{device:02x}.{function}")


def _read(connection: Connection, places: Sequence[Entity], ids: Sequence[int], flags: int) -> Table:
    """Two entities first: an id that neither of them answers is not asked of a hundred others, one by one."""
    usable = live.known(connection, ids)
    first, rest = places[:2], places[2:]
    table = live.read(connection, first, [usable], flags)
    refused = [i for i in usable if all(_status(table, place, i) for place in first)]
    for kind, number in rest:
        table.update({(kind, number, i): table[first[0][0], first[0][1], i] for i in refused})
    usable = [i for i in usable if i not in refused]
    for start in range(0, len(rest), MAX_ENTITIES):
        table.update(live.read(connection, rest[start : start + MAX_ENTITIES], [usable], flags))
    table.unknown = frozenset(ids) - frozenset((*usable, *refused))
    if flags == live.CACHED:
        _age(table)
    return table


def _status(table: Table, place: Entity, field: int) -> int:
    found = table.get((place[0], place[1], field))
    return found.status if found is not None else 0


def _age(table: Table) -> None:
    """What was fetched too long ago is not of now. Addresses and ends of wires do not age."""
    oldest_us = (time.time() - STALE_S) * 1e6
    for key, found in table.items():
        if found.at_us and found.at_us < oldest_us and key[2] not in (*PCI, *REMOTE, REMOTE_LINK):
            table[key] = found._replace(reading=NoData(rd.STALE, "the engine's last value is old"))


def _of_switch(table: Table, number: int, field: cat.Field) -> Reading:
    if field.name == "switch_state":
        return 1
    return table.reading((SWITCH, number), field.dcgm_id or 0)


def _ports(connection: Connection, addresses: Mapping[int, str], fields: Sequence[cat.Field], flags: int) -> Parts:
    """addresses: switch -> its PCI address."""
    ids = [f.dcgm_id for f in fields if f.dcgm_id]
    ends = [*REMOTE, REMOTE_LINK] if any(f.name == "port_remote" for f in fields) else []
    places = {
        entity.switch_port(addresses[switch], port): (LINK, port_id(switch, port))
        for switch, ports in port_numbers(connection).items()
        for port in ports
        if switch in addresses
    }
    table = _read(connection, list(places.values()), [*ids, *ends], flags)
    return {name: {f.name: _of_port(table, place, f) for f in fields} for name, place in places.items()}


def _of_port(table: Table, place: Entity, field: cat.Field) -> Reading:
    if field.name == "port_remote":
        return _remote(table, place)
    value = table.reading(place, field.dcgm_id or 0)
    if field.name == "port_state" and value == _UNKNOWN_STATE:
        return NoData(rd.BLANK, "the switch does not know")
    return value


def _remote(table: Table, place: Entity) -> Reading:
    """The far end as "pci:0000:1b:00.0/link11"; whose address that is, sense/wiring.py finds."""
    at = address(table, place, REMOTE)
    link = _number(table.reading(place, REMOTE_LINK))
    if not at or link is None or link > _MAX_LINK:
        return NoData(rd.BLANK, "the switch does not say what is connected")
    return entity.link(f"pci:{at}", link)


def _number(reading: Reading) -> Optional[int]:
    """A number that is not negative; None for anything else."""
    ok = isinstance(reading, int) and not isinstance(reading, bool) and sentinel(reading) is None and reading >= 0
    return int(reading) if ok and isinstance(reading, int) else None


