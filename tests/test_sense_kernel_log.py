"""Kernel log lines to events: every form, and hostile ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.sense.kernel_log import Line, parse

BOOT = "b00t"
S = 1_000_000_000


def events(*texts: str, step_ns: int = 1000):
    return parse([Line(10 + i, 5 * S + i * step_ns, t) for i, t in enumerate(texts)], BOOT)


def one(*texts: str):
    found = events(*texts)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("line", "code", "pci", "pid", "process"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=123, name=python, GPU has fallen off the bus.", 79, "0000:3b:00.0", 123, "python"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>, Ch 0000001b", 31, "0000:3b:00.0", 0, ""),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=<unknown>, name=, Ch 0000001b", 31, "0000:3b:00.0", 0, ""),
        ("NVRM: Xid (PCI:0000:3B:00): 13, pid=77, Graphics Exception", 13, "0000:3b:00.0", 77, ""),
        ("NVRM: Xid (PCI:0000:3b:00): 62, 0a23 1b 0 0", 62, "0000:3b:00.0", 0, ""),
        ("NVRM: Xid (PCI:0000:3b:00): 48", 48, "0000:3b:00.0", 0, ""),
        ("NVRM: Xid (0000:81:00): 8, Channel 00000012", 8, "0000:81:00.0", 0, ""),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 94, pid=9, name=a.out, Contained: SM", 94, "0000:3b:00.0", 9, "a.out"),
        ("NVRM: Xid (PCI:0001:3b:00): 999, pid=5, name=ray::W[0] x=y, hm", 999, "0001:3b:00.0", 5, "ray::W[0] x=y"),
        ("[  123.456789] NVRM: Xid (PCI:0000:3b:00): 63, pid=5, name=\x1b[31mred, Row Remapper", 63, "0000:3b:00.0", 5, "[31mred"),
        ("<3>[12.5] NVRM: Xid (PCI:00000000:3b:00.0): 95, Uncontained: L2. RST: Yes, D-RST: No", 95, "0000:3b:00.0", 0, ""),
        ("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 05 (0x1 0x2)", 149, "0000:3b:00.0", 0, ""),
    ],
)
def test_each_form_of_an_xid_line(line: str, code: int, pci: str, pid: int, process: str) -> None:
    event = one(line)
    assert (event.kind, event.code, event.pci, event.pid, event.process) == ("xid", code, pci, pid, process)
    assert (event.ident, event.at_ns, event.source) == ("b00t:10", 5 * S, "kernel")


def test_a_switch_error_is_one_event_with_severity_and_link() -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, "
    event = one(head + "Fatal, Link 30 LTSSM Fault Up", head + "Severity 1 Engine instance 30 Sub-engine instance 00",
                head + "Data {0x00000004, 0x00000004, 0x00000000}")
    assert (event.kind, event.code, event.pci, event.fatal, event.link) == ("sxid", 20034, "0000:c1:00.0", True, 30)
    event = one("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 07 egress")
    assert (event.fatal, event.link) == (False, 7)


def test_fallen_off_the_bus_without_an_xid() -> None:
    event = one("NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.")
    assert (event.kind, event.code, event.pci) == ("off_bus", 79, "0000:5e:00.0")


THREE = (
    "NVRM: The NVIDIA GPU 0000:{}:00.0 (PCI ID: 10de:2330)",
    "NVRM: installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def test_the_message_over_several_lines_at_driver_load() -> None:
    event = one(*(line.format("5e") for line in THREE))
    assert (event.kind, event.code, event.pci) == ("off_bus", 79, "0000:5e:00.0")
    assert one("\\x0a".join(line.format("5e") for line in THREE)).pci == "0000:5e:00.0"
    assert one("NVRM: GPU has fallen off the bus", "NVRM: GPU 0000:5e:00.0 will be removed").pci == "0000:5e:00.0"


def test_two_gpus_that_fall_one_after_the_other_keep_their_addresses() -> None:
    found = events(*(line.format(bus) for bus in ("5e", "6f") for line in THREE))
    assert [e.pci for e in found] == ["0000:5e:00.0", "0000:6f:00.0"]
    after = ("NVRM: fallen off the bus", "NVRM: GPU 0000:{}:00.0 will be removed")
    found = events(*(line.format(bus) for bus in ("5e", "6f") for line in after))
    assert [e.pci for e in found] == ["0000:5e:00.0", "0000:6f:00.0"]


def test_another_xids_address_is_not_taken() -> None:
    found = events("NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, x", "NVRM: GPU has fallen off the bus.")
    assert [(e.code, e.pci) for e in found] == [(31, "0000:3b:00.0"), (79, "")]


XID79 = "NVRM: Xid (PCI:0000:5e:00): 79, pid=4, name=train, GPU has fallen off the bus."
COMPANION = "NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus."


@pytest.mark.parametrize("order", [(XID79, COMPANION), (COMPANION, XID79), (XID79, "NVRM: GPU has fallen off the bus.")])
def test_xid_79_and_its_companion_are_one_event(order: tuple[str, str]) -> None:
    event = one(*order)
    assert (event.kind, event.pci, event.process, event.ident) == ("xid", "0000:5e:00.0", "train", "b00t:10")


def test_a_second_fall_later_or_elsewhere_is_its_own() -> None:
    assert len(events(XID79, COMPANION, step_ns=11 * S)) == 2
    assert len(events(XID79, COMPANION.replace("5e", "6f"))) == 2


def test_repeated_application_errors_are_not_folded() -> None:
    assert len(events(*["NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a, x"] * 3)) == 3


def test_the_uuid_line_names_the_gpu_that_is_gone() -> None:
    event = one("NVRM: GPU at PCI:0000:5e:00: GPU-11111111-2222-3333-4444-555555555555", XID79)
    assert event.uuid == "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    "line",
    [
        "audit: exe=NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, y",
        "EXT4-fs (GPU 0000:5e:00.0 has fallen off the bus): mounted",
        "usb 1-1: Product: nvidia GPU has fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00): 99999999999999999999, x",
        "NVRM: loading NVIDIA UNIX Open Kernel Module",
        "",
        "NVRM: Xid (",
    ],
)
def test_lines_that_are_no_events(line: str) -> None:
    assert events(line) == ()


def test_text_is_cleaned_and_bounded() -> None:
    event = one("NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a\x1b[2Jb, x\ty\u202e \ud800" + "z" * 100_000)
    assert len(event.text) == 300
    assert event.text.isprintable()
    assert event.process.isprintable()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=80),
            st.text(max_size=60).map(lambda t: "NVRM: Xid (PCI:0000:3b:00): " + t),
            st.text(max_size=60).map(lambda t: "NVRM: fallen off the bus " + t),
            st.text(max_size=60).map(lambda t: "nvidia-nvswitch0: SXid (PCI:0000:3b:00.0): 1" + t),
        ),
        max_size=6,
    )
)
def test_no_text_makes_it_fail(texts: list[str]) -> None:
    for event in events(*texts):
        assert event.text.isprintable()
        assert len(event.text) <= 300
        assert event.ident
        assert event.pci == "" or len(event.pci) == 12
