"""Was what our drain is for looked at now, and found well? Pure.

A verdict that is ok says that nothing that was looked at is wrong. What could not be looked at, or is judged by no
rule any more, has not passed: a GPU that is gone, a rule that was switched off, a kernel log that can not be read.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping

from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.protective import OwnDrain
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import OK, GpuState, Snapshot
from slurm_nvhc.policy.compiled import Policy, Rule

EXCLUDED: Final = "GPU-EXCLUDED"  # of a key that names a GPU which could not be kept from a job
_ITSELF: Final = "monitor"


def passed(
    own: OwnDrain, policy: Policy, snapshot: Snapshot, verdict: str, gpu_verdicts: Mapping[str, str], excluded: Iterable[str]
) -> bool:
    """verdict: of all that this look judged. gpu_verdicts: by UUID. excluded: GPUs that are kept from jobs now."""
    if verdict != fd.OK or not own.keys:
        return False
    kept = frozenset(excluded)
    return all(_well(key, policy, snapshot, gpu_verdicts, kept) for key in own.keys)


def _well(key: str, policy: Policy, snapshot: Snapshot, gpu_verdicts: Mapping[str, str], excluded: frozenset[str]) -> bool:
    code, _, place = key.partition(" ")
    head, link = entity.split_link(place)
    if place.partition(":")[0] == _ITSELF:
        return bool(snapshot.gpus)  # trouble of our own is over when all of it is ok
    gpu = _gpu(snapshot, head)
    if code == EXCLUDED:
        return gpu is not None and place not in excluded and gpu_verdicts.get(place) == fd.OK
    if _is_gpu(head):
        if gpu is None or gpu.status != OK or gpu_verdicts.get(gpu.identity.uuid) != fd.OK:
            return False
        of_link = gpu.links.values() if link is None else [gpu.links.get(link, {})]
        return _judged(code, policy.for_model(gpu.identity.model), snapshot, [gpu.readings, *of_link])
    if place == entity.NODE and place not in snapshot.parts:
        return bool(snapshot.gpus) and _judged(code, policy, snapshot, [{}])
    return place in snapshot.parts and _judged(code, policy, snapshot, [snapshot.parts[place]])


def _judged(code: str, policy: Policy, snapshot: Snapshot, readings: Iterable[Mapping[str, Reading]]) -> bool:
    """Does a rule in force for this code have what it judges by? A code that no rule finds was judged with everything else."""
    rules = [rule for rule in policy.rules.values() if rule.finding == code]
    places = list(readings)
    # What a test has found only a test finds well: the one that the policy wants before a resume (healing.hindrance asks for it).
    retested = bool(policy.drain.resume_diagnostic)
    return not rules or any(rule.mode != fd.OFF and _has_data(rule, snapshot, places, retested) for rule in rules)


def _has_data(rule: Rule, snapshot: Snapshot, places: list[Mapping[str, Reading]], retested: bool) -> bool:
    if rule.kind == "diag":
        return retested
    if rule.kind == "event":
        return snapshot.events_known
    if rule.kind == "presence":
        return bool(snapshot.gpus)
    return any(field in readings and not isinstance(readings[field], NoData) for readings in places for field in rule.fields)


def _is_gpu(head: str) -> bool:
    return head.startswith(("GPU-", "pci:"))


def _gpu(snapshot: Snapshot, head: str) -> GpuState | None:
    """By UUID, or by the address of a GPU whose UUID was not known."""
    gpus = snapshot.gpus or {}
    if head in gpus:
        return gpus[head]
    return next((g for g in gpus.values() if head == f"pci:{g.identity.pci}"), None)
