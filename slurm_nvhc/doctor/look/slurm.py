"""Slurm on this machine: slurm.conf and its neighbours, our launchers, what slurmd says its GPUs are."""

from __future__ import annotations

import glob
import os
import re
import shlex
from typing import Final, Iterator, NamedTuple, Optional, Sequence

from slurm_nvhc.doctor.facts import Launcher, Listing, SlurmFacts
from slurm_nvhc.doctor.look.edges import Edges, within
from slurm_nvhc.hooks import install, slurm_conf
from slurm_nvhc.hooks.slurm_conf import Settings
from slurm_nvhc.policy.compiled import Slurm
from slurm_nvhc.slurm import conf as files
from slurm_nvhc.slurm import gres as gres_file
from slurm_nvhc.slurm import hostlist

# slurmd -G answers in 10 ms; for a device file that is missing it waits 19 s (observed on 22.05).
SLURMD_S: Final = 5.0
VERSION_S: Final = 5.0
FILES_S: Final = 10.0
SBIN: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/slurm/sbin")
_GRES_LINE = re.compile(r"\bGres Name=gpu\b.*?\bFile=(\S+)")
_BAKED = re.compile(r"^(PYTHON|CONFIG|STATE|RUN|SLURM_CONF_FILE|KILL_SWITCH|DEADLINE)=(.*)$", re.MULTILINE)
_CONTAINER = re.compile(r"pyxis|enroot|apptainer|singularity|shifter|charliecloud|sarus", re.IGNORECASE)
_INCLUDE_DEPTH: Final = 5


def launchers(edges: Edges, libdir: str) -> tuple[Launcher, ...]:
    return tuple(_launcher(edges, os.path.join(libdir, name)) for name in (*install.LAUNCHERS, install.TASK_PROLOG))


class _Files(NamedTuple):
    """What the files say, see SlurmFacts."""

    conf: str = ""
    settings: Optional[Settings] = None
    gres: Optional[gres_file.GresList] = None
    gres_problem: str = ""
    constrain: Optional[bool] = None
    containers: tuple[str, ...] = ()


def look(edges: Edges, node: str, asked: str, policy: Slurm, run_dir: str, libdir: str, ours: Sequence[Launcher]) -> SlurmFacts:
    """asked: the slurm.conf that was asked for, '' = as hooks find it."""
    places = (asked, edges.environment.get("SLURM_CONF", ""), policy.conf)
    found = within(FILES_S, lambda: _look_at_files(edges, node, places, run_dir, ours), _Files(next(filter(None, places), "")))
    scontrol = os.path.join(policy.bin_dir, "scontrol")
    there = _executable(edges.at(scontrol))
    return SlurmFacts(
        *found,
        listing=Listing(None, "no slurm.conf was read") if found.settings is None else listing(edges, node, found.conf, policy.bin_dir),
        scontrol=scontrol,
        scontrol_there=there,
        version=_version(edges, scontrol) if there else "",
        libdir=libdir,
        launchers=tuple(ours),
        sinfo_there=_executable(edges.at(os.path.join(policy.bin_dir, "sinfo"))),
    )


def _look_at_files(edges: Edges, node: str, asked: Sequence[str], run_dir: str, ours: Sequence[Launcher]) -> _Files:
    where = _find_conf(edges, asked, ours)
    if not where:
        return _Files()
    settings = slurm_conf.read(edges.at(where))
    gres, trouble = gres_file.read(edges.at(where), node)
    problem = trouble.detail if trouble is not None else ""
    plugins = tuple(dict.fromkeys(containers(edges, where, settings, run_dir))) if settings is not None else ()
    return _Files(where, settings, gres, problem, files.constrain_devices(edges.at(where)), plugins)


def _find_conf(edges: Edges, asked: Sequence[str], ours: Sequence[Launcher]) -> str:
    for path in asked:
        if path:
            return path
    baked = [launcher.settings.get("SLURM_CONF_FILE", "") for launcher in ours]
    places = [path for path in (*baked, *slurm_conf.WELL_KNOWN) if path and os.path.lexists(edges.at(path))]
    return next((path for path in places if slurm_conf.read(edges.at(path)) is not None), places[0] if places else "")


def _launcher(edges: Edges, path: str) -> Launcher:
    real = edges.at(path)
    if not os.path.lexists(real):
        return Launcher(path, False)
    try:
        text = files.read(real)
    except OSError as exc:
        return Launcher(path, True, problem=exc.strerror or str(exc))
    return Launcher(path, True, bool(os.stat(real).st_mode & 0o111), {key: _unquoted(value) for key, value in _BAKED.findall(text)})


def _unquoted(value: str) -> str:
    try:
        return "".join(shlex.split(value))
    except ValueError:
        return value


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _version(edges: Edges, scontrol: str) -> str:
    answer = edges.run([edges.at(scontrol), "-V"], VERSION_S)
    lines = answer.out.strip().splitlines()
    return lines[0][:60] if answer.rc == 0 and lines else ""


def listing(edges: Edges, node: str, slurm_conf_path: str, bin_dir: str) -> Listing:
    """What `slurmd -G` says. It asks nobody and starts nothing; its log goes to /dev/null instead of slurmd's own."""
    places = (bin_dir, os.path.join(os.path.dirname(bin_dir.rstrip("/")), "sbin"), *SBIN)
    slurmd = next((path for place in places if _executable(path := edges.at(os.path.join(place, "slurmd")))), "")
    if not slurmd:
        return Listing(None, "it is not on this machine")
    answer = edges.run([slurmd, "-G", "-L", "/dev/null", "-N", node, "-f", edges.at(slurm_conf_path)], SLURMD_S)
    if answer.problem == "timeout":
        why = "it waits for device files that gres.conf names and that are missing"
        return Listing(None, f"`slurmd -G` gave no answer within {SLURMD_S:g} s: {why}")
    said = f"{answer.out}\n{answer.err}"
    if answer.rc != 0:
        last = (answer.problem or said.strip() or f"exit status {answer.rc}").splitlines()[-1]
        return Listing(None, f"`slurmd -G` failed: {last[:200]}")
    return parse_listing(said)


def parse_listing(text: str) -> Listing:
    """The device files in the output of `slurmd -G`, in order; () when it has none."""
    out: list[str] = []
    for found in _GRES_LINE.finditer(text):
        if found[1] == "(null)":
            return Listing(None, "`slurmd -G` names no device file")
        try:
            out += hostlist.expand(found[1], gres_file.MAX_FILES)
        except ValueError as exc:
            return Listing(None, f"`slurmd -G`: {exc}")
    return Listing(tuple(out))


def containers(edges: Edges, conf_path: str, settings: Settings, run_dir: str) -> Iterator[str]:
    """Container plugins under which a task prolog may not see ``run_dir``, each with the file that says so."""
    plugstack = (settings.get("plugstackconfig") or (files.beside(conf_path, "plugstack.conf"),))[-1]
    for path, line in _plugstack(edges, plugstack, _INCLUDE_DEPTH):
        found = _CONTAINER.search(line)
        if found:
            yield f"{found[0].lower()} ({path})"
    if os.path.exists(edges.at(files.beside(conf_path, "oci.conf"))):
        yield f"srun --container ({files.beside(conf_path, 'oci.conf')})"
    kind = (settings.get("jobcontainertype") or ("",))[-1]
    if kind.endswith("/tmpfs") and _hidden(edges, files.beside(conf_path, "job_container.conf"), run_dir) is not False:
        yield f"JobContainerType={kind}"


def _plugstack(edges: Edges, path: str, depth: int) -> Iterator[tuple[str, str]]:
    try:
        text = files.read(edges.at(path))
    except OSError:
        return
    for line in files.lines(text):
        included = files.include(line)
        if not included:
            yield path, line
        elif depth > 0:
            pattern = os.path.join(os.path.dirname(path), included)
            for found in sorted(glob.glob(edges.at(pattern))):
                inner = found if edges.root == "/" else "/" + os.path.relpath(found, edges.root)
                yield from _plugstack(edges, inner, depth - 1)


def _hidden(edges: Edges, path: str, run_dir: str) -> Optional[bool]:
    """Does job_container/tmpfs mount a private directory over ``run_dir``? None when its configuration can not be read.

    It hides /tmp and /dev/shm unless Dirs= says otherwise.
    """
    try:
        text = files.read(edges.at(path))
    except OSError:
        return None
    dirs = [d for line in files.lines(text) for d in files.pairs(line).get("dirs", "").split(",") if d] or ["/tmp", "/dev/shm"]
    return any(run_dir == d or run_dir.startswith(d.rstrip("/") + "/") for d in dirs)
