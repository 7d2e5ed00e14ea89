"""The DCGM engine: can it be reached, who else is an engine here, who can reach it."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Optional

from slurm_nvhc.catalog import diags
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.doctor.facts import AS_ROOT, BindingsPlace, Facts, Line, fail, ok, unknown, warn
from slurm_nvhc.doctor.words import some
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.model.times import iso

DEFAULT_PORT: Final = 5555  # nv-hostengine's own
_PARTS: Final = ("engine", "reader")


def lines(facts: Facts) -> list[Line]:
    if facts.no_gpus:
        return [ok("engine.reach", "not needed: no NVIDIA GPU on the PCI bus and none expected")]
    if facts.policy.policy.engine.backend != "dcgm":
        return [_reach(facts), _diag(facts)]
    return [_reach(facts), _bindings(facts), _others(facts), _port(facts), _account(facts), _diag(facts)]


def major(version: str) -> Optional[int]:
    """'4.6.0' -> 4"""
    found = re.match(r"(\d{1,4})(?:\.|\Z)", version)
    return int(found[1]) if found else None


def _reach(facts: Facts) -> Line:
    engine, snapshot = facts.policy.policy.engine, facts.snapshot
    where = "embedded in the reader" if engine.embedded else engine.address or f"tcp://127.0.0.1:{DEFAULT_PORT} (the default)"
    name = f"backend {engine.backend}" + (f" at {where}" if engine.backend == "dcgm" else f", world {engine.world}")
    troubles = [t for t in snapshot.troubles if t.part in _PARTS]
    if troubles:
        first = troubles[0]
        found = f"{name}: {first.detail}"
        if snapshot.gpus is not None:
            return warn("engine.reach", found, _advice(first))
        return fail("engine.reach", found, _advice(first))
    if snapshot.gpus is None:
        return fail("engine.reach", f"{name}: it gave no list of GPUs", "restart nv-hostengine")
    return ok("engine.reach", f"{name}: version {snapshot.engine or 'not told'} answers")


def _advice(trouble: Trouble) -> str:
    code = BY_CODE.get(trouble.code)
    return code.advice if code else "see the detail"


def _bindings(facts: Facts) -> Line:
    places = facts.host.bindings
    there = [p for p in places if p.there]
    if not there:
        advice = "install datacenter-gpu-manager-4-core, or name the folder in the policy: engine.bindings"
        return fail("engine.bindings", f"none; looked at: {some(p.folder for p in places)}", advice)
    # The reader takes the first that loads; that one of several does not load is seen by reading only.
    used = there[0]
    found = f"{_place(used)}; looked at: {some(p.folder for p in places)}"
    engine = major(facts.snapshot.engine)
    if used.major is None or engine is None:
        return ok("engine.bindings", found)
    if used.major != engine:
        advice = f"name the folder of DCGM {engine} in the policy: engine.bindings"
        return warn("engine.bindings", f"{found}; the engine is DCGM {facts.snapshot.engine}", advice)
    if len({p.major for p in there}) > 1:
        return ok("engine.bindings", f"{found}; DCGM {' and '.join(str(p.major) for p in there)} are installed")
    return ok("engine.bindings", found)


def _place(place: BindingsPlace) -> str:
    return place.folder if place.major is None else f"{place.folder} (DCGM {place.major})"


def _others(facts: Facts) -> Line:
    """Two engines count and clear on their own: each then sees a part, and profiling works in one only."""
    host = facts.host
    if host.engines is None:
        return unknown("engine.others", "processes can not be listed", "is /proc mounted?")
    daemons = [p for p in host.engines if not p.embedded]
    inside = [p for p in host.engines if p.embedded]
    named = some(f"{p.name} {p.pid}" for p in (*daemons, *inside))
    if len(daemons) > 1:
        return warn("engine.others", f"{len(daemons)} engines run: {named}", "stop all but one nv-hostengine")
    if inside and (daemons or facts.policy.policy.engine.embedded):
        advice = "let that program connect to nv-hostengine (dcgm-exporter: -r localhost:5555)"
        return warn("engine.others", f"an engine runs inside another program beside ours: {named}", advice)
    if daemons and facts.policy.policy.engine.embedded:
        return warn("engine.others", f"{named} runs, and the policy has engine.embedded", "take engine.embedded out of the policy")
    if not host.seen_into:
        return unknown("engine.others", f"{named or 'no nv-hostengine'}; engines inside other programs can not be seen", AS_ROOT)
    return ok("engine.others", named or "no engine process on this machine")


def _port(facts: Facts) -> Line:
    host = facts.host
    if host.listeners is None:
        return unknown("engine.port", "listening sockets can not be listed", "is /proc mounted?")
    ports = {DEFAULT_PORT, *_port_of(facts.policy.policy.engine.address)}
    open_to = sorted({(sock.address, sock.port) for sock in host.listeners if sock.port in ports})
    named = some(f"[{a}]:{p}" if ":" in a else f"{a}:{p}" for a, p in open_to)
    if any(not _is_loopback(address) for address, _ in open_to):
        advice = "DCGM has no login: start it with --domain-socket, or at least bind it to 127.0.0.1 (-b 127.0.0.1)"
        return warn("engine.port", f"DCGM's port can be reached from the network: {named}", advice)
    if open_to:
        return ok("engine.port", f"{named}: every user of this node can reach the engine (a unix socket can be kept from them)")
    return ok("engine.port", f"nothing listens on TCP {some(sorted(ports))}")


def _port_of(address: str) -> tuple[int, ...]:
    found = re.search(r":(\d{1,5})\Z", address)
    return (int(found[1]),) if found and not address.startswith("unix:") else ()


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def _diag(facts: Facts) -> Line:
    """A diagnostic is the engine's child: it goes on when whoever began it dies."""
    mark = facts.ledger.diag
    if mark is None:
        return ok("engine.diag", "no diagnostic of ours is marked as running")
    named = f"the diagnostic begun by {mark.by} at {iso(mark.since_ns)} ({diags.told(mark.tests) or 'tests not known'})"
    if facts.ledger.diag_alive:
        return ok("engine.diag", f"{named} runs")
    return warn("engine.diag", f"{named} was left, and may still run: the next hook ends it", "nvhc diag --stop")


def _account(facts: Facts) -> Line:
    """What the engine's account may not read shows in the readings: the account's name alone proves nothing."""
    refused = sorted(
        {
            name
            for gpu in (facts.snapshot.gpus or {}).values()
            for readings in (gpu.readings, *gpu.links.values())
            for name, value in readings.items()
            if isinstance(value, rd.NoData) and value.kind == rd.NOT_PERMITTED
        }
    )
    uids = sorted({p.uid for p in facts.host.engines or () if not p.embedded})
    who = f"the engine runs as uid {some(uids)}" if uids else "the engine's account is not known (not on this machine, or not running)"
    if refused:
        return warn("engine.account", f"{who} and may not read {some(refused)}", "run nv-hostengine as root")
    if facts.snapshot.gpus is None:
        return unknown("engine.account", f"{who}; nothing was read", "make the engine answer first")
    return ok("engine.account", f"{who}; no reading was refused")
