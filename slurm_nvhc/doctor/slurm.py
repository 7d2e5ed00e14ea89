"""slurm.conf and what stands beside it: are the hooks run, in time, and can they do what they decide?"""

from __future__ import annotations

import os
from typing import Final, Optional

from slurm_nvhc.doctor.facts import AS_ROOT, Facts, Launcher, Line, fail, ok, unknown, warn
from slurm_nvhc.doctor.words import some
from slurm_nvhc.hooks import install, slurm_conf
from slurm_nvhc.hooks.slurm_conf import Hooks, Settings

_NODE_STATE: Final = "healthchecknodestate"


def lines(facts: Facts) -> list[Line]:
    slurm, settings = facts.slurm, facts.slurm.settings
    out = [_switch(facts), *_launchers(facts)]
    if settings is None:
        if not slurm.conf:
            places = some(slurm_conf.WELL_KNOWN)
            return [*out, unknown("slurm.conf", f"no slurm.conf on this machine; looked at {places}", "name it: --slurm-conf")]
        return [*out, unknown("slurm.conf", f"{slurm.conf} can not be read", "run as root, or name the right one: --slurm-conf")]
    hooks = install.hooks_of(slurm.libdir, facts.policy.budgets)
    out += [ok("slurm.conf", f"{slurm.conf}{f', {slurm.version}' if slurm.version else ''}"), _named(facts, hooks, settings)]
    out += _times(hooks, settings)
    return [*out, _interval(settings), _scontrol(facts), *_sinfo(facts), *_task_prolog(facts, hooks, settings), _constrain(facts)]


def _switch(facts: Facts) -> Line:
    if facts.host.disabled:
        return warn("slurm.switch", f"{facts.host.disabled} exists: every hook is switched off", f"rm {facts.host.disabled}")
    switch = facts.host.cluster
    if switch.problem:
        return warn("slurm.switch", switch.problem, "look after that file system: what was last read holds meanwhile")
    if str(switch):
        return warn("slurm.switch", str(switch), f"rm {switch.file}")
    if switch.unknown:
        found = f"{switch.file} names what is no rule of the policy: {some(switch.unknown)}"
        return warn("slurm.switch", found, "put rules' names there, or nothing")
    return ok("slurm.switch", f"hooks are not switched off{f', nor by {switch.file}' if switch.file else ''}")


def _launchers(facts: Facts) -> list[Line]:
    slurm = facts.slurm
    if not slurm.launchers:
        return [unknown("slurm.launchers", f"{slurm.libdir} did not answer in time", "look after that file system")]
    named = slurm.settings is not None and any(slurm_conf.names(slurm.settings, launcher.path) for launcher in slurm.launchers)
    if not named and not any(launcher.there for launcher in slurm.launchers):
        found = f"hooks are not installed: no launcher in {slurm.libdir}"
        advice = "run `nvhc hooks install`, or name their directory: --libdir"
        return [ok("slurm.launchers", found) if facts.no_gpus else warn("slurm.launchers", found, advice)]
    wanted = [x for x in slurm.launchers if facts.policy.narrowing or os.path.basename(x.path) != install.TASK_PROLOG]
    return [_launcher(facts, launcher) for launcher in wanted]


def _launcher(facts: Facts, launcher: Launcher) -> Line:
    name = os.path.basename(launcher.path)
    check, again = f"slurm.{name.removeprefix('nvhc-').removesuffix('.sh').replace('-', '_')}", "run `nvhc hooks install` again"
    if launcher.problem:
        return unknown(check, f"{launcher.path}: {launcher.problem}", AS_ROOT)
    if not launcher.there:
        named = facts.slurm.settings is not None and slurm_conf.names(facts.slurm.settings, launcher.path)
        if named:
            return fail(check, f"{launcher.path} does not exist, and slurm.conf names it: jobs fail and drain the node", again)
        return warn(check, f"{launcher.path} does not exist", again)
    if not launcher.executable:
        return fail(check, f"{launcher.path} can not be executed: jobs fail and drain the node", f"chmod 0755 {launcher.path}")
    if name == install.TASK_PROLOG:
        return ok(check, launcher.path)
    if not launcher.settings:
        return fail(check, f"{launcher.path} is a stub or none of ours: nothing is checked", again)
    differs = _differences(facts, name, launcher)
    if differs:
        return warn(check, f"{launcher.path} was written for {differs}", f"{again} with the same options as this command")
    return ok(check, f"{launcher.path}, ended after {launcher.settings.get('DEADLINE', '?')} s")


def _differences(facts: Facts, name: str, launcher: Launcher) -> str:
    """What is baked into the launcher and is not what this command was asked about."""
    wanted = {"CONFIG": facts.policy.path, "STATE": facts.host.state.path.path, "RUN": facts.host.run.path.path}
    baked = launcher.settings
    differ = [f"{key.lower()} {baked.get(key, '?')} (here {value})" for key, value in wanted.items() if baked.get(key) != value]
    needed = install.needed_s(facts.policy.budgets, name)
    deadline = baked.get("DEADLINE", "")
    # Longer is right: the launcher is written for the longest budget of all partitions.
    if not deadline.isdigit() or int(deadline) < needed:
        differ.append(f"deadline {deadline or '?'} (here {needed})")
    return some(differ)


def _named(facts: Facts, hooks: Hooks, settings: Settings) -> Line:
    missing = [line.text for line in slurm_conf.lines(hooks, settings, facts.policy.narrowing) if not line.present]
    # Slurm's default for the node state is ANY: only the printed line is explicit.
    missing = [text for text in missing if not text.startswith("HealthCheckNodeState=")]
    if missing:
        return warn("slurm.hooks", f"not in {facts.slurm.conf}: {some(missing)}", "add these lines, then `scontrol reconfigure`")
    return ok("slurm.hooks", "prolog, epilog and health check are named, PrologFlags has Alloc")


def _times(hooks: Hooks, settings: Settings) -> list[Line]:
    """Several hook lines, globs, RunInJob and every time limit of Slurm against our own."""
    said = slurm_conf.warnings(hooks, settings)
    if said:
        advice = "do as said, in slurm.conf (then `scontrol reconfigure`) or in the policy"
        return [warn("slurm.times", sentence, advice) for sentence in said]
    of_hook: dict[str, list[str]] = {}
    for limit in slurm_conf.limits(settings):
        of_hook.setdefault(limit.hook, []).append(f"{limit.key} {'none' if limit.seconds is None else limit.seconds}")
    ours = "; ".join(f"{hook} {hooks.seconds(hook)} s ({some(limits)})" for hook, limits in of_hook.items())
    return [ok("slurm.times", f"{ours}: within Slurm's limits, and one line for each hook")]


def _interval(settings: Settings) -> Line:
    seconds = health_check_interval(settings)
    states = health_check_states(settings)
    if not seconds:
        return warn("slurm.health_check_interval", "HealthCheckInterval is 0: the health check never runs", "HealthCheckInterval=300")
    if states.upper().split(",")[0] != "ANY":
        found = f"every {seconds} s, on {states} nodes only: other nodes are not watched, intents not completed there"
        return warn("slurm.health_check_interval", found, "HealthCheckNodeState=ANY")
    return ok("slurm.health_check_interval", f"every {seconds} s, whatever the node's state")


def health_check_interval(settings: Optional[Settings]) -> int:
    """Seconds; 0 when it never runs or nothing is known."""
    return _number(settings or {}, "healthcheckinterval", 0)


def health_check_states(settings: Optional[Settings]) -> str:
    return ((settings or {}).get(_NODE_STATE) or ("ANY",))[-1]


def _number(settings: Settings, key: str, default: int) -> int:
    values = settings.get(key, ())
    return int(values[-1]) if values and values[-1].isdigit() else default


def _scontrol(facts: Facts) -> Line:
    if facts.slurm.scontrol_there:
        return ok("slurm.scontrol", facts.slurm.scontrol)
    advice = "name its directory in the policy: slurm.bin_dir"
    return fail("slurm.scontrol", f"{facts.slurm.scontrol} can not be run: no drain can be set", advice)


def _sinfo(facts: Facts) -> list[Line]:
    if facts.slurm.sinfo_there or not facts.slurm.scontrol_there:
        return [ok("slurm.sinfo", "who else is drained can be counted")] if facts.slurm.sinfo_there else []
    said = "sinfo is not beside scontrol: drains are placed without counting who else is out (docs/limits.md)"
    return [warn("slurm.sinfo", said, "install it on the node, with Slurm's client commands")]


def _task_prolog(facts: Facts, hooks: Hooks, settings: Settings) -> list[Line]:
    slurm = facts.slurm
    if not facts.policy.narrowing:
        return [ok("slurm.narrowing", "not asked for by the policy: no TaskProlog is needed")]
    out = [
        ok("slurm.narrowing", f"TaskProlog is {hooks.task_prolog}")
        if slurm_conf.names_as(settings, "taskprolog", hooks.task_prolog)
        else fail("slurm.narrowing", "the policy narrows, and slurm.conf has not our TaskProlog", f"TaskProlog={hooks.task_prolog}")
    ]
    if slurm.containers:
        found = f"{some(slurm.containers)}: a task prolog may run inside the image, where {facts.host.run.path.path} is not"
        advice = "mount the run directory into containers, or set narrow.enabled: false for their partitions; try it with one job"
        out.append(warn("slurm.containers", found, advice))
    else:
        out.append(ok("slurm.containers", "no container plugin is in the way of the task prolog"))
    return out


def _constrain(facts: Facts) -> Line:
    known = facts.slurm.constrain
    if known is None:
        return unknown("slurm.constrain", "it can not be told whether ConstrainDevices is in force", "check cgroup.conf and TaskPlugin")
    if known:
        return ok("slurm.constrain", "ConstrainDevices is in force: CUDA_VISIBLE_DEVICES counts within the job")
    return ok("slurm.constrain", "ConstrainDevices is not in force: CUDA_VISIBLE_DEVICES is node-wide, and a job can open any GPU")
