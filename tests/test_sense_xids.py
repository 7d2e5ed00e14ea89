"""The Xid catalogue."""

from __future__ import annotations

from slurm_nvhc.catalog import xids


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
