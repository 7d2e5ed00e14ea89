"""What a healthy look teaches about this node. Pure; record/ keeps it."""

from __future__ import annotations

from slurm_nvhc.judge.context import HEALTH_CHECK, Input
from slurm_nvhc.judge.settle import settling
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import learned
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import OK


def lesson(inp: Input, verdict: str) -> dict[str, dict[str, Reading]]:
    """entity -> field -> reading that is not known yet and is normal from now on; {} for most looks.

    Only a health check that found nothing wrong with any GPU, part or means of ours teaches, with every GPU
    that the node ever had in its listing and none taken from jobs, and not while links may still train or
    readings settle after boot or driver load. What is known already is never changed here: a drift is
    accepted by an administrator (`nvhc baseline accept`), or it is a finding for as long as it lasts.
    """
    if inp.hook != HEALTH_CHECK or verdict != fd.OK or not inp.policy.learn.enabled or inp.exclusions:
        return {}
    if settling(inp, inp.policy.learn.settle_s) or not _complete(inp):
        return {}
    out: dict[str, dict[str, Reading]] = {}
    for name, readings in learned.places(inp.snapshot):
        known = inp.learned.get(name, {})
        new = {field: value for field, value in learned.teaches(readings).items() if field not in known}
        if new:
            out[name] = new
    return out


def _complete(inp: Input) -> bool:
    gpus = inp.gpus()
    return bool(gpus) and all(g.status == OK for g in gpus.values()) and all(row.uuid in gpus for row in inp.known)
