"""What diagnostics have said of one GPU so far, as the ledger keeps it. Pure.

A level passes when the tests that it promises (catalog/diags.py ``core``) and those that the policy requires have passed: a
test that was skipped, not run or busy has not. Where a level loads the GPU, its software checks do not count: they tell of
the node's set-up, and what they say of the GPU is read and judged at every look.
"""

from __future__ import annotations

import json
from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.model import diag, entity
from slurm_nvhc.model.diag import Report

UNKNOWN: Final = "unknown"
SLOWER: Final = 1.25  # our judgement: what took so long once may take this much longer


class Tested(NamedTuple):
    """The last diagnostic that was begun on a GPU, and what has passed on it.

    at_ns:   when it ended, the node's clock. seconds: how long it took
    tests:   what was asked for: a level, or tests by name
    status:  diag.PASS, WARN or FAIL; UNKNOWN: it did not come to a result
    run:     who ran it: "epilog of job 8812"
    passed:  level or test -> when it last passed (ns); {} after a failure, whatever passed before
    failed:  test -> when it failed last (ns), on this GPU or without naming one, until it passes here
    took:    what was asked for ("level 2", "memory, pcie") -> seconds that it took last: a prolog's level 1 makes nobody forget
             how long the epilog's level 2 takes
    """

    at_ns: int
    tests: tuple[str, ...]
    status: str
    seconds: float
    run: str
    passed: Mapping[str, int] = {}
    failed: Mapping[str, int] = {}
    took: Mapping[str, float] = {}

    def has_passed(self, tests: Sequence[str], since_ns: int) -> bool:
        """Have all of these passed after ``since_ns``? A level is part of every higher one."""
        return bool(tests) and all(
            any(self.passed.get(t, 0) > since_ns for t in (_levels_from(asked) if asked in diags.LEVELS else (asked,))) for asked in tests
        )


def after(before: Optional[Tested], report: Report, uuid: str, run: str, require: Sequence[str] = ()) -> Tested:
    """What is known of the GPU once ``report`` is there. ``before``: what was known until then."""
    own = [r for r in report.of(uuid) if _tells(report, r.test)]
    # What tests no GPU (CPUs) speaks for all of them.
    own += [r for r in report.of(entity.NODE) if r.test in diags.BY_NAME and not diags.BY_NAME[r.test].gpu]
    # What names no GPU may be of any: it makes none of them bad, and none of them good.
    told = [r for r in report.results if r.entity in (uuid, entity.NODE)]
    bad = {r.test for r in told if r.status == diag.FAIL and _tells(report, r.test)}
    good = {r.test for r in own} - {r.test for r in own if r.status != diag.PASS}
    promised = [t for t in (*diags.core(report.tests), *require) if diags.includes(report.tests, t) and _tells(report, t)]
    whole = report.outcome == diag.DONE and not bad and bool(promised) and set(promised) <= good
    passed = {} if bad or before is None else dict(before.passed)
    if report.outcome == diag.DONE and not bad:
        passed.update(dict.fromkeys(good, report.ended_ns))
        if whole:
            passed.update({level: report.ended_ns for level in report.tests if level in diags.LEVELS})
    still = {test: at_ns for test, at_ns in (before.failed if before is not None else {}).items() if test not in good}
    if any(r.status == diag.FAIL and r.entity == uuid for r in own):
        status = diag.FAIL
    elif any(r.status in (diag.FAIL, diag.WARN) for r in told):
        status = diag.WARN
    else:
        status = diag.PASS if whole else UNKNOWN
    failed = {**still, **dict.fromkeys(bad, report.ended_ns)}
    return Tested(report.ended_ns, report.tests, status, report.seconds, run, passed, failed, _took(before, report, status))


def _took(before: Optional[Tested], report: Report, status: str) -> dict[str, float]:
    """One that failed may have ended early: its time says nothing. One that was stopped takes longer than was known."""
    asked, took = diags.told(report.tests), {} if before is None else dict(before.took)
    if report.outcome == diag.DONE and status in (diag.PASS, diag.WARN):
        took[asked] = report.seconds
    elif report.outcome == diag.STOPPED:
        took.pop(asked, None)
    return took


def usual_s(tests: tuple[str, ...], known: Iterable[Tested]) -> float:
    """How long these usually take, seconds: as they took on these GPUs, or else as the catalogue says."""
    taken = [t.took[diags.told(tests)] for t in known if diags.told(tests) in t.took]
    return max(taken) * SLOWER if taken else diags.seconds(tests)


def dumps(tested: Tested) -> str:
    return json.dumps(tested._asdict())


def loads(text: str) -> Optional[Tested]:
    """None for '' and for anything that is none: then nothing is known."""
    try:
        raw = json.loads(text) if text else None
        if not isinstance(raw, dict):
            return None
        passed, failed = ({str(name): int(at_ns) for name, at_ns in raw[key].items()} for key in ("passed", "failed"))
        tests = tuple(str(t) for t in raw["tests"])
        took = {str(asked): float(seconds) for asked, seconds in raw["took"].items()}
        return Tested(int(raw["at_ns"]), tests, str(raw["status"]), float(raw["seconds"]), str(raw["run"]), passed, failed, took)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _levels_from(level: str) -> tuple[str, ...]:
    return diags.LEVELS[diags.LEVELS.index(level) :]


def _tells(report: Report, test: str) -> bool:
    """Does this test speak for the GPU in this report?"""
    return diags.active((test,)) or not diags.active(report.tests)
