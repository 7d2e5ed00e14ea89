"""GPUs, driver, links and fields: what is here against what should be."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Mapping

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.doctor.facts import Facts, Line, fail, ok, unknown, warn
from slurm_nvhc.doctor.words import count, gpu, some
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.snapshot import OK, GpuState

_STATE = "nvlink_state"


def lines(facts: Facts) -> list[Line]:
    if facts.no_gpus:
        return [ok("gpus.count", "no NVIDIA GPU on the PCI bus and none expected: hooks have nothing to watch here")]
    out = [_driver(facts), _count(facts)]
    present = [g for g in (facts.snapshot.gpus or {}).values() if g.status == OK]
    if not present:
        return [*out, unknown("gpus.fields", "no GPU was read", "make the engine answer first")]
    by_model: dict[str, list[GpuState]] = defaultdict(list)
    for state in present:
        by_model[state.identity.model].append(state)
    out.append(_mig(present))
    for model, states in by_model.items():
        out += [_links(facts, model, states), _fields(model, states), _needed(facts, model, states)]
    return out


def _driver(facts: Facts) -> Line:
    told, loaded = facts.snapshot.driver, facts.host.driver
    if facts.policy.policy.engine.backend != "dcgm":
        return ok("gpus.driver", f"driver {told or 'not told'} (simulated)")
    if not loaded:
        return fail("gpus.driver", "the NVIDIA kernel driver is not loaded", "load it (modprobe nvidia), then restart nv-hostengine")
    if told and told != loaded:
        return warn("gpus.driver", f"driver {loaded} is loaded, the engine says {told}", "restart nv-hostengine")
    return ok("gpus.driver", f"driver {loaded}")


def _count(facts: Facts) -> Line:
    snapshot, gres = facts.snapshot, facts.slurm.gres
    listed = snapshot.gpus
    alive = [g for g in (listed or {}).values() if g.status == OK]
    places = {
        "PCI bus": None if snapshot.pci_gpus is None else len(snapshot.pci_gpus),
        "gres.conf": len(gres.files) if gres is not None and gres.files else None,
        "policy": facts.policy.policy.expect.gpus,
        "known from before": len(facts.ledger.known) or None,
    }
    said = ", ".join(f"{name} {'?' if number is None else number}" for name, number in places.items())
    models = ", ".join(f"{n} x {model or 'unknown model'}" for model, n in Counter(g.identity.model for g in alive).items())
    found = f"engine {'?' if listed is None else len(alive)}{f' ({models})' if models else ''}, {said}"
    silent = [p.pci for p in snapshot.pci_gpus or () if not p.responds]
    bad = [gpu(g.identity) for g in (listed or {}).values() if g.status != OK]
    if silent or bad:
        what = some([*(f"{g} is lost" for g in bad), *(f"{p} does not answer on PCI" for p in silent)])
        return fail("gpus.count", f"{found}; {what}", "reboot; repeated: check power, seating and riser")
    if listed is None:
        return unknown("gpus.count", found, "make the engine answer first")
    if any(number is not None and number > len(alive) for number in places.values()):
        return fail("gpus.count", found, "find the missing GPU (nvidia-smi -L, lspci -d 10de:), or correct the number that is wrong")
    if any(number is not None and number < len(alive) for number in places.values()):
        return warn("gpus.count", found, "correct the place that knows too few (gres.conf: GPUs that it does not name get no jobs)")
    return ok("gpus.count", found)


def _mig(present: list[GpuState]) -> Line:
    on = [gpu(g.identity) for g in present if g.identity.mig is True]
    if not on:
        return ok("gpus.mig", "off" if all(g.identity.mig is False for g in present) else "not told to be on")
    return ok("gpus.mig", f"on: {some(on, 16)}; the parent GPU is judged for its instances, links and row remapping are not read")


def _links(facts: Facts, model: str, states: list[GpuState]) -> Line:
    expected = facts.policy.policy.for_model(model).expect.links
    name = model or "GPUs of unknown model"
    judged = [g for g in states if g.identity.mig is not True]
    up = {gpu(g.identity): sum(r.get(_STATE) == "up" for r in g.links.values()) for g in judged}
    counts = Counter(up.values())
    if not judged:
        return ok("gpus.links", f"{name}: not read with MIG on")
    states_read = [r.get(_STATE) for g in judged for r in g.links.values()]
    if any(isinstance(s, rd.NoData) and s.kind != rd.NOT_SUPPORTED for s in states_read):
        return unknown("gpus.links", f"{name}: the engine gave no link states", "see engine.reach")
    usual = expected if expected is not None else max(counts, key=lambda number: (counts[number], number))
    wanted = f"{expected} expected" if expected is not None else "no number expected by the policy"
    fewer = {name: number for name, number in up.items() if number < usual}
    if fewer:
        down = some(f"{g} has {number} of {usual} links up" for g, number in fewer.items())
        advice = "check fabric manager, then reset the GPU; or say in the policy what is right: expect.links"
        # Without an expectation it may be how the machine is wired: bridges between some of the GPUs only.
        return (warn if expected is None else fail)("gpus.links", f"{name}: {down} ({wanted})", advice)
    if len(counts) > 1 or any(number > usual for number in up.values()):
        return warn("gpus.links", f"{name}: {some(f'{g} has {n}' for g, n in up.items())} links up ({wanted})", "correct expect.links")
    if not usual:
        return ok("gpus.links", f"{name}: no NVLink is up ({wanted})")
    return ok("gpus.links", f"{name}: {count(usual, 'link')} up on each of {len(judged)} ({wanted})")


def _kinds(states: list[GpuState]) -> dict[str, set[str]]:
    """Field -> kinds of no data over these GPUs, "" standing for a value; a field that nobody has is not found.

    Fields of GPUs and links only: parts have their own, and rows of samples have no value of this moment.
    """
    out: dict[str, set[str]] = {field.name: set() for field in cat.ALL if field.scope in (cat.GPU, cat.LINK) and field.live}
    for state in states:
        for readings in (state.readings, *state.links.values()):
            for name, value in readings.items():
                if name in out:
                    out[name].add(value.kind if isinstance(value, rd.NoData) else "")
    return out


def _fields(model: str, states: list[GpuState]) -> Line:
    kinds = _kinds(states)
    read = [name for name, found in kinds.items() if "" in found]
    lacking: dict[str, list[str]] = defaultdict(list)
    for name, found in kinds.items():
        for kind in found - {""} or (() if found else {rd.NOT_FOUND}):
            lacking[kind].append(name)
    said = "; ".join(f"{kind.replace('_', ' ')}: {some(names, 30)}" for kind, names in sorted(lacking.items()))
    return ok("gpus.fields", f"{model or 'unknown model'}: {len(read)} of {len(kinds)} fields read{'; ' if said else ''}{said}")


def _readable(field: str, kinds: set[str]) -> str:
    """ok: every GPU gives it; unknown: it does not apply to this model; fail: it should be there and is not."""
    if kinds - {"", rd.NOT_SUPPORTED}:
        return fd.FAIL
    if "" in kinds:
        return fd.OK
    # A GPU without NVLink has no links to read a field of.
    return fd.UNKNOWN if kinds or cat.BY_NAME[field].scope == cat.LINK else fd.FAIL


def _needed(facts: Facts, model: str, states: list[GpuState]) -> Line:
    """A rule over several fields (per link and total) works with any of them."""
    policy = facts.policy.policy.for_model(model)
    kinds: Mapping[str, set[str]] = _kinds(states)
    blind: dict[str, str] = {}
    pointless: dict[str, str] = {}
    for rule in policy.rules.values():
        if rule.kind != "reading" or rule.mode != fd.ENFORCE:
            continue
        states_of = {_readable(field, kinds[field]) for field in rule.fields if field in kinds}
        if not states_of:
            continue  # about the node's parts, or samples
        if fd.OK in states_of:
            continue
        (blind if fd.FAIL in states_of else pointless)[rule.name] = some(rule.fields)
    name = model or "unknown model"
    tail = f"; do not apply here: {some(f'{r} ({f})' for r, f in pointless.items())}" if pointless else ""
    if blind:
        listed = some(f"{rule} ({fields})" for rule, fields in blind.items())
        advice = "see gpus.fields for why; update DCGM or driver, or set these rules to off"
        return warn("gpus.needed", f"{name}: enforced rules without their readings: {listed}{tail}", advice)
    return ok("gpus.needed", f"{name}: every enforced rule that applies has its readings{tail}")
