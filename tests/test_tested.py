"""What is known of a GPU after diagnostics: what has passed, and what has not."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slurm_nvhc.catalog import diags
from slurm_nvhc.model import diag, tested
from slurm_nvhc.model.diag import Report, Result

G, OTHER = "GPU-a", "GPU-b"
S = 10**9


def report(tests: str, at_s: int = 100, outcome: str = diag.DONE, **statuses: Any) -> Report:
    """statuses: test=status of G; with a key that begins with node_, the node's."""
    results = [Result(t.removeprefix("node_"), "node" if t.startswith("node_") else G, status) for t, status in statuses.items()]
    return Report(outcome, tuple(tests.split(",")), (G,), tuple(results), started_ns=(at_s - 30) * S, ended_ns=at_s * S)


def after(*reports: Report, require: tuple[str, ...] = ()) -> tested.Tested:
    known: Optional[tested.Tested] = None
    for one in reports:
        known = tested.after(known, one, G, "test", require)
    assert known is not None
    assert tested.loads(tested.dumps(known)) == known
    return known


PASSED_2 = report("2", software="pass", memory="pass", pcie="pass")


def test_a_level_that_passed() -> None:
    known = after(PASSED_2)
    assert (known.status, known.at_ns, known.seconds, known.tests, known.run) == ("pass", 100 * S, 30.0, ("2",), "test")
    assert known.has_passed(("2",), 99 * S)
    assert known.has_passed(("1",), 99 * S), "a level includes the lower ones"
    assert known.has_passed(("memory", "pcie"), 99 * S)
    assert not known.has_passed(("3",), 0)
    assert not known.has_passed(("memory", "memtest"), 0)
    assert not known.has_passed(("2",), 100 * S), "not since"
    assert not known.has_passed((), 0)


@pytest.mark.parametrize("status", ["skip", "not_run", "busy", "warn", "fail"])
def test_a_test_that_did_not_pass(status: str) -> None:
    known = after(report("2", software="pass", memory="pass", pcie=status))
    assert not known.has_passed(("2",), 0)
    assert not known.has_passed(("memory", "pcie"), 0)
    assert known.status == {"warn": "warn", "fail": "fail"}.get(status, "unknown")


def test_a_test_that_is_missing_has_not_passed() -> None:
    assert not after(report("2", software="pass", memory="pass")).has_passed(("2",), 0)
    assert not after(report("2", software="pass")).has_passed(("2",), 0)
    assert not after(report("memory,pcie", memory="pass")).has_passed(("memory", "pcie"), 0)
    assert after(report("2")).status == "unknown"


def test_names_are_no_level() -> None:
    known = after(report("memory,pcie", memory="pass", pcie="pass"))
    assert known.has_passed(("memory", "pcie"), 0)
    assert not known.has_passed(("2",), 0)


def test_what_the_policy_requires_must_pass_too() -> None:
    skipped = {t: "pass" for t in ("software", "memory", "pcie", "diagnostic")}
    assert after(report("3", **skipped, eud="skip")).has_passed(("3",), 0), "a package that is not installed"
    assert not after(report("3", **skipped, eud="skip"), require=("eud",)).has_passed(("3",), 0)
    assert after(PASSED_2, require=("eud",)).has_passed(("2",), 0), "level 2 does not promise it"


@pytest.mark.parametrize("outcome", [diag.STOPPED, diag.FAILED, diag.NOT_STARTED])
def test_one_that_did_not_come_to_its_end_has_not_passed(outcome: str) -> None:
    known = after(PASSED_2._replace(outcome=outcome))
    assert known.status == "unknown"
    assert not known.has_passed(("memory",), 0)
    assert after(PASSED_2, report("2", 200, outcome)).has_passed(("2",), 99 * S), "it takes nothing away either"


def test_a_failure_takes_back_what_had_passed_until_it_passes_itself() -> None:
    failed = after(PASSED_2, report("memory", 200, memory="fail"))
    assert (failed.status, failed.failed) == ("fail", {"memory": 200 * S})
    assert not failed.has_passed(("pcie",), 0)
    other = after(PASSED_2, report("memory", 200, memory="fail"), report("pcie", 300, pcie="pass"), report("1", 400, software="pass"))
    assert (other.status, other.failed) == ("pass", {"memory": 200 * S}), "another test clears it not"
    assert after(report("memory", 200, memory="fail"), report("2", 300, software="pass", memory="pass", pcie="pass")).failed == {}


def test_what_names_no_gpu_clears_none_and_convicts_none() -> None:
    known = after(report("2", software="pass", memory="pass", pcie="pass", node_pcie="fail"))
    assert known.status == "warn"
    assert known.failed == {"pcie": 100 * S}
    assert not known.has_passed(("2",), 0)


def test_software_checks_do_not_count_beside_tests_that_load_the_gpu() -> None:
    known = after(report("2", software="fail", memory="pass", pcie="pass"))
    assert known.status == "warn"
    assert known.has_passed(("2",), 0)
    alone = after(report("1", software="fail"))
    assert (alone.status, alone.has_passed(("1",), 0)) == ("fail", False)


def test_how_long_it_took_is_known_by_what_was_asked_for() -> None:
    known = after(PASSED_2, report("1", 200, software="pass"))
    assert known.took == {"level 2": 30.0, "level 1": 30.0}, "another one between makes it not forgotten"
    assert (tested.usual_s(("2",), [known]), tested.usual_s(("memory",), [known])) == (37.5, diags.seconds(("memory",)))
    failed, stopped = report("2", 300, memory="fail"), report("2", 300, outcome=diag.STOPPED)
    assert after(PASSED_2, failed).took == {"level 2": 30.0}, "one that failed may have ended early"
    assert after(PASSED_2, stopped).took == {}, "it takes longer than was known"


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"at_ns": 1}', "null", '{"at_ns": "x", "tests": 3}', "[" * 5000])
def test_what_can_not_be_read_is_not_known(text: str) -> None:
    assert tested.loads(text) is None


NAMES = some.sampled_from([t.name for t in diags.TESTS] + ["new_test"])
RESULTS = some.lists(some.builds(Result, NAMES, some.sampled_from([G, OTHER, "node"]), some.sampled_from(diag.STATUSES)), max_size=12)
ASKED = some.one_of(some.sampled_from([(level,) for level in diags.LEVELS]), some.lists(NAMES, min_size=1, max_size=3).map(tuple))
REPORTS = some.builds(
    lambda outcome, tests, results, at_s: Report(outcome, tests, (G,), tuple(results), started_ns=0, ended_ns=at_s * S),
    some.sampled_from(diag.OUTCOMES), ASKED, RESULTS, some.integers(1, 1000),
)  # fmt: skip


@given(some.lists(REPORTS, min_size=1, max_size=4), ASKED)
def test_nothing_has_passed_that_no_report_says_passed(reports: list[Report], asked: tuple[str, ...]) -> None:
    known = after(*reports)
    last = reports[-1]
    loads = [r for r in last.results if r.entity == G and (diags.active((r.test,)) or not diags.active(last.tests))]
    if any(r.status == diag.FAIL for r in loads):
        assert known.status == diag.FAIL
        assert not known.has_passed(asked, 0)
    if known.has_passed(asked, 0):
        done = [r for one in reports if one.outcome == diag.DONE for r in one.results if r.entity in (G, "node") and r.status == diag.PASS]
        named = [t for t in asked if t not in diags.LEVELS]
        assert {r.test for r in done} >= set(named)
        assert done
    if known.status == diag.PASS:
        assert last.outcome == diag.DONE
        assert all(r.status == diag.PASS for r in loads if r.test in diags.core(last.tests))
