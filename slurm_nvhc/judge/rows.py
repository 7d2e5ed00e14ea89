"""Sections of judge's memory: what a row of each looks like, and how much of it is kept. Pure.

A row that is not whole (a damaged ledger, a version that wrote another form) is dropped when the memory is opened,
as if it had never been: a hook never raises for it, and judge asks no row twice whether it can be read.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Final, Mapping, NamedTuple

# A day of 2262, in ns: the last that Python can write as a date.
_MOST: Final = 2**63


class Section(NamedTuple):
    """whole: is this row of the section one that judge wrote? (key, row)

    keep: so many items; the rows that were touched longest ago go first. Keys of edited rules and of cards that left
          would else stay for ever. A row counts as one item, a list of lists as one for each of these.
    """

    whole: Callable[[str, Any], bool]
    keep: int


def _is_int(value: Any) -> bool:
    return type(value) is int and abs(value) < _MOST


def _is_count(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    """A number that can be added and divided: neither NaN nor infinite, nor near it."""
    return type(value) in (int, float) and math.isfinite(value) and 0 <= value < _MOST


def _or_none(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _tuple_of(*tests: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) == len(tests) and all(t(v) for t, v in zip(tests, value))


def _record(must: Mapping[str, Callable[[Any], bool]], may: Mapping[str, Callable[[Any], bool]] = {}) -> Callable[[Any], bool]:
    """A mapping with all keys of ``must``; those of ``may`` were added later, and old rows lack them."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and test(value[name]) for name, test in must.items())
        and all(name not in value or test(value[name]) for name, test in may.items())
    )


def _any_key(test: Callable[[Any], bool]) -> Callable[[str, Any], bool]:
    return lambda _key, row: test(row)


_EVENT: Final = {
    "kind": _is_text, "code": _is_int, "at_ns": _is_count, "pci": _is_text, "text": _is_text, "source": _is_text, "ident": _is_text,
    "place": _is_text, "boot": _is_text, "observed": _is_flag, "last_ns": _is_count,
}  # fmt: skip
_EVENT_MORE: Final = {
    "uuid": _is_text, "pid": _is_int, "process": _is_text, "fatal": _is_flag, "link": _or_none(_is_int),
    "last_ident": _is_text, "count": _is_count, "ended": _is_flag, "doubt": lambda value: isinstance(value, (bool, str)),
    "beside": _list_of(_is_int), "peers": _list_of(_is_int),
}  # fmt: skip
_EVIDENCE: Final = {
    "sum": _is_amount, "looks": _is_count, "errors": _is_amount, "seconds": _is_amount, "job": _is_count,
    "place": _is_text, "word": _is_text, "boot": _is_text, "run": _is_text, "crossed": _or_none(_is_count),
}  # fmt: skip
_EVIDENCE_MORE: Final = {"burst_ns": _is_count, "read_ns": _is_count}
_USERS: Final = _any_key(_list_of(_tuple_of(_is_count, _is_text, _is_text)))
_FAULT: Final = _tuple_of(_is_count, _is_text, _is_text, _is_text)

# 16 GPUs with 36 links each are 576 links: several rows of each link fit, and of all GPUs many. What can be on every
# link at once (rows of observations, occurrences, the past of counters) has the most room; a node with thousands of
# sticky events or evidence about all links is judged well enough by some of them. Filled to the brim the memory is
# below 4 MB (tests/test_judge_memory.py).
SECTIONS: Final[Mapping[str, Section]] = {
    "streaks": Section(_any_key(_record({"n": _is_count, "last": _is_count, "boot": _is_text}, {"run": _is_text})), 4096),
    "hits": Section(_any_key(_list_of(_tuple_of(_is_count, _is_text, _is_text))), 4096),
    "job_hits": Section(_any_key(_list_of(_is_count)), 4096),
    "jobs": Section(_any_key(_tuple_of(_is_count, _is_text)), 256),
    "links_up": Section(_any_key(_list_of(_is_count)), 256),
    "open": Section(_any_key(_record(_EVENT, _EVENT_MORE)), 512),
    "engine_seen": Section(_any_key(_is_text), 4096),
    "monitor": Section(_any_key(_record({"n": _is_count, "since": _is_count, "run": _or_none(_is_text)})), 256),
    "past": Section(_any_key(_tuple_of(_is_amount, _is_amount)), 4096),
    "evidence": Section(_any_key(_record(_EVIDENCE, _EVIDENCE_MORE)), 2048),
    "resets": Section(_any_key(_tuple_of(_is_count, _is_count, _is_text)), 256),
    "faults": Section(lambda key, row: key.count("|") == 3 and _FAULT(row), 1024),
    "app_failed": Section(_USERS, 1024),
    "app_clean": Section(_USERS, 1024),
}


def opened(memory: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A private two-level copy of all sections, with the rows that are whole."""
    out: dict[str, dict[str, Any]] = {}
    for name, section in SECTIONS.items():
        rows = memory.get(name)
        out[name] = {key: row for key, row in rows.items() if section.whole(key, row)} if isinstance(rows, dict) else {}
    return out


def kept(sections: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each section what was touched last, as far as it has room."""
    return {name: _latest(rows, SECTIONS[name].keep) for name, rows in sections.items()}


def _latest(rows: dict[str, Any], room: int) -> dict[str, Any]:
    out: list[tuple[str, Any]] = []
    for key in reversed(rows):
        row = rows[key]
        room -= len(row) if isinstance(row, list) and row and isinstance(row[0], list) else 1
        if room < 0:
            break
        out.append((key, row))
    return dict(reversed(out))
