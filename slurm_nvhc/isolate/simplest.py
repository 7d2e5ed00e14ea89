"""The cheapest sets of things that together explain everything: a weighted hitting set, depth first and bounded. Pure.

The same whatever order things come in. Where a search would be too long (dozens of faults at once), the sets found so far are
given, a greedy one at least.
"""

from __future__ import annotations

from typing import Final, Hashable, Iterable, Mapping, Sequence, TypeVar

_MOST_NODES: Final = 20_000

T = TypeVar("T", bound=Hashable)


def simplest(
    explains: Mapping[T, frozenset[int]], bits: Mapping[T, int], rank: Mapping[T, int], margin: int
) -> list[tuple[int, tuple[T, ...]]]:
    """(bits, set), cheapest first: sets that explain all that can be explained, none more than ``margin`` dearer than the cheapest,
    none with a thing too many. () when there is nothing to explain.

    explains: thing -> what it explains, as numbers; never empty. rank: in what order things are preferred.
    """
    things = sorted(explains, key=rank.__getitem__)
    by_number: dict[int, tuple[T, ...]] = {}
    for thing in things:
        for number in explains[thing]:
            by_number[number] = (*by_number.get(number, ()), thing)
    if not by_number:
        return []
    # Numbers that the same things explain are one; those with the fewest explanations come first.
    distinct = sorted(set(by_number.values()), key=lambda mine: (len(mine), [rank[t] for t in mine]))
    masks = {t: sum(1 << place for place, mine in enumerate(distinct) if t in mine) for t in things}
    everything = (1 << len(distinct)) - 1
    least = min(bits.values())
    greedy = _greedy(everything, things, masks, bits)
    best = sum(bits[t] for t in greedy)
    found: dict[frozenset[T], int] = {frozenset(greedy): best}
    nodes = 0

    def search(chosen: tuple[T, ...], covered: int, cost: int) -> None:
        nonlocal best, nodes
        nodes += 1
        if covered == everything:
            if _none_needless(chosen, masks):
                found[frozenset(chosen)] = cost
                best = min(best, cost)
            return
        first_open = (~covered & (covered + 1)).bit_length() - 1
        for thing in distinct[first_open]:
            if cost + bits[thing] > best + margin or nodes > _MOST_NODES:
                break  # those that follow are as dear or dearer
            now = covered | masks[thing]
            if now == everything or cost + bits[thing] + least <= best + margin:
                search((*chosen, thing), now, cost + bits[thing])

    search((), 0, 0)
    sets = [(cost, tuple(sorted(chosen, key=rank.__getitem__))) for chosen, cost in found.items() if cost <= best + margin]
    return sorted(sets, key=lambda one: (one[0], [rank[t] for t in one[1]]))


def _none_needless(chosen: Sequence[T], masks: Mapping[T, int]) -> bool:
    once, twice = 0, 0
    for thing in chosen:
        twice |= once & masks[thing]
        once |= masks[thing]
    return all(masks[thing] & ~twice for thing in chosen)


def _greedy(everything: int, things: Sequence[T], masks: Mapping[T, int], bits: Mapping[T, int]) -> list[T]:
    """A set that explains everything, good enough to begin with."""
    chosen: list[T] = []
    left = everything
    while left:
        thing = max(things, key=lambda t: (masks[t] & left).bit_count() / bits[t])
        left &= ~masks[thing]
        chosen.append(thing)
    for thing in list(chosen):
        others = [t for t in chosen if t != thing]
        if not everything & ~_union(masks[t] for t in others):
            chosen = others
    return chosen


def _union(masks: Iterable[int]) -> int:
    out = 0
    for mask in masks:
        out |= mask
    return out
