"""Evidence over many looks: what no single job shows, counted once, settled by people, and never made of a reset."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Optional

import pytest
from build import gpu, later, policy, rule, run, snapshot, uuid, with_link
from hypothesis import given, settings
from hypothesis import strategies as st
from site_ import Site

from slurm_nvhc.compare import since
from slurm_nvhc.judge import chance, evidence
from slurm_nvhc.judge import rules as judge_rules
from slurm_nvhc.judge.evidence import TEST_S
from slurm_nvhc.judge.memory import open_names
from slurm_nvhc.model import settled
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.reading import BLANK, NOT_SUPPORTED, NoData
from slurm_nvhc.model.snapshot import LOST, GpuState, Snapshot
from slurm_nvhc.policy.compiled import Cusum, FalseAlarms, Level, Policy

HOUR = 3600.0
RATES = Cusum(0.001 / HOUR, 0.5 / HOUR)
SLOW_BURN = policy(rule("burn", "nvlink_recovery", "nvlink_recovery_total", fail=Level(cusum=RATES), finding="NVL-RECOVERY"))
LIMIT = chance.cusum_limit(0.001, 0.5, FalseAlarms().alpha)
FALL = chance.allowance(0.001, 0.5)  # an hour
LINK1 = f"{uuid(1)}/link0"


class Node:
    """A node of two GPUs as its hooks see it, one after the other: each folds the memory and the look."""

    def __init__(self, rules: Policy = SLOW_BURN) -> None:
        self.rules = rules
        self.memory: Any = {}
        self.look: Optional[Look] = None
        self.counts = {0: 0.0, 1: 0.0}
        self.now = snapshot(gpu(0), gpu(1))
        self.settled: dict[str, int] = {}
        self.jobs = 0

    def _gpu(self, n: int) -> GpuState:
        return with_link(gpu(n, links=1), 0, nvlink_recovery=self.counts[n])

    def snapshot(self) -> Snapshot:
        return later(self.now, 0, self._gpu(0), self._gpu(1))

    def wait(self, hours: float, errors: float = 0, on: int = 1) -> None:
        self.now = later(self.now, hours * HOUR)
        self.counts[on] += errors

    def hook(self, hook: str = "health_check", gpus: Any = None, before: Optional[Snapshot] = None, blind: bool = False) -> list[Any]:
        now = self.snapshot()._replace(gpus=None) if blind else self.snapshot()
        return self.look_at(now, hook, gpus, before)

    def look_at(self, now: Snapshot, hook: str = "health_check", gpus: Any = None, before: Optional[Snapshot] = None) -> list[Any]:
        grown, self.look = since(self.look, now)
        self.jobs += hook == "epilog"
        found = run(hook, now, self.rules, before, self.memory, gpus, key=f"w{self.jobs}", since_look=grown, settled=self.settled)
        self.memory = found.memory
        return [f for f in found.findings if f.code != "COUNTER-RESET"]

    def job(self, hours: float, errors: float = 0) -> list[Any]:
        """A job on GPU 1; what its epilog finds."""
        self.hook("prolog", gpus=(1,))
        before = self.snapshot()
        self.wait(hours, errors)
        return self.hook("epilog", gpus=(1,), before=before)


def burned(errors: int = 3, apart_h: float = 0.25) -> Node:
    """A node with so many errors on GPU 1, one a look."""
    node = Node()
    node.hook()
    for _ in range(errors):
        node.wait(apart_h, 1)
        node.hook()
    return node


def test_a_slow_burn_is_found_over_short_jobs_each_of_which_shows_nothing() -> None:
    node = Node()
    node.hook()
    for n in range(1, 9):
        found = node.job(0.5, errors=n % 2)
        if found:
            break
        node.wait(1.0)  # idle
    assert found, "one error in every second job of half an hour"
    assert n == 7
    only = found[0]
    assert (only.code, only.entity, only.verdict, only.absolute) == ("NVL-RECOVERY", LINK1, "fail", True)
    assert (only.evidence.amount, only.evidence.expected) == (4.0, pytest.approx(0.001 * 9.5))
    assert only.message == "link0 recovery +4 in 9h30m over 7 jobs, 0.001/h is normal"
    assert only.evidence.rate == pytest.approx(4 / (9.5 * HOUR))


def test_health_checks_between_jobs_count_the_same_errors_once() -> None:
    """Three hooks see each error: it is one."""
    node = Node()
    node.hook()
    for _ in range(2):
        node.hook("prolog", gpus=(1,))
        before = node.snapshot()
        node.wait(0.1, 1)
        assert node.hook() == []
        assert node.hook("epilog", gpus=(1,), before=before) == []
        assert node.hook() == []
    (entry,) = node.memory["evidence"].values()
    assert entry["errors"] == 2
    assert entry["sum"] == pytest.approx(2 - 0.2 * FALL)


def test_a_healthy_node_remembers_nothing() -> None:
    node = Node()
    for _ in range(3):
        node.hook()
        node.wait(1)
    assert node.memory["evidence"] == {}


def test_every_health_check_tells_it_and_the_hooks_of_jobs_on_that_gpu() -> None:
    node = burned()
    assert [f.entity for f in node.hook()] == [LINK1]
    assert [f.entity for f in node.hook("prolog", gpus=(1,))] == [LINK1]
    assert [f.entity for f in node.hook("epilog", gpus=(1,), before=node.snapshot())] == [LINK1]
    assert node.hook("prolog", gpus=(0,)) == []
    assert node.hook("epilog", gpus=(0,), before=node.snapshot()) == []


def test_a_job_on_another_gpu_gathers_for_the_health_check() -> None:
    node = Node()
    node.hook()
    for _ in range(3):
        node.wait(0.1, 1)
        assert node.hook("epilog", gpus=(0,), before=node.snapshot()) == []
    assert [f.entity for f in node.hook()] == [LINK1]


def test_once_errors_stop_it_ends_by_itself_however_many_there_were() -> None:
    node = burned(errors=40)
    node.wait(LIMIT / FALL - 1)
    assert [f.entity for f in node.hook()] == [LINK1]
    node.wait(2)
    assert node.hook() == []


def test_a_burst_is_one_event() -> None:
    """A hundred errors of one moment do not convict; errors at another moment do."""
    node = Node()
    node.hook()
    node.wait(0.1, 100)
    assert node.hook() == []
    assert node.hook() == []
    node.wait(0.1, 100)
    assert [f.evidence.amount for f in node.hook()] == [200.0]


def test_a_burst_and_another_error_hours_later_are_two_events() -> None:
    node = Node()
    node.hook()
    node.wait(0.1, 100)
    node.hook()
    node.wait(2, 1)
    assert node.hook() == []


def test_one_look_is_never_enough_however_long_it_was() -> None:
    node = Node()
    node.hook()
    node.wait(48, 40)
    assert node.hook() == []
    node.wait(1, 1)
    assert [f.entity for f in node.hook()] == [LINK1]


def test_two_looks_of_one_run_are_one() -> None:
    """A second look inside one hook may still see the same burst."""
    node = burned(errors=0)
    node.wait(48, 40)
    now = node.snapshot()
    for extra in (0, 2):
        node.counts[1] += extra
        now = later(node.snapshot(), extra)
        grown, node.look = since(node.look, now)
        node.memory = run("health_check", now, SLOW_BURN, memory=node.memory, since_look=grown, run_id="one").memory
    (entry,) = node.memory["evidence"].values()
    assert (entry["errors"], entry["looks"]) == (42, 1)


def test_looks_within_a_minute_of_the_one_that_saw_a_burst_may_see_the_rest_of_it() -> None:
    """An epilog and the prolog of the next job, seconds apart: runs of their own, and one burst."""
    node = Node()
    node.hook()
    before = node.snapshot()
    node.wait(1, 6)
    node.hook("epilog", gpus=(1,), before=before)
    (held,) = node.memory["evidence"].values()
    for _ in range(3):
        node.wait(15 / HOUR, 6)
        node.hook("prolog", gpus=(1,))
    (entry,) = node.memory["evidence"].values()
    assert (entry["looks"], entry["errors"]) == (1, 24)
    assert entry["sum"] < held["sum"] + 0.03  # 45 s of the faulty rate
    node.wait(16 / HOUR, 6)  # 61 s after the burst
    node.hook()
    (entry,) = node.memory["evidence"].values()
    assert entry["looks"] == 2


def test_evidence_of_a_version_that_knew_no_bursts_goes_on() -> None:
    node = burned()
    (key,) = node.memory["evidence"]
    entry = {name: value for name, value in node.memory["evidence"][key].items() if name not in ("burst_ns", "read_ns")}
    node.memory = {**node.memory, "evidence": {key: entry}}
    node.wait(0.1, 1)
    assert [f.evidence.amount for f in node.hook()] == [4.0]


# What is no evidence


@pytest.mark.parametrize("kind", [NOT_SUPPORTED, BLANK])
def test_evidence_about_a_counter_that_is_gone_convicts_for_a_day_and_is_told_again_when_it_comes_back(kind: str) -> None:
    """A driver update, MIG: nothing would ever lower the sum."""
    node = burned(errors=40)
    gone = with_link(gpu(1, links=1), 0, nvlink_recovery=NoData(kind))
    told = []
    for _ in range(3):
        node.wait(11)
        told.append([f.entity for f in node.look_at(later(node.now, 0, gpu(0), gone)) if f.verdict == "fail"])
    assert told == [[LINK1], [LINK1], []]
    assert [f.entity for f in node.look_at(later(node.now, 0, gpu(0), gone), "prolog", (1,)) if f.verdict == "fail"] == []
    node.wait(0.1)
    assert [f.entity for f in node.hook()] == [LINK1]


def test_a_reset_ends_evidence_of_a_counter_that_has_no_data_right_after_it() -> None:
    node = Node()
    node.look_at(later(node.now, 0, with_link(with_link(gpu(1), 0, nvlink_recovery=5), 1, nvlink_recovery=0)))
    for n in (1, 2, 3):
        node.look_at(later(node.now, 300 * n, with_link(with_link(gpu(1), 0, nvlink_recovery=5), 1, nvlink_recovery=n)))
    assert node.memory["evidence"]
    blank = with_link(with_link(gpu(1), 0, nvlink_recovery=0), 1, nvlink_recovery=NoData(BLANK))
    assert [f for f in node.look_at(later(node.now, 1200, blank)) if f.verdict == "fail"] == []
    assert node.memory["evidence"] == {}


def test_evidence_about_one_link_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of counters that did not grow only the one with evidence is asked about, by the rules and by the gathering."""
    node = burned()
    node.rules = policy(rule("burn", "nvlink_recovery", fail=Level(cusum=RATES), finding="NVL-RECOVERY"))
    asked: list[str] = []
    added: list[str] = []
    plain, add = judge_rules._strongest, evidence.Gathering._add
    monkeypatch.setattr(judge_rules, "_strongest", lambda *args: (asked.append(args[1]), plain(*args))[1])
    monkeypatch.setattr(evidence.Gathering, "_add", lambda *args: (added.append(args[-1].entity), add(*args))[1])
    node.wait(0.1)
    before, node.now = node.snapshot(), later(node.now, 300)
    assert [f.entity for f in node.hook(before=before)] == [LINK1]
    assert (asked, added) == ([LINK1], [LINK1])


def test_a_reset_ends_the_evidence_and_what_is_seen_after_it_is_none() -> None:
    node = burned()
    assert node.hook()
    node.wait(0.1)
    node.counts[1] = 2  # counted while the link trained
    assert node.hook() == []
    assert node.memory["evidence"] == {}


def test_a_reset_that_another_counter_of_the_gpu_shows_counts_as_well() -> None:
    node = Node()
    node.look_at(later(node.now, 0, with_link(gpu(1, links=1, nvlink_replay_total=50), 0, nvlink_recovery=0)))
    node.look_at(later(node.now, 60, with_link(gpu(1, links=1, nvlink_replay_total=0), 0, nvlink_recovery=5)))
    assert node.memory["evidence"] == {}
    node.look_at(later(node.now, 120, with_link(gpu(1, links=1, nvlink_replay_total=0), 0, nvlink_recovery=7)))
    (entry,) = node.memory["evidence"].values()
    assert entry["errors"] == 2


def test_a_reboot_ends_the_evidence_even_when_the_first_look_after_it_is_blind() -> None:
    node = burned()
    node.now = node.now._replace(boot_id="boot-2")
    node.counts[1] = 0
    assert node.hook(blind=True) == []
    node.wait(0.1)
    assert node.hook() == []
    node.wait(0.1, 1)
    node.hook()
    (entry,) = node.memory["evidence"].values()
    assert entry["errors"] == 1


def test_a_reboot_ends_it_for_a_gpu_that_does_not_answer_at_first() -> None:
    node = burned()
    assert node.hook()
    rebooted = later(node.now, 600, boot_id="boot-2")
    node.look_at(later(rebooted, 0, gpu(1, status=LOST)))
    assert node.look_at(later(rebooted, 60, with_link(gpu(1, links=1), 0, nvlink_recovery=4))) == []
    assert node.memory["evidence"] == {}


def test_what_links_count_while_they_train_is_no_evidence() -> None:
    rules = policy(rule("burn", "nvlink_recovery", fail=Level(cusum=RATES, settle_s=600.0)))
    for began_s, told in ((300.0, False), (900.0, True)):  # the look before, since boot
        node = Node(rules)
        node.now = snapshot(gpu(0), gpu(1), uptime_s=began_s)
        node.hook()
        node.wait(400 / HOUR, 3)
        node.hook()
        assert bool(node.memory["evidence"]) is told


def test_no_time_passes_while_there_is_no_data() -> None:
    node = burned()
    held = node.memory["evidence"]
    node.wait(50)
    node.hook(blind=True)
    assert node.memory["evidence"] == held


def test_a_total_gathers_only_where_the_links_say_nothing() -> None:
    both, alone = Node(), Node()
    for n in range(8):
        both.look_at(later(both.now, n * 360, with_link(gpu(1, links=1, nvlink_recovery_total=n), 0, nvlink_recovery=n)))
        found = alone.look_at(later(alone.now, n * 360, gpu(1, links=0, nvlink_recovery_total=n)))
    assert [entry["place"] for entry in both.memory["evidence"].values()] == [LINK1]
    assert [f.entity for f in found] == [uuid(1)]
    # 18 links: their normal rates together, and one faulty one among them
    assert found[0].evidence.expected == pytest.approx(18 * 0.001 * 0.7)
    assert found[0].message.endswith("0.018/h is normal")


def test_a_total_gathers_while_the_counters_of_its_links_stand_still_and_not_what_they_tell() -> None:
    """NVLink 5: the GPU's total of recoveries grows, the links' own counters need not."""
    node = Node()
    for n in range(8):
        found = node.look_at(later(node.now, n * 360, with_link(gpu(1, links=1, nvlink_recovery_total=n), 0, nvlink_recovery=0)))
    assert [f.entity for f in found] == [uuid(1)]
    (before,) = [entry for entry in node.memory["evidence"].values() if entry["place"] == uuid(1)]
    node.look_at(later(node.now, 8 * 360, with_link(gpu(1, links=1, nvlink_recovery_total=10), 0, nvlink_recovery=3)))
    (after,) = [entry for entry in node.memory["evidence"].values() if entry["place"] == uuid(1)]
    assert after["errors"] == before["errors"]
    assert (after["sum"] < before["sum"], after["seconds"] > before["seconds"]) == (True, True)


# Settling


def test_whoever_resumes_the_node_has_settled_it_and_new_errors_are_gathered_anew() -> None:
    node = burned()
    (finding,) = node.hook()
    (ident,) = finding.idents
    node.wait(0.5, 1)
    (again,) = node.hook()
    assert again.idents == (ident,)  # more of the same is the same evidence: the drain answers it
    node.settled = settled.table([ident])
    node.wait(0.1, 1)
    assert node.hook() == []
    (entry,) = node.memory["evidence"].values()
    assert entry["errors"] == 1
    for _ in range(2):
        node.wait(0.2, 1)
        found = node.hook()
    assert [f.entity for f in found] == [LINK1]
    assert found[0].idents != (ident,)


def test_releasing_the_gpu_names_the_evidence_of_its_links() -> None:
    node = burned()
    (finding,) = node.hook()
    assert open_names(node.memory, uuid(1)) == finding.idents
    assert open_names(node.memory, uuid(0)) == ()


@pytest.mark.parametrize("broken", [7, [], {}, {"sum": "much"}, None])
def test_a_damaged_memory_holds_no_evidence(broken: Any) -> None:
    node = burned()
    (key,) = node.memory["evidence"]
    node.memory = {**node.memory, "evidence": {key: broken}}
    assert node.hook() == []


# What it promises


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 30))
def test_the_sum_is_never_above_that_of_somebody_who_watches_all_the_time(seed: int, look_h: float) -> None:
    chances = random.Random(seed)
    node = Node()
    node.hook()
    errors = [0.0]
    while errors[-1] < 6 * look_h:
        errors.append(errors[-1] + chances.expovariate(0.5))
    watched, last_h = 0.0, 0.0
    for n in range(1, 6):
        seen = [h for h in errors[1:] if last_h < h <= n * look_h]
        at = last_h
        for h in seen:
            watched, at = max(0.0, watched - FALL * (h - at)) + 1, h
        watched, last_h = max(0.0, watched - FALL * (n * look_h - at)), n * look_h
        node.wait(look_h, len(seen))
        node.hook()
        kept = [entry["sum"] for entry in node.memory["evidence"].values()]
        assert (kept[0] if kept else 0.0) <= watched + 1e-6


def test_the_budget_and_the_time_to_find_a_slow_burn() -> None:
    assert chance.false_alarms(0.001, 0.5, LIMIT) <= FalseAlarms().alpha / TEST_S * HOUR * (1 + 1e-9)
    found_h = []
    for seed in range(40):
        chances = random.Random(seed)
        node = Node()
        node.hook()
        hours = 0.0
        while True:
            hours += 0.5
            node.wait(0.5, sum(chances.random() < 0.5 / 60 for _ in range(30)))
            if node.hook():
                break
        found_h.append(hours)
    found_h.sort()
    assert found_h[20] <= 10, "half of the links with an error every two hours within ten hours"
    assert found_h[37] <= 24


# Through the hooks and the command


def test_a_released_gpu_is_not_excluded_again_for_the_same_errors(tmp_path: Path) -> None:
    node = Site(tmp_path, policy={"narrow": {"enabled": True, "jobs": "any"}, "rules": {"nvl_recovery": {"mode": "enforce"}}})
    node.slurm()
    node.hook("health_check")

    def error() -> None:
        with node.edit() as world:
            world.add("g3.link11.recovery", 1)
            world.advance(900)
        node.hook("health_check")

    for _ in range(3):
        error()
    (excluded,) = node.nvhc_json("gpu", "list")["exclusions"]
    assert excluded["code"] == "NVL-RECOVERY"
    node.nvhc("gpu", "release", excluded["uuid"])
    error()
    assert node.nvhc_json("gpu", "list")["exclusions"] == []


def test_a_look_by_hand_counts_nothing(tmp_path: Path) -> None:
    node = Site(tmp_path)
    node.hook("health_check")
    with node.edit() as world:
        world.add("g3.link11.recovery", 1)
        world.advance(900)

    def kept() -> Any:
        with node.ledger() as ledger:
            return ledger.fold_memory(lambda memory, look: ((memory, look), memory, look))

    before = kept()
    node.nvhc("check", code=None)
    assert kept() == before
    node.hook("health_check")
    memory, look = kept()
    assert [entry["errors"] for entry in memory["evidence"].values()] == [1]
    assert look != before[1]
