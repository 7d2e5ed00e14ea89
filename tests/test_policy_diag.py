"""Rules about diagnostics as an administrator writes them: what they become, what is refused, and how they read."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_nvhc.catalog import diags
from slurm_nvhc.errors import InputError
from slurm_nvhc.policy import compiled, references, show
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Diag, Level, Policy

HEAD = "schema: 1\ndefaults: false\nrules:\n"


def policy(text: str) -> Policy:
    return compiled.resolve(compile_policy(text, "p.yaml"))


def level(written: str) -> Level:
    (made,) = policy(f"{HEAD}  r: {{warn: {{{written}}}}}\n").rules["r"].warn
    return made


@pytest.mark.parametrize(
    ("written", "meant", "words"),
    [
        ("diag: fail", Diag(("fail",)), "a diagnostic fails"),
        ("diag: [fail, warn]", Diag(("fail", "warn")), "a diagnostic fails or warns"),
        ("diag: fail, test: memory", Diag(("fail",), ("memory",)), "a diagnostic fails, test memory"),
        ("diag: fail, test: 'memory, pcie'", Diag(("fail",), ("memory", "pcie")), "a diagnostic fails, test memory or pcie"),
        ("diag: fail, test: [GPU Memory, memory]", Diag(("fail",), ("memory",)), "a diagnostic fails, test memory"),
        ("diag: fail, test: hardware", Diag(("fail",), diags.HARDWARE), "a diagnostic fails, any test of hardware"),
        ("diag: fail, error: 85", Diag(("fail",), (), (85,)), "a diagnostic fails, error 85 PENDING_ROW_REMAP"),
        ("diag: fail, error: [DCGM_FR_PENDING_ROW_REMAP, 84, 85]", Diag(("fail",), (), (85, 84)),
         "a diagnostic fails, error 85 PENDING_ROW_REMAP or 84 UNCORRECTABLE_ROW_REMAP"),
        ("diag: warn, error: 4711", Diag(("warn",), (), (4711,)), "a diagnostic warns, error 4711"),  # newer than the table
        ("diag: fail, error: other", Diag(("fail",), (), (), True), "a diagnostic fails, any error without a rule"),
        ("diag: fail, severity: [isolate, none]", Diag(("fail",), (), (), False, ("isolate", "none")),
         "a diagnostic fails, severity isolate or none"),
    ],
)  # fmt: skip
def test_what_a_level_means_and_says(written: str, meant: Diag, words: str) -> None:
    made = policy(f"{HEAD}  r: {{warn: {{{written}}}}}\n").rules["r"]
    assert (made.kind, made.fields, made.warn, made.text[0]) == ("diag", (), (Level(diag=meant),), words)


def test_readings_of_the_same_gpu_may_excuse_it() -> None:
    assert level("diag: fail, unless: {row_remap_pending: 1}") == Level(diag=Diag(("fail",)), unless=(("row_remap_pending", (1,)),))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("test: memory", "does not say which results of a diagnostic it means (diag: fail, diag: warn, or diag: [fail, warn])"),
        ("diag: pass", "pass is not one of fail, warn"),
        ("diag: []", "names no result"),
        ("diag: fail, test: memry", "unknown diagnostic 'memry' (did you mean memory?)"),
        ("diag: fail, test: []", "names no test"),
        ("diag: fail, error: PENDING_ROW_REMP", "unknown error 'PENDING_ROW_REMP' (did you mean PENDING_ROW_REMAP?)"),
        ("diag: fail, error: '85'", "unknown error '85' (write 85 without quotes)"),
        ("diag: fail, error: -3", "-3 is no error of DCGM's"),
        ("diag: fail, error: 0", "0 is no error of DCGM's"),
        ("diag: fail, error: []", "names no error"),
        ("diag: fail, error: 0x55", "hexadecimal is for bits_any only"),
        ("diag: fail, severity: isolat", "unknown severity 'isolat' (did you mean isolate?)"),
        ("diag: fail, severity: []", "names no severity"),
        ("diag: fail, xid: 79", "xid can not stand in a rule about diagnostics"),
        ("diag: fail, lost: true", "lost can not stand in a rule about diagnostics"),
        ("diag: fail, fatal: true", "fatal can not stand in a rule about diagnostics"),
        ("diag: fail, value_is: 1", "value_is can not stand in a rule about diagnostics"),
        ("diag: fail, unless: {xid: 79}", "a diagnostic is not excused by Xids"),
        ("diag: fail, unless: {}", "names nothing"),
    ],
)
def test_what_is_refused(written: str, problem: str) -> None:
    with pytest.raises(InputError) as failed:
        level(written)
    assert problem in str(failed.value)
    assert str(failed.value).startswith("p.yaml, line 4, key rules.r.warn")


@pytest.mark.parametrize(
    "written",
    ["hits: 2, within: 1d", "hits: 2, of_last: 5", "consecutive: 2", "spacing: 60s", "settle: 5m", "users: 2, within: 1d",
     "min_window: 5m", "only_when: {gpu_processes: 0}", "witness: true", "times: 2", "offset: 1"],
)  # fmt: skip
def test_nothing_is_remembered_of_diagnostics(written: str) -> None:
    with pytest.raises(InputError) as failed:
        level(f"diag: fail, {written}")
    assert " does not fit diagnostics" in str(failed.value)
    assert any(f"warn.{key}:" in str(failed.value) for key in written.replace(",", ":").split(":")[::2] for key in [key.strip()])


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("{field: pcie_replay, warn: {diag: fail}}", "can not stand in a rule about anything else than diagnostics"),
        ("{fail: [{xid: 79}, {diag: fail}]}", "xid can not stand in a rule about diagnostics"),
        ("{sticky: true, warn: {diag: fail}}", "sticky is for Xids only"),
        ("{after_reset: fail, warn: {diag: fail}}", "after_reset is for counters only"),
        ("{action: drain, warn: {diag: fail}}", "action drain needs fail"),
        ("{finding: DIAG-PASS, warn: {diag: fail}}", "DIAG-PASS can not be given to a rule"),
        ("{finding: DIAG-NO-RESULT, warn: {diag: fail}}", "DIAG-NO-RESULT can not be given to a rule"),
        ("{finding: SDC-DIGEST, warn: {diag: fail}}", "SDC-DIGEST can not be given to a rule"),
    ],
)
def test_the_rule_as_a_whole(rule: str, problem: str) -> None:
    with pytest.raises(InputError) as failed:
        policy(f"{HEAD}  r: {rule}\n")
    assert problem in str(failed.value)


def test_a_packaged_rule_is_changed_in_part() -> None:
    made = policy("schema: 1\nmodels:\n  '*H100*': {rules: {diag_isolate: {action: drain}}}\nrules:\n  diag_isolate: {mode: observe}\n")
    assert made.rules["diag_isolate"].mode == "observe"
    of_model = made.for_model("NVIDIA H100 80GB HBM3").rules["diag_isolate"]
    assert (of_model.mode, of_model.action, of_model.fail) == ("observe", "drain", made.rules["diag_isolate"].fail)


def test_policy_show_has_the_sections_and_the_rule() -> None:
    made = policy("schema: 1\ndiagnostics: {epilog: [memory, pcie], require: [eud]}\nscreen: {command: [/bin/x]}\nisolate: {seconds: 1m}\n")
    shown: dict[str, Any] = show.to_json(made)
    assert (shown["diagnostics"]["epilog"], shown["diagnostics"]["require"]) == (["memory", "pcie"], ["eud"])
    assert (shown["screen"]["command"], shown["isolate"]["seconds"]) == (["/bin/x"], 60.0)
    (fail,) = shown["rules"]["diag_isolate"]["fail"]
    assert fail["diag"]["severities"] == ["isolate"]
    assert shown["drain"]["resume_diagnostic"] == []


# --- the catalogue ----------------------------------------------------------------------------


def test_what_a_level_promises() -> None:
    assert diags.core(("1",)) == ("software",)
    assert diags.core(("2",)) == ("software", "memory", "pcie")
    assert diags.core(("3",)) == ("software", "memory", "pcie", "diagnostic")
    assert diags.core(("4",)) == ("software", "memory", "pcie", "diagnostic", "memtest")
    assert diags.core(("eud", "new_test", "eud")) == ("eud", "new_test")
    assert diags.core(()) == ()


def test_hardware_is_all_that_loads_a_gpu() -> None:
    assert {"memory", "pcie", "diagnostic", "eud", "memtest", "pulse_test"} <= set(diags.HARDWARE)
    assert set(diags.BY_NAME) - set(diags.HARDWARE) == {"software"}
    assert all(diags.active((test,)) for test in diags.HARDWARE)


def test_what_a_level_includes() -> None:
    for number in diags.LEVELS:
        named = {t.name for t in diags.TESTS if diags.includes((number,), t.name)}
        assert named == {t.name for t in diags.TESTS if t.level is not None and t.level <= int(number)}
    assert diags.includes(("pcie", "sm_stress"), "sm_stress")
    assert not diags.includes(("4",), "sm_stress"), "it runs only when it is named"
    assert not diags.includes(("4",), "new_test")


def test_names_and_numbers_of_errors_are_one_to_one() -> None:
    assert len(diags.NUMBERS) == len(diags.ERRORS)
    assert {severity for _name, severity in diags.ERRORS.values()} <= set(diags.SEVERITIES.values())
    for number, (name, _severity) in diags.ERRORS.items():
        if number:
            assert references.diag_errors(name) == references.diag_errors(number) == [number]
        assert diags.error_name(number) == name
    assert diags.error_name(4711) == ""
