"""Expectations: each thing that can be mentioned can be missed."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.scenario import load
from slurm_nvhc.scenario.check import check, same_value
from slurm_nvhc.scenario.seen import NodeSeen, Seen

U3, U5 = "GPU-33333333-0000-0000-0000-000000000000", "GPU-55555555-0000-0000-0000-000000000000"
DIAG = {"tests": ["memory", "pcie"], "uuids": [U3, U5], "through": "sim"}


def finding(code: str = "NVL-REPLAY", entity: str = f"{U3}/link11", verdict: str = "fail", **more: Any) -> Finding:
    evidence = Evidence(field="nvlink_replay", before=12, after=32, amount=20.0, rule="replay")
    klass = more.pop("klass", "link")
    gpu = more.pop("gpu", {})
    return Finding(code, entity, klass, verdict, "data was sent again", evidence._replace(**more), gpu)


def seen(**more: Any) -> Seen:
    base = Seen(
        hook="epilog",
        number=1,
        label="",
        job="8812",
        status=0,
        seconds=0.2,
        timed_out=False,
        out="",
        left=(),
        verdict="fail",
        findings=(finding(), finding("MON-ENGINE-HUNG", "monitor:engine", "unknown", klass="monitor")),
        troubles=("MON-SLURM it was slow",),
        actions=("drain", "note"),
        failed=("resume",),
        node=NodeSeen("drained", True, "nvhc: NVL-REPLAY gpu3 link11", "root"),
        names={U3: "g3", U5: "g5", "pci:0000:5e:00.0": "g4"},
        calls=(("scontrol", "show", "node", "n1"), ("sinfo", "-h", "-p", "gpu")),
        intents=1,
        excluded=("g5",),
        task_env={"CUDA_VISIBLE_DEVICES": "0,1"},
        task_prints=("nvhc: gpu5 hidden",),
        diag={**DIAG, "outcome": "stopped", "left": True, "why": "no end in 50 s: its end"},
        diag_running=True,
        suspects=(Suspect("link", f"{U3}/link11", "what it sends is rejected", True, "switch:c1/port5", (f"NVL-REPLAY {U3}/link11",)),),
    )
    return base._replace(**more)


def rows(expect: str, run: Seen | None = None) -> list[bool]:
    head = "schema: 1\nname: x\nsteps:\n  - epilog: {job: 8812}\nexpect:\n  - "
    return [c.ok for c in check([run or seen()], load.parse(head + expect + "\n", "x").scenario.expect)]


@pytest.mark.parametrize(
    ("holds", "fails"),
    [
        ("{verdict: fail}", "{verdict: warn}"),
        ("{exit: 0}", "{exit: 1}"),
        ("{within: 1s}", "{within: 0.1s}"),
        ("{finding: {code: NVL-REPLAY}}", "{finding: {code: NVL-CRC}}"),
        ("{finding: {gpu: g3, link: 11}}", "{finding: {gpu: g3, link: 10}}"),
        ("{finding: {gpu: g3}}", "{finding: {gpu: g5}}"),
        ("{finding: {entity: 'monitor:engine'}}", "{finding: {entity: node}}"),
        ("{finding: {gpu: g3, verdict: fail}}", "{finding: {gpu: g3, verdict: warn}}"),
        ("{finding: {field: nvlink_replay}}", "{finding: {field: nvlink_crc_flit}}"),
        ("{finding: {field: 468}}", "{finding: {field: 429}}"),
        ("{finding: {field: '468'}}", "{finding: {field: '429'}}"),
        ("{finding: {field: replay}}", "{finding: {field: recovery}}"),
        ("{finding: {gpu: g3, before: 12, after: 32}}", "{finding: {gpu: g3, before: 13}}"),
        ("{finding: {gpu: g3, amount: 20}}", "{finding: {gpu: g3, amount: 32}}"),
        ("{finding: {gpu: g3, amount_at_least: 20}}", "{finding: {gpu: g3, amount_at_least: 20.5}}"),
        ("{finding: {gpu: g3, amount_below: 21}}", "{finding: {gpu: g3, amount_below: 20}}"),
        ("{finding: {gpu: g3, bound: exact}}", "{finding: {gpu: g3, bound: at_least}}"),
        ("{finding: {gpu: g3, mode: enforce}}", "{finding: {gpu: g3, mode: observe}}"),
        ("{finding: {rule: replay}}", "{finding: {gpu: g3, rule: other}}"),
        ("{finding: {gpu: g3, message: 'Sent Again'}}", "{finding: {gpu: g3, message: retrain}}"),
        ("{finding: {gpu: g3, count: 1}}", "{finding: {gpu: g3, count: 2}}"),
        ("{finding: [{gpu: g3}, {code: MON-ENGINE-HUNG}]}", "{finding: [{gpu: g5}, {code: NVL-CRC}]}"),
        ("{no_finding: {gpu: g5}}", "{no_finding: {gpu: g3}}"),
        ("{monitor: MON-ENGINE-HUNG}", "{monitor: MON-POLICY}"),
        ("{monitor: MON-SLURM}", "{monitor: []}"),
        ("{action: drain}", "{action: none}"),
        ("{action: [drain, note]}", "{action: resume}"),
        ("{no_action: [exclude, resume]}", "{no_action: drain}"),
        ("{gpus: {g3: fail, g5: ok}}", "{gpus: {g3: ok}}"),
        ("{node: {state: drained}}", "{node: {state: idle}}"),
        ("{node: {state: drain}}", "{node: {state: up}}"),
        ("{node: {reason: 'nvhc: NVL-REPLAY gpu3 link11'}}", "{node: {reason: nvhc}}"),
        ("{node: {reason_contains: [gpu3, link11]}}", "{node: {reason_contains: gpu4}}"),
        ("{node: {reason_lacks: gpu4}}", "{node: {reason_lacks: gpu3}}"),
        ("{node: {user: root}}", "{node: {user: bob}}"),
        ("{intents: 1}", "{intents: 0}"),
        ("{excluded: [g5]}", "{excluded: []}"),
        ("{scontrol_calls: 1}", "{scontrol_calls: 0}"),
        ("{called: [sinfo -h, scontrol show node n1]}", "{called: scontrol update}"),
        ("{not_called: [scontrol update, sbatch]}", "{not_called: sinfo}"),
        ("{left_processes: 0}", "{left_processes: 1}"),
        ("{diag: {ran: true}}", "{diag: {ran: false}}"),
        ("{diag: {outcome: stopped}}", "{diag: {outcome: done}}"),
        ("{diag: {tests: [pcie, memory]}}", "{diag: {tests: [memory]}}"),
        ("{diag: {gpus: [g5, g3]}}", "{diag: {gpus: [g3]}}"),
        ("{diag: {left: true}}", "{diag: {left: false}}"),
        ("{diag: {running: true}}", "{diag: {running: false}}"),
        ("{diag: {why: [50 s, its end]}}", "{diag: {why: busy}}"),
        ("{task_env: {CUDA_VISIBLE_DEVICES: '0,1'}}", "{task_env: {CUDA_VISIBLE_DEVICES: '0'}}"),
        ("{task_unset: SLURM_STEP_GPUS}", "{task_unset: CUDA_VISIBLE_DEVICES}"),
        ("{task_print: hidden}", "{task_print: shown}"),
    ],
)
def test_each_expectation_can_hold_and_can_be_missed(holds: str, fails: str) -> None:
    assert all(rows(holds))
    assert rows(fails)
    assert not any(rows(fails))


@pytest.mark.parametrize(
    "run",
    [
        seen(status=126),
        seen(status=-9),
        seen(status=1),
        seen(status=None, timed_out=True),
        seen(left=("sleep 100",)),
    ],
)
def test_a_hook_out_of_control_misses_without_being_mentioned(run: Seen) -> None:
    assert rows("{verdict: fail}", run) == [False, True]


def test_a_prolog_may_fail_on_purpose() -> None:
    assert rows("{verdict: fail}", seen(hook="prolog", status=1))[:-1] == []


def test_no_diagnostic_is_one_that_did_not_run() -> None:
    none = seen(diag=None, diag_running=False)
    assert all(rows("{diag: {ran: false, running: false, gpus: [], tests: []}}", none))
    assert rows("{diag: {outcome: not_run}}", none) == [False]
    refused = seen(diag={"outcome": "not_run", "tests": ["2"], "uuids": [U3], "through": "", "left": False, "why": "not run (budget)"})
    assert all(rows("{diag: {ran: false, outcome: not_run, gpus: [g3], why: budget}}", refused))


def test_a_diagnostic_is_told_in_a_few_words() -> None:
    assert seen().tell_diag() == "diagnostic memory, pcie of g3, g5: stopped (no end in 50 s: its end)"
    assert seen(diag=None).tell_diag() == ""


def test_no_run_in_the_ledger_is_no_verdict() -> None:
    assert rows("{verdict: ok}", seen(verdict="")) == [False]


def test_a_lost_gpu_is_known_by_its_address() -> None:
    lost = finding("GPU-LOST", "pci:0000:5e:00.0", klass="gpu")
    assert all(rows("{finding: {code: GPU-LOST, gpu: g4}, gpus: {g4: fail}}", seen(findings=(lost,))))


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [(1, 1.0, True), (1, 2, False), ("blank", {"no": "blank"}, True), ("blank", 0, False), ("up", "up", True), (0, None, False)],
)
def test_values_compare_by_meaning(wanted: Any, got: Any, same: bool) -> None:
    assert same_value(wanted, got) is same
