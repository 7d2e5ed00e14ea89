"""What judge remembers: bounded, whole, and never a reason to raise, whatever a damaged ledger gives back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from build import MINUTE_NS, T0, gpu, later, policy, rule, run, snapshot, uuid, with_link, xid
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.compare import since
from slurm_nvhc.judge import rows
from slurm_nvhc.judge.memory import Notes, forget_links, open_names
from slurm_nvhc.model.snapshot import LOST, Event, Snapshot, Trouble
from slurm_nvhc.policy.compiled import Cusum, Level, Poisson

HOUR = 3600.0
THRICE = Level(value_above=1e-12, hits=3, within_s=1500.0)
RULES = policy(
    rule("down", "nvlink_state", fail=Level(went_down=True, consecutive=3, spacing_s=60.0)),
    rule("replay", "nvlink_replay", fail=Level(increase_at_least=1, hits=3, within_s=864000.0)),
    rule("jobs", "nvlink_replay", fail=Level(increase_at_least=1, hits=2, of_last=5)),
    rule("burn", "nvlink_recovery", fail=Level(cusum=Cusum(0.001 / HOUR, 0.5 / HOUR))),
    rule("own", "nvlink_recovery", warn=Level(poisson=Poisson(0.001 / HOUR, own_per_s=1 / HOUR))),
    rule("ber", "nvlink5_effective_ber", fail=THRICE),
    rule("gone", kind="presence", fail=Level(lost=True, consecutive=3, spacing_s=60.0), finding="GPU-LOST"),
    rule("fatal", kind="event", fail=Level(xid=(74, 79)), sticky=True, finding="XID-FATAL"),
    rule("users", kind="event", warn=Level(xid=(31,), users=3, within_s=86400.0), finding="XID-APP"),
    rule("twice", kind="event", fail=Level(xid=(94,), hits=2, within_s=86400.0), finding="XID-CONTAINED"),
    rule("switch", kind="event", fail=Level(sxid=()), sticky=True, finding="SXID-FATAL"),
)  # fmt: skip


def node(minute: int, errors: int = 0, state: str = "up", status: str = "ok", ber: float = 0.0, events: Any = ()) -> Snapshot:
    one = with_link(gpu(1, nvlink5_effective_ber=ber, status=status), 0, nvlink_replay=errors, nvlink_recovery=errors, nvlink_state=state)
    return later(snapshot(gpu(0), one), 60 * minute, events=tuple(events))


def history(memory: Any, first: int = 0) -> Any:
    """The memory after an hour of a node on which everything goes wrong that is remembered."""
    look = None
    for n in range(first, first + 6):
        events = [xid(code, 1, T0 + n * 10 * MINUTE_NS, f"b:{10 * n + i}") for i, code in enumerate((31, 74, 94))]
        at_ns = T0 + n * 10 * MINUTE_NS
        events.append(Event("sxid", 20034, at_ns, "0000:c1:00.0", "SXid", "kernel", f"b:{10 * n + 9}", link=3, fatal=True))
        now = node(10 * n, n, "down" if n % 2 else "up", LOST if n == 5 else "ok", 1e-9, events)
        now = now._replace(troubles=(Trouble("MON-HOST", "a", "b"),))
        before = node(10 * n - 10, max(0, n - 1))
        grown, look = since(look, now)
        hook = ("health_check", "prolog", "epilog")[n % 3]
        found = run(
            hook, now, RULES, None if hook == "prolog" else before, memory, None if hook == "health_check" else (1,), key=f"k{n}",
            run_id=f"r{n}", since_look=grown,
        )  # fmt: skip
        memory = found.memory
    return memory


WHOLE = history({})
PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A memory of which any section, row or part of a row was replaced."""
    out = json.loads(json.dumps(WHOLE))
    for section in draw(st.lists(st.sampled_from(sorted(out)), max_size=4)):
        of = out[section]
        if not isinstance(of, dict) or not of or draw(st.integers(0, 3)) == 0:
            out[section] = draw(PARTS)
            continue
        key = draw(st.sampled_from(sorted(of)))
        row = of[key]
        if isinstance(row, dict) and row and draw(st.booleans()):
            row[draw(st.sampled_from(sorted(row)))] = draw(PARTS)
        elif isinstance(row, list) and row and draw(st.booleans()):
            row[draw(st.integers(0, len(row) - 1))] = draw(PARTS)
        else:
            of[key] = draw(PARTS)
    return out


def test_the_history_fills_the_sections_that_the_fuzz_is_about() -> None:
    filled = {name for name, section in WHOLE.items() if section}
    assert filled >= {"streaks", "hits", "job_hits", "jobs", "links_up", "open", "monitor", "past", "evidence", "faults", "app_failed"}


def test_what_judge_writes_is_whole() -> None:
    """A row that the next hook dropped would be forgotten with every look."""
    stored = json.loads(json.dumps(WHOLE))
    assert rows.opened(stored) == stored == WHOLE


@settings(max_examples=80, deadline=None)
@given(damaged())
def test_no_memory_makes_judge_raise(memory: Any) -> None:
    after = history(memory, first=6)
    assert rows.opened(json.loads(json.dumps(after))) == after
    open_names(memory, uuid(1))
    forget_links(memory, [(uuid(1), 0)])


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(rows.SECTIONS)) | st.text(max_size=5), PARTS | st.dictionaries(st.text(max_size=9), PARTS)))
def test_nor_does_one_that_judge_never_wrote(memory: Any) -> None:
    assert rows.opened(json.loads(json.dumps(history(memory, first=6))))


def test_rows_that_are_whole_survive_the_damage_beside_them() -> None:
    memory = json.loads(json.dumps(WHOLE))
    memory["open"]["GPU-x|79"] = {"place": "GPU-x", "last_ns": 1}
    memory["hits"] = "gone"
    opened = rows.opened(memory)
    assert (opened["open"], opened["hits"], opened["evidence"]) == (WHOLE["open"], {}, WHOLE["evidence"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 2**70, True, "3"])
def test_a_number_that_can_not_be_counted_with_is_none(number: Any) -> None:
    (key,) = WHOLE["evidence"]
    entry = WHOLE["evidence"][key]
    assert rows.opened({"evidence": {key: {**entry, "sum": number}}})["evidence"] == {}


# Bounds


def notes(now_ns: int = T0, memory: Any = None) -> Notes:
    return Notes(memory or {}, now_ns, "boot-1", "r1")


def test_no_more_occurrences_are_kept_than_the_level_asks_for() -> None:
    level = Level(increase_at_least=1, hits=3, within_s=864000.0)
    held = notes()
    for n in range(70):
        count, _users = held.occurrences("k", [(T0 - (70 - n) * MINUTE_NS, f"i{n}", "")], level)
    assert count == 3
    assert [ident for _at, ident, _who in held.memory()["hits"]["k"]] == ["i67", "i68", "i69"]


def test_what_is_older_than_within_is_forgotten() -> None:
    level = Level(value_above=1, hits=3, within_s=600.0)
    held = notes()
    held.occurrences("k", [(T0 - 601 * 10**9, "old", ""), (T0 - 599 * 10**9, "young", "")], level)
    assert [ident for _at, ident, _who in held.memory()["hits"]["k"]] == ["young"]
    later_on = notes(T0 + 700 * 10**9, held.memory())
    assert later_on.occurrences("k", [], level) == (0, 0)
    assert later_on.memory()["hits"] == {}


def test_one_user_with_many_occurrences_does_not_push_the_others_out() -> None:
    level = Level(xid=(31,), users=3, within_s=864000.0)
    held = notes()
    held.occurrences("k", [(T0 - 90 * MINUTE_NS, "a", "1"), (T0 - 80 * MINUTE_NS, "b", "2")], level)
    for n in range(60):
        count, users = held.occurrences("k", [(T0 - (60 - n) * MINUTE_NS, f"i{n}", "3")], level)
    assert (count, users) == (3, 3)
    assert len(held.memory()["hits"]["k"]) == 3


def test_a_level_remembers_only_the_jobs_that_it_asks_about() -> None:
    held = notes()
    for n in range(10):
        held.count_job("g", f"w{n}")
        held.job_hits("k", "g", True, of_last=4)
    assert held.memory()["job_hits"]["k"] == [7, 8, 9, 10]


def test_links_that_all_stumble_for_hours_cost_little() -> None:
    """144 links, each seen to grow by 70 looks, with three to be remembered: 50 KB, once nearly a MB."""
    rules = policy(rule("x", "nvlink_replay", fail=Level(increase_at_least=1, hits=3, within_s=864000.0)))
    memory: Any = {}
    before = None
    for n in range(8):
        gpus = [gpu(g, links=18)._replace(links={i: {"nvlink_state": "up", "nvlink_replay": n} for i in range(18)}) for g in range(8)]
        now = later(snapshot(*gpus), 300 * n)
        memory = run("health_check", now, rules, before, memory, key=str(n)).memory if before is not None else memory
        before = now
    assert len(memory["hits"]) == 144
    assert {len(row) for row in memory["hits"].values()} == {3}
    assert len(json.dumps(memory)) < 80_000


def test_the_fullest_memory_is_below_four_megabytes_and_keeps_what_was_touched_last() -> None:
    """Every section with more rows than are kept, each as large as judge writes them."""
    place = f"{uuid(1)}/link11"
    largest = {name: max(section.values(), key=lambda row: len(json.dumps(row)), default="r1") for name, section in WHOLE.items()}
    largest |= {"resets": [T0, T0, "b" * 36], "app_clean": largest["app_failed"]}
    full = {name: {f"rule_of_some_length|{n:08x}|{place}": largest[name] for n in range(5000)} for name in rows.SECTIONS}
    full["hits"] = {key: [[T0, f"{place}|nvlink_replay|{n}|{'b' * 36}", ""] for n in range(64)] for key in full["hits"]}
    kept = rows.kept(full)
    assert len(json.dumps(kept, separators=(",", ":"))) < 4_000_000
    for name, section in kept.items():
        assert list(section)[-1:] == list(full[name])[-1:], name
        assert len(section) <= rows.SECTIONS[name].keep


# Occurrences of what has no amount


def gauge(look: float, hook: str = "health_check", memory: Any = None) -> Any:
    """A look at the error rate of a link, at this second."""
    base = node(0)
    now = later(base, look)._replace(gpus=node(0, ber=3e-12).gpus)
    gpus = None if hook == "health_check" else (1,)
    return run(hook, now, RULES, None if hook == "prolog" else base, memory, gpus, key=f"{hook}{look}", run_id=f"{hook}{look}")


def bad(found: Any) -> bool:
    return any(f.evidence.rule == "ber" and f.verdict == "fail" for f in found.findings)


def test_hooks_within_seconds_see_a_bad_gauge_once() -> None:
    """An epilog, the prologs of the next jobs, a second look and a health check: no three of the last 25 minutes."""
    memory: Any = {}
    for hook, at in (("epilog", 600), ("prolog", 602), ("prolog", 604), ("prolog", 606), ("health_check", 608), ("health_check", 610)):
        found = gauge(at, hook, memory)
        memory = found.memory
        assert not bad(found), (hook, at)


def test_looks_a_minute_apart_count() -> None:
    memory: Any = {}
    told = []
    for at in (600, 660, 720):
        found = gauge(at, memory=memory)
        memory = found.memory
        told.append(bad(found))
    assert told == [False, False, True]


def test_growth_counts_once_however_near_the_looks_are() -> None:
    """It is named by where the counter stood: two errors within a minute are two."""
    memory: Any = {}
    for n, at in enumerate((600, 610, 620), start=1):
        now = later(node(0), at)._replace(gpus=node(0, errors=n).gpus)
        found = run("health_check", now, RULES, node(0), memory, key=str(n))
        memory = found.memory
    assert any(f.evidence.rule == "replay" and f.verdict == "fail" for f in found.findings)
