"""Prolog and epilog of a placeholder job, as processes: nothing is judged, nothing recorded, and only a certain GPU is told."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from act_fakes import T0
from site_ import Site

from slurm_nvhc.context import Site as Places
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.hold import hook, place
from slurm_nvhc.hold.place import Place
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.placeholder import COMMENT
from slurm_nvhc.model.snapshot import Snapshot

OURS = {"SLURM_JOB_UID": "0", "SLURM_JOB_USER": "root", "SLURM_JOB_COMMENT": COMMENT}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def told(site: Site, job_id: int = 7) -> Place | None:
    return place.read(str(site.root / "run"), "n1", str(job_id))


def runs(site: Site) -> int:
    with site.ledger() as ledger:
        return len(ledger.recent_runs(10))


def test_the_prolog_tells_which_gpu_and_the_epilog_forgets_it(site: Site) -> None:
    with site.edit() as world:
        uuid = world.gpu("g5").identity.uuid
    assert site.hook("prolog", 7, gpus="5", **OURS).returncode == 0
    found = told(site)
    assert found is not None
    assert (found.uuid, found.positions[uuid], len(found.positions)) == (uuid, 5, 8)
    assert found.boot_id
    folder = site.root / "run" / "n1" / "hold"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "7").stat().st_mode) == 0o600
    assert site.hook("epilog", 7, gpus="5", **OURS).returncode == 0
    assert told(site) is None
    assert site.calls() == []
    assert runs(site) == 0
    with site.ledger() as ledger:
        assert ledger.baseline("7") is None


def test_positions_are_those_of_gres_conf(site: Site) -> None:
    (site.root / "gres.conf").write_text("Name=gpu File=/dev/nvidia[0-2],/dev/nvidia[4-7]\nName=gpu Type=bad File=/dev/nvidia3\n")
    site.hook("prolog", 7, gpus="7", **OURS)
    found = told(site)
    assert found is not None
    with site.edit() as world:
        assert found.uuid == world.gpu("g3").identity.uuid


@pytest.mark.parametrize("gpus", ["0,1", "", "9", "x"])
def test_what_is_not_certain_is_not_told(site: Site, gpus: str) -> None:
    assert site.hook("prolog", 7, gpus=gpus, **OURS).returncode == 0
    assert told(site) is None


def test_an_assumed_mapping_tells_nothing(site: Site) -> None:
    (site.root / "gres.conf").unlink()
    assert site.hook("prolog", 7, gpus="5", **OURS).returncode == 0
    assert told(site) is None


def test_a_gpu_that_does_not_answer_is_not_told(site: Site) -> None:
    site.hook("health_check")
    with site.edit() as world:
        world.lose("g5")
    site.hook("prolog", 7, gpus="5", **OURS)
    assert told(site) is None


def test_a_fault_on_its_gpu_does_not_stop_it(site: Site) -> None:
    """That is what it is for."""
    site.write_policy({"rules": {"nvl_storm": {"mode": "enforce"}}})
    site.slurm()
    with site.edit() as world:
        world.set("g5.395", 1)
    assert site.hook("prolog", 7, gpus="5", **OURS).returncode == 0
    assert told(site) is not None
    assert site.calls() == []


SNAPSHOT = Snapshot("n1", "sim", "", "boot-1", T0, 0)


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (GpuMapping(("GPU-1",), {0: "GPU-1"}, False, why="gres.conf has no File list"), "not certain"),
        (GpuMapping((), {0: "GPU-1"}, True, (0,)), "0 GPUs that answer"),
        (GpuMapping(("GPU-1", "GPU-2"), {0: "GPU-1", 1: "GPU-2"}, True), "2 GPUs"),
    ],
)
def test_only_one_certain_gpu_is_told(mapping: GpuMapping, said: str) -> None:
    with pytest.raises(MonitorError, match=said):
        hook.placed("7", mapping, SNAPSHOT)


def test_what_is_told() -> None:
    mapping = GpuMapping(("GPU-2",), {0: "GPU-1", 1: "GPU-2"}, True)
    assert hook.placed("7", mapping, SNAPSHOT) == Place("GPU-2", T0, "boot-1", {"GPU-1": 0, "GPU-2": 1})


OTHERS = [
    {"SLURM_JOB_UID": "1000", "SLURM_JOB_COMMENT": COMMENT},
    {"SLURM_JOB_UID": "0", "SLURM_JOB_COMMENT": "backup"},
    {"SLURM_JOB_UID": "0"},
    {"SLURM_JOB_UID": "", "SLURM_JOB_COMMENT": COMMENT},
]


@pytest.mark.parametrize("more", OTHERS)
def test_user_and_comment_together_make_a_placeholder(more: dict[str, str]) -> None:
    assert not hook.concerns("prolog", more)
    assert not hook.concerns("epilog", more)


@pytest.mark.parametrize("more", OTHERS)
def test_any_other_job_is_judged(site: Site, more: dict[str, str]) -> None:
    site.hook("prolog", 7, gpus="5", **more)
    assert told(site) is None
    site.hook("epilog", 7, gpus="5", **more)
    assert runs(site) == 2


def test_the_epilog_forgets(tmp_path: Path) -> None:
    run = str(tmp_path)
    place.write(run, "n1", "7", Place("GPU-1", T0, "b", {"GPU-1": 0}))
    hook.attend("epilog", Places("/c", "/s", run), {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, 0.0, "n1")
    assert place.read(run, "n1", "7") is None


def test_a_health_check_is_never_a_placeholders() -> None:
    assert hook.concerns("prolog", OURS)
    assert hook.concerns("epilog", {**OURS, "SLURM_JOB_COMMENT": f"{COMMENT} "}), "Slurm prints a blank behind it"
    assert not hook.concerns("health_check", OURS)
    assert not hook.concerns("prolog", {})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uuid": 1}', '{"uuid":"a","at_ns":1,"boot_id":"b","positions":{"a":"b"}}', "[" * 5000])
def test_a_damaged_file_tells_nothing(tmp_path: Path, text: str) -> None:
    run = str(tmp_path)
    place.write(run, "n1", "7", Place("GPU-1", T0, "b", {"GPU-1": 0}))
    assert place.read(run, "n1", "7") == Place("GPU-1", T0, "b", {"GPU-1": 0})
    Path(place.folder(run, "n1"), "7").write_text(text)
    assert place.read(run, "n1", "7") is None


@pytest.mark.parametrize("job_id", ["", "../x", "7 8", "x"])
def test_only_job_ids_are_names_of_files(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(OSError, match="not a job id"):
        place.write(str(tmp_path), "n1", job_id, Place("GPU-1", T0, "b", {}))
    place.remove(str(tmp_path), "n1", job_id)
    assert os.listdir(tmp_path) == []


def test_garbage_from_slurm_never_fails_it(site: Site) -> None:
    for more in ({"SLURM_JOB_ID": "x" * 1000}, {"SLURM_JOB_ID": ""}, {"SLURMD_NODENAME": "../.."}, {"SLURM_CONF": "/nonexistent"}):
        for name in ("prolog", "epilog"):
            done = site.hook(name, 7, gpus="5", **{**OURS, **more})
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
