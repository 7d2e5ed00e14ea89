"""From what DCGM says of a test to one result per part. Pure: dcgmi's JSON, the API's structures and the simulated node end here."""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.model.diag import BUSY, FAIL, NOT_RUN, NOT_STARTED, PASS, SKIP, STOPPED, WARN, Error, Result
from slurm_nvhc.model.entity import NODE
from slurm_nvhc.sense.text import clean

# More than DCGM's structures hold (20 tests of some hundred parts, 32 errors): what is beyond is not a diagnostic's answer.
MAX_RESULTS: Final = 4000
MAX_ERRORS: Final = 64
# DCGM's return codes that are not about results: (outcome, why). dcgmi ends with the lowest byte of them.
RUNNING: Final = "another diagnostic is running in the engine"
ENDINGS: Final[Mapping[int, tuple[str, str]]] = {
    -39: (NOT_STARTED, RUNNING),
    -52: (NOT_STARTED, "the engine does not find its diagnostic program (nvvs)"),
    -58: (NOT_STARTED, "the engine has no such test"),
    -54: (NOT_STARTED, "the engine is paused"),
    -35: (NOT_STARTED, "the engine has none of these GPUs"),
    -23: (NOT_STARTED, "the GPUs are not all of one model, and the engine tests only such"),
    -11: (STOPPED, "the engine ended it at its time limit"),
    -53: (STOPPED, "the engine's diagnostic program (nvvs) was killed"),
    -66: (STOPPED, "the diagnostic was stopped"),
}
# Some test failed; one of its errors is of severity isolate.
TEST_FAILED: Final = (-30, -51)
# Of several lines about one part. A check that passed says more than one that did not run.
_WORST: Final = (FAIL, WARN, BUSY, PASS, NOT_RUN, SKIP)
_BAD: Final = (FAIL, WARN)
_NOT_TESTED: Final = frozenset({47, 48, 117})  # aborted, disabled, skipped: why a test was skipped, and no complaint
_AS_A_WHOLE: Final = "the test failed as a whole, with nothing said of this GPU"


class Line(NamedTuple):
    """What one test says of one part; fields as in model.diag.Result."""

    entity: str
    status: str
    errors: tuple[Error, ...] = ()
    info: str = ""


def error(text: object, code: Optional[int] = None, severity: Optional[int] = None) -> Error:
    """One complaint: the severity is DCGM's own number, else (0 is what nobody filled in) what its catalogue says of the code."""
    word = diags.SEVERITIES.get(severity, "") if severity else ""
    known = diags.ERRORS.get(code) if code is not None else None
    return Error(clean(text), code, word or (known[1] if known else ""))


def of_test(test: str, lines: Sequence[Line], loose: Sequence[Error] = (), whole: str = "") -> list[Result]:
    """The results of one test. loose: its errors that belong to no part; whole: its own status, '' when it is not told.

    DCGM marks *every* GPU as failed where a test fails as a whole: a library is missing, or one GPU of eight has a corrupt
    InfoROM (its Software.cpp). So when all have failed, those of which nothing is said are not accused: what is said counts.
    """
    silent = [line for line in lines if line.status in _BAD and not line.errors]
    gpus = [line for line in lines if line.entity != NODE]
    said_elsewhere = bool(loose) or any(line.errors for line in lines if line.status in _BAD)
    all_failed = all(line.status in _BAD for line in gpus) and (len(gpus) > 1 or test == "software")
    out = []
    for line in lines:
        if line in silent and said_elsewhere and all_failed and line.entity != NODE:
            line = line._replace(status=NOT_RUN, info=_AS_A_WHOLE)
        elif line in silent and loose:
            line = line._replace(errors=tuple(loose))
        out.append(Result(test, line.entity, line.status, line.errors, line.info))
    taken = bool(silent) and not all_failed
    if loose and not taken and not any(r.entity == NODE and r.errors == tuple(loose) for r in out):
        skipped = whole == SKIP and _not_tested(loose)
        out.append(Result(test, NODE, whole if whole in _BAD or skipped else FAIL, tuple(loose)))
    if whole and not out:
        out.append(Result(test, NODE, whole))
    elif whole == FAIL and not any(r.status in (FAIL, WARN, BUSY) for r in out):
        out.append(Result(test, NODE, FAIL, (error("the test as a whole failed, and says of no part that it did"),)))
    return out


def merged(results: Sequence[Result]) -> tuple[Result, ...]:
    """One per test and part, the worst of all that is said of it; a failure for which only other users are to blame is BUSY (R39)."""
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        if result.status == FAIL and result.errors and all(diags.busy(e.text) for e in result.errors):
            result = result._replace(status=BUSY)
        key = (result.test, result.entity)
        if key in found:
            result = _worse(found[key], result)
        if key in found or len(found) < MAX_RESULTS:
            found[key] = result
    return tuple(found.values())


def _worse(one: Result, other: Result) -> Result:
    """Errors of both, once; what they are about, of those that have the worst status."""
    worst = min(one.status, other.status, key=_WORST.index)
    infos = dict.fromkeys(r.info for r in (one, other) if r.status == worst and r.info)
    errors = tuple(dict.fromkeys((*one.errors, *other.errors)))[:MAX_ERRORS]
    return one._replace(status=worst, errors=errors, info=clean("; ".join(infos)))


def said_bad(results: Sequence[Result]) -> bool:
    """Does any result say what DCGM's exit status 226 or 205 means: an error, whoever is to blame? (4.x counts that of a
    skipped test as well, which was told to stop.)"""
    return any(r.status in (FAIL, WARN, BUSY) or (r.status == SKIP and _not_tested(r.errors)) for r in results)


def _not_tested(errors: Sequence[Error]) -> bool:
    return bool(errors) and all(e.code in _NOT_TESTED for e in errors)


def without_passes(results: Sequence[Result]) -> tuple[Result, ...]:
    """Of an answer that was not understood to its end nobody passes; what accuses is kept."""
    return tuple(r for r in results if r.status not in (PASS, SKIP, NOT_RUN))
