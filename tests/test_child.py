"""Child processes: bounded in time, clean, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Callable

import forked
import patient
import pytest

from slurm_nvhc.proc import child

SH = "/bin/sh"
LONG_S = patient.PROCESS_S


def sh(script: str, timeout_s: float = LONG_S, **more: Any) -> child.Result:
    return child.run([SH, "-c", script], timeout_s, **more)


def python(script: str, timeout_s: float = LONG_S, **more: Any) -> child.Result:
    return child.run([sys.executable, "-I", "-c", script], timeout_s, **more)


def until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + patient.PROCESS_S
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.fixture(autouse=True)
def no_leak() -> Any:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert child._running == set()


def test_output_and_exit_status() -> None:
    assert sh("echo out; echo err >&2; exit 3") == child.Result(3, "out\n", "err\n", "")
    assert sh("kill -9 $$").rc == -9
    assert sh("exit 0").problem == ""


def test_the_environment_is_clean() -> None:
    os.environ["NVHC_TEST_SECRET"] = "x"
    try:
        result = child.run(["/usr/bin/env"], LONG_S, environment={"A": "1", "LC_ALL": "C"})
    finally:
        del os.environ["NVHC_TEST_SECRET"]
    assert sorted(result.out.split()) == ["A=1", "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


def test_standard_input_is_empty() -> None:
    assert sh("cat; echo end").out == "end\n"


def test_it_leads_a_session_of_its_own() -> None:
    result = python("import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))")
    assert result.out == "True\n"


def test_signals_are_as_a_fresh_process_has_them() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    try:
        # Not by a shell: dash clears the mask that it inherited.
        result = child.run(["/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"], LONG_S)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})
    blocked, ignored = (int(line.split()[1], 16) for line in result.out.splitlines())
    assert blocked == 0
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


@pytest.mark.parametrize("argv", [["/no/such/file"], ["/etc/passwd"], ["/"], ["bad\0name"], [SH, "a\0b"], []])
def test_what_can_not_start_is_a_problem_in_words(argv: list[str]) -> None:
    result = child.run(argv, LONG_S, request="x")
    assert (result.rc, result.out, result.err, result.reply) == (None, "", "", "")
    assert result.problem.startswith("can not start ")


def test_no_descriptors_left_is_a_problem_in_words() -> None:
    def work() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, 4096))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            os.close(held.pop())
        result = sh("echo x", request="x")
        assert result.problem.startswith("can not start /bin/sh: Too many open files"), result

    assert forked.wait([forked.start(work)]) == [0]


def test_at_the_deadline_the_whole_group_is_killed_and_what_was_said_is_kept() -> None:
    result = sh("echo begun; sleep 1000 & echo $!; echo $$; wait", 2.0)
    begun, grandchild, leader = result.out.split()
    assert (result.rc, result.problem, begun) == (None, "timeout", "begun")
    assert until(lambda: gone(int(grandchild)) and gone(int(leader)))


@pytest.mark.parametrize("timeout_s", [0.0, -5.0])
def test_no_time_at_all(timeout_s: float) -> None:
    assert sh("sleep 1000", timeout_s).problem == "timeout"


def test_signals_do_not_save_a_child_from_its_deadline() -> None:
    assert python("import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(1000)", 0.5).problem == "timeout"


def test_a_child_that_closes_its_pipes_and_stays_is_waited_for() -> None:
    assert python("import os, time\nos.close(1); os.close(2); time.sleep(0.2); os._exit(7)").rc == 7
    assert sh("exec >&- 2>&-; sleep 1000", 0.3).problem == "timeout"


def test_grandchildren_left_in_the_group_are_killed_and_not_waited_for() -> None:
    result = sh("sleep 1000 & echo $!; exit 5", LONG_S)
    assert (result.rc, result.problem) == (5, "")
    assert until(lambda: gone(int(result.out)))


def test_a_daemon_that_holds_the_pipes_is_not_waited_for() -> None:
    result = sh("setsid sleep 1000 & echo $!; exit 5", LONG_S)
    assert (result.rc, result.problem) == (5, "")
    os.kill(int(result.out), signal.SIGKILL)


def test_the_last_words_before_the_end_arrive() -> None:
    result = sh("setsid sleep 1000 & echo $! >&2; head -c 60000 /dev/zero | tr '\\0' x; exit 0")
    os.kill(int(result.err), signal.SIGKILL)
    assert len(result.out) == 60000


def test_a_flood_of_output_is_bounded_and_does_not_block() -> None:
    result = sh("head -c 20000000 /dev/zero; echo end >&2")
    assert (result.rc, result.err) == (0, "end\n")
    assert child.MAX_OUTPUT <= len(result.out) <= child.MAX_OUTPUT + 65536


def test_output_that_is_not_utf8() -> None:
    assert sh(r"printf 'a\377b'").out == "a\ufffdb"


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_request_and_reply(size: int) -> None:
    script = "import os\nn = 0\nwhile part := os.read(3, 65536): n += len(part)\nos.write(4, b'got %d' % n)"
    assert python(script, request="x" * size).reply == f"got {size}"


def test_a_large_reply_while_the_request_is_still_sent() -> None:
    script = "import os\nwhile part := os.read(3, 65536): os.write(4, part)"
    assert python(script, request="y" * 1_000_000).reply == "y" * 1_000_000


def test_a_child_that_does_not_read_its_request() -> None:
    assert sh("exit 4", request="x" * 5_000_000).rc == 4
    assert sh("exec 3<&-; sleep 0.1; exit 4", request="x" * 5_000_000).rc == 4


def test_a_request_with_lone_surrogates() -> None:
    assert python("import os\nos.write(4, os.read(3, 99))", request="a\udcff\ud800b").reply == "a??b"


@pytest.mark.parametrize("with_request", [False, True])
def test_no_other_descriptor_reaches_the_child(with_request: bool) -> None:
    reading, writing = os.pipe()
    high = os.dup2(writing, 77, inheritable=True)
    try:
        result = child.run(["/bin/ls", "/proc/self/fd"], LONG_S, request="x" if with_request else None)
    finally:
        for fd in (reading, writing, high):
            os.close(fd)
    listing = {"3"} if not with_request else {"5", "6", "7", "8", "9"}  # ls's own
    assert set(result.out.split()) - listing == {"0", "1", "2"} | ({"3", "4"} if with_request else set())


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_closed_standard_descriptors(closed: tuple[int, ...]) -> None:
    reading, writing = os.pipe()

    def work() -> None:
        for fd in closed:
            os.close(fd)
        result = sh("echo out; echo err >&2; cat <&3 >&4", request="ask")
        os.write(writing, repr(tuple(result)).encode())

    pid = forked.start(work)
    os.close(writing)
    said = os.read(reading, 9999).decode()
    os.close(reading)
    assert forked.wait([pid]) == [0]
    assert said == repr((0, "out\n", "err\n", "", "ask"))


def test_an_ignored_sigchld_does_not_lose_the_status() -> None:
    def work() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        assert sh("exit 3").rc == 3

    assert forked.wait([forked.start(work)]) == [0]


def test_a_status_that_somebody_else_took_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.waitpid

    def taken(pid: int, options: int) -> tuple[int, int]:
        real(pid, 0)
        raise ChildProcessError

    monkeypatch.setattr(os, "waitpid", taken)
    result = sh("exit 3")
    assert (result.rc, result.problem) == (None, "its exit status was lost")


def test_a_hook_told_to_stop_leaves_no_child() -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    old = signal.signal(signal.SIGALRM, stop)
    seen: list[int] = []

    def watch(pid: int, *_: object) -> bool:
        seen.append(pid)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return False

    real = child._has_ended
    child._has_ended = watch
    try:
        with pytest.raises(Stop):
            sh("sleep 1000")
    finally:
        child._has_ended = real
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert until(lambda: gone(seen[0]))
    os.waitpid(seen[0], 0)


def test_kill_all_ends_every_running_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object) -> None:
        child.kill_all()

    old = signal.signal(signal.SIGALRM, told)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        assert sh("sleep 1000").rc == -9
    finally:
        signal.signal(signal.SIGALRM, old)


def test_the_corpse_of_one_that_can_not_die_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(child, "kill_group", killed.append)
    result = sh("sleep 1000", 0.1)
    assert result.problem == "timeout"
    assert not gone(killed[0])
    os.killpg(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)
