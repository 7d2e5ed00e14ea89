"""Names for occurrences that an administrator can settle: one per entity and Xid, or entity and evidence, up to a moment.

"GPU-…|79|1764567085000000000" means: Xid 79 of that GPU, as far as it was logged by then.
"GPU-…/link11|nvl_recovery.nvlink_recovery|…" means: the errors that this rule had gathered about the link by then.
One name covers all earlier occurrences, so a fault that repeats a thousand times
needs one name, and a later occurrence is a new one.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, Optional, Union

# One occurrence has a slightly other stamp in each reading (the kernel log counts from boot, and the
# clock is corrected), and kernel and engine stamp it up to a minute apart. What is settled was last
# seen long before somebody settles it, so a real new occurrence is later than this.
SAME_MOMENT_NS: Final = 60 * 10**9


def ident(place: str, what: Union[int, str], at_ns: int) -> str:
    """what: an Xid's number, or what names the evidence of a rule."""
    return f"{place}|{what}|{at_ns}"


def key(place: str, what: Union[int, str]) -> str:
    return f"{place}|{what}"


def parse(name: str) -> Optional[tuple[str, int]]:
    """(key, moment), or None for anything else."""
    head, sep, moment = name.rpartition("|")
    return (head, int(moment)) if sep and moment.isascii() and moment.isdigit() else None


def newest(names: Iterable[str]) -> tuple[str, ...]:
    """One name per entity and kind, the one that covers most; in the order of first appearance."""
    latest: dict[str, int] = {}
    for name in names:
        parsed = parse(name)
        if parsed is not None:
            latest[parsed[0]] = max(parsed[1], latest.get(parsed[0], 0))
    return tuple(f"{head}|{moment}" for head, moment in latest.items())


def covered(name: str, settled: Mapping[str, int]) -> bool:
    """Is the occurrence of this name settled? ``settled``: key -> moment."""
    parsed = parse(name)
    return parsed is not None and parsed[0] in settled and parsed[1] <= settled[parsed[0]] + SAME_MOMENT_NS


def table(names: Iterable[str]) -> dict[str, int]:
    """key -> latest moment"""
    return dict(p for p in map(parse, newest(names)) if p is not None)
