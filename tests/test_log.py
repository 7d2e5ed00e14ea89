from __future__ import annotations

import syslog

import pytest

from slurm_nvhc.proc import log


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    written: list[tuple[int, str]] = []
    monkeypatch.setattr(syslog, "syslog", lambda level, text: written.append((level, text)))
    return written


def test_one_warning_line(lines: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[object, ...]] = []
    monkeypatch.setattr(syslog, "openlog", lambda *args: opened.append(args))
    log.warning("NVL-STORM gpu3")
    assert lines == [(syslog.LOG_WARNING, "NVL-STORM gpu3")]
    assert opened == [("nvhc", syslog.LOG_PID, syslog.LOG_DAEMON)]


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
def test_control_characters_are_cleaned(lines: list[tuple[int, str]], text: str, line: str) -> None:
    log.warning(text)
    assert lines == [(syslog.LOG_WARNING, line)]


def test_long_lines_are_cut(lines: list[tuple[int, str]]) -> None:
    log.warning("x" * 100_000)
    assert len(lines[0][1]) == log.MAX_LENGTH
    assert lines[0][1].endswith("…")


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("no log")

    monkeypatch.setattr(syslog, "syslog", broken)
    log.warning("x")
    log.warning(None)  # type: ignore[arg-type]


def test_the_real_call_takes_anything() -> None:
    log.warning("nvhc test \x00 \udcff %s")
