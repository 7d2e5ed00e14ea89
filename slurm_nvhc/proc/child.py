"""Run one child process to its end or to its deadline. Nothing else starts processes on a node.

The child gets its own session (so its whole group can be killed), a clean
environment, /dev/null as standard input, and descriptors of its own: slurmd
waits for end-of-file on a hook's pipe, so no child may hold that. At the
deadline the group is killed and its corpse is waited for at most 200 ms: a
process in an uninterruptible driver call can not be killed, and must not make
the hook wait.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Final, Mapping, NamedTuple, Optional, Sequence

CORPSE_WAIT_S: Final = 0.2
MAX_OUTPUT: Final = 4 * 1024 * 1024

CLEAN_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}

_running: set[int] = set()  # process groups to kill when the hook itself is told to stop


class Result(NamedTuple):
    """rc: exit status, -N for a signal, None when it was killed at the deadline or never started.

    problem: '' when it ended by itself, "timeout", or why it could not start.
    reply:   what it wrote on the extra descriptor, when one was asked for.
    """

    rc: Optional[int]
    out: str
    err: str
    problem: str
    reply: str = ""


def run(
    argv: Sequence[str],
    timeout_s: float,
    environment: Optional[Mapping[str, str]] = None,
    request: Optional[str] = None,
) -> Result:
    """Run argv (absolute path first) for at most timeout_s seconds. Never raises for the child's sake.

    request: when given, the child also gets descriptor 3 with this text to read and
    descriptor 4 to write its reply on.
    """
    env = dict(CLEAN_ENVIRONMENT)
    env.update(environment or {})
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    pipes = {out_r: bytearray(), err_r: bytearray()}
    closing = [out_w, err_w]
    # Ends for the child are moved above the low numbers first, so that dup2 can not overwrite one.
    actions: list[tuple[int, ...]] = []
    rep_r = req_w = -1
    to_send = b""
    if request is not None:
        import fcntl

        req_r, req_w = os.pipe()
        rep_r, rep_w = os.pipe()
        pipes[rep_r] = bytearray()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (req_r, rep_w)]
        os.close(req_r)
        os.close(rep_w)
        closing += high
        actions += [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        to_send = request.encode("utf-8", "surrogateescape")
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),  # type: ignore[list-item]
        (os.POSIX_SPAWN_DUP2, out_w, 1),
        (os.POSIX_SPAWN_DUP2, err_w, 2),
        *actions,
    ]
    try:
        pid = os.posix_spawn(argv[0], list(argv), env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=[signal.SIGPIPE])
    except (OSError, ValueError) as exc:
        for fd in [*closing, *pipes, *([req_w] if req_w >= 0 else [])]:
            os.close(fd)
        return Result(None, "", "", f"can not start {argv[0]}: {getattr(exc, 'strerror', None) or exc}")
    for fd in closing:
        os.close(fd)
    _running.add(pid)
    deadline = time.monotonic() + timeout_s
    try:
        ended = _pump(pipes, req_w, to_send, deadline)
        rc = _reap(pid, deadline) if ended else None
        if rc is None:
            kill_group(pid)
            _reap(pid, time.monotonic() + CORPSE_WAIT_S)
        else:
            kill_group(pid)  # grandchildren that outlived their parent
    finally:
        _running.discard(pid)
    text = [bytes(pipes[fd]).decode("utf-8", "replace") for fd in (out_r, err_r)]
    reply = bytes(pipes[rep_r]).decode("utf-8", "replace") if rep_r >= 0 else ""
    for fd in pipes:
        os.close(fd)
    return Result(rc, text[0], text[1], "" if rc is not None else "timeout", reply)


def _pump(pipes: dict[int, bytearray], req_w: int, to_send: bytes, deadline: float) -> bool:
    """Move bytes until the child closed everything. False at the deadline."""
    poll = select.poll()
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    open_fds = set(pipes)
    if req_w >= 0:
        os.set_blocking(req_w, False)
        poll.register(req_w, select.POLLOUT)
    try:
        while open_fds:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for fd, _event in poll.poll(max(1, int(left * 1000))):
                if fd == req_w:
                    try:
                        to_send = to_send[os.write(req_w, to_send) :]
                    except BlockingIOError:
                        continue
                    except OSError:
                        to_send = b""
                    if not to_send:
                        poll.unregister(req_w)
                        os.close(req_w)
                        req_w = -1
                    continue
                data = os.read(fd, 65536)
                if data and len(pipes[fd]) < MAX_OUTPUT:
                    pipes[fd] += data
                elif not data:
                    poll.unregister(fd)
                    open_fds.discard(fd)
        return True
    finally:
        if req_w >= 0:
            os.close(req_w)


def _reap(pid: int, deadline: float) -> Optional[int]:
    """Exit status once it ended, None when the deadline came first."""
    pause = 0.0005
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
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
