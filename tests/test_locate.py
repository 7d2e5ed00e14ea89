"""Locating: who fell first, what many GPUs share, exchanged cards, users' programs; and what holds for any findings."""

from __future__ import annotations

import random
from typing import Any, Sequence

import pytest
from build import DAY_NS, H100, T0, gpu, job, later, policy, rule, run, snapshot, uuid, with_link, xid
from hypothesis import given, settings
from hypothesis import strategies as st
from test_locate_links import ALL, SWITCHES, link, node, only, port, ports

from slurm_nvhc.judge import Input, Window, memory
from slurm_nvhc.judge.locate import locate
from slurm_nvhc.judge.scene import worth
from slurm_nvhc.judge.users import CONVICTING
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.snapshot import Event
from slurm_nvhc.policy.compiled import Level

SECOND = 10**9
LOST = rule("lost", kind="presence", finding="GPU-LOST", fail=Level(lost=True))
XIDS = rule("xids", kind="event", fail=Level(xid_other=True), finding="XID-FATAL")
SXIDS = rule("sxids", kind="event", fail=Level(sxid=()), finding="SXID-FATAL")
APP = rule("app", kind="event", warn=Level(xid=(13, 31, 43, 45)), finding="XID-APP", action="note")
MEMORY = rule("remap", "row_remap_failure", fail=Level(value_is=(1,)), finding="MEM-REMAP-FAILED")
BRAKE = rule("brake", "power_brake_ns", warn=Level(increase_above=0), finding="POWER-BRAKE", action="note")
HEAT = rule("heat", "hw_thermal_slowdown_ns", warn=Level(share_above=0.01), finding="THERMAL-SLOWDOWN", action="note")
FABRIC = rule("fabric", "fabric_state", fail=Level(value_is=(4,)), finding="FABRIC-STATE")
RULES = policy(*ALL.rules.values(), LOST, XIDS, SXIDS, APP, MEMORY, BRAKE, HEAT, FABRIC)


def sxid(switch: int, code: int, at_ns: int, number: int | None = None, fatal: bool = True) -> Event:
    address = SWITCHES[switch].removeprefix("switch:")
    text = f"nvidia-nvswitch{switch}: SXid (PCI:{address}): {code}, {'Fatal' if fatal else 'Non-fatal'}, Link {number} x"
    return Event("sxid", code, at_ns, address, text, "kernel", f"b:s{code}:{number}", fatal=fatal, link=number)


def events(*happened: Event, gpus: Sequence[Any] = (), wired: bool = True, hook: str = "health_check", **more: Any) -> Any:
    before = snapshot(*(gpus or node(wired=wired)))
    now = later(before, 60, *gpus, events=happened)
    return run(hook, now, RULES, before, **more).suspects


# Who fell first


def test_the_peers_of_a_dead_gpu_are_its_echoes() -> None:
    got = only(events(xid(74, 1, T0 + SECOND), xid(74, 2, T0 + 2 * SECOND), xid(79, 3, T0 + SECOND)))
    assert (got.kind, got.entity, got.named) == ("gpu", uuid(3), True)
    assert len(got.findings) == 3
    assert "gpu1, gpu2" in got.why


@pytest.mark.parametrize("code", [79, 119, 120])
def test_each_xid_of_a_gpu_that_is_gone_counts(code: int) -> None:
    assert only(events(xid(74, 1, T0 + 3 * SECOND), xid(code, 3, T0 + 4 * SECOND))).entity == uuid(3)


def test_an_xid_long_after_is_no_echo() -> None:
    got = events(xid(79, 3, T0 + SECOND), xid(74, 1, T0 + 40 * SECOND))
    assert {(s.kind, s.entity) for s in got} == {("gpu", uuid(3)), ("link", uuid(1))}


def test_of_two_dead_gpus_the_first_is_behind_the_echo() -> None:
    got = events(xid(79, 5, T0 + 2 * SECOND), xid(79, 3, T0 + SECOND), xid(74, 1, T0 + 3 * SECOND))
    by = {s.entity: set(s.findings) for s in got}
    assert f"XID-NVLINK {uuid(1)}" in by[uuid(3)]
    assert by[uuid(5)] == {f"XID-FATAL {uuid(5)}"}


def test_a_gpu_outside_of_the_job_that_fell_first_is_named() -> None:
    """The epilog judges the job's GPUs only; the 74 on one of them still points to the neighbour's 79."""
    before = snapshot(*node())
    now = later(before, 60, events=(xid(74, 1, T0 + SECOND), xid(79, 3, T0 + SECOND)))
    got = only(run("epilog", now, RULES, before, gpus=(1,)).suspects)
    assert (got.kind, got.entity, got.findings) == ("gpu", uuid(3), (f"XID-NVLINK {uuid(1)}",))


def test_a_lost_gpu_without_an_xid_explains_what_was_logged_since_the_last_look() -> None:
    all_of = node()
    rows = tuple(g.identity for g in all_of)
    before = snapshot(*all_of)
    now = later(before, 300, *all_of[:3], *all_of[4:], events=(xid(74, 1, T0 + 100 * SECOND),))
    got = only(run("health_check", now, RULES, before, known=rows).suspects)
    assert (got.kind, got.entity) == ("gpu", uuid(3))
    late = later(before, 3600, *all_of[:3], *all_of[4:], events=(xid(74, 1, T0 + 100 * SECOND),))
    assert len(run("health_check", late, RULES, before, known=rows).suspects) == 2


def test_everything_that_is_said_about_a_dead_gpu_is_behind_it() -> None:
    all_of = list(node(grown={link(3, k): {"nvlink_state": "down"} for k in range(8)}))
    before = snapshot(*node())
    now = later(before, 60, *all_of, events=(xid(79, 3, T0 + SECOND), xid(45, 3, T0 + SECOND)))
    got = only(run("health_check", now, RULES, before).suspects)
    assert (got.kind, got.entity) == ("gpu", uuid(3))
    assert len(got.findings) == 10


def test_a_switchs_port_to_a_dead_gpu_is_an_echo() -> None:
    got = only(events(xid(79, 3, T0 + SECOND), sxid(1, 20034, T0 + 2 * SECOND, 25)))
    assert (got.kind, got.entity) == ("gpu", uuid(3))
    elsewhere = events(xid(79, 3, T0 + SECOND), sxid(1, 20034, T0 + 2 * SECOND, 9))
    assert {(s.kind, s.entity) for s in elsewhere} == {("gpu", uuid(3)), ("link", link(1, 1))}


def test_most_gpus_gone_at_once_are_the_nodes() -> None:
    got = only(events(*(xid(79, n, T0 + SECOND) for n in range(5))))
    assert (got.kind, got.entity) == ("node", "node")
    assert {s.kind for s in events(*(xid(79, n, T0 + SECOND) for n in range(4)))} == {"gpu"}


def test_a_switch_that_fails_with_several_gpus_links() -> None:
    got = only(events(sxid(2, 20034, T0 + SECOND, 2), xid(74, 0, T0 + SECOND), xid(74, 5, T0 + 2 * SECOND)))
    assert (got.kind, got.entity, len(got.findings)) == ("switch", SWITCHES[2], 3)


def test_an_sxid_that_hits_the_whole_fabric_is_the_switchs() -> None:
    assert only(events(sxid(2, 23001, T0 + SECOND, 2))).kind == "switch"
    got = events(xid(79, 3, T0 + SECOND), sxid(1, 23001, T0 + 2 * SECOND, 25))
    assert {(s.kind, s.entity) for s in got} == {("gpu", uuid(3)), ("switch", SWITCHES[1])}


def test_an_sxid_of_one_port_is_a_links() -> None:
    got = only(events(sxid(1, 20034, T0 + SECOND, 25), xid(74, 3, T0 + SECOND)))
    assert (got.kind, got.entity, got.far, len(got.findings)) == ("link", link(3, 1), port(1, 25), 2)


def test_xid_145_follows() -> None:
    got = events(xid(145, 1, T0 + 2 * SECOND), xid(149, 3, T0 + SECOND)._replace(text="NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x1 0x2)"))
    assert only(got).entity == link(3, 5)
    alone = only(events(xid(145, 1, T0 + 2 * SECOND)))
    assert (alone.entity, alone.named) == (uuid(1), False)


def test_45_convicts_nobody() -> None:
    got = only(events(xid(45, 1, T0 + SECOND)))
    assert (got.kind, got.named) == ("code", False)
    with_memory = only(events(xid(45, 1, T0 + 2 * SECOND), xid(48, 1, T0 + SECOND)))
    assert (with_memory.kind, with_memory.entity, with_memory.named) == ("gpu", uuid(1), True)


def test_a_programs_xid_beside_another_fault_of_the_gpu_is_its_own() -> None:
    got = events(xid(31, 1, T0 + 2 * SECOND), xid(48, 1, T0 + 50 * SECOND))
    assert {(s.kind, s.named) for s in got} == {("code", False), ("gpu", True)}


# What many share


def braked(ns: dict[int, int], hook: str = "health_check", field: str = "power_brake_ns", **more: Any) -> Any:
    before = snapshot(*(gpu(n, **{field: 0}) for n in range(8)))
    return run(hook, later(before, 600, *(gpu(n, **{field: ns.get(n, 0)}) for n in range(8))), RULES, before, **more).suspects


@pytest.mark.parametrize("field", ["power_brake_ns", "hw_thermal_slowdown_ns"])
def test_many_gpus_at_once_are_the_nodes_and_one_is_its_own(field: str) -> None:
    got = only(braked({n: 60 * SECOND for n in range(6)}, field=field))
    assert (got.kind, got.named, len(got.findings)) == ("node", True, 6)
    got = only(braked({3: 60 * SECOND}, field=field))
    assert (got.kind, got.entity, got.named) == ("gpu", uuid(3), True)
    assert "7 of 8 are not" in got.why


def test_neighbours_outside_of_the_job_count() -> None:
    from slurm_nvhc.compare import compare

    before = snapshot(*(gpu(n, power_brake_ns=0) for n in range(8)))
    now = later(before, 600, *(gpu(n, power_brake_ns=60 * SECOND) for n in range(8)))
    got = only(run("epilog", now, RULES, before, gpus=(0, 1), since_look=compare(before, now)).suspects)
    assert (got.kind, got.named) == ("node", True)


def test_both_gpus_of_a_job_may_be_either() -> None:
    got = only(braked({0: 60 * SECOND, 1: 60 * SECOND}, hook="epilog", gpus=(0, 1)))
    assert (got.kind, got.named) == ("node", False)


def test_fabric_of_all_gpus_is_the_nodes_or_the_broken_switchs() -> None:
    before = snapshot(*(g._replace(readings={**g.readings, "fabric_state": 4}) for g in node()))
    assert only(run("prolog", before, RULES, gpus=tuple(range(8))).suspects).kind == "node"
    now = later(before, 60, events=(sxid(2, 23001, T0 + SECOND, 2),))
    got = only(run("health_check", now, RULES, before).suspects)
    assert (got.kind, got.entity, len(got.findings)) == ("switch", SWITCHES[2], 9)


def test_memory_is_the_gpus() -> None:
    got = only(run("prolog", snapshot(gpu(0), gpu(3, row_remap_failure=1)), RULES, gpus=(3,)).suspects)
    assert (got.kind, got.entity, got.named, got.findings) == ("gpu", uuid(3), True, (f"MEM-REMAP-FAILED {uuid(3)}",))


def test_settings_accuse_nobody() -> None:
    rules = policy(rule("ecc", "ecc_mode", warn=Level(value_is=(0,)), finding="CONFIG-ECC", action="note"))
    got = only(run("prolog", snapshot(gpu(3, ecc_mode=0)), rules, gpus=(3,)).suspects)
    assert (got.kind, got.named) == ("gpu", False)


# Exchanged cards


def card(n: int, slot: int, bad: bool, named_slots: bool = True) -> Any:
    """Card n in a slot."""
    state = gpu(n, row_remap_failure=int(bad))
    identity = state.identity._replace(pci=f"0000:{0x1B + slot:02x}:00.0", slot=str(slot) if named_slots else "", nvml_index=slot)
    return state._replace(identity=identity)


@pytest.mark.parametrize("named_slots", [True, False])
def test_a_fault_that_stays_with_the_slot(named_slots: bool) -> None:
    first = run("health_check", snapshot(card(0, 0, False), card(3, 3, True, named_slots)), RULES)
    assert only(first.suspects).kind == "gpu"
    swapped = snapshot(card(0, 0, False), card(7, 3, True, named_slots), at_ns=T0 + DAY_NS)
    got = only(run("health_check", swapped, RULES, memory=first.memory).suspects)
    assert (got.kind, got.entity, got.named) == ("slot", uuid(7), True)
    assert ("slot 3" if named_slots else "0000:1e:00.0") in got.why
    assert "this node" in got.why


@pytest.mark.parametrize("named_slots", [True, False])
def test_a_fault_that_follows_the_card(named_slots: bool) -> None:
    first = run("health_check", snapshot(card(0, 0, False), card(3, 3, True, named_slots)), RULES)
    moved = snapshot(card(3, 0, True, named_slots), card(0, 3, False), at_ns=T0 + DAY_NS)
    got = only(run("health_check", moved, RULES, memory=first.memory).suspects)
    assert (got.kind, got.entity, got.named) == ("gpu", uuid(3), True)
    assert "followed the card" in got.why


def test_another_fault_in_the_same_slot_tells_nothing() -> None:
    first = run("health_check", snapshot(card(3, 3, True)), RULES)
    other = snapshot(card(7, 3, False), at_ns=T0 + DAY_NS, events=(xid(48, 7, T0 + DAY_NS),))
    before = snapshot(card(7, 3, False), at_ns=T0 + DAY_NS - SECOND)
    got = only(run("health_check", other, RULES, before, memory=first.memory).suspects)
    assert got.kind == "gpu"
    assert "card" not in got.why


def test_half_a_year_later_it_is_another_fault() -> None:
    first = run("health_check", snapshot(card(3, 3, True)), RULES)
    late = snapshot(card(7, 3, True), at_ns=T0 + 181 * DAY_NS)
    assert only(run("health_check", late, RULES, memory=first.memory).suspects).kind == "gpu"


def test_a_bus_that_is_numbered_anew_moves_no_card() -> None:
    old = [card(n, n, n == 3, False) for n in range(4)]
    new = [card(n, n + 4, n == 3, False) for n in range(4)]
    first = run("health_check", snapshot(*old), RULES)
    rows = tuple(g.identity for g in old)
    second = run("health_check", snapshot(*new, at_ns=T0 + DAY_NS), RULES, memory=first.memory, known=rows)
    assert "followed" not in only(second.suspects).why
    third = run("health_check", snapshot(*new, at_ns=T0 + 2 * DAY_NS), RULES, memory=second.memory)
    assert "followed" not in only(third.suspects).why


# Users' programs


def ends(
    gpus: tuple[int, ...], user: str, at: int, known: Any, failed: tuple[int, ...] = (), code: int = 31, seconds: float = 3600.0
) -> Any:
    """A job's epilog, ``at`` hours after the start; known: the judgement before."""
    before = snapshot(*(gpu(n) for n in range(4)), at_ns=T0 + at * 3600 * SECOND)
    happened = tuple(xid(code, n, before.wall_ns + SECOND) for n in failed)
    now = later(before, seconds, events=happened)
    the_job, mapping = job(*gpus, job_id=str(at), uid={"alice": 1, "bob": 2, "carol": 3, "dan": 4}[user])
    from slurm_nvhc.compare import compare
    from slurm_nvhc.judge import judge

    window = Window("job", f"j{at}", before.wall_ns, now.wall_ns, seconds, f"job {at}")
    inp = Input("epilog", now, before, compare(before, now), window, RULES, the_job._replace(user=user), mapping)
    return judge(inp, {} if known is None else known.memory)


def test_a_program_that_fails_where_others_run_clean_is_at_fault() -> None:
    last = ends((0,), "bob", 0, None)
    last = ends((1,), "carol", 1, last)
    last = ends((0,), "alice", 2, last, failed=(0,))
    assert not only(last.suspects).named  # one GPU: the GPU may be it
    last = ends((1,), "alice", 3, last, failed=(1,))
    got = only(last.suspects)
    assert (got.kind, got.entity, got.named) == ("code", "user:1", True)
    assert "alice's program fails on gpu0, gpu1" in got.why


def test_one_job_on_two_gpus_is_enough() -> None:
    last = ends((0, 1), "bob", 0, None)
    got = only(ends((0, 1), "alice", 2, last, failed=(0, 1)).suspects)
    assert (got.kind, got.named, len(got.findings)) == ("code", True, 2)


@pytest.mark.parametrize(("code", "seconds", "days"), [(45, 3600.0, 0), (31, 20.0, 0), (31, 3600.0, 8)])
def test_what_proves_nothing_about_a_program(code: int, seconds: float, days: int) -> None:
    """45 is a symptom; a witness of seconds, or of last month, is none."""
    last = ends((0, 1), "bob", 0, None, seconds=seconds)
    assert not any(s.named for s in ends((0, 1), "alice", 2 + 24 * days, last, failed=(0, 1), code=code).suspects)


def test_others_who_failed_there_too_clear_the_program() -> None:
    last = ends((0, 1), "bob", 0, None)
    last = ends((0, 1), "carol", 1, last, failed=(0, 1))
    assert not any(s.named for s in ends((0, 1), "alice", 2, last, failed=(0, 1)).suspects)


def test_a_gpu_that_fails_under_three_users_is_suspicious() -> None:
    last = ends((0,), "alice", 0, None, failed=(0,))
    last = ends((0,), "bob", 1, last, failed=(0,))
    assert not only(last.suspects).named
    got = only(ends((0,), "carol", 2, last, failed=(0,)).suspects)
    assert (got.kind, got.entity, got.named) == ("gpu", uuid(0), True)


def test_programs_of_all_users_that_fail_everywhere_accuse_no_gpu() -> None:
    last = None
    for at, user in enumerate(("alice", "bob", "carol")):
        last = ends((0, 1, 2, 3), user, at, last, failed=(0, 1, 2, 3))
    assert last is not None
    assert not any(s.named for s in last.suspects)


def test_memory_of_users_is_bounded() -> None:
    notes = memory.Notes({}, T0, "b")
    from slurm_nvhc.judge import users

    state = snapshot(gpu(0))
    for uid in range(100):
        the_job, mapping = job(0, uid=uid)
        window = Window("job", "w", T0 - 3600 * SECOND, T0, 3600.0, "")
        users.remember(Input("epilog", state, state, (), window, RULES, the_job, mapping), notes)
    assert len(notes.kept(users.CLEAN)[uuid(0)]) == users.KEPT_USERS
    assert 45 not in CONVICTING


# For any findings


LINKS = [link(3, 1), link(3, 2), link(0, 1), port(1, 25), port(2, 9)]
ENTITIES = [uuid(0), uuid(3), *LINKS, "pci:0000:9b:00.0", "node", *SWITCHES[:2], "rdma:m/port1"]
FIELDS = [
    "", "nvlink_replay", "nvlink_crc_flit", "nvlink_recovery", "nvlink_replay_total", "nvlink_state", "presence", "power_brake_ns",
    "hw_thermal_slowdown_ns", "fabric_state", "row_remap_failure", "port_replay", "xid", "sxid", "no such field",
]  # fmt: skip
CODES = [
    "NVL-REPLAY", "NVL-CRC", "XID-FATAL", "XID-APP", "XID-NVLINK", "GPU-LOST", "SITE-RULE", "CONFIG-ECC", "DCGM-HEALTH", "POWER-BRAKE",
    "MEM-SRAM", "GPU-EXCLUDED", "SXID-FATAL", "WHATEVER",
]  # fmt: skip
NUMBERS = st.sampled_from([13, 31, 43, 45, 48, 74, 79, 95, 119, 145, 149, 20034, 23001, 999])
TEXTS = st.sampled_from(["", "Link 5", "NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x021001c6 0x0 0x0)", "link 999 \x00"])
AMOUNTS = st.one_of(st.none(), st.floats(0, 1e9), st.integers(0, 10**9))


@st.composite
def one_finding(draw: st.DrawFn) -> Finding:
    place = draw(st.sampled_from(ENTITIES))
    field = draw(st.sampled_from(FIELDS))
    klass = "link" if "/link" in place else "switch" if place.startswith("switch:") else "gpu" if place[:3] in ("GPU", "pci") else "node"
    after = draw(NUMBERS) if field in ("xid", "sxid") else draw(st.sampled_from([0, 1, "down", None]))
    at_ns = draw(st.one_of(st.none(), st.integers(T0 - 100 * SECOND, T0)))
    evidence = Evidence(field=field, after=after, amount=draw(AMOUNTS), text=draw(TEXTS), at_ns=at_ns, rule="r")
    verdict, mode = draw(st.sampled_from([fd.OK, fd.UNKNOWN, fd.WARN, fd.FAIL])), draw(st.sampled_from([fd.ENFORCE, fd.OBSERVE]))
    return Finding(draw(st.sampled_from(CODES)), place, klass, verdict, "m", evidence, {}, mode, of_job=draw(st.booleans()))


@st.composite
def one_change(draw: st.DrawFn) -> Change:
    kind = draw(st.sampled_from(["exact", "at_least", "unknown"]))
    return Change(draw(st.sampled_from(ENTITIES)), draw(st.sampled_from(FIELDS)), 0, 1, kind, draw(AMOUNTS), 60.0)


REMOTES = st.sampled_from(["", "node", uuid(0), link(0, 1), link(3, 2), port(1, 25), port(2, 9), SWITCHES[0]])
HAPPENED = st.builds(lambda code, n, back: xid(code, n, T0 - back), NUMBERS, st.sampled_from([0, 3, 5]), st.integers(0, 100 * SECOND))


@settings(max_examples=400, deadline=None)
@given(
    findings=st.lists(one_finding(), max_size=12),
    changes=st.lists(one_change(), max_size=12),
    since=st.one_of(st.none(), st.lists(one_change(), max_size=6)),
    remotes=st.lists(REMOTES, min_size=6, max_size=6),
    happened=st.lists(HAPPENED, max_size=6),
    of_job=st.one_of(st.none(), st.sampled_from([(0,), (0, 3), ()])),
    shuffle=st.randoms(use_true_random=False),
)
def test_every_finding_is_behind_exactly_one_suspect(
    findings: list[Finding],
    changes: list[Change],
    since: Any,
    remotes: list[str],
    happened: list[Event],
    of_job: Any,
    shuffle: random.Random,
) -> None:
    first, second = gpu(0, model=H100), gpu(3)
    for number, word in enumerate(remotes[:3]):
        first, second = with_link(first, number, nvlink_remote=word), with_link(second, number, nvlink_remote=remotes[3 + number])
    now = snapshot(first, second, parts=ports({}, gpus=1), events=tuple(happened))
    the_job, mapping = job(*of_job) if of_job is not None else (None, None)
    window = Window("job" if of_job else "watch", "w", T0 - 3600 * SECOND, T0, 3600.0, "")
    hook = "epilog" if of_job is not None else "health_check"
    inp = Input(hook, now, now, tuple(changes), window, RULES, the_job, mapping, since_look=None if since is None else tuple(since))

    notes = memory.Notes({}, T0, "b")
    got = locate(inp, findings, notes)

    keys = {f"{f.code} {f.entity}" for f in findings if worth(f)}
    told = [key for s in got for key in s.findings]
    assert sorted(told) == sorted(keys)  # each once
    assert all(s.why and s.entity and s.findings for s in got)
    assert all("\n" not in s.why for s in got)
    worst = [min(("fail", "warn").index(f.verdict) for f in findings if worth(f) and f"{f.code} {f.entity}" in s.findings) for s in got]
    assert worst == sorted(worst)

    mixed = list(findings)
    shuffle.shuffle(mixed)
    turned = now._replace(events=now.events[::-1], gpus=dict(reversed(list((now.gpus or {}).items()))))
    other = inp._replace(snapshot=turned, changes=inp.changes[::-1], since_look=None if since is None else inp.since_look[::-1])  # type: ignore[index]
    again = memory.Notes({}, T0, "b")
    assert locate(other, mixed, again) == got
    assert again.memory() == notes.memory()
    # What was remembered does not upset it.
    assert sorted(k for s in locate(inp, findings, memory.Notes(notes.memory(), T0, "b")) for k in s.findings) == sorted(keys)


LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=5))


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner), max_leaves=20))
def test_damaged_memory_is_no_memory(junk: Any) -> None:
    damaged = {"faults": {"a|b|c|d": junk, "x": junk}, "app_failed": {uuid(0): junk}, "app_clean": {uuid(0): [junk]}}
    got = run("prolog", snapshot(gpu(0, row_remap_failure=1)), RULES, gpus=(0,), memory=damaged)
    assert only(got.suspects).entity == uuid(0)


def test_suspects_change_neither_findings_nor_decision() -> None:
    """The decision is made of the findings alone, whatever they point to."""
    before = snapshot(*node())
    grown = {link(n, 2): {"nvlink_replay": 40} for n in (0, 3, 5, 6)}
    got = run("health_check", later(before, 60, *node(grown=grown)), RULES, before)
    assert only(got.suspects).kind == "switch"
    assert {p.uuid for p in got.decision.proposals} == {uuid(n) for n in (0, 3, 5, 6)}
