"""Run one child process to its end or to its deadline. Nothing else starts processes on a node.

The child gets its own session (so its whole group can be killed), a clean
environment, /dev/null or a given text as standard input, and descriptors of its own: slurmd
waits for end-of-file on a hook's pipe, so no child may hold that. At the
deadline the group is killed and its corpse is waited for at most 200 ms: a
process in an uninterruptible driver call can not be killed, and must not make
the hook wait.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from typing import Final, Mapping, NamedTuple, Optional, Sequence

CORPSE_WAIT_S: Final = 0.2
MAX_OUTPUT: Final = 4 * 1024 * 1024
_LOW: Final = 10  # descriptors below are left for the child's own (0 to 4)
_LOOK_S: Final = 0.05  # how soon the end of a child is noticed whose pipes somebody else holds
_LOOK_CLOSED_S: Final = 0.001  # at first, once its pipes are closed: a process lets go of them just before it ends

CLEAN_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}

_running: set[int] = set()  # process groups to kill when the hook itself is told to stop


class Result(NamedTuple):
    """rc: exit status, -N for a signal, None when it was killed at the deadline, never started or its status was lost.

    problem: '' exactly when rc is known; "timeout", or why it could not start.
    reply:   what it wrote on the extra descriptor, when one was asked for.
    """

    rc: Optional[int]
    out: str
    err: str
    problem: str
    reply: str = ""


def last_line(text: str) -> str:
    """The last line of a program's output that says something; '' when none does."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def run(
    argv: Sequence[str],
    timeout_s: float,
    environment: Optional[Mapping[str, str]] = None,
    request: Optional[str] = None,
    stdin: Optional[str] = None,
) -> Result:
    """Run argv (absolute path first) for at most timeout_s seconds. Never raises for the child's sake.

    request: when given, the child also gets descriptor 3 with this text to read and
    descriptor 4 to write its reply on.
    stdin:   when given, the text on its standard input. Not both.
    """
    env = dict(CLEAN_ENVIRONMENT)
    env.update(environment or {})
    ours: set[int] = set()  # every descriptor made here that is still open
    try:
        try:
            pid, pipes, req_w = _start(argv, env, request is not None, ours, stdin is not None)
        except (OSError, ValueError, IndexError) as exc:
            name = argv[0] if argv else "an empty command"
            return Result(None, "", "", f"can not start {name}: {getattr(exc, 'strerror', None) or exc}")
        _running.add(pid)
        try:
            to_send = (stdin or request or "").encode("utf-8", "replace")
            ended = _pump(pid, pipes, req_w, to_send, time.monotonic() + timeout_s, ours)
            # The group first, then the corpse: while the leader is not reaped its number can not
            # name another group. This also ends grandchildren that outlived their parent.
            kill_group(pid)
            rc = _reap(pid, time.monotonic() + CORPSE_WAIT_S)
        except BaseException:
            kill_group(pid)  # the hook itself was told to stop
            raise
        finally:
            _running.discard(pid)
    finally:
        for fd in ours:
            os.close(fd)
    texts = [bytes(buffer).decode("utf-8", "replace") for buffer in pipes.values()]
    if not ended:
        return Result(None, texts[0], texts[1], "timeout", "".join(texts[2:]))
    problem = "" if rc is not None else "its exit status was lost"
    return Result(rc, texts[0], texts[1], problem, "".join(texts[2:]))


def _start(
    argv: Sequence[str], env: Mapping[str, str], with_request: bool, ours: set[int], with_stdin: bool = False
) -> tuple[int, dict[int, bytearray], int]:
    """(pid, reading ends: out, err and perhaps reply, writing end of the request or of standard input, or -1)."""
    _keep_from_children()
    out_r, out_w = _pipe(ours)
    err_r, err_w = _pipe(ours)
    reading = [out_r, err_r]
    childs = [out_w, err_w]
    wired = [(out_w, 1), (err_w, 2)]
    req_w = -1
    if with_request:
        req_r, req_w = _pipe(ours)
        rep_r, rep_w = _pipe(ours)
        reading.append(rep_r)
        childs += [req_r, rep_w]
        wired += [(req_r, 3), (rep_w, 4)]
    elif with_stdin:
        req_r, req_w = _pipe(ours)
        childs.append(req_r)
        wired.append((req_r, 0))
    actions: list[tuple[int, ...]] = [] if with_stdin else [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]  # type: ignore[list-item]
    # The ends for the child were moved above the low numbers, so that no dup2 overwrites one.
    actions += [(os.POSIX_SPAWN_DUP2, end, number) for end, number in wired]
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited: the kernel would throw exit statuses away
    pid = os.posix_spawn(
        argv[0], list(argv), env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
    )
    for fd in childs:
        _close(fd, ours)
    return pid, {fd: bytearray() for fd in reading}, req_w


def _pipe(ours: set[int]) -> tuple[int, int]:
    """A pipe whose ends are both above the standard descriptors, whatever of those is closed."""
    ends = os.pipe()
    ours.update(ends)
    high = []
    for fd in ends:
        high.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOW))
        ours.add(high[-1])
        _close(fd, ours)
    return high[0], high[1]


def _close(fd: int, ours: set[int]) -> None:
    ours.discard(fd)
    os.close(fd)


def _keep_from_children() -> None:
    """No child may hold a descriptor that this process inherited (slurmd's pipe may be at any number)."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    for fd in numbers:
        if fd > 2:
            try:
                os.set_inheritable(fd, False)
            except OSError:
                pass  # the listing's own descriptor, closed again


def _pump(pid: int, pipes: dict[int, bytearray], req_w: int, to_send: bytes, deadline: float, ours: set[int]) -> bool:
    """Move bytes until the child has ended. False at the deadline.

    A process that the child left behind may hold the pipes open: then what is in
    them when the child ends is all there is.
    """
    poll = select.poll()
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    open_fds = set(pipes)
    if req_w >= 0:
        os.set_blocking(req_w, False)
        poll.register(req_w, select.POLLOUT)
    pause = _LOOK_CLOSED_S
    while True:
        left = deadline - time.monotonic()
        if not open_fds:
            pause = min(pause * 2, _LOOK_S)
        for fd, _event in poll.poll(max(0, int(min(left, _LOOK_S if open_fds else pause) * 1000))):
            if fd == req_w:
                to_send = _send(fd, to_send)
                if not to_send:
                    poll.unregister(req_w)
                    _close(req_w, ours)
                    req_w = -1
                continue
            data = os.read(fd, 65536)
            if len(pipes[fd]) < MAX_OUTPUT:
                pipes[fd] += data
            if not data:
                poll.unregister(fd)
                open_fds.discard(fd)
        if _has_ended(pid):
            _drain(pipes, open_fds)
            return True
        if left <= 0:
            return False


def _send(fd: int, data: bytes) -> bytes:
    """What is still to be sent; nothing once the child does not read any more."""
    try:
        return data[os.write(fd, data) :]
    except BlockingIOError:
        return data
    except OSError:
        return b""


def _drain(pipes: dict[int, bytearray], open_fds: set[int]) -> None:
    for fd in open_fds:
        os.set_blocking(fd, False)
        try:
            while len(pipes[fd]) < MAX_OUTPUT and (data := os.read(fd, 65536)):
                pipes[fd] += data
        except BlockingIOError:
            pass


def _has_ended(pid: int) -> bool:
    """True once the child is a corpse; it stays one, so that its number stays taken."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _reap(pid: int, deadline: float) -> Optional[int]:
    """Exit status once it ended; None when the deadline came first or somebody else reaped it."""
    pause = 0.0005
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if done:
            return os.waitstatus_to_exitcode(status)
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.02)


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def kill_all() -> None:
    """Kill every child group still running: for the hook's own end."""
    for pid in list(_running):
        kill_group(pid)
