"""One line to syslog. A run that is not ok says so once; a healthy one says nothing.

Sent by ourselves, as one datagram that is dropped when it can not be taken at once: the C
library's syslog() waits without bound when the log daemon hangs, and a hook must not.
"""

from __future__ import annotations

import os
from typing import Final

IDENT: Final = "nvhc"
PRIORITY: Final = 3 << 3 | 4  # RFC 3164: facility daemon, severity warning
SOCKET: Final = "/dev/log"
MAX_LENGTH: Final = 1000  # characters; classic syslog receivers cut at 1024 bytes


def clean(text: str) -> str:
    """One line without control characters, that any receiver takes: a user's name must not forge a second line."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    line = " ".join("".join(c if c.isprintable() else " " for c in plain).split())
    return line if len(line) <= MAX_LENGTH else line[: MAX_LENGTH - 1] + "…"


def warning(text: str) -> None:
    """Write one warning line, facility daemon. Never raises and never waits: a log that fails must not fail a hook."""
    try:
        _send(f"<{PRIORITY}>{IDENT}[{os.getpid()}]: {clean(text)}".encode())
    except Exception:
        pass  # there is nowhere left to say so


def _send(datagram: bytes) -> None:
    import socket  # not light, and only needed when there is something to say

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
        channel.sendto(datagram, SOCKET)
