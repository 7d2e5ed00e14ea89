"""Text from outside, made safe to store and show: one line, printable, bounded."""

from __future__ import annotations

from typing import Final

MAX_TEXT: Final = 300  # a kernel line or message; enough for an Xid with its hex words
MAX_NAME: Final = 80  # a name, serial or version


def clean(text: object, limit: int = MAX_TEXT) -> str:
    """Printable characters only, runs of anything else as one space, at most ``limit`` characters.

    str.isprintable is False for control characters, line separators, text direction
    marks and lone surrogates: all that could forge a log line or break an encoder.
    """
    if not isinstance(text, str):
        return ""
    # A hostile text may be long: cut before looking at each character.
    head = text[: limit * 4]
    if not head.isprintable():
        head = "".join(c if c.isprintable() else " " for c in head)
    return " ".join(head.split())[:limit]
