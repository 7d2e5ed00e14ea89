"""What `nvhc isolate` says of its steps: the fewest parts, how sure, what is open, and never more than was seen."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isolate_oracle import Fault, Node, board, owner, sides, snapshot, traffic, wires

from slurm_nvhc.isolate import board as boards
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.explain import (
    CERTAIN,
    CONNECTOR,
    FOUND,
    GPU,
    LIKELY,
    LINK,
    NOTHING,
    ONE_OF,
    PAIR,
    SHARED,
    SWITCH,
    UNKNOWN,
    Explanation,
    explain,
    to_json,
)
from slurm_nvhc.isolate.model import ALONE, IDLE, TRAFFIC, Group, Seen, Step
from slurm_nvhc.isolate.plan import next_step
from slurm_nvhc.isolate.simplest import simplest

H100 = board("hgx-h100-8")
A100X4 = board("hgx-a100-4")
B200 = board("hgx-b200-8")


def step(here: Board, kind: str = TRAFFIC, ok: bool | None = True, groups: Sequence[Sequence[str]] = (), **more: Any) -> Seen:
    if kind == ALONE:
        groups = groups or [(uuid,) for uuid in here.uuids]
    elif kind == TRAFFIC:
        groups = groups or [here.uuids]
    told = tuple(tuple(group) for group in groups)
    return Seen(Step(kind, told), tuple(Group(group, ok) for group in told), seconds=30.0, **more)


def quiet(here: Board) -> list[Seen]:
    return [step(here, IDLE), step(here, ALONE)]


def grown(here: Board, growth: Mapping[str, Mapping[str, int]], **more: Any) -> Explanation:
    return explain(here, [*quiet(here), step(here, growth=growth, **more)])


def accused(said: Explanation) -> set[tuple[str, frozenset[str]]]:
    return {(a.place.kind, frozenset(a.place.entities)) for a in said.parts}


def truth(here: Board, fault: Fault) -> tuple[str, frozenset[str]]:
    ends = frozenset(filter(None, sides(here, fault.at))) if "/" in fault.at else frozenset(fault.at.split("+"))
    return fault.kind, ends


def explained_by(here: Board, one: Fault, other: Fault) -> bool:
    """Does one fault show all that the other shows? A link of a bad GPU or at a bad switch; the other end of the same wire."""
    places = {owner(end) for end in sides(here, other.at)} if "/" in other.at else {other.at}
    same_wire = "/" in one.at and "/" in other.at and set(sides(here, one.at)) == set(sides(here, other.at))
    return one.at in places or same_wire


# -- the simplest sets -----------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    explains=st.dictionaries(st.integers(0, 7), st.frozensets(st.integers(0, 5), min_size=1), min_size=1, max_size=8),
    prices=st.lists(st.integers(4, 9), min_size=8, max_size=8),
    margin=st.integers(0, 6),
)
def test_the_simplest_sets_are_those_of_trying_all(explains: dict[int, frozenset[int]], prices: list[int], margin: int) -> None:
    bits = {thing: prices[thing] for thing in explains}
    known = frozenset().union(*explains.values())

    def covers(things: Sequence[int]) -> bool:
        return frozenset().union(*(explains[t] for t in things)) == known

    whole = [some for size in range(1, len(explains) + 1) for some in itertools.combinations(sorted(explains), size) if covers(some)]
    minimal = [some for some in whole if not any(covers([t for t in some if t != out]) for out in some)]
    least = min(sum(bits[t] for t in some) for some in minimal)
    wanted = {(sum(bits[t] for t in some), frozenset(some)) for some in minimal if sum(bits[t] for t in some) <= least + margin}
    rank = {thing: place for place, thing in enumerate(sorted(explains, key=lambda t: (bits[t], t)))}
    got = simplest(explains, bits, rank, margin)
    assert {(cost, frozenset(some)) for cost, some in got} == wanted
    assert [cost for cost, _ in got] == sorted(cost for cost, _ in got)
    assert simplest(dict(reversed(explains.items())), bits, rank, margin) == got


# -- two at once ---------------------------------------------------------------------------


def counted_faults(here: Board) -> list[Fault]:
    some = wires(here)
    picked = some[:: max(1, len(some) // 7)]
    out = [Fault("link", wire[i % 2] or wire[0]) for i, wire in enumerate(picked)] + [Fault("connector", wire[0]) for wire in picked[1::2]]
    return out + [Fault("gpu", uuid) for uuid in here.uuids[:3]] + [Fault("switch", switch) for switch in here.switches[:2]]


@pytest.mark.parametrize("preset", ["hgx-h100-8", "hgx-b200-8", "hgx-a100-8"])
def test_two_faults_that_count_are_both_named(preset: str) -> None:
    here = board(preset)
    for one, other in itertools.combinations(counted_faults(here), 2):
        if explained_by(here, one, other) or explained_by(here, other, one):
            continue
        seen = Node(here, one, other).search()
        said = explain(here, seen)
        assert accused(said) == {truth(here, one), truth(here, other)}, (one, other, said.said)
        assert not any(a.others for a in said.parts)


def test_two_silent_gpus_are_both_named() -> None:
    for one, other in itertools.combinations(H100.uuids, 2):
        seen = Node(H100, Fault("gpu", one, "silent"), Fault("gpu", other, "silent")).search()
        assert accused(explain(H100, seen)) == {(GPU, frozenset({one})), (GPU, frozenset({other}))}
        assert traffic(seen) <= 8


def test_what_a_bad_switch_explains_does_not_keep_a_gpu_from_being_certain() -> None:
    seen = Node(H100, Fault("gpu", H100.uuids[2]), Fault("switch", H100.switches[1])).search()
    assert [a.confidence for a in explain(H100, seen).parts] == [CERTAIN, CERTAIN]


def test_a_link_that_counts_does_not_hide_a_gpu_that_only_fails() -> None:
    end = H100.links[H100.uuids[1]][4]
    for uuid in H100.uuids[2:]:
        said = explain(H100, Node(H100, Fault("link", end), Fault("gpu", uuid, "silent")).search())
        assert accused(said) == {truth(H100, Fault("link", end)), (GPU, frozenset({uuid}))}


# -- at times ------------------------------------------------------------------------------


def test_a_link_that_shows_half_the_time_is_named_and_what_speaks_against_it_too() -> None:
    found = 0
    for seed in range(40):
        end = random.Random(seed).choice(wires(H100))[0]
        seen = Node(H100, Fault("link", end, share=0.5), seed=seed).search()
        said = explain(H100, seen)
        if said.outcome == NOTHING:
            assert traffic(seen) == 3  # it kept quiet three times
            continue
        found += 1
        part = said.parts[0]
        assert len(said.parts) == 1
        assert part.place.entities[0] == end
        assert part.confidence == (LIKELY if part.quiet else CERTAIN)
        assert not set(part.shown) & set(part.quiet)
        assert ("only at times" in part.why) == bool(part.quiet)
        for number in part.shown:
            assert seen[number - 1].growth
    assert found >= 30


def test_what_fails_only_at_times_is_never_certain_to_be_another_part() -> None:
    """Silent, and quiet half the time: hardly anything tells. What is said may be wrong, and then does not say that it is certain."""
    right = 0
    for seed in range(120):
        uuid = random.Random(seed).choice(H100.uuids)
        said = explain(H100, Node(H100, Fault("gpu", uuid, "silent", share=0.5), seed=seed).search())
        good = accused(said) == {(GPU, frozenset({uuid}))}
        right += good
        assert good or all(a.confidence != CERTAIN for a in said.parts), said
    assert right >= 60


# -- nothing, and not known -----------------------------------------------------------------


def test_nothing_found_says_what_was_covered() -> None:
    said = explain(H100, Node(H100).search())
    assert said.outcome == NOTHING
    assert not said.found
    assert not said.parts
    assert said.covered == (3, 90.0, 28, 28, 144, 144)
    assert said.said == "nothing found in 3 traffic steps, 1m30s of traffic, 28 of 28 pairs of GPUs, 144 of 144 links"


def test_direct_links_are_covered_only_by_traffic_between_their_gpus() -> None:
    seen = [*quiet(A100X4), step(A100X4, groups=[A100X4.uuids[:2], A100X4.uuids[2:]])]
    said = explain(A100X4, seen)
    assert (said.covered.pairs, said.covered.links, said.covered.of_links) == (2, 16, 48)
    assert said.outcome == UNKNOWN


def test_pairs_that_were_in_no_group_are_not_covered() -> None:
    said = explain(H100, [*quiet(H100), step(H100, groups=[H100.uuids[:4], H100.uuids[4:]])])
    assert (said.covered.pairs, said.covered.links) == (12, 144)
    assert said.outcome == UNKNOWN


def test_what_came_to_no_end_is_no_pass_and_no_fault() -> None:
    seen = [*quiet(H100), step(H100, ok=None)]
    said = explain(H100, seen)
    assert said.outcome == UNKNOWN
    assert not said.parts
    assert said.covered.pairs == 0
    assert said.covered.seconds == 0
    assert said.unknown
    assert "no result" in said.unknown[0]


def test_a_gpu_in_every_group_that_hangs_and_in_no_other_is_told() -> None:
    a, b, c, d, *_ = H100.uuids
    seen = [*quiet(H100)]
    for groups in ([(a, b), (c, d)], [(a, c), (b, d)]):
        one = step(H100, groups=groups)
        seen.append(one._replace(groups=tuple(g._replace(ok=None if a in g.gpus else True) for g in one.groups)))
    assert explain(H100, seen).unknown[-1] == "every group that came to no end has gpu0, and no other group does"


def test_unread_counters_are_no_pass() -> None:
    end = H100.links[H100.uuids[0]][0]
    bad = {end: {"nvlink_replay": 50}}
    shows = [*quiet(H100), step(H100, growth=bad), step(H100, growth=bad)]
    unread = step(H100, unread={end: "reset", H100.fars[end]: "reset"})
    assert explain(H100, [*shows, unread]).parts[0].quiet == ()
    assert explain(H100, [*shows, step(H100)]).parts[0].quiet == (5,)
    said = explain(H100, [*shows, unread])
    assert said.unknown == ("step 5: counters of gpu0 link0 and 1 more could not be compared: reset",)


def test_what_came_to_no_end_does_not_speak_against_a_part() -> None:
    bad = {H100.links[H100.uuids[0]][0]: {"nvlink_replay": 50}}
    shows = [*quiet(H100), step(H100, growth=bad), step(H100, growth=bad)]
    assert explain(H100, [*shows, step(H100, ok=None)]).parts[0].quiet == ()


def test_a_link_explains_a_failed_command_only_where_it_counts_or_can_not_be_read() -> None:
    end = H100.links[H100.uuids[0]][0]
    shows = [*quiet(H100), step(H100, growth={end: {"nvlink_replay": 50}}, ok=False)]
    assert len(explain(H100, shows).parts) == 1
    assert len(explain(H100, [*shows, step(H100, ok=False)]).parts) == 2
    blind = step(H100, ok=False, unread={end: "reset", H100.fars[end]: "reset"})
    assert len(explain(H100, [*shows, blind]).parts) == 1


def test_links_that_could_not_be_read_are_not_covered() -> None:
    uuid = H100.uuids[0]
    said = explain(H100, [*quiet(H100), step(H100, unread=dict.fromkeys((uuid, *H100.links[uuid]), "the GPU was reset"))])
    assert said.covered.links == 144 - 18
    assert said.outcome == UNKNOWN


def test_a_search_that_has_not_begun_knows_nothing() -> None:
    assert explain(H100, []).outcome == UNKNOWN
    assert explain(H100, quiet(H100)).outcome == UNKNOWN
    assert explain(Board(()), []).outcome == UNKNOWN


def test_a_command_that_fails_on_every_gpu_alone_accuses_no_gpu() -> None:
    said = explain(H100, [step(H100, IDLE), step(H100, ALONE, ok=False)])
    assert said.outcome == UNKNOWN
    assert not said.parts
    assert "the command fails on every GPU alone" in said.said
    assert len(said.unexplained) == 8


def test_of_one_gpus_links_nothing_is_known() -> None:
    one = boards.of(snapshot("hgx-h100-8"), H100.uuids[:1])
    assert explain(one, quiet(one)).outcome == UNKNOWN
    bare = boards.of(snapshot("a100-pcie-8"), board("a100-pcie-8").uuids[:1])
    assert explain(bare, quiet(bare)).outcome == NOTHING, "there it is all that there is to try"


@pytest.mark.parametrize("preset", ["hgx-h100-8", "hgx-a100-4"])
def test_a_command_of_which_only_one_can_run_at_a_time_accuses_no_gpu(preset: str) -> None:
    """All of a step's commands want the same port, say."""
    here = board(preset)
    seen = [step(here, IDLE)]
    while (what := next_step(here, seen)) is not None:
        groups = tuple(Group(tuple(group), place == 0, "Address already in use") for place, group in enumerate(what.groups))
        seen.append(Seen(what, groups, seconds=30.0))
    said = explain(here, seen)
    assert (said.outcome, said.parts) == (UNKNOWN, ())
    number = len(here.cards)
    assert f"fails on {number - 1} of {number} GPUs alone: it is the command (can several of it run at once?)" in said.said


@pytest.mark.parametrize(("share", "most"), [(0.5, 2), (0.2, 0)])
def test_a_command_that_fails_by_chance_makes_no_gpu_certain(share: float, most: int) -> None:
    here, wrong = board("hgx-h100-8"), 0
    for seed in range(100):
        chance, seen = random.Random(seed), list[Seen]()
        while (step := next_step(here, seen)) is not None:
            groups = tuple(Group(gpus, chance.random() >= share) for gpus in step.groups)
            seen.append(Seen(step, groups if step.kind != IDLE else ()))
        wrong += any(part.confidence == CERTAIN for part in explain(here, seen).parts)
    assert wrong <= most, "of 100; by its end alone a command convicts after four steps at the earliest"


def test_traffic_that_fails_in_every_group_may_be_the_command() -> None:
    seen = Node(H100, Fault("switch", H100.switches[0], "command")).search()
    said = explain(H100, seen)
    assert [a.place.kind for a in said.parts] == [SHARED]
    assert said.parts[0].confidence == LIKELY
    assert "or the traffic command itself" in said.parts[0].why
    assert set(said.parts[0].place.entities) == set(H100.switches)


# -- what counts -----------------------------------------------------------------------------


def test_what_grows_while_nothing_runs_is_background() -> None:
    end = H100.links[H100.uuids[3]][2]
    idle = step(H100, IDLE, growth={end: {"nvlink_replay": 40}})
    same = step(H100, growth={end: {"nvlink_replay": 45}})
    said = explain(H100, [idle, step(H100, ALONE), same])
    assert not said.parts
    assert said.background == ("gpu3 link2: replay +40",)
    assert said.found
    assert "while nothing runs" in said.said
    said = explain(H100, [idle, step(H100, ALONE), step(H100, growth={end: {"nvlink_replay": 4000}})])
    assert accused(said) == {truth(H100, Fault("link", end))}
    assert said.background


def test_few_damaged_packets_accuse_nobody_and_a_retrain_does() -> None:
    end = H100.links[H100.uuids[3]][2]
    said = grown(H100, {end: {"nvlink_replay": 1}, H100.fars[end]: {"port_crc_flit": 1}})
    assert said.outcome == NOTHING
    assert len(said.strays) == 2
    assert grown(H100, {end: {"nvlink_replay": 1}, H100.fars[end]: {"port_crc_flit": 2}}).found
    assert grown(H100, {end: {"nvlink_recovery": 1}}).found
    assert grown(H100, {end: {"nvlink_state": 1}}).parts[0].place.entities[0] == end


def test_few_packets_in_many_steps_are_many() -> None:
    end = H100.links[H100.uuids[3]][2]
    few = step(H100, growth={end: {"nvlink_replay": 1}})
    assert not explain(H100, [*quiet(H100), few, few]).parts
    assert explain(H100, [*quiet(H100), few, few, few]).parts[0].shown == (3, 4, 5)


@pytest.mark.parametrize(
    ("near", "far", "kind", "first"),
    [
        ({"nvlink_replay": 50}, {"port_crc_flit": 50}, LINK, "near"),
        ({"nvlink_crc_flit": 50}, {"port_replay": 50}, LINK, "far"),
        ({"nvlink_replay": 50}, {}, LINK, "near"),
        ({"nvlink_crc_flit": 50}, {}, LINK, "near"),
        ({"nvlink_recovery": 1}, {"port_recovery": 4}, LINK, "far"),
        ({"nvlink_replay": 50, "nvlink_crc_flit": 50}, {}, CONNECTOR, "near"),
        ({"nvlink_replay": 50}, {"port_replay": 20}, CONNECTOR, "near"),
        ({"nvlink_replay": 50, "nvlink_crc_flit": 2}, {"port_crc_flit": 50}, LINK, "near"),
    ],
)
def test_the_counters_tell_which_end_or_that_it_is_what_both_share(
    near: dict[str, int], far: dict[str, int], kind: str, first: str
) -> None:
    end = H100.links[H100.uuids[3]][2]
    place = grown(H100, {end: near, H100.fars[end]: far} if far else {end: near}).parts[0].place
    assert (place.kind, place.entities[0]) == (kind, end if first == "near" else H100.fars[end])
    assert set(place.entities) == {end, H100.fars[end]}


def test_three_links_of_a_gpu_are_the_gpu_and_two_are_two_links() -> None:
    uuid = H100.uuids[5]
    ends = [H100.links[uuid][n] for n in (0, 7, 14)]
    assert accused(grown(H100, {end: {"nvlink_replay": 50} for end in ends})) == {(GPU, frozenset({uuid}))}
    assert {kind for kind, _ in accused(grown(H100, {end: {"nvlink_replay": 50} for end in ends[:2]}))} == {LINK}


def test_links_of_three_gpus_at_one_switch_are_the_switch_and_of_two_are_two_links() -> None:
    ends = [H100.links[uuid][0] for uuid in H100.uuids[:3]]
    switch = owner(H100.fars[ends[0]])
    assert accused(grown(H100, {end: {"nvlink_replay": 50} for end in ends})) == {(SWITCH, frozenset({switch}))}
    assert len(grown(H100, {end: {"nvlink_replay": 50} for end in ends[:2]}).parts) == 2


def test_all_links_between_two_gpus_are_the_bridge() -> None:
    one, other = A100X4.uuids[:2]
    ends = [end for end in A100X4.links[one] if A100X4.fars[end] == other]
    said = grown(A100X4, {end: {"nvlink_replay": 50} for end in ends})
    assert accused(said) == {(CONNECTOR, frozenset({one, other}))}
    assert said.parts[0].place.name == "bridge between gpu0 and gpu1"


def test_links_of_most_gpus_without_known_switches_are_what_they_share() -> None:
    said = grown(B200, {B200.links[uuid][2]: {"nvlink5_retry_events": 50} for uuid in B200.uuids[:6]})
    assert accused(said) == {(SHARED, frozenset({"node"}))}


def test_a_total_that_names_no_link_accuses_the_gpu_or_a_link_of_it() -> None:
    uuid = B200.uuids[2]
    said = grown(B200, {uuid: {"nvlink5_rx_errors": 50}})
    assert [a.place.name for a in said.parts] == ["gpu2 or a link of it"]


def test_a_total_is_the_echo_of_the_links_that_are_told() -> None:
    uuid = H100.uuids[2]
    end = H100.links[uuid][3]
    said = grown(H100, {uuid: {"nvlink_replay_total": 50}, end: {"nvlink_replay": 50}})
    assert accused(said) == {truth(H100, Fault("link", end))}
    few = {end: {"nvlink_replay": 1} for end in H100.links[uuid][:4]}
    assert grown(H100, {uuid: {"nvlink_replay_total": 4}, **few}).outcome == NOTHING


def test_packets_that_were_bad_upstream_do_not_accuse_who_received_them() -> None:
    said = grown(B200, {B200.uuids[2]: {"nvlink5_rx_remote_errors": 50}})
    end = B200.links[B200.uuids[0]][4]
    both = grown(B200, {B200.uuids[2]: {"nvlink5_rx_remote_errors": 50}, end: {"nvlink5_retry_events": 50}})
    assert accused(both) == {(LINK, frozenset({end}))}
    assert B200.uuids[2] not in {p.entities[0] for a in said.parts for p in (a.place, *a.others)}


def test_a_gpus_own_errors_are_its_own_and_corrected_ones_may_be_few() -> None:
    uuid = H100.uuids[2]
    assert accused(grown(H100, {uuid: {"ecc_dbe_volatile": 1}})) == {(GPU, frozenset({uuid}))}
    assert grown(H100, {uuid: {"ecc_sbe_volatile": 2}}).outcome == NOTHING
    assert grown(H100, {uuid: {"pcie_replay": 20}}).outcome == NOTHING
    assert grown(H100, {uuid: {"pcie_replay": 2000}}).found


def test_events_accuse_what_they_name_unless_programs_cause_them() -> None:
    uuid = H100.uuids[2]
    assert accused(grown(H100, {}, events=(f"Xid 79 on {uuid}",))) == {(GPU, frozenset({uuid}))}
    assert accused(grown(H100, {}, events=(f"Xid 48 on {uuid}",))) == {(GPU, frozenset({uuid}))}
    assert {a.place.kind for a in grown(H100, {}, events=(f"Xid 74 on {uuid}",)).parts} <= {GPU, PAIR}
    assert grown(H100, {}, events=(f"Xid 31 on {uuid}",)).outcome == NOTHING
    assert accused(grown(H100, {}, events=(f"SXid 20034 on {H100.switches[1]}",))) == {(SWITCH, frozenset({H100.switches[1]}))}
    end = H100.links[uuid][4]
    assert accused(grown(H100, {}, events=(f"Xid 74 on {end}",))) == {truth(H100, Fault("link", end))}


def test_an_xid_about_memory_is_not_a_links() -> None:
    uuid = H100.uuids[2]
    said = grown(H100, {H100.links[uuid][4]: {"nvlink_replay": 50}}, events=(f"Xid 48 on {uuid}",))
    assert {kind for kind, _ in accused(said)} == {LINK, GPU}


def test_many_links_of_most_gpus_are_what_they_share() -> None:
    said = explain(H100, Node(H100, *(Fault("gpu", uuid) for uuid in H100.uuids[:5])).search())
    assert accused(said) == {(SHARED, frozenset(H100.switches))}


def test_a_gpu_that_dies_explains_what_its_peers_log_and_its_links_count() -> None:
    dead, peer = H100.uuids[2], H100.uuids[6]
    lines = (f"Xid 74 on {H100.links[peer][3]}", f"Xid 79 on {dead}", f"Xid 74 on {peer}")
    said = grown(H100, {H100.fars[H100.links[dead][0]]: {"port_replay": 9}}, events=lines, ok=False)
    assert accused(said) == {(GPU, frozenset({dead}))}
    assert not said.parts[0].others
    assert not said.unexplained


def test_errors_of_a_gpu_that_is_not_searched_are_told_as_unexplained_or_as_the_link() -> None:
    stranger = "GPU-ffffffff-0000-0000-0000-000000000000"
    said = grown(H100, {stranger: {"ecc_dbe_volatile": 1}})
    assert said.outcome == UNKNOWN
    assert not said.parts
    assert "ecc" in said.unexplained[0].lower()


# -- how sure ------------------------------------------------------------------------------


def test_certain_needs_two_steps_and_traffic_that_goes_well_without() -> None:
    end = H100.links[H100.uuids[3]][2]
    bad = {end: {"nvlink_replay": 50}}
    once = grown(H100, bad).parts[0]
    assert once.confidence == LIKELY
    assert "one step only" in once.why
    assert "traffic without it" in once.why
    twice = explain(H100, [*quiet(H100), step(H100, growth=bad), step(H100, growth=bad)]).parts[0]
    assert twice.confidence == LIKELY
    assert "one step only" not in twice.why
    assert "traffic without it" in twice.why
    rest = [uuid for uuid in H100.uuids if uuid != H100.uuids[3]]
    sure = explain(H100, [*quiet(H100), step(H100, growth=bad), step(H100, growth=bad), step(H100, groups=[rest])]).parts[0]
    assert sure.confidence == CERTAIN
    assert sure.shown == (3, 4)


def test_what_can_not_be_told_apart_is_one_of() -> None:
    said = grown(H100, {}, ok=False)
    assert said.parts[0].confidence == ONE_OF
    assert said.said.startswith("one of gpu0")
    assert {p.kind for p in (said.parts[0].place, *said.parts[0].others)} == {GPU, PAIR, SHARED}
    assert len(said.parts[0].others) == 8 + 28 + 1 - 1


def test_it_can_be_told_as_json() -> None:
    seen = Node(H100, Fault("link", H100.links[H100.uuids[0]][0])).search()
    raw = json.loads(json.dumps(to_json(explain(H100, seen))))
    assert raw["outcome"] == FOUND
    assert raw["parts"][0]["kind"] == LINK
    assert raw["parts"][0]["confidence"] == CERTAIN
    assert raw["covered"]["of_links"] == 144
    assert raw["parts"][0]["shown"] == list(explain(H100, seen).parts[0].shown)
