"""The doctor's edges, over a root directory of the test's own."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import build
import patient
import pytest
from stub_node import BINDINGS, StubNode

from slurm_nvhc.doctor.examine import examine
from slurm_nvhc.doctor.facts import BindingsPlace, EngineProcess, Listener
from slurm_nvhc.doctor.gather import Ask, gather
from slurm_nvhc.doctor.look import host, ledger, policy, slurm
from slurm_nvhc.doctor.look.edges import Edges, within
from slurm_nvhc.doctor.mapping import rows
from slurm_nvhc.hooks import install
from slurm_nvhc.model.protective import Intent
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy.compiled import Engine, Slurm
from slurm_nvhc.proc import child
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run
from slurm_nvhc.sense.client import read_snapshot


def put(root: Path, path: str, text: str | bytes = "", mode: int = 0o644) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return file


def answers(out: str = "", rc: int | None = 0, problem: str = "", asked: list[list[str]] | None = None):
    def run(argv, timeout_s):
        if asked is not None:
            asked.append([*argv])
        return child.Result(rc, "", out, problem)

    return run


# --- processes and sockets -----------------------------------------------------------


def process(root: Path, pid: int, name: str, uid: int = 0, maps: str = "") -> None:
    put(root, f"proc/{pid}/status", f"Name:\t{name}\nUmask:\t0022\nUid:\t{uid}\t{uid + 1}\t0\t0\n")
    put(root, f"proc/{pid}/maps", maps)


def test_engines_are_found_by_name_and_by_what_they_load(tmp_path: Path) -> None:
    process(tmp_path, 10, "nv-hostengine")
    process(tmp_path, 20, "dcgm-exporter", 5, "7f00 r-xp /usr/lib/libdcgm.so.4\n7f01 r-xp /usr/lib/libdcgmmodulehealth.so.4\n")
    process(tmp_path, 30, "dcgm-exporter", 5, "7f00 r-xp /usr/lib/libdcgm.so.4\n")
    (tmp_path / "proc/40").mkdir()
    assert host.engine_processes(Edges(str(tmp_path))) == (
        (EngineProcess(10, "nv-hostengine", 1), EngineProcess(20, "dcgm-exporter", 6, embedded=True)),
        True,
    )


def test_a_process_that_may_not_be_looked_into_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path, 10, "python3")
    monkeypatch.setattr(host, "_has_engine", lambda path: None)
    assert host.engine_processes(Edges(str(tmp_path))) == ((), False)
    assert host.engine_processes(Edges(str(tmp_path / "none"))) == (None, False)


def test_listeners_of_both_families(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st\n"
    put(tmp_path, "proc/net/tcp", head + "   0: 0100007F:15B3 00000000:0000 0A 0\n   1: 0100007F:15B3 0200007F:9999 01 0\n")
    here = "0" * 24 + "01000000"
    put(tmp_path, "proc/net/tcp6", head + f"   0: {'0' * 32}:15B3 {'0' * 32}:0000 0A 0\n   1: {here}:0016 x 0A 0\n")
    assert host.listeners(Edges(str(tmp_path))) == (Listener("127.0.0.1", 5555), Listener("::", 5555), Listener("::1", 22))
    assert host.listeners(Edges(str(tmp_path / "none"))) is None


# --- files -----------------------------------------------------------------------------


def test_the_file_system_is_the_deepest_and_last_mount(tmp_path: Path) -> None:
    rows = [
        "1 1 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 8:2 / /var rw shared:1 - xfs /dev/sda2 rw",
        "3 1 0:9 / /run rw - ramfs x rw",
        "4 1 0:9 / /run rw - tmpfs x rw",
        r"5 1 0:9 / /a\040b rw - nfs4 srv:/x rw",
        "broken",
    ]
    put(tmp_path, "proc/self/mountinfo", "\n".join(rows) + "\n")
    edges = Edges(str(tmp_path))
    known = {"/var/lib/nvhc": "xfs", "/run/nvhc": "tmpfs", "/a b/c": "nfs4", "/variable": "ext4", "/var": "xfs"}
    assert {path: host.filesystem(edges, path) for path in known} == known
    assert host.filesystem(Edges(str(tmp_path / "none")), "/var") == ""


def test_the_way_to_a_file_follows_its_links(tmp_path: Path) -> None:
    put(tmp_path, "usr/bin/python3.11", mode=0o755)
    (tmp_path / "opt/venv").mkdir(parents=True)
    os.symlink(tmp_path / "usr/bin/python3.11", tmp_path / "opt/venv/python")
    chain = host.chain(Edges(str(tmp_path)), "/opt/venv/python")
    assert {p.path for p in chain} == {"/", "/usr", "/usr/bin", "/usr/bin/python3.11", "/opt", "/opt/venv", "/opt/venv/python"}
    assert chain[-1].path == "/opt/venv/python"
    assert stat.S_ISLNK(chain[-1].mode)
    assert not host.path_fact(Edges(str(tmp_path)), "/usr/none").there


def test_bindings_tell_their_major_without_being_imported(tmp_path: Path) -> None:
    put(tmp_path, "a/dcgm_agent.py", "raise SystemExit('imported')")
    put(tmp_path, "a/dcgm_structs.py", "x = load('libdcgm.so.4')")
    put(tmp_path, "b/dcgm_agent.py")
    edges = Edges(str(tmp_path))
    assert host.bindings(edges, "/a") == BindingsPlace("/a", True, 4)
    assert host.bindings(edges, "/b") == BindingsPlace("/b", True)
    assert host.bindings(edges, "/c") == BindingsPlace("/c", False)


def test_the_host_as_a_whole(tmp_path: Path) -> None:
    put(tmp_path, "etc/nvhc/disabled")
    (tmp_path / "var/lib/nvhc").mkdir(parents=True, mode=0o700)
    facts = host.look(Edges(str(tmp_path), 1000), (), "/var/lib/nvhc", "/run/nvhc", [("policy", "/p"), ("x", "")], "/etc/nvhc/disabled")
    assert (facts.root, facts.engines, facts.driver, facts.disabled) == (False, None, "", "/etc/nvhc/disabled")
    assert facts.state.path.there
    assert not facts.run.path.there
    assert [t.what for t in facts.trusted] == ["policy"]
    assert [p.there for p in facts.bindings] == [False, False]


def test_a_look_that_hangs_is_left_behind() -> None:
    never = threading.Event()
    assert within(0.05, lambda: never.wait(60), "otherwise") == "otherwise"
    never.set()
    assert within(60, lambda: "found", "otherwise") == "found"
    with pytest.raises(KeyError):
        within(60, lambda: {}["x"], None)


# --- Slurm --------------------------------------------------------------------------------


def look(root: Path, run=None, asked: str = "", environment=None, policy_conf: str = "", libdir: str = "/lib"):
    edges = Edges(str(root), environment=environment or {}, run=run or answers(rc=1))
    return slurm.look(edges, "n1", asked, Slurm("/usr/bin", policy_conf), "/run/nvhc", libdir, slurm.launchers(edges, libdir))


def test_which_slurm_conf(tmp_path: Path) -> None:
    assert look(tmp_path).conf == ""
    put(tmp_path, "etc/slurm/slurm.conf", "ClusterName=c\n")
    assert look(tmp_path).conf == "/etc/slurm/slurm.conf"
    put(tmp_path, "lib/nvhc-prolog.sh", "#!/bin/sh\nSLURM_CONF_FILE='/other/slurm.conf'\n", 0o755)
    assert look(tmp_path).conf == "/etc/slurm/slurm.conf"  # what the launcher names is not there
    put(tmp_path, "other/slurm.conf", "ClusterName=o\n")
    assert look(tmp_path).conf == "/other/slurm.conf"
    assert look(tmp_path, policy_conf="/p.conf").conf == "/p.conf"
    assert look(tmp_path, policy_conf="/p.conf", environment={"SLURM_CONF": "/e.conf"}).conf == "/e.conf"
    missing = look(tmp_path, asked="/a.conf", environment={"SLURM_CONF": "/e.conf"})
    assert (missing.conf, missing.settings, missing.listing.files) == ("/a.conf", None, None)


def test_launchers_tell_what_was_written_into_them(tmp_path: Path) -> None:
    options = install.Options(libdir=str(tmp_path / "lib"), python="/opt/my env/bin/python")
    for name, text in install.launchers(options, "/etc/slurm/slurm.conf").items():
        put(tmp_path, f"lib/{name}", text, 0o755)
    put(tmp_path, "lib/nvhc-epilog.sh", install.STUB, 0o644)
    found = {os.path.basename(x.path): x for x in slurm.launchers(Edges(str(tmp_path)), "/lib")}
    assert found["nvhc-prolog.sh"].settings == {
        "PYTHON": "/opt/my env/bin/python", "CONFIG": "/etc/nvhc/policy.yaml", "STATE": "/var/lib/nvhc", "RUN": "/run/nvhc",
        "SLURM_CONF_FILE": "/etc/slurm/slurm.conf", "KILL_SWITCH": "/etc/nvhc/disabled", "DEADLINE": "9",
    }  # fmt: skip
    stub = found["nvhc-epilog.sh"]
    assert (stub.there, stub.executable, stub.settings) == (True, False, {})
    os.symlink("/nowhere", tmp_path / "lib/gone")
    assert not slurm.launchers(Edges(str(tmp_path)), "/none")[0].there


# As 22.05.8 prints it, on stderr.
SLURMD_G = """\
slurmd: Gres Name=gpu Type=h100 Count=3 Index=0 ID=7696487 File=/dev/nvidia[0-1],/dev/nvidia4 (null)
slurmd: Gres Name=gpu Type=bad Count=1 Index=2 ID=7696487 File=/dev/nvidia2 (null)
slurmd: Gres Name=shard Type=(null) Count=8 Index=0 ID=1 File=/dev/nvidia0 (null)
"""


def test_the_list_of_slurmd_in_its_order() -> None:
    assert slurm.parse_listing(SLURMD_G).files == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia4", "/dev/nvidia2")
    assert slurm.parse_listing("").files == ()
    assert slurm.parse_listing("Gres Name=gpu Count=8 File=(null)").files is None
    assert "runs backwards" in slurm.parse_listing("Gres Name=gpu File=/dev/nvidia[3-1]").problem


def test_slurmd_is_asked_without_touching_its_log(tmp_path: Path) -> None:
    put(tmp_path, "etc/slurm/slurm.conf", "ClusterName=c\n")
    put(tmp_path, "etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-1]\n")
    assert "not on this machine" in look(tmp_path).listing.problem
    put(tmp_path, "usr/sbin/slurmd", mode=0o755)
    put(tmp_path, "usr/bin/scontrol", mode=0o755)
    asked: list[list[str]] = []
    facts = look(tmp_path, answers(SLURMD_G, asked=asked))
    assert len(facts.listing.files or ()) == 4
    assert facts.gres is not None
    assert facts.gres.files == ("/dev/nvidia0", "/dev/nvidia1")
    assert facts.scontrol_there
    assert not facts.sinfo_there
    assert [words[1:] for words in asked] == [["-G", "-L", "/dev/null", "-N", "n1", "-f", str(tmp_path / "etc/slurm/slurm.conf")], ["-V"]]
    assert "missing" in look(tmp_path, answers(rc=None, problem="timeout")).listing.problem
    failed = look(tmp_path, answers("slurmd: debug\nslurmd: fatal: no such node\n", rc=1)).listing
    assert (failed.files, failed.problem) == (None, "`slurmd -G` failed: slurmd: fatal: no such node")


def container_plugins(root: Path, text: str) -> tuple[str, ...]:
    put(root, "etc/slurm/slurm.conf", text)
    return look(root).containers


def test_container_plugins(tmp_path: Path) -> None:
    assert container_plugins(tmp_path, "JobContainerType=job_container/none\n") == ()
    put(tmp_path, "etc/slurm/plugstack.conf", "# optional spank_pyxis.so\nrequired /lib/x11.so\ninclude /etc/slurm/plugstack.conf.d/*\n")
    assert container_plugins(tmp_path, "ClusterName=c\n") == ()
    put(tmp_path, "etc/slurm/plugstack.conf.d/pyxis.conf", "required /usr/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis\n")
    assert container_plugins(tmp_path, "ClusterName=c\n") == ("pyxis (/etc/slurm/plugstack.conf.d/pyxis.conf)",)
    assert container_plugins(tmp_path, "PlugStackConfig=/none\n") == ()
    put(tmp_path, "etc/slurm/oci.conf")
    assert "oci.conf" in container_plugins(tmp_path, "PlugStackConfig=/none\n")[0]


def test_a_private_tmp_is_in_the_way_only_where_it_hides_the_run_directory(tmp_path: Path) -> None:
    text = "PlugStackConfig=/none\nJobContainerType=job_container/tmpfs\n"
    assert container_plugins(tmp_path, text) == ("JobContainerType=job_container/tmpfs",)  # not to be told
    put(tmp_path, "etc/slurm/job_container.conf", "AutoBasePath=true\nBasePath=/scratch\n")
    assert container_plugins(tmp_path, text) == ()
    put(tmp_path, "etc/slurm/job_container.conf", "BasePath=/scratch Dirs=/tmp,/run\n")
    assert container_plugins(tmp_path, text) == ("JobContainerType=job_container/tmpfs",)


def test_a_node_behind_the_dcgm_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All looks together: the stand-in engine is read as production reads one, the rest lies below its root."""
    node = StubNode(str(tmp_path), monkeypatch)
    root = Path(node.root)
    put(root, "etc/nvhc/policy.yaml", f"schema: 1\nengine: {{address: '{node.engine.address}', bindings: [{BINDINGS}]}}\n")
    put(root, f"{BINDINGS}/dcgm_agent.py")
    put(root, "etc/slurm/slurm.conf", "ClusterName=c\n")
    put(root, "etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-6]\n")
    asked = []

    def read(name: str, engine: Engine, seconds: float) -> Snapshot:
        asked.append((name, seconds))
        return read_snapshot(name, engine, patient.READ_S)

    ask = Ask("n1", "/etc/nvhc/policy.yaml", "/var/lib/nvhc", "/run/nvhc", "", "/lib", "/etc/nvhc/disabled")
    facts = gather(ask, Edges(node.root, environment={}, run=answers(rc=1), read=read))
    lines = {line.check: line for line in examine(facts)}
    assert asked == [("n1", 5.0)]
    fine = ("policy.file", "engine.reach", "engine.bindings", "gpus.driver", "gpus.links")
    assert {check: lines[check].verdict for check in fine} == dict.fromkeys(fine, "ok")
    assert (lines["gpus.count"].verdict, "gres.conf 7" in lines["gpus.count"].found) == ("warn", True)
    assert [row.minor for row in rows(facts)] == list(range(7))


# --- policy and ledger: read without a trace ------------------------------------------------


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_the_policy_of_each_kind(tmp_path: Path) -> None:
    edges = Edges(str(tmp_path))

    def read():
        return policy.look(edges, "/etc/nvhc/policy.yaml", "/var/lib/nvhc/n1", "n1")

    assert (read().which, read().there, read().problem) == (policy.PACKAGED, False, "")
    file = put(tmp_path, "etc/nvhc/policy.yaml", "schema: 1\nmode: observe\npartitions: {gpu: {narrow: {enabled: true}}}\n")
    assert (read().which, read().policy.mode, read().narrowing) == (policy.SITE, "observe", True)
    file.write_text("schema: 1\nmoed: observe\n")
    before = tree(tmp_path)
    broken = read()
    assert (broken.which, broken.readable) == (policy.PACKAGED, True)
    assert "moed" in broken.problem
    put(tmp_path, "var/lib/nvhc/n1/policy.json", "{")
    assert read().which == policy.PACKAGED
    os.unlink(tmp_path / "var/lib/nvhc/n1/policy.json")
    assert tree(tmp_path) == before


def test_the_last_good_policy_stays_in_force(tmp_path: Path) -> None:
    from slurm_nvhc.policy import source

    file = put(tmp_path, "policy.yaml", "schema: 1\nmode: observe\n")
    source.load(str(file), str(tmp_path / "state"), "n1", "")
    file.write_text("schema: 1\nmoed: observe\n")
    found = policy.look(Edges(), str(file), str(tmp_path / "state"), "n1")
    assert (found.which, found.policy.mode) == (policy.LAST_GOOD, "observe")


def fill(directory: Path) -> None:
    with Ledger.open(str(directory), 5.0) as book:
        book.record_run(Run("prolog", build.T0, build.T0 + 5, "ok", job_id="8812"))
        book.record_run(Run("prolog", build.T0, build.T0 + 9, "warn", job_id="8813"))
        book.add_intent(Intent("drain", "nvhc: X", build.T0))
        book.remember_gpus(build.snapshot(build.gpu(0)))


def test_the_ledger_is_read_without_a_trace(tmp_path: Path) -> None:
    assert not ledger.look(Edges(), str(tmp_path), "n1").there
    fill(tmp_path / "n1")
    (tmp_path / "n1/ledger.sqlite3.corrupt-1").write_text("x")
    before = tree(tmp_path)
    found = ledger.look(Edges(), str(tmp_path), "n1")
    assert tree(tmp_path) == before
    run = found.runs["prolog"]
    assert run is not None
    assert (run.job_id, run.verdict, run.ended_ns) == ("8813", "warn", build.T0 + 9)
    assert found.runs["health_check"] is None
    assert (found.problem, found.set_aside) == ("", ("ledger.sqlite3.corrupt-1",))
    assert [i.reason for i in found.intents] == ["nvhc: X"]
    assert len(found.known) == 1
    assert found.size > 0


def test_the_ledger_is_read_while_a_hook_writes(tmp_path: Path) -> None:
    fill(tmp_path / "n1")
    with Ledger.open(str(tmp_path / "n1"), 5.0) as book:
        book.record_run(Run("epilog", build.T0, build.T0 + 20, "fail", job_id="8813"))
        run = ledger.look(Edges(), str(tmp_path), "n1").runs["epilog"]
        assert run is not None
        assert run.verdict == "fail"


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_ledger_is_said_and_left_where_it_is(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path / "n1")
    (tmp_path / "n1/ledger.sqlite3").write_bytes(content)
    before = tree(tmp_path)
    found = ledger.look(Edges(), str(tmp_path), "n1")
    assert found.problem
    assert not found.denied
    assert len(found.intents) == 1
    assert tree(tmp_path) == before


def test_a_ledger_of_a_newer_version(tmp_path: Path) -> None:
    fill(tmp_path / "n1")
    conn = sqlite3.connect(tmp_path / "n1/ledger.sqlite3")
    conn.execute("PRAGMA user_version=99")
    conn.close()
    assert "99" in ledger.look(Edges(), str(tmp_path), "n1").problem


def test_a_broken_mirror_is_said(tmp_path: Path) -> None:
    fill(tmp_path / "n1")
    (tmp_path / "n1/protective.json").write_text("{")
    assert "protective.json" in ledger.look(Edges(), str(tmp_path), "n1").protective_problem
