"""act/evidence.py: what is kept before it is lost, whole, bounded, for root alone."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import build
import patient
import pytest
from act_fakes import finding, mapping, uuid

from slurm_nvhc.act import evidence
from slurm_nvhc.act.evidence import Occasion, Scene
from slurm_nvhc.act.remedy import Remedy
from slurm_nvhc.model.change import EXACT, Change
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.protective import Exclusion, OwnDrain, Strike
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.model.suspect import Suspect

T0 = build.T0
STORM = finding("NVL-STORM", 3, entity=f"{uuid(3)}/link1")
DRAIN = Occasion("drain", "NVL-STORM", uuid(3), "nvhc: NVL-STORM gpu3", "")


def scene(**changes: Any) -> Scene:
    then = build.snapshot(*(build.gpu(n) for n in range(8)), at_ns=T0 - 60 * 10**9)
    now = build.later(then, 60, *(build.gpu(n, nvlink_replay_total=7 if n == 3 else 0, ecc=NoData("blank")) for n in range(8)))
    now = now._replace(events=(build.xid(79, 3, T0),))
    change = Change(f"{uuid(3)}/link1", "nvlink_replay", 0, 7, EXACT, 7.0, 60.0)
    base = Scene(
        node="n1", hook="epilog", job=Job("8812", 1001, "ada", "gpu"), mapping=mapping(2, 3), findings=(STORM,),
        suspects=(Suspect("link", f"{uuid(5)}/link2", "why", far=f"{uuid(3)}/link1"),),
        remedies=(Remedy("NVL-STORM", uuid(3), 1, "reset GPU", "first time within 30d"),),
        changes=(change, change._replace(entity=uuid(7))), now=now, before=then,
        exclusions=(Exclusion(uuid(1), "MEM-SRAM", "why", "ada", T0),), own=OwnDrain("nvhc: x", T0, True),
        strikes=(Strike("fault", "NVL-STORM x", T0),), policy="hash", mode="enforce", ledger={uuid(3): [{"id": 7}]},
    )  # fmt: skip
    return base._replace(**changes)


def test_all_that_is_lost_is_in_it() -> None:
    told = json.loads(evidence.packed(evidence.document(scene(), DRAIN))[0])
    assert (told["schema"], told["node"], told["occasion"]["reason"]) == (1, "n1", "nvhc: NVL-STORM gpu3")
    assert told["job"]["job_id"] == "8812"
    assert [g["uuid"] for g in told["identity"]] == [uuid(3), uuid(5)], "the GPU found, and the suspect's"
    assert told["identity"][0]["serial"] == "serial3"
    assert told["now"][uuid(3)]["readings"]["nvlink_replay_total"] == 7
    assert told["before"][uuid(3)]["readings"]["nvlink_replay_total"] == 0
    assert told["now"][uuid(3)]["readings"]["ecc"] == {"no": "blank"}, "no data is not zero"
    assert told["now"][uuid(3)]["links"]["1"]["nvlink_state"] == "up"
    assert [c["entity"] for c in told["changes"]] == [f"{uuid(3)}/link1"], "not those of GPUs that nothing is said about"
    assert told["events"][0]["text"] == "NVRM: Xid 79"
    assert told["events_known"] is True
    assert told["findings"][0]["code"] == "NVL-STORM"
    assert told["remedies"][0]["do"] == "reset GPU"
    assert told["ledger"] == {uuid(3): [{"id": 7}], uuid(5): []}
    assert (told["versions"]["driver"], told["boot"]["id"], told["policy"]) == ("575.57", "boot-1", {"hash": "hash", "mode": "enforce"})
    assert told["exclusions"][0]["code"] == "MEM-SRAM"
    assert told["own_drain"]["reason"] == "nvhc: x"
    assert "left_out" not in told


def test_without_a_reading_there_is_still_a_bundle() -> None:
    told = evidence.document(scene(now=build.snapshot()._replace(gpus=None), before=None, job=None), DRAIN)
    assert (told["identity"], told["now"], told["before"]) == ([], {}, None)


def test_large_ones_are_compressed_and_what_does_not_fit_is_named() -> None:
    noise = [os.urandom(900).hex()[:900] for _ in range(400)]
    many = tuple(build.xid(79, 3, T0 + n)._replace(text=text) for n, text in enumerate(noise))
    told = evidence.document(scene(now=scene().now._replace(events=many)), DRAIN)
    content, suffix = evidence.packed(told)
    assert suffix == "json.gz"
    assert json.loads(gzip.decompress(content))["events"][-1]["text"] == noise[-1]
    content, suffix = evidence.packed(told, 100_000)
    assert len(content) <= 100_000
    small = json.loads(gzip.decompress(content) if suffix == "json.gz" else content)
    assert small["left_out"] == ["ledger", "changes", "before", "events"]
    assert small["findings"]
    content, suffix = evidence.packed(told, 50)
    assert json.loads(content)["occasion"]["code"] == "NVL-STORM"


def test_lists_are_bounded() -> None:
    events = tuple(build.xid(79, 3, T0 + n)._replace(text="x" * 5000) for n in range(2000))
    told = evidence.document(scene(now=scene().now._replace(events=events), findings=(STORM,) * 900, changes=scene().changes * 900), DRAIN)
    assert [len(told[k]) for k in ("events", "findings", "changes")] == [500, 500, 500]
    assert told["events"][-1]["at_ns"] == T0 + 1999, "the newest"
    assert len(told["events"][0]["text"]) == 1000


def test_written_whole_for_root_alone(tmp_path: Path) -> None:
    folder = str(tmp_path / "n1" / "evidence")
    written = evidence.write(folder, scene(), DRAIN, 20)
    assert written.problem == ""
    assert os.path.basename(written.path) == "20270115T080000Z-NVL-STORM-00000003.json"
    assert os.stat(written.path).st_mode & 0o777 == 0o600
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert json.loads(Path(written.path).read_text())["node"] == "n1"
    again = evidence.write(folder, scene(), DRAIN, 20)
    assert os.path.basename(again.path) == "20270115T080000Z-NVL-STORM-00000003.2.json", "one second, two bundles"
    assert evidence.listed(folder) == tuple(sorted((written.path, again.path)))
    assert sorted(os.listdir(folder)) == sorted(os.path.basename(p) for p in (written.path, again.path)), "nothing half written"


def test_only_the_newest_stay_each_with_its_bug_report(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    for n in range(5):
        path = evidence.write(str(folder), scene(now=scene().now._replace(wall_ns=T0 + n * 10**9)), DRAIN, 3).path
        Path(path.replace(".json", ".bug-report.log.gz")).touch()
    (folder / "notes.txt").touch()
    left = sorted(os.listdir(folder))
    moments = [name.partition("-")[0] for name in left if name != "notes.txt"]
    assert moments == [f"20270115T08000{n}Z" for n in (2, 2, 3, 3, 4, 4)]
    assert "notes.txt" in left, "what is not ours stays"


@pytest.mark.parametrize("code", ["", "../../etc/x", "A" * 200, "{{x}}"])
def test_a_name_is_always_a_name(code: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "evidence")
    written = evidence.write(folder, scene(), DRAIN._replace(code=code, uuid=f"GPU-{code}/x"), 20)
    assert os.path.dirname(written.path) == folder
    assert evidence.listed(folder) == (written.path,)


def test_trouble_is_told_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in evidence.write(str(tmp_path / "file" / "evidence"), scene(), DRAIN, 3).problem
    broken = evidence.write(str(tmp_path / "e"), scene(findings=(object(),)), DRAIN, 3)  # type: ignore[arg-type]
    assert "AttributeError" in broken.problem
    os.symlink(tmp_path / "elsewhere", tmp_path / "link")
    assert evidence.write(str(tmp_path / "link"), scene(), DRAIN, 3).problem, "a folder that somebody put there"
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "elsewhere").chmod(0o755)
    assert evidence.write(str(tmp_path / "link"), scene(), DRAIN, 3).problem
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755, "what it points to is left as it is"


def test_where_bundles_are() -> None:
    assert evidence.folder("", "/var/lib/nvhc/n1", "n1") == "/var/lib/nvhc/n1/evidence"
    assert evidence.folder("/shared", "/var/lib/nvhc/n1", "n1") == "/shared/n1", "several nodes do not forget each other's"


# --- the vendor's script ----------------------------------------------------------------------


def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "nvidia-bug-report.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(evidence, "BUG_REPORT", str(path))


def test_the_bug_report_lies_beside_its_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, monkeypatch, 'test "$1" = --output-file || exit 9; echo report >"$2.gz"')
    bundle = evidence.write(str(tmp_path / "e"), scene(), DRAIN, 3).path
    report = evidence.bug_report(bundle, 20)
    assert report == bundle.replace(".json", ".bug-report.log.gz")
    assert os.stat(report).st_mode & 0o777 == 0o600


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_bug_report_that_hangs_is_killed_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    script(tmp_path, monkeypatch, f'echo part >"$2"; sleep 300 & echo $! >{pids}; wait')
    told = evidence.bug_report(str(tmp_path / "20270115T080000Z-X-1.json"), 5)
    assert "killed after" in told
    assert told.endswith(f"what there is: {tmp_path}/20270115T080000Z-X-1.bug-report.log")
    pid = pids.read_text().strip()
    end = time.monotonic() + patient.PROCESS_S
    while runs(pid):  # killed, but not dead at once on a busy machine
        assert time.monotonic() < end, "its children too"
        time.sleep(0.01)


def test_a_bug_report_that_fails_or_has_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, monkeypatch, "exit 3")
    assert "exit status 3, no report" in evidence.bug_report(str(tmp_path / "x.json"), 20)
    assert "no time left" in evidence.bug_report(str(tmp_path / "x.json"), 0.5)
    monkeypatch.setattr(evidence, "BUG_REPORT", str(tmp_path / "nowhere"))
    assert evidence.bug_report(str(tmp_path / "x.json"), 20) == ""
