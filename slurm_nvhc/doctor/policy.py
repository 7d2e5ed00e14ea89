"""The policy: which one hooks would load, and what in it acts."""

from __future__ import annotations

from slurm_nvhc.doctor.facts import AS_ROOT, Facts, Line, fail, ok, unknown
from slurm_nvhc.doctor.words import count, some
from slurm_nvhc.model import finding as fd


def lines(facts: Facts) -> list[Line]:
    given, policy = facts.policy, facts.policy.policy
    modes = {mode: [r.name for r in policy.rules.values() if r.mode == mode] for mode in (fd.ENFORCE, fd.OBSERVE, fd.OFF)}
    return [_file(facts), _mode(policy.mode, modes[fd.ENFORCE], len(modes[fd.OBSERVE]), len(modes[fd.OFF]), given.narrowing)]


def _file(facts: Facts) -> Line:
    given = facts.policy
    if not given.readable and not facts.host.root:
        return unknown("policy.file", f"{given.problem}; what is said here rests on {given.which}", AS_ROOT)
    if given.problem:
        return fail("policy.file", f"{given.problem}; in force: {given.which} {given.policy.hash}", "run `nvhc policy check`")
    where = given.path if given.there else f"{given.path} does not exist:"
    return ok("policy.file", f"{where} {given.which}, hash {given.policy.hash}, {count(len(given.policy.rules), 'rule')}")


def _mode(mode: str, enforced: list[str], observed: int, off: int, narrowing: bool) -> Line:
    rest = f"{observed} observe, {off} off" + (", narrowing is on somewhere" if narrowing else "")
    if not enforced:
        return ok("policy.rules", f"mode {mode}, no rule enforces ({rest})")
    said = "would act if the mode were enforce" if mode == fd.OBSERVE else "act"
    return ok("policy.rules", f"mode {mode}; {count(len(enforced), 'rule')} {said}: {some(enforced, 40)} ({rest})")
