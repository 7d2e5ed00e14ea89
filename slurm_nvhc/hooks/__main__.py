"""`python -I -m slurm_nvhc.hooks prolog|epilog|health_check --config F --state D --run D [--slurm-conf F]`

Run by the launchers. Exit 0, or 97 for "fail this on purpose" (prolog only);
the launcher turns every other code into 0. Honours no environment variable of
ours. Light imports only: this is on the path of every job.
"""

from __future__ import annotations

import time

_STARTED = time.monotonic()  # the budget runs from the first instruction

import fcntl  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from typing import Final, Optional, Sequence  # noqa: E402

from slurm_nvhc import pipeline  # noqa: E402
from slurm_nvhc.context import Site  # noqa: E402
from slurm_nvhc.hold import hook as placeholder  # noqa: E402
from slurm_nvhc.hooks import slurmd  # noqa: E402
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG  # noqa: E402
from slurm_nvhc.proc import child, log  # noqa: E402
from slurm_nvhc.slurm.environment import node_name  # noqa: E402

FAIL_ON_PURPOSE: Final = 97
STARTING_LIMIT_S: Final = 55.0  # until the policy and with it the budget is known
GRACE_S: Final = 5.0  # after the budget, before a run that does not end is ended; the launcher is faster
LATE_S: Final = 0.5  # after the budget, for a prolog that has decided to fail: the launcher, at 1 s, would let the job start
TIMED_OUT: Final = 75  # told by the launcher

_OPTIONS: Final = {"--config": "config", "--state": "state", "--run": "run", "--slurm-conf": "slurm_conf"}


def parse(argv: Sequence[str]) -> Optional[tuple[str, Site]]:
    """(hook, site), or None for anything but the one form that the launchers use."""
    if not argv or argv[0] not in (PROLOG, EPILOG, HEALTH_CHECK) or len(argv) % 2 == 0:
        return None
    values: dict[str, str] = {}
    for option, value in zip(argv[1::2], argv[2::2]):
        if option not in _OPTIONS:
            return None
        values[_OPTIONS[option]] = value
    if not {"config", "state", "run"} <= set(values):
        return None
    return argv[0], Site(**values)


def _stop(signum: int, frame: object) -> None:
    """slurmd follows its SIGTERM with SIGKILL after 10 ms: kill the children and go, the ledger is transactional."""
    child.kill_all()
    os._exit(0)


def _time_is_up(signum: int, frame: object) -> None:
    child.kill_all()
    os._exit(TIMED_OUT)


def _fail_late(signum: int, frame: object) -> None:
    """The node is drained and the job must not start: a slow disk, on which that is written down, must not change it."""
    child.kill_all()
    os._exit(FAIL_ON_PURPOSE)


def _decided(hook: str, result: pipeline.Result) -> None:
    if hook == PROLOG and result.fail_hook:
        why = next((step.why for step in result.steps if step.kind == "fail_job"), "")
        sys.stderr.write(f"{why or result.reason}\n")  # the launcher shows it to slurmd's log
        sys.stderr.flush()
        signal.signal(signal.SIGALRM, _fail_late)
        _limit(result.context.budget.left_s() + LATE_S)


def _limit(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _only_copy(site: Site, node: str) -> bool:
    """False when another health check of this node still runs: slurmd starts copies while one hangs.

    The lock dies with its process. Without a place for it there is no lock, and the check runs.
    """
    try:
        os.makedirs(f"{site.run}/{node}", mode=0o755, exist_ok=True)
        lock = os.open(f"{site.run}/{node}/health_check.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True  # the descriptor stays open, and with it the lock, until this process ends


def main(argv: Sequence[str]) -> int:
    parsed = parse(argv)
    if parsed is None:
        log.warning("hooks: usage: prolog|epilog|health_check --config FILE --state DIR --run DIR [--slurm-conf FILE]")
        return 0
    hook, site = parsed
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGALRM, _time_is_up)
    _limit(STARTING_LIMIT_S)
    hostname = os.uname().nodename.partition(".")[0]
    if hook == HEALTH_CHECK and not _only_copy(site, node_name(os.environ, hostname)):
        return 0
    try:
        registering = hook == HEALTH_CHECK and slurmd.is_registering()
        on_budget = lambda left_s: _limit(left_s + GRACE_S)  # noqa: E731
        if placeholder.concerns(hook, os.environ):
            placeholder.attend(hook, site, os.environ, _STARTED, hostname, on_budget)
            return 0
        decided = lambda result: _decided(hook, result)  # noqa: E731
        result = pipeline.run_hook(hook, site, os.environ, _STARTED, hostname, registering, on_budget, decided)
    except Exception as exc:  # the last line of defence: nothing of ours may fail a job or drain a node
        child.kill_all()
        log.warning(f"{hook}: MON-INTERNAL: {type(exc).__name__}: {exc}")
        return 0
    return FAIL_ON_PURPOSE if hook == PROLOG and result is not None and result.fail_hook else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
