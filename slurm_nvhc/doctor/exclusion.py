"""Can just one GPU be taken out here, and can placeholder jobs be had for it? Said only where the policy wants that.

Where one of these is not so, a bad GPU drains its node; nothing else is lost.
"""

from __future__ import annotations

from slurm_nvhc.act import placeholder, ways
from slurm_nvhc.doctor import mapping
from slurm_nvhc.doctor.facts import AS_ROOT, Facts, Line, ok, unknown, warn
from slurm_nvhc.doctor.words import some
from slurm_nvhc.slurm.command import SlurmError
from slurm_nvhc.slurm.gres import POSITION

_DRAINS = "until then a bad GPU drains the node"


def lines(facts: Facts) -> list[Line]:
    if facts.no_gpus or not (facts.policy.narrowing or facts.quarantine.wanted):
        return []
    out = [_state(facts), _positions(facts)]
    if facts.quarantine.wanted:
        out += [_alloc(facts), _commands(facts), *_partitions(facts)]
    return out


def _state(facts: Facts) -> Line:
    check, place = "exclusion.state", facts.host.state
    said = facts.policy.policy.record.durable
    if said is not None:
        found = f"{place.path.path} {'survives' if said else 'is lost at'} a reboot, says the policy (record.durable)"
        return ok(check, found) if said else warn(check, f"{found}: {ways.NOT_DURABLE}", _DRAINS)
    if place.lost:
        found = f"{place.path.path} is lost at a reboot ({place.lost}): {ways.NOT_DURABLE}"
        return warn(check, found, f"use a directory on a disk (nvhc hooks install --state); {_DRAINS}")
    if place.lost is None:
        return unknown(check, f"it is not known whether {place.path.path} survives a reboot", f"is /proc mounted? {_DRAINS}")
    return ok(check, f"exclusions in {place.path.path} survive a reboot")


def _positions(facts: Facts) -> Line:
    check, found = "exclusion.positions", mapping.resolved(facts)
    if facts.quarantine.wanted and facts.policy.policy.slurm.job_gpus != POSITION:
        return warn(check, f"no quarantine: {ways.NOT_POSITIONS}", f"slurm.job_gpus: {POSITION} in the policy, if that is so; {_DRAINS}")
    if found.exact:
        return ok(check, "a GPU's position in Slurm is certain")
    return warn(check, f"positions are assumed: {found.why}", f"see mapping.positions; {_DRAINS}")


def _alloc(facts: Facts) -> Line:
    check, alloc = "quarantine.alloc", facts.quarantine.alloc
    if alloc:
        return ok(check, "PrologFlags has Alloc")
    found = "PrologFlags has no Alloc" if alloc is not None else "it is not known whether PrologFlags has Alloc"
    return warn(check, f"{found}: a placeholder job could not tell in time which GPU it has", f"PrologFlags=Alloc in slurm.conf; {_DRAINS}")


def _commands(facts: Facts) -> Line:
    check, missing = "quarantine.commands", facts.quarantine.missing
    if missing:
        return warn(check, f"not there: {some(missing)}", f"install Slurm's client commands on the node; {_DRAINS}")
    return ok(check, "squeue, sbatch and scancel are there")


def _partitions(facts: Facts) -> list[Line]:
    """As the hooks choose: EXCLUSIVE and ExclusiveUser, DisableRootJobs and preemption each rule a partition out."""
    check, found = "quarantine.partitions", facts.quarantine
    if found.problem:
        advice = "does slurmctld answer?" if facts.host.root else AS_ROOT
        return [unknown(check, f"the node's partitions are not known: {found.problem}", advice)]
    fits, out = [], []
    for name, wanted in found.wanted.items():
        try:
            where, alone = placeholder.choose(found.partitions, found.of_node, wanted, name)
        except SlurmError as exc:
            out.append(warn(check, f"jobs of partition {name or '(none)'}: {exc.problem}", f"{exc.hint}; {_DRAINS}"))
            continue
        fits.append(f"{name or '(no job)'} in {where}{'' if alone else ' with a reservation'}")
    return [ok(check, f"placeholder jobs: {some(fits)}"), *out] if fits else out
