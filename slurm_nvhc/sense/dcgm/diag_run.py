"""One diagnostic in a real engine, from the question to its verified end.

The engine's answer is waited for in a thread: the call blocks for minutes. When the time is over the engine is made to stop, over
a connection of its own, and it is looked whether it did (diag_stop.py).
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import diags
from slurm_nvhc.model.diag import API, AUTO, DCGMI, DONE, FAILED, NOT_STARTED, STOPPED, Ask, Report
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.sense import diag_results
from slurm_nvhc.sense.dcgm import diag_api, diag_command, diag_stop, status
from slurm_nvhc.sense.dcgm.connection import Address, Connection
from slurm_nvhc.sense.diag_json import Parsed
from slurm_nvhc.sense.text import clean

_LEAST_S: Final = 1.0  # the shortest time limit that DCGM takes
_ANSWER_S: Final = 0.5  # for the answer of a diagnostic that was stopped
_NONE: Final[tuple[Trouble, ...]] = ()


class Done(NamedTuple):
    """parsed, through: what was said, by which way. unsure: the engine may still run it, whatever was said."""

    parsed: Parsed
    through: str = ""
    unsure: bool = False


class Run(NamedTuple):
    """uuids: of all GPUs of the engine, by DCGM id. until: the moment of the monotonic clock by which everything is over."""

    connection: Connection
    engine: diag_stop.Engine
    where: Address
    version: str
    uuids: Mapping[int, str]
    until: float


def run(this: Run, ask: Ask, seconds: float) -> Report:
    """Never raises. seconds: then it is stopped."""
    begun_ns, since = time.time_ns(), time.monotonic()
    refused = _refused(this, ask, seconds)
    if refused:
        return _report(ask, begun_ns, Done(Parsed(NOT_STARTED, (), refused, this.version)))
    asking = _Asking(this, ask, seconds)
    asking.thread.join(seconds)
    done = asking.done
    left, troubles = False, _NONE
    if done is None or done.unsure or (done.parsed.outcome in (STOPPED, FAILED) and this.engine.diagnostics()):
        ended = diag_stop.stop(this.engine, this.until - _ANSWER_S)
        asking.thread.join(max(0.0, this.until - time.monotonic() - _ANSWER_S / 2))
        answered = asking.done is not None and not asking.done.unsure
        # Where nobody can look, the engine's own answer says that it has ended.
        left = not ended.gone and (ended.known or not answered)
        troubles = ended.troubles if left else _NONE
        if done is None and asking.done is not None and asking.done.parsed.outcome == DONE:
            done = asking.done  # it ended by itself at that very moment
    if done is None:
        took = time.monotonic() - since
        why = f"its time of {took:.0f} s was over, and it was stopped" if not left else f"its time of {took:.0f} s was over"
        done = Done(Parsed(STOPPED, (), why, this.version), asking.through)
    report = _report(ask, begun_ns, done)
    why = "; ".join(filter(None, (report.why, *(t.detail for t in troubles))))
    return report._replace(left=left, why=clean(why), version=report.version or this.version, troubles=troubles)


def _refused(this: Run, ask: Ask, seconds: float) -> str:
    """Why it is not begun, '' when nothing speaks against it."""
    known = set(this.uuids.values())
    absent = [uuid for uuid in ask.uuids if uuid not in known]
    if absent or not ask.uuids:
        return f"the engine does not list {', '.join(absent)}" if absent else "no GPU to test was named"
    if seconds < _LEAST_S:
        return "not run (budget): no time is left for it"
    # The engine would say so itself; but what is not ours must not be stopped by us when that answer is late.
    return diag_results.RUNNING if this.engine.diagnostics() else ""


def _report(ask: Ask, begun_ns: int, done: Done) -> Report:
    parsed = done.parsed
    through = done.through if parsed.outcome != NOT_STARTED else ""
    missing: tuple[str, ...] = ()
    if parsed.outcome == DONE:
        given = {result.test for result in parsed.results}
        missing = tuple(test for test in ask.tests if test not in diags.LEVELS and diags.name(test) not in given)
    ended_ns = max(begun_ns, time.time_ns())
    return Report(
        parsed.outcome, ask.tests, ask.uuids, parsed.results, parsed.why, parsed.version, parsed.driver, through, begun_ns, ended_ns,
        missing=missing,
    )  # fmt: skip


class _Asking:
    """The question, in a thread of its own. done: None while it runs; through: the way it is asked."""

    def __init__(self, this: Run, ask: Ask, seconds: float) -> None:
        self.done: Optional[Done] = None
        self.through = ""
        self.thread = threading.Thread(target=self._safely, args=(this, ask, seconds), daemon=True)
        self.thread.start()

    def _safely(self, this: Run, ask: Ask, seconds: float) -> None:
        try:
            self.done = self._ask(this, ask, seconds)
        except ValueError as exc:
            self.done = Done(Parsed(NOT_STARTED, (), clean(str(exc)), this.version))
        except Exception as exc:  # an exception must not end the thread unseen
            number = status.code(exc)
            said = status.words(number) if number else f"{type(exc).__name__}: {exc}"
            self.done = Done(Parsed(FAILED, (), clean(f"the diagnostic could not be asked for: {said}"), this.version), self.through, True)

    def _ask(self, this: Run, ask: Ask, seconds: float) -> Done:
        ids = [number for number, uuid in this.uuids.items() if uuid in ask.uuids]
        ways: dict[str, Callable[[], Done]] = {
            API: lambda: self._api(this, ask, ids, seconds),
            DCGMI: lambda: self._dcgmi(this, ask, ids, seconds),
        }
        knows = diag_api.knows(this.connection.bindings.structs)
        self.through = (API if knows else DCGMI) if ask.through == AUTO else ask.through
        return ways[self.through]()

    def _api(self, this: Run, ask: Ask, ids: list[int], seconds: float) -> Done:
        answer = diag_api.run(this.connection, ask, ids, this.uuids, seconds)
        if not answer.spoken and ask.through == AUTO:
            self.through = DCGMI
            return self._dcgmi(this, ask, ids, seconds)
        return Done(answer.parsed, API, answer.unsure)

    def _dcgmi(self, this: Run, ask: Ask, ids: list[int], seconds: float) -> Done:
        if this.engine.embedded:
            return Done(Parsed(NOT_STARTED, (), "dcgmi can not reach an embedded engine (policy: engine.embedded)", this.version))
        command = diag_command.argv(ask, ids, this.where, this.version, seconds)
        parsed, unsure = diag_command.run(command, this.uuids, seconds)
        return Done(parsed, DCGMI, unsure)
