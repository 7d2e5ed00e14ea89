"""Engines and bindings that misbehave: each ends in a monitor finding, in time, with no process left and the witnesses kept."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import patient
import pytest
from stub_node import BINDINGS, HERE, StubNode

from slurm_nvhc.errors import InputError
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy import compiled
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.dcgm import connection
from slurm_nvhc.sense.reader.backend import PartFailed

sys.path.insert(0, HERE)
import servers


def children() -> set[int]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children", encoding="ascii") as file:
        return {int(pid) for pid in file.read().split()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubNode]:
    before = children()
    node = StubNode(str(tmp_path), monkeypatch)
    node.do("xid", gpu="g3", code=119)
    yield node
    assert children() <= before, "a reader process was left behind"


def witnessed(s: Snapshot, code: str) -> str:
    """The one trouble's text; everything that the engine is not needed for is there."""
    (trouble,) = s.troubles
    assert (trouble.code, s.gpus) == (code, None)
    assert s.events_known
    assert [e.code for e in s.events] == [119]
    assert s.pci_gpus is not None
    assert len(s.pci_gpus) == 8
    return trouble.detail


def at(node: StubNode, address: str) -> Engine:
    return node.engine._replace(address=address)


def test_a_good_engine_over_tcp_and_over_a_socket(node: StubNode) -> None:
    # tmp_path may be too long: a socket's path has 107 characters at most.
    for place in ("", "engine.socket"):
        with tempfile.TemporaryDirectory() as folder, servers.serving(
            servers.greeting(node.world, stays=True), place and os.path.join(folder, place)
        ) as address:
            node.engine = at(node, address)
            s = node.read()
            assert s.troubles == ()
            assert len(s.gpus or {}) == 8


def test_it_refuses(node: StubNode) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node.engine = at(node, f"tcp://127.0.0.1:{port}")
    detail = witnessed(node.read(), "MON-ENGINE-ABSENT")
    assert f"tcp://127.0.0.1:{port}" in detail
    assert "Connection refused" in detail


def test_its_socket_is_not_there(node: StubNode) -> None:
    node.engine = at(node, "unix:///no/such/socket")
    assert "No such file or directory" in witnessed(node.read(), "MON-ENGINE-ABSENT")


@pytest.mark.parametrize("talk", [servers.closing, servers.http])
def test_something_else_listens(node: StubNode, talk: servers.Talk) -> None:
    with servers.serving(talk) as address:
        node.engine = at(node, address)
        assert "it is no DCGM engine" in witnessed(node.read(), "MON-ENGINE-ABSENT")


@pytest.mark.parametrize("talk", [servers.silent, servers.babbling, servers.dripping])
def test_it_accepts_and_never_answers(node: StubNode, talk: servers.Talk) -> None:
    limit_s = patient.limit_for(node.read)
    with servers.serving(talk) as address:
        node.engine = at(node, address)
        assert "still waiting for the engine part" in witnessed(node.read(limit_s), "MON-ENGINE-HUNG")


def test_it_dies_in_the_middle(node: StubNode) -> None:
    with servers.serving(servers.greeting(node.world, stays=False)) as address:
        node.engine = at(node, address)
        assert "connection not valid" in witnessed(node.read(), "MON-ENGINE-ABSENT")


CALLS = (
    "connect",
    "dcgmHostengineVersionInfo",
    "dcgmGetAllDevices",
    "dcgmEntitiesGetLatestValues",
    "dcgmGetGpuStatus",
    "dcgmGetNvLinkLinkStatus",
)


@pytest.mark.parametrize("call", CALLS)
def test_it_hangs_in_a_call(node: StubNode, call: str) -> None:
    limit_s = patient.limit_for(node.read)
    node.stub(hang=call)
    witnessed(node.read(limit_s), "MON-ENGINE-HUNG")


@pytest.mark.parametrize("call", CALLS)
def test_the_library_crashes_the_reader(node: StubNode, call: str) -> None:
    node.stub(crash=call)
    assert "SIGSEGV" in witnessed(node.read(), "MON-READER")


@pytest.mark.parametrize(
    ("call", "status", "code", "word"),
    [
        ("dcgmGetAllDevices", -56, "MON-ENGINE-EMPTY", "before the driver"),
        ("dcgmGetAllDevices", -21, "MON-ENGINE-ABSENT", "connection not valid"),
        ("dcgmEntitiesGetLatestValues", -57, "MON-ENGINE-HUNG", "driver does not answer"),
        ("dcgmEntitiesGetLatestValues", -11, "MON-ENGINE-HUNG", "timeout"),
        ("dcgmGetGpuStatus", -21, "MON-ENGINE-ABSENT", "connection not valid"),
        ("dcgmGetNvLinkLinkStatus", -21, "MON-ENGINE-ABSENT", "connection not valid"),
    ],
)
def test_it_fails_a_call(node: StubNode, call: str, status: int, code: str, word: str) -> None:
    node.stub(fail={call: status})
    assert word in witnessed(node.read(), code)


def test_bindings_of_another_version_than_the_engine(node: StubNode) -> None:
    node.stub(mismatch=True)
    assert "version mismatch" in witnessed(node.read(), "MON-ENGINE-ABSENT")


def test_its_samples_are_old(node: StubNode) -> None:
    node.stub(old_s=3600)
    s = node.read()
    assert [t.code for t in s.troubles] == ["MON-ENGINE-LIES"]
    assert "3600 s old" in s.troubles[0].detail
    assert s.gpus is not None
    for state in s.gpus.values():
        of_engine = [v for name, v in state.readings.items() if name != "gpu_processes"]  # the kernel's to tell
        # The wiring is told by the switches, and does not age.
        values = [*of_engine, *(v for link in state.links.values() for name, v in link.items() if name != "nvlink_remote")]
        assert all(isinstance(v, NoData) and v.kind in (rd.STALE, rd.NOT_SUPPORTED) for v in values)
    node.stub(old_s=30)
    assert node.read().troubles == ()


# -- bindings ---------------------------------------------------------------------------


def bindings(node: StubNode, *folders: str) -> None:
    node.engine = node.engine._replace(bindings=folders)


def test_no_bindings_names_every_place(node: StubNode) -> None:
    bindings(node, "/no/such/folder", str(node.root))
    detail = witnessed(node.read(), "MON-ENGINE-ABSENT")
    assert f"/no/such/folder: not there; {node.root}: not there" in detail
    bindings(node)
    detail = witnessed(node.read(), "MON-ENGINE-ABSENT")
    for folder in ("/usr/share/datacenter-gpu-manager-4/bindings/python3", "/usr/local/dcgm/bindings/python3"):
        assert folder in detail


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BINDINGS, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize(
    ("module", "text", "word"),
    [
        ("dcgm_structs", "print 'Python 2'\n", "SyntaxError"),
        ("pydcgm", "import DcgmGroup\n", "No module named 'DcgmGroup'"),
        ("dcgm_structs", "def _dcgmInit():\n    raise OSError('libdcgm.so.4: no such file')\n", "libdcgm.so.4: no such file"),
        ("dcgm_structs", "x = 1\n", "_dcgmInit"),
    ],
)
def test_bindings_that_do_not_load_are_passed_over(node: StubNode, copy: Path, module: str, text: str, word: str) -> None:
    (copy / f"{module}.py").write_text(text)
    for name in ("dcgm_fields", "dcgm_agent", "pydcgm") if module == "dcgm_structs" else ():
        (copy / f"{name}.py").write_text("import dcgm_structs\n")
    bindings(node, str(copy))
    detail = witnessed(node.read(), "MON-ENGINE-ABSENT")
    assert f"{copy}: " in detail
    assert word in detail
    bindings(node, str(copy), BINDINGS)
    s = node.read()
    assert s.troubles == ()
    assert len(s.gpus or {}) == 8


def test_bindings_that_lack_a_call(node: StubNode, copy: Path) -> None:
    agent = copy / "dcgm_agent.py"
    agent.write_text(agent.read_text().replace("def dcgmEntitiesGetLatestValues", "def somethingElse"))
    bindings(node, str(copy))
    assert "dcgmEntitiesGetLatestValues" in witnessed(node.read(), "MON-ENGINE-ABSENT")


def test_the_module_that_some_packages_forget_is_stood_in_for(node: StubNode, copy: Path) -> None:
    """4.0 to 4.5.0 import ``logger``, which they do not contain."""
    handle = copy / "pydcgm.py"
    handle.write_text(handle.read_text() + "\nimport logger\nlogger.info('up %s', 1)\n")
    bindings(node, str(copy))
    assert node.read().troubles == ()
    (copy / "logger.py").write_text("raise ImportError('the real one is used where it exists')\n")
    assert "the real one" in witnessed(node.read(), "MON-ENGINE-ABSENT")


def test_embedded_only_when_asked(node: StubNode) -> None:
    node.engine = node.engine._replace(embedded=True)
    assert "embedded engine" in witnessed(node.read(), "MON-ENGINE-ABSENT")  # the stand-in has none


def test_the_policy_says_where_bindings_are() -> None:
    text = "engine: {bindings: [/opt/dcgm/python3, /usr/local/dcgm/bindings/python3], embedded: true}"
    engine = compiled.resolve(compile_policy(text, "policy.yaml")).engine
    assert (engine.bindings, engine.embedded) == (("/opt/dcgm/python3", "/usr/local/dcgm/bindings/python3"), True)
    default = compiled.resolve(compile_policy("mode: observe", "policy.yaml")).engine
    assert (default.bindings, default.embedded) == ((), False)
    wrongs = {"bindings: [opt/dcgm]": "absolute", "bindings: /opt": "bindings", "embedded: 3": "embedded"}
    for wrong, word in wrongs.items():
        with pytest.raises(InputError, match=word):
            compile_policy(f"engine: {{{wrong}}}", "policy.yaml")


# -- addresses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", "tcp://127.0.0.1:5555"),
        ("localhost", "tcp://localhost:5555"),
        ("10.0.0.7:6000", "tcp://10.0.0.7:6000"),
        ("tcp://node-1.example", "tcp://node-1.example:5555"),
        ("tcp://[::1]:5556", "tcp://[::1]:5556"),
        ("tcp://[fe80::1]", "tcp://[fe80::1]:5555"),
        ("unix:///run/dcgm.socket", "unix:///run/dcgm.socket"),
        ("/run/dcgm.socket", "unix:///run/dcgm.socket"),
    ],
)
def test_addresses(text: str, meant: str) -> None:
    assert str(connection.address(text)) == meant


@pytest.mark.parametrize("text", ["http://localhost", "unix://relative", "tcp://", "tcp://a b", "tcp://x:port", "tcp://x:1234567", "tcp://a\n"])
def test_what_is_no_address(node: StubNode, text: str) -> None:
    with pytest.raises(PartFailed, match="no address of an engine"):
        connection.address(text)
    node.engine = at(node, text)
    assert "no address" in witnessed(node.read(), "MON-ENGINE-ABSENT")
