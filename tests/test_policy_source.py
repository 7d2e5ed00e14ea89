"""policy/source.py: compiled once, last good kept, never raises, light; policy/show.py beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_nvhc import resources
from slurm_nvhc.errors import InputError
from slurm_nvhc.policy import show, source
from slurm_nvhc.policy.compiled import Budgets
from slurm_nvhc.policy.source import LoadedPolicy

GOOD = "schema: 1\nreread_wait: 3s\npartitions: {gpu: {mode: observe}}\n"
BROKEN = "schema: 1\nrules: {x: {feild: 429}}\n"
HEAVY = ("yaml", "msgspec", "jinja2", "dataclasses", "logging", "argparse", "subprocess", "pathlib", "tempfile", "shutil", "inspect")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD)
    path.chmod(0o644)
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "n1"


def load(site: Path | str, state: Path, partition: str = "") -> LoadedPolicy:
    return source.load(str(site), str(state), "n1", partition)


def never_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("slurm_nvhc.policy.compile.compile_policy", refuse)


def test_a_good_policy_is_compiled_once(site: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(site, state, "gpu")
    assert (first.policy.reread_wait_s, first.policy.mode, first.troubles, first.first) == (3.0, "observe", (), False)
    assert (state / "policy.json").stat().st_mode & 0o777 == 0o600
    never_compile(monkeypatch)
    assert load(site, state, "gpu") == first
    assert load(site, state).policy.mode == "enforce"


def test_an_edit_comes_into_force(site: Path, state: Path) -> None:
    before = load(site, state).policy
    site.write_text(GOOD.replace("3s", "4s"))
    after = load(site, state).policy
    assert (after.reread_wait_s, after.hash != before.hash) == (4.0, True)


def test_another_version_compiles_anew(site: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load(site, state).policy.hash
    monkeypatch.setattr("slurm_nvhc.__version__", "99")
    assert load(site, state).policy.hash != before


def test_a_broken_edit_leaves_the_last_good_one_and_is_announced_once(site: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = load(site, state).policy
    site.write_text(BROKEN)
    first = load(site, state)
    assert (first.policy, first.first) == (good, True)
    (trouble,) = first.troubles
    assert (trouble.code, trouble.part) == ("MON-POLICY", "policy")
    assert trouble.detail == (
        f"{site}, line 2, key rules.x.feild: unknown key feild (did you mean field?); the last good policy {good.hash} stays in force"
    )
    with monkeypatch.context() as patched:
        never_compile(patched)  # a known bad text is not parsed at every job
        second = load(site, state)
    assert (second.policy, second.troubles, second.first) == (good, first.troubles, False)
    site.write_text(BROKEN + "#")
    assert load(site, state).first
    site.write_text(GOOD)
    assert load(site, state) == LoadedPolicy(good)
    site.write_text(GOOD + "#")
    load(site, state)
    site.write_text(BROKEN + "#")
    assert load(site, state).first  # mended in between: news again


def test_broken_from_the_start_means_the_packaged_rules_observing(site: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write_text(BROKEN)
    got = load(site, state, "gpu")
    assert (got.policy.mode, "gpu_lost" in got.policy.rules) == ("observe", True)
    assert got.troubles[0].detail.endswith(f"the packaged policy {got.policy.hash} judges and only observes")
    with monkeypatch.context() as patched:
        never_compile(patched)
        assert load(site, state, "gpu") == got._replace(first=False)
    site.write_text(BROKEN + "#")
    assert load(site, state).policy.mode == "observe"
    site.unlink()
    assert load(site, state) == LoadedPolicy(load(site, state / "fresh").policy)  # no file is no broken file
    assert load(site, state).policy.mode == "enforce"
    site.write_text(BROKEN)
    got = load(site, state)  # and then that is what was in force before the edit
    assert got.policy.mode == "enforce"
    assert got.troubles[0].detail.endswith(f"the packaged policy {got.policy.hash} stays in force")


def test_a_good_policy_ends_the_observing(site: Path, state: Path) -> None:
    site.write_text(BROKEN)
    load(site, state)
    site.write_text(GOOD)
    assert load(site, state) == LoadedPolicy(load(site, state / "fresh").policy)


def test_a_look_by_hand_leaves_nothing(site: Path, state: Path) -> None:
    def look() -> LoadedPolicy:
        return source.load(str(site), str(state), "n1", "", keep=False)

    assert look().policy.reread_wait_s == 3.0
    assert not state.exists()
    load(site, state)
    before = {p.name: p.read_bytes() for p in state.iterdir()}
    site.write_text(BROKEN)
    assert look().policy.reread_wait_s == 3.0
    assert {p.name: p.read_bytes() for p in state.iterdir()} == before
    assert load(site, state).first  # still news to the hooks
    site.write_text(GOOD.replace("3s", "4s"))
    assert look().policy.reread_wait_s == 4.0
    site.write_text(BROKEN)
    assert not load(site, state).first


def test_no_file_means_the_packaged_policy_without_trouble(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = load(tmp_path / "none.yaml", state)
    assert ("gpu_lost" in got.policy.rules, got.troubles) == (True, ())
    never_compile(monkeypatch)
    assert load(tmp_path / "none.yaml", state) == got
    assert load("", state) == got


def test_a_file_that_vanished_leaves_the_last_good_one(site: Path, state: Path) -> None:
    good = load(site, state).policy
    site.unlink()
    first, second = load(site, state), load(site, state)
    assert (first.policy, first.first, second.first) == (good, True, False)
    assert "is gone" in first.troubles[0].detail
    site.write_text(GOOD)
    assert load(site, state).troubles == ()


@pytest.mark.parametrize("damage", ["", "{}", "[]", "\0", '{"schema": 1}', '{"schema": 99}', "truncated", "wrong types"])
def test_damaged_compiled_file_is_compiled_again(site: Path, state: Path, damage: str) -> None:
    good = load(site, state)
    text = (state / "policy.json").read_text()
    if damage == "truncated":
        damage = text[:1000]
    elif damage == "wrong types":
        damage = json.dumps({**json.loads(text), "base": 3, "nodes": None})
    (state / "policy.json").write_text(damage)
    assert load(site, state) == good


def test_a_damaged_last_good_one_falls_back_to_the_packaged_policy(site: Path, state: Path) -> None:
    load(site, state)
    (state / "policy.json").write_text('{"schema": 1, "site": true}')
    site.write_text(BROKEN)
    assert "gpu_lost" in load(site, state).policy.rules


def test_without_a_writable_state_directory_it_is_compiled_in_memory(site: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    got = load(site, blocker / "n1")
    assert (got.policy.reread_wait_s, got.troubles) == (3.0, ())
    site.write_text(BROKEN)
    assert "gpu_lost" in load(site, blocker / "n1").policy.rules


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"a: [" * 10_000, b"x" * (1024 * 1024 + 1), b"\0"])
def test_hostile_text_is_a_trouble(site: Path, state: Path, text: bytes) -> None:
    site.write_bytes(text)
    got = load(site, state)
    assert got.troubles[0].detail.startswith(str(site))
    assert "\n" not in got.troubles[0].detail


def test_what_is_no_plain_file_is_a_trouble_and_hangs_nothing(tmp_path: Path, state: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, "/dev/zero", "bad\0name"):
        assert len(load(path, state).troubles) == 1
    assert "is not a plain file" in load(fifo, state).troubles[0].detail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away, and only root checks")
def test_a_file_that_others_could_have_written_is_refused(site: Path, state: Path) -> None:
    good = load(site, state).policy
    site.write_text(GOOD.replace("3s", "4s"))
    site.chmod(0o646)
    assert "can be written by everyone" in load(site, state).troubles[0].detail
    site.chmod(0o644)
    os.chown(site, 12345, -1)
    got = load(site, state)
    assert got.policy == good
    assert "belongs to uid 12345" in got.troubles[0].detail
    assert not show.check(str(site)).ok


def test_without_yaml_the_last_good_policy_or_nothing_is_in_force(site: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = load(site, state).policy
    monkeypatch.setitem(sys.modules, "slurm_nvhc.policy.compile", None)
    site.write_text(GOOD.replace("3s", "4s"))
    assert load(site, state).policy == good
    (state / "policy.json").unlink()
    got = load(site, state)
    assert (got.policy, got.policy.mode, dict(got.policy.rules)) == (source.nothing(), "observe", {})
    assert got.troubles[0].code == "MON-POLICY"
    monkeypatch.undo()
    assert load(site, state).policy.reread_wait_s == 4.0


def test_without_the_packaged_file_the_last_good_policy_stays(site: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = load(site, state).policy
    monkeypatch.setattr(resources, "_ROOTS", ("/nonexistent",))
    assert load(site, state).policy == good
    assert load(site, state / "other").policy == source.nothing()


def test_anything_unforeseen_is_a_trouble_too(site: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_load", lambda _: 1 / 0)
    got = load(site, state)
    assert (got.policy, "ZeroDivisionError" in got.troubles[0].detail) == (source.nothing(), True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100), st.one_of(st.none(), st.binary(max_size=60)))
def test_no_bytes_make_it_raise(tmp_path: Path, text: bytes, cached: bytes | None) -> None:
    (tmp_path / "p.yaml").write_bytes(text)
    if cached is not None:
        (tmp_path / "policy.json").write_bytes(cached)
    got = source.load(str(tmp_path / "p.yaml"), str(tmp_path), "n1", "")
    assert got.policy.hash


def test_with_a_compiled_file_only_light_modules_are_imported(site: Path, state: Path) -> None:
    load(site, state)
    code = (
        "import sys; from slurm_nvhc.policy import source; "
        f"got = source.load({str(site)!r}, {str(state)!r}, 'n1', 'gpu'); assert not got.troubles, got.troubles; "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    # An editable install's finder may bring modules of its own.
    nothing = f"import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    bare = subprocess.run([sys.executable, "-I", "-c", nothing], capture_output=True, text=True, check=True)
    assert done.stdout == bare.stdout


def test_check_says_what_is_wrong_or_what_there_is(site: Path, tmp_path: Path) -> None:
    good = show.check(str(site))
    assert good.ok
    assert good.hash in good.lines[0]
    assert "partitions: gpu" in good.lines
    site.write_text(BROKEN)
    bad = show.check(str(site))
    assert (bad.ok, bad.hash, len(bad.lines)) == (False, "", 1)
    assert "line 2, key rules.x.feild" in bad.lines[0]
    assert "does not exist" in show.check(str(tmp_path / "none")).lines[0]
    site.write_text("mode: observe")
    assert "the whole policy is in observe mode: no rule acts" in show.check(str(site)).lines


def test_shown_is_what_judge_sees(site: Path, state: Path) -> None:
    site.write_text("schema: 1\nnodes: {n1: {expect: {gpus: 4}}}")
    got = show.to_json(load(site, state).policy.for_model("NVIDIA H200"))
    assert got["expect"] == {"gpus": 4, "links": 18}
    repeated, gathered = got["rules"]["nvl_replay"]["fail"]
    assert repeated == {"poisson": {"per_s": 0.001 / 3600}, "increase_at_least": 3.0, "hits": 2, "of_last": 5}
    assert gathered == {"cusum": {"normal_per_s": 0.001 / 3600, "faulty_per_s": 0.5 / 3600}, "settle_s": 600.0}
    assert got["rules"]["recovery_action"]["fail"][1]["unless"] == [["row_remap_pending", [1]]]
    assert json.loads(json.dumps(got)) == got


def test_longest_budgets_of_a_node_over_all_partitions(site: Path, tmp_path: Path) -> None:
    site.write_text(
        "schema: 1\nbudgets: {prolog: 9s}\npartitions: {a: {budgets: {prolog: 12s}}, b: {budgets: {prolog: 3s, epilog: 25s}}}\n"
        "nodes: {n2: {budgets: {epilog: 5s}}, n1: {budgets: {health_check: 40s}}}\n"
    )
    assert show.longest_budgets(str(site), "n1") == Budgets(12.0, 25.0, 40.0, 10.0)
    assert show.longest_budgets(str(site), "n2") == Budgets(12.0, 5.0, 30.0, 10.0)
    assert show.longest_budgets(str(tmp_path / "none"), "n1") == Budgets()
    site.write_text(BROKEN)
    assert show.longest_budgets(str(site), "n1") is None


def test_json_schema_knows_every_key() -> None:
    text = json.dumps(show.json_schema())
    for key in ("partitions", "increase_at_least", "drain_after_runs", "additionalProperties", "unless"):
        assert key in text


def test_resources_are_found_or_named() -> None:
    assert os.path.isfile(resources.find("etc/policy.yaml"))
    with pytest.raises(InputError, match=r"etc/no\.yaml: is missing"):
        resources.find("etc/no.yaml")
