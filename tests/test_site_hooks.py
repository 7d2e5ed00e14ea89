"""act/site_hooks.py: programs of the site, bounded and harmless; and the spool from which they are told again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_nvhc.act import site_hooks
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.policy.acting import SiteHooks

EVENT = {"schema": 1, "id": site_hooks.ident("drain", "n1", 7, ("nvhc: x",)), "event": "drain", "node": "n1", "reason": "nvhc: ✓ \udcff"}


def program(tmp_path: Path, text: str, mode: int = 0o755) -> str:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


def test_it_gets_the_document_and_its_last_line_is_kept(tmp_path: Path) -> None:
    path = program(tmp_path, f'cat >{tmp_path}/got; env >{tmp_path}/env; echo one; echo "ticket \033[1m4711"')
    ran = site_hooks.run(path, EVENT, 20)
    assert (ran.ok, ran.told) == (True, "ticket [1m4711")
    assert json.loads((tmp_path / "got").read_text()) == EVENT
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"PATH", "LC_ALL", "NVHC_EVENT", "PWD", "_", "SHLVL", "OLDPWD"}, "a clean environment"
    assert "NVHC_EVENT" in names


@pytest.mark.parametrize(
    ("text", "told"),
    [("exit 3", "exit status 3"), ("echo why >&2; exit 1", "exit status 1: why"), ("kill -9 $$", "exit status -9")],
)
def test_one_that_fails(tmp_path: Path, text: str, told: str) -> None:
    ran = site_hooks.run(program(tmp_path, text), EVENT, 20)
    assert not ran.ok
    assert ran.told.endswith(told)


def test_one_that_does_not_read_its_input_is_no_trouble(tmp_path: Path) -> None:
    assert site_hooks.run(program(tmp_path, "exec 0<&-; exit 0"), {**EVENT, "why": "x" * 200_000}, 20).ok


def test_one_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    path = program(tmp_path, f"sleep 300 & echo $! >{tmp_path}/pid; wait")
    ran = site_hooks.run(path, EVENT, 1.0)
    assert (ran.ok, ran.told) == (False, f"{path}: killed after 1.0 s")
    child = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_without_time_it_is_not_begun(tmp_path: Path) -> None:
    ran = site_hooks.run(program(tmp_path, f"touch {tmp_path}/ran"), EVENT, 0.1)
    assert "no time left" in ran.told
    assert not (tmp_path / "ran").exists()


def test_what_is_not_run(tmp_path: Path) -> None:
    path = program(tmp_path, f"touch {tmp_path}/ran")
    cases = {"is not executable": 0o644, "can be written by others than root": 0o775}
    for why, mode in cases.items():
        os.chmod(path, mode)
        assert site_hooks.unusable(path) == why
        assert site_hooks.run(path, EVENT, 20).told == f"{path}: {why}"
    assert site_hooks.unusable(str(tmp_path)) == "is not a file"
    assert site_hooks.unusable(str(tmp_path / "nowhere")) == "No such file or directory"
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_program_of_another_user_is_not_run(tmp_path: Path) -> None:
    path = program(tmp_path, "true")
    os.chown(path, 65534, 65534)
    assert site_hooks.unusable(path) == "belongs to uid 65534, not to root"


def test_each_event_has_its_key() -> None:
    hooks = SiteHooks(**{f"on_{event}": f"/opt/{event}" for event in site_hooks.EVENTS})
    assert [site_hooks.program(hooks, event) for event in site_hooks.EVENTS] == [f"/opt/{event}" for event in site_hooks.EVENTS]
    assert all(site_hooks.program(SiteHooks(), event) == "" for event in site_hooks.EVENTS), "off by default"


def test_an_event_is_named_by_what_it_is() -> None:
    name = site_hooks.ident("drain", "n1", 7, ("nvhc: x",))
    assert name == site_hooks.ident("drain", "n1", 7, ("nvhc: x",))
    assert len({name, site_hooks.ident("drain", "n1", 8, ("nvhc: x",)), site_hooks.ident("drain", "n2", 7, ("nvhc: x",))}) == 3
    assert site_hooks.is_ident(name)
    for bad in ("../x", "drain-7-zz", "", "drain-7-00000000/x", "drain-7-00000000\n"):
        assert not site_hooks.is_ident(bad)


# --- the spool -------------------------------------------------------------------------------


def test_kept_told_again_and_dropped(tmp_path: Path) -> None:
    assert site_hooks.keep(str(tmp_path), EVENT) is None
    assert os.stat(tmp_path / "notify").st_mode & 0o777 == 0o700
    assert site_hooks.kept(str(tmp_path), EVENT["id"]) == EVENT
    site_hooks.drop(str(tmp_path), EVENT["id"])
    assert site_hooks.kept(str(tmp_path), EVENT["id"]) is None
    site_hooks.drop(str(tmp_path), EVENT["id"])
    assert site_hooks.kept(str(tmp_path), "../../etc/passwd") is None


def test_the_spool_is_bounded_the_oldest_go(tmp_path: Path) -> None:
    for n in range(60):
        assert site_hooks.keep(str(tmp_path), {**EVENT, "id": site_hooks.ident("drain", "n1", n, ())}) is None
    moments = sorted(int(name.split("-")[1]) for name in os.listdir(tmp_path / "notify"))
    assert moments == list(range(10, 60))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"event": "other"}', "\xff"])
def test_damage_is_told(tmp_path: Path, content: str) -> None:
    site_hooks.keep(str(tmp_path), EVENT)
    (tmp_path / "notify" / f"{EVENT['id']}.json").write_text(content, "latin-1")
    with pytest.raises(MonitorError):
        site_hooks.kept(str(tmp_path), EVENT["id"])


def test_a_folder_that_can_not_be_written_is_a_trouble(tmp_path: Path) -> None:
    (tmp_path / "notify").touch()
    trouble: Any = site_hooks.keep(str(tmp_path), EVENT)
    assert (trouble.code, trouble.part) == ("MON-SITE-HOOK", "on_drain")
