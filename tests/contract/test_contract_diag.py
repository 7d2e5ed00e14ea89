"""Diagnostics: the same on the simulated node, over the stand-in bindings, and in a real engine with or without nvvs."""

from __future__ import annotations

import patient
import pytest
from contract_support import PATIENT_S, Rig

from slurm_nvhc.model.diag import Ask, Report, Stopped
from slurm_nvhc.sense import diag

BAD = ("fail", "warn", "busy")
LONG_S = 900.0  # longer than level 2 takes by the simulated node's clock


def uuids(rig: Rig) -> tuple[str, ...]:
    """In the order of their NVML index."""
    gpus = rig.read().gpus or {}
    return tuple(sorted(gpus, key=lambda uuid: gpus[uuid].identity.nvml_index or 0))


def run(rig: Rig, *tests: str, gpus: tuple[str, ...] = (), seconds: float = LONG_S) -> Report:
    return diag.run("n1", rig.engine, Ask(tests, gpus or uuids(rig)), seconds)


def short(rig: Rig) -> float:
    """A limit for what will not come to its end: a reader gets as far as the engine, and a second is left for it."""
    return diag.STOP_S + 1.0 + patient.limit_for(rig.read)


def stop(rig: Rig) -> Stopped:
    return diag.stop("n1", rig.engine, PATIENT_S)


def of(report: Report, test: str) -> dict[str, str]:
    return {r.entity: r.status for r in report.results if r.test == test}


def test_a_level_comes_to_an_end_that_is_known(rig: Rig) -> None:
    """On a real engine too: whatever it can do, there is an outcome, a reason where it is none, and nothing left running."""
    report = run(rig, "1")
    assert not report.left
    assert (report.tests, report.uuids) == (("1",), uuids(rig))
    if report.outcome == "done":
        assert report.results
        assert report.why == ""
        assert report.ended_ns >= report.started_ns > 0
    else:
        assert report.why
        assert "pass" not in {r.status for r in report.results}
    if rig.kind != "live":
        assert report.outcome == "done"
        assert {r.status for r in report.results} == {"pass"}
        assert {r.entity for r in report.results} == set(report.uuids)
    assert report.version
    left = stop(rig)
    assert (left.known, left.ran, left.gone) == (True, False, True)


def test_one_gpu_fails(rig: Rig) -> None:
    rig.do("diag_result", test="memory", result="fail", gpu="g3", error=52, text="a memory cell is faulty", severity="isolate")
    report = run(rig, "2")
    assert report.outcome == "done"
    bad = [r for r in report.results if r.status in BAD]
    ((entity, test, (error,)),) = [(r.entity, r.test, r.errors) for r in bad]
    assert (entity, test) == (uuids(rig)[3], "memory")
    assert (error.text, error.code, error.severity) == ("a memory cell is faulty", 52, "isolate")
    assert set(of(report, "pcie").values()) == {"pass"}


def test_a_failure_that_names_no_gpu_is_the_nodes(rig: Rig) -> None:
    rig.do("diag_result", test="software", result="fail", error=22, text="a library is missing")
    report = run(rig, "1")
    assert report.outcome == "done"
    assert of(report, "software")["node"] == "fail"
    assert "fail" not in {status for entity, status in of(report, "software").items() if entity != "node"}


def test_only_who_is_asked_is_told_of(rig: Rig) -> None:
    some = uuids(rig)[2:4]
    rig.do("diag_result", test="memory", result="fail", gpu="g0", error=52)
    report = run(rig, "2", gpus=some)
    assert {r.entity for r in report.results} == set(some)
    assert {r.status for r in report.results} == {"pass"}


def test_single_tests_by_name(rig: Rig) -> None:
    rig.do("diag_plan")
    report = run(rig, "pcie", "memory")
    assert {r.test for r in report.results} == {"pcie", "memory"}
    assert report.missing == ()


def test_a_used_gpu_is_busy(rig: Rig) -> None:
    rig.do("set", target="g1.gpu_processes", value=1)
    report = run(rig, "2")
    assert {r.entity for r in report.results if r.status == "busy"} == {uuids(rig)[1]}
    assert "fail" not in {r.status for r in report.results}


def test_what_readings_say_level_1_finds(rig: Rig) -> None:
    rig.do("set", target="g5.row_remap_pending", value=1)
    rig.do("set", target="g6.persistence_mode", value=0)
    report = run(rig, "1")
    said = of(report, "software")
    assert (said[uuids(rig)[5]], said[uuids(rig)[6]], said[uuids(rig)[7]]) == ("fail", "warn", "pass")


def test_its_time_over_it_is_stopped_and_none_runs(rig: Rig) -> None:
    limit_s = short(rig)
    rig.do("diag_plan", behaviour="hangs")
    report = run(rig, "2", seconds=limit_s)
    assert (report.outcome, report.results, report.left) == ("stopped", (), False)
    assert report.why
    left = stop(rig)
    assert (left.known, left.ran, left.gone) == (True, False, True)


def test_longer_than_its_time(rig: Rig) -> None:
    rig.do("diag_plan", seconds=1000)
    assert run(rig, "2", seconds=short(rig)).outcome == "stopped"


def test_one_that_can_not_be_ended_is_left(rig: Rig) -> None:
    rig.do("diag_plan", behaviour="stubborn")
    report = run(rig, "2", seconds=short(rig))
    assert (report.outcome, report.left) == ("stopped", True)
    left = stop(rig)
    assert (left.known, left.ran, left.gone) == (True, True, False)
    assert [t.code for t in left.troubles] == ["MON-DIAG"]


def test_somebody_elses_runs(rig: Rig) -> None:
    rig.do("diag_plan", behaviour="running")
    report = run(rig, "2")
    assert (report.outcome, report.results, report.left) == ("not_run", (), False)
    assert "another diagnostic" in report.why
    left = stop(rig)  # it was not ended by ours, and is when that is asked for
    assert (left.known, left.ran, left.gone) == (True, True, True)
    assert run(rig, "1").outcome == "done"


@pytest.mark.parametrize(("behaviour", "outcome"), [("absent", "not_run"), ("crashes", "stopped")])
def test_without_nvvs(rig: Rig, behaviour: str, outcome: str) -> None:
    rig.do("diag_plan", behaviour=behaviour)
    report = run(rig, "2")
    assert (report.outcome, report.results, report.left) == (outcome, (), False)
    assert "nvvs" in report.why


def test_an_engine_that_is_not_there(rig: Rig) -> None:
    gpus = uuids(rig)
    rig.do("engine", behaviour="absent")
    report = run(rig, "1", gpus=gpus)
    assert (report.outcome, report.results, report.left) == ("failed", (), False)
    assert [t.code for t in report.troubles] == ["MON-ENGINE-ABSENT"]
    assert stop(rig).gone, "whether one runs is seen without the engine"


def test_without_the_time_nothing_is_begun(rig: Rig) -> None:
    report = run(rig, "1", seconds=diag.STOP_S)
    assert (report.outcome, report.left) == ("not_run", False)
    assert "budget" in report.why
