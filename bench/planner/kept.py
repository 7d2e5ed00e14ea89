"""The ledger of one node as act/ uses it: the real rules of record/protective.py over a value, that can fail and be killed in between."""

from __future__ import annotations

from typing import Any, Callable, Final, NamedTuple, Optional

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.protective import Ended, OwnDrain
from slurm_nvhc.record import protective as pr
from slurm_nvhc.record.protective import Protective

NEVER: Final = 10**9


class EpilogRun(NamedTuple):
    """What the ledger has of an epilog that came to its end."""

    job_id: str
    ended_ns: int


class Kept:
    """What is on disk: it outlives every hook."""

    def __init__(self) -> None:
        self.state = Protective()
        self.words: dict[str, str] = {}
        self.epilogs: list[EpilogRun] = []
        self.baselines: dict[str, int] = {}


class Book:
    """As slurm_nvhc.book.Book, for one hook run. ``moment`` is called before and after each change, and may raise.

    fails_from: from this change on (the first is 0) all changes fail, and reads are of what was there before.
    """

    troubles: tuple[Any, ...] = ()

    def __init__(self, kept: Kept, moment: Callable[[], None], fails_from: int = NEVER) -> None:
        self._kept = kept
        self._moment = moment
        self._fails_from = fails_from
        self._changes = 0

    @property
    def failed(self) -> bool:
        return self._changes > self._fails_from

    def protective(self) -> Protective:
        return self._kept.state

    def ask(self, call: Callable[[Book], Any], default: Any) -> Any:
        """The ledger's own functions are those below: the caller's ``led`` is this book."""
        try:
            return call(self)
        except MonitorError:
            return default

    def close(self) -> None:
        pass

    def _change(self, change: Callable[[Protective], Protective]) -> None:
        self._changes += 1
        if self._changes > self._fails_from:
            raise MonitorError("ledger.sqlite3", "", "disk full")
        self._moment()
        self._kept.state = change(self._kept.state)
        self._moment()

    def get(self, name: str) -> str:
        return self._kept.words.get(name, "")

    def put(self, name: str, value: str) -> None:
        self._changes += 1
        if self._changes > self._fails_from:
            raise MonitorError("ledger.sqlite3", "", "disk full")
        self._kept.words[name] = value

    def own_drain(self) -> Optional[OwnDrain]:
        return self._kept.state.own_drain

    def set_own_drain(self, drain: Optional[OwnDrain]) -> None:
        self._change(lambda s: s._replace(own_drain=drain))

    def end_exclusion(self, ended: Ended) -> bool:
        was = self._kept.state
        self._change(lambda s: pr.end_exclusion(s, ended))
        return self._kept.state is not was

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """What is in the ledger by its name; a change by the function of record/protective.py that makes it."""
        if name in Protective._fields:
            return lambda: getattr(self._kept.state, name)
        change = getattr(pr, name, None)
        if change is None or name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self._change(lambda s: change(s, *args))

    # What a run keeps beside: not modelled, since no act depends on it.

    def save_baseline(self, job_id: str, snapshot: Any) -> int:
        self._kept.baselines[job_id] = snapshot.wall_ns
        return 1

    def runs_between(self, hook: str, start_ns: int, end_ns: int) -> tuple[EpilogRun, ...]:
        return tuple(e for e in self._kept.epilogs if start_ns <= e.ended_ns < end_ns) if hook == "epilog" else ()

    def save_last_seen(self, snapshot: Any) -> None:
        pass

    def remember_gpus(self, snapshot: Any) -> None:
        pass

    def learn(self, lesson: Any) -> None:
        pass
