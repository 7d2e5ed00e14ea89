"""act/limits.py: counts, ranks and the words for them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from act_fakes import T0

from slurm_nvhc.act import limits as lim
from slurm_nvhc.catalog.findings import ALL, BY_CODE
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.policy.acting import Limit, Limits
from slurm_nvhc.slurm.fleet import OutNode, Partition

S = 10**9
TWO = Limits(soft=Limit(number=2), hard=Limit(number=4))


def out(name: str, ago_s: float = 60, reason: str = "nvhc: NVL-STORM gpu3") -> OutNode:
    return OutNode(name, "drained", reason, "root", T0 - int(ago_s * S))


def part(*nodes: OutNode, total: int = 40, name: str = "gpu") -> Partition:
    return Partition(name, total, nodes)


def place(partition: Partition, node: str = "n1", soft: bool = True, limits: Limits = TWO) -> lim.Place:
    (found,) = lim.places([partition], node, limits, soft, T0)
    return found


def test_only_drains_of_ours_that_are_young_count() -> None:
    foreign = (out("b", reason="psu swap"), out("d", reason="NHC: nvhc: no"))
    others = part(out("a"), *foreign, out("c", ago_s=90_000), out("e", reason="nvhc:x"))
    assert place(others) == lim.Place("gpu", 2, 2, 0, 40)


def test_a_reason_without_a_time_counts_and_so_does_one_from_a_clock_ahead_of_ours() -> None:
    assert place(part(OutNode("a", "drained", "nvhc: x", "root", 0), out("b", ago_s=-3600))).others == 2


def test_room_before_a_drain() -> None:
    assert lim.full([place(part(out("a")))]) is None
    found = lim.full([place(part(out("a"), out("b")))])
    assert found is not None
    assert lim.words(found, 86400) == "limit: 2 of 2 nodes of partition gpu are drained by nvhc within 1d"
    assert lim.full([place(part(out("a"), out("b")), soft=False)]) is None, "four may be out for faults beyond doubt"


def test_this_node_is_not_counted_against_itself() -> None:
    seen = place(part(out("n1"), out("b")))
    assert (seen.others, seen.rank) == (1, 2)
    assert lim.full([seen]) is None
    assert lim.beyond([seen]) is None


def test_rank_by_time_then_by_name() -> None:
    three = (out("n3", 50), out("n2", 50), out("n1", 40))
    assert [place(part(*three), n).rank for n in ("n2", "n3", "n1")] == [1, 2, 3]
    found = lim.beyond([place(part(*three), "n1")])
    assert found is not None
    assert lim.words(found, 3600) == "limit: 2 of 2 nodes of partition gpu are drained by nvhc within 1h, this one came as number 3"
    assert lim.beyond([place(part(*three), "n1", soft=False)]) is None


def test_the_tightest_partition_decides() -> None:
    both = lim.places([part(out("a")), part(out("a"), total=2, name="small")], "n1", Limits(soft=Limit(share=0.05)), True, T0)
    assert [p.allowed for p in both] == [2, 1]
    found = lim.full(both)
    assert found is not None
    assert found.partition == "small"
    crowded = [part(out("a"), out("b")), part(*(out(c) for c in "abcde"), name="crowded"), part(out("a"), out("b"), name="last")]
    tightest = lim.full(lim.places(crowded, "n1", TWO, True, T0))
    assert tightest is not None
    assert tightest.partition == "crowded"


def test_shares_are_rounded_up_and_never_nothing() -> None:
    sizes = {1: 1, 4: 1, 20: 1, 21: 2, 40: 2, 1000: 50}
    assert {n: place(part(total=n), limits=Limits()).allowed for n in sizes} == sizes
    assert place(part(total=40), soft=False, limits=Limits()).allowed == 8


def test_a_limit_that_leaves_room_for_all_needs_no_second_count() -> None:
    assert lim.never_reached([place(part(total=2))])
    assert not lim.never_reached([place(part(total=2)), place(part(total=3))])


def test_every_node_with_its_own_view_agrees_on_who_stays() -> None:
    rng = random.Random(7)
    for _ in range(300):
        names = [f"n{i}" for i in range(rng.randint(1, 20))]
        nodes = [out(name, ago_s=rng.randint(0, 3)) for name in names]
        seen = part(*rng.sample(nodes, len(nodes)))
        staying = [n for n in names if lim.beyond([place(seen, n)]) is None]
        assert len(staying) == min(2, len(names))
        # Whoever looks after some have withdrawn comes to the same.
        left = part(*(n for n in nodes if n.name in staying or rng.random() < 0.5))
        assert [n.name for n in left.out if lim.beyond([place(left, n.name)]) is None] == [n.name for n in left.out if n.name in staying]


EXCLUDED = {"GPU-1": Exclusion("GPU-1", "MEM-REMAP-FAILED", "", "nvhc", 0), "GPU-2": Exclusion("GPU-2", "NVL-STORM", "", "nvhc", 0)}


@pytest.mark.parametrize(
    ("keys", "soft"),
    [
        (("NVL-STORM GPU-1",), True),
        (("NVL-STORM GPU-1", "GPU-LOST GPU-2"), False),
        (("MON-ENGINE-HUNG monitor:engine",), True),
        (("SITE-RULE GPU-1",), True),
        (("GPU-EXCLUDED GPU-1",), False),
        (("GPU-EXCLUDED GPU-2",), True),
        (("GPU-EXCLUDED GPU-3",), True),
        ((), True),
    ],
)
def test_what_is_a_suspicion(keys: tuple[str, ...], soft: bool) -> None:
    assert lim.soft(keys, EXCLUDED) is soft


def test_no_trouble_of_ours_and_nothing_of_the_network_is_beyond_doubt() -> None:
    assert not [c.code for c in ALL if c.hard and (c.klass in ("monitor", "node") or c.code.startswith(("RDMA", "FABRIC", "CONFIG")))]
    assert BY_CODE["GPU-LOST"].hard
    assert BY_CODE["MEM-REMAP-FAILED"].hard


def test_the_page_lists_them() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "limits.md").read_text()
    listed = text.partition("<!-- hard -->")[2].partition("<!-- end -->")[0].replace("`", "").replace(",", " ").split()
    assert sorted(listed) == sorted(c.code for c in ALL if c.hard)
