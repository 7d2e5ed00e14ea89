"""Locating errors of links: direction, spread, and what is said when little is known."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import pytest
from build import T0, gpu, later, policy, rule, run, snapshot, uuid, with_link, xid

from slurm_nvhc.judge.wiring import Wire, far_ends, wire_of
from slurm_nvhc.model.reading import NOT_SUPPORTED, NoData
from slurm_nvhc.model.snapshot import GpuState, Snapshot
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.policy.compiled import Level

REPLAY = rule("replay", "nvlink_replay", "nvlink_replay_total", fail=Level(increase_at_least=3), finding="NVL-REPLAY")
RECOVERY = rule("recovery", "nvlink_recovery", fail=Level(increase_at_least=3), finding="NVL-RECOVERY")
CRC = rule("crc", "nvlink_crc_flit", warn=Level(increase_at_least=50), finding="NVL-CRC", action="note")
DOWN = rule("down", "nvlink_state", fail=Level(went_down=True), finding="NVL-DOWN")
PORT = rule("port", "port_replay", "port_crc_flit", fail=Level(increase_at_least=3), finding="NVL-STORM")
XID74 = rule("xid74", kind="event", fail=Level(xid=(74,)), finding="XID-NVLINK")
ALL = policy(REPLAY, RECOVERY, CRC, DOWN, PORT, XID74)

SWITCHES = [f"switch:0000:{0xC1 + n:02x}:00.0" for n in range(4)]
COUNTERS = {"nvlink_replay": 0, "nvlink_recovery": 0, "nvlink_crc_flit": 0, "nvlink_state": "up"}


def link(n: int, number: int) -> str:
    return f"{uuid(n)}/link{number}"


def port(switch: int, number: int) -> str:
    return f"{SWITCHES[switch]}/port{number}"


def node(gpus: int = 8, links: int = 8, wired: bool = True, grown: Mapping[str, Mapping[str, float]] = {}) -> tuple[GpuState, ...]:
    """GPUs whose links are spread over four switches: link n leads to switch n % 4, port 8 * GPU + n."""
    out = []
    for n in range(gpus):
        state = gpu(n, links=0)
        for number in range(links):
            far = port(number % 4, 8 * n + number) if wired else NoData(NOT_SUPPORTED)
            state = with_link(state, number, **{**COUNTERS, "nvlink_remote": far, **grown.get(link(n, number), {})})
        out.append(state)
    return tuple(out)


def ports(grown: Mapping[str, Mapping[str, float]], gpus: int = 8, links: int = 8) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for n in range(gpus):
        for number in range(links):
            name = port(number % 4, 8 * n + number)
            out[name] = {"port_replay": 0, "port_crc_flit": 0, "port_recovery": 0, **grown.get(name, {})}
    return out


def suspects(
    grown: Mapping[str, Mapping[str, float]], wired: bool = True, hook: str = "health_check", **more: Any
) -> tuple[Suspect, ...]:
    before = snapshot(*node(wired=wired), parts=ports({}) if wired else {})
    now = later(before, 3600, *node(wired=wired, grown=grown), parts=ports(grown) if wired else {})
    return run(hook, now, ALL, before, **more).suspects


def only(found: Sequence[Suspect]) -> Suspect:
    assert len(found) == 1, found
    return found[0]


# Direction


def test_one_direction_convicts_the_transmitter() -> None:
    got = only(suspects({link(3, 1): {"nvlink_replay": 900}, port(1, 25): {"port_crc_flit": 880}}))
    assert (got.kind, got.entity, got.far, got.named) == ("link", link(3, 1), port(1, 25), True)
    assert "transmitter or the medium" in got.why
    assert set(got.findings) == {f"NVL-REPLAY {link(3, 1)}", f"NVL-STORM {port(1, 25)}"}  # both ends' findings, one suspect


def test_the_transmitter_may_be_the_switchs_port() -> None:
    got = only(suspects({link(3, 1): {"nvlink_crc_flit": 900}, port(1, 25): {"port_replay": 880}}))
    assert (got.kind, got.entity, got.far) == ("link", port(1, 25), link(3, 1))


def test_both_directions_convict_the_connector() -> None:
    both = {"nvlink_crc_flit": 800, "nvlink_replay": 700}
    got = only(suspects({link(3, 1): both, port(1, 25): {"port_crc_flit": 690, "port_replay": 800}}))
    assert (got.kind, got.entity, got.far, got.named) == ("connector", link(3, 1), port(1, 25), True)


def test_one_end_alone_sees_both_directions() -> None:
    """Damaged data arrived, and what was sent was rejected: both ways, though the far end says nothing."""
    got = only(suspects({link(3, 1): {"nvlink_crc_flit": 800, "nvlink_replay": 700}}, wired=False))
    assert (got.kind, got.entity, got.far) == ("connector", link(3, 1), "")


@pytest.mark.parametrize("crc", [3, 40])
def test_a_few_damaged_packets_are_no_second_direction(crc: int) -> None:
    """CRC errors are normal in small numbers: below their rule's level they point nowhere."""
    got = only(suspects({link(3, 1): {"nvlink_crc_flit": crc, "nvlink_replay": 20}}, wired=False))
    assert got.kind == "link"


def test_a_weak_second_direction_is_noise() -> None:
    got = only(suspects({link(3, 1): {"nvlink_crc_flit": 900, "nvlink_replay": 10}}, wired=False))
    assert (got.kind, got.entity) == ("link", link(3, 1))
    assert "what arrives at gpu3 link1 is damaged" in got.why


def test_replay_at_one_end_speaks_for_the_field() -> None:
    got = only(suspects({link(3, 1): {"nvlink_replay": 21200}}))
    assert (got.kind, got.entity, got.far, got.named) == ("link", link(3, 1), port(1, 25), True)
    assert "its transmitter, the medium or the receiver" in got.why


def test_recovery_tells_no_direction() -> None:
    got = only(suspects({link(3, 1): {"nvlink_recovery": 9}, port(1, 25): {"port_recovery": 9}}))
    assert (got.kind, got.entity, got.far) == ("link", link(3, 1), port(1, 25))
    assert "severe" in got.why


def test_the_far_end_is_unknown_and_said_to_be() -> None:
    got = only(suspects({link(3, 1): {"nvlink_replay": 21200}}, wired=False))
    assert (got.kind, got.entity, got.far, got.named) == ("link", link(3, 1), "", True)
    assert "not known" in got.why


def test_a_total_that_names_no_link() -> None:
    before = snapshot(gpu(0), gpu(3))
    got = only(run("health_check", later(before, 60, gpu(0), gpu(3, nvlink_replay_total=30)), ALL, before).suspects)
    assert (got.kind, got.entity, got.named) == ("link", uuid(3), True)
    assert "which is not told" in got.why
    four = snapshot(*(gpu(n) for n in range(4)))
    got = only(run("health_check", later(four, 60, *(gpu(n, nvlink_replay_total=30 * (n < 3)) for n in range(4))), ALL, four).suspects)
    assert (got.kind, got.entity, got.named, len(got.findings)) == ("switch", "node", False, 3)


def test_errors_since_a_reset_do_not_point_anywhere_else() -> None:
    """Links count errors while they train: what counters show since their GPU's reset is not many bad links."""
    old = {link(n, k): {"nvlink_replay": 50} for n in range(8) for k in range(8)}
    new = {link(n, k): {"nvlink_replay": 50 if n == 3 else 4} for n in range(8) for k in range(8)}
    before = snapshot(*node(grown=old))
    now = later(before, 3600, *node(grown={**new, link(3, 1): {"nvlink_replay": 950}}))
    got = only(run("health_check", now, policy(REPLAY._replace(after_reset="ignore")), before).suspects)
    assert (got.kind, got.entity) == ("link", link(3, 1))


# Spread


def test_links_of_many_gpus_at_one_switch_convict_the_switch() -> None:
    got = only(suspects({link(n, 2): {"nvlink_replay": 40} for n in (0, 3, 5, 6)}))
    assert (got.kind, got.entity, got.named) == ("switch", SWITCHES[2], True)
    assert len(got.findings) == 4


def test_links_of_two_gpus_at_one_switch_are_two_links() -> None:
    assert [s.kind for s in suspects({link(n, 2): {"nvlink_replay": 40} for n in (0, 3)})] == ["link", "link"]


def test_growth_below_the_threshold_supports_the_switch() -> None:
    """One link's rule speaks; the same switch's other links counted a few."""
    quiet = policy(REPLAY._replace(fail=(Level(increase_at_least=40),)))
    grown = {link(0, 2): {"nvlink_replay": 40}, link(3, 2): {"nvlink_replay": 5}, link(5, 2): {"nvlink_replay": 6}}
    before = snapshot(*node())
    got = only(run("health_check", later(before, 3600, *node(grown=grown)), quiet, before).suspects)
    assert (got.kind, got.entity) == ("switch", SWITCHES[2])


def test_a_switch_that_begins_to_fail() -> None:
    """One link is found; links of two more GPUs at the same switch counted one error each, and few others did."""
    first = {link(0, 2): {"nvlink_replay": 4}, link(3, 6): {"nvlink_replay": 1}, port(2, 42): {"port_replay": 1}}
    got = only(suspects(first))
    assert (got.kind, got.entity) == ("switch", SWITCHES[2])
    noise = {link(n, 1): {"nvlink_replay": 1} for n in range(4)}
    got = only(suspects({**first, **noise}))
    assert (got.kind, got.entity) == ("link", link(0, 2))


def test_without_wiring_a_third_of_its_ports_convicts_the_switch() -> None:
    """A GPU that is bad has some ports at each switch; a switch has most of its own, and the links of most GPUs."""
    grown = {port(2, 8 * n + k): {"port_replay": 40} for n in range(8) for k in (2, 6)}
    grown |= {link(n, 2): {"nvlink_replay": 40} for n in range(8)}
    before = snapshot(*node(wired=False), parts=ports({}))
    got = only(run("health_check", later(before, 60, *node(wired=False, grown=grown), parts=ports(grown)), ALL, before).suspects)
    assert (got.kind, got.entity, got.named, len(got.findings)) == ("switch", SWITCHES[2], True, 24)
    few = {port(k % 4, 24 + k): {"port_replay": 40} for k in range(8)}
    found = run("health_check", later(before, 60, parts=ports(few)), ALL, before).suspects
    assert {s.kind for s in found} == {"link"}


def test_two_switches_are_two() -> None:
    got = suspects({link(n, k): {"nvlink_replay": 40} for n in range(8) for k in (1, 2)})
    assert {(s.kind, s.entity) for s in got} == {("switch", SWITCHES[1]), ("switch", SWITCHES[2])}


def test_many_links_of_one_gpu_convict_the_gpu() -> None:
    got = only(suspects({link(3, k): {"nvlink_replay": 40} for k in range(6)}))
    assert (got.kind, got.entity, got.named) == ("gpu", uuid(3), True)
    assert len(got.findings) == 6


def test_links_of_one_gpu_at_one_switch_are_not_the_gpus() -> None:
    """Two links of a GPU lead to each switch here: two bad ones there say nothing about the rest of the GPU."""
    assert {s.kind for s in suspects({link(3, k): {"nvlink_replay": 40} for k in (1, 5)})} == {"link"}


@pytest.mark.parametrize(("bad", "kinds"), [(2, {"link"}), (3, {"gpu"})])
def test_without_wiring_more_than_a_third_convicts_the_gpu(bad: int, kinds: set[str]) -> None:
    found = suspects({link(3, k): {"nvlink_replay": 40} for k in range(bad)}, wired=False)
    assert {s.kind for s in found} == kinds
    # Five of eighteen is what one switch of an HGX H100 has of each GPU.
    state, worse = gpu(3, links=18), gpu(3, links=18)
    for k in range(5):
        worse = with_link(worse, k, nvlink_replay=40)
    before = snapshot(gpu(0), state)
    assert {s.kind for s in run("health_check", later(before, 60, gpu(0), worse), ALL, before).suspects} == {"link"}


def test_a_bad_gpu_does_not_convict_its_switches() -> None:
    found = suspects({link(3, k): {"nvlink_replay": 40} for k in range(8)} | {link(5, 2): {"nvlink_replay": 40}})
    assert {(s.kind, s.entity) for s in found} == {("gpu", uuid(3)), ("link", link(5, 2))}


def test_all_gpus_at_all_switches_are_the_nodes() -> None:
    got = only(suspects({link(n, k): {"nvlink_replay": 40} for n in range(8) for k in range(8)}))
    assert (got.kind, got.entity, got.named) == ("node", "node", True)


def test_all_gpus_without_wiring_are_the_nodes() -> None:
    got = only(suspects({link(n, k): {"nvlink_replay": 40} for n in range(8) for k in range(8)}, wired=False))
    assert (got.kind, got.entity) == ("node", "node")


def test_one_link_of_many_gpus_without_wiring_accuses_nobody() -> None:
    got = only(suspects({link(n, 2): {"nvlink_replay": 40} for n in range(6)}, wired=False))
    assert (got.kind, got.entity, got.named) == ("switch", "node", False)


def direct(grown: Mapping[str, Mapping[str, float]]) -> Snapshot:
    """Four GPUs, four links to each of three peers: link 4k+j of GPU a leads to the k-th other GPU."""
    states = []
    for a in range(4):
        state = gpu(a, links=0)
        others = [b for b in range(4) if b != a]
        for k, b in enumerate(others):
            back = [c for c in range(4) if c != b].index(a)
            for j in range(4):
                place = link(a, 4 * k + j)
                state = with_link(state, 4 * k + j, **{**COUNTERS, "nvlink_remote": link(b, 4 * back + j), **grown.get(place, {})})
        states.append(state)
    return snapshot(*states, at_ns=T0 + (3600 * 10**9 if grown else 0), uptime_s=864000 + (3600 if grown else 0))


def test_all_links_between_two_gpus_are_their_bridge() -> None:
    got = only(run("health_check", direct({link(0, k): {"nvlink_replay": 40} for k in range(4)}), ALL, direct({})).suspects)
    assert (got.kind, got.named) == ("connector", True)
    assert {got.entity, got.far} <= {link(0, 0), link(1, 0)}


def test_links_of_one_gpu_to_several_peers_are_the_gpus() -> None:
    got = only(run("health_check", direct({link(2, k): {"nvlink_replay": 40} for k in range(12)}), ALL, direct({})).suspects)
    assert (got.kind, got.entity) == ("gpu", uuid(2))


def test_what_another_job_sees_of_the_same_link_counts() -> None:
    """The far end is another job's GPU: its growth comes by the last look, not by this job's window."""
    from slurm_nvhc.compare import compare

    before, now = direct({}), direct({link(0, 0): {"nvlink_replay": 40}, link(1, 0): {"nvlink_crc_flit": 40}})
    got = only(run("epilog", now, ALL, before, gpus=(0,), since_look=compare(before, now)).suspects)
    assert (got.kind, got.entity, got.far) == ("link", link(0, 0), link(1, 0))
    assert "transmitter or the medium" in got.why


# Xids that name a link


def test_an_xid_joins_the_link_of_its_gpu() -> None:
    before = snapshot(*node())
    now = later(before, 60, *node(grown={link(3, 1): {"nvlink_replay": 900}}), events=(xid(74, 3, T0 + 1),))
    got = only(run("health_check", now, ALL, before).suspects)
    assert (got.kind, got.entity) == ("link", link(3, 1))
    assert set(got.findings) == {f"NVL-REPLAY {link(3, 1)}", f"XID-NVLINK {uuid(3)}"}


def test_an_xid_that_names_its_link() -> None:
    before = snapshot(*node())
    event = xid(74, 3, T0 + 1)._replace(text="NVRM: Xid (PCI:0000:1e:00): 74, NVLink: fatal error detected on link 5(0x0, 0x0)")
    got = only(run("health_check", later(before, 60, events=(event,)), ALL, before).suspects)
    assert (got.kind, got.entity, got.far) == ("link", link(3, 5), port(1, 29))


def test_an_xid_without_a_link_is_about_one_of_its_gpus() -> None:
    before = snapshot(*node())
    got = only(run("health_check", later(before, 60, events=(xid(74, 3, T0 + 1),)), ALL, before).suspects)
    assert (got.kind, got.entity, got.named) == ("link", uuid(3), True)


def test_nvlink5_reason_that_blames_the_peer() -> None:
    before = snapshot(*node())
    line = "NVRM: Xid (PCI:0000:1e:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 05 (0x021001c6 0x00000000 0x00000000)"
    event = xid(149, 3, T0 + 1)._replace(text=line, link=5, fatal=True)
    rules = policy(rule("x", kind="event", fail=Level(xid=(149,)), finding="XID-NVLINK"))
    got = only(run("health_check", later(before, 60, events=(event,)), rules, before).suspects)
    assert (got.kind, got.entity, got.far, got.named) == ("link", port(1, 29), link(3, 5), True)
    own = event._replace(text=line.replace("0x021001c6", "0x002001c6"))
    got = only(run("health_check", later(before, 60, events=(own,)), rules, before).suspects)
    assert (got.entity, got.far) == (link(3, 5), port(1, 29))


def test_a_dead_link() -> None:
    got = only(suspects({link(3, 1): {"nvlink_state": "down"}}))
    assert (got.kind, got.entity, got.far) == ("link", link(3, 1), port(1, 25))
    assert "nothing tells which end" in got.why


def test_links_that_train_after_boot_accuse_nobody() -> None:
    """214 of 288 nodes raised link-down at one look after boot, none was faulty (NVSentinel#1701)."""
    down = {link(n, k): {"nvlink_state": "down"} for n in range(8) for k in (0, 5)}
    rules = policy(DOWN._replace(warn=(Level(went_down=True),), fail=(Level(went_down=True, consecutive=2, settle_s=300.0),)))

    def after_boot(uptime_s: float) -> Sequence[Suspect]:
        up, now = snapshot(*node(), uptime_s=uptime_s - 50), snapshot(*node(grown=down), uptime_s=uptime_s, at_ns=T0 + 50 * 10**9)
        return run("health_check", now, rules, up).suspects

    got = only(after_boot(100.0))
    assert (got.kind, got.named, len(got.findings)) == ("node", False, 16)
    assert "may be training" in got.why
    assert all(s.named for s in after_boot(400.0))


# Wiring


def test_what_one_end_says_holds_for_the_other() -> None:
    wires = far_ends(snapshot(*node()))
    assert wires[link(3, 1)] == port(1, 25)
    assert wires[port(1, 25)] == link(3, 1)
    assert wire_of(link(3, 1), wires) == wire_of(port(1, 25), wires) == Wire(link(3, 1), port(1, 25))


def test_lies_about_wiring_are_not_believed() -> None:
    """Two links claim the same port; a link claims itself; words that are no end of anything."""
    same = with_link(gpu(0), 0, nvlink_remote=port(0, 1))
    also = with_link(with_link(gpu(1), 0, nvlink_remote=port(0, 1)), 1, nvlink_remote=link(1, 1))
    odd = with_link(with_link(gpu(2), 0, nvlink_remote="node"), 1, nvlink_remote=NoData(NOT_SUPPORTED))
    assert far_ends(snapshot(same, also, odd)) == {}


def test_ends_that_contradict_each_other_are_not_believed() -> None:
    one = with_link(gpu(0), 0, nvlink_remote=port(0, 1))
    parts = {port(0, 1): {"port_remote": link(1, 0)}}
    assert far_ends(snapshot(one, gpu(1), parts=parts)) == {}


def test_the_port_of_a_lost_gpu_tells_its_address() -> None:
    """The engine no longer lists the GPU, so the port can not name it; what the node had before can."""
    lost = gpu(3).identity
    parts = {port(1, 25): {"port_remote": f"pci:{lost.pci}/link1"}}
    assert far_ends(snapshot(gpu(0), parts=parts), [lost])[port(1, 25)] == link(3, 1)
    assert far_ends(snapshot(gpu(0), parts=parts)) == {}
    stranger = with_link(gpu(0), 0, nvlink_remote=port(1, 25))
    wires = far_ends(snapshot(stranger, parts=parts))
    assert wires[port(1, 25)] == link(0, 0)


def test_a_far_device_without_a_number_is_a_device() -> None:
    wires = far_ends(snapshot(with_link(gpu(0), 0, nvlink_remote=uuid(1)), gpu(1)))
    assert wires == {link(0, 0): uuid(1)}
    assert wire_of(link(0, 0), wires) == Wire(link(0, 0), uuid(1))
