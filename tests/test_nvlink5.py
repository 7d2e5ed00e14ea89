"""NVLink 5 Xids: severity, link, status and the end at fault, out of one line; and nothing out of garbage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.catalog import nvlink5
from slurm_nvhc.sense.kernel_log import Line, parse


def decode(
    number: int, unit: str, severity: str = "Fatal", status: int = 0, injected: int = 0, link: str = "05", reason: int = 4
) -> nvlink5.Decoded:
    words = f"0x{reason << 20 | 0x1C6:08x} 0x{status:08x} 0x00000000"
    found = nvlink5.decode(number, f"{unit}  {severity}   XC0 i{injected} Link {link} ({words})")
    assert found is not None
    return found


def test_everything_that_a_line_says() -> None:
    found = decode(149, "NETIR_LINK_EVT", reason=0x21)
    assert found == nvlink5.Decoded("NETIR_LINK_EVT", nvlink5.FATAL, 5, 0, False, nvlink5.RESET, "the far end was disabled", True)
    assert found.fatal
    assert nvlink5.tell(found) == "link 5, fatal, NETIR_LINK_EVT: the far end was disabled; look at the far end first"


@pytest.mark.parametrize(
    ("word", "severity", "fatal"),
    [("Fatal", "fatal", True), ("Link Fatal", "link fatal", True), ("Link-fatal", "link fatal", True), ("Non-fatal", "non-fatal", False),
     ("Nonfatal", "non-fatal", False), ("NON-FATAL", "non-fatal", False)],
)  # fmt: skip
def test_severity_in_each_spelling(word: str, severity: str, fatal: bool) -> None:
    found = decode(149, "NETIR_LINK_EVT", word)
    assert (found.severity, found.fatal) == (severity, fatal)


@pytest.mark.parametrize("reason", range(0x40))
def test_seven_reasons_blame_the_far_end_and_two_are_somebodys_wish(reason: int) -> None:
    found = decode(149, "NETIR_LINK_DOWN", reason=reason)
    assert found.peer is (reason == 0x15 or 0x20 <= reason <= 0x25)
    assert found.fatal is (reason not in (0x26, 0x28))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000", "the far end was reset"),
        ("0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000", "reset by software or a user"),
        ("0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000", "alignment lost"),
    ],
)
def test_lines_as_the_vendors_examples_show_them(words: str, reason: str) -> None:
    found = nvlink5.decode(149, f"NETIR_LINK_EVT Fatal XC0 i0 Link 08 ({words})")
    assert found is not None
    assert (found.link, found.reason, found.peer) == (8, reason, reason.startswith("the far end"))


def test_the_same_number_in_another_unit_blames_nobody() -> None:
    for number, unit in ((149, "NETIR_BER_EVT"), (149, "NETIR_MFDE"), (144, "SAW_MVB"), (150, "MSE_WATCHDOG")):
        found = decode(number, unit, reason=0x21)
        assert (found.reason, found.peer) == ("", False)


@pytest.mark.parametrize(
    ("number", "unit", "status", "action"),
    [
        (144, "SAW_MVB", 0x10, "reset"), (144, "SAW_MVB", 0x8, "ignore"), (144, "SAW_MVB", 0x12, "reset"), (144, "SAW_MVB", 0x40, ""),
        (145, "RLW_REMAP", 0x4, "the application"), (145, "RLW_REMAP", 0x80, "reset"), (145, "RLW_TAGSTATE", 0x100000, "reset"),
        (145, "RLW_RXPIPE", 0x1, "look at signal and cable"), (145, "RLW_CTRL", 0x1, ""),
        (146, "TLW_RX_PIPE0", 0x1, "ignore"), (146, "TLW_TX_PIPE1", 0x6, "reset"), (148, "NVLPW", 0x1, "ignore"),
        (149, "NETIR_BER_EVT", 0x2, "look at signal and cable"), (149, "NETIR_INT", 0, "reset"), (149, "NETIR_MFDE", 3, "ignore"),
        (149, "NETIR_MFDE", 7, "reset"), (149, "NETIR_MFDE", 2, ""), (150, "MSE_WATCHDOG", 0, "reset"), (147, "TREX", 1, ""),
    ],
)  # fmt: skip
def test_what_the_vendor_does_about_it(number: int, unit: str, status: int, action: str) -> None:
    found = decode(number, unit, status=status)
    assert found.action == action
    assert found.fatal is (action in ("reset", ""))  # the vendor's table outranks the word of the line


@pytest.mark.parametrize(("flag", "status"), [(1, 0), (0, 0x80000000), (0, 0x80000004)])
def test_an_injected_error_is_a_test_and_no_fault(flag: int, status: int) -> None:
    found = decode(149, "NETIR_LINK_EVT", status=status, injected=flag)
    assert found.injected
    assert not found.fatal
    assert "injected" in nvlink5.tell(found)


@pytest.mark.parametrize(
    "text",
    [
        "", "pid=4, name=train, some other words", "NETIR_LINK_EVT Fatal", "NETIR_LINK_EVT Severe XC0 i0 Link 05 (0x1 0x2)",
        "NETIR_LINK_EVT Fatal XC0 i0 Port 05", "NETIR_LINK_EVT XC0 i0 Link 05 Fatal",
    ],
)  # fmt: skip
def test_another_layout_says_nothing(text: str) -> None:
    assert nvlink5.decode(149, text) is None


@pytest.mark.parametrize(("rest", "status"), [("", None), (" (0x1)", None), (" (0x1 zz)", None), (" (0x1 0x)", None), (" (1 40)", 0x40)])
def test_words_that_are_missing_or_broken_leave_severity_and_link(rest: str, status: int | None) -> None:
    found = nvlink5.decode(149, f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 05{rest}")
    assert found is not None
    assert (found.fatal, found.link, found.status, found.reason) == (True, 5, status, "")


def test_a_link_that_is_not_known_is_none() -> None:
    assert decode(149, "NETIR_INT", link="-1").link is None


def test_only_the_seven_numbers_are_decoded() -> None:
    text = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 05 (0x1 0x2)"
    assert [n for n in range(300) if nvlink5.decode(n, text) is not None] == list(range(144, 151))


def test_the_kernel_log_gives_severity_and_link_and_a_process_can_not_forge_them() -> None:
    head = "NVRM: Xid (PCI:0000:3b:00): 149, "
    lines = (
        head + "NETIR_LINK_EVT  Fatal   XC0 i0 Link 05 (0x4505c6 0x0 0x0)",
        head + "pid=77, name=python, NETIR_BER_EVT  Non-fatal   XC0 i0 Link 17 (0x1 0x2)",
        head + "pid=77, name=Fatal XC0 i0 Li, words of a driver that nobody has seen yet",
    )
    found = parse([Line(n, n, text) for n, text in enumerate(lines)], "boot")
    assert [(e.fatal, e.link) for e in found] == [(True, 5), (False, 17), (False, None)]


_TOKENS = st.sampled_from(
    ["NETIR_LINK_EVT", "RLW_REMAP", "Fatal", "Non-fatal", "Link Fatal", "XC0", "i0", "i1", "Link", "05", "-1", "999", "(", ")", "0x", "0x1",
     "0x80000000", "ffffffffffffffffffffffff", "\u0661", "\x00", "²"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.integers(140, 155), st.one_of(st.text(max_size=200), st.lists(_TOKENS, max_size=14).map(" ".join)))
def test_garbage_is_none_or_a_whole_value(number: int, text: str) -> None:
    found = nvlink5.decode(number, text)
    if found is not None:
        assert number in nvlink5.XIDS
        assert found.severity in (nvlink5.FATAL, nvlink5.LINK_FATAL, nvlink5.NON_FATAL)
        assert found.link is None or 0 <= found.link <= 999
        assert found.status is None or found.status >= 0
        assert nvlink5.tell(found)
