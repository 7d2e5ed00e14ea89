"""dcgmi's answers of every generation: what is read, and that nothing that is not understood passes (R36, R39)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_nvhc.model.diag import Error, Result
from slurm_nvhc.sense import diag_json
from slurm_nvhc.sense.diag_json import Parsed

SHAPES = Path(__file__).parent / "engines/diag"
UUIDS = {i: f"GPU-0000000{i}" for i in range(8)}
PASS, WARN, FAIL, SKIP, NOT_RUN, BUSY = "pass", "warn", "fail", "skip", "not_run", "busy"


def recorded(name: str) -> str:
    return (SHAPES / f"{name}.json").read_text()


def read(name: str, rc: int | None = 226) -> Parsed:
    return diag_json.parse(recorded(name), rc, UUIDS)


def said(parsed: Parsed, test: str) -> dict[str, str]:
    return {r.entity: r.status for r in parsed.results if r.test == test}


def of(parsed: Parsed, test: str, entity: str) -> Result:
    (found,) = [r for r in parsed.results if (r.test, r.entity) == (test, entity)]
    return found


def new(*tests: dict[str, Any], version: str = "4.6.0") -> dict[str, Any]:
    return {"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": list(tests)}]}, "metadata": {"version": version}}


def row(number: int, status: str = "Pass", **more: Any) -> dict[str, Any]:
    return {"entity_group": "GPU", "entity_group_id": 1, "entity_id": number, "status": status, **more}


def parse(document: Any, rc: int | None = 0) -> Parsed:
    return diag_json.parse(json.dumps(document), rc, UUIDS)


# R36: one verdict, whatever the generation


@pytest.mark.parametrize("version", ["3.1.8", "3.3.9", "4.0.0", "4.5.3", "4.6.0"])
def test_one_gpu_of_eight_fails_in_every_generation(version: str) -> None:
    """results[0] passes and results[3] fails: every result is read, not the first."""
    parsed = read(f"{version}-pcie-gpu3")
    assert (parsed.outcome, parsed.why, parsed.version) == ("done", "", version)
    assert parsed.driver in ("535.216.01", "575.57.08")
    assert said(parsed, "pcie") == {**dict.fromkeys(UUIDS.values(), PASS), UUIDS[3]: FAIL}
    assert set(said(parsed, "memory").values()) == {PASS}
    (error,) = of(parsed, "pcie", UUIDS[3]).errors
    assert "low PCIe bandwidth" in error.text
    assert (error.code, error.severity) == ((None, "") if version == "3.1.8" else (30, "triage"))


@pytest.mark.parametrize("version", ["3.3.9", "4.6.0"])
@pytest.mark.parametrize("number", [0, 7])
def test_whichever_it_is(version: str, number: int) -> None:
    document = json.loads(recorded(f"{version}-pcie-gpu3"))
    root = document[diag_json.ROOTS[version.startswith("3")]]
    results = root["test_categories"][1]["tests"][0]["results"]
    key = "gpu_id" if version.startswith("3") else "entity_id"
    results[3][key], results[number][key] = results[number][key], results[3][key]
    assert {e for e, s in said(parse(document, 226), "pcie").items() if s == FAIL} == {UUIDS[number]}


def test_an_unknown_root_passes_nothing_and_names_the_version() -> None:
    parsed = read("unknown-root", 0)
    assert (parsed.outcome, parsed.results, parsed.version) == ("failed", (), "5.0.0")
    assert "DCGM Health Report 5" in parsed.why
    assert "5.0.0" in parsed.why


# Who is meant


def test_checks_of_3_3_name_their_gpus_one_by_one() -> None:
    parsed = read("3.3.9-software")
    assert said(parsed, "software") == {"node": FAIL, UUIDS[5]: WARN, UUIDS[2]: FAIL, UUIDS[6]: FAIL}
    assert of(parsed, "software", UUIDS[6]).errors[0].code == 80
    assert of(parsed, "software", UUIDS[2]).errors[0].code == 85
    assert of(parsed, "software", UUIDS[2]).info == "Page Retirement/Row Remap"
    node = of(parsed, "software", "node")
    assert ([e.code for e in node.errors], node.info) == ([22], "CUDA Main Library")


def test_a_missing_library_accuses_no_gpu() -> None:
    """DCGM marks all GPUs as failed then (observed on 4.6.0)."""
    parsed = read("4.6.0-library")
    assert parsed.outcome == "done"
    assert said(parsed, "software") == {**dict.fromkeys(UUIDS.values(), NOT_RUN), "node": FAIL}
    assert [e.code for e in of(parsed, "software", "node").errors] == [22, 20]


def test_one_corrupt_inforom_accuses_one_gpu() -> None:
    parsed = read("4.6.0-inforom-gpu4")
    assert said(parsed, "software") == {**dict.fromkeys(UUIDS.values(), NOT_RUN), UUIDS[4]: FAIL}


def test_cpus_are_the_nodes_and_named() -> None:
    parsed = read("4.6.0-grace")
    assert said(parsed, "software") == {UUIDS[0]: PASS, UUIDS[1]: PASS, "node": FAIL}
    assert of(parsed, "software", "node").info == "CPU 1"
    assert said(parsed, "eud") == {UUIDS[0]: SKIP, UUIDS[1]: SKIP}
    assert of(parsed, "eud", UUIDS[0]).info == "The EUD is not installed."
    assert said(parsed, "pulse_test") == {"node": SKIP}


@pytest.mark.parametrize(("given", "meant"), [("0,1,2", [0, 1, 2]), (5, [5]), ("5", [5]), ([1, "2"], [1, 2])])
def test_gpu_ids_as_text_number_and_list(given: Any, meant: list[int]) -> None:
    test = {"name": "Memory Bandwidth", "results": [{"gpu_id": given, "status": "FAIL", "warnings": "slow"}]}
    parsed = parse({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Stress", "tests": [test]}]}}, 226)
    assert said(parsed, "memory_bandwidth") == dict.fromkeys((UUIDS[i] for i in meant), FAIL)


@pytest.mark.parametrize("given", [9, "9", "x", {}, True])
def test_a_gpu_that_is_not_known_is_the_nodes_trouble(given: Any) -> None:
    parsed = parse(new({"name": "memory", "results": [row(0), row(given, "Fail")]}), 226)
    assert said(parsed, "memory") == {UUIDS[0]: PASS, "node": FAIL}
    assert "which is not known" in of(parsed, "memory", "node").info


def test_a_failure_without_a_gpu_is_the_nodes() -> None:
    test = {"name": "PCIe", "results": [{"status": "Fail", "warnings": ["no device"]}, {"gpu_id": "0", "status": "Pass"}]}
    parsed = parse({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Integration", "tests": [test]}]}}, 226)
    assert said(parsed, "pcie") == {"node": FAIL, UUIDS[0]: PASS}


def test_an_error_of_the_summary_alone_is_the_nodes() -> None:
    summary = {"status": "Fail", "warnings": [{"warning": "nvvs could not read its configuration", "error_id": 44}]}
    parsed = parse(new({"name": "memory", "results": [row(0), row(1)], "test_summary": summary}), 226)
    assert said(parsed, "memory") == {UUIDS[0]: PASS, UUIDS[1]: PASS, "node": FAIL}
    assert of(parsed, "memory", "node").errors == (Error("nvvs could not read its configuration", 44, "triage"),)


def test_a_summary_that_says_why_one_gpu_failed() -> None:
    summary = {"status": "Fail", "warnings": [{"warning": "a cell is faulty", "error_id": 52}]}
    parsed = parse(new({"name": "memory", "results": [row(0), row(1, "Fail")], "test_summary": summary}), 226)
    assert said(parsed, "memory") == {UUIDS[0]: PASS, UUIDS[1]: FAIL}
    assert [e.code for e in of(parsed, "memory", UUIDS[1]).errors] == [52]


def test_a_summary_that_failed_over_results_that_passed() -> None:
    parsed = parse(new({"name": "memory", "results": [row(0)], "test_summary": {"status": "Fail"}}), 226)
    assert said(parsed, "memory") == {UUIDS[0]: PASS, "node": FAIL}


# What is said


@pytest.mark.parametrize(
    ("word", "status"),
    [("Pass", PASS), ("PASS", PASS), ("fail", FAIL), ("Warn", WARN), ("SKIP", SKIP), ("Not Run", NOT_RUN), ("not_run", NOT_RUN)],
)
def test_words_in_any_case(word: str, status: str) -> None:
    assert said(parse(new({"name": "memory", "results": [row(0, word)]})), "memory") == {UUIDS[0]: status}


def test_an_unknown_word_is_no_pass_and_is_named() -> None:
    parsed = parse(new({"name": "memory", "results": [row(0, "Passed?"), row(1), row(2, "Fail")]}))
    assert parsed.outcome == "failed"
    assert "'Passed?'" in parsed.why
    assert "4.6.0" in parsed.why
    assert said(parsed, "memory") == {UUIDS[2]: FAIL}  # what accuses is kept, what passes is not


@pytest.mark.parametrize(
    "warnings", ["one\ntwo", ["one two"], [{"warning": "one two"}], {"warning": "one two"}, [{"warnings": "one two", "error_id": "7"}]]
)
def test_warnings_as_text_list_and_objects(warnings: Any) -> None:
    (error,) = of(parse(new({"name": "memory", "results": [row(0, "Fail", warnings=warnings)]}), 226), "memory", UUIDS[0]).errors
    assert error.text == "one two"
    assert error.code in (None, 7)


def test_what_the_software_test_only_warns_of_is_a_warning() -> None:
    """dcgmi has no word for it and prints Fail; the API says WARN. Anything else stays what was printed."""

    def status(test: str, *codes: int) -> str:
        warnings = [{"warning": f"error {c}", "error_id": c} for c in codes]
        return of(parse(new({"name": test, "results": [row(0, "Fail", warnings=warnings), row(1)]}), 226), test, UUIDS[0]).status

    assert status("software", 29) == WARN
    assert status("software", 25, 28) == WARN
    assert status("software", 29, 85) == FAIL
    assert status("pcie", 29) == FAIL
    assert status("software") == FAIL


def test_severity_by_number_or_by_code() -> None:
    warnings = [
        {"warning": "a", "error_id": 58, "error_severity": 4},
        {"warning": "b", "error_id": 58},
        {"warning": "c", "error_id": 999},
        {"warning": "d"},
        {"warning": "e", "error_id": 58, "error_severity": 0},
    ]
    errors = of(parse(new({"name": "memory", "results": [row(0, "Fail", warnings=warnings)]}), 226), "memory", UUIDS[0]).errors
    assert [(e.code, e.severity) for e in errors] == [(58, "triage"), (58, "isolate"), (999, ""), (None, ""), (58, "isolate")]


def test_only_other_users_to_blame_is_busy() -> None:
    """R39: a failed result *all* of whose errors say that the GPU is in use."""
    assert said(read("4.6.0-busy"), "memory") == {**dict.fromkeys(UUIDS.values(), PASS), UUIDS[0]: BUSY, UUIDS[1]: FAIL}


def test_iterations_give_the_worst_of_all() -> None:
    parsed = read("4.6.0-iterations", 205)
    assert (parsed.outcome, parsed.version) == ("done", "4.6.0")
    assert said(parsed, "memory") == {**dict.fromkeys(UUIDS.values(), PASS), UUIDS[6]: FAIL}


def test_iterations_that_fail_without_a_result() -> None:
    passed = new({"name": "memory", "results": [row(0)]})
    parsed = parse({"iterations": [passed], "Overall Result": "Fail", "warning": "timeout"})
    assert (parsed.outcome, parsed.why, parsed.results) == ("failed", "timeout", ())


def test_names_are_dcgms_own() -> None:
    tests = [{"name": name, "results": [row(0)]} for name in ("Targeted Stress", "SM Stress", "Brand New Test")]
    assert [r.test for r in parse(new(*tests)).results] == ["targeted_stress", "sm_stress", "brand_new_test"]


def test_a_test_without_any_result_did_not_run() -> None:
    parsed = parse(new({"name": "memtest"}, {"name": "memory", "results": [None, row(1)]}))
    assert said(parsed, "memtest") == {"node": NOT_RUN}
    assert said(parsed, "memory") == {UUIDS[1]: PASS}


# Text around it, and text that is none


@pytest.mark.parametrize("before", ["", "Warning: CUDA_VISIBLE_DEVICES is set\n", "see {this} and {that\n"])
def test_text_before_and_after(before: str) -> None:
    parsed = diag_json.parse(before + recorded("4.6.0-pcie-gpu3") + "\nbye {", 226, UUIDS)
    assert said(parsed, "pcie")[UUIDS[3]] == FAIL
    assert parsed.outcome == "done"


def test_cut_short_anywhere_is_never_a_pass() -> None:
    for name in ("4.6.0-pcie-gpu3", "3.3.9-software", "4.6.0-iterations"):
        whole = recorded(name).rstrip()
        for end in range(0, len(whole) - 1, 97):
            parsed = diag_json.parse(whole[:end], 0, UUIDS)
            assert (parsed.outcome, parsed.results) == ("failed", ()), whole[:end][-40:]


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        7,
        None,
        "text",
        {"DCGM Diagnostic": None},
        {"DCGM Diagnostic": []},
        {"DCGM Diagnostic": {}},
        {"DCGM Diagnostic": {"test_categories": []}},
        {"DCGM Diagnostic": {"test_categories": [None]}},
        {"DCGM Diagnostic": {"test_categories": {"tests": []}}},
        {"DCGM Diagnostic": {"test_categories": [{"category": "x", "tests": [7]}]}},
        {"iterations": []},
        {"iterations": [None, {}]},
        new({"name": "memory", "results": "all good"}),
        new({"name": "memory", "results": [7]}),
        new({"name": "memory", "results": [{"entity_group": "GPU", "entity_id": 0}]}),
        new({"name": "", "results": [row(0)]}),
        new({"name": "memory", "results": [row(0, warnings=[7])]}),
    ],
)
def test_other_shapes_are_not_understood(document: Any) -> None:
    parsed = parse(document)
    assert (parsed.outcome, parsed.results) == ("failed", ())
    assert parsed.why


@pytest.mark.parametrize(
    "text", ["", "\0\0", "{" * 5000, "[" * 100_000, '{"DCGM Diagnostic": ' * 3000, "{}" * 50, '{"version": 1' + "0" * 9000 + "}"]
)
def test_garbage_is_no_exception(text: str) -> None:
    parsed = diag_json.parse(text, 0, UUIDS)
    assert (parsed.outcome, parsed.results) == ("failed", ())
    assert parsed.why
    assert parsed.why.isprintable()


def test_what_is_kept_is_bounded_and_clean() -> None:
    warnings = [{"warning": f"\x1b[31m{i}" + "x" * 5000, "error_id": i} for i in range(500)]
    parsed = parse(new({"name": "n\n" + "y" * 500, "results": [row(0, "Fail", warnings=warnings, info=["z" * 5000] * 500)]}), 226)
    (result,) = parsed.results
    assert len(result.errors) <= 64
    for text in (result.test, result.info, *(e.text for e in result.errors)):
        assert text.isprintable()
        assert len(text) <= 300


# Exit statuses


@pytest.mark.parametrize(
    ("rc", "outcome", "word"),
    [
        (204, "not_run", "nvvs"),
        (217, "not_run", "another diagnostic"),
        (198, "not_run", "no such test"),
        (203, "stopped", "killed"),
        (245, "stopped", "time limit"),
        (190, "stopped", "stopped"),
        (235, "failed", "reach"),
        (255, "failed", "255"),
        (1, "failed", "status 1"),
        (143, "failed", "signal 15"),
        (-9, "failed", "signal 9"),
        (None, "failed", "not known"),
    ],
)
@pytest.mark.parametrize("text", ["", recorded("4.6.0-no-nvvs"), recorded("4.6.0-grace")])
def test_an_exit_status_that_ends_it(rc: int | None, outcome: str, word: str, text: str) -> None:
    parsed = diag_json.parse(text, rc, UUIDS)
    assert parsed.outcome == outcome
    assert word in parsed.why
    assert not {r.status for r in parsed.results} - {FAIL, WARN, BUSY}


def test_the_runs_own_error_is_told() -> None:
    parsed = read("4.6.0-no-nvvs", 204)
    assert (parsed.outcome, parsed.version) == ("not_run", "4.6.0")
    assert "NVVS binary was not found" in parsed.why
    assert "NVVS binary" in read("4.6.0-no-nvvs", 0).why
    assert read("4.6.0-no-nvvs", 0).outcome == "failed"


@pytest.mark.parametrize("rc", [226, 205])
def test_a_failure_that_no_result_shows_is_no_pass(rc: int) -> None:
    parsed = parse(new({"name": "memory", "results": [row(0), row(1, "Skip")]}), rc)
    assert (parsed.outcome, parsed.results) == ("failed", ())
    assert str(rc) in parsed.why
    # a warning is what it may stand for
    warned = {"name": "software", "results": [row(0, "Warn", warnings="persistence mode is off")]}
    assert parse(new(warned), rc).outcome == "done"


def test_results_count_where_the_exit_status_says_nothing_of_them() -> None:
    assert said(read("4.6.0-pcie-gpu3", 0), "pcie")[UUIDS[3]] == FAIL
