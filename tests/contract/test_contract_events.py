"""Events: from the kernel log and from the engine, each occurrence once, over several reads too."""

from __future__ import annotations

from contract_support import PATIENT_S, Rig, codes, gpu

from slurm_nvhc.sense.memory import ensure_watch


def test_an_xid_is_one_event_with_the_gpu_it_concerns(rig: Rig) -> None:
    rig.do("xid", gpu="g3", code=31, text="MMU Fault", pid=99, process="python")
    s = rig.read()
    (event,) = s.events
    row = gpu(s, 3).identity
    assert (event.code, event.pci, event.uuid, event.pid, event.process) == (31, row.pci, row.uuid, 99, "python")
    assert event.source == "kernel"
    assert abs(event.at_ns - s.wall_ns) <= rig.slack_ns
    assert event.ident.startswith(s.boot_id)


def test_an_event_is_told_once_over_reads_that_go_on_from_each_other(rig: Rig) -> None:
    rig.do("xid", gpu="g3", code=31)
    first = rig.read()
    rig.do("advance", seconds=2)
    rig.do("xid", gpu="g4", code=13)
    second = rig.read(kernel_cursor=first.kernel_cursor)
    third = rig.read(kernel_cursor=second.kernel_cursor)
    rig.do("advance", seconds=3600)
    fourth = rig.read(kernel_cursor=third.kernel_cursor)
    assert [[e.code for e in s.events] for s in (first, second, third, fourth)] == [[31], [13], [], []]
    # and again from the start: the same idents
    assert {e.ident for e in rig.read().events} == {e.ident for e in (*first.events, *second.events)}


def test_an_event_that_only_the_engine_knows(rig: Rig) -> None:
    assert ensure_watch("n1", rig.engine, PATIENT_S).watched  # only then does an engine keep Xids
    rig.do("engine_xid", gpu="g1", code=31, at_s=-7200)
    first, again = rig.read(), rig.read()
    (event,) = first.events
    assert (event.source, event.uuid) == ("engine", gpu(first, 1).identity.uuid)
    assert abs(event.at_ns - (first.wall_ns - 7200 * 10**9)) <= rig.slack_ns
    assert again.events == first.events
    assert rig.read(kernel_cursor=first.kernel_cursor).events == ()


def test_the_fall_of_a_gpu_that_is_gone(rig: Rig) -> None:
    address = gpu(rig.read(), 3).identity.pci
    rig.do("xid", gpu="g3", code=79)
    rig.do("kernel_line", text=f"NVRM: GPU {address}: GPU has fallen off the bus.")
    rig.do("lose", gpu="g3")
    (event,) = rig.read().events
    assert (event.code, event.pci) == (79, address)


def test_the_form_over_several_lines_without_an_xid(rig: Rig) -> None:
    for text in ("The NVIDIA GPU 0000:4b:00.0 (PCI ID: 10de:2330)", "installed in this system has", "fallen off the bus and is silent"):
        rig.do("kernel_line", text="NVRM: " + text)
    s = rig.read()
    (event,) = s.events
    assert (event.kind, event.code, event.pci, event.uuid) == ("off_bus", 79, "0000:4b:00.0", gpu(s, 3).identity.uuid)


def test_a_switch_error(rig: Rig) -> None:
    rig.do("sxid", switch=1, code=20034, fatal=True, link=30)
    (event,) = rig.read().events
    assert (event.kind, event.code, event.fatal, event.link, event.uuid) == ("sxid", 20034, True, 30, "")


def test_unknown_numbers_are_kept(rig: Rig) -> None:
    rig.do("xid", gpu="g0", code=999)
    assert [e.code for e in rig.read().events] == [999]


def test_a_new_boot_starts_a_new_log(rig: Rig) -> None:
    rig.do("xid", gpu="g0", code=31)
    before = rig.read()
    rig.do("reboot")
    rig.do("xid", gpu="g0", code=31)
    after = rig.read(kernel_cursor=before.kernel_cursor)
    assert len(after.events) == 1
    assert after.events[0].ident != before.events[0].ident


def test_a_log_that_can_not_be_read_loses_nothing(rig: Rig) -> None:
    assert ensure_watch("n1", rig.engine, PATIENT_S).watched
    first = rig.read()
    rig.do("xid", gpu="g0", code=31)
    rig.do("unreadable", part="kernel_log")
    blind = rig.read(kernel_cursor=first.kernel_cursor)
    assert codes(blind) == ["MON-KERNEL-LOG"]
    assert (blind.events_known, blind.kernel_cursor) == (False, first.kernel_cursor)
    assert [e.source for e in blind.events] == ["engine"]
    rig.do("unreadable", part="kernel_log", reason="")
    rig.do("advance", seconds=60)
    after = rig.read(kernel_cursor=blind.kernel_cursor)
    assert [(e.code, e.source) for e in after.events] == [(31, "kernel")]


def test_a_flood_is_bounded_and_told(rig: Rig) -> None:
    line = {"op": "kernel_line", "text": "NVRM: Xid (PCI:0000:1b:00): 45, pid=1, name=a, " + "x" * 250}
    rig.do_all([{"op": "xid", "gpu": "g0", "code": 31}, *[line] * 9000, {"op": "xid", "gpu": "g0", "code": 79}])
    s = rig.read()
    assert codes(s) == ["MON-KERNEL-LOG"]
    assert "9002 events" in s.troubles[0].detail
    assert s.gpus is not None  # what comes after the flood is not lost
    assert [s.events[0].code, s.events[-1].code] == [31, 79]
