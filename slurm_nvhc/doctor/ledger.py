"""The node's memory: is it there, does it grow, and do hooks write into it?"""

from __future__ import annotations

from typing import Final

from slurm_nvhc.act import steps as st
from slurm_nvhc.doctor import slurm
from slurm_nvhc.doctor.facts import AS_ROOT, Facts, Line, fail, ok, unknown, warn
from slurm_nvhc.doctor.words import count, some
from slurm_nvhc.hooks import slurm_conf
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model.protective import QUARANTINE, SUSPECTED, Exclusion
from slurm_nvhc.model.times import duration, iso

HOOKS: Final = (PROLOG, EPILOG, HEALTH_CHECK)
INTERVALS: Final = 3  # our judgement: one may be skipped by the lock or a restart of slurmd, not three in a row
OLD_INTENT_S: Final = 3600.0  # our judgement: slurmctld is back within an hour, or somebody must look


def lines(facts: Facts) -> list[Line]:
    ledger = facts.ledger
    if ledger.denied:
        return [unknown("ledger.file", f"{ledger.directory}: {ledger.problem}", AS_ROOT)]
    if not ledger.there:
        found = f"{ledger.directory} holds none: no hook has run on this node"
        return [ok("ledger.file", found) if facts.no_gpus else warn("ledger.file", found, "install the hooks, run a job, look again")]
    out = [_file(facts)]
    if not ledger.problem:
        out += [_runs(facts), _health_check(facts)]
    return [*out, *_protective(facts)]


def _file(facts: Facts) -> Line:
    ledger = facts.ledger
    if ledger.problem:
        advice = "the next hook sets it aside and restores what protects from protective.json; check the disk"
        return fail("ledger.file", f"{ledger.directory}: {ledger.problem}", advice)
    found = f"{ledger.directory}: {ledger.size / 1024 / 1024:.1f} MiB"
    if ledger.set_aside:
        advice = "check the disk; delete them once looked at"
        return warn("ledger.file", f"{found}; damaged ones from before: {some(ledger.set_aside)}", advice)
    return ok("ledger.file", found)


def _runs(facts: Facts) -> Line:
    said = []
    for hook in HOOKS:
        run = facts.ledger.runs.get(hook)
        name = hook.replace("_", " ")
        job = f" job {run.job_id}" if run is not None and run.job_id else ""
        said.append(f"{name} never" if run is None else f"{name} {_ago(facts, run.ended_ns)} ago{job} ({run.verdict})")
    return ok("ledger.runs", f"last runs: {', '.join(said)}")


def _health_check(facts: Facts) -> Line:
    """A health check that has stopped is not seen by Slurm: it runs it and never looks at what comes of it."""
    check, settings = "ledger.health_check", facts.slurm.settings
    seconds = slurm.health_check_interval(settings)
    named = settings is not None and any(slurm_conf.names_as(settings, "healthcheckprogram", path.path) for path in facts.slurm.launchers)
    if not seconds or not named:
        return ok(check, "Slurm is not known to run it; see slurm.hooks")
    run = facts.ledger.runs.get(HEALTH_CHECK)
    age = None if run is None else (facts.now_ns - run.ended_ns) / 1e9
    if age is not None and age <= INTERVALS * seconds:
        return ok(check, f"ran {duration(max(0.0, age))} ago, every {seconds} s is asked for")
    found = f"{'has never run' if age is None else f'ran {duration(age)} ago'}, although Slurm is asked to run it every {seconds} s"
    states = slurm.health_check_states(settings)
    if states.upper().split(",")[0] != "ANY":
        return unknown(check, f"{found} on {states} nodes", "is the node in another state? HealthCheckNodeState=ANY runs it always")
    return warn(check, found, "is slurmd running? look for nvhc in syslog and health_check in slurmd's log")


def _protective(facts: Facts) -> list[Line]:
    ledger = facts.ledger
    if ledger.protective_problem:
        return [warn("ledger.protective", ledger.protective_problem, "the next hook writes it anew from the ledger")]
    out = []
    old = [i for i in ledger.intents if (facts.now_ns - i.since_ns) / 1e9 > OLD_INTENT_S]
    untold = [i for i in old if i.kind == st.NOTIFY]
    if untold:
        found = some(f"{i.reason}, tries {i.tries}" for i in untold)
        advice = "look for MON-SITE-HOOK; the documents lie in notify/ of the state directory"
        out.append(warn("ledger.events", f"a program of the site was not told: {found}", advice))
    old = [i for i in old if i not in untold]
    if old:
        found = some(f"{i.kind} for {_ago(facts, i.since_ns)}, tries {i.tries}: {i.reason}" for i in old)
        out.append(warn("ledger.intents", f"decided and not done: {found}", "does slurmctld answer here? see slurm.scontrol"))
    else:
        waiting = f"{count(len(ledger.intents), 'intent')} of less than an hour" if ledger.intents else "nothing"
        out.append(ok("ledger.intents", f"waiting to be done: {waiting}"))
    own = ledger.own_drain
    out.append(ok("ledger.drain", f"ours since {iso(own.set_ns)}: {own.reason}" if own is not None else "no drain of ours"))
    return [*out, _exclusions(facts), *_pause(facts)]


def _pause(facts: Facts) -> list[Line]:
    """A pause that is forgotten leaves a node unprotected."""
    found = facts.ledger.pause
    if found is None or facts.now_ns >= found.until_ns:
        return []
    told = f"paused until {iso(found.until_ns)} by {found.who}: {found.why}; nothing is done on this node until then"
    return [warn("ledger.pause", told, "nvhc pause --end, once the work is done")]


def _exclusions(facts: Facts) -> Line:
    ledger, listed = facts.ledger, facts.snapshot.gpus
    if not ledger.exclusions:
        return ok("ledger.exclusions", "no GPU is excluded")
    named = some(f"{e.uuid} {e.code} since {iso(e.since_ns)}{_held(facts, e)}" for e in ledger.exclusions)
    gone = [e.uuid for e in ledger.exclusions if listed is not None and e.uuid not in listed]
    if gone:
        advice = "nvhc gpu release, if the card was taken out"
        return warn("ledger.exclusions", f"excluded: {named}; not in this node: {some(gone)}", advice)
    return ok("ledger.exclusions", f"excluded: {named}; `nvhc gpu release` gives one back")


def _held(facts: Facts, one: Exclusion) -> str:
    """What keeps jobs off it, where that is not what it usually is."""
    if one.stage == SUSPECTED:
        return " (only suspected)"
    if one.way != QUARANTINE:
        return ""
    return "" if any(hold.uuid == one.uuid for hold in facts.ledger.holds) else " (quarantined, and no placeholder job is known to hold it)"


def _ago(facts: Facts, at_ns: int) -> str:
    return duration(max(0.0, (facts.now_ns - at_ns) / 1e9))
