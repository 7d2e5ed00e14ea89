"""The Xid and SXid catalogues."""

from __future__ import annotations

import pytest

from slurm_nvhc.catalog import sxids, xids
from slurm_nvhc.sense.kernel_log import Line, parse


def test_classes_that_the_default_policy_rests_on() -> None:
    assert xids.numbers(xids.FATAL) == (79,)
    assert xids.numbers(xids.GSP) == (119, 120)
    assert xids.numbers(xids.MEMORY_FATAL) == (48, 64, 95, 140)
    assert xids.numbers(xids.CONTAINED) == (94,)
    assert xids.numbers(xids.NVLINK) == (74,)
    assert xids.numbers(xids.MEMORY_INFO) == (63, 92)
    assert xids.numbers(xids.APP) == (13, 31, 43, 45)


def test_numbers_are_unique_and_the_catalogue_is_whole() -> None:
    assert len(xids.BY_NUMBER) == len(xids.ALL)
    expected = {8, 11, 13, 25, 31, 32, 37, 38, 54, 56, 57, 58, *range(39, 42), 43, 44, 45, 46, 48, *range(60, 65), *range(66, 81), 85,
                92, 93, 94, 95, 106, 109, 110, *range(119, 138), 140, 141, 143, *range(144, 152), *range(154, 177), 185}
    assert set(xids.BY_NUMBER) == expected


def test_values_are_of_the_known_words() -> None:
    for xid in xids.ALL:
        assert xid.app_fault in (xids.YES, xids.OFTEN, xids.MAYBE, xids.NO, xids.SYMPTOM), xid
        assert xid.meaning, xid
        assert xid.klass, xid
        assert xid.action == xid.action.upper(), xid


def test_an_unknown_number_has_a_meaning_to_show() -> None:
    assert xids.meaning(79) == "the GPU has fallen off the bus"
    assert "catalogue" in xids.meaning(99_999)


def test_what_the_sources_say_beside_the_vendors_first_action() -> None:
    by = xids.BY_NUMBER
    assert (by[119].action, by[119].then, by[119].health, by[119].checker) == ("RESET_GPU", "INVESTIGATE_SW", "fail", "reboot+inspect")
    assert (by[45].then, by[45].health, by[45].checker) == ("RESTART_FM", "", "ignore")
    assert {x.number for x in xids.ALL if x.health == "fail"} == {48, 64, 74, 79, 95, 119, 120, 140}
    assert {x.number for x in xids.ALL if x.disputed} == {32, 38, 44, 60, 63, 68, 69, 94, 121}


def test_every_number_of_the_tables_is_in_the_catalogue() -> None:
    for table in (xids._THEN, xids._HEALTH, xids._CHECKER):
        numbers = [n for row in table.values() for n in row]
        assert len(numbers) == len(set(numbers))
        assert set(numbers) <= set(xids.BY_NUMBER)


def test_sxid_classes() -> None:
    of = {klass: {x.number for x in sxids.ALL if x.klass == klass} for klass in (sxids.NON_FATAL, sxids.FATAL, sxids.ALWAYS_FATAL)}
    assert [len(of[k]) for k in of] == [26, 45, 21]
    assert len(sxids.BY_NUMBER) == len(sxids.ALL) == 92
    assert {20001, 24003, 19084} <= of[sxids.NON_FATAL]
    assert {20034, 12032, 24007} <= of[sxids.FATAL]
    assert {10003, 12020, *range(23001, 23018)} <= of[sxids.ALWAYS_FATAL]


@pytest.mark.parametrize(("number", "fatal"), [(20034, True), (23001, True), (20001, False), (11004, False), (99_999, False)])
def test_the_table_speaks_for_lines_without_a_word(number: int, fatal: bool) -> None:
    assert sxids.is_fatal(number) is fatal
    assert sxids.meaning(number)
    head = f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {number}, "
    lines = (head + rest for rest in ("Link 07 x", "Fatal, Link 07 x", "Non-fatal, Link 07 x"))
    silent, said, other = parse([Line(n, n, line) for n, line in enumerate(lines)], "b")
    assert (silent.fatal, said.fatal, other.fatal) == (fatal, True, False)
    assert silent.link == 7
