"""Cards were exchanged: did the fault follow the card, or stay with the slot? Pure.

    search before + search after + which cards were exchanged ─► Verdict, one line per fault

A card is known by its serial, else by its UUID; a slot as the engine names it, else by its PCI address. A link's fault is the link
of the same number, on the card or in the slot.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, NamedTuple, Optional, Protocol, Sequence

from slurm_nvhc.errors import InputError
from slurm_nvhc.isolate import explain as ex
from slurm_nvhc.isolate.board import Board, Card
from slurm_nvhc.isolate.explain import Explanation, Place
from slurm_nvhc.isolate.model import Seen
from slurm_nvhc.model import entity

# Moved.how
FOLLOWED: Final = "followed"  # the card: it is the card's
STAYED: Final = "stayed"  # with the slot: board, riser, power, cooling, or what the slot is wired to
GONE: Final = "gone"  # reseating may have mended it, or it shows only at times
ELSEWHERE: Final = "elsewhere"  # something else was found, neither on the card nor in the slot
UNTOLD: Final = "unknown"


class Searched(Protocol):
    """A search that came to its end."""

    @property
    def board(self) -> Board: ...

    @property
    def seen(self) -> Sequence[Seen]: ...


class Moved(NamedTuple):
    """What became of one fault of the search before."""

    fault: str
    how: str
    why: str


class Verdict(NamedTuple):
    """exchanged: "gpu3 (serial 1650…): slot 4 to slot 6". moved: faults of the exchanged cards; apart: names of faults that the
    exchange tells nothing about, since they were on no exchanged card."""

    exchanged: tuple[str, ...]
    moved: tuple[Moved, ...]
    apart: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"exchanged": list(self.exchanged), "moved": [m._asdict() for m in self.moved], "apart": list(self.apart)}


class _Where(NamedTuple):
    """One side of a fault: a link's number, None for the whole card."""

    card: str
    slot: str
    link: Optional[int]


def compare(before: Searched, after: Searched, told: Sequence[str]) -> Verdict:
    """told: UUIDs of the cards that were exchanged, as they are now. InputError when they were not."""
    exchanged = [_exchanged(before.board, after.board, uuid) for uuid in dict.fromkeys(told)]
    if not exchanged:
        raise InputError("--swapped", "", "no card was told", "name those that were exchanged, such as gpu3,gpu5")
    cards = {_card(now) for _, now in exchanged}
    slots = {_slot(now) for _, now in exchanged} | {_slot(was) for was, _ in exchanged if was is not None}
    first, second = ex.explain(before.board, before.seen), ex.explain(after.board, after.seen)
    if not first.parts:
        raise InputError("--swapped", "", f"the search before found no part ({first.said})", "there is nothing that could have moved")
    moved, apart = [], []
    for accused in first.parts:
        was = [w for place in (accused.place, *accused.others) for w in _where(before.board, place)]
        mine = [w for w in was if w.card in cards or w.slot in slots]
        if not mine:
            apart.append(accused.place.name)
        elif accused.others:
            moved.append(Moved(accused.place.name, UNTOLD, "it was one of several already before the exchange"))
        else:
            moved.append(_moved(accused.place, mine, after.board, second))
    lines = tuple(_line(was, now) for was, now in exchanged)
    return Verdict(lines, tuple(moved), tuple(apart))


def _exchanged(before: Board, after: Board, uuid: str) -> tuple[Optional[Card], Card]:
    """(the card as it sat before, None if it was not on the node; as it sits now)."""
    now = after.card(uuid)
    if now is None:
        raise InputError("--swapped", uuid, "was not in the search after the exchange", "search all GPUs, or the same as before")
    was = next((card for card in before.cards if _card(card) == _card(now)), None)
    if was is not None and _slot(was) == _slot(now):
        raise InputError("--swapped", now.name, f"was not exchanged: it sits in {_slot_word(now)} as before", _serials(before, after))
    if was is None and _slot(now) not in {_slot(card) for card in before.cards}:
        raise InputError("--swapped", now.name, f"neither it nor {_slot_word(now)} was in the search before")
    return was, now


def _moved(place: Place, mine: Sequence[_Where], after: Board, second: Explanation) -> Moved:
    if second.outcome == ex.UNKNOWN or (second.found and not second.parts):
        return Moved(place.name, UNTOLD, f"the search after the exchange could not tell: {second.said}")
    if not second.parts:
        return Moved(place.name, GONE, "nothing was found after the exchange: that mended it (seat, contact), or it shows only at times")
    followed, stayed, unsure = False, False, False
    for accused in second.parts:
        there = _where(after, accused.place)
        on_card = any((w.card, w.link) == (t.card, t.link) for w in mine for t in there)
        in_slot = any((w.slot, w.link) == (t.slot, t.link) for w in mine for t in there)
        unsure = unsure or ((on_card or in_slot) and bool(accused.others)) or (on_card and in_slot)
        followed, stayed = followed or on_card, stayed or in_slot
    names = ", ".join(a.place.name for a in second.parts)
    if unsure or (followed and stayed):
        return Moved(place.name, UNTOLD, f"found now: {names}; that fits the card and the slot, or is one of several")
    if followed:
        return Moved(place.name, FOLLOWED, f"found now: {names}, in another slot: it is the card")
    if stayed:
        return Moved(place.name, STAYED, f"found now: {names}, another card in the same slot: board, riser, power, cooling, or its far end")
    return Moved(place.name, ELSEWHERE, f"found now: {names}, neither that card nor that slot")


def _where(board: Board, place: Place) -> list[_Where]:
    """The cards and slots that a place is on; of a link those of all ends that are GPUs'."""
    out = []
    for what in place.entities:
        uuid, number = entity.split_link(what)
        card = board.card(uuid)
        if card is not None:
            out.append(_Where(_card(card), _slot(card), number))
    return out


def _card(card: Card) -> str:
    return card.serial or card.uuid


def _slot(card: Card) -> str:
    return f"slot {card.slot}" if card.slot else card.pci


def _slot_word(card: Card) -> str:
    return _slot(card) or "a slot that is not known"


def _line(was: Optional[Card], now: Card) -> str:
    came = _slot_word(was) if was is not None else "another node or the shelf"
    return f"{now.name} ({f'serial {now.serial}' if now.serial else now.uuid}): from {came} to {_slot_word(now)}"


def _serials(before: Board, after: Board) -> str:
    """What was exchanged really, as a hint."""
    sat = {_card(card): _slot(card) for card in before.cards}
    really: Iterable[str] = [card.name for card in after.cards if sat.get(_card(card)) != _slot(card)]
    return f"in other slots than before: {', '.join(really)}" if really else "no card of the search sits in another slot than before"
