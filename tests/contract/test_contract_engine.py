"""An engine that is absent, hung, slow, crashing, empty or lying: told as trouble, never as a GPU's fault."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import patient
import pytest
from contract_support import Rig, codes, gpu

from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData

SHORT_S = 0.6  # for engines that never answer: the reader needs about 0.1 s to come up


def test_absent(rig: Rig) -> None:
    if rig.kind != "live":
        rig.do("xid", gpu="g0", code=31)
    rig.do("engine", behaviour="absent")
    s = rig.read()
    assert codes(s) == ["MON-ENGINE-ABSENT"]
    assert s.gpus is None  # unknown, not "no GPUs"
    if rig.kind == "live":
        rig.do("engine", behaviour="ok")
        s = rig.read()
        assert codes(s) == []
        assert len(s.gpus or {}) == 8
        return
    assert s.pci_gpus is not None
    assert len(s.pci_gpus) == 8
    assert [e.code for e in s.events] == [31]


def test_hung_keeps_the_witnesses_and_leaves_no_process(rig: Rig) -> None:
    if rig.kind != "live":
        rig.do("xid", gpu="g3", code=119)
    limit_s = patient.limit_for(rig.read)
    rig.do("engine", behaviour="hung")
    began = time.monotonic()
    s = rig.read(limit_s)
    assert time.monotonic() - began < limit_s + 13
    assert codes(s) == ["MON-ENGINE-HUNG"]
    assert s.gpus is None
    if rig.kind == "live":
        rig.do("engine", behaviour="ok")
        assert codes(rig.read()) == []
        return
    assert s.events_known
    assert [e.code for e in s.events] == [119]
    assert s.pci_gpus is not None


@pytest.mark.parametrize(("after", "known", "listed"), [("clock", False, False), ("kernel_log", True, False), ("engine", True, True)])
def test_hung_at_any_point_keeps_what_came_before(rig: Rig, after: str, known: bool, listed: bool) -> None:
    limit_s = patient.limit_for(rig.read)
    rig.do("engine", behaviour="hung", after=after)
    s = rig.read(limit_s)
    assert codes(s) == ["MON-ENGINE-HUNG"]
    assert (s.events_known, s.pci_gpus is not None) == (known, listed)
    assert s.uptime_s() > 0


def test_a_deadline_too_short_for_anything(rig: Rig) -> None:
    s = rig.read(0.001)
    assert codes(s) == ["MON-READER"]
    assert s.gpus is None
    assert s.wall_ns > 0


def test_slow_within_the_deadline_takes_its_time_on_the_node(rig: Rig) -> None:
    before = rig.read()
    rig.do("engine", behaviour="slow", seconds=20)
    assert codes(rig.read()) == []
    assert rig.read(kernel_cursor="").wall_ns - before.wall_ns == 20 * 10**9


def test_slower_than_the_deadline_is_hung(rig: Rig) -> None:
    rig.do("engine", behaviour="slow", seconds=20)
    assert codes(rig.read(SHORT_S)) in (["MON-ENGINE-HUNG"], ["MON-READER"])


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_crash_in_a_call(rig: Rig, name: str) -> None:
    rig.do("engine", behaviour="crash", signal=name)
    s = rig.read()
    assert codes(s) == ["MON-READER"]
    assert name in s.troubles[0].detail
    assert "host part" in s.troubles[0].detail
    assert s.gpus is None
    assert s.events_known


def test_crash_after_the_readings_keeps_them(rig: Rig) -> None:
    rig.do("engine", behaviour="crash", after="gpus")
    s = rig.read()
    assert codes(s) == ["MON-READER"]
    assert s.gpus is not None
    assert len(s.gpus) == 8


def test_empty(rig: Rig) -> None:
    rig.do("engine", behaviour="empty")
    s = rig.read()
    assert codes(s) == ["MON-ENGINE-EMPTY"]
    assert s.gpus == {}


@pytest.mark.parametrize("kind", ["negative", "huge", "nan", "wrong_types"])
def test_impossible_values_are_no_data_and_one_trouble(rig: Rig, kind: str) -> None:
    rig.do("engine", behaviour="lying", kind=kind)
    s = rig.read()
    assert codes(s) == ["MON-ENGINE-LIES"]
    assert s.gpus is not None
    assert len(s.gpus) == 8
    for value in (gpu(s, 0).readings["pcie_replay"], gpu(s, 7).links[17]["nvlink_replay"]):
        assert isinstance(value, NoData)
        assert value.kind == rd.ERROR
    assert all(g.status == "ok" for g in s.gpus.values())


@pytest.mark.parametrize(("kind", "reads"), [("sentinel", rd.BLANK), ("stale", rd.STALE)])
def test_sentinels_and_old_values_are_no_data_and_no_trouble(rig: Rig, kind: str, reads: str) -> None:
    rig.do("engine", behaviour="lying", kind=kind)
    s = rig.read()
    assert codes(s) == []
    value = gpu(s, 3).links[11]["nvlink_replay"]
    assert isinstance(value, NoData)
    assert value.kind == reads


def test_a_gpu_listed_twice_has_no_data(rig: Rig) -> None:
    rig.do("engine", behaviour="lying", kind="duplicate")
    s = rig.read()
    assert codes(s) == ["MON-ENGINE-LIES"]
    assert all(isinstance(v, NoData) for v in gpu(s, 0).readings.values())
    assert gpu(s, 1).readings["pcie_replay"] == 0


def test_garbage_is_no_listing(rig: Rig) -> None:
    rig.do("engine", behaviour="lying", kind="garbage")
    s = rig.read()
    assert codes(s) == ["MON-ENGINE-LIES"]
    assert s.gpus is None
    assert s.troubles[0].detail.isprintable()


def test_a_gpu_left_out_is_seen_against_the_bus(rig: Rig) -> None:
    rig.do("engine", behaviour="lying", kind="missing_gpus")
    s = rig.read()
    assert s.gpus is not None
    assert s.pci_gpus is not None
    assert (len(s.gpus), len(s.pci_gpus)) == (7, 8)


def test_frozen_values_do_not_follow_the_node(rig: Rig) -> None:
    rig.do("engine", behaviour="lying", kind="frozen")
    rig.do("add", target="g3.link11.replay", amount=50)
    assert gpu(rig.read(), 3).links[11]["nvlink_replay"] == 0
    rig.do("engine", behaviour="ok")
    assert gpu(rig.read(), 3).links[11]["nvlink_replay"] == 50


@pytest.mark.parametrize("part", ["clock", "pci"])
def test_an_unreadable_part_leaves_the_others(rig: Rig, part: str) -> None:
    rig.do("unreadable", part=part)
    s = rig.read()
    assert codes(s) == ["MON-READER"]
    assert s.troubles[0].part == part
    assert s.gpus is not None
    assert len(s.gpus) == 8
    assert (s.pci_gpus is None) == (part == "pci")
    assert s.wall_ns > 0


PROGRAM = """
import json, sys
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
read_snapshot("n1", Engine(**json.loads(sys.argv[1])), 120.0)
"""


def _until(condition: Callable[[], bool], seconds: float = patient.PROCESS_S) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; a process that is gone reads as a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["Z"]


def test_the_reader_dies_with_the_hook(rig: Rig) -> None:
    rig.do("engine", behaviour="hung")
    hook = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(rig.engine._asdict())])
    seen: list[tuple[int, list[str]]] = []

    def hanging() -> bool:
        """The reader is there and has stopped using the processor: it sits in the engine's call."""
        with open(f"/proc/{hook.pid}/task/{hook.pid}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        if pids:
            stat = _stat(pids[0])
            seen.append((pids[0], [stat[0], *stat[11:13]]))
        return len(seen) > 20 and seen[-1][1][0] == "S" and all(s == seen[-1] for s in seen[-20:])

    try:
        assert _until(hanging)
    finally:
        hook.send_signal(signal.SIGKILL)
        hook.wait()
    assert _until(lambda: _stat(seen[-1][0])[0] == "Z")


def test_the_readers_own_deadline_ends_it(rig: Rig) -> None:
    """Even if the hook could not kill it: the alarm has its default action."""
    from slurm_nvhc.proc import child
    from slurm_nvhc.sense.client import options
    from slurm_nvhc.sense.protocol import Request, encode

    rig.do("engine", behaviour="hung")
    request = encode(Request(rig.engine.backend, "n1", options(rig.engine), 0.5))
    result = child.run([sys.executable, "-I", "-m", "slurm_nvhc.sense.reader"], patient.READ_S, request=request)
    assert result.rc == -signal.SIGALRM
