"""A hook can never drain a node by being broken: whatever is taken away while jobs start and end, they run and end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Iterator

import pytest
from harness import Cluster
from site_nvhc import Held, Site

from slurm_nvhc.hooks import install
from slurm_nvhc.policy.compiled import Budgets


def delete_interpreter(site: Site) -> None:
    os.unlink(site.python)


def delete_environment(site: Site) -> None:
    shutil.rmtree(site.cluster.root / "opt")


def delete_package(site: Site) -> None:
    shutil.rmtree(site.code)


def half_an_upgrade(site: Site) -> None:
    (site.code / "slurm_nvhc" / "pipeline.py").write_text("import nothing_like_this\n")


def interpreter_that_crashes(site: Site) -> None:
    replace(site.python, "#!/bin/sh\nkill -SEGV $$\n")


def delete_policy(site: Site) -> None:
    os.unlink(site.options.config)


def ruin_policy(site: Site) -> None:
    Path(site.options.config).write_bytes(b"\xff\xfe rules: [\n\t:{{")


def delete_state(site: Site) -> None:
    shutil.rmtree(site.options.state)


def state_becomes_a_file(site: Site) -> None:
    shutil.rmtree(site.options.state)
    Path(site.options.state).write_text("not a directory")


def ruin_ledger(site: Site) -> None:
    for path in Path(site.options.state).glob("*/ledger.sqlite3*"):
        path.write_bytes(os.urandom(8192))


def delete_run(site: Site) -> None:
    shutil.rmtree(site.options.run)


def delete_world(site: Site) -> None:
    os.unlink(site.worlds["n1"])


def replace(path: Path, text: str) -> None:
    """By rename: the file may be running."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.chmod(0o755)
    os.replace(new, path)


BREAKS = [
    delete_interpreter, delete_environment, delete_package, half_an_upgrade, interpreter_that_crashes, delete_policy, ruin_policy,
    delete_state, state_becomes_a_file, ruin_ledger, delete_run, delete_world,
]  # fmt: skip


def jobs_around(site: Site, break_it: Callable[[Site], None]) -> None:
    """Jobs that start before and end after, that start and end after, and that are in their hooks meanwhile."""
    cluster = site.cluster
    before = Held(cluster, "--gres=gpu:2").wait_started()
    jobs = [cluster.sbatch("true", "--gres=gpu:1") for _ in range(2)]
    break_it(site)
    jobs += [cluster.sbatch("true", "--gres=gpu:1") for _ in range(2)]
    before.let_go()
    for job in (before.job_id, *jobs):
        cluster.wait_job(job, "COMPLETED")
    cluster.wait_quiet()


def nothing_happened(cluster: Cluster) -> None:
    assert cluster.wait_node("idle").reason == ""
    log = cluster.log("slurmctld")
    assert "draining" not in log
    assert "drain" not in log.lower().replace("nodrain", ""), "no drain, not even for a moment"
    for job in cluster.jobs():
        assert (job.state, job.restarts) == ("COMPLETED", 0), job
        assert job.priority > 0


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda f: f.__name__)
def test_broken_while_jobs_start_and_end(start, break_it: Callable[[Site], None]) -> None:
    site = start(Site(health_check=1))
    jobs_around(site, break_it)
    nothing_happened(site.cluster)


def test_everything_hangs(start) -> None:
    site = Site()
    site.options = site.options._replace(budgets=Budgets(prolog_s=1, epilog_s=1, health_check_s=1))
    start(site)
    job = Held(site.cluster, "--gres=gpu:2").wait_started()
    replace(site.python, "#!/bin/sh\ntrap '' TERM\nsleep 1000\n")
    job.finish()
    site.cluster.wait_job(site.cluster.sbatch("true", "--gres=gpu:8"), "COMPLETED")
    nothing_happened(site.cluster)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    assert shutil.disk_usage(disk).free == 0


@pytest.mark.parametrize("full", ["from the start", "during a job"])
def test_disk_full(start, small_disk: Path, full: str) -> None:
    site = Site(health_check=1)
    site.options = site.options._replace(state=str(small_disk / "state"), run=str(small_disk / "run"))
    start(site)
    if full == "from the start":
        fill(small_disk)
        jobs_around(site, lambda _site: None)
    else:
        jobs_around(site, lambda _site: fill(small_disk))
    nothing_happened(site.cluster)


def test_a_fault_is_still_acted_on_with_a_full_disk(start, small_disk: Path) -> None:
    site = Site()
    site.options = site.options._replace(state=str(small_disk / "state"), run=str(small_disk / "run"))
    start(site)
    site.cluster.srun("--gres=gpu:1", "true")
    fill(small_disk)
    site.remap_failure(gpu=1)
    site.cluster.sbatch("true", "--gres=gpu:8")
    assert site.cluster.wait_node("drained").reason.startswith("nvhc: MEM-REMAP-FAILED gpu1 ")


def test_kill_switch_stops_everything_at_once(start) -> None:
    site = start(Site())
    site.cluster.srun("--gres=gpu:1", "true")
    site.wait_run("epilog")
    Path(site.options.kill_switch).touch()
    runs = len(site.runs())
    site.remap_failure()
    job = Held(site.cluster, "--gres=gpu:8").wait_started()
    site.storm()
    job.finish()
    assert len(site.runs()) == runs
    nothing_happened(site.cluster)


def test_removed_while_slurm_still_names_the_launchers(start) -> None:
    site = start(Site(health_check=1, narrowing=True))
    jobs_around(site, lambda s: install.remove(s.options._replace(purge=True)) and delete_environment(s))
    nothing_happened(site.cluster)
    assert Path(site.options.libdir, "nvhc-prolog.sh").exists()
