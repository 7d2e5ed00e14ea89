"""The machine: processes, sockets, files and what they lie on."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from typing import Final, Iterator, Optional, Sequence

from slurm_nvhc.doctor.facts import BindingsPlace, Directory, EngineProcess, HostFacts, Listener, PathFact, Trust
from slurm_nvhc.doctor.look.edges import Edges, beginning, within
from slurm_nvhc.proc import mounts
from slurm_nvhc.sense.dcgm.bindings import INSTALL_PATHS
from slurm_nvhc.sense.host import driver

FILES_S: Final = 5.0  # for all looks at one kind of files
PROCESSES_S: Final = 3.0
ENGINE: Final = "nv-hostengine"
# Modules of DCGM's engine: a client loads libdcgm alone, an engine loads these too, in whatever program it runs.
# It loads each when it is first needed, so an embedded engine that has only read plain fields can be missed.
_ENGINE_MODULE: Final = b"libdcgmmodule"
_MAX_MAPS: Final = 4 * 1024 * 1024
_LISTEN: Final = "0A"
_LIBRARY = re.compile(rb"libdcgm\.so\.(\d{1,3})")
_MAX_SOURCE: Final = 4 * 1024 * 1024


def look(
    edges: Edges, folders: Sequence[str], state: str, run: str, trusted: Sequence[tuple[str, str]], kill_switch: str
) -> HostFacts:
    """folders: the policy's for DCGM's bindings, () = the install paths. trusted: (what, path) of what root runs or obeys."""
    engines, seen_into = engine_processes(edges)
    slow = f"did not answer within {FILES_S:g} s"
    nowhere = Directory(PathFact(state, problem=slow)), Directory(PathFact(run, problem=slow))
    state_dir, run_dir = within(FILES_S, lambda: (directory(edges, state), directory(edges, run)), nowhere)
    chains = within(
        FILES_S,
        lambda: tuple(Trust(what, chain(edges, path)) for what, path in trusted if path),
        tuple(Trust(what, (PathFact(path, problem=slow),)) for what, path in trusted if path),
    )
    none: tuple[BindingsPlace, ...] = tuple(BindingsPlace(folder, False) for folder in folders or INSTALL_PATHS)
    places = within(FILES_S, lambda: tuple(bindings(edges, f) for f in folders or INSTALL_PATHS), none)
    disabled = kill_switch if within(FILES_S, lambda: os.path.exists(edges.at(kill_switch)), False) else ""
    root = edges.euid == 0
    return HostFacts(root, engines, seen_into, listeners(edges), places, driver.version(edges.root), state_dir, run_dir, chains, disabled)


# --- processes -----------------------------------------------------------------


def engine_processes(edges: Edges) -> tuple[Optional[tuple[EngineProcess, ...]], bool]:
    """(engines, could every process be looked into); (None, False) without /proc."""
    proc = edges.at("/proc")
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return None, False
    out, seen_into = [], True
    deadline = time.monotonic() + PROCESSES_S
    for pid in pids:
        status = _status(f"{proc}/{pid}")
        if status is None:
            continue  # it ended meanwhile
        name, uid = status
        if name == ENGINE:
            out.append(EngineProcess(pid, name, uid))
            continue
        inside = _has_engine(f"{proc}/{pid}/maps") if time.monotonic() < deadline else None
        seen_into = seen_into and inside is not None
        if inside:
            out.append(EngineProcess(pid, name, uid, embedded=True))
    return tuple(out), seen_into


def _status(folder: str) -> Optional[tuple[str, int]]:
    try:
        text = beginning(f"{folder}/status")
    except OSError:
        return None
    name = re.search(r"^Name:\s*(.*)$", text, re.MULTILINE)
    uid = re.search(r"^Uid:\s*\d+\s+(\d+)", text, re.MULTILINE)
    return (name[1].strip(), int(uid[1])) if name and uid else None


def _has_engine(path: str) -> Optional[bool]:
    """None when the process may not be looked into."""
    try:
        with open(path, "rb") as file:
            return _ENGINE_MODULE in file.read(_MAX_MAPS)
    except PermissionError:
        return None
    except OSError:
        return False


# --- sockets ---------------------------------------------------------------------


def listeners(edges: Edges) -> Optional[tuple[Listener, ...]]:
    """Listening TCP sockets of this network namespace; None when the kernel's table can not be read."""
    out: list[Listener] = []
    readable = False
    for name in ("tcp", "tcp6"):
        try:
            text = beginning(edges.at(f"/proc/net/{name}"), 8 * 1024 * 1024)
        except OSError:
            continue
        readable = True
        for row in text.splitlines()[1:]:
            words = row.split()
            if len(words) > 3 and words[3] == _LISTEN:
                address, _, port = words[1].partition(":")
                out += [Listener(text, int(port, 16)) for text in _address(address)]
    return tuple(out) if readable else None


def _address(hexadecimal: str) -> Iterator[str]:
    """The kernel prints each 32-bit word of an address in the machine's own byte order."""
    try:
        words = [int(hexadecimal[at : at + 8], 16) for at in range(0, len(hexadecimal), 8)]
        raw = struct.pack(f"={len(words)}I", *words)
        yield socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    except (ValueError, struct.error):
        return


# --- files -----------------------------------------------------------------------


def path_fact(edges: Edges, path: str, follow: bool = False) -> PathFact:
    try:
        info = os.stat(edges.at(path)) if follow else os.lstat(edges.at(path))
    except (FileNotFoundError, NotADirectoryError):
        return PathFact(path)
    except (OSError, ValueError) as exc:
        return PathFact(path, problem=getattr(exc, "strerror", None) or str(exc))
    return PathFact(path, True, info.st_uid, info.st_mode)


def chain(edges: Edges, path: str) -> tuple[PathFact, ...]:
    """The way to a file from the root, along the path itself and along what its links lead to; the file's own name last."""
    real = os.path.realpath(edges.at(path))
    base = os.path.realpath(edges.root)
    inside = "/" + os.path.relpath(real, base) if os.path.commonpath((real, base)) == base else path
    ways = dict.fromkeys((*_way(inside), *_way(path)))
    ways.pop(path, None)
    return tuple(path_fact(edges, step) for step in (*ways, path))


def _way(path: str) -> list[str]:
    steps = [path]
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        steps.append(path)
    return steps[::-1]


def directory(edges: Edges, path: str) -> Directory:
    """The directory, behind its link where it is one, and the file system that it is or would be made on."""
    known, real = _mounts(edges), path if edges.root != "/" else os.path.realpath(path)
    lost = mounts.in_memory(known, real) if known else None
    return Directory(path_fact(edges, path, follow=True), filesystem(edges, path), lost)


def filesystem(edges: Edges, path: str) -> str:
    """Type of the mount that holds the path; '' when the kernel does not tell."""
    mount = mounts.holding(_mounts(edges), path if edges.root != "/" else os.path.realpath(path))
    return mount.kind if mount is not None else ""


def _mounts(edges: Edges) -> tuple[mounts.Mount, ...]:
    try:
        return mounts.parse(beginning(edges.at("/proc/self/mountinfo"), 4 * 1024 * 1024))
    except OSError:
        return ()


def bindings(edges: Edges, folder: str) -> BindingsPlace:
    """What a folder holds, from its text alone: importing the bindings could crash the doctor."""
    if not os.path.isfile(edges.at(os.path.join(folder, "dcgm_agent.py"))):
        return BindingsPlace(folder, False)
    try:
        with open(edges.at(os.path.join(folder, "dcgm_structs.py")), "rb") as file:
            found = _LIBRARY.search(file.read(_MAX_SOURCE))
    except OSError:
        found = None
    return BindingsPlace(folder, True, int(found[1]) if found else None)
