"""./run on machines that lack something: it says what, in one line, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Machine:
    """A copy of ./run in a directory with blanks in its name, and a PATH with just what is put there."""

    def __init__(self, root: Path) -> None:
        self.clone = root / "a clone"
        self.clone.mkdir()
        shutil.copy(ROOT / "run", self.clone / "run")
        shutil.copy(ROOT / "pyproject.toml", self.clone / "pyproject.toml")
        self.bin = root / "bin"
        self.bin.mkdir()
        for tool in ("dirname", "cat", "rm", "cksum", "mkdir", "chmod", "sh"):
            found = shutil.which(tool, path="/usr/bin:/bin")
            assert found
            (self.bin / tool).symlink_to(found)
        self.tool("id", "echo 1000")  # never root: nothing is installed

    def tool(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.clone / "run"), *arguments], env={"PATH": str(self.bin)}, cwd="/", capture_output=True, text=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# A python of which the virtual environment's copy notes what pip is asked for.
WORKING_PYTHON = """\
case "$*" in
*"-m venv "*) mkdir -p "$3/bin"; cat "$0" >"$3/bin/python"; chmod 755 "$3/bin/python"; cat >"$3/bin/nvhc" <<'E'
#!/bin/sh
echo "nvhc $*"
E
chmod 755 "$3/bin/nvhc" ;;
*"-m pip install"*) echo "$*" >>"$(dirname "$0")/../../pip.log"
    case "$*" in *--target*) [ ! -e "$(dirname "$0")/../../offline" ] || exit 1; mkdir -p "$(dirname "$0")/../conformance" ;; esac ;;
*"-m pytest"*) echo "$*" ;;
esac
exit 0"""


def test_help_and_unknown_command(machine: Machine) -> None:
    assert machine.run().stdout == machine.run("help").stdout != ""
    done = machine.run("tset")
    assert done.returncode == 2
    assert "no such command: tset" in done.stderr


def test_no_python(machine: Machine) -> None:
    machine.tool("python3", "exit 1")  # too old
    done = machine.run("demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "run: no Python 3.10 or newer found in PATH as python3 or python3.N"


def test_a_newer_python_beside_an_old_one(machine: Machine) -> None:
    machine.tool("python3", "exit 1")
    machine.tool("python3.12", WORKING_PYTHON)
    assert machine.run("demo", "a b").stdout == "nvhc demo a b\n"


def test_no_venv_module_names_the_command(machine: Machine) -> None:
    machine.tool("python3", 'case "$*" in *venv\\ *) exit 1 ;; *version_info\\[:2*) echo python3.11-venv ;; esac; exit 0')
    done = machine.run("demo")
    assert done.returncode == 2
    assert "sudo apt-get install python3.11-venv" in done.stderr
    assert not (machine.clone / ".venv").exists()


def test_set_up_once_and_again_when_pyproject_changes(machine: Machine) -> None:
    machine.tool("python3", WORKING_PYTHON)
    log = machine.clone / "pip.log"
    machine.run("demo")
    machine.run("demo")
    assert len(log.read_text().splitlines()) == 1
    assert "[test]" not in log.read_text()
    machine.run("test")
    editable, bindings = log.read_text().splitlines()[1:]
    assert editable.endswith("--editable .[test]")
    assert bindings.endswith(f"--no-deps --target {machine.clone}/.venv/conformance triton-model-analyzer")
    machine.run("test")
    machine.run("demo")  # what the tests have is enough for the demo
    assert len(log.read_text().splitlines()) == 3
    with open(machine.clone / "pyproject.toml", "a") as file:
        file.write("\n")
    machine.run("demo")
    assert len(log.read_text().splitlines()) == 4


def test_without_nvidias_bindings_the_tests_run_all_the_same(machine: Machine) -> None:
    machine.tool("python3", WORKING_PYTHON)
    (machine.clone / "offline").touch()
    done = machine.run("test", "-q")
    assert (done.returncode, done.stdout) == (0, "-m pytest -q\n")
    assert "the test against NVIDIA's bindings will be skipped" in done.stderr
    (machine.clone / "offline").unlink()
    assert "skipped" not in machine.run("test").stderr  # tried again


def test_an_environment_from_another_place_is_made_anew(machine: Machine, tmp_path: Path) -> None:
    machine.tool("python3", WORKING_PYTHON)
    machine.run("demo")
    (machine.clone / ".venv" / "stale").touch()
    os.rename(machine.clone, tmp_path / "moved")
    machine.clone = tmp_path / "moved"
    assert machine.run("demo").stdout == "nvhc demo\n"
    assert not (machine.clone / ".venv" / "stale").exists()


def test_bench(machine: Machine) -> None:
    machine.tool("python3", WORKING_PYTHON.replace('*"-m pytest"*)', '*/bench/*|*"-m pytest"*)'))
    assert machine.run("bench", "hooks", "--times", "3").stdout == f"{machine.clone}/bench/hooks.py --times 3\n"
    assert "[test]" not in (machine.clone / "pip.log").read_text()
    for wrong in ((), ("all",)):
        done = machine.run("bench", *wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert "./run bench reader" in done.stderr


def test_pytest_gets_the_arguments(machine: Machine) -> None:
    machine.tool("python3", WORKING_PYTHON)
    assert machine.run("test", "-k", "R11 or R12").stdout == "-m pytest -k R11 or R12\n"
