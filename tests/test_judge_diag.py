"""judge/diag.py: what a DCGM diagnostic means, by the packaged policy and by others."""

from __future__ import annotations

from typing import Any

import build
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.catalog import diags
from slurm_nvhc.judge import HEALTH_CHECK, Input, Judgement, Window, judge, with_diag
from slurm_nvhc.judge import diag as jd
from slurm_nvhc.model import diag as dg
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.diag import Error, Report, Result
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy import compiled
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Policy

T0 = build.T0
PACKAGED = compiled.resolve(compile_policy(None, ""))
MISMATCH = Error("GPU 3 had a memory mismatch", 58, "isolate")
SLOW = Error("bandwidth 9.1 GB/s is below 20", 30, "triage")
PENDING = Error("GPU 3 had memory errors and row remappings are pending", 85, "reset")
PERSISTENCE = Error("Persistence mode is disabled", 29, "config")


def site(text: str) -> Policy:
    return compiled.resolve(compile_policy("schema: 1\n" + text, "policy.yaml"))


def inp(policy: Policy = PACKAGED, hook: str = HEALTH_CHECK, gpus: int = 4, job: tuple[int, ...] | None = None, **more: Any) -> Input:
    states = [build.gpu(n, **more.pop(f"g{n}", {})) for n in range(gpus)]
    now = build.snapshot(*states)
    the_job, mapping = build.job(*job) if job is not None else (None, None)
    return Input(hook, now, None, (), Window("none", "w", None, now.wall_ns, 0.0, ""), policy, the_job, mapping, **more)


def level(number: str, *results: Result, gpus: tuple[int, ...] = (0, 1, 2, 3), **more: Any) -> Report:
    """A level that passed on these GPUs, but for ``results``."""
    fields: dict[str, Any] = {"version": "4.6.0", "driver": "575.57", "through": "sim", "started_ns": T0, "ended_ns": T0 + 10**9}
    said = {(r.test, r.entity) for r in results}
    good = [
        Result(t, build.uuid(n), dg.PASS)
        for n in gpus for t in diags.core((number,))
        if (t, build.uuid(n)) not in said
    ]  # fmt: skip
    return Report(dg.DONE, (number,), tuple(build.uuid(n) for n in gpus), (*good, *results), **{**fields, **more})


def unrun(outcome: str, why: str, *results: Result, gpus: tuple[int, ...] = (0, 1), tests: tuple[str, ...] = ("2",), **more: Any) -> Report:
    return Report(outcome, tests, tuple(build.uuid(n) for n in gpus), results, why, **more)


def bad(test: str, n: int, *errors: Error, status: str = dg.FAIL) -> Result:
    return Result(test, build.uuid(n), status, errors)


def told(found: Any) -> list[tuple[str, str, str]]:
    """(code, verdict, gpuN or entity)"""
    return sorted((f.code, f.verdict, f"gpu{f.gpu['nvml_index']}" if f.gpu else f.entity) for f in found)


def one(found: Any, code: str) -> Finding:
    match: Finding
    (match,) = [f for f in found if f.code == code]
    return match


# --- what failed ------------------------------------------------------------------------------


def test_a_hardware_test_that_dcgm_says_to_isolate_for_convicts_its_gpu_and_no_other() -> None:
    judgement = judge(inp()._replace(diag=level("2", bad("memory", 3, MISMATCH))), {})
    found = one(judgement.findings, "DIAG-FAIL")
    assert (found.verdict, found.entity, found.action, found.mode, found.klass) == ("fail", build.uuid(3), "narrow", "enforce", "gpu")
    assert found.message == "diag memory failed: GPU 3 had a memory mismatch (error 58 MEMORY_MISMATCH, isolate)"
    assert (found.evidence.source, found.evidence.rule, found.evidence.field) == ("DCGM diag 4.6.0", "diag_isolate", "")
    assert found.evidence.threshold == PACKAGED.rules["diag_isolate"].text[1]
    assert found.absolute is False, "no later reading shows it again"
    assert judgement.gpu_verdicts == {build.uuid(n): "fail" if n == 3 else "ok" for n in range(4)}
    assert [(p.action, p.uuid) for p in judgement.decision.proposals] == [("narrow", build.uuid(3))]
    assert [(s.kind, s.entity, s.named) for s in judgement.suspects] == [(su.GPU, build.uuid(3), True)]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (bad("memory", 3, MISMATCH._replace(severity="triage")), ("DIAG-FAIL", "warn", "notify", "enforce")),
        (bad("pcie", 3, SLOW), ("DIAG-FAIL", "warn", "notify", "enforce")),
        (bad("pcie", 3, SLOW, status=dg.WARN), ("DIAG-FAIL", "warn", "notify", "enforce")),
        (bad("memory", 3, MISMATCH, status=dg.WARN), ("DIAG-FAIL", "warn", "notify", "enforce")),
        (bad("memory", 3, Error("Error: a memory mismatch")), ("DIAG-FAIL", "warn", "notify", "enforce")),  # 3.1 tells no code
        (bad("memory", 3), ("DIAG-FAIL", "warn", "notify", "enforce")),
        (bad("software", 3, PERSISTENCE, status=dg.WARN), ("DIAG-SOFTWARE", "warn", "note", "observe")),
        (bad("software", 3, Error("NVML library is bad", 24, "isolate")), ("DIAG-SOFTWARE", "warn", "note", "observe")),
        (bad("software", 3, Error("Bad environment variable", 28, "config")), ("DIAG-SOFTWARE", "warn", "note", "observe")),
        (bad("software", 3, Error("graphics processes", 25, "reset")), ("DIAG-SOFTWARE", "warn", "note", "observe")),
        (bad("software", 3), ("DIAG-SOFTWARE", "warn", "note", "observe")),
        (bad("software", 3, PENDING), ("MEM-REMAP-PENDING", "warn", "note", "observe")),
        (bad("software", 3, Error("pending", 6, "reset")), ("MEM-RETIRED", "warn", "note", "observe")),
    ],
)  # fmt: skip
def test_all_else_warns(result: Result, expected: tuple[str, str, str, str]) -> None:
    found = jd.findings(inp(), level("2", result))
    (bad_one,) = [f for f in found if f.code != "DIAG-PASS"]
    assert (bad_one.code, bad_one.verdict, bad_one.action, bad_one.mode) == expected
    assert with_diag(inp(), judge(inp(), {}), level("2", result)).decision.verdict == "warn"


def test_the_severest_error_speaks_and_all_are_kept() -> None:
    found = one(jd.findings(inp(), level("2", bad("pcie", 3, SLOW, Error("replays", 98, "isolate")))), "DIAG-FAIL")
    assert (found.verdict, found.message) == ("fail", "diag pcie failed: replays (error 98 PCIE_H_REPLAY_VIOLATION, isolate)")
    both = one(jd.findings(inp(), level("2", bad("pcie", 3, SLOW, Error("slow too", 31, "reset")))), "DIAG-FAIL")
    assert both.message == "diag pcie failed: slow too (error 31 HIGH_LATENCY, reset), and 1 more"
    assert both.evidence.text == "bandwidth 9.1 GB/s is below 20; slow too"


def test_one_result_may_speak_of_two_things() -> None:
    found = jd.findings(inp(), level("1", bad("software", 3, PENDING, PERSISTENCE)))
    assert told(f for f in found if f.code != "DIAG-PASS") == [("DIAG-SOFTWARE", "warn", "gpu3"), ("MEM-REMAP-PENDING", "warn", "gpu3")]


def test_two_rules_of_one_code_say_it_once_and_what_observes_hides_nothing() -> None:
    observed = site("rules:\n  diag_isolate: {mode: observe}\n")
    found = [f for f in jd.findings(inp(observed), level("2", bad("memory", 3, MISMATCH))) if f.code == "DIAG-FAIL"]
    assert sorted((f.verdict, f.mode, f.action) for f in found) == [("fail", "observe", "narrow"), ("warn", "enforce", "notify")]


def test_a_failure_that_names_no_gpu_is_the_nodes() -> None:
    judgement = judge(inp()._replace(diag=level("3", Result("cpu_eud", "node", dg.FAIL, (Error("CPU 0", 95, "isolate"),), "cpu 0"))), {})
    found = one(judgement.findings, "DIAG-FAIL")
    assert (found.verdict, found.entity, found.klass) == ("fail", "node", "node")
    assert [(p.action, p.uuid) for p in judgement.decision.proposals] == [("narrow", "")]  # which drains: it is not of one GPU
    assert judgement.suspects == ()


def test_what_no_rule_speaks_of_is_never_lost() -> None:
    none = site("defaults: false\nrules:\n  x: {field: pcie_replay, warn: {increase_above: 0}}\n")
    found = jd.findings(inp(none), level("2", bad("memory", 3, MISMATCH), bad("software", 2, PERSISTENCE, status=dg.WARN)))
    assert told(f for f in found if f.code != "DIAG-PASS") == [("DIAG-FAIL", "warn", "gpu3"), ("DIAG-SOFTWARE", "warn", "gpu2")]
    assert all(f.message.endswith("; no rule of the policy says what to do") for f in found if f.code != "DIAG-PASS")
    nodes = one(jd.findings(inp(none), level("2", Result("memory", "node", dg.FAIL))), "DIAG-FAIL")
    assert (nodes.entity, nodes.klass) == ("node", "node")
    new = one(jd.findings(inp(), level("2", bad("quantum_test", 3, MISMATCH))), "DIAG-FAIL")
    assert (new.verdict, new.evidence.rule) == ("warn", ""), "a test that is newer than the policy convicts nobody"
    # one error of a result may be named, and another not
    half = site("defaults: false\nrules:\n  x: {warn: {diag: fail, error: 30}}\n")
    codes = told(jd.findings(inp(half), level("2", bad("pcie", 3, SLOW, MISMATCH))))
    assert ("DIAG-FAIL", "warn", "gpu3") in codes
    assert ("SITE-RULE", "warn", "gpu3") in codes


def test_a_rule_that_is_off_has_spoken() -> None:
    off = site("rules:\n  diag_software: {mode: off}\n")
    assert told(jd.findings(inp(off), level("1", bad("software", 3, PERSISTENCE, status=dg.WARN)))) == [("DIAG-PASS", "ok", "node")]


def test_a_site_allows_or_forbids_a_pending_remap() -> None:
    report = level("1", bad("software", 3, PENDING))
    excused = "{diag: fail, error: [84, PENDING_ROW_REMAP], unless: {row_remap_pending: 1}}"
    allowed = site(f"rules: {{diag_remap_pending: {{warn: {excused}}}}}\n")
    assert told(jd.findings(inp(allowed, g3={"row_remap_pending": 1}), report)) == [("DIAG-PASS", "ok", "node")]
    assert ("MEM-REMAP-PENDING", "warn", "gpu3") in told(jd.findings(inp(allowed, g3={"row_remap_pending": 0}), report))
    forbidden = site("rules:\n  diag_remap_pending: {fail: {diag: fail, error: 85}, action: drain, mode: enforce}\n")
    judgement = judge(inp(forbidden)._replace(diag=report), {})
    assert [(p.action, p.uuid) for p in judgement.decision.proposals] == [("drain", build.uuid(3))]


def test_rules_differ_by_model() -> None:
    policy = site(f"models:\n  \"{build.H100}\": {{rules: {{diag_isolate: {{mode: observe}}}}}}\n")
    found = one([f for f in jd.findings(inp(policy), level("2", bad("memory", 3, MISMATCH))) if f.verdict == "fail"], "DIAG-FAIL")
    assert found.mode == "observe"


def test_observe_mode_of_the_policy_holds_here_too() -> None:
    judgement = judge(inp(site("mode: observe\n"))._replace(diag=level("2", bad("memory", 3, MISMATCH))), {})
    assert judgement.decision.proposals == ()
    assert [(p.action, p.uuid) for p in judgement.decision.observed][:1] == [("narrow", build.uuid(3))]


# --- what says nothing ------------------------------------------------------------------------


def test_what_does_not_fit_is_not_run_and_that_is_said() -> None:
    """R56"""
    why = "not run (budget): memory, pcie usually take 300 s, 12 s are left"
    judgement = judge(inp()._replace(diag=unrun(dg.NOT_STARTED, why)), {})
    assert told(judgement.findings) == [("DIAG-NO-RESULT", "unknown", "gpu0"), ("DIAG-NO-RESULT", "unknown", "gpu1")]
    assert judgement.findings[0].message == f"diag level 2: {why}"
    assert (judgement.decision.verdict, judgement.decision.proposals, judgement.suspects) == ("unknown", (), ())
    assert judgement.gpu_verdicts[build.uuid(0)] == "unknown"
    assert judgement.gpu_verdicts[build.uuid(3)] == "ok", "nobody asked about it"


@pytest.mark.parametrize("severity", ["isolate", ""])
def test_busy_is_neither_pass_nor_fail(severity: str) -> None:
    """R39: CUDA says that somebody else uses the device."""
    busy = [Result(t, build.uuid(1), dg.BUSY, (Error("the device is busy or unavailable", 51, severity),)) for t in ("memory", "pcie")]
    found = jd.findings(inp(), level("2", *busy, gpus=(0, 1)))
    assert told(found) == [("DIAG-NO-RESULT", "unknown", "gpu1"), ("DIAG-PASS", "ok", "gpu0")]
    assert one(found, "DIAG-NO-RESULT").message == "diag memory, pcie: busy (the device is busy or unavailable)"


def test_a_gpu_that_was_left_alone_is_told_though_the_engine_was_not_asked() -> None:
    alone = [Result(t, build.uuid(2), dg.BUSY, info="busy: 2 processes compute on it") for t in diags.core(("2",))]
    mig = [Result(t, build.uuid(3), dg.NOT_RUN, info="in MIG mode") for t in diags.core(("2",))]
    found = jd.findings(inp(), level("2", *alone, *mig, gpus=(0, 1)))
    said = {f.gpu["nvml_index"]: f.message for f in found if f.code == "DIAG-NO-RESULT"}
    assert said == {
        2: "diag software, memory, pcie: busy: 2 processes compute on it", 3: "diag software, memory, pcie: not run (in MIG mode)",
    }  # fmt: skip
    assert one(found, "DIAG-PASS").message == "diag level 2: passed on gpu0, gpu1: software, memory, pcie"


def test_busy_is_said_once_and_a_gpu_that_was_left_alone_was_not_stopped() -> None:
    busy = [Result(t, build.uuid(0), dg.BUSY, info="busy: 1 process computes on it") for t in diags.core(("2",))]
    assert [f.message for f in jd.findings(inp(), unrun(dg.NOT_STARTED, "not run: gpu0 busy", *busy, gpus=(0,)))] == [
        "diag software, memory, pcie: busy: 1 process computes on it"
    ]
    mig = [Result(t, build.uuid(3), dg.NOT_RUN, info="in MIG mode") for t in diags.core(("2",))]
    said = {f.gpu["nvml_index"]: f.message for f in jd.findings(inp(), unrun(dg.STOPPED, "its time was over", *mig, gpus=(0,)))}
    assert said == {
        0: "diag level 2: stopped: its time was over; no result of software, memory, pcie",
        3: "diag software, memory, pcie: not run (in MIG mode)",
    }  # fmt: skip


def test_software_that_fails_hides_nothing_that_was_not_tested() -> None:
    results = (bad("software", 0, PERSISTENCE), Result("memory", build.uuid(0), dg.SKIP))
    assert told(jd.findings(inp(), level("2", *results, gpus=(0,)))) == [
        ("DIAG-NO-RESULT", "unknown", "gpu0"), ("DIAG-SOFTWARE", "warn", "gpu0"),
    ]  # fmt: skip
    results = (bad("pcie", 0, SLOW), Result("memory", build.uuid(0), dg.SKIP))
    assert told(jd.findings(inp(), level("2", *results, gpus=(0,)))) == [("DIAG-FAIL", "warn", "gpu0")]


def test_a_test_of_a_level_that_is_not_installed_is_nobodys_worry() -> None:
    skipped = [Result(t, build.uuid(n), dg.SKIP, info="not installed") for n in range(4) for t in ("eud", "nccl_tests")]
    found = jd.findings(inp(), level("3", *skipped))
    assert told(found) == [("DIAG-PASS", "ok", "node")]
    assert one(found, "DIAG-PASS").message == (
        "diag level 3: passed on gpu0, gpu1, gpu2, gpu3: software, memory, pcie, diagnostic; eud skipped; nccl_tests skipped"
    )


def test_skipped_not_run_and_missing_are_told_where_a_result_was_promised() -> None:
    """A MIG GPU skips what level 2 is for; a test that was named is missed; level 1 alone passes nothing of level 2."""
    skipped = [Result(t, build.uuid(0), dg.SKIP, info="MIG") for t in ("memory", "pcie")]
    found = jd.findings(inp(), level("2", *skipped, Result("memory", build.uuid(1), dg.NOT_RUN), gpus=(0, 1)))
    said = sorted((f.gpu["nvml_index"], f.verdict, f.message) for f in found)
    assert said == [(0, "unknown", "diag memory, pcie: skipped (MIG)"), (1, "unknown", "diag memory: not run")]
    named = Report(dg.DONE, ("eud", "memory"), (build.uuid(0),), (Result("memory", build.uuid(0), dg.PASS),), missing=("eud",))
    assert [(f.code, f.message) for f in jd.findings(inp(), named)] == [("DIAG-NO-RESULT", "diag eud: missing")]
    nothing = Report(dg.DONE, ("2",), (build.uuid(0),))
    assert [f.message for f in jd.findings(inp(), nothing)] == ["diag software, memory, pcie: missing"]


REQUIRE = site("diagnostics: {require: [eud, memory]}\n")


@pytest.mark.parametrize("status", [dg.SKIP, dg.NOT_RUN, None])
def test_a_required_test_without_a_result_is_a_warning_by_name(status: str | None) -> None:
    results = [] if status is None else [Result("eud", build.uuid(n), status) for n in range(4)]
    found = jd.findings(inp(REQUIRE), level("3", *results))
    word = {dg.SKIP: "skipped", dg.NOT_RUN: "not run", None: "missing"}[status]
    assert told(found) == [("DIAG-NO-RESULT", "warn", f"gpu{n}") for n in range(4)]
    assert {f.message for f in found} == {f"diag level 3: required, and without a result: eud ({word})"}
    assert judge(inp(REQUIRE)._replace(diag=level("3", *results)), {}).suspects[0].named is False


def test_a_required_test_is_told_once() -> None:
    found = jd.findings(inp(REQUIRE), level("2", Result("memory", build.uuid(0), dg.SKIP), gpus=(0,)))
    assert [(f.verdict, f.message) for f in found] == [("warn", "diag level 2: required, and without a result: memory (skipped)")]


def test_a_required_test_is_missed_only_where_it_was_asked_for() -> None:
    assert told(jd.findings(inp(REQUIRE), level("1"))) == [("DIAG-PASS", "ok", "node")]
    late = jd.findings(inp(REQUIRE), unrun(dg.NOT_STARTED, "not run (budget): no time", gpus=(0,)))
    assert sorted((f.verdict, f.message) for f in late) == [
        ("unknown", "diag level 2: not run (budget): no time"),
        ("warn", "diag level 2: required, and without a result: memory (missing); not run (budget): no time"),
    ]
    broken = jd.findings(inp(REQUIRE), unrun(dg.FAILED, "dcgmi is not there", gpus=(0,)))
    assert told(broken) == [("DIAG-NO-RESULT", "unknown", "gpu0"), ("MON-DIAG", "unknown", "monitor:diag")]


def test_what_was_stopped_keeps_what_it_had_found() -> None:
    results = (Result("memory", build.uuid(0), dg.PASS), bad("memory", 1, MISMATCH))
    found = jd.findings(inp(), unrun(dg.STOPPED, "its time was over", *results, version="4.6.0"))
    assert told(found) == [("DIAG-FAIL", "fail", "gpu1"), ("DIAG-NO-RESULT", "unknown", "gpu0")]
    assert one(found, "DIAG-NO-RESULT").message == "diag level 2: stopped: its time was over; no result of software, pcie"


# --- what passed ------------------------------------------------------------------------------


def test_a_pass_clears_nothing() -> None:
    lame = inp(g2={"row_remap_failure": 1})
    judgement = judge(lame._replace(diag=level("2")), {})
    assert told(judgement.findings) == [("DIAG-PASS", "ok", "node"), ("MEM-REMAP-FAILED", "fail", "gpu2")]
    assert judgement.gpu_verdicts[build.uuid(2)] == "fail"
    assert judgement.suspects == judge(lame, {}).suspects


def test_the_nodes_software_checks_count_for_every_gpu_but_no_load_without_a_gpu_does() -> None:
    """DCGM 3.3 names no GPU in its software checks. A load that names none says nothing of any."""
    checks = (Result("software", "node", dg.PASS), Result("software", "node", dg.SKIP))
    plain = Report(dg.DONE, ("1",), (build.uuid(0),), checks)
    assert told(jd.findings(inp(), plain)) == [("DIAG-PASS", "ok", "gpu0")]
    no_gpu = Report(dg.DONE, ("2",), (build.uuid(0),), (*checks, Result("memory", "node", dg.PASS), Result("pcie", build.uuid(0), dg.PASS)))
    assert [f.message for f in jd.findings(inp(), no_gpu)] == ["diag memory: missing"]
    failed = Report(dg.DONE, ("2",), (build.uuid(0),), (*checks, Result("memory", "node", dg.FAIL), Result("pcie", build.uuid(0), dg.PASS)))
    assert told(jd.findings(inp(), failed)) == [("DIAG-FAIL", "warn", "node")], "and nobody passed"


def test_software_that_complains_does_not_take_a_pass_of_the_hardware_away() -> None:
    found = jd.findings(inp(), level("2", *(bad("software", n, PERSISTENCE, status=dg.WARN) for n in range(4))))
    assert one(found, "DIAG-PASS").message == "diag level 2: passed on gpu0, gpu1, gpu2, gpu3: memory, pcie; software warned"
    alone = jd.findings(inp(), level("1", *(bad("software", n, PERSISTENCE, status=dg.WARN) for n in range(4))))
    assert "DIAG-PASS" not in {f.code for f in alone}


def test_a_skip_beside_a_pass_of_the_same_test_is_a_pass_and_a_failure_beside_it_is_none() -> None:
    """DCGM 3.x has one result a software check."""
    mixed = (Result("software", build.uuid(0), dg.PASS), Result("software", build.uuid(0), dg.SKIP))
    assert jd.cleared(Report(dg.DONE, ("1",), (build.uuid(0),), mixed), build.uuid(0))
    assert not jd.cleared(Report(dg.DONE, ("1",), (build.uuid(0),), (*mixed, bad("software", 0))), build.uuid(0))
    assert not jd.cleared(level("3", bad("eud", 0), gpus=(0,)), build.uuid(0)), "a test that nobody would miss has failed"
    assert not jd.cleared(Report(dg.STOPPED, ("1",), (build.uuid(0),), mixed), build.uuid(0))
    assert not jd.cleared(Report(dg.DONE, ("3",), (build.uuid(0),), level("3", gpus=(0,)).results), build.uuid(0), ("eud",))


# --- ours -------------------------------------------------------------------------------------


def test_a_report_that_failed_is_trouble_of_our_own_and_convicts_nobody() -> None:
    judgement = judge(inp()._replace(diag=unrun(dg.FAILED, "the answer of DCGM 5.1 is not understood", version="5.1")), {})
    assert told(judgement.findings) == [
        ("DIAG-NO-RESULT", "unknown", "gpu0"), ("DIAG-NO-RESULT", "unknown", "gpu1"), ("MON-DIAG", "unknown", "monitor:diag"),
    ]  # fmt: skip
    assert one(judgement.findings, "MON-DIAG").message == "diag level 2: failed: the answer of DCGM 5.1 is not understood"
    assert (judgement.decision.verdict, judgement.decision.proposals) == ("unknown", ())


def test_one_that_is_left_running_is_told_once_and_its_troubles_are() -> None:
    left = unrun(dg.STOPPED, "its time was over", left=True)
    assert one(jd.findings(inp(), left), "MON-DIAG").message == "stopped: its time was over; it may still run in the engine"
    said = (Trouble("MON-DIAG", "diag", "nvvs does not end"), Trouble("MON-ENGINE-HUNG", "engine", "silent"))
    found = jd.findings(inp(), left._replace(troubles=said))
    assert sorted(f.message for f in found if f.klass == "monitor") == ["nvvs does not end", "silent"]
    again = judge(inp(troubles=said)._replace(diag=left._replace(troubles=said)), {})
    assert [f.code for f in again.findings if f.klass == "monitor"].count("MON-ENGINE-HUNG") == 1
    assert not [p for p in again.decision.proposals if p.action == "drain"]


def test_the_trouble_of_one_run_notifies_at_once_only_where_the_policy_says_so() -> None:
    left = unrun(dg.FAILED, "no nvvs")
    assert one(jd.findings(inp(), left), "MON-DIAG").action == "none"
    assert one(jd.findings(inp(site("monitor: {after_runs: 1}\n")), left), "MON-DIAG").action == "notify"
    drains = inp(site("monitor: {action: drain}\n"))
    assert one(jd.findings(drains, left), "MON-DIAG").action != "drain", "the node is still watched"


# --- the whole --------------------------------------------------------------------------------


def test_a_report_with_the_run_and_one_added_later_are_judged_alike_and_memory_is_not_touched() -> None:
    here = inp(g2={"row_remap_failure": 1})
    before = judge(here, {})
    report = level("2", bad("memory", 2, MISMATCH), bad("pcie", 1, SLOW))
    after = with_diag(here, before, report)
    assert judge(here._replace(diag=report), {}) == after
    assert after.memory == before.memory
    assert [f for f in after.findings if f in before.findings] == list(before.findings)
    assert after.findings[0].verdict == "fail"
    # both faults of one GPU are behind one suspect
    assert (after.suspects[0].entity, after.suspects[0].findings) == (
        build.uuid(2), (f"DIAG-FAIL {build.uuid(2)}", f"MEM-REMAP-FAILED {build.uuid(2)}"),
    )  # fmt: skip


def test_in_a_jobs_hook_its_findings_are_the_jobs() -> None:
    judgement = judge(inp(hook="prolog", job=(2, 3))._replace(diag=level("2", bad("memory", 3, MISMATCH), gpus=(2, 3))), {})
    assert one(judgement.findings, "DIAG-FAIL").of_job
    assert judgement.decision.proposals[0].of_job


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (bad("memory", 1, MISMATCH), "suspect"),
        (bad("pcie", 1, SLOW), "clean"),
        (bad("software", 1, PENDING), "clean"),
        (bad("memory", 3, MISMATCH), "clean"),
    ],
)
def test_what_a_test_after_the_job_proves_is_a_suspicion_for_its_user(found: Result, told: str) -> None:
    """It did not happen in the job; but a GPU that computes wrongly now may have done so then. What only warns touched nobody."""
    before, now = (build.snapshot(*(build.gpu(n) for n in range(4)), at_ns=T0 + at_s * 10**9) for at_s in (0, 3600))
    judgement = build.run("epilog", now, PACKAGED, before=before, gpus=(0, 1), diag=level("2", found, gpus=(0, 1)))
    assert judgement.touched is not None
    assert judgement.touched.verdict == told
    assert ("a memory mismatch" in judgement.touched.why) is (told == "suspect")
    assert build.run("prolog", now, PACKAGED, gpus=(0, 1), diag=level("2", found, gpus=(0, 1))).touched is None


_PLACES = st.sampled_from([*(build.uuid(n) for n in range(5)), "node", "", "GPU-nobody", "switch:0000:c1:00.0", "pci:0000:1b:00.0"])
_TESTS = st.one_of(st.sampled_from([*diags.BY_NAME, "new_test", ""]), st.text(max_size=5))
_TEXT = st.text(max_size=12)
_ERRORS = st.builds(Error, _TEXT, st.one_of(st.none(), st.integers(-5, 200)), st.sampled_from(["", "odd", *diags.SEVERITIES.values()]))
_RESULTS = st.builds(Result, _TESTS, _PLACES, st.sampled_from(dg.STATUSES), st.lists(_ERRORS, max_size=3).map(tuple), _TEXT)
_REPORTS = st.builds(
    Report,
    outcome=st.sampled_from(dg.OUTCOMES),
    tests=st.one_of(st.sampled_from([(level_,) for level_ in diags.LEVELS]), st.lists(_TESTS, max_size=3).map(tuple)),
    uuids=st.lists(_PLACES, max_size=4).map(tuple),
    results=st.lists(_RESULTS, max_size=6).map(tuple),
    why=_TEXT,
    version=st.sampled_from(["", "3.1.8", "4.6.0"]),
    left=st.booleans(),
    missing=st.lists(_TESTS, max_size=2).map(tuple),
    troubles=st.lists(st.builds(Trouble, st.sampled_from(["MON-DIAG", "MON-ENGINE-HUNG", "ODD"]), _TEXT, _TEXT), max_size=2).map(tuple),
)
HARDWARE = {t.name for t in diags.TESTS if t.active}
_POLICIES = [PACKAGED, REQUIRE, site("mode: observe\n"), site("defaults: false\n")]


@settings(max_examples=300, deadline=None)
@given(_REPORTS, st.sampled_from(_POLICIES))
def test_no_report_raises_and_only_a_failed_hardware_test_convicts(report: Report, policy: Policy) -> None:
    here = inp(policy)
    judgement: Judgement = judge(here._replace(diag=report), {})
    convicted = {f.entity for f in judgement.findings if f.verdict == "fail"}
    guilty = {
        r.entity for r in report.results
        if r.status == dg.FAIL and r.test in HARDWARE and any(e.severity == "isolate" for e in r.errors)
    }  # fmt: skip
    assert convicted <= guilty
    for uuid, verdict in judgement.gpu_verdicts.items():
        assert verdict != "fail" or uuid in guilty
    complained = [r for r in report.results if r.status == dg.FAIL]
    assert not complained or judgement.decision.verdict in ("warn", "fail"), "no failure is lost"
    if report.outcome != dg.DONE:
        assert judgement.decision.verdict != "ok", "and what says nothing is not ok"
        assert "DIAG-PASS" not in {f.code for f in judgement.findings}
    hidden = {f"{f.code} {f.entity}" for f in judgement.findings if f.klass in ("gpu", "link", "switch") and f.verdict in ("warn", "fail")}
    assert sorted(k for s in judgement.suspects for k in s.findings) == sorted(hidden), "each behind one suspect"
