"""Planning of `nvhc isolate`: every single fault is found within six steps of traffic, and nothing is asked in vain."""

from __future__ import annotations

import itertools
from typing import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isolate_oracle import TOPOLOGIES, Fault, Node, board, owner, passes, sides, snapshot, traffic, wires

from slurm_nvhc.isolate import board as boards
from slurm_nvhc.isolate import plan
from slurm_nvhc.isolate.board import Board, Card
from slurm_nvhc.isolate.explain import (
    CERTAIN,
    CONNECTOR,
    FOUND,
    GPU,
    LINK,
    NOTHING,
    ONE_OF,
    PAIR,
    SHARED,
    SWITCH,
    Explanation,
    explain,
)
from slurm_nvhc.isolate.model import ALONE, IDLE, TRAFFIC, Group, Seen, Step
from slurm_nvhc.model.snapshot import LOST

MOST_STEPS = 6


def flat(count: int) -> Board:
    """GPUs without links: all that can be seen is which commands fail."""
    uuids = [f"GPU-{i:02d}" for i in range(count)]
    names = {uuid: f"gpu{i}" for i, uuid in enumerate(uuids)}
    return Board(tuple(Card(u, names[u]) for u in uuids), dict.fromkeys(uuids, ()), names=names)


def single_faults(here: Board) -> Iterator[Fault]:
    """Every one that the board can have and that shows itself."""
    for number, wire in enumerate(wires(here)):
        for end in filter(None, wire):
            yield Fault("link", end, "counters" if number % 4 else "both")
        yield Fault("connector", wire[0], "both" if number % 4 else "counters")
    for uuid in here.uuids:
        for shows in ("counters", "command", "both", "silent"):
            if here.links[uuid] or shows in ("command", "silent"):
                yield Fault("gpu", uuid, shows)
    for one, other in itertools.combinations(here.uuids, 2):
        yield Fault("pair", f"{one}+{other}", "command")
    for switch in here.switches:
        for shows in ("counters", "command", "both"):
            yield Fault("switch", switch, shows)


def silent_links(here: Board) -> Iterator[Fault]:
    for wire in wires(here):
        yield Fault("link", wire[0], "command")


def names_it(here: Board, fault: Fault, said: Explanation) -> bool:
    """Is the planted fault what is accused, and nothing else? Where traffic can not tell parts apart, one of them."""
    if len(said.parts) != 1:
        return False
    accused = said.parts[0]
    place = accused.place
    if len(here.cards) == 2 and (fault.kind in ("gpu", "pair") or fault.shows == "command"):
        # There is one group only: with both.
        want = set(fault.at.split("+")) if fault.kind != "link" else set(here.uuids)
        return accused.confidence != CERTAIN and any(want <= set(p.entities) for p in (place, *accused.others))
    if accused.others:
        return False
    if fault.kind == "link" and fault.shows == "command":
        # A link that no counter tells of stops the same traffic as its GPU, or as the pair that it joins.
        gpus = {owner(end) for end in sides(here, fault.at) if end.startswith("GPU-")}
        return set(place.entities) == gpus and place.kind == (PAIR if len(gpus) == 2 else GPU) and "link" in place.name + accused.why
    if fault.kind == "link":
        return place.kind == LINK and place.entities[0] == fault.at if sides(here, fault.at)[1] else fault.at in place.entities
    if fault.kind == "connector":
        return place.kind == CONNECTOR and set(place.entities) == set(filter(None, sides(here, fault.at)))
    if fault.kind == "switch":
        return fault.at in place.entities and place.kind == (SHARED if fault.shows == "command" else SWITCH)
    return place.kind == {"gpu": GPU, "pair": PAIR}[fault.kind] and set(place.entities) == set(fault.at.split("+"))


@pytest.mark.parametrize("preset", TOPOLOGIES)
def test_every_single_fault_is_found_in_six_steps_of_traffic(preset: str) -> None:
    here = board(preset)
    for fault in itertools.chain(single_faults(here), itertools.islice(silent_links(here), 0, None, 5)):
        seen = Node(here, fault).search()
        assert traffic(seen) <= MOST_STEPS, (fault, [one.step for one in seen])
        said = explain(here, seen)
        assert said.outcome == FOUND
        assert names_it(here, fault, said), (fault, said)
        assert not said.unexplained


def test_an_h200_board_is_wired_as_an_h100_one() -> None:
    one, other = board("hgx-h100-8"), board("hgx-h200-8")
    index = [{u: i for i, u in enumerate(b.uuids)} for b in (one, other)]

    def shape(here: Board, order: dict[str, int]) -> set[tuple[int, str, str]]:
        return {(order[owner(end)], end.rpartition("/")[2], here.fars[end]) for ends in here.links.values() for end in ends}

    assert shape(one, index[0]) == shape(other, index[1])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_silent_faults_are_found_among_any_number_of_gpus(count: int) -> None:
    here = flat(count)
    pairs = list(itertools.combinations(here.uuids, 2))
    for needed in [(u,) for u in here.uuids] + (pairs[::7] if count > 8 else pairs):
        if count == 1:
            continue
        fault = Fault("gpu", needed[0], "silent") if len(needed) == 1 else Fault("pair", "+".join(needed), "command")
        seen = Node(here, fault).search()
        # Three GPUs give one answer a step: only one group of them moves data.
        assert traffic(seen) <= (8 if count > 8 or count == 3 else MOST_STEPS), fault
        assert names_it(here, fault, explain(here, seen)), (fault, explain(here, seen))
    assert explain(here, Node(here).search()).outcome == NOTHING


def test_the_board_is_what_answers_and_what_is_in_use() -> None:
    whole = snapshot("hgx-h100-8")
    lost, gone, *_ = uuids = list(whole.gpus or {})
    gpus = dict(whole.gpus or {})
    gpus[lost] = gpus[lost]._replace(status=LOST)
    here = boards.of(whole._replace(gpus=gpus), uuids[:4])
    assert here.uuids == tuple(uuids[1:4])
    assert set(here.links) == set(here.uuids)
    card = here.card(gone)
    assert card is not None
    assert (card.name, card.slot, card.pci) == ("gpu1", "2", "0000:2b:00.0")
    assert here.name(f"{lost}/link3") == "gpu0 link3"  # it is left out, and has its name
    assert board("hgx-h100-8").far_device(here.links[gone][0]) == "switch:0000:c1:00.0"
    assert [len(b.switches) for b in map(board, TOPOLOGIES)] == [4, 6, 0, 0, 0, 0, 0]
    assert [b.direct for b in map(board, TOPOLOGIES)] == [False, False, False, False, True, True, False]
    assert not any(board("a100-pcie-8").links.values())  # without a bridge its links are down
    assert boards.of(whole._replace(gpus=None)).cards == ()


def test_first_nothing_then_each_alone_then_all_together() -> None:
    here = board("hgx-h100-8")
    seen = Node(here).search(plan.Limits(repeat=2))
    assert [one.step.kind for one in seen] == [IDLE, ALONE, TRAFFIC, TRAFFIC, TRAFFIC]
    assert seen[1].step.groups == tuple((uuid,) for uuid in here.uuids)
    assert {one.step.groups for one in seen[2:]} == {(here.uuids,)}
    assert traffic(Node(here).search(plan.Limits(repeat=0))) == 1


def test_one_gpu_is_tried_alone_and_no_more() -> None:
    here = flat(1)
    assert [one.step.kind for one in Node(here).search()] == [IDLE, ALONE]
    assert plan.next_step(Board(()), ()) is None


def test_groups_of_a_step_have_no_gpu_in_common_and_move_data() -> None:
    here = board("hgx-a100-8")
    for fault in itertools.islice(single_faults(here), 0, None, 11):
        for one in Node(here, fault).search():
            gpus = [uuid for group in one.step.groups for uuid in group]
            assert len(gpus) == len(set(gpus))
            assert set(gpus) <= set(here.uuids)
            assert one.step.kind != TRAFFIC or (one.step.groups and all(len(group) > 1 for group in one.step.groups))
            assert one.step.why


def test_a_search_goes_on_from_any_of_its_steps_as_if_it_had_not_stopped() -> None:
    here = board("hgx-h100-8")
    for fault in (Fault("pair", f"{here.uuids[1]}+{here.uuids[6]}", "command"), Fault("gpu", here.uuids[3], "silent")):
        whole = Node(here, fault).search()
        for stopped in range(len(whole)):
            assert Node(here, fault).search(seen=whole[:stopped]) == whole


def test_max_steps_is_a_limit_on_traffic() -> None:
    here = flat(8)
    node = Node(here, Fault("pair", f"{here.uuids[0]}+{here.uuids[5]}", "command"))
    assert traffic(node.search(plan.Limits(max_steps=2))) == 2
    said = explain(here, node.search(plan.Limits(max_steps=2)))
    assert said.parts[0].confidence == ONE_OF
    assert len(said.parts[0].others) > 3


def test_a_gpu_that_fails_alone_is_left_out_of_the_first_traffic() -> None:
    here = flat(8)
    seen = Node(here, Fault("gpu", here.uuids[2], "command")).search()
    assert [one.step.kind for one in seen[:5]] == [IDLE, ALONE, ALONE, ALONE, TRAFFIC], "a command may fail once by itself"
    assert here.uuids[2] not in seen[4].step.groups[0]
    assert len(seen[4].step.groups[0]) == 7


def test_a_command_that_fails_on_every_gpu_alone_ends_the_search() -> None:
    here = flat(4)
    seen = Node(here, *(Fault("gpu", uuid, "command") for uuid in here.uuids)).search()
    assert [one.step.kind for one in seen] == [IDLE, ALONE]


def test_what_comes_to_no_end_is_tried_in_smaller_groups_and_not_for_ever() -> None:
    here = flat(8)

    def hang(step: Step) -> Seen:
        return Seen(step, tuple(Group(g, True if len(g) == 1 else None, "out of time") for g in step.groups), seconds=30.0)

    seen: list[Seen] = []
    while (step := plan.next_step(here, seen)) is not None:
        seen.append(hang(step))
    assert [len(one.step.groups) for one in seen if one.step.kind == TRAFFIC] == [1, 2, 4]


def test_an_answer_that_did_not_come_is_not_asked_for_again() -> None:
    """The pair (0, 1) fails, and groups of three or four never come to an end."""
    here = flat(8)
    node = Node(here, Fault("pair", f"{here.uuids[0]}+{here.uuids[1]}", "command"))
    seen: list[Seen] = []
    while (step := plan.next_step(here, seen)) is not None:
        one = node.play(step)
        seen.append(one._replace(groups=tuple(g._replace(ok=None) if len(g.gpus) in (3, 4) else g for g in one.groups)))
    unanswered = [frozenset(g.gpus) for one in seen for g in one.groups if g.ok is None]
    assert len(unanswered) == len(set(unanswered))
    assert here.uuids[0] in str(explain(here, seen).parts)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(2, 10), answers=st.lists(st.sampled_from([True, True, False, None]), min_size=1, max_size=40))
def test_any_answers_end_in_bounded_steps_and_an_explanation(count: int, answers: list[bool | None]) -> None:
    here = flat(count)
    turn = itertools.cycle(answers)
    seen: list[Seen] = []
    while (step := plan.next_step(here, seen)) is not None:
        seen.append(Seen(step, tuple(Group(g, next(turn)) for g in step.groups), seconds=1.0))
        assert traffic(seen) <= plan.USUAL.max_steps
    said = explain(here, seen)
    failed = [g for one in seen for g in one.groups if g.ok is False]
    assert bool(failed) == bool(said.parts or said.unexplained)
    if len(failed) == 0:
        assert said.outcome != FOUND


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_single_fault_among_any_gpus_of_a_board_is_found(data: st.DataObject) -> None:
    preset = data.draw(st.sampled_from(("hgx-h100-8", "hgx-a100-4", "hgx-b200-8")))
    whole = board(preset)
    chosen = data.draw(st.lists(st.sampled_from(whole.uuids), min_size=3, unique=True))
    cards = tuple(c for c in whole.cards if c.uuid in chosen)
    here = whole._replace(cards=cards, links={u: ends for u, ends in whole.links.items() if u in chosen})
    fault = data.draw(st.sampled_from([f for f in single_faults(here) if f.kind != "switch"]))
    if fault.kind in ("link", "connector") and not any(fault.at in w and passes(w, here.uuids) for w in wires(here)):
        return
    if here.direct and fault.kind == "gpu":
        return  # its links to GPUs outside carry nothing: which of three parts it is, few GPUs may not tell
    seen = Node(here, fault).search()
    assert names_it(here, fault, explain(here, seen)), fault
