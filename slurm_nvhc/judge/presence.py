"""Is every GPU here that should be? Silence of an engine is not health, and not a lost GPU either.

Expected are: GPUs known from before, GPUs on the PCI bus, and the numbers that
the policy and gres.conf give. A GPU that the bus lists and the engine does not
(NVSentinel#155, #684: no Xid at all, only fewer GPUs) is lost, whatever the log says.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Optional

from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import Input
from slurm_nvhc.judge.say import make_finding, note
from slurm_nvhc.judge.settle import settling
from slurm_nvhc.model import entity, settled
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.snapshot import OK, Event, GpuIdentity, PciGpu
from slurm_nvhc.policy.compiled import Rule

OFF_BUS_XID: Final = 79
ALL_ONES: Final = "PCI config space reads all ones"
OFF_THE_BUS: Final = "not on the PCI bus"
UNLISTED: Final = "is on the PCI bus but not in the engine's list"


class _Missing(NamedTuple):
    place: str
    identity: Optional[GpuIdentity]
    why: str
    witness: str  # independent evidence, '' when there is none


def judge_presence(inp: Input, notes: memory.Notes) -> tuple[tuple[Finding, ...], bool]:
    """(findings, would a second look confirm one)"""
    findings = list(_replaced(inp))
    second_look = False
    missing = {m.place: m for m in _missing(inp)}
    for rule in inp.policy.rules.values():
        if rule.kind != "presence" or rule.mode == fd.OFF:
            continue
        for place, gone in missing.items():
            verdict, threshold, wants_look = _verdict(inp, notes, rule, place, gone)
            second_look = second_look or wants_look
            if verdict is not None:
                evidence = Evidence(
                    field="presence", after=gone.why, rule=rule.name, threshold=threshold, text=gone.witness,
                    at_ns=inp.now_ns, source=rule.source,
                )  # fmt: skip
                findings.append(make_finding(inp, rule, place, verdict, evidence, gone.identity, absolute=True, message=gone.why))
        for place in _present(inp):
            for level in (*rule.fail, *rule.warn):
                notes.seen_in_a_row(memory.key(rule, level, place), False, level.spacing_s)
    return tuple(findings), second_look


def _verdict(inp: Input, notes: memory.Notes, rule: Rule, place: str, gone: _Missing) -> tuple[Optional[str], str, bool]:
    """(verdict, the condition as text, would a second look confirm it)

    A witness speaks at once. Without one, nothing is held against a GPU while driver and engine
    may still be starting (``settle``), and looks count only when time lies between them.
    """
    confirmable = False
    for level in rule.fail:
        if level.witness and gone.witness:
            return fd.FAIL, rule.text[1], False
        if settling(inp, level.settle_s, place):
            continue
        spacing_s = level.spacing_s or inp.policy.reread_wait_s
        if notes.seen_in_a_row(memory.key(rule, level, place), True, spacing_s) >= level.consecutive:
            return fd.FAIL, rule.text[1], False
        confirmable = confirmable or spacing_s <= inp.policy.reread_wait_s
    return (fd.WARN if rule.warn else None), rule.text[0], confirmable


def _present(inp: Input) -> Iterable[str]:
    """Entities that were looked for and are here: their streaks end."""
    for uuid, gpu in inp.gpus().items():
        if gpu.status == OK:
            yield uuid
            yield f"pci:{gpu.identity.pci}"
    if inp.snapshot.gpus and not _too_few(inp):
        yield entity.NODE


def _missing(inp: Input) -> list[_Missing]:
    listed = inp.gpus()
    out = [
        _Missing(uuid, gpu.identity, f"the engine says it is {gpu.status}", _witness(inp, gpu.identity.pci))
        for uuid, gpu in listed.items()
        if gpu.status != OK
    ]
    bus = {p.pci: p for p in inp.snapshot.pci_gpus or ()}
    rows = {i.pci: i for i in inp.known if i.pci}
    here = {g.identity.pci for g in listed.values()}
    if inp.snapshot.gpus:
        out.extend(_unlisted(inp, bus, rows, here))
    elif inp.snapshot.pci_gpus is not None:
        # No listing, or an engine that knows no GPU at all: that convicts the engine, not eight GPUs.
        # What the bus says convicts all the same: the bus is the witness.
        for address, device in bus.items():
            if not device.responds:
                row = rows.get(address)
                place = row.uuid if row is not None else f"pci:{address}"
                out.append(_Missing(place, row or GpuIdentity("", pci=address), "does not answer on PCI", ALL_ONES))
        # Unless the bus was numbered anew (firmware, another card): then other addresses are new, and nothing is gone.
        if len(bus) < len(rows) and all(address in rows for address in bus):
            out.extend(_Missing(r.uuid, r, "is gone from the PCI bus", OFF_THE_BUS) for a, r in rows.items() if a not in bus)
    return out or _too_few(inp)


def _unlisted(inp: Input, bus: Mapping[str, PciGpu], rows: dict[str, GpuIdentity], here: set[str]) -> list[_Missing]:
    out = []
    for address, row in rows.items():
        if row.uuid in inp.gpus() or address in here:
            continue
        where = UNLISTED if address in bus else "is gone from the engine's list"
        out.append(_Missing(row.uuid, row, where, _witness(inp, address)))
    for address in bus:
        if address not in here and address not in rows:
            out.append(_Missing(f"pci:{address}", GpuIdentity("", pci=address), UNLISTED, _witness(inp, address)))
    return out


def _too_few(inp: Input) -> list[_Missing]:
    """Fewer GPUs than the policy or gres.conf expects, and no telling which is missing."""
    none_on_the_bus = inp.snapshot.pci_gpus == ()
    if inp.snapshot.gpus is None or (not inp.snapshot.gpus and not none_on_the_bus):
        return []
    alive = sum(1 for g in inp.gpus().values() if g.status == OK)
    expected = inp.policy.expect.gpus if inp.policy.expect.gpus is not None else inp.expected_gpus
    if expected is None or alive >= expected:
        return []
    return [_Missing(entity.NODE, None, f"{alive} of {expected} GPUs", OFF_THE_BUS if none_on_the_bus else "")]


def _witness(inp: Input, address: str) -> str:
    """What besides the engine's list says that this GPU is gone, '' if nothing does."""
    for device in inp.snapshot.pci_gpus or ():
        if device.pci == address and not device.responds:
            return ALL_ONES
    for event in inp.snapshot.events:
        if event.pci == address and (event.kind == "off_bus" or event.code == OFF_BUS_XID) and not _is_past(inp, event):
            return event.text
    return ""


def _is_past(inp: Input, event: Event) -> bool:
    """Before the driver's present load, or settled by an administrator."""
    loaded = inp.snapshot.driver_loaded_ns
    if loaded is not None and event.at_ns < loaded:
        return True
    place = event.uuid or next((row.uuid for row in inp.known if row.pci == event.pci), f"pci:{event.pci}")
    return settled.covered(settled.ident(place, event.code, event.at_ns), inp.settled)


def _replaced(inp: Input) -> Iterable[Finding]:
    """Notes about cards that changed places or are new. Only once: the ledger then knows them."""
    rows = {i.pci: i for i in inp.known if i.pci}
    known = {i.uuid for i in inp.known}
    if not known:
        return
    for uuid, gpu in inp.gpus().items():
        before = rows.get(gpu.identity.pci)
        if uuid in known:
            continue
        if before is not None and before.uuid != uuid:
            yield note(inp, "GPU-SWAPPED", uuid, fd.OK, f"{gpu.identity.pci} held {before.uuid} before", gpu.identity)
        else:
            yield note(inp, "GPU-NEW", uuid, fd.OK, f"{gpu.identity.pci} was not known before", gpu.identity)
