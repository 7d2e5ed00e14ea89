"""One connection to the engine."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
from typing import Any, Final, NamedTuple

from slurm_nvhc.sense.dcgm import status
from slurm_nvhc.sense.dcgm.bindings import Bindings
from slurm_nvhc.sense.reader.backend import PartFailed

DEFAULT_PORT: Final = 5555
_LOOK_S: Final = 1.0  # for the look at why a connection failed, after it did
_VERSION = re.compile(r"(?:^|;)version:([^;]{1,40})")


class Address(NamedTuple):
    """tcp: host:port; unix: path of the socket. Exactly one is not ''."""

    tcp: str = ""
    unix: str = ""

    def __str__(self) -> str:
        return f"tcp://{self.tcp}" if self.tcp else f"unix://{self.unix}"

    @property
    def here(self) -> bool:
        """Is it this machine, as far as its name says?"""
        host = self.tcp.rpartition(":")[0].strip("[]").lower()
        return not self.tcp or host in ("localhost", "::1", socket.gethostname().lower()) or host.startswith("127.")


def address(text: str) -> Address:
    """'tcp://host:port', 'unix:///path', 'host', 'host:port' or '/path'; '' is DCGM's default, this host's port 5555.

    Raises PartFailed for anything else.
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = ("unix" if text.startswith("/") else "tcp"), text or "127.0.0.1"
    if scheme == "unix" and rest.startswith("/"):
        return Address(unix=rest)
    if scheme == "tcp" and re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(:\d{1,5})?", rest, re.ASCII):
        with_port = rest.rpartition(":")[2].isdigit() and not rest.endswith("]")
        return Address(tcp=rest if with_port else f"{rest}:{DEFAULT_PORT}")
    raise PartFailed("MON-ENGINE-ABSENT", "engine", f"{text[:80]!r} is no address of an engine (tcp://host:port or unix:///path)")


class Connection(NamedTuple):
    """One per process; it ends with the process."""

    bindings: Bindings
    handle: Any


# The bindings' own object disconnects when it is collected, and a hung engine makes that hang:
# it is kept until the process is gone, which tells the engine the same.
_kept: list[Any] = []


def connect(bindings: Bindings, where: Address, embedded: bool, timeout_s: float, persist: bool = False) -> Connection:
    """Raises PartFailed with the reason as the operating system gives it, where it gives one.

    embedded: no engine is asked; the library becomes one inside this process.
    persist:  what this connection makes (groups, watches) stays when it closes.
    """
    try:
        if embedded:
            keep = bindings.pydcgm.DcgmHandle()
        else:
            place = {"ipAddress": where.tcp} if where.tcp else {"unixSocketPath": where.unix}
            keep = bindings.pydcgm.DcgmHandle(persistAfterDisconnect=persist, timeoutMs=max(1, int(timeout_s * 1000)), **place)
    except Exception as exc:  # each status is a class of its own, made at import
        if embedded:
            raise status.failed(exc, "the embedded engine") from exc
        raise _refused(exc, where) from exc
    _kept.append(keep)
    return Connection(bindings, keep.handle)


def _refused(exc: Exception, where: Address) -> PartFailed:
    """DCGM says "connection not valid" for everything: ask the operating system."""
    trouble = status.failed(exc, f"no connection to {where}")
    found = _look(where)
    return PartFailed(trouble.code, "engine", f"{trouble.detail}; {found}") if found else trouble


def _look(where: Address) -> str:
    family = socket.AF_UNIX if where.unix else socket.AF_INET
    target: Any = where.unix
    if where.tcp:
        host, _, port = where.tcp.rpartition(":")
        if host.startswith("["):
            family, host = socket.AF_INET6, host.strip("[]")
        target = (host, int(port))
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(_LOOK_S)
            probe.connect(target)
    except OSError as exc:
        number = exc.errno or 0
        hint = " (is the reader's user allowed to use the socket?)" if number in (errno.EACCES, errno.EPERM) else ""
        return (os.strerror(number) if number > 0 else str(exc)) + hint
    return "something listens there, but it is no DCGM engine of this version"


def engine_version(connection: Connection) -> str:
    """The engine's own version (the bindings only wrap the library's), '' when it does not tell."""
    structs = connection.bindings.structs
    info = structs.c_dcgmVersionInfo_v2()
    info.version = structs.dcgmVersionInfo_version2
    call = structs._dcgmGetFunctionPointer("dcgmHostengineVersionInfo")
    try:
        structs._dcgmCheckReturn(call(connection.handle, ctypes.byref(info)))
    except Exception as exc:
        if status.code(exc) in status.HOPELESS:
            raise status.failed(exc, "the engine's version") from exc
        return ""
    raw = ctypes.string_at(ctypes.addressof(info) + type(info).rawBuildInfoString.offset, type(info).rawBuildInfoString.size)
    found = _VERSION.search(raw.split(b"\0")[0].decode("utf-8", "replace"))
    return found[1].strip() if found else ""
