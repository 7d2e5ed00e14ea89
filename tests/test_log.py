"""proc/log.py: one clean line as one datagram, which is dropped rather than waited for."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from typing import Iterator

import pytest

from slurm_nvhc.proc import log


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What stands for the log daemon. A short path: pytest's own may be longer than a socket's name can be."""
    folder = tempfile.mkdtemp()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as bound:
        bound.bind(f"{folder}/log")
        monkeypatch.setattr(log, "SOCKET", f"{folder}/log")
        yield bound
    shutil.rmtree(folder)


def received(receiver: socket.socket) -> str:
    """The text of the next line; what comes before it must be right."""
    head, text = receiver.recv(65536).decode().split(": ", 1)
    assert head == f"<28>nvhc[{os.getpid()}]"  # 28: facility daemon, severity warning
    return text


def test_one_warning_line(receiver: socket.socket) -> None:
    log.warning("NVL-STORM gpu3: link11")
    assert received(receiver) == "NVL-STORM gpu3: link11"
    with pytest.raises(BlockingIOError):
        receiver.recv(1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb\r\n\tc\x00\x1b[31m", "a b c [31m"),
        ("user \udcff \ud800", "user ? ?"),
        ("caf\u00e9 \u202e x\u2028y", "caf\u00e9 x y"),
        ("%s %n", "%s %n"),
        ("", ""),
    ],
)
def test_control_characters_are_cleaned(receiver: socket.socket, text: str, line: str) -> None:
    log.warning(text)
    assert received(receiver) == line


def test_long_lines_are_cut(receiver: socket.socket) -> None:
    log.warning("\u20ac" * 100_000)
    text = received(receiver)
    assert len(text) == log.MAX_LENGTH
    assert text.endswith("…")


def test_a_log_daemon_that_hangs_is_not_waited_for(receiver: socket.socket) -> None:
    class Waited(BaseException):
        pass

    def alarm(*_: object) -> None:
        raise Waited

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as filler, contextlib.suppress(BlockingIOError):
        while True:  # nobody reads: the daemon's queue fills up
            filler.sendto(b"x", log.SOCKET)
    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 10)
    try:
        log.warning("dropped")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    waiting = []
    with contextlib.suppress(BlockingIOError):
        while True:
            waiting.append(receiver.recv(65536))
    assert set(waiting) == {b"x"}


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    log.warning(None)  # type: ignore[arg-type]
    for nowhere in ("/nonexistent/log", "/dev/null", "/" + "x" * 200):
        monkeypatch.setattr(log, "SOCKET", nowhere)
        log.warning("x")


def test_the_real_place_takes_anything() -> None:
    log.warning("nvhc test \x00 \udcff %s")
