"""After cards were exchanged: did the fault follow the card or stay with the slot?"""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from isolate_oracle import Fault, Node, board, wires

from slurm_nvhc.errors import InputError
from slurm_nvhc.isolate import swap
from slurm_nvhc.isolate.board import Board, Card
from slurm_nvhc.isolate.model import Seen
from slurm_nvhc.isolate.swap import ELSEWHERE, FOLLOWED, GONE, STAYED, UNTOLD, compare

BEFORE = board("hgx-h100-8")
A, B = BEFORE.uuids[3], BEFORE.uuids[5]


class Searched(NamedTuple):
    board: Board
    seen: tuple[Seen, ...]


def exchanged(here: Board, one: str, other: str) -> Board:
    """The board after two cards changed places: links and wires belong to the slot, and are named by the card in it."""
    swapped = {one: other, other: one}

    def name(what: str) -> str:
        head, slash, tail = what.partition("/")
        return f"{swapped.get(head, head)}{slash}{tail}"

    cards = {card.uuid: card for card in here.cards}
    moved = tuple(
        card._replace(uuid=name(card.uuid), serial=cards[name(card.uuid)].serial) if card.uuid in swapped else card for card in here.cards
    )
    return here._replace(
        cards=moved,
        links={name(uuid): tuple(map(name, ends)) for uuid, ends in here.links.items()},
        fars={name(end): name(far) for end, far in here.fars.items()},
        names={card.uuid: card.name for card in moved},
    )


AFTER = exchanged(BEFORE, A, B)


def searched(here: Board, *faults: Fault) -> Searched:
    return Searched(here, Node(here, *faults).search())


def how(before: Searched, after: Searched, *told: str) -> str:
    moved = compare(before, after, told or (A, B)).moved
    assert len(moved) == 1
    assert moved[0].why
    return moved[0].how


@pytest.mark.parametrize("kind", ["gpu", "link", "connector"])
def test_a_fault_follows_its_card_stays_with_its_slot_or_is_gone(kind: str) -> None:
    def fault(uuid: str, link: int = 11) -> Fault:
        return Fault(kind, uuid if kind == "gpu" else f"{uuid}/link{link}")

    before = searched(BEFORE, fault(A))
    assert how(before, searched(AFTER, fault(A))) == FOLLOWED
    assert how(before, searched(AFTER, fault(B))) == STAYED  # B sits where A sat
    assert how(before, searched(AFTER)) == GONE
    assert how(before, searched(AFTER, fault(BEFORE.uuids[0]))) == ELSEWHERE
    if kind != "gpu":
        assert how(before, searched(AFTER, fault(A, link=2))) == ELSEWHERE


def test_a_switchs_end_of_a_link_is_where_the_link_is() -> None:
    port = BEFORE.fars[f"{A}/link11"]
    before = searched(BEFORE, Fault("link", port))
    assert how(before, searched(AFTER, Fault("link", port))) == STAYED


def test_both_at_once_and_a_search_without_result_tell_nothing() -> None:
    before = searched(BEFORE, Fault("gpu", A))
    assert how(before, searched(AFTER, Fault("gpu", A), Fault("gpu", B))) == UNTOLD
    assert how(before, Searched(AFTER, Node(AFTER).search()[:2])) == UNTOLD
    idle, *rest = Node(AFTER).search()
    restless = idle._replace(growth={f"{A}/link3": {"nvlink_recovery": 5}})
    assert how(before, Searched(AFTER, (restless, *rest))) == UNTOLD
    unclear = Searched(BEFORE, before.seen[:2] + Node(BEFORE, Fault("gpu", A, "silent")).search()[2:3])
    assert how(unclear, searched(AFTER, Fault("gpu", A))) == UNTOLD


def test_faults_of_other_parts_are_told_apart() -> None:
    switch = BEFORE.switches[1]
    before = searched(BEFORE, Fault("gpu", A), Fault("switch", switch))
    verdict = compare(before, searched(AFTER, Fault("gpu", A), Fault("switch", switch)), (A, B))
    assert [m.how for m in verdict.moved] == [FOLLOWED]
    assert len(verdict.apart) == 1
    assert "switch" in verdict.apart[0]


def renamed(here: Board, old: str, serial: str) -> Board:
    """The same with the card "GPU-new" in the place of another."""
    return here._replace(
        cards=tuple(Card("GPU-new", c.name, c.pci, c.slot, serial) if c.uuid == old else c for c in here.cards),
        links={uuid.replace(old, "GPU-new"): tuple(e.replace(old, "GPU-new") for e in ends) for uuid, ends in here.links.items()},
        fars={e.replace(old, "GPU-new"): f.replace(old, "GPU-new") for e, f in here.fars.items()},
    )


def test_a_card_that_came_back_with_another_uuid_is_known_by_its_serial() -> None:
    card = BEFORE.card(A)
    assert card is not None
    before = searched(BEFORE, Fault("gpu", A))
    assert how(before, searched(renamed(AFTER, A, card.serial), Fault("gpu", "GPU-new")), "GPU-new") == FOLLOWED


def test_a_card_from_elsewhere_in_the_slot() -> None:
    new = renamed(AFTER, B, "1650000000001")
    before = searched(BEFORE, Fault("gpu", A))
    assert how(before, searched(new, Fault("gpu", "GPU-new")), "GPU-new") == STAYED
    assert how(before, searched(new), "GPU-new") == GONE
    assert "from another node or the shelf" in compare(before, searched(new), ("GPU-new",)).exchanged[0]


def test_a_card_is_known_by_its_serial_and_a_slot_by_its_address_where_it_has_no_name() -> None:
    def bare(here: Board) -> Board:
        return here._replace(cards=tuple(c._replace(slot="") for c in here.cards))

    before = searched(bare(BEFORE), Fault("gpu", A))
    assert how(before, searched(bare(AFTER), Fault("gpu", B))) == STAYED
    verdict = compare(before, searched(bare(AFTER)), (A,))
    assert "from 0000:4b:00.0 to 0000:6b:00.0" in verdict.exchanged[0]
    assert "serial" in verdict.exchanged[0]


def test_cards_that_were_not_exchanged_are_refused_in_one_line() -> None:
    before = searched(BEFORE, Fault("gpu", A))
    with pytest.raises(InputError, match=r"gpu0.*was not exchanged: it sits in slot 1 as before.*gpu3, gpu5") as refused:
        compare(before, searched(AFTER, Fault("gpu", A)), (A, BEFORE.uuids[0]))
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match="no card of the search sits in another slot"):
        compare(before, searched(BEFORE), (A, B))
    with pytest.raises(InputError, match="was not in the search after"):
        compare(before, searched(AFTER), ("GPU-none",))
    with pytest.raises(InputError, match="no card was told"):
        compare(before, searched(AFTER), ())
    with pytest.raises(InputError, match="found no part"):
        compare(searched(BEFORE), searched(AFTER), (A, B))


def test_it_can_be_told_as_json() -> None:
    verdict = compare(searched(BEFORE, Fault("link", wires(BEFORE)[60][0])), searched(AFTER), (A, B))
    raw = json.loads(json.dumps(verdict.to_json()))
    assert set(raw) == {"exchanged", "moved", "apart"}
    assert len(raw["exchanged"]) == 2
    assert swap.FOLLOWED == "followed"
