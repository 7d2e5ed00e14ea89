"""The supervisor: runs a hook as slurmd does and finds what it leaves behind."""

from __future__ import annotations

import os

from slurm_nvhc.scenario import process

SH = "/bin/sh"


def sh(script: str, **more: object) -> process.Ended:
    return process.run([SH, "-c", script], {"A": "1"}, more.pop("cwd", "/"), **more)  # type: ignore[arg-type]


def test_exit_status_output_and_environment() -> None:
    ended = sh("echo out; echo err >&2; env; exit 3")
    assert ended.status == 3
    assert {"out", "err", "A=1"} <= set(ended.out.splitlines())
    assert "HOME" not in ended.out
    assert ended.left == ()


def test_signal_is_negative() -> None:
    assert sh("kill -9 $$").status == -9


def test_a_background_process_is_left_behind_even_in_a_session_of_its_own() -> None:
    ended = sh("setsid sleep 321 >/dev/null 2>&1 </dev/null & exit 0")
    assert ended.status == 0
    assert [name for name in ended.left if "sleep 321" in name]


def test_left_processes_are_killed() -> None:
    ended = sh("sleep 322 >/dev/null 2>&1 & echo $!; exit 0")
    pid = ended.out.split()[0]
    assert ended.left
    assert not os.path.exists(f"/proc/{pid}")


def test_a_held_pipe_makes_slurmd_wait() -> None:
    ended = sh("sleep 0.3 & exit 0")
    assert ended.status == 0
    assert ended.seconds >= 0.3


def test_timeout_kills() -> None:
    ended = sh("trap '' TERM; sleep 60 & wait; wait", timeout_s=0.3)
    assert ended.timed_out
    assert ended.status in (None, -9)


def test_terminate_after_sends_sigterm() -> None:
    ended = sh("trap 'kill $!; exit 5' TERM; sleep 60 >/dev/null 2>&1 & wait", terminate_after=0.1)
    assert ended.status == 5
    assert not ended.timed_out


def test_cwd_gone_and_stdin_closed() -> None:
    ended = sh("/bin/pwd || echo no-cwd; [ -e /proc/self/fd/0 ] || echo no-stdin", cwd="deleted", stdin="closed")
    assert "no-cwd" in ended.out


def test_stdin_closed() -> None:
    assert "closed" in process.run([SH, "-c", "[ -e /proc/$$/fd/0 ] || echo closed"], {}, "/", stdin="closed").out
    assert "closed" not in process.run([SH, "-c", "[ -e /proc/$$/fd/0 ] || echo closed"], {}, "/").out


def test_a_hook_that_can_not_be_run() -> None:
    ended = process.run(["/nonexistent/hook"], {}, "/")
    assert ended.status == 126
    assert "can not run" in ended.out
