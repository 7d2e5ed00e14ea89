"""`nvhc doctor` as a process: on a simulated node, as an ordinary user, and on a machine with nothing at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import patient
import pytest
from site_ import Site

from slurm_nvhc.hooks import install

NOBODY = 65534


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A node on which the hooks are installed and have run, with a slurmd that lists its GPUs."""
    site = Site(tmp_path)
    options = install.Options(
        libdir=f"{tmp_path}/lib", config=str(site.config), state=f"{tmp_path}/state", run=f"{tmp_path}/run",
        slurm_conf=str(site.slurm_conf), budgets=patient.BUDGETS,
    )  # fmt: skip
    lines = [line.text for line in install.install(options).lines]
    site.slurm_conf.write_text("\n".join(["ClusterName=test", "MessageTimeout=120", "BatchStartTimeout=120", *lines, ""]))
    tool(tmp_path / "slurmd", "echo 'slurmd: Gres Name=gpu Type=h100 Count=8 Index=0 ID=7696487 File=/dev/nvidia[0-7] (null)' >&2")
    tool(tmp_path / "sinfo", "exit 1")
    site.hook("health_check")
    return site


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that every user may enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="nvhc-doctor-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def tool(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def doctor(site: Site, code: int | None = None) -> dict[str, dict[str, str]]:
    answer = site.nvhc_json("doctor", "--libdir", f"{site.root}/lib", "--kill-switch", f"{site.root}/off", code=code)
    assert (answer["schema"], answer["node"]) == (1, "n1")
    return {line["check"]: line for line in answer["lines"]}


def wrong(lines: dict[str, dict[str, str]]) -> dict[str, str]:
    """What is not in order, apart from the file systems and the owner of a test's own directory."""
    return {check: line["verdict"] for check, line in lines.items() if line["verdict"] != "ok" and not check.startswith("permissions.")}


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(root.rglob("*"))}


def test_a_node_in_order_and_nothing_is_changed(site: Site) -> None:
    before = tree(site.root)
    lines = doctor(site)
    after = tree(site.root)
    # The simulated node's clock is its own; scontrol -V notes its call.
    own = {str(site.root / name) for name in ("scontrol.calls", "world.json")} | {str(site.root)}
    assert {k: v for k, v in after.items() if k not in own} == {k: v for k, v in before.items() if k not in own}
    assert site.calls() == ["-V"]
    assert wrong(lines) == {}
    assert "18 links up on each of 8" in lines["gpus.links"]["found"]
    assert "same 8 device files" in lines["mapping.slurmd"]["found"]


def test_text_has_one_line_for_each_check_and_the_table(site: Site) -> None:
    checks = len(doctor(site))
    text = site.nvhc("doctor", "--libdir", f"{site.root}/lib", code=None)
    head, _, rest = text.partition("positions in SLURM_JOB_GPUS (exact)")
    assert len(head.strip().splitlines()) == checks
    assert len([row for row in rest.splitlines() if "/dev/nvidia" in row]) == 8
    assert rest.strip().splitlines()[-1].startswith("n1: ")


def test_what_is_wrong_shows_in_lines_and_exit_code(site: Site) -> None:
    tool(site.root / "slurmd", "echo 'Gres Name=gpu Count=8 File=/dev/nvidia[1-7],/dev/nvidia0'")
    (site.root / "off").touch()
    with site.edit() as world:
        world.lose("g3")
        world.set("g5.link2.state", "down")
    found = wrong(doctor(site, code=1))
    assert {"mapping.slurmd", "mapping.positions", "gpus.count", "gpus.links"} <= {check for check, v in found.items() if v == "fail"}
    assert found["slurm.switch"] == "warn"


def test_an_engine_that_hangs_is_waited_for_no_longer_than_the_policy_says(site: Site) -> None:
    with site.edit() as world:
        world.engine("hung")
    site.write_policy({"engine": {"backend": "sim", "world": site.world_file, "timeout": "1s"}})
    lines = doctor(site, code=1)
    assert lines["engine.reach"]["verdict"] == "fail"
    assert "no answer within 1 s" in lines["engine.reach"]["found"]
    assert lines["gpus.count"]["verdict"] == "unknown"
    assert "PCI bus 8" in lines["gpus.count"]["found"]
    assert lines["mapping.slurmd"]["verdict"] == "ok"


def test_an_engine_that_is_not_there(site: Site) -> None:
    site.write_policy({"engine": {"backend": "dcgm", "address": "unix:///nowhere/dcgm.sock"}, "expect": {"gpus": 8}})
    lines = doctor(site, code=1)
    assert lines["engine.reach"]["verdict"] == "fail"
    assert lines["engine.bindings"]["verdict"] in ("fail", "ok")
    assert lines["gpus.count"]["verdict"] != "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_is_told_what_root_would_see(site: Site, open_to_all: Path) -> None:
    for name in ("state", "lib", "slurm.conf", "gres.conf"):
        subprocess.run(["cp", "-a", str(site.root / name), str(open_to_all / name)], check=True)
    words = [
        "doctor", "--json", "--config", "/etc/nvhc/policy.yaml", "--state", f"{open_to_all}/state", "--run", f"{open_to_all}/run",
        "--node", "n1", "--slurm-conf", f"{open_to_all}/slurm.conf", "--libdir", f"{open_to_all}/lib",
    ]  # fmt: skip
    # The interpreter may lie where only root can go: a first run loads all that is needed before root is given up.
    script = f"""
import contextlib, encodings.ascii, io, os, sys
from slurm_nvhc.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    main({words!r})
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(main({words!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/", timeout=patient.PROCESS_S, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    lines = {line["check"]: line for line in json.loads(done.stdout)["lines"]}
    assert (lines["ledger.file"]["verdict"], lines["ledger.file"]["advice"]) == ("unknown", "run as root to see it")
    assert lines["permissions.state"]["verdict"] == "ok"
    assert lines["slurm.conf"]["verdict"] == "ok"
    assert lines["engine.others"]["verdict"] in ("ok", "unknown")


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    """Neither GPU nor engine nor Slurm as far as this policy and these paths lead."""
    command = [
        sys.executable, "-m", "slurm_nvhc.cli.main", "doctor", "--config", f"{tmp_path}/none.yaml", "--state", f"{tmp_path}/state",
        "--run", f"{tmp_path}/run", "--node", "n1", "--libdir", f"{tmp_path}/lib", "--slurm-conf", f"{tmp_path}/slurm.conf",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient.PROCESS_S, check=False)
    assert done.returncode in (1, 3), done.stderr
    assert done.stderr == ""
    assert "can not be read" in done.stdout
    assert list(tmp_path.iterdir()) == []
