"""What is learned of a healthy node, and what is held against it afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import build
import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge import Input, Window
from slurm_nvhc.judge.judge import judge
from slurm_nvhc.judge.learn import lesson
from slurm_nvhc.model import learned
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.policy.compiled import Level, Policy

PORT = "rdma:mlx5_0/port1"
U = build.uuid
NODE = {"nvidia_driver": "570.86", "fabric_manager": "570.86"}
DRIFT = build.policy(
    build.rule("drift", "vbios", "ecc_mode", warn=Level(not_as_learned=True), finding="CONFIG-DRIFT", action="notify"),
    build.rule("driver", "nvidia_driver", warn=Level(not_as_learned=True), finding="CONFIG-DRIFT", action="notify"),
    build.rule("width", "pcie_max_width", fail=Level(below_learned=True), finding="PCIE-WIDTH"),
    build.rule("rdma", "rdma_state", warn=Level(not_as_learned=True), fail=Level(not_as_learned=True, consecutive=2, spacing_s=60.0)),
)


def node(**parts: Any) -> Snapshot:
    gpus = [build.gpu(n, vbios="96.00", ecc_mode=1, pcie_max_width=16, gpu_temp=30 + n) for n in range(4)]
    return build.snapshot(*gpus, parts={"node": NODE, PORT: {"rdma_state": 4, "rdma_rate": 400}, **parts})


def known(snapshot: Snapshot) -> tuple[Any, ...]:
    return tuple(g.identity for g in (snapshot.gpus or {}).values())


def inp(snapshot: Snapshot, rules: Policy = DRIFT, hook: str = "health_check", **more: Any) -> Input:
    window = Window("none", "w", None, snapshot.wall_ns, 0.0, "")
    return Input(hook, snapshot, None, (), window, rules, **{"known": known(snapshot), **more})


def taught(snapshot: Snapshot) -> Any:
    return lesson(inp(snapshot), ())


def looked(snapshot: Snapshot, table: Any, **more: Any) -> dict[tuple[str, str], str]:
    return build.verdicts(judge(inp(snapshot, learned=table, **more), {}))


# --- learning ----------------------------------------------------------------


def test_a_healthy_look_teaches_configuration_and_what_is_in_use() -> None:
    found = taught(node())
    assert found[U(0)] == {"vbios": "96.00", "ecc_mode": 1, "pcie_max_width": 16}
    assert found[f"{U(0)}/link1"] == {"nvlink_state": "up"}
    assert found["node"] == NODE
    assert found[PORT] == {"rdma_state": 4, "rdma_rate": 400}


def test_a_part_that_is_not_in_use_teaches_nothing() -> None:
    """A port without a cable shows a rate too, and a card without a bridge has links: none of that is a working part's normal."""
    snapshot = node(**{PORT: {"rdma_state": 1, "rdma_rate": 10}})
    gpu = build.with_link(build.gpu(0), 0, nvlink_state="down")
    found = taught(snapshot._replace(gpus={U(0): gpu}, parts=snapshot.parts))
    assert PORT not in found
    assert f"{U(0)}/link0" not in found
    assert f"{U(0)}/link1" in found


def test_no_data_teaches_nothing() -> None:
    gpu = build.gpu(0, vbios=NoData(BLANK), ecc_mode=1)
    assert taught(build.snapshot(gpu))[U(0)] == {"ecc_mode": 1}


def said(place: str, verdict: str, field: str = "", klass: str = "gpu", **more: Any) -> Finding:
    evidence = Evidence(field=field, rule="r", learned=more.pop("learned", False))
    return Finding("SITE-RULE", place, klass, verdict, "", evidence, {}, **{"action": "notify", **more})


@pytest.mark.parametrize(
    ("why", "snapshot", "findings", "more"),
    [
        ("the engine hangs", node(), (said("monitor:engine", "unknown", klass="monitor"),), {}),
        ("just booted", node()._replace(boot_ns=599 * 10**9), (), {}),
        ("driver just loaded", node()._replace(driver_loaded_ns=build.T0 - 60 * 10**9), (), {}),
        ("no listing", node()._replace(gpus=None), (), {"known": known(node())}),
        ("a job's hook", node(), (), {"hook": "epilog"}),
        ("switched off", node(), (), {"rules": DRIFT._replace(learn=pol.Learn(enabled=False))}),
    ],
)
def test_other_looks_teach_nothing(why: str, snapshot: Snapshot, findings: Any, more: Any) -> None:
    assert lesson(inp(node()), ()), "the same node otherwise teaches"
    assert lesson(inp(snapshot, **more), findings) == {}


SWITCH, SWITCH_PORT = "switch:0000:c1:00.0", "switch:0000:c1:00.0/port5"


@pytest.mark.parametrize(
    ("finding", "silent"),
    [
        (said(U(1), "fail", mode="observe"), {U(1), f"{U(1)}/link0", f"{U(1)}/link1"}),
        (said(f"{U(1)}/link0", "warn", action="drain"), {U(1), f"{U(1)}/link0", f"{U(1)}/link1"}),
        (said(U(1), "warn", "vbios", mode="observe", learned=True), {U(1), f"{U(1)}/link0", f"{U(1)}/link1"}),
        (said(U(1), "warn", mode="observe"), set()),
        (said(U(1), "warn", action="note"), set()),
        (said(U(1), "unknown"), set()),
        (said("node", "warn"), {"node"}),
        (said(SWITCH_PORT, "fail"), {SWITCH, SWITCH_PORT}),
        (said(PORT, "fail"), {PORT}),
        (said("monitor:slurm", "warn", klass="monitor"), set()),
    ],
)
def test_only_what_is_spoken_against_does_not_teach(finding: Finding, silent: set[str]) -> None:
    """One lasting warning somewhere must not keep the rest of the node from being learned for ever."""
    now = node(**{SWITCH: {"switch_state": 1}, SWITCH_PORT: {"port_state": 2}})
    assert set(taught(now)) - set(lesson(inp(now), (finding,))) == silent


def test_a_reading_that_a_rule_is_against_is_not_learned() -> None:
    found = lesson(inp(node()), (said(U(1), "warn", "ecc_mode", mode="observe"),))
    assert found[U(1)] == {"vbios": "96.00", "pcie_max_width": 16}
    assert found[U(0)] == {"vbios": "96.00", "pcie_max_width": 16, "ecc_mode": 1}


def test_a_gpu_that_is_lost_or_taken_from_jobs_teaches_nothing_and_the_others_do() -> None:
    lost = node()._replace(gpus={**node().gpus, U(1): build.gpu(1, status="lost", vbios="96.00")})
    excluded = {"exclusions": {U(1): Exclusion(U(1), "MEM-SRAM", "", "nvhc", 0)}}
    for found in (lesson(inp(lost), ()), lesson(inp(node(), **excluded), ())):
        assert not any(name.startswith(U(1)) for name in found)
        assert {U(0), U(2), "node", PORT} <= set(found)


def test_a_card_unlike_its_siblings_does_not_become_its_own_measure() -> None:
    table = {n: r for n, r in taught(node()).items() if not n.startswith(U(3))}
    now = swapped(vbios="90.00")
    for _ in range(2):
        findings = judge(inp(now, learned=table), {}).findings
        assert [f.code for f in findings] == ["CONFIG-DRIFT"]
        table |= lesson(inp(now, learned=table), findings)


def test_what_is_known_is_never_learned_anew() -> None:
    table = {U(0): {"vbios": "95.00"}, "node": NODE}
    found = lesson(inp(node(), learned=table), ())
    assert "vbios" not in found[U(0)]
    assert "node" not in found
    assert found[U(0)]["ecc_mode"] == 1  # what was not known yet is added


def test_counters_and_gauges_that_move_are_not_learned() -> None:
    for field in cat.ALL:
        assert field.learned is None or field.kind != cat.COUNTER, field.name
    for name in ("gpu_temp", "power_usage", "sm_clock", "pcie_gen", "fb_used"):
        assert cat.BY_NAME[name].learned is None


# --- holding the node against it -----------------------------------------------


def test_as_learned_is_ok() -> None:
    assert looked(node(), taught(node())) == {}


def test_nothing_learned_is_no_answer() -> None:
    assert looked(node(), {}) == {}


def test_drift_of_a_gpu_and_of_the_node() -> None:
    now = node(node={**NODE, "nvidia_driver": "575.57"})
    now = now._replace(gpus={**now.gpus, U(2): build.gpu(2, vbios="96.01", ecc_mode=1, pcie_max_width=8)})
    judgement = judge(inp(now, learned=taught(node())), {})
    assert build.verdicts(judgement) == {
        ("CONFIG-DRIFT", U(2)): "warn", ("CONFIG-DRIFT", "node"): "warn", ("PCIE-WIDTH", U(2)): "fail",
    }  # fmt: skip
    driver = next(f for f in judgement.findings if f.entity == "node")
    assert driver.message == "NVIDIA driver: 575.57 (learned 570.86)"
    assert driver.evidence.limit == "570.86"
    width = next(f for f in judgement.findings if f.code == "PCIE-WIDTH")
    assert width.message == "PCIe width possible: 8 lanes (learned 16 lanes)"


def test_more_than_learned_is_not_below() -> None:
    now = node()
    table = taught(now)
    table[U(1)] = {**table[U(1)], "pcie_max_width": 8}
    assert looked(now, table) == {}


def test_no_data_now_is_no_drift() -> None:
    now = node()._replace(gpus={U(0): build.gpu(0, vbios=NoData(BLANK), pcie_max_width=NoData(BLANK))})
    found = looked(now, taught(node()), known=known(node())[:1])
    assert not any(code in ("CONFIG-DRIFT", "PCIE-WIDTH") for code, _ in found)


def test_a_drift_is_told_by_health_checks_only() -> None:
    """An upgraded fleet must not warn in the prolog of every job; what may act counts everywhere."""
    now = node(node={**NODE, "nvidia_driver": "575.57"})
    now = now._replace(gpus={**now.gpus, U(2): build.gpu(2, vbios="96.01", ecc_mode=1, pcie_max_width=8)})
    job, mapping = build.job(2)
    assert looked(now, taught(node()), hook="prolog", job=job, mapping=mapping) == {("PCIE-WIDTH", U(2)): "fail"}


def test_a_port_that_went_down_fails_at_the_second_look() -> None:
    table, memory = taught(node()), {}
    down = node(**{PORT: {"rdma_state": 1, "rdma_rate": 10}})
    found = []
    for minutes in (0, 5):
        judgement = judge(inp(build.later(down, minutes * 60), learned=table), memory)
        found.append(build.verdicts(judgement)["SITE-RULE", PORT])
        memory = judgement.memory
    assert found == ["warn", "fail"]


def test_links_that_were_learned_are_expected_up() -> None:
    """The memory of links is lost with the ledger; what was learned is mirrored and tells all the same."""
    rules = build.policy(build.rule("down", "nvlink_state", fail=Level(went_down=True), finding="NVL-DOWN"))
    now = build.snapshot(build.with_link(build.gpu(0), 1, nvlink_state="down"))
    place = f"{U(0)}/link1"
    assert looked(now, {}, rules=rules) == {}
    assert looked(now, {place: {"nvlink_state": "up"}}, rules=rules) == {("NVL-DOWN", place): "fail"}
    fewer = rules._replace(expect=pol.Expect(links=1))
    assert looked(now, {place: {"nvlink_state": "up"}}, rules=fewer) == {}, "the policy's word outranks what was learned"


# --- a new card -----------------------------------------------------------------


def swapped(**readings: Any) -> Snapshot:
    now = node()
    card = build.gpu(9, **{"vbios": "96.00", "ecc_mode": 1, "pcie_max_width": 16, **readings})
    return now._replace(gpus={**{u: g for u, g in now.gpus.items() if u != U(3)}, U(9): card})


def test_a_new_card_is_measured_by_its_siblings() -> None:
    table = {n: r for n, r in taught(node()).items() if not n.startswith(U(3))}
    assert looked(swapped(), table) == {}
    judgement = judge(inp(swapped(vbios="90.00"), learned=table), {})
    assert build.verdicts(judgement) == {("CONFIG-DRIFT", U(9)): "warn"}
    assert judgement.findings[0].message == "VBIOS: 90.00 (its siblings have 96.00)"


def test_siblings_that_disagree_or_are_of_another_model_tell_nothing() -> None:
    table = {n: r for n, r in taught(node()).items() if not n.startswith(U(3))}
    odd = {**table, U(1): {**table[U(1)], "vbios": "95.00"}}
    assert looked(swapped(vbios="90.00"), odd) == {("CONFIG-DRIFT", U(1)): "warn"}  # its own drift, and nothing of the new card
    now = swapped()
    other = build.gpu(9, model="NVIDIA H200", vbios="90.00", ecc_mode=1, pcie_max_width=8)
    assert looked(now._replace(gpus={**now.gpus, U(9): other}), table) == {}


def test_a_new_card_is_learned_by_itself_once_it_is_healthy() -> None:
    table = {n: r for n, r in taught(node()).items() if not n.startswith(U(3))}
    assert set(lesson(inp(swapped(), learned=table), ())) == {U(9), f"{U(9)}/link0", f"{U(9)}/link1"}


# --- lessons as values ------------------------------------------------------------


def test_a_later_lesson_wins_and_the_earlier_one_gives_way() -> None:
    first = Lesson(1, learned.ITSELF, {"node": {"nvidia_driver": "1", "fabric_manager": "1"}})
    rows = learned.learn((first,), Lesson(2, "alice", {"node": {"nvidia_driver": "2"}}))
    assert learned.table(rows) == {"node": {"nvidia_driver": "2", "fabric_manager": "1"}}
    assert [(r.who, dict(r.readings)) for r in rows] == [
        ("nvhc", {"node": {"fabric_manager": "1"}}), ("alice", {"node": {"nvidia_driver": "2"}}),
    ]  # fmt: skip
    assert learned.normals(rows)["node"]["nvidia_driver"] == learned.Normal("2", 2, "alice")
    assert learned.learn(rows, Lesson(3, "bob", {"node": {"nvidia_driver": "3", "fabric_manager": "3"}}))[0].who == "bob"


def test_unlearning_a_gpu_takes_its_links_along() -> None:
    rows = (Lesson(1, "nvhc", {U(0): {"ecc_mode": 1}, f"{U(0)}/link1": {"nvlink_state": "up"}, U(1): {"ecc_mode": 1}}),)
    assert learned.table(learned.unlearn_gpus(rows, {U(0)})) == {U(1): {"ecc_mode": 1}}
    assert learned.unlearn(rows, {(U(1), "ecc_mode")})[0].readings.keys() == {U(0), f"{U(0)}/link1"}


def test_the_page_lists_what_is_learned() -> None:
    page = (Path(__file__).parent.parent / "docs" / "policy.md").read_text(encoding="utf-8")
    table_ = page.split("Learned are:")[1].split("\n- ")[0]
    assert set(re.findall(r"`(\w+)`", table_)) == {f.name for f in cat.ALL if f.learned is not None}
