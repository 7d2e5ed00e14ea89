"""Durations and moments as text. Pure; seconds are floats, moments integer nanoseconds UTC."""

from __future__ import annotations

import re
import time
from typing import Optional, Sequence

_MINUTE_NS = 60 * 10**9
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)")


def parse_duration(text: str | int | float) -> float:
    """'41m', '1h30m', '90s', '500ms', '2d' in seconds; a bare number is seconds. ValueError otherwise."""
    if isinstance(text, bool):
        raise ValueError("a duration such as 90s, 41m or 2h was expected")
    if isinstance(text, (int, float)):
        value = float(text)
        if not 0 <= value < 1e12:
            raise ValueError("a duration must not be negative or endless")
        return value
    compact = text.strip()
    parts = _PART.findall(compact)
    if parts and "".join(_PART.sub("", compact).split()) == "":
        total = float(sum(float(n) * _UNITS[u] for n, u in parts))
        if total < 1e12:
            return total
    raise ValueError(f"{text!r} is not a duration such as 90s, 41m, 1h30m or 2d")


def duration(seconds: float) -> str:
    """The shortest reading of a duration: '41m', '1h30m', '2d3h', '12s', '0s'; '?' for what is no time."""
    if not -1e15 < seconds < 1e15:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}d{hours}h" if hours else f"{days}d"
    if hours:
        return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
    return f"{minutes}m{secs:02d}s" if secs and minutes < 10 else f"{minutes}m"


def iso(ns: int) -> str:
    """'2026-12-01T04:11:25Z' for a moment in ns UTC; '?' when it can not be shown."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ns // 1_000_000_000))
    except (ValueError, OverflowError, OSError):
        return "?"


def minutes(spans: Sequence[tuple[int, int]], seconds: Optional[float] = None) -> str:
    """'14:08-14:10Z, 14:31Z (within 3 of 41 minutes)': spans of ns UTC as whole minutes of the clock, oldest first; '' for none.

    seconds: length of the window that they lie in. The day is said where the spans or the window leave one.
    """
    if not spans:
        return ""
    days = {iso(ns)[:10] for span in spans for ns in span}
    dated = len(days) > 1 or (seconds is not None and seconds > 86400)
    said, count = [], 0
    for start, end in spans:
        first, last = start // _MINUTE_NS, max(start, end - 1) // _MINUTE_NS + (end > start)
        count += max(1, last - first)
        begin, until = iso(first * _MINUTE_NS), iso(last * _MINUTE_NS)
        head = f"{begin[:10]} " if dated else ""
        tail = "" if last <= first else f"-{until[:10] + ' ' if until[:10] != begin[:10] else ''}{until[11:16]}"
        said.append(f"{head}{begin[11:16]}{tail}Z")
    of = "" if seconds is None else f" (within {count} of {max(count, round(seconds / 60))} minutes)"
    return ", ".join(said) + of
