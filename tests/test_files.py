from __future__ import annotations

import os
import stat
from typing import Any

import forked
import pytest

from slurm_nvhc.proc.files import make_private_dir, write_atomic


def read(path: Any) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("durable", [True, False])
def test_the_whole_text_with_the_mode_asked_for(tmp_path: Any, durable: bool) -> None:
    path = str(tmp_path / "f")
    for text, mode in (("one", 0o600), ("x" * 300_000, 0o644), ("", 0o600)):
        old = os.umask(0o077)
        try:
            write_atomic(path, text, mode, durable)
        finally:
            os.umask(old)
        assert read(path) == text
        assert stat.S_IMODE(os.stat(path).st_mode) == mode
    assert os.listdir(tmp_path) == ["f"]


def test_readers_see_the_old_or_the_new_text(tmp_path: Any) -> None:
    path = str(tmp_path / "f")
    write_atomic(path, "0" * 100_000)

    def writes() -> None:
        for i in range(200):
            write_atomic(path, str(i % 10) * 100_000, durable=False)

    pid = forked.start(writes)
    seen = set()
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        text = read(path)
        assert len(text) == 100_000
        assert len(set(text)) == 1
        seen.add(text[0])
    assert seen


@pytest.mark.parametrize("text", ["caf\u00e9 \udcff", "plain"])
def test_bytes_that_are_not_utf8_come_back_as_they_were(tmp_path: Any, text: str) -> None:
    path = str(tmp_path / "f")
    write_atomic(path, text)
    with open(path, "rb") as file:
        assert file.read().decode("utf-8", "surrogateescape") == text


def test_failures_are_oserrors_and_leave_nothing_behind(tmp_path: Any) -> None:
    path = str(tmp_path / "f")
    write_atomic(path, "old")
    with pytest.raises(OSError, match="no file can hold"):
        write_atomic(path, "half a pair \ud800")
    with pytest.raises(OSError, match="No such file"):
        write_atomic(str(tmp_path / "absent" / "f"), "x")
    os.mkdir(tmp_path / "d")
    with pytest.raises(OSError, match="directory"):
        write_atomic(str(tmp_path / "d"), "x")
    assert read(path) == "old"
    assert sorted(os.listdir(tmp_path)) == ["d", "f"]


def test_a_full_disk_keeps_the_old_text(tmp_path: Any) -> None:
    import resource

    path = str(tmp_path / "f")
    write_atomic(path, "old")

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(OSError, match="too large"):
            write_atomic(path, "x" * 2000)

    assert forked.wait([forked.start(work)]) == [0]
    assert read(path) == "old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_link_in_the_temporary_file_s_place_is_not_followed(tmp_path: Any) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    os.symlink(target, tmp_path / f".f.{os.getpid()}.new")
    with pytest.raises(OSError):  # noqa: PT011 - the text differs between systems
        write_atomic(str(tmp_path / "f"), "x")
    assert target.read_text() == "keep"


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_make_private_dir(tmp_path: Any, mode: int) -> None:
    path = str(tmp_path / "a" / "b" / "c")
    for _ in range(2):
        make_private_dir(path, mode)
        assert stat.S_IMODE(os.stat(path).st_mode) == mode
    os.chmod(path, 0o777)
    make_private_dir(path, mode)
    assert stat.S_IMODE(os.stat(path).st_mode) == mode


def test_make_private_dir_over_a_file(tmp_path: Any) -> None:
    (tmp_path / "f").write_text("x")
    for path in (tmp_path / "f", tmp_path / "f" / "g"):
        with pytest.raises(OSError, match=r"directory|exists"):
            make_private_dir(str(path))


def test_make_private_dir_by_many_at_once(tmp_path: Any) -> None:
    assert forked.at_once(20, lambda i: make_private_dir(str(tmp_path / "a" / "b"))) == [0] * 20
