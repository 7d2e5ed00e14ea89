"""Put the launchers where slurmd runs them, and take them away again without harm.

Both functions return what they did; nothing is printed here. A file that slurmd runs is
always replaced by rename: slurmd never sees half of one. On removal a launcher that
slurm.conf still names, or may still name, becomes a stub that exits 0, since Slurm drains
every node on which a hook's file is missing.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import stat
import sys
from typing import Callable, Final, NamedTuple, Optional

from slurm_nvhc import resources
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.hooks import slurm_conf
from slurm_nvhc.policy.compiled import Budgets, Slurm
from slurm_nvhc.proc import child, files
from slurm_nvhc.slurm.node import SlurmCommands

# The launcher ends a hook this long after the hook's own budget: the hook ends itself first.
GRACE_S: Final = 1
TOOL_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"  # as in the launchers
TASK_PROLOG: Final = "nvhc-task-prolog.sh"
LAUNCHERS: Final = {  # file in the library directory -> its template, and the names of its budgets: the longest counts
    "nvhc-prolog.sh": ("prolog/nvhc-prolog.sh", ("prolog_s",)),
    "nvhc-epilog.sh": ("epilog/nvhc-epilog.sh", ("epilog_s",)),
    "nvhc-health-check.sh": ("prolog/nvhc-health-check.sh", ("health_check_s", "registration_s")),
}
_DEADLINE: Final = re.compile(r"^DEADLINE=(\d+)$", re.MULTILINE)  # as in prolog/launcher.sh
_MAX_LAUNCHER: Final = 64 * 1024
MARKER: Final = ".nvhc"  # in the state directory: purge removes nothing without it
STUB: Final = """\
#!/bin/sh
# slurm-nvhc was removed. slurm.conf named this file then, and Slurm drains every node
# on which a hook is missing, so it stays and does nothing. Delete it once slurm.conf
# does not name it any more and the daemons have read that.
exit 0
"""


class Options(NamedTuple):
    """All paths are absolute. python: '' = the interpreter that runs this.

    slurm_conf: '' = the first well-known place that has one, else /etc/slurm/slurm.conf.
    budgets:    from the policy in force; the launchers' deadlines follow them.
    bin_dir:    where the policy says that scontrol is.
    narrowing:  the policy narrows somewhere, so TaskProlog is wanted.
    purge:      remove only: state and run directories as well.
    """

    libdir: str = "/usr/libexec/nvhc"
    config: str = "/etc/nvhc/policy.yaml"
    state: str = "/var/lib/nvhc"
    run: str = "/run/nvhc"
    slurm_conf: str = ""
    kill_switch: str = "/etc/nvhc/disabled"
    python: str = ""
    budgets: Budgets = Budgets()
    bin_dir: str = Slurm().bin_dir
    narrowing: bool = False
    dry_run: bool = False
    purge: bool = False


class Report(NamedTuple):
    """done: one sentence per file or directory, in order; with dry_run, what would be done.

    lines: for slurm.conf, in order; before: what must be so first (slurm_conf.before).
    warnings: what an administrator should look at; all was done nevertheless.
    """

    done: tuple[str, ...]
    lines: tuple[slurm_conf.Line, ...] = ()
    warnings: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


Running = Callable[[Options], Optional[slurm_conf.Settings]]


def install(options: Options) -> Report:
    """Write launchers, task prolog, directories and, where there is none, a starter policy.

    Raises InputError for paths that can not work, MonitorError when the interpreter can not
    load slurm_nvhc or a directory can not be written. Calling it again brings all files up to date.
    """
    options = _complete(options)
    _check_paths(options)
    _check_interpreter(options.python)
    conf_path, settings = _settings(options)
    done = [_directory(options.libdir, 0o755, options.dry_run)]
    for name, text in launchers(options, conf_path).items():
        done.append(_write(os.path.join(options.libdir, name), text, 0o755, options.dry_run))
    done.append(_directory(options.state, 0o700, options.dry_run))
    done.append(_directory(options.run, 0o755, options.dry_run))
    if not options.dry_run:
        _put(os.path.join(options.state, MARKER), "state of slurm-nvhc\n", 0o600)
    if os.path.lexists(options.config):
        done.append(f"kept {options.config}")
    else:
        _directory(os.path.dirname(options.config), 0o755, options.dry_run)
        done.append(_write(options.config, _template("etc/policy.site.yaml"), 0o644, options.dry_run))
    hooks = hooks_of(options.libdir, options.budgets)
    warnings = [*_trust_warnings(options), *_tool_warnings()]
    unusable = SlurmCommands(options.bin_dir, "", 0.0).unusable()
    if unusable is not None:
        warnings.append(str(unusable))
    if settings is None:
        warnings.append(f"no slurm.conf at {conf_path}: its settings were not checked")
    else:
        warnings += slurm_conf.warnings(hooks, settings)
    lines = slurm_conf.lines(hooks, settings or {}, options.narrowing)
    return Report(tuple(done), lines, tuple(warnings), slurm_conf.before(hooks))


def running_settings(options: Options) -> Optional[slurm_conf.Settings]:
    """What slurmctld has in force now, or None when it does not say. Takes 5 s at most."""
    scontrol = shutil.which("scontrol", path=f"{TOOL_PATH}:/opt/slurm/bin:/usr/local/bin")
    if not scontrol:
        return None
    environment = {"SLURM_CONF": options.slurm_conf} if options.slurm_conf else {}
    answer = child.run([scontrol, "show", "config"], 5.0, environment)
    return slurm_conf.parse_running(answer.out) if answer.rc == 0 else None


def remove(options: Options, running: Running = running_settings) -> Report:
    """Delete the launchers, or leave stubs where Slurm names them or can not be asked.

    The policy stays. State stays unless ``purge``. Raises MonitorError when a file can not be changed.
    """
    named = _who_names(_complete(options), running(options))
    done = []
    for name in (*LAUNCHERS, TASK_PROLOG):
        path = os.path.join(options.libdir, name)
        if not os.path.lexists(path):
            continue
        why = named(path)
        if why:
            _write(path, STUB, 0o755, options.dry_run)
            done.append(f"left {path} as a stub that does nothing: {why}")
        else:
            if not options.dry_run:
                _unlink(path)
            done.append(f"deleted {path}")
    if not options.dry_run and os.path.isdir(options.libdir):
        _rmdir_if_empty(options.libdir)
    warnings: list[str] = []
    if options.purge:
        _purge_state(options, done, warnings)
        _purge_run(options, done)
    return Report(tuple(done), (), tuple(warnings))


def launchers(options: Options, conf_path: str) -> dict[str, str]:
    """File name -> text, with every path baked in. ``options`` must be complete."""
    values = {
        "PYTHON": options.python,
        "CONFIG": options.config,
        "STATE": options.state,
        "RUN": options.run,
        "SLURMCONF": conf_path,
        "KILLSWITCH": options.kill_switch,
    }
    out = {}
    for name, (template, _budgets) in LAUNCHERS.items():
        text = _template(template).replace("@LAUNCHER@", _template("prolog/launcher.sh").rstrip("\n"))
        out[name] = _fill(text, {**values, "SECONDS": str(needed_s(options.budgets, name))})
    out[TASK_PROLOG] = _fill(_template("prolog/nvhc-task-prolog.sh"), values)
    return out


def needed_s(budgets: Budgets, launcher: str) -> int:
    """The deadline in seconds that a launcher must have under these budgets."""
    longest: float = max(getattr(budgets, name) for name in LAUNCHERS[launcher][1])
    return math.ceil(longest) + GRACE_S


def too_short(libdir: str, budgets: Budgets) -> tuple[str, ...]:
    """One sentence for each launcher that was written for a smaller budget: it would end the hook in the middle."""
    out = []
    for name in LAUNCHERS:
        path = os.path.join(libdir, name)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                baked = _DEADLINE.search(file.read(_MAX_LAUNCHER))
        except OSError:
            continue  # not installed here
        if baked and int(baked.group(1)) < needed_s(budgets, name):
            why = f"ends its hook after {baked.group(1)} s, and this policy's budget needs {needed_s(budgets, name)} s"
            out.append(f"{path} {why}: run `nvhc hooks install` again once it is in force")
    return tuple(out)


def _fill(text: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(f"@{key}@", shlex.quote(value))
    return text


def _template(relative: str) -> str:
    path = resources.find(relative)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as exc:
        raise MonitorError(str(path), "", f"can not be read: {exc.strerror}", "is slurm-nvhc installed completely?") from exc


def _complete(options: Options) -> Options:
    return options._replace(python=options.python or sys.executable)


def hooks_of(libdir: str, budgets: Budgets) -> slurm_conf.Hooks:
    """Launchers in ``libdir``, as installed with these budgets."""
    prolog, epilog, health_check = (os.path.join(libdir, name) for name in LAUNCHERS)
    of_prolog, of_epilog, of_health_check = (needed_s(budgets, name) for name in LAUNCHERS)
    registration_s = math.ceil(budgets.registration_s) + GRACE_S
    task_prolog = os.path.join(libdir, TASK_PROLOG)
    return slurm_conf.Hooks(prolog, epilog, health_check, task_prolog, of_prolog, of_epilog, of_health_check, registration_s)


def _settings(options: Options) -> tuple[str, Optional[slurm_conf.Settings]]:
    """The slurm.conf that hooks without SLURM_CONF use (the health check), and what it says."""
    places = [options.slurm_conf] if options.slurm_conf else list(slurm_conf.WELL_KNOWN)
    for path in places:
        settings = slurm_conf.read(path)
        if settings is not None:
            return path, settings
    return places[0], None


def _check_paths(options: Options) -> None:
    for key in ("libdir", "config", "state", "run", "slurm_conf", "kill_switch", "python"):
        value = getattr(options, key)
        if key == "slurm_conf" and not value:
            continue
        if not value.startswith("/"):
            raise InputError(key, "", f"{value!r} is not an absolute path", "hooks run in a directory of Slurm's choice")
        if any(ord(c) < 32 or ord(c) == 127 for c in value):
            raise InputError(key, "", f"{value!r} has control characters")
    if " " in options.libdir or "," in options.libdir or "#" in options.libdir:
        raise InputError("libdir", "", f"{options.libdir!r} has a character that slurm.conf can not have in a hook's path")


def _check_interpreter(python: str) -> None:
    """A wrong interpreter would make every hook fail silently (exit 0, one log line each)."""
    if not shutil.which("timeout", path=TOOL_PATH):
        raise MonitorError("timeout", "", f"is not in {TOOL_PATH}, and the launchers need it", "it is in the package coreutils")
    answer = child.run([python, "-I", "-c", "import slurm_nvhc"], 20.0)
    if answer.rc != 0:
        lines = (answer.problem or answer.err or f"exit status {answer.rc}").strip().splitlines()
        raise MonitorError(python, "", f"can not load slurm_nvhc: {lines[-1] if lines else ''}", "name the interpreter of its environment")


def _trust_warnings(options: Options) -> list[str]:
    """Root runs these: whoever can change them is root."""
    out = []
    package = os.path.dirname(os.path.abspath(resources.__file__))
    # The link itself and what it leads to: in a virtual environment the interpreter is a link.
    paths = [options.libdir, options.config, options.python, os.path.realpath(options.python), package]
    seen: set[str] = set()
    for start in paths:
        path = start
        while path not in seen:
            seen.add(path)
            problem = _untrusted(path)
            if problem:
                out.append(f"{path} {problem}: whoever can change {start} is root on this node")
            path = os.path.dirname(path)
    return out


def _untrusted(path: str) -> str:
    try:
        info = os.lstat(path)
    except OSError:
        return ""  # not there yet
    if info.st_uid != 0:
        return f"belongs to user {info.st_uid}, not to root"
    if stat.S_ISLNK(info.st_mode):
        return ""
    sticky_directory = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX  # others' entries are safe there
    if info.st_mode & 0o022 and not sticky_directory:
        return f"can be written by others (mode {stat.S_IMODE(info.st_mode):04o})"
    return ""


def _tool_warnings() -> list[str]:
    what = {"logger": "what hooks do wrong will not reach syslog", "flock": "the launcher can not keep two health checks apart"}
    return [f"{tool} is not in {TOOL_PATH}: {effect}" for tool, effect in what.items() if not shutil.which(tool, path=TOOL_PATH)]


def _who_names(options: Options, running: Optional[slurm_conf.Settings]) -> Callable[[str], str]:
    """path -> why slurmd may still run it, '' when for certain it does not. Not knowing keeps the stub."""
    found = []
    for place in dict.fromkeys([options.slurm_conf, *slurm_conf.WELL_KNOWN]):
        settings = slurm_conf.read(place) if place else None
        if settings is not None:
            found.append((place, settings))

    def why(path: str) -> str:
        for place, settings in found:
            if slurm_conf.names(settings, path):
                return f"{place} names it"
        if running is not None and slurm_conf.names(running, path):
            return "slurmctld still has it in force: run `scontrol reconfigure`"
        if not found:
            return "no slurm.conf was found, so Slurm may name it"
        if running is None:
            return "slurmctld did not say whether it still has it in force"
        return ""

    return why


def _directory(path: str, mode: int, dry_run: bool) -> str:
    if not dry_run:
        try:
            files.make_private_dir(path, mode)
        except OSError as exc:
            raise MonitorError(path, "", f"can not be made: {exc.strerror}", "run as root") from exc
    return f"directory {path} (mode {mode:04o})"


def _write(path: str, text: str, mode: int, dry_run: bool) -> str:
    if not dry_run:
        _put(path, text, mode)
    return f"wrote {path}"


def _put(path: str, text: str, mode: int) -> None:
    try:
        files.write_atomic(path, text, mode)
    except OSError as exc:
        raise MonitorError(path, "", f"can not be written: {exc.strerror}", "run as root") from exc


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as exc:
        raise MonitorError(path, "", f"can not be deleted: {exc.strerror}", "run as root") from exc


def _purge_state(options: Options, done: list[str], warnings: list[str]) -> None:
    if not os.path.isdir(options.state) or os.path.islink(options.state):
        return
    if not os.path.isfile(os.path.join(options.state, MARKER)):
        warnings.append(f"kept {options.state}: it has no {MARKER} file, so slurm-nvhc did not make it")
        return
    if not options.dry_run:
        shutil.rmtree(options.state, ignore_errors=True)
    done.append(f"deleted {options.state} and all in it")


def _purge_run(options: Options, done: list[str]) -> None:
    """Only names that are ours: the directory lives in memory, so a marker would not outlast a boot."""
    if not os.path.isdir(options.run) or os.path.islink(options.run):
        return
    done.append(f"deleted what hooks left in {options.run}")
    if options.dry_run:
        return
    for entry in os.scandir(options.run):
        if entry.is_dir(follow_symlinks=False):
            for name in ("narrow", "hold"):
                shutil.rmtree(os.path.join(entry.path, name), ignore_errors=True)
            _rmdir_if_empty(entry.path)
        elif entry.name.startswith(".health_check"):
            _unlink(entry.path)
    _rmdir_if_empty(options.run)


def _rmdir_if_empty(path: str) -> None:
    if not os.listdir(path):
        os.rmdir(path)
