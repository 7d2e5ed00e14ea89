"""One line to syslog. A run that is not ok says so once; a healthy one says nothing."""

from __future__ import annotations

import syslog
from typing import Final

IDENT: Final = "nvhc"
MAX_LENGTH: Final = 1000  # characters; classic syslog receivers cut at 1024 bytes


def clean(text: str) -> str:
    """One line without control characters, that any receiver takes: a user's name must not forge a second line."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    line = " ".join("".join(c if c.isprintable() else " " for c in plain).split())
    return line if len(line) <= MAX_LENGTH else line[: MAX_LENGTH - 1] + "…"


def warning(text: str) -> None:
    """Write one warning line, facility daemon. Never raises: a log that fails must not fail a hook."""
    try:
        syslog.openlog(IDENT, syslog.LOG_PID, syslog.LOG_DAEMON)
        syslog.syslog(syslog.LOG_WARNING, clean(text))
    except Exception:
        pass  # there is nowhere left to say so
