"""Which step comes next? The one that tells most of the possible causes apart, whatever it shows. Pure, and the same each time.

    Board + what was seen ─► next Step, or None: there is nothing left that traffic could tell

Nothing is kept between two calls: an interrupted search goes on from its steps. First nothing runs, then each GPU alone, then all
together; from there each group is a question, and only its answer, "it showed here" or "it did not", is counted on.
"""

from __future__ import annotations

from typing import Final, Iterable, Iterator, NamedTuple, Optional, Sequence

from slurm_nvhc.isolate import causes as cs
from slurm_nvhc.isolate import evidence as ev
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.causes import Cause, Causes, Part
from slurm_nvhc.isolate.evidence import Evidence
from slurm_nvhc.isolate.model import ALONE, IDLE, TRAFFIC, Seen, Step

# A part that showed once is asked for again this often, before it is told as intermittent.
ASK_AGAIN: Final = 4
_SHOWN: Final = 2  # a part is believed when it showed in so many steps
# A fault that shows each time, on eight GPUs, is found in so many steps of traffic; more are done only where the answers contradict
# each other. What is left of doubt then is told.
QUICK: Final = 6
# A command that fails now and then by itself looks like a bad GPU for once: where one failed alone, all are tried alone so often.
ALONE_TIMES: Final = 3
_CONTROL_TRIES: Final = 3  # the other GPUs are tried without it so often, where nothing comes of it


class Limits(NamedTuple):
    """repeat: how often the step of all GPUs is done again when nothing was seen: what shows half the time is missed in one of
    2 ** (1 + repeat) searches. max_steps: of traffic, IDLE and ALONE come on top."""

    repeat: int = 2
    max_steps: int = 12


Groups = tuple[tuple[str, ...], ...]
USUAL: Final = Limits()


def next_step(board: Board, seen: Sequence[Seen], limits: Limits = USUAL) -> Optional[Step]:
    if not board.cards:
        return None
    kinds = [one.step.kind for one in seen]
    if IDLE not in kinds:
        return Step(IDLE, (), "do counters grow while nothing runs?")
    if ALONE not in kinds:
        return Step(ALONE, tuple((uuid,) for uuid in board.uuids), "does a GPU fail without any traffic between GPUs?")
    if kinds.count(TRAFFIC) >= limits.max_steps or fails_alone(board, seen):
        return None
    evidence = ev.gather(board, seen)
    alone = [run for run in evidence.runs if run.kind == ALONE]
    if any(run.ok is False for run in alone) and kinds.count(ALONE) < ALONE_TIMES:
        return Step(ALONE, tuple((uuid,) for uuid in board.uuids), "does the same fail alone again?")
    failed = {uuid for run in alone if run.ok is False for uuid in run.group} - {uuid for run in alone if run.ok for uuid in run.group}
    usable = tuple(uuid for uuid in board.uuids if uuid not in failed)
    found = cs.causes(board, evidence)
    if not found.ranked or TRAFFIC not in kinds:
        return _cover(board, usable, seen, evidence, limits)
    return _search(board, evidence, found, _done(seen))


def fails_alone(board: Board, seen: Sequence[Seen]) -> int:
    """On how many GPUs the command failed alone, where it is most of them, else 0.

    Then it is the command (several of it at once want the same port, say), or what all share, and traffic tells nothing.
    """
    alone = [one for one in seen if one.step.kind == ALONE and one.groups]
    failed = max((sum(group.ok is False for group in one.groups) for one in alone), default=0)
    return failed if failed > 1 and 2 * failed > len(board.cards) else 0


# -- nothing was seen ---------------------------------------------------------------------


def _cover(board: Board, usable: Sequence[str], seen: Sequence[Seen], evidence: Evidence, limits: Limits) -> Optional[Step]:
    """All together, and again. Where that came to no end (out of time, could not be run): smaller groups."""
    if len(usable) < 2:
        return None
    everyone = (tuple(usable),)
    steps = [one for one in seen if one.step.kind == TRAFFIC]
    whole = [one for one in steps if set(one.step.groups[0]) == set(usable)]
    good = sum(one.groups[0].ok is True for one in whole)
    if not steps:
        without = "" if len(usable) == len(board.cards) else ", without those that failed alone"
        return Step(TRAFFIC, everyone, f"does anything show when all GPUs move data{without}?")
    if good:
        again = good <= limits.repeat and len(whole) <= 1 + 2 * limits.repeat
        return Step(TRAFFIC, everyone, "nothing showed: once more, for what shows only at times") if again else None
    for size in (-(-len(usable) // 2), 2):
        groups = _chunks(usable, -(-len(usable) // size))
        if groups and groups != everyone and groups not in _done(seen):
            return Step(TRAFFIC, groups, "all together came to no end: in smaller groups")
    return None


# -- something was seen -------------------------------------------------------------------


def _search(board: Board, evidence: Evidence, found: Causes, done: Sequence[Groups]) -> Optional[Step]:
    best = [_needs(board, cause) for cause in found.best]
    rivals = [_needs(board, cause) for cause in found.ranked if cause not in found.best]
    family = list(_family(board, found, [groups for groups in done if _unknown(groups, evidence)]))
    if not family:
        return None
    if len(set(best)) > 1:
        groups = min(family, key=lambda g: _left(best, g))
        if _left(best, groups)[0] < len(best):
            return Step(TRAFFIC, groups, f"which of {len(best)} explanations is it?")
    first = found.ranked[0]
    if len(done) >= QUICK and len(first.parts) == 1 and not found.records[first.parts[0]].quiet:
        rivals = []
    told = [(sum(_answer(rival, g) != _answer(best[0], g) for rival in rivals), -len(g)) for g in family]
    if max(told)[0]:
        return Step(TRAFFIC, family[told.index(max(told))], f"is it {_label(board, first)}, or something less simple?")
    return _confirm(board, evidence, found, family)


def _confirm(board: Board, evidence: Evidence, found: Causes, family: Sequence[Groups]) -> Optional[Step]:
    """What showed in one step only is asked for again, and the other GPUs must have gone well without it."""
    parts = found.ranked[0].parts
    needs = [n for n in (cs.need(board, part) for part in parts) if n]
    again = [cs.need(board, part) for part in parts if _ask_again(board, evidence, found, part)]
    outside = set(board.uuids) - set().union(*needs)
    clear = cs.without(board, evidence, found) if needs else []
    unsure = {u for u in outside if not any(ok and u in group for group, ok in clear)}
    unsure = {u for u in unsure if sum(u in group for group, _ in clear) < _CONTROL_TRIES} if needs and len(outside) > 1 else set()

    def score(groups: Groups) -> tuple[int, int]:
        showing = [[n for n in needs if n <= set(group)] for group in groups]
        asked = sum(len(inside) == 1 and inside[0] in again for inside in showing) + (frozenset() in again)
        control = sum(u in group for u in unsure for group, inside in zip(groups, showing) if not inside)
        return asked + control, -sum(len(group) for group, inside in zip(groups, showing) if inside)

    groups = max(family, key=score)
    if score(groups)[0] == 0:
        return None
    return Step(TRAFFIC, groups, f"does it show again with {_label(board, found.ranked[0])}, and nothing without?")


def _ask_again(board: Board, evidence: Evidence, found: Causes, part: Part) -> bool:
    record = found.records[part]
    asked = {run.step for run in evidence.runs if not ev.is_alone(run) and cs.need(board, part) <= run.group}
    return len({run.step for run in record.shown}) < _SHOWN and len(asked) < ASK_AGAIN


def _needs(board: Board, cause: Cause) -> frozenset[frozenset[str]]:
    return frozenset(cs.need(board, part) for part in cause.parts)


def _answer(needs: Iterable[frozenset[str]], groups: Groups) -> tuple[bool, ...]:
    """What a cause would show: in which groups."""
    return tuple(any(need <= set(group) for need in needs) for group in groups)


def _left(causes: Sequence[frozenset[frozenset[str]]], groups: Groups) -> tuple[int, int, int]:
    """How many causes are left when it goes worst; how many on the whole, and in how many groups."""
    counts: dict[tuple[bool, ...], int] = {}
    sets = [frozenset(group) for group in groups]
    for needs in causes:
        answer = tuple(any(need <= group for need in needs) for group in sets)
        counts[answer] = counts.get(answer, 0) + 1
    return max(counts.values()), sum(n * n for n in counts.values()), len(groups)


def _label(board: Board, cause: Cause) -> str:
    names = []
    for part in cause.parts:
        what = part.entities if part.kind == cs.PAIR else part.entities[:1]
        names.append("what all share" if part.kind == cs.SHARED else " and ".join(board.name(e) for e in what))
    return " plus ".join(names)


def _done(seen: Sequence[Seen]) -> list[Groups]:
    return [one.step.groups for one in seen if one.step.kind == TRAFFIC]


def _unknown(groups: Groups, evidence: Evidence) -> bool:
    """Was this asked, and came to no answer? Asking again would not help."""
    sets = {frozenset(group) for group in groups}
    return any(run.ok is None and run.group in sets for run in evidence.runs)


# -- ways to split the GPUs ---------------------------------------------------------------


def _family(board: Board, found: Causes, dead_ends: Sequence[Groups]) -> Iterator[Groups]:
    """Splits worth asking, each once, in an order that does not change."""
    told: set[frozenset[frozenset[str]]] = {frozenset(map(frozenset, groups)) for groups in dead_ends}
    for groups in _splits(board, found):
        key = frozenset(map(frozenset, groups))
        if groups and key not in told:
            told.add(key)
            yield groups


def _splits(board: Board, found: Causes) -> Iterator[Groups]:
    uuids = board.uuids
    yield (uuids,)
    sets = [_needs(board, cause) for cause in found.best]
    everywhere = frozenset.intersection(*sets) if sets else frozenset()
    sure = {uuid for need in everywhere for uuid in need}
    suspects = [u for u in uuids if any(u in need for needs in sets for need in needs - everywhere)]
    others = [u for u in uuids if u not in suspects and u not in sure]
    orders = [list(uuids), suspects + others, suspects, others, [*_woven(suspects, others)], [u for u in uuids if u not in sure]]
    for order in orders:
        for parts in range(1, len(order) // 2 + 1):
            yield _chunks(order, parts)
            yield tuple(tuple(order[i::parts]) for i in range(parts))
        for mask in range(1, len(order)):
            yield _named([u for i, u in enumerate(order) if (i & mask).bit_count() % 2 == side] for side in (0, 1))
        for turn in range(1, len(order)):
            yield _matching(order, turn)
            yield _crossed(order, turn)
    yield from _partnered(suspects, others)
    yield from _partnered([u for u in uuids if u in sure], [u for u in uuids if u not in sure])
    for pair in sorted(everywhere, key=lambda need: [uuids.index(u) for u in sorted(need)]):
        rest = [u for u in uuids if u not in pair]
        if len(pair) > 1:
            yield _named([[u for u in uuids if u in pair], rest])
            yield _named([[u, *rest[i::2]] for i, u in enumerate(u for u in uuids if u in pair)])
    for uuid in uuids:
        rest = [u for u in uuids if u != uuid]
        yield _named([rest])
        yield from (_named([[uuid, peer], [u for u in rest if u != peer]]) for peer in rest)


def _chunks(order: Sequence[str], parts: int) -> Groups:
    """In so many nearly equal parts, in order."""
    return _named(order[i * len(order) // parts : (i + 1) * len(order) // parts] for i in range(parts))


def _matching(order: Sequence[str], turn: int) -> Groups:
    """Pairs of a tournament: over all turns each two GPUs meet once. The one that is left over rests."""
    ring = list(order[1:]) + ([""] if len(order) % 2 else [])
    if not ring:
        return ()
    turned = [order[0], *ring[turn % len(ring) :], *ring[: turn % len(ring)]]
    return _named([u for u in (turned[i], turned[-1 - i]) if u] for i in range(len(turned) // 2))


def _crossed(order: Sequence[str], turn: int) -> Groups:
    """The first half paired with the second, shifted."""
    half = len(order) // 2
    first, second = order[:half], order[half:]
    return _named([u, second[(i + turn) % len(second)]] for i, u in enumerate(first))


def _partnered(some: Sequence[str], others: Sequence[str]) -> Iterator[Groups]:
    """Parts of some GPUs, each with its share of the others: a suspect beside GPUs that are known to be good."""
    for parts in range(1, len(some) + 1):
        mine = [some[i * len(some) // parts : (i + 1) * len(some) // parts] for i in range(parts)]
        yield _named([*group, *others[i::parts]] for i, group in enumerate(mine))
        yield _named([*group, *others[i : i + 1]] for i, group in enumerate(mine))
        yield _named([*([*group, *others[i : i + 1]] for i, group in enumerate(mine)), others[parts:]])


def _woven(some: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    for i in range(max(len(some), len(others))):
        yield from some[i : i + 1]
        yield from others[i : i + 1]


def _named(groups: Iterable[Sequence[str]]) -> Groups:
    """Groups of one GPU move no data between GPUs: they rest."""
    return tuple(tuple(group) for group in groups if len(group) > 1)
