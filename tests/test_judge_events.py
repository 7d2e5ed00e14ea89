"""Events of switches, and severities: SXids and Xids never meet, fatal is asked of the line, sticky holds for both."""

from __future__ import annotations

from typing import Any

import pytest
from build import DAY_NS, MINUTE_NS, T0, gpu, later, policy, rule, run, snapshot, uuid, verdicts, xid

from slurm_nvhc.act.words import brief, names_it
from slurm_nvhc.judge import Input, Window
from slurm_nvhc.judge.events import xids_by_gpu
from slurm_nvhc.model import settled
from slurm_nvhc.model.snapshot import Event
from slurm_nvhc.policy.compiled import Level

PCI = "0000:c1:00.0"
SWITCH = f"switch:{PCI}"
FATAL = rule("sxid_fatal", kind="event", fail=Level(sxid=(), fatal=True), sticky=True, finding="SXID-FATAL")
OTHERS = rule("sxid_nonfatal", kind="event", warn=Level(sxid=(), fatal=False), finding="SXID-NONFATAL", action="note")
S = 10**9


def sxid(code: int, at_ns: int, fatal: bool = True, **more: Any) -> Event:
    text = f"nvidia-nvswitch0: SXid (PCI:{PCI}): {code}"
    return Event("sxid", code, at_ns, PCI, text, "kernel", more.pop("ident", f"b:{code}:{at_ns}"), fatal=fatal, **more)


def nvlink5(code: int, n: int, at_ns: int, words: str, fatal: bool, link: int = 5) -> Event:
    return xid(code, n, at_ns)._replace(text=f"NVRM: Xid (PCI:0000:1b:00): {code}, {words}", fatal=fatal, link=link)


def window(*events: Event, seconds: float = 60.0):
    before = snapshot(gpu(0), gpu(1))
    return before, later(before, seconds, events=events)


@pytest.mark.parametrize("gpus", [None, (1,)])
def test_an_sxid_is_the_switchs_in_every_hook(gpus: tuple[int, ...] | None) -> None:
    before, now = window(sxid(20034, T0 + S, link=30))
    got = run("health_check" if gpus is None else "epilog", now, policy(FATAL, OTHERS), before, gpus=gpus)
    (found,) = got.findings
    assert (found.code, found.entity, found.klass, found.verdict) == ("SXID-FATAL", SWITCH, "switch", "fail")
    assert found.gpu == {}
    assert not found.of_job
    assert found.evidence.field == "sxid"
    assert found.message == "SXid 20034 (fault of the link's state machine: the link is down), fatal, link 30"
    assert [(p.action, p.uuid) for p in got.decision.proposals] == [("drain", "")]


def test_non_fatal_is_another_rules() -> None:
    before, now = window(sxid(20001, T0 + S, fatal=False), sxid(20034, T0 + 2 * S, fatal=True), sxid(20034, T0 + 3 * S, fatal=False))
    got = run("health_check", now, policy(FATAL, OTHERS), before)
    told = sorted((f.code, f.evidence.after) for f in got.findings)
    assert told == [("SXID-FATAL", 20034), ("SXID-NONFATAL", 20001), ("SXID-NONFATAL", 20034)]


def test_numbers_of_sxids_can_be_named() -> None:
    some = rule("some", kind="event", warn=Level(sxid=(20001, 22013)), finding="SXID-NONFATAL", action="note")
    before, now = window(sxid(20001, T0 + S), sxid(20009, T0 + S))
    assert [f.evidence.after for f in run("health_check", now, policy(some), before).findings] == [20001]


def test_an_xid_and_an_sxid_of_one_number_never_meet() -> None:
    both = (xid(31, 0, T0 + S), sxid(31, T0 + S), xid(999, 0, T0 + S), sxid(999, T0 + S))
    before, now = window(*both)
    named = rule("x", kind="event", warn=Level(xid=(31,)), finding="XID-APP", action="note")
    others = rule("o", kind="event", warn=Level(xid_other=True), finding="XID-OTHER", action="note")
    switch = rule("s", kind="event", warn=Level(sxid=(31,)), finding="SXID-NONFATAL", action="note")
    got = run("health_check", now, policy(named, others, switch), before)
    assert sorted((f.code, f.entity) for f in got.findings) == [("SXID-NONFATAL", SWITCH), ("XID-APP", uuid(0)), ("XID-OTHER", uuid(0))]


def test_an_sxid_excuses_no_xid_and_is_no_gpus_error() -> None:
    """Contained (94), echo (79) and a reading's unless all ask for Xids."""
    excused = rule("e", kind="event", fail=Level(xid=(48,), unless_xid=(94,), unless_peer_xid=(79,)), finding="MEM-UNCORRECTABLE")
    reading = rule("r", "nvlink_replay_total", fail=Level(increase_above=0, unless_xid=(94,)))
    before, now = window(xid(48, 0, T0 + S), sxid(94, T0 + S), sxid(79, T0 + S))
    now = now._replace(gpus={uuid(0): gpu(0, links=0, nvlink_replay_total=4)})
    got = verdicts(run("health_check", now, policy(excused, reading), before))
    assert got == {("MEM-UNCORRECTABLE", uuid(0)): "fail", ("SITE-RULE", uuid(0)): "fail"}
    inp = Input("health_check", now, before, (), Window("watch", "w", T0, T0 + 60 * S, 60.0, ""), policy(excused))
    assert xids_by_gpu(inp) == {uuid(0): {48}}


def test_a_switchs_error_beside_a_dying_gpu_is_an_echo() -> None:
    echo = rule("s", kind="event", warn=Level(sxid=()), fail=Level(sxid=(), unless_peer_xid=(79,)), finding="SXID-FATAL", sticky=True)
    before, now = window(xid(79, 0, T0 + S), sxid(20034, T0 + 2 * S))
    assert [f.verdict for f in run("health_check", now, policy(echo), before).findings] == ["warn"]
    before, now = window(xid(79, 0, T0 + S), sxid(20034, T0 + 40 * S))
    assert [f.verdict for f in run("health_check", now, policy(echo), before).findings] == ["fail"]


# Sticky


def test_a_fatal_sxid_stays_until_it_is_repaired_or_settled() -> None:
    before, now = window(sxid(20034, T0 + S))
    first = run("epilog", now, policy(FATAL), before, gpus=(1,))
    (found,) = first.findings
    assert found.idents == (f"{SWITCH}|20034|{T0 + S}",)
    prolog = later(before, 600)
    assert [f.code for f in run("prolog", prolog, policy(FATAL), memory=first.memory, gpus=(0,)).findings] == ["SXID-FATAL"]
    told = run("prolog", prolog, policy(FATAL), memory=first.memory, gpus=(0,), settled=settled.table(found.idents))
    assert told.findings == ()
    for repaired in (prolog._replace(boot_id="boot-2"), prolog._replace(driver_loaded_ns=T0 + 300 * S)):
        got = run("prolog", repaired, policy(FATAL), memory=first.memory, gpus=(0,))
        assert got.findings == ()
        assert run("prolog", later(prolog, 60), policy(FATAL), memory=got.memory, gpus=(0,)).findings == ()


def test_what_is_not_fatal_is_not_remembered() -> None:
    before, now = window(sxid(20034, T0 + S, fatal=False))
    first = run("health_check", now, policy(FATAL, OTHERS), before)
    assert first.memory["open"] == {}


def test_the_remembered_row_speaks_for_its_worst_occurrence() -> None:
    """A rule that holds both: the link first stumbles, then dies. The next prolog must not take it for the first."""
    levels = {"warn": Level(xid=(149,), fatal=False), "fail": Level(xid=(149,), fatal=True)}
    both = rule("n5", kind="event", sticky=True, finding="XID-NVLINK", **levels)
    before = snapshot(gpu(0))
    memory: Any = None
    for minute, fatal in enumerate((False, True, False)):
        event = nvlink5(149, 0, T0 + minute * 5 * MINUTE_NS, "words", fatal, link=minute)
        now = later(before, minute * 300 + 60, events=(event,))
        memory = run("health_check", now, policy(both), before, memory).memory
    (found,) = run("prolog", later(before, 3600), policy(both), memory=memory, gpus=(0,)).findings
    assert found.verdict == "fail"
    assert "x3" in found.message
    assert "link 1" in found.message


def test_an_echo_stays_one_when_its_cause_is_settled() -> None:
    """The node was resumed after its 79; the peers' 74 must not drain it anew (they were never the fault)."""
    fell = rule("fell", kind="event", fail=Level(xid=(79,)), sticky=True, finding="XID-FATAL")
    levels = {"warn": Level(xid=(74,)), "fail": Level(xid=(74,), unless_peer_xid=(79,))}
    link = rule("link", kind="event", sticky=True, finding="XID-NVLINK", **levels)
    before, now = window(xid(79, 0, T0 + S), xid(74, 1, T0 + 2 * S))
    first = run("health_check", now, policy(fell, link), before)
    done = settled.table([settled.ident(uuid(0), 79, T0 + S)])
    got = run("health_check", later(before, 600), policy(fell, link), now, first.memory, settled=done)
    assert verdicts(got) == {("XID-NVLINK", uuid(1)): "warn"}


def test_an_excuse_is_for_one_occurrence() -> None:
    levels = {"warn": Level(xid=(48,)), "fail": Level(xid=(48,), unless_xid=(94,))}
    contained = rule("c", kind="event", sticky=True, finding="MEM-UNCORRECTABLE", **levels)
    before, now = window(xid(48, 0, T0 + S), xid(94, 0, T0 + 2 * S))
    first = run("health_check", now, policy(contained), before)
    assert set(verdicts(first).values()) == {"warn"}
    again = run("health_check", later(now, 3600, events=(xid(48, 0, T0 + 1800 * S),)), policy(contained), now, first.memory)
    assert set(verdicts(again).values()) == {"fail"}


def test_an_excuse_may_be_read_a_look_later() -> None:
    """The log is read again from its start, and this time the 94 beside the 48 is there."""
    levels = {"warn": Level(xid=(48,)), "fail": Level(xid=(48,), unless_xid=(94,))}
    contained = rule("c", kind="event", sticky=True, finding="MEM-UNCORRECTABLE", **levels)
    early = xid(48, 0, T0 + S, ident="boot-1:5")
    before, now = window(early)
    first = run("health_check", now, policy(contained), before)
    assert set(verdicts(first).values()) == {"fail"}
    again = later(now, 300, events=(early, xid(94, 0, T0 + 2 * S, ident="boot-1:6")))
    assert set(verdicts(run("prolog", again, policy(contained), memory=first.memory, gpus=(0,))).values()) == {"warn"}


def test_a_drain_reason_speaks_of_sxids() -> None:
    before, now = window(sxid(20034, T0 + S, link=30))
    (found,) = run("health_check", now, policy(FATAL), before).findings
    assert brief(found) == f"SXID-FATAL switch {PCI} SXid 20034"
    assert names_it("bob: SXid 20034, board ordered", found)
    assert not names_it("bob: Xid 20034", found)


# Severities of NVLink 5


@pytest.mark.parametrize(
    ("code", "fatal", "verdict"),
    [(149, True, "fail"), (149, False, "warn"), (144, True, "fail"), (150, False, "warn")],
)
def test_severity_decides(code: int, fatal: bool, verdict: str) -> None:
    rules = policy(
        rule("dead", kind="event", fail=Level(xid=(144, 149, 150), fatal=True), finding="XID-NVLINK", sticky=True),
        rule("hurt", kind="event", warn=Level(xid=(144, 149, 150), fatal=False), finding="XID-NVLINK5", action="note"),
    )
    before, now = window(nvlink5(code, 0, T0 + S, "words", fatal))
    assert [f.verdict for f in run("health_check", now, rules, before).findings] == [verdict]


def test_the_message_names_link_severity_and_the_end_at_fault() -> None:
    dead = rule("dead", kind="event", fail=Level(xid=(149,), fatal=True), finding="XID-NVLINK")
    words = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 05 (0x025001c6 0x00000000 0x00000000)"
    before, now = window(nvlink5(149, 0, T0 + S, words, True))
    (found,) = run("health_check", now, policy(dead), before).findings
    assert "link 5, fatal, NETIR_LINK_EVT: the far end was reset; look at the far end first" in found.message
    assert found.entity == uuid(0)


def test_an_old_sxid_is_none_of_this_window() -> None:
    before, now = window(sxid(20034, T0 - DAY_NS, fatal=False))
    assert run("health_check", now, policy(OTHERS), before).findings == ()
    assert run("prolog", now, policy(OTHERS), gpus=(0,)).findings == ()
