"""Slurm's bracket lists: ``n[1-4,7]``, ``/dev/nvidia[0-2,4-7]``, several brackets, zero padding."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Union

_BRACKET: Final = re.compile(r"\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class _Range(NamedTuple):
    low: int
    high: int
    width: int  # n[08-10] is n08 n09 n10


_Part = Union[str, tuple[_Range, ...]]


def split(text: str) -> list[str]:
    """The items of a comma list; commas within brackets do not separate."""
    items, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth <= 0:
            items.append(text[start:at])
            start = at + 1
    return [item.strip() for item in [*items, text[start:]] if item.strip()]


def _parts(item: str) -> list[_Part]:
    """Literals and brackets in turn. ValueError for brackets that are not lists of numbers."""
    parts: list[_Part] = []
    for number, piece in enumerate(_BRACKET.split(item)):
        if number % 2 == 0:
            if "[" in piece or "]" in piece:
                raise ValueError(f"brackets do not match in {item[:80]!r}")
            if piece:
                parts.append(piece)
            continue
        ranges = []
        for text in piece.split(","):
            match = _RANGE.fullmatch(text.strip())
            if not match:
                raise ValueError(f"{text[:40]!r} in {item[:80]!r} is not a number or range")
            low = int(match.group(1))
            high = int(match.group(2) or match.group(1))
            if high < low:
                raise ValueError(f"range {text[:40]!r} in {item[:80]!r} runs backwards")
            ranges.append(_Range(low, high, len(match.group(1))))
        parts.append(tuple(ranges))
    return parts


def expand(text: str, limit: int) -> tuple[str, ...]:
    """Every name of a list, in the order written. ValueError when it is malformed or longer than ``limit``."""
    names: list[str] = []
    for item in split(text):
        built = [""]
        for part in _parts(item):
            if isinstance(part, str):
                built = [head + part for head in built]
                continue
            if len(built) * sum(r.high - r.low + 1 for r in part) > limit:
                raise ValueError(f"{item[:80]!r} names more than {limit}")
            tails = [f"{n:0{r.width}d}" for r in part for n in range(r.low, r.high + 1)]
            built = [head + tail for head in built for tail in tails]
        names += built
        if len(names) > limit:
            raise ValueError(f"{text[:80]!r} names more than {limit}")
    return tuple(names)


def contains(text: str, name: str) -> bool:
    """Whether a list names ``name``, without building the list. ValueError when it is malformed."""
    return any([_match(_parts(item), 0, name) for item in split(text)])


def _match(parts: list[_Part], at: int, rest: str) -> bool:
    if at == len(parts):
        return not rest
    part = parts[at]
    if isinstance(part, str):
        return rest.startswith(part) and _match(parts, at + 1, rest[len(part) :])
    for length in range(1, min(len(rest), 9) + 1):
        digits = rest[:length]
        if not (digits.isascii() and digits.isdigit()):
            return False
        number = int(digits)
        if any(r.low <= number <= r.high and f"{number:0{r.width}d}" == digits for r in part) and _match(parts, at + 1, rest[length:]):
            return True
    return False
