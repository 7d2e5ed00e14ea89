"""The played scontrol answers as the observed ones do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import patient
import pytest

from slurm_nvhc.scenario import scontrol

VERSIONS = ("22.05", "24.11")


class Fake:
    """A state file and the program run over it, as hooks run it."""

    def __init__(self, path: Path, version: str) -> None:
        self.path = str(path / "slurm.json")
        Path(self.path).write_text(json.dumps(scontrol.new_state(version, "n1")))

    def __call__(self, *arguments: str, timeout: float = patient.PROCESS_S) -> tuple[int, str, str]:
        command = [sys.executable, "-I", "-S", scontrol.__file__, self.path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
        return done.returncode, done.stdout, done.stderr

    def change(self, **values: Any) -> None:
        scontrol.with_state(self.path, lambda state: state.update(values))

    @property
    def node(self) -> dict[str, Any]:
        return json.loads(Path(self.path).read_text())["nodes"]["n1"]


@pytest.fixture(params=VERSIONS)
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> Fake:
    return Fake(tmp_path, request.param)


def test_show_a_drained_node_with_its_reason(fake: Fake) -> None:
    assert fake("update", "nodename=n1", "state=drain", "reason=nvhc: NVL-STORM gpu3 [x] a=b")[0] == 0
    rc, out, _ = fake("show", "node", "n1")
    assert rc == 0
    assert "State=IDLE+DRAIN " in out
    assert "Reason=nvhc: NVL-STORM gpu3 [x] a=b [root@" in out


def test_a_reason_is_mandatory(fake: Fake) -> None:
    rc, _, err = fake("update", "nodename=n1", "state=drain")
    assert rc == 1
    assert "must specify a reason" in err
    assert fake.node["flags"] == []


def test_update_overwrites_an_older_reason(fake: Fake) -> None:
    fake("update", "nodename=n1", "state=drain", "reason=ADMIN: psu swap")
    fake("update", "NodeName=n1", "State=DRAIN", "Reason=other")
    assert fake.node["reason"] == "other"


def test_resume_keeps_the_reason_only_on_24_11(tmp_path: Path) -> None:
    kept = {}
    for version in VERSIONS:
        folder = tmp_path / version
        folder.mkdir()
        fake = Fake(folder, version)
        fake("update", "nodename=n1", "state=drain", "reason=stale")
        assert fake("update", "nodename=n1", "state=resume")[0] == 0
        kept[version] = "Reason=stale" in fake("show", "node", "n1")[1]
    assert kept == {"22.05": False, "24.11": True}


def test_resume_of_a_node_in_service_is_refused_but_undrain_is_not(fake: Fake) -> None:
    rc, _, err = fake("update", "nodename=n1", "state=resume")
    assert (rc, "Invalid node state" in err) == (1, True)
    assert fake("update", "nodename=n1", "state=undrain")[0] == 0


def test_reason_without_state_on_a_node_in_service(tmp_path: Path) -> None:
    shown = {}
    for version in VERSIONS:
        folder = tmp_path / version
        folder.mkdir()
        fake = Fake(folder, version)
        assert fake("update", "nodename=n1", "reason=why")[0] == 0
        shown[version] = fake.node["reason"]
    assert shown == {"22.05": "", "24.11": "why"}


def test_json_only_on_24_11(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert Fake(tmp_path / "a", "22.05")("show", "node", "n1", "--json")[0] == 1
    rc, out, _ = Fake(tmp_path / "b", "24.11")("show", "node", "n1", "--json")
    assert rc == 0
    assert json.loads(out)["nodes"][0]["state"] == ["IDLE"]


def test_unknown_node_and_unknown_command(fake: Fake) -> None:
    assert fake("show", "node", "n9")[0] == 1
    assert fake("update", "nodename=n9", "state=drain", "reason=x")[0] == 1
    rc, _, err = fake("frobnicate")
    assert (rc, "frobnicate" in err) == (1, True)
    assert fake("update", "nodename=n1", "state=idle")[0] == 1


def test_ping(fake: Fake) -> None:
    assert fake("ping")[0] == 0
    fake.change(behaviour="down")
    assert fake("ping")[0] == 1


@pytest.mark.parametrize(
    ("behaviour", "show_rc", "update_rc", "drained", "says"),
    [
        ("ok", 0, 0, True, ""),
        ("fails", 1, 1, False, "configuration source"),
        ("down", 1, 1, False, "Unable to contact slurm controller"),
        ("refuses", 0, 1, False, "Invalid user id"),
        ("applies_then_times_out", 0, 1, True, "Socket timed out"),
    ],
)
def test_behaviours(fake: Fake, behaviour: str, show_rc: int, update_rc: int, drained: bool, says: str) -> None:
    fake.change(behaviour=behaviour)
    assert fake("show", "node", "n1")[0] == show_rc
    rc, _, err = fake("update", "nodename=n1", "state=drain", "reason=r")
    assert rc == update_rc
    assert says in err
    assert ("DRAIN" in fake.node["flags"]) is drained


def test_hanging_never_answers_and_changes_nothing(fake: Fake) -> None:
    fake.change(behaviour="hangs")
    with pytest.raises(subprocess.TimeoutExpired):
        fake("update", "nodename=n1", "state=drain", "reason=r", timeout=0.5)
    assert fake.node["flags"] == []


def test_applied_although_the_caller_gave_up(fake: Fake) -> None:
    fake.change(behaviour="applies_then_hangs")
    assert fake("show", "node", "n1")[0] == 0
    with pytest.raises(subprocess.TimeoutExpired):
        fake("update", "nodename=n1", "state=drain", "reason=r", timeout=2)
    assert fake.node["flags"] == ["DRAIN"]


def test_every_call_is_logged(fake: Fake) -> None:
    fake("ping")
    fake("show", "node", "n1")
    with open(fake.path + ".calls", encoding="utf-8") as log:
        assert [json.loads(line) for line in log] == [["ping"], ["show", "node", "n1"]]
    assert os.path.exists(fake.path)


@pytest.mark.parametrize(
    ("base", "flags", "jobs", "word"),
    [
        ("IDLE", [], {}, "idle"),
        ("IDLE", [], {"1": "0-3"}, "mixed"),
        ("IDLE", [], {"1": "all"}, "allocated"),
        ("IDLE", ["DRAIN"], {}, "drained"),
        ("IDLE", ["DRAIN"], {"1": "0"}, "draining"),
        ("DOWN", [], {}, "down"),
    ],
)
def test_the_word_for_a_state(base: str, flags: list[str], jobs: dict[str, str], word: str) -> None:
    assert scontrol.word({"base": base, "flags": flags, "jobs": jobs}) == word


@pytest.mark.parametrize(
    ("text", "split"),
    [("IDLE+DRAIN", ("IDLE", ("DRAIN",))), ("drained", ("IDLE", ("DRAIN",))), ("draining", ("MIXED", ("DRAIN",))), ("DOWN*", ("DOWN", ()))],
)
def test_split_state(text: str, split: tuple[str, tuple[str, ...]]) -> None:
    assert scontrol.split_state(text) == split
