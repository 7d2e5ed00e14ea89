"""DCGM's own health check as evidence beside our findings: never more than a warning, never an action on a GPU.

It is not the judge, since it looks 60 s back only, passes what it can not read, and complains
about what is no fault. What is known to be none is *set aside*: told, with its reason, and ok.
"""

from __future__ import annotations

import re
from typing import Final, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import xids
from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import HEALTH_CHECK, Input
from slurm_nvhc.judge.say import note
from slurm_nvhc.judge.settle import settling
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity, settled
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.history import Incident

CODE: Final = "DCGM-HEALTH"
WARN: Final = "warn"  # Engine.health; "note" tells the same with verdict ok

# DCGM_FR_ numbers (dcgm_errors.h).
VIOLATIONS: Final[Mapping[int, str]] = {10: "heat", 12: "power"}
NVLINK_DOWN: Final = 14
NVLINK_CRITICAL: Final = 71

# DCGM's tags of counters that it holds against zero since 4.5.3 (fields 497 to 499; 1211 and 1212 on
# Blackwell): one old error, and the GPU fails until its next reset (eks-node-monitoring-agent#261).
# The growth of 409 to 439 in DCGM's window is told under the same code with tags that go on (…_error_count_total).
_LIFETIME: Final = re.compile(
    r"\bnvlink_(?:crc_err|recovery_err|replay_err|link_recovery_successful|link_recovery_failed)\b", re.IGNORECASE
)
_ERRORS: Final = frozenset(f.name for f in cat.ALL if f.name.startswith("nvlink_") and f.kind == cat.COUNTER)
_XID: Final = re.compile(r"\bXID\s*(\d{1,4})\b", re.IGNORECASE)
SETTLE_S: Final = 300.0  # links train after boot: as the packaged rule nvl_down (NVSentinel#1701)
_SHOWN: Final = 120  # characters of DCGM's text in a message; the evidence has all of it


def judge_health(inp: Input, notes: memory.Notes, own: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding per entity, DCGM code and reason to set it aside. Health checks only; () where it was not asked.

    own: what our own rules found in this run; the memory must have seen this run's links already.
    """
    health = inp.health
    if health is None or inp.hook != HEALTH_CHECK:
        return ()
    if not health.known:
        # Not a verdict of anybody's: trouble in asking has its own finding, and the first check after an
        # engine's start has no samples to ask about.
        return () if health.troubles else (_finding(inp, entity.NODE, fd.OK, "DCGM's health is not known yet: the engine had no watch"),)
    groups: dict[tuple[str, int, str], list[Incident]] = {}
    for incident in health.incidents:
        groups.setdefault((incident.entity, incident.code, _aside(inp, notes, incident)), []).append(incident)
    return tuple(_of(inp, place, why, incidents, own) for (place, _code, why), incidents in groups.items())


def _of(inp: Input, place: str, why: str, incidents: Sequence[Incident], own: Sequence[Finding]) -> Finding:
    first = incidents[0]
    text = first.text if len(first.text) <= _SHOWN else first.text[: _SHOWN - 1].rstrip() + "…"
    message = f"DCGM health says {first.result} ({first.system}, code {first.code}): {text}"
    if len(incidents) > 1:
        message += f" ({len(incidents)} times)"
    beside = dict.fromkeys(f.code for f in own if f.verdict in (fd.WARN, fd.FAIL) and _same(place, f.entity))
    if why:
        message += f"; set aside: {why}"
    elif beside:
        message += f"; beside {', '.join(beside)}"
    verdict = fd.WARN if inp.policy.engine.health == WARN and not why else fd.OK
    return _finding(inp, place, verdict, message, first)


def _same(place: str, other: str) -> bool:
    """The same entity, or a GPU and one of its links: DCGM tells links only in words."""
    uuid = entity.gpu_of(place)
    return place == other or (bool(uuid) and uuid == entity.gpu_of(other))


def _finding(inp: Input, place: str, verdict: str, message: str, incident: Optional[Incident] = None) -> Finding:
    uuid = entity.gpu_of(place)
    gpu = inp.gpus().get(uuid)
    identity = gpu.identity if gpu is not None else next((row for row in inp.known if row.uuid == uuid), None)
    said = incident if incident is not None else Incident("", 0, "", place, "")
    evidence = Evidence(
        after=said.result or None,
        text=said.text or message,
        rule="engine.health",
        window="60s",
        at_ns=inp.now_ns,
        source="DCGM health check",
    )
    return note(inp, CODE, place, verdict, message, identity)._replace(
        klass="link" if entity.split_link(place)[1] is not None else "gpu" if uuid else "node",
        evidence=evidence,
        mode=fd.OBSERVE if inp.policy.mode == fd.OBSERVE else fd.ENFORCE,
        action=fd.NOTE,
    )


def _aside(inp: Input, notes: memory.Notes, incident: Incident) -> str:
    """Why an incident is no reason to worry, or ''."""
    if incident.code in VIOLATIONS:
        # Any increase within 60 s: a busy GPU at its power limit complains for ever.
        return f"any slowdown for {VIOLATIONS[incident.code]} counts there; ours are judged by their share of time"
    uuid = entity.gpu_of(incident.entity)
    number = _xid(incident.text)
    if number is not None:
        return _aside_xid(inp, notes, incident.entity, number)
    if incident.code == NVLINK_CRITICAL and uuid:
        return _aside_counter(inp, uuid, incident.text)
    if incident.code == NVLINK_DOWN and uuid:
        return _aside_link(inp, notes, incident.entity)
    return ""


def _xid(text: str) -> Optional[int]:
    match = _XID.search(text)
    return int(match[1]) if match else None


def _aside_xid(inp: Input, notes: memory.Notes, place: str, number: int) -> str:
    """The engine keeps every Xid until it is restarted, whatever was done about it, and counts some of applications' own."""
    known = xids.BY_NUMBER.get(number)
    if known is not None and known.klass == xids.APP:
        return f"Xid {number} is usually the application's own"
    name = settled.key(place, number)
    row = notes.open_events().get(name)
    if name in inp.settled and (row is None or row.get("ended") is True):
        return f"Xid {number} was settled by an administrator; the engine tells it until it is restarted"
    return ""


def _aside_counter(inp: Input, uuid: str, text: str) -> str:
    grew = _grew(inp, uuid)
    if grew is True:
        return ""
    if _LIFETIME.search(text):
        return "it is about a counter since the last reset" + ("" if grew is None else ", and none grew")
    return "no NVLink error counter grew: it is about their lifetime" if grew is False else ""


def _grew(inp: Input, uuid: str) -> Optional[bool]:
    """Did an NVLink error counter of the GPU grow in our window? None when none of them can tell."""
    seen = [c for c in inp.changes if c.field in _ERRORS and entity.gpu_of(c.entity) == uuid and c.amount is not None]
    if any(c.amount for c in seen):
        return True
    # A count of 0 since a reset says nothing about the time before it.
    return False if seen and all(c.kind == ch.EXACT for c in seen) else None


def _aside_link(inp: Input, notes: memory.Notes, place: str) -> str:
    """Down links count when they were up before or are expected up: a PCIe card without a bridge has none (NVSentinel#1481)."""
    uuid, link = entity.split_link(place)
    gpu = inp.gpus().get(uuid)
    if gpu is None:
        return ""
    if settling(inp, SETTLE_S, uuid):
        return "links train for some minutes after boot or reset"
    expected = inp.policy.for_model(gpu.identity.model).expect.links
    asked = gpu.links if link is None else (link,)
    if expected is not None and any(n < expected for n in asked):
        return ""
    if any(notes.link_was_up(uuid, n) for n in asked):
        return ""
    return "its links were never up, and none is expected"
