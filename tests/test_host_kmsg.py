"""/dev/kmsg: records, gaps, fragments, times, and not being allowed to read it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slurm_nvhc.sense import kernel_log
from slurm_nvhc.sense.host import driver, kmsg
from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.reader.backend import Clock, PartFailed

S = 1_000_000_000
CLOCK = Clock(1_800_000_000 * S, 5000 * S, "boot")
BOOTED = CLOCK.wall_ns - CLOCK.boot_ns


def test_a_record_has_its_number_its_time_and_its_text() -> None:
    xid = b"4,1007,2500000,-;NVRM: Xid (PCI:0000:4b:00): 79, pid=1, name=a, x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:4b:00.0\n"
    raw = xid + b"6,1008,3000001,-;next\n"
    first, second = kmsg.parse(raw, CLOCK)
    assert first == Line(1007, BOOTED + 2_500_000_000, "NVRM: Xid (PCI:0000:4b:00): 79, pid=1, name=a, x")
    assert (second.seq, second.wall_ns) == (1008, BOOTED + 3_000_001_000)


def test_a_line_in_pieces_is_one_line() -> None:
    new = b"4,1,1,c;NVRM: Xid (PCI:0000:\n4,2,1,c;4b:00): 31, pid=5, name=a, x\n4,3,2,-;other\n"
    old = b"4,1,1,c;NVRM: Xid (PCI:0000:\n4,2,1,+;4b:00): 31, pid=5, name=a, x\n4,3,2,-;other\n"
    for raw in (new, old):
        lines = kmsg.parse(raw, CLOCK)
        assert [line.seq for line in lines] == [1, 3]
        (event,) = kernel_log.parse(lines, "boot")
        assert (event.code, event.pci, event.ident) == (31, "0000:4b:00.0", "boot:1")


def test_two_lines_of_which_one_is_flagged_stay_two() -> None:
    assert [line.text for line in kmsg.parse(b"4,1,1,-;a\n4,2,1,c;b\n4,3,1,-;c\n", CLOCK)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\n\n", b"no record\n", b";x\n",
        b"4;x\n", b"4,x,1,-;y\n", b"4,1,\xc2\xb2,-;y\n", b" only=device\n", b" 4,1,1,-;a device line\n", b"\xff\xfe",
    ],
)
def test_what_is_no_record_is_passed_over(raw: bytes) -> None:
    assert kmsg.parse(raw, CLOCK) == []


def test_bytes_that_are_no_text_do_not_stop_it() -> None:
    (line,) = kmsg.parse(b"4,1,1,-;name=\xff\xfe, x\n", CLOCK)
    assert "name=" in line.text


class Kernel:
    """What reads of /dev/kmsg give, one after the other; an OSError is raised."""

    def __init__(self, *answers: bytes | OSError) -> None:
        self.answers = list(answers)

    def __call__(self) -> bytes:
        answer = self.answers.pop(0) if self.answers else BlockingIOError(errno.EAGAIN, "")
        if isinstance(answer, OSError):
            raise answer
        return answer


def gap() -> OSError:
    return OSError(errno.EPIPE, "Broken pipe")


def test_it_reads_to_the_end_and_over_a_gap() -> None:
    raw = kmsg.drain(Kernel(b"4,1,1,-;a\n", gap(), gap(), b"4,9,1,-;b\n"))
    assert [line.seq for line in kmsg.parse(raw, CLOCK)] == [1, 9]
    assert kmsg.drain(Kernel(b"4,1,1,-;a\n", b"", b"never reached")) == b"4,1,1,-;a\n"


def test_a_log_that_never_ends_and_one_that_only_overflows_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg, "MAX_RECORDS", 50)
    assert kmsg.drain(lambda: b"4,1,1,-;a\n").count(b"\n") == 50

    def only_gaps() -> bytes:
        raise gap()

    with pytest.raises(OSError, match="Broken pipe"):
        kmsg.drain(only_gaps)


def test_a_file_below_the_root_is_read(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_bytes(b"4,1,1,-;a\n4,2,2,-;b\n" * 3000)  # more than one buffer
    assert len(kmsg.read(CLOCK, str(tmp_path))) == 6000


def test_a_log_that_can_not_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(PartFailed) as failed:
        kmsg.read(CLOCK, str(tmp_path))
    assert (failed.value.code, failed.value.part) == ("MON-KERNEL-LOG", "kernel_log")
    assert os.strerror(errno.ENOENT) in failed.value.detail


def test_not_permitted_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(kmsg.os, "open", denied)
    with pytest.raises(PartFailed, match="Operation not permitted"):
        kmsg.read(CLOCK)


def test_the_last_load_of_the_driver() -> None:
    log = [
        Line(1, 10, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15"),
        Line(2, 20, "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver"),
        Line(3, 30, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  575.57.08"),
        Line(4, 40, "audit: NVRM: loading NVIDIA UNIX x86_64 Kernel Module"),
    ]
    assert driver.loaded_ns(log) == 30
    assert driver.loaded_ns(log[:2]) == 10
    assert driver.loaded_ns(log[1:2]) is None
