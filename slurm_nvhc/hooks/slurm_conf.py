"""What slurm.conf says about hooks, and what would go wrong with it. Used by install and remove only.

Facts behind the warnings (observed on 22.05 and 24.11): of several Prolog lines 22.05
silently runs the last one, 24.11 runs all in file order; a comma list is taken as one path
and fails every job; a glob runs in reverse alphabetical order and stops at the first
failure; a hook that outlasts PrologEpilogTimeout drains the node; a missing hook file
fails every job and drains every node; a batch job whose prolog fails is requeued and
held, unless SchedulerParameters has nohold_on_prolog_fail.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shlex
from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.slurm import conf

Settings = Mapping[str, tuple[str, ...]]  # key in lower case -> its values in file order

WELL_KNOWN: Final = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",  # configless
    "/opt/slurm/etc/slurm.conf",
    "/usr/local/etc/slurm.conf",
)
HOOK_KEYS: Final = ("prolog", "epilog", "healthcheckprogram", "taskprolog")
MESSAGE_TIMEOUT_S: Final = 10  # Slurm's default; a prolog is expected to end within it
BATCH_START_TIMEOUT_S: Final = 10  # Slurm's default
SLURMD_TIMEOUT_S: Final = 300  # Slurm's default
NOHOLD: Final = "nohold_on_prolog_fail"
HEALTH_CHECK_LIMIT_S: Final = 60  # slurmd kills a health check after this, where no HealthCheckTimeout (26.11) says otherwise
_ENDLESS_S: Final = 65534  # PrologEpilogTimeout's default
PROLOG: Final = "prolog"
EPILOG: Final = "epilog"
HEALTH_CHECK: Final = "health check"
_TABLES: Final = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname")  # lines about nodes, not settings
_SHOWN = re.compile(r"(\w+)(?:\[\d+\])?\s*=\s*(\S+)")  # 24.11 shows several hooks as Prolog[0], Prolog[1]
_INCLUDE_DEPTH: Final = 5


class Hooks(NamedTuple):
    """Paths of our launchers and the seconds after which each is ended for certain.

    registration_s: the health check before slurmd registers, which its own launcher ends no sooner than any other.
    """

    prolog: str
    epilog: str
    health_check: str
    task_prolog: str
    prolog_s: int
    epilog_s: int
    health_check_s: int
    registration_s: int = 0

    def seconds(self, hook: str) -> int:
        return {PROLOG: self.prolog_s, EPILOG: self.epilog_s, HEALTH_CHECK: self.health_check_s}.get(hook, self.registration_s)


class Limit(NamedTuple):
    """A limit of Slurm's on the time of one hook. seconds: a hook of ours must take less; None: there is no limit.

    otherwise: what happens to one that takes longer.
    """

    hook: str
    key: str
    seconds: Optional[int]
    otherwise: str


class Line(NamedTuple):
    """One line for slurm.conf. present: it, or something that does the same, is there already."""

    text: str
    why: str
    present: bool = False


def read(path: str) -> Optional[Settings]:
    """The settings of a slurm.conf and what it includes; None when it can not be read."""
    settings: dict[str, list[str]] = {}
    if not _read_into(path, settings, os.path.dirname(path), _INCLUDE_DEPTH):
        return None
    return {key: tuple(values) for key, values in settings.items()}


def _read_into(path: str, settings: dict[str, list[str]], folder: str, depth: int) -> bool:
    try:
        text = conf.read(path)
    except OSError:
        return False
    for line in conf.lines(text):
        included = conf.include(line).strip('"')
        if included:
            if depth > 0:
                _read_into(os.path.join(folder, included), settings, folder, depth - 1)
            continue
        if line.lower().startswith(_TABLES):
            continue
        for key, value in conf.pairs(line).items():
            settings.setdefault(key, []).append(value)
    return True


def parse_running(text: str) -> Settings:
    """`scontrol show config` as settings. "(null)" is an absent setting."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        found = _SHOWN.match(line.strip())
        if found and found.group(2) != "(null)":
            settings.setdefault(found.group(1).lower(), []).append(found.group(2))
    return {key: tuple(values) for key, values in settings.items()}


def names(settings: Settings, path: str) -> bool:
    """True when a hook setting runs ``path``: directly, through a glob, or through a link in a globbed directory."""
    real = os.path.realpath(path)
    for key in HOOK_KEYS:
        for value in settings.get(key, ()):
            if value == path or fnmatch.fnmatchcase(path, value):
                return True
            if any(os.path.realpath(found) == real for found in glob.glob(value)):
                return True
    return False


def before(hooks: Hooks) -> tuple[str, ...]:
    """What must be so before the lines go into slurm.conf; the last one is a command that checks it."""
    return (
        "These lines are for the whole cluster. The launchers must be on EVERY node that reads this slurm.conf before",
        "`scontrol reconfigure`: Slurm fails every job on a node without them, and drains it. Look first, for example by",
        f"clush -a {shlex.quote(f'test -x {shlex.quote(hooks.prolog)}')}",
    )


def lines(hooks: Hooks, settings: Settings, narrowing: bool) -> tuple[Line, ...]:
    """What slurm.conf needs on every node and on the controller, and why."""
    flags = _words(settings, "prologflags")
    parameters = _words(settings, "schedulerparameters")
    has_alloc = any(flag.lower() in ("alloc", "contain", "x11") for flag in flags)
    out = [
        Line(f"Prolog={hooks.prolog}", "records the counters when a job starts", names_as(settings, "prolog", hooks.prolog)),
        Line(f"Epilog={hooks.epilog}", "judges what changed when the job has ended", names_as(settings, "epilog", hooks.epilog)),
        Line(
            f"PrologFlags={','.join([*flags, 'Alloc'])}",
            "without it the prolog does not run for salloc or on a node without a step, and such a job has no baseline",
            has_alloc,
        ),
        Line(
            f"HealthCheckProgram={hooks.health_check}",
            "watches the node between jobs and completes what slurmctld could not be told",
            names_as(settings, "healthcheckprogram", hooks.health_check),
        ),
        Line("HealthCheckInterval=300", "0, the default, never runs it", _positive(settings, "healthcheckinterval")),
        Line("HealthCheckNodeState=ANY", "busy and drained nodes too", "healthchecknodestate" in settings),
        Line(
            f"SchedulerParameters={','.join([*parameters, NOHOLD])}",
            "a job that a prolog keeps off a bad node runs elsewhere; without it Slurm requeues it and holds it",
            _nohold(settings),
        ),
    ]
    if narrowing:
        out.append(
            Line(
                f"TaskProlog={hooks.task_prolog}",
                "takes a narrowed GPU out of the job's CUDA_VISIBLE_DEVICES",
                names_as(settings, "taskprolog", hooks.task_prolog),
            )
        )
    return tuple(out)


def names_as(settings: Settings, key: str, path: str) -> bool:
    return names({key: settings.get(key, ())}, path)


def _words(settings: Settings, key: str) -> list[str]:
    return [word for value in settings.get(key, ()) for word in value.split(",") if word]


def _nohold(settings: Settings) -> bool:
    return NOHOLD in (word.lower() for word in _words(settings, "schedulerparameters"))


def warnings(hooks: Hooks, settings: Settings) -> tuple[str, ...]:
    """What in this slurm.conf would break our hooks or be broken by them, one sentence each."""
    out: list[str] = []
    for key, label, path in (("prolog", "Prolog", hooks.prolog), ("epilog", "Epilog", hooks.epilog)):
        out += _list_warnings(label, path, settings.get(key, ()))
    checks = settings.get("healthcheckprogram", ())
    if checks and not names_as(settings, "healthcheckprogram", hooks.health_check):
        out.append(f"HealthCheckProgram is {checks[-1]}, and Slurm runs only one: call {hooks.health_check} from it")
    for limit in exceeded(hooks, settings):
        ours = f"our {hooks.seconds(limit.hook)} s for the {limit.hook}"
        budget = f"budgets.{limit.hook.replace(' ', '_')}"
        out.append(f"{limit.key}={limit.seconds} is not above {ours}, and {limit.otherwise}: raise it, or lower {budget}")
    if "runinjob" in (flag.lower() for flag in _words(settings, "prologflags")):
        out.append("PrologFlags has RunInJob: under ConstrainDevices the prolog then sees only the job's GPUs")
    if not _nohold(settings):
        held = "a job that our prolog keeps off a bad node is requeued and held until somebody runs `scontrol release`"
        out.append(f"SchedulerParameters has no {NOHOLD}: {held}")
    return tuple(out)


def exceeded(hooks: Hooks, settings: Settings) -> tuple[Limit, ...]:
    """The limits that our hooks may run into."""
    return tuple(limit for limit in limits(settings) if limit.seconds is not None and hooks.seconds(limit.hook) >= limit.seconds)


def limits(settings: Settings) -> tuple[Limit, ...]:
    """Every limit of Slurm's on the time of hooks, given or by default.

    PrologTimeout and EpilogTimeout (25.05) are taken before PrologEpilogTimeout, as their names say; it is not observed.
    UnkillableStepTimeout and KillWait are about a job's processes, which are gone before an epilog.
    """

    def of(key: str, default: Optional[int]) -> Optional[int]:
        seconds = _seconds(settings, key.lower())
        return default if seconds is None else seconds

    def first(*keys: str) -> tuple[str, Optional[int]]:
        key = next((key for key in keys if key.lower() in settings), keys[-1])
        seconds = of(key, None)
        return key, None if seconds is not None and seconds >= _ENDLESS_S else seconds

    drained = "a hook that Slurm ends drains the node"  # SIGTERM, SIGKILL 10 ms later: no time for anything (observed)
    return (
        Limit(PROLOG, *first("PrologTimeout", "PrologEpilogTimeout"), drained),
        Limit(PROLOG, "BatchStartTimeout", of("BatchStartTimeout", BATCH_START_TIMEOUT_S), "a batch job that starts later counts as lost"),
        Limit(PROLOG, "MessageTimeout", of("MessageTimeout", MESSAGE_TIMEOUT_S), "Slurm expects a prolog to end within it"),
        Limit(EPILOG, *first("EpilogTimeout", "PrologEpilogTimeout"), drained),
        Limit(HEALTH_CHECK, "HealthCheckTimeout", of("HealthCheckTimeout", HEALTH_CHECK_LIMIT_S), "slurmd ends it then"),
        Limit(
            HEALTH_CHECK, "HealthCheckInterval", of("HealthCheckInterval", None) or None,
            "slurmd starts the next one beside it, which finds the node taken and does nothing",
        ),
        Limit("registration", "SlurmdTimeout", of("SlurmdTimeout", SLURMD_TIMEOUT_S) or None, "a node that registers later is set down"),
    )  # fmt: skip


def _list_warnings(label: str, path: str, values: Sequence[str]) -> list[str]:
    out = []
    others = [value for value in values if value != path]
    if len(values) > 1:
        what_runs = "Slurm 22.05 runs only the last, 24.11 all in file order"
        out.append(f"slurm.conf has {len(values)} {label} lines: {what_runs}; use one line with a glob")
    elif others and not names({label.lower(): tuple(others)}, path):
        where = "link our launcher into that directory" if _is_glob(others[0]) else "use a directory: move both there and give a glob"
        out.append(f"{label} is already {others[0]}; a second line is not safe on every version: {where}")
    for value in others:
        if "," in value:
            out.append(f"{label}={value} is a comma list: Slurm takes it as one path, and every job fails")
        if _is_glob(value):
            out.append(f"{label}={value} is a glob: Slurm runs it in reverse alphabetical order and stops at the first that fails")
    return out


def _is_glob(value: str) -> bool:
    return any(c in value for c in "*?[")


def _seconds(settings: Settings, key: str) -> Optional[int]:
    values = settings.get(key, ())
    return int(values[-1]) if values and values[-1].isdigit() else None


def _positive(settings: Settings, key: str) -> bool:
    seconds = _seconds(settings, key)
    return seconds is not None and seconds > 0
