"""judge/second_opinion.py: DCGM's own health check as evidence."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from build import H100, T0, gpu, later, policy, rule, snapshot, uuid, with_link, xid
from build import run as judged
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.model import settled
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.history import Health, Incident
from slurm_nvhc.model.reading import NOT_SUPPORTED, NoData
from slurm_nvhc.model.snapshot import Snapshot, Trouble
from slurm_nvhc.policy.compiled import Engine, Expect, Level

ENGINE = Engine(health="warn")
REPLAY = rule("replay", "nvlink_replay", "nvlink_replay_total", fail=Level(increase_above=0), finding="NVL-REPLAY")
FATAL = rule("fatal", kind="event", fail=Level(xid=(79,)), sticky=True, finding="XID-FATAL")

CRITICAL = Incident("nvlink", 71, "fail", uuid(3), "Detected 2 nvlink_replay_error_count_total NvLink errors on GPU 3's NVLink")
LIFETIME = CRITICAL._replace(text="Detected 57 nvlink_replay_err NvLink errors on GPU 3's NVLink")
DOWN = Incident("nvlink", 14, "fail", uuid(3), "GPU 3's NvLink link 1 is down")
MEMORY = Incident("memory", 52, "fail", uuid(3), "faulty memory")


def run(
    *incidents: Incident, now: Optional[Snapshot] = None, engine: Engine = ENGINE, rules: Any = (), hook: str = "health_check", **more: Any
) -> Any:
    sections = {key: more.pop(key) for key in ("expect", "mode") if key in more}
    health = more.pop("health", Health(True, incidents))
    return judged(hook, now or snapshot(gpu(3)), policy(*rules, engine=engine, **sections), health=health, **more)


def said(judgement: Any) -> list[Finding]:
    return [f for f in judgement.findings if f.code == "DCGM-HEALTH"]


def only(judgement: Any) -> Finding:
    (finding,) = said(judgement)
    return finding


@pytest.mark.parametrize("result", ["warn", "fail"])
def test_it_is_a_warning_at_most_and_asks_for_a_note_only(result: str) -> None:
    got = run(MEMORY._replace(result=result))
    found = only(got)
    assert (found.verdict, found.action, found.klass, found.entity, found.gpu["nvml_index"]) == ("warn", "note", "gpu", uuid(3), 3)
    assert found.message == f"DCGM health says {result} (memory, code 52): faulty memory"
    assert (found.evidence.text, found.evidence.after, found.evidence.rule) == ("faulty memory", result, "engine.health")
    assert [p.action for p in got.decision.proposals] == ["note"]
    assert got.gpu_verdicts == {uuid(3): "warn"}


def test_note_tells_it_without_a_verdict() -> None:
    got = run(MEMORY, engine=Engine(health="note"))
    assert (only(got).verdict, got.decision.verdict, got.decision.proposals) == ("ok", "ok", ())


def test_observe_mode_holds_for_it_too() -> None:
    got = run(MEMORY, mode="observe")
    assert (only(got).mode, got.decision.proposals) == ("observe", ())


def test_only_a_health_check_that_asked_tells_it() -> None:
    assert said(run(MEMORY, hook="prolog", gpus=(3,))) == []
    assert said(run(health=None)) == []
    assert said(run()) == []


def test_not_known_is_told_and_is_no_verdict() -> None:
    found = only(run(health=Health(False)))
    assert (found.verdict, found.entity, found.klass) == ("ok", "node", "node")
    assert "not known" in found.message
    assert said(run(health=Health(False, troubles=(Trouble("MON-ENGINE-HUNG", "engine", "x"),)))) == []


def test_entities() -> None:
    link = Incident("nvlink", 13, "warn", f"{uuid(3)}/link1", "flit")
    gone = MEMORY._replace(entity=uuid(5))
    node = MEMORY._replace(system="nvswitch", entity="node")
    got = {f.entity: f for f in said(run(link, gone, node, known=(gpu(5).identity,)))}
    assert [got[e].klass for e in (f"{uuid(3)}/link1", uuid(5), "node")] == ["link", "gpu", "node"]
    assert got[f"{uuid(3)}/link1"].gpu["nvml_index"] == 3
    assert got[uuid(5)].gpu["nvml_index"] == 5


def test_several_of_a_kind_are_one() -> None:
    assert only(run(MEMORY, MEMORY._replace(text="again"))).message.endswith("faulty memory (2 times)")
    assert len(said(run(MEMORY, MEMORY._replace(code=4)))) == 2


def test_a_long_text_is_cut_in_the_message_only() -> None:
    found = only(run(MEMORY._replace(text="x" * 500)))
    assert len(found.message) < 200
    assert found.evidence.text == "x" * 500


# --- joined with our own findings


def test_it_says_what_our_own_rules_found_on_the_same_gpu() -> None:
    before = snapshot(gpu(3), gpu(4))
    now = later(before, 300, with_link(gpu(3, nvlink_replay_total=2), 1, nvlink_replay=2), gpu(4))
    got = run(CRITICAL, MEMORY._replace(entity=uuid(4)), now=now, before=before, rules=[REPLAY])
    assert {f.entity: f.message.partition("beside ")[2] for f in said(got)} == {uuid(3): "NVL-REPLAY", uuid(4): ""}


# --- set aside


@pytest.mark.parametrize("code", [10, 12])
def test_any_slowdown_within_a_minute_is_set_aside(code: int) -> None:
    assert set_aside(run(Incident("power", code, "warn", uuid(3), "x")))
    assert not set_aside(run(Incident("power", 11, "warn", uuid(3), "power can not be read")))


def set_aside(judgement: Any) -> bool:
    finding = only(judgement)
    assert (finding.verdict == "ok") == ("set aside" in finding.message)
    return finding.verdict == "ok"


@pytest.mark.parametrize(
    ("incident", "grown", "seconds", "aside"),
    [
        (CRITICAL, 0, 300, True),
        (CRITICAL, 1, 300, False),
        (CRITICAL, 0, None, False),  # no window: nothing is known about growth
        (LIFETIME, 0, 300, True),
        (LIFETIME, 0, None, True),  # a counter since the last reset says nothing by itself
        (LIFETIME, 1, 300, False),
    ],
)
def test_a_lifetime_counter_is_set_aside_unless_it_grew(incident: Incident, grown: int, seconds: Optional[float], aside: bool) -> None:
    before = snapshot(gpu(3, nvlink_replay_total=57), gpu(4))
    now = later(before, 300, gpu(3, nvlink_replay_total=57 + grown), gpu(4, nvlink_replay_total=9))
    assert set_aside(run(incident, now=now, before=before if seconds else None)) is aside


def test_counters_that_can_not_be_read_do_not_set_it_aside() -> None:
    blind = {"nvlink_replay_total": NoData(NOT_SUPPORTED)}
    before = snapshot(gpu(3, links=0, **blind))
    assert not set_aside(run(CRITICAL, now=later(before, 300, gpu(3, links=0, **blind)), before=before))


def test_a_reset_in_the_window_does_not_set_it_aside() -> None:
    before = snapshot(gpu(3, links=0, nvlink_replay_total=57))
    assert not set_aside(run(CRITICAL, now=later(before, 300, gpu(3, links=0)), before=before))


def down(links: int = 2) -> Any:
    card = gpu(3, links)
    for number in range(links):
        card = with_link(card, number, nvlink_state="down")
    return card


def test_links_that_were_never_up_are_set_aside_where_none_is_expected() -> None:
    assert set_aside(run(DOWN, now=snapshot(down())))
    assert not set_aside(run(DOWN, now=snapshot(down()), expect=Expect(links=2)))
    assert set_aside(run(DOWN._replace(entity=f"{uuid(3)}/link1"), now=snapshot(down()), expect=Expect(links=1)))


def test_links_that_were_up_once_are_not_set_aside() -> None:
    first = snapshot(gpu(3))
    memory = run(now=first).memory
    assert not set_aside(run(DOWN, now=later(first, 300, down()), memory=memory))
    some = snapshot(with_link(gpu(3), 1, nvlink_state="down"))
    assert not set_aside(run(DOWN, now=some))
    assert set_aside(run(DOWN._replace(entity=f"{uuid(3)}/link1"), now=some))


def test_links_train_after_boot() -> None:
    assert set_aside(run(DOWN, now=snapshot(down(), uptime_s=40), expect=Expect(links=2)))


@pytest.mark.parametrize(("number", "aside"), [(31, True), (43, True), (64, False), (63, False), (9999, False)])
def test_an_applications_own_xid_is_set_aside(number: int, aside: bool) -> None:
    assert set_aside(run(Incident("memory", 101, "warn", uuid(3), f"XID error {number} (triggered by XID {number}: x)"))) is aside


def test_an_xid_that_an_administrator_settled_is_set_aside_until_it_comes_again() -> None:
    fallen = Incident("all", 120, "fail", uuid(3), "GPU 3 has fallen off the bus (triggered by XID 79: x)")
    assert not set_aside(run(fallen, rules=[FATAL]))
    at = {settled.key(uuid(3), 79): T0 - 300 * 10**9}
    assert set_aside(run(fallen, rules=[FATAL], settled=at))
    again = snapshot(gpu(3), events=(xid(79, 3, T0 - 5),))
    assert not set_aside(run(fallen, rules=[FATAL], settled=at, now=again, events_are_new=True))


@given(
    st.lists(
        st.builds(
            Incident,
            st.sampled_from(["nvlink", "memory", "all", ""]),
            st.sampled_from([3, 10, 12, 14, 71, 101, 120, -1]),
            st.sampled_from(["warn", "fail"]),
            st.sampled_from([uuid(3), f"{uuid(3)}/link1", f"{uuid(3)}/link77", uuid(9), "node"]),
            st.one_of(st.text(max_size=60), st.just("XID 79"), st.just("XID 31")),
        ),
        max_size=12,
    ),
    st.sampled_from(["note", "warn"]),
)
def test_it_never_crashes_and_never_goes_beyond_a_warning(incidents: list[Incident], word: str) -> None:
    got = run(*incidents, engine=Engine(health=word), now=snapshot(gpu(3), gpu(4, model=H100)))
    assert {f.verdict for f in said(got)} <= ({"ok", "warn"} if word == "warn" else {"ok"})
    assert {p.action for p in got.decision.proposals} <= {"note"}
