"""Kernel and engine events: every occurrence once."""

from __future__ import annotations

import pytest

from slurm_nvhc.model.snapshot import Event
from slurm_nvhc.sense.merge import merge

S = 1_000_000_000
PCI, UUID = "0000:3b:00.0", "GPU-a"


def kernel(code: int, at_s: float, ident: str, pci: str = PCI, kind: str = "xid") -> Event:
    return Event(kind, code, int(at_s * S), pci, "text", "kernel", ident)


def engine(code: int, at_s: float, uuid: str = UUID) -> Event:
    return Event("xid", code, int(at_s * S), PCI if uuid == UUID else "0000:4b:00.0", "", "engine", f"e:{uuid}:{code}:{at_s}", uuid=uuid)


def test_the_uuid_comes_from_the_address() -> None:
    (event,) = merge([kernel(31, 1, "b:1")], [], [], {PCI: UUID})
    assert event.uuid == UUID
    (event,) = merge([kernel(31, 1, "b:1", "0000:ff:00.0")], [], [], {PCI: UUID})
    assert event.uuid == ""
    (event,) = merge([kernel(20034, 1, "b:1", kind="sxid")], [], [], {PCI: UUID})
    assert event.uuid == ""  # a switch is no GPU


def test_the_engines_echo_is_dropped_and_the_kernels_kept() -> None:
    found = merge([kernel(79, 10, "b:1")], [], [engine(79, 69.9)], {PCI: UUID})
    assert [e.source for e in found] == ["kernel"]
    # the GPU that fell is no longer listed: the address still tells
    assert len(merge([kernel(79, 10, "b:1")], [], [engine(79, 11)], {})) == 1
    off_bus = kernel(79, 10, "b:1", kind="off_bus")
    assert len(merge([off_bus], [], [engine(79, 11)], {PCI: UUID})) == 1


def test_another_gpu_code_or_time_is_another_event() -> None:
    found = merge([kernel(79, 10, "b:1")], [], [engine(79, 10, "GPU-b"), engine(31, 10), engine(79, 70.1)], {PCI: UUID})
    assert [(e.code, e.source) for e in found] == [(79, "kernel"), (79, "engine"), (31, "engine"), (79, "engine")]


@pytest.mark.parametrize("drift", [-45, -30, 0, 30, 45])
def test_two_occurrences_that_both_sources_tell_of_stay_two(drift: float) -> None:
    """The kernel's clock drifts; pairs are made one to one and in order."""
    found = merge([kernel(31, 100, "b:1"), kernel(31, 110, "b:2")], [], [engine(31, 100 + drift), engine(31, 110 + drift)], {PCI: UUID})
    assert [(e.source, e.ident) for e in found] == [("kernel", "b:1"), ("kernel", "b:2")]


def test_a_second_occurrence_that_only_the_engine_tells_of_is_kept() -> None:
    found = merge([kernel(31, 100, "b:1")], [], [engine(31, 101), engine(31, 120)], {PCI: UUID})
    assert [(e.source, e.at_ns // S) for e in found] == [("kernel", 100), ("engine", 120)]
    # also when the first was reported by an earlier read, of which the engine still knows
    found = merge([], [kernel(31, 100, "b:1")], [engine(31, 101), engine(31, 120)], {PCI: UUID}, engine_from_ns=110 * S)
    assert [(e.source, e.at_ns // S) for e in found] == [("engine", 120)]


def test_the_echo_of_an_event_that_an_earlier_read_reported() -> None:
    assert merge([], [kernel(31, 10, "b:1")], [engine(31, 11)], {PCI: UUID}) == ()
    assert merge([], [kernel(31, 10, "b:1")], [engine(31, 41)], {PCI: UUID}, engine_from_ns=40 * S) == ()


def test_engine_events_from_before_the_last_read_are_not_told_again() -> None:
    assert merge([], [], [engine(31, 10)], {PCI: UUID}, engine_from_ns=11 * S) == ()
    assert len(merge([], [], [engine(31, 10), engine(31, 10)], {PCI: UUID}, engine_from_ns=9 * S)) == 1


def test_sorted_by_time() -> None:
    found = merge([kernel(31, 5, "b:2"), kernel(13, 1, "b:1")], [], [engine(43, 3, "GPU-b")], {})
    assert [e.code for e in found] == [13, 43, 31]
