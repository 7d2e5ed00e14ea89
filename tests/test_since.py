"""What is new since the last look: every increment once, over all that can come between two looks."""

from __future__ import annotations

from typing import Any

from build import gpu, later, snapshot, uuid, with_link
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.compare import since
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import look as lk
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.snapshot import LOST, OK, Snapshot

LINK0 = f"{uuid(0)}/link0"


def at(seconds: float, replay: Any, status: str = OK, **more: Any) -> Snapshot:
    """One GPU whose link 0 shows this replay count."""
    state = with_link(gpu(0, links=1, status=status), 0, nvlink_replay=replay)
    return later(snapshot(state), seconds)._replace(**more)


def grown(look: Look | None, now: Snapshot) -> tuple[list[tuple[str, float | None, float]], Look]:
    """(kind, amount, seconds) of link 0's replay, and the new look."""
    changes, new = since(look, now)
    assert new is not None
    return [(c.kind, c.amount, c.seconds) for c in changes or () if (c.entity, c.field) == (LINK0, "nvlink_replay")], new


def test_the_first_look_has_nothing_to_compare_with() -> None:
    changes, look = since(None, at(0, 5))
    assert changes is None
    assert look is not None
    assert look.counts[LINK0] == {"nvlink_replay": 5}


def test_growth_comes_once() -> None:
    _, look = grown(None, at(0, 5))
    assert grown(look, at(60, 7))[0] == [(ch.EXACT, 2.0, 60.0)]
    _, look = grown(look, at(60, 7))
    assert grown(look, at(100, 7))[0] == [(ch.EXACT, 0.0, 40.0)]


def test_growth_over_a_gap_without_data_is_not_lost_and_neither_is_the_gaps_time() -> None:
    _, look = grown(None, at(0, 5))
    found, look = grown(look, at(60, NoData(BLANK)))
    assert found == []
    found, look = grown(look, at(100, NoData(BLANK)))
    assert grown(look, at(180, 9))[0] == [(ch.EXACT, 4.0, 180.0)]
    _, look = grown(look, at(180, 9))
    assert look.older == {}


def test_a_gpu_that_does_not_answer_for_a_while_keeps_its_counts() -> None:
    _, look = grown(None, at(0, 5))
    _, look = grown(look, at(60, 0, status=LOST))  # what a lost GPU shows means nothing
    assert grown(look, at(120, 6))[0] == [(ch.EXACT, 1.0, 120.0)]


def test_a_snapshot_without_a_listing_moves_nothing() -> None:
    _, look = grown(None, at(0, 5))
    changes, same = since(look, at(60, 6, gpus=None))
    assert (changes, same) == ((), look)
    assert since(None, at(60, 6, gpus=None)) == (None, None)


def test_a_count_that_is_overtaken_says_nothing() -> None:
    """Two hooks at once: the one that read first is folded last. Its lower count is no reset."""
    _, look = grown(None, at(0, 5))
    _, look = grown(look, at(61, 8))
    changes, same = since(look, at(60, 7))
    assert (changes, same) == ((), look)


def test_a_reset_ends_what_was_kept_of_the_gpu() -> None:
    _, look = grown(None, snapshot(with_link(with_link(gpu(0, links=2), 0, nvlink_replay=5), 1, nvlink_replay=9)))
    blank = with_link(with_link(gpu(0, links=2), 0, nvlink_replay=NoData(BLANK)), 1, nvlink_replay=0)
    changes, look2 = since(look, later(snapshot(), 60, blank))
    assert not [c for c in changes or () if c.amount]
    # Link 0 stood at 5 before the reset: a 7 now is not two more.
    assert grown(look2, later(snapshot(), 120, with_link(gpu(0, links=2), 0, nvlink_replay=7)))[0] == []


def test_a_reboot_ends_what_was_kept() -> None:
    _, look = grown(None, at(0, 5))
    _, look = grown(look, at(60, NoData(BLANK), boot_id="boot-2"))
    assert grown(look, at(120, 7, boot_id="boot-2"))[0] == []
    _, look = grown(None, at(0, 5))
    assert grown(look, at(60, 7, boot_id="boot-2"))[0] == [(ch.AT_LEAST, 7.0, 60.0)]


def test_a_gpu_that_answers_late_after_a_reboot_starts_anew() -> None:
    """A count from before the boot would pass for one of this boot."""
    _, look = grown(None, at(0, 5))
    _, look = grown(look, at(60, 0, status=LOST, boot_id="boot-2"))
    assert grown(look, at(120, 7, boot_id="boot-2"))[0] == []


def test_parts_count_too_and_gauges_do_not() -> None:
    before = snapshot(gpu(0), parts={"rdma:mlx5_0/port1": {"rdma_link_downed": 1, "rdma_state": 4}})
    _, look = since(None, before)
    now = later(before, 60, parts={"rdma:mlx5_0/port1": {"rdma_link_downed": 3, "rdma_state": 4}})
    changes, _ = since(look, now)
    assert [(c.field, c.amount) for c in changes or () if c.entity.startswith("rdma")] == [("rdma_link_downed", 2.0)]


def test_a_look_survives_its_form_on_disk() -> None:
    _, look = grown(None, at(0, 5))
    _, look = grown(look, at(60, NoData(BLANK)))
    assert lk.from_json(lk.to_json(look)) == look


# --- exactly once, whatever happens -------------------------------------------------

_COUNTERS = [
    (LINK0, "nvlink_replay"),
    (f"{uuid(0)}/link1", "nvlink_replay"),
    (uuid(1), "nvlink_replay_total"),
    (uuid(1), "ecc_dbe_aggregate"),
]
_STEPS = st.one_of(
    st.tuples(st.just("grow"), st.integers(0, 3), st.integers(1, 5)),
    st.tuples(st.just("look"), st.sets(st.integers(0, 3)), st.booleans()),  # counters without data; is GPU 1 lost?
    st.tuples(st.just("read"), st.just(0), st.just(0)),  # a hook reads now ...
    st.tuples(st.just("fold"), st.just(0), st.just(0)),  # ... and is folded later, maybe after others
    st.tuples(st.just("by_hand"), st.just(0), st.just(0)),
    st.tuples(st.just("reset"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("reboot"), st.just(0), st.just(0)),
)


class Node:
    """Four counters with their true growth, and what the looks made of it."""

    def __init__(self) -> None:
        self.shown = [0.0] * 4
        self.grown = [0.0] * 4  # all growth there ever was
        self.sure = [0.0] * 4  # growth between two looks that had the counter, nothing being cleared in between
        self.pending: list[float | None] = [None] * 4  # growth since the counter was last seen; None: not seen, or cleared since
        self.counted = [0.0] * 4
        self.seconds = [0.0] * 4
        self.seen_ns: list[tuple[int, int] | None] = [None] * 4
        self.boot, self.now_s = 1, 0
        self.look: Look | None = None
        self.waiting: Snapshot | None = None

    def snapshot(self, blank: set[int] = frozenset(), lost: bool = False) -> Snapshot:  # type: ignore[assignment]
        values: list[Any] = [NoData(BLANK) if i in blank else n for i, n in enumerate(self.shown)]
        first = with_link(with_link(gpu(0, links=2), 0, nvlink_replay=values[0]), 1, nvlink_replay=values[1])
        first = first._replace(readings={})
        second = gpu(1, links=0, status=LOST if lost else "ok")._replace(
            readings={"nvlink_replay_total": values[2], "ecc_dbe_aggregate": values[3]}
        )
        return later(snapshot(first, second, boot=f"boot-{self.boot}"), self.now_s)

    def fold(self, now: Snapshot) -> None:
        changes, self.look = since(self.look, now)
        for change in changes or ():
            assert (change.amount or 0) >= 0 <= change.seconds
            if change.kind == ch.EXACT:
                i = _COUNTERS.index((change.entity, change.field))
                self.counted[i] += change.amount or 0.0
                self.seconds[i] += change.seconds

    def clear(self, counters: tuple[int, ...]) -> None:
        for i in counters:
            self.shown[i], self.pending[i] = 0.0, None

    def step(self, what: str, a: Any, b: Any) -> None:
        self.now_s += 10
        if what == "grow":
            self.shown[a] += b
            self.grown[a] += b
            pending = self.pending[a]
            self.pending[a] = None if pending is None else pending + b
        elif what == "look":
            self.fold(self.snapshot(a, b))
            for i in range(4):
                if i not in a and not (b and i >= 2):
                    self.sure[i] += self.pending[i] or 0.0
                    self.pending[i] = 0.0
        elif what == "read":
            self.waiting = self.snapshot()
        elif what == "fold" and self.waiting is not None:
            self.fold(self.waiting)
            self.waiting = None
        elif what == "by_hand":
            since(self.look, self.snapshot())
        elif what == "reset":
            self.clear((0, 1) if a == 0 else (2,))
        elif what == "reboot":
            self.clear((0, 1, 2))
            self.boot += 1
            self.waiting = None


@settings(max_examples=200, deadline=None)
@given(st.lists(_STEPS, max_size=40))
def test_each_increment_is_counted_once_at_most(steps: list[tuple[str, Any, Any]]) -> None:
    node = Node()
    for step in steps:
        node.step(*step)
        for i in range(4):
            assert node.counted[i] <= node.grown[i]
            assert node.seconds[i] <= node.now_s


@settings(max_examples=200, deadline=None)
@given(st.lists(_STEPS.filter(lambda s: s[0] in ("grow", "look", "by_hand")), max_size=40))
def test_without_resets_all_growth_between_looks_is_counted(steps: list[tuple[str, Any, Any]]) -> None:
    node = Node()
    for step in steps:
        node.step(*step)
    assert node.counted == node.sure


@settings(max_examples=200, deadline=None)
@given(st.lists(_STEPS, max_size=40))
def test_with_resets_what_is_counted_was_there_to_be_seen(steps: list[tuple[str, Any, Any]]) -> None:
    """A counter that is never cleared loses nothing to the resets and reboots around it, as long as it was seen at both ends."""
    node = Node()
    steps = [s for s in steps if s[0] not in ("read", "fold")]
    for what, a, b in steps:
        node.step(what, set() if what == "look" else a, False if what == "look" else b)
    assert node.counted[3] == node.sure[3]
