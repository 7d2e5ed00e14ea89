"""The nvhc command, as a process: output, JSON and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import patient
import pytest
from site_ import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A node on which job 8812 met a storm on gpu3 link11, in observe mode, and job 8813 was clean."""
    site = Site(tmp_path_factory.mktemp("cli"))
    site.hook("prolog", 8812)
    with site.edit() as world:
        world.storm("g3.link11", "replay", 21200, 2460)
    site.hook("epilog", 8812)
    site.hook("prolog", 8813, gpus="4")
    site.hook("epilog", 8813, gpus="4")
    return site


def nvhc(*words: str) -> subprocess.CompletedProcess[str]:
    program = [patient.__file__] if words[0] in ("demo", "replay") else ["-m", "slurm_nvhc.cli.main"]
    command = [sys.executable, *program, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=patient.PROCESS_S, check=False)


def test_demo_shows_the_main_job():
    done = nvhc("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("+21200", "NVL-STORM gpu3", "link11", "in 41m job 8812", "CUDA_VISIBLE_DEVICES=2,4,5", "sinfo -R"):
        assert part in done.stdout
    parts = json.loads(nvhc("demo", "--json").stdout)["parts"]
    assert [p["ok"] for p in parts] == [True, True]


def test_demo_keeps_what_was_asked_to_be_kept(tmp_path: Path):
    done = nvhc("demo", "--keep", str(tmp_path / "kept"))
    command = done.stdout.strip().splitlines()[-1].removeprefix("kept: nvhc ")
    assert "NVL-STORM" in nvhc(*command.split()).stdout
    again = nvhc("demo", "--keep", str(tmp_path / "kept"))
    assert again.returncode == 3
    assert "Traceback" not in again.stderr


def test_explain_a_job(site: Site):
    text = site.nvhc("explain", "8812", code=1)
    for part in ("NVL-STORM", "gpu3", "0000:4b:00.0 link11", "21200", "41m", "nvl_storm", "observe mode", "alice"):
        assert part in text
    found = site.nvhc_json("explain", "8812", code=1)
    epilog = next(r for r in found["runs"] if r["hook"] == "epilog")
    evidence = epilog["findings"][0]["evidence"]
    assert (evidence["before"], evidence["after"], evidence["amount"]) == (0, 21200, 21200)
    assert site.nvhc_json("explain", "8813")["verdict"] == "ok"


def test_the_suspect_is_shown(site: Site):
    assert "suspect   gpu3 link11, far end switch 0000:c3:00.0 port14: what gpu3 link11 sends" in " ".join(
        site.nvhc("explain", "8812", code=1).split("\n")
    )
    told = site.nvhc_json("explain", "8812", code=1)["runs"]
    assert [s["kind"] for run in told for s in run["outcome"]["suspects"]] == ["link"]
    assert "suspect" in site.nvhc("explain", "gpu3", code=1)


def test_explain_a_gpu_by_any_name(site: Site):
    uuid = site.nvhc_json("explain", "gpu3", code=1)["what"].split()[1]
    for name in (uuid, uuid[:12], "g3", "0000:4b:00.0", "00000000:4B:00.0"):
        assert uuid in site.nvhc("explain", name, code=1)
    assert "several GPUs fit" in site.nvhc("explain", "GPU-", code=2)
    assert site.nvhc_json("explain", "gpu4")["verdict"] == "ok"


def test_a_name_pasted_from_a_reason_is_understood(site: Site):
    uuid = site.nvhc_json("explain", "gpu3", code=1)["what"].split()[1]
    for name in (f"{uuid[:12]}…", f"{uuid[:12]}..."):
        assert uuid in site.nvhc("explain", name, code=1)


def test_explain_the_node_finds_a_fault_behind_clean_runs_and_says_when_it_cuts(tmp_path: Path):
    site = Site(tmp_path)
    site.hook("prolog", 1)
    fault, clean = site.last("prolog")._replace(job_id="77", verdict="fail", id=0), site.last("prolog")._replace(id=0)
    with site.ledger() as ledger:
        ledger.record_run(fault)
        for _ in range(60):
            ledger.record_run(clean)
    found = site.nvhc_json("explain", "n1", code=1)
    assert ([run["job_id"] for run in found["runs"]], found["cut"]) == (["77"], False)
    assert "newest" not in site.nvhc("explain", "n1", code=1)
    with site.ledger() as ledger:
        for _ in range(50):
            ledger.record_run(fault)
    found = site.nvhc_json("explain", "n1", code=1)
    assert (len(found["runs"]), found["cut"]) == (50, True)
    assert "only the newest 50 runs are shown" in site.nvhc("explain", "n1", code=1)
    assert site.nvhc_json("explain", "gpu0")["cut"] is True


def test_explain_the_node_and_nonsense(site: Site):
    assert "NVL-STORM" in site.nvhc("explain", "n1", code=1)
    assert "neither a job id" in site.nvhc("explain", "nonsense", code=2)
    assert "recent jobs: 8813, 8812" in site.nvhc("explain", "4711", code=2)


def test_status(site: Site):
    facts = site.nvhc_json("status")
    assert facts["runs"]["epilog"]["job_id"] == "8813"
    assert len(facts["gpus"]) == 8
    assert facts["verdict"] == "ok"
    text = site.nvhc("status")
    assert "job 8813" in text
    assert "0000:4b:00.0" in text


def test_check_capture_and_compare(site: Site, tmp_path: Path):
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    site.nvhc("capture", "-o", str(before))
    with site.edit() as world:
        world.add("g5.link2.crc_flit", 7)
        world.advance(60)
    site.nvhc("capture", "-o", str(after))
    assert "no counter moved" in site.nvhc("check", "--since", str(before), "--now", str(before))
    compared = site.nvhc_json("check", "--since", str(before), "--now", str(after), code=None)
    assert {(c["field"], c["amount"]) for c in compared["changes"]} == {("nvlink_crc_flit", 7), ("nvlink_crc_flit_total", 7)}
    assert site.nvhc_json("check", code=None)["snapshot"]["schema"] == 1


def test_check_remembers_nothing(site: Site):
    with site.ledger() as ledger:
        before = ledger.fold_memory(lambda m, look: ((m, look), m, look)), len(ledger.recent_runs(500))
    site.nvhc("check", code=None)
    with site.ledger() as ledger:
        assert (ledger.fold_memory(lambda m, look: ((m, look), m, look)), len(ledger.recent_runs(500))) == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 99}', b'{"schema": 1}', b'{"schema": 1, "node": 5}', b"[" * 100_000,
     b'{"schema":1,"node":"n","source":"s","engine":"","boot_id":"b","wall_ns":"x","boot_ns":1}',
     b'{"schema":1,"node":"n","source":"s","engine":"","boot_id":"b","wall_ns":1,"boot_ns":1,"gpus":[1]}'],
)  # fmt: skip
def test_broken_captures(site: Site, tmp_path: Path, content: bytes):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    said = site.nvhc("check", "--now", str(path), code=2)
    assert str(path) in said
    assert len(said.strip().splitlines()) == 1
    assert "can not be read" in site.nvhc("check", "--since", str(tmp_path / "none"), code=2)


def test_policy_check_and_show(site: Site, tmp_path: Path):
    assert "ok, policy" in site.nvhc("policy", "check")
    broken = tmp_path / "policy.yaml"
    broken.write_text("schema: 1\nrules:\n  nvl_strom: {mode: enforce}\n")
    said = site.nvhc("policy", "check", str(broken), code=2)
    assert "line 3" in said
    assert "nvl_storm" in said
    assert site.nvhc_json("policy", "show")["rules"]["nvl_storm"]["mode"] == "observe"
    assert site.nvhc_json("policy", "show", "--model", "NVIDIA H200")["expect"]["links"] == 18
    assert "$defs" in site.nvhc_json("policy", "show", "--schema")


def test_policy_show_beside_a_broken_file_shows_what_is_in_force(tmp_path: Path):
    site = Site(tmp_path, policy={"reread_wait": "3s"})
    site.hook("prolog", 1)
    good = site.nvhc_json("policy", "show")
    site.config.write_text("schema: 1\nrules:\n  nvl_strom: {mode: enforce}\n")
    done = site.command("policy", "show", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, good)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"warning: {site.config}, line 3")
    assert "the last good policy" in line
    done = site.command("policy", "show")
    assert (done.returncode, "reread_wait_s: 3.0" in done.stdout, done.stderr) == (0, True, line + "\n")
    # What looked first has not taken the news from the hooks.
    assert not (tmp_path / "state" / "n1" / "policy.rejected.json").exists()


def test_policy_check_names_launchers_that_are_too_quick(tmp_path: Path):
    budgets = {"epilog": "20s"}
    site = Site(tmp_path, policy={"budgets": budgets})
    lib = ("--libdir", str(tmp_path / "lib"))
    site.nvhc("hooks", "install", *lib)
    assert site.nvhc_json("policy", "check", *lib)["warnings"] == []
    site.write_policy({"budgets": budgets, "partitions": {"big": {"budgets": {"epilog": "30s"}}}})
    done = site.command("policy", "check", *lib)
    assert (done.returncode, "ok, policy" in done.stdout, len(done.stderr.splitlines())) == (0, True, 1)
    assert "nvhc-epilog.sh ends its hook after 21 s, and this policy's budget needs 31 s" in done.stderr
    site.nvhc("hooks", "install", *lib)
    assert site.nvhc_json("policy", "check", *lib)["warnings"] == []


def test_hooks_install_succeeds_with_warnings_on_stderr(tmp_path: Path):
    site = Site(tmp_path)
    words = ("hooks", "install", "--libdir", str(tmp_path / "lib"))
    done = site.command(*words)
    assert done.returncode == 0
    assert "warning: SchedulerParameters has no nohold_on_prolog_fail" in done.stderr
    assert "warning" not in done.stdout
    assert done.stdout.index(f"clush -a 'test -x {tmp_path}/lib/nvhc-prolog.sh'") < done.stdout.index("Prolog=")
    assert site.nvhc_json(*words)["warnings"]
    assert site.command("hooks", "remove", "--libdir", str(tmp_path / "lib"), "--purge", "--state", str(tmp_path)).returncode == 0


def test_scontrol_that_is_not_there_is_said_before_it_is_needed(tmp_path: Path):
    site = Site(tmp_path)
    assert "MON-SLURM" not in site.nvhc("check")
    (tmp_path / "scontrol").unlink()
    found = site.nvhc_json("check", code=1)
    (finding,) = [f for f in found["findings"] if f["code"] == "MON-SLURM"]
    assert (finding["verdict"], found["verdict"]) == ("warn", "warn")
    assert "slurm.bin_dir" in finding["message"]
    assert "scontrol" in site.command("hooks", "install", "--libdir", str(tmp_path / "lib")).stderr


def test_the_kill_switch_shows(site: Site, tmp_path: Path):
    off = tmp_path / "off"
    switch = ("--kill-switch", str(off))
    assert site.nvhc_json("status", *switch)["hooks_off"] is None
    assert "OFF" not in site.nvhc("status", *switch) + site.nvhc("check", *switch)
    off.touch()
    os.utime(off, (0, 1_700_000_000))
    line = f"hooks are OFF since 2023-11-14T22:13:20Z: {off} exists"
    assert line in site.nvhc("status", *switch, code=1)
    assert line in site.nvhc("check", *switch)
    assert site.nvhc_json("status", *switch, code=1)["hooks_off"] == {"file": str(off), "since": "2023-11-14T22:13:20Z"}
    assert site.nvhc_json("check", *switch)["hooks_off"]["file"] == str(off)


def test_replay_exit_codes(tmp_path: Path):
    good = Path(__file__).parent.parent / "etc" / "demo" / "drain.yaml"
    assert nvhc("replay", str(good)).returncode == 0
    missed = tmp_path / "missed.yaml"
    missed.write_text(good.read_text().replace("verdict: fail", "verdict: ok"))
    assert nvhc("replay", str(missed)).returncode == 1
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(good.read_text().replace("storm:", "strom:"))
    done = nvhc("replay", str(wrong))
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "strom" in done.stderr
    assert "line" in done.stderr
    assert nvhc("replay", str(tmp_path / "none.yaml")).returncode == 2


def test_a_node_without_a_ledger(tmp_path: Path):
    done = nvhc("status", "--state", str(tmp_path / "state"), "--config", str(tmp_path / "p"), "--node", "n1")
    assert done.returncode == 2
    assert "no ledger" in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "words",
    [("status",), ("explain", "node"), ("explain", "8812"), ("rates",), ("baseline", "show"), ("simulate", "--policy")],
    ids=" ".join,
)
def test_a_damaged_ledger_is_told_by_whoever_opens_it_first(tmp_path: Path, words: tuple[str, ...]):
    site = Site(tmp_path)
    site.hook("health_check")
    folder = tmp_path / "state" / "n1"
    for name in ("ledger.sqlite3-wal", "ledger.sqlite3-shm"):
        (folder / name).unlink(missing_ok=True)
    (folder / "ledger.sqlite3").write_text("garbage\n")
    done = site.command(*words, *([str(site.config)] if words[0] == "simulate" else []))
    line = done.stderr.splitlines()[0]
    (aside,) = [p.name for p in folder.iterdir() if ".corrupt-" in p.name]
    assert (done.returncode, str(folder) in line, f"set aside as {aside}" in line) == (3, True, True)
    assert site.command("status").stderr == "", "once"


def test_excluded_gpus_are_listed_and_released(tmp_path: Path):
    site = Site(tmp_path, policy={"rules": {"nvl_storm": {"mode": "enforce"}}, "narrow": {"enabled": True}})
    site.slurm()
    site.hook("prolog", 1)
    with site.edit() as world:
        world.storm("g2.link1", "replay", 9000, 600)
    site.hook("epilog", 1)
    listed = site.nvhc_json("gpu", "list")["exclusions"]
    assert [e["code"] for e in listed] == ["NVL-STORM"]
    assert "gpu2" in site.nvhc("gpu", "list")
    assert "is not excluded" in site.nvhc("gpu", "release", "gpu1", code=2)
    assert "released" in site.nvhc("gpu", "release", "gpu2")
    assert site.nvhc_json("gpu", "list")["exclusions"] == []


def test_a_gpu_that_was_taken_out_can_be_forgotten(tmp_path: Path):
    site = Site(tmp_path)
    site.hook("health_check")
    with site.edit() as world:
        world.lose("g5", on_pci=False)
    site.hook("health_check")
    assert "GPU-LOST" in {f.code for f in site.last("health_check").findings}
    (tmp_path / "gres.conf").write_text("Name=gpu Type=h100 File=/dev/nvidia[0-4,6-7]\n")
    assert "forgot GPU-" in site.nvhc("gpu", "forget", "gpu5")
    site.hook("health_check")
    assert "GPU-LOST" not in {f.code for f in site.last("health_check").findings}
    said = site.nvhc("gpu", "forget", "gpu5", code=2)
    assert "is no GPU that this node knows (known: gpu0 GPU-" in said


def test_output_into_a_closed_pipe(site: Site):
    command = f"{sys.executable} -m slurm_nvhc.cli.main policy show | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stderr == ""


def test_check_of_a_new_policy_leaves_the_last_good_one(site: Site, tmp_path: Path):
    good = (site.root / "state" / "n1" / "policy.json").read_bytes()
    trial = tmp_path / "new.yaml"
    trial.write_text(site.config.read_text() + "mode: enforce\n")
    command = [
        sys.executable,
        "-m",
        "slurm_nvhc.cli.main",
        "check",
        "--config",
        str(trial),
        "--state",
        str(site.root / "state"),
        "--node",
        "n1",
    ]
    subprocess.run(command, capture_output=True, check=False)
    assert (site.root / "state" / "n1" / "policy.json").read_bytes() == good


def test_a_folder_of_sweeps_is_no_ledger(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.hook("health_check")
    (tmp_path / "state" / "sweeps").mkdir()
    said = site.command("gpu", "list", "--node", "n7").stderr
    assert "there is no ledger for this node (ledgers here: n1)" in said
