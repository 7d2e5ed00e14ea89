"""What is done about faults: can Slurm reboot this node, and can the site's programs be run? Said only where the policy wants it."""

from __future__ import annotations

import stat

from slurm_nvhc.act import site_hooks
from slurm_nvhc.doctor.facts import Facts, Line, PathFact, fail, ok, warn


def lines(facts: Facts) -> list[Line]:
    return [*_reboot(facts), *_programs(facts)]


def _reboot(facts: Facts) -> list[Line]:
    check, settings, state = "remedies.reboot", facts.slurm.settings, facts.host.state
    if not facts.policy.policy.reboot.enabled or settings is None:
        return []
    if not settings.get("rebootprogram"):
        found = "reboot.enabled, but slurm.conf names no RebootProgram: Slurm refuses to reboot a node"
        return [warn(check, found, "RebootProgram=/sbin/reboot in slurm.conf, then scontrol reconfigure")]
    if state.lost:
        found = f"{state.path.path} is lost at a reboot ({state.lost}): nothing would count reboots, so none is asked for"
        return [warn(check, found, "use a directory on a disk (nvhc hooks install --state)")]
    return [ok(check, f"Slurm reboots with {settings['rebootprogram'][-1]}")]


def _programs(facts: Facts) -> list[Line]:
    """That nobody but root can change them is among the permissions."""
    chains = {trust.what: trust.chain[-1] for trust in facts.host.trusted}
    out = []
    for event in site_hooks.EVENTS:
        path = site_hooks.program(facts.policy.policy.site_hooks, event)
        check, place = f"remedies.on_{event}", chains.get(f"on_{event}")
        if not path or place is None or place.problem:
            continue
        problem = unusable(place)
        advice = "chmod 0755, or correct site_hooks in the policy"
        out.append(fail(check, f"{path} {problem}: nobody is told", advice) if problem else ok(check, path))
    return out


def unusable(place: PathFact) -> str:
    """Why a program can not be run, '' when it can."""
    if not place.there:
        return "does not exist"
    if stat.S_ISLNK(place.mode):
        return ""  # where it leads to is looked at when it is run
    if not stat.S_ISREG(place.mode):
        return "is not a file"
    return "" if place.mode & 0o100 else "is not executable"
