"""Run one hook the way slurmd does, and see what it leaves behind. A program of its own.

Self-contained: run by path, request as JSON on standard input, result as JSON on standard
output. It is a process of its own because it becomes a child subreaper: whatever the hook
starts and abandons, in whatever session, ends up as its child and is counted.

Like slurmd: own process group, umask 0022, SIGPIPE blocked, standard output and error on one
pipe, and the hook counts as finished when it has exited *and* the pipe is at end-of-file.

Request: ``argv``, ``environment``, ``cwd`` ("deleted" = a directory that is gone), ``stdin``
("null" or "closed"), ``timeout_s``, ``terminate_after`` (seconds, null, or a simulated node's file: once a
diagnostic runs there), ``grace_s``.
Result: ``status`` (exit status, -N for a signal), ``out``, ``seconds``, ``timed_out``, ``left``
(command lines of processes that were still there after the grace time; they are killed).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Tuple, Union

PR_SET_CHILD_SUBREAPER = 36
MAX_OUTPUT = 1 << 20
LOOK_S = 0.05  # between two looks at a simulated node's file


def supervise(request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's text."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    pid, pipe = _start(request)
    status, out, timed_out = _follow(pid, pipe, started, request["timeout_s"], request["terminate_after"])
    seconds = time.monotonic() - started
    return {"status": status, "out": out, "seconds": seconds, "timed_out": timed_out, "left": _left(request["grace_s"])}


def _start(request: Dict[str, Any]) -> Tuple[int, int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    try:
        os.setpgid(0, 0)
        os.umask(0o022)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
        _enter(request["cwd"])
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        if request["stdin"] == "closed":
            os.close(0)
        else:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.closerange(3, 256)
        os.execve(request["argv"][0], request["argv"], request["environment"])
    except OSError as exc:
        os.write(2, f"can not run {request['argv'][0]}: {exc.strerror}".encode())
    finally:
        os._exit(126)


def _enter(cwd: str) -> None:
    if cwd == "deleted":
        gone = tempfile.mkdtemp(prefix="nvhc-gone-")
        os.chdir(gone)
        os.rmdir(gone)
    else:
        os.chdir(cwd)


def _follow(
    pid: int, pipe: int, started: float, timeout_s: float, terminate_after: Union[float, str, None]
) -> Tuple[Optional[int], str, bool]:
    out = b""
    status: Optional[int] = None
    open_pipe, timed_out, told, looked = True, False, terminate_after is None, 0.0
    while open_pipe or status is None:
        now = time.monotonic() - started
        if isinstance(terminate_after, str):
            if not told and now >= looked + LOOK_S:
                looked, told = now, _diagnostic_runs(terminate_after)
                if told:
                    _signal_group(pid, signal.SIGTERM)
        elif not told and terminate_after is not None and now >= terminate_after:
            told = True
            _signal_group(pid, signal.SIGTERM)
        if now >= timeout_s:
            # slurmd at PrologEpilogTimeout: SIGTERM, and SIGKILL 10 ms later.
            timed_out = True
            _signal_group(pid, signal.SIGTERM)
            time.sleep(0.01)
            _signal_group(pid, signal.SIGKILL)
            break
        if open_pipe:
            ready, _w, _x = select.select([pipe], [], [], 0.005)
            if ready:
                data = os.read(pipe, 65536)
                open_pipe = bool(data)
                out = (out + data)[-MAX_OUTPUT:]
        else:
            time.sleep(0.002)
        if status is None:
            status = _reap(pid)
    if status is None:
        status = _reap(pid)
    return status, out.decode("utf-8", "replace"), timed_out


def _diagnostic_runs(world: str) -> bool:
    with open(world, encoding="utf-8") as handle:
        return json.load(handle)["diag"]["running"] is not None


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _reap(pid: int) -> Optional[int]:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _left(grace_s: float) -> List[str]:
    """What is still there after the grace time: a killed process needs a moment to go."""
    end = time.monotonic() + grace_s
    while True:
        living = _children()
        if not living or time.monotonic() >= end:
            break
        time.sleep(0.01)
    names = [_command_line(pid) for pid in living]
    while living:
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
        living = [pid for pid in _children() if pid not in living]
    return names


def _children() -> List[int]:
    """Living children of this process, after taking the dead ones off."""
    while True:
        try:
            done, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if not done:
            break
    mine = str(os.getpid())
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as handle:
                    state, parent = handle.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if parent == mine and state != "Z":
                found.append(int(name))
    return found


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as handle:
            return handle.read().replace(b"\0", b" ").decode("utf-8", "replace").strip() or f"process {pid}"
    except OSError:
        return f"process {pid}"


if __name__ == "__main__":
    json.dump(supervise(json.load(sys.stdin)), sys.stdout)
