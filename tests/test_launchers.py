"""The /bin/sh launchers: whatever the hook does, Slurm sees exit 0 in time, except for the one code that asks to fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Mapping, Optional

import patient
import pytest

from slurm_nvhc.hooks import install

HOOKS = {"nvhc-prolog.sh": "prolog", "nvhc-epilog.sh": "epilog", "nvhc-health-check.sh": "health_check"}
SHELLS = [s for s in (["/bin/sh"], ["/bin/bash", "--posix"], ["/bin/busybox", "sh"]) if os.path.exists(s[0])]
FREEZER = Path("/sys/fs/cgroup/freezer")


class Bench:
    """Launchers with baked paths under one directory, a fake interpreter, and a fake logger that writes to a file."""

    def __init__(self, root: Path, deadline: str = "600") -> None:
        self.root = root
        self.run_dir = root / "run"
        self.run_dir.mkdir(parents=True)
        self.python = root / "env" / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self.tools = root / "tools"
        self.tools.mkdir()
        self.log = root / "log"
        self.deadline = deadline
        self.marker = str(time.time_ns())  # in the command line of what a test leaves running
        self._script(self.tools / "logger", f'printf "%s\\n" "$*" >>{_quoted(self.log)}')

    def interpreter(self, body: str) -> None:
        self._script(self.python, body.replace("@root@", str(self.root)).replace("@marker@", self.marker))

    def _script(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def launcher(self, name: str = "nvhc-prolog.sh", path_prefix: Optional[str] = None) -> Path:
        options = install.Options(
            libdir="/unused", config=f"{self.root}/policy.yaml", state=f"{self.root}/state", run=str(self.run_dir),
            kill_switch=f"{self.root}/disabled", python=str(self.python),
        )  # fmt: skip
        text = install.launchers(options, f"{self.root}/slurm.conf")[name]
        lines = [f"DEADLINE={self.deadline}" if line.startswith("DEADLINE=") else line for line in text.splitlines()]
        prefix = f"{_quoted(self.tools)}:/usr/sbin:/usr/bin:/sbin:/bin" if path_prefix is None else path_prefix
        lines = [f"PATH={prefix}" if line.startswith("PATH=") else line for line in lines]
        path = self.root / name
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)
        return path

    def run(self, name: str = "nvhc-prolog.sh", env: Mapping[str, str] = {}, **more: object) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
            [str(self.launcher(name))], env=dict(env), capture_output=True, text=True, timeout=patient.PROCESS_S, **more
        )
        return done

    def logged(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def left_running(self) -> list[str]:
        return processes_with(self.marker)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def processes_with(word: str) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace")
                state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if word in command and state not in "ZX":
                found.append(f"{entry} {command}")
    return found


def wait_until(probe: Callable[[], object], seconds: float = patient.PROCESS_S) -> None:
    end = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "a place with 'quotes' & spaces")


@pytest.fixture
def short(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "b", deadline="2")


@pytest.mark.parametrize("name", HOOKS)
def test_the_hook_gets_its_name_and_the_baked_paths(bench: Bench, name: str) -> None:
    bench.interpreter('for a in "$@"; do printf "%s\\n" "$a"; done >"$0.seen"')
    done = bench.run(name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    root = bench.root
    assert Path(f"{bench.python}.seen").read_text().splitlines() == [
        "-I", "-m", "slurm_nvhc.hooks", HOOKS[name], "--config", f"{root}/policy.yaml", "--state", f"{root}/state",
        "--run", f"{root}/run", "--slurm-conf", f"{root}/slurm.conf",
    ]  # fmt: skip
    assert bench.logged() == ""
    assert [p.name for p in bench.run_dir.iterdir() if not p.name.endswith(".lock")] == []


@pytest.mark.parametrize("shell", SHELLS, ids=lambda s: os.path.basename(s[0]))
def test_every_shell_and_no_environment_no_directory_no_stdin(bench: Bench, shell: list[str]) -> None:
    bench.interpreter('echo ran >"$0.seen"; exit 97')
    gone = bench.root / "gone"
    gone.mkdir()
    script = 'cd "$1"; rmdir "$1"; shift; exec <&- ; exec env -i "$@"'
    argv = ["/bin/sh", "-c", script, "sh", str(gone), *shell, str(bench.launcher())]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=patient.PROCESS_S)
    assert done.returncode == 1
    assert Path(f"{bench.python}.seen").exists()


def test_all_descriptors_closed(bench: Bench) -> None:
    bench.interpreter('echo ran >"$0.seen"')
    launcher = bench.launcher()
    done = subprocess.run(["/bin/sh", "-c", 'exec "$0" <&- >&- 2>&-', str(launcher)], timeout=patient.PROCESS_S)
    assert done.returncode == 0
    assert Path(f"{bench.python}.seen").exists()


def test_the_hook_inherits_nothing_but_three_descriptors(bench: Bench) -> None:
    bench.interpreter('for f in /proc/$$/fd/*; do readlink "$f"; done >"$0.seen"')
    bench.run("nvhc-health-check.sh")
    own = ("/fd", "/python", "/python.seen")  # the fake interpreter's: the listing, its script, its redirection
    seen = {line for line in Path(f"{bench.python}.seen").read_text().splitlines() if not line.endswith(own)}
    assert {line for line in seen if not line.endswith(" (deleted)")} == {"/dev/null"}
    assert len(seen) == 2  # and the nameless file for its stderr


def test_kill_switch(bench: Bench) -> None:
    bench.interpreter("exit 97")
    (bench.root / "disabled").touch()
    assert bench.run().returncode == 0
    (bench.root / "disabled").unlink()
    assert bench.run().returncode == 1


@pytest.mark.parametrize("what", ["missing", "not executable", "a directory", "bad shebang", "not a program", "empty"])
def test_broken_interpreter_is_logged_and_harmless(bench: Bench, what: str) -> None:
    if what == "not executable":
        bench.python.write_text("#!/bin/sh\nexit 97\n")
    elif what == "a directory":
        bench.python.mkdir()
    elif what == "bad shebang":
        bench.python.write_text("#!/nowhere/python\n")
        bench.python.chmod(0o755)
    elif what == "not a program":
        bench.python.write_bytes(b"\x7fELF\0\0")
        bench.python.chmod(0o755)
    elif what == "empty":
        bench.python.touch(mode=0o755)
    done = bench.run()
    assert (done.returncode, done.stdout) == (0, "")
    if what != "empty":  # the shell takes an empty file for a program that does nothing
        assert bench.logged().count("\n") == 1
        assert "prolog: " in bench.logged()
    if what in ("missing", "not executable", "a directory", "bad shebang"):
        assert f"the interpreter {bench.python} is missing or can not be run" in bench.logged()


def test_the_interpreter_is_looked_at_only_under_the_deadline(bench: Bench) -> None:
    # Asking whether a file on a stuck shared file system exists may never return.
    bench.launcher()
    using = [line.split("#")[0].strip() for line in (bench.root / "nvhc-prolog.sh").read_text().splitlines() if "$PYTHON" in line]
    assert [line.split()[0] for line in using] == ["timeout", "126"]
    assert "meaning=" in using[1]


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("status", [1, 2, 3, 96, 98, 124, 125, 126, 127, 130, 137, 255])
def test_every_code_becomes_zero_with_one_line(bench: Bench, name: str, status: int) -> None:
    bench.interpreter(f"echo Traceback >&2; echo 'ModuleNotFoundError: No module named x' >&2; exit {status}")
    done = bench.run(name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (line,) = bench.logged().splitlines()
    assert f"{HOOKS[name]}: ended with status {status} " in line
    assert line.endswith("ModuleNotFoundError: No module named x")


@pytest.mark.parametrize("name", HOOKS)
def test_ninety_seven_fails_the_prolog_only(bench: Bench, name: str) -> None:
    bench.interpreter("echo drained for gpu3 >&2; exit 97")
    done = bench.run(name)
    if name == "nvhc-prolog.sh":
        assert (done.returncode, done.stdout, bench.logged()) == (1, "nvhc: drained for gpu3\n", "")
    else:
        assert (done.returncode, done.stdout) == (0, "")
        assert "status 97" in bench.logged()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_crash_is_harmless(bench: Bench, number: int) -> None:
    bench.interpreter(f"kill -{int(number)} $$")
    assert bench.run().returncode == 0
    assert bench.logged().count("\n") == 1


def test_a_wild_last_line_stays_one_printable_line(bench: Bench) -> None:
    bench.interpreter("head -c 300000 /dev/zero | tr '\\0' x >&2; printf 'a\\033[2Jb\\tc\\377' >&2; exit 1")
    assert bench.run().returncode == 0
    (line,) = bench.logged().splitlines()
    assert line.isprintable()
    assert len(line) < 1300
    assert line.endswith("a?[2Jb?c?")


def test_deadline_kills_the_whole_group(short: Bench) -> None:
    short.interpreter("trap '' TERM; sleep 1000.@marker@ & echo waiting >&2; sleep 1000.@marker@")
    done = short.run("nvhc-epilog.sh")
    assert done.returncode == 0
    assert short.left_running() == []
    assert "status 137" in short.logged()
    assert short.logged().endswith("waiting\n")


def test_ended_hook_leaves_nobody_of_its_group(bench: Bench) -> None:
    bench.interpreter("sleep 1000.@marker@ & exit 0")
    assert bench.run().returncode == 0
    wait_until(lambda: not bench.left_running())


def test_output_pipe_is_not_held_by_what_the_hook_leaves(bench: Bench) -> None:
    # slurmd waits for end-of-file: a grandchild in a session of its own must not have the pipe.
    bench.interpreter("setsid sleep 1000.@marker@ & exit 0")
    try:
        assert bench.run().returncode == 0
    finally:
        for process in bench.left_running():
            os.kill(int(process.split()[0]), signal.SIGKILL)


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs the cgroup v1 freezer, as root")
def test_a_hook_that_can_not_die_does_not_hold_the_launcher(short: Bench) -> None:
    # A frozen process stands for one stuck in the driver: SIGKILL does not end it.
    cage = FREEZER / f"nvhc-test-{os.getpid()}"
    cage.mkdir()
    try:
        (cage / "freezer.state").write_text("FROZEN")
        short.interpreter(f"echo $$ >{cage}/cgroup.procs; exit 97")
        assert short.run().returncode == 0
        assert (cage / "cgroup.procs").read_text().split()
        assert "status 137" in short.logged()
    finally:
        (cage / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (cage / "cgroup.procs").read_text().split())
        cage.rmdir()


def test_sigterm_reaches_the_hook_and_ends_everything(bench: Bench) -> None:
    bench.interpreter("trap 'echo told >\"$0.told\"' TERM; sleep 1000.@marker@ & echo up >\"$0.up\"; while :; do wait; done")
    launcher = bench.launcher()
    patiently = launcher.read_text().replace("sleep 0.2", "sleep 2")  # what the hook gets to end its children: little on a busy machine
    assert "sleep 2 " in patiently
    launcher.write_text(patiently)
    process = subprocess.Popen([str(launcher)], env={}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(Path(f"{bench.python}.up").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(patient.PROCESS_S) == 0
    assert process.communicate()[0] == b""
    assert Path(f"{bench.python}.told").exists()
    assert bench.left_running() == []
    assert "stopped by a signal" in bench.logged()


def test_missing_run_directory_is_made(bench: Bench) -> None:
    bench.interpreter("exit 97")
    shutil.rmtree(bench.run_dir)
    assert bench.run().returncode == 1
    assert bench.run_dir.is_dir()


@pytest.mark.parametrize("name", HOOKS)
def test_impossible_run_directory_does_not_stop_the_hook(bench: Bench, name: str) -> None:
    bench.interpreter('echo ran >"$0.seen"; exit 5')
    shutil.rmtree(bench.run_dir)
    bench.run_dir.write_text("a file, so that nothing can be written below it")
    done = bench.run(name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Path(f"{bench.python}.seen").exists()
    assert "status 5" in bench.logged()


def test_without_any_tool(bench: Bench) -> None:
    bench.interpreter("exit 97")
    bench.launcher(path_prefix="/nonexistent")
    done = subprocess.run([str(bench.root / "nvhc-prolog.sh")], env={}, capture_output=True, text=True, timeout=patient.PROCESS_S)
    assert (done.returncode, done.stdout) == (0, "")


def test_without_logger(bench: Bench) -> None:
    bench.interpreter("exit 3")
    os.unlink(bench.tools / "logger")
    for tool in ("timeout", "rm", "tail", "tr"):
        found = shutil.which(tool, path="/usr/bin:/bin")
        assert found
        os.symlink(found, bench.tools / tool)
    bench.launcher("nvhc-health-check.sh", path_prefix=_quoted(bench.tools))  # no flock either
    done = subprocess.run([str(bench.root / "nvhc-health-check.sh")], env={}, capture_output=True, text=True, timeout=patient.PROCESS_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_hanging_logger_is_ended(bench: Bench) -> None:
    bench.interpreter("exit 3")
    (bench.tools / "logger").write_text(f"#!/bin/sh\nsleep 1000.{bench.marker}\n")
    assert bench.run().returncode == 0
    wait_until(lambda: not bench.left_running())


def test_a_second_health_check_leaves_at_once(bench: Bench) -> None:
    bench.interpreter('echo x >>"$0.runs"; sleep 1000.@marker@')
    launcher = str(bench.launcher("nvhc-health-check.sh"))
    runs = Path(f"{bench.python}.runs")
    first = subprocess.Popen([launcher], env={"SLURMD_NODENAME": "n1"})
    wait_until(runs.exists)
    assert subprocess.run([launcher], env={"SLURMD_NODENAME": "n1"}, timeout=patient.PROCESS_S).returncode == 0
    assert runs.read_text() == "x\n"
    other = subprocess.Popen([launcher], env={"SLURMD_NODENAME": "n2"})  # another slurmd on this host is not held up
    wait_until(lambda: runs.read_text() == "x\nx\n")
    first.kill()  # kill -9 must not leave a lock behind
    first.wait()
    again = subprocess.Popen([launcher], env={"SLURMD_NODENAME": "n1"})
    wait_until(lambda: runs.read_text() == "x\nx\nx\n")
    for process in (other, again):
        process.terminate()
        assert process.wait(patient.PROCESS_S) == 0
    for line in bench.left_running():  # the orphan of the launcher that was killed ends at its deadline
        os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.mark.parametrize("name", [*HOOKS, install.TASK_PROLOG])
def test_nothing_is_left_to_fill_in(bench: Bench, name: str) -> None:
    text = bench.launcher(name).read_text()
    assert "@" not in text.replace('"$@"', "")
    for shell in SHELLS:
        assert subprocess.run([*shell, "-n", str(bench.root / name)], capture_output=True, text=True).stderr == ""
