"""Ask the engine for a diagnostic, or to end one. The hook's side, like client.py: light imports, never raises."""

from __future__ import annotations

from typing import Any, Final, Mapping, Optional, Sequence

from slurm_nvhc.model import diag, entity
from slurm_nvhc.model.diag import FAILED, NOT_STARTED, Ask, Error, Report, Result, Stopped
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense import asking
from slurm_nvhc.sense.asking import Answer
from slurm_nvhc.sense.text import MAX_NAME, clean

# Of the time that is given, this much is kept for ending a diagnostic that has not come to its end, and for seeing that it is gone.
STOP_S: Final = 5.0
LEAST_S: Final = 1.0  # a diagnostic for which less than this is left is not begun
MAX_RESULTS: Final = 4000
MAX_ERRORS: Final = 64


def run(node: str, engine: Engine, ask: Ask, deadline_s: float) -> Report:
    """Run it to its end, in at most ``deadline_s`` seconds with the stop included; not begun when there is no time for both.

    Whether the GPUs may be used (ground.py) was decided before.
    """
    seconds = deadline_s - STOP_S
    if not ask.uuids or not ask.tests:
        return Report(NOT_STARTED, ask.tests, ask.uuids, why="no GPU to test was named" if not ask.uuids else "no test was named")
    if seconds < LEAST_S:
        why = f"not run (budget): {max(0.0, deadline_s):g} s are left, and {STOP_S:g} s are kept for stopping it"
        return Report(NOT_STARTED, ask.tests, ask.uuids, why=why)
    answer = _ask("diag", node, engine, deadline_s, {**ask._asdict(), "seconds": seconds})
    if answer.part is not None:
        try:
            return _checked(ask, diag.from_json(answer.part), answer.troubles)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            lie = Trouble("MON-ENGINE-LIES", "engine", clean(f"the reader's report of a diagnostic can not be read: {exc!r}"))
            return _failed(ask, answer._replace(troubles=(*answer.troubles, lie)), "the report of it could not be read", left=True)
    if answer.reply.engine is not None and not answer.reply.done:
        # Our end is not its end: the engine runs it on, until its own time limit.
        return _failed(ask, answer, "the reader ended before the diagnostic did, which may still run", left=True)
    return _failed(ask, answer, "; ".join(t.detail for t in answer.troubles) or "the reader did not answer", left=False)


def stop(node: str, engine: Engine, deadline_s: float) -> Stopped:
    """End the diagnostic that runs in the engine, whoever began it, and see that it is gone."""
    answer = _ask("diag_stop", node, engine, deadline_s, {"seconds": deadline_s})
    part = answer.part
    if part is None:
        return Stopped(False, troubles=answer.troubles)
    said = part.get("troubles")
    troubles = tuple(filter(None, (_trouble(t) for t in (said if isinstance(said, list) else [])[:MAX_ERRORS])))
    known = part.get("known") is True
    return Stopped(known, part.get("ran") is True, known and part.get("gone") is True, (*answer.troubles, *troubles))


def _ask(op: str, node: str, engine: Engine, deadline_s: float, what: Mapping[str, Any]) -> Answer:
    answer = asking.ask(op, node, engine, deadline_s, diag=what)
    hung = answer.ended
    if hung is None or hung.code != "MON-ENGINE-HUNG" or answer.reply.engine is None:
        return answer
    # The engine did answer; what it was asked for did not end.
    ours = Trouble("MON-DIAG", "engine", f"{op}: the engine did not come to an end within {deadline_s:g} s")
    return answer._replace(troubles=tuple(ours if t is hung else t for t in answer.troubles))


def _failed(ask: Ask, answer: Answer, why: str, left: bool) -> Report:
    at_ns = answer.reply.clock[0] if answer.reply.clock else 0
    troubles = answer.troubles
    if left and not any(t.code == "MON-DIAG" for t in troubles):
        troubles = (*troubles, Trouble("MON-DIAG", "engine", why))
    return Report(FAILED, ask.tests, ask.uuids, why=clean(why), started_ns=at_ns, ended_ns=at_ns, left=left, troubles=troubles)


def _checked(ask: Ask, report: Report, troubles: Sequence[Trouble]) -> Report:
    """The reader's report with everything bounded and clean, about what was asked. Raises for what is no report."""
    for number in (report.started_ns, report.ended_ns):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError("a moment that is no number")
    if len(report.results) > MAX_RESULTS:
        raise ValueError(f"{len(report.results)} results")
    return Report(
        report.outcome,
        ask.tests,
        ask.uuids,
        tuple(_result(result) for result in report.results),
        clean(report.why),
        clean(report.version, MAX_NAME),
        clean(report.driver, MAX_NAME),
        clean(report.through, MAX_NAME),
        report.started_ns,
        report.ended_ns,
        report.left is not False,
        tuple(clean(test, MAX_NAME) for test in report.missing[:MAX_ERRORS]),
        (*troubles, *(t for raw in report.troubles[:MAX_ERRORS] if (t := _trouble(raw._asdict())) is not None)),
    )


def _result(result: Result) -> Result:
    if result.entity != entity.NODE and entity.gpu_of(result.entity) != result.entity:
        raise ValueError("a result of no part of this node")
    errors = tuple(_error(error) for error in result.errors[:MAX_ERRORS])
    return Result(clean(result.test, MAX_NAME), result.entity, result.status, errors, clean(result.info))


def _error(error: Error) -> Error:
    if error.code is not None and (isinstance(error.code, bool) or not isinstance(error.code, int)):
        raise TypeError("an error's code that is no number")
    return Error(clean(error.text), error.code, clean(error.severity, MAX_NAME))


def _trouble(raw: Any) -> Optional[Trouble]:
    if not isinstance(raw, dict):
        return None
    return Trouble(clean(raw.get("code"), MAX_NAME), clean(raw.get("part"), MAX_NAME), clean(raw.get("detail")))
