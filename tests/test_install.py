"""`nvhc hooks install` and `remove`: what they write, what they warn of, what they leave."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Optional

import pytest

from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.hooks import install as inst
from slurm_nvhc.hooks import slurm_conf
from slurm_nvhc.policy.compiled import Budgets

PLAIN = "ClusterName=c\nSchedulerParameters=bf_interval=30,nohold_on_prolog_fail\n"  # nothing to warn of
NAMES = {"nvhc-prolog.sh", "nvhc-epilog.sh", "nvhc-health-check.sh", "nvhc-task-prolog.sh"}


@pytest.fixture
def options(tmp_path: Path) -> inst.Options:
    conf = tmp_path / "slurm.conf"
    conf.write_text(PLAIN)
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "scontrol").touch(mode=0o755)
    return inst.Options(
        libdir=str(tmp_path / "usr" / "libexec" / "nvhc"), config=str(tmp_path / "etc" / "nvhc" / "policy.yaml"),
        state=str(tmp_path / "var" / "nvhc"), run=str(tmp_path / "run" / "nvhc"), slurm_conf=str(conf),
        kill_switch=str(tmp_path / "etc" / "nvhc" / "disabled"), bin_dir=str(bin_dir),
    )  # fmt: skip


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def conf(options: inst.Options, text: str) -> None:
    Path(options.slurm_conf).write_text(text)


def nothing_named(_options: inst.Options) -> Optional[slurm_conf.Settings]:
    return {}


def no_answer(_options: inst.Options) -> Optional[slurm_conf.Settings]:
    return None


def test_writes_everything_with_its_mode(options: inst.Options) -> None:
    report = inst.install(options)
    assert set(os.listdir(options.libdir)) == NAMES
    assert {mode(os.path.join(options.libdir, name)) for name in NAMES} == {0o755}
    assert (mode(options.libdir), mode(options.state), mode(options.run), mode(options.config)) == (0o755, 0o700, 0o755, 0o644)
    for path in (options.libdir, options.state, options.run, options.config):
        assert any(path in sentence for sentence in report.done)


def test_paths_are_baked_and_quoted(tmp_path: Path, options: inst.Options) -> None:
    odd = str(tmp_path / "it's a $place")
    inst.install(options._replace(state=odd))
    text = Path(options.libdir, "nvhc-prolog.sh").read_text()
    (state,) = [line for line in text.splitlines() if line.startswith("STATE=")]
    shown = subprocess.run(["/bin/sh", "-c", f'{state}; printf %s "$STATE"'], capture_output=True, text=True)
    assert shown.stdout == odd
    assert f"PYTHON={sys.executable}\n" in text


def test_deadlines_follow_the_budgets(options: inst.Options) -> None:
    inst.install(options._replace(budgets=Budgets(prolog_s=3.2, epilog_s=40, health_check_s=50)))
    for name, seconds in (("nvhc-prolog.sh", 5), ("nvhc-epilog.sh", 41), ("nvhc-health-check.sh", 51)):
        assert f"\nDEADLINE={seconds}\n" in Path(options.libdir, name).read_text()


def test_keeps_an_existing_policy_and_says_so(options: inst.Options) -> None:
    os.makedirs(os.path.dirname(options.config))
    Path(options.config).write_text("mode: observe\n")
    report = inst.install(options)
    assert Path(options.config).read_text() == "mode: observe\n"
    assert f"kept {options.config}" in report.done


def test_dry_run_writes_nothing(options: inst.Options, tmp_path: Path) -> None:
    report = inst.install(options._replace(dry_run=True))
    assert sorted(os.listdir(tmp_path)) == ["bin", "slurm.conf"]
    assert any("nvhc-prolog.sh" in sentence for sentence in report.done)
    assert report.lines


def test_installing_again_replaces_by_rename(options: inst.Options) -> None:
    inst.install(options)
    path = os.path.join(options.libdir, "nvhc-prolog.sh")
    with open(path) as running:  # a shell that is in the middle of the old file
        Path(path).read_text()
        inst.install(options._replace(run=options.run + "2"))
        assert options.run + "2" not in running.read()
    assert options.run + "2" in Path(path).read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "var/nvhc"}, "state: 'var/nvhc' is not an absolute path"),
        ({"python": "python3"}, "not an absolute path"),
        ({"run": "/run/a\nb"}, "control characters"),
        ({"libdir": "/usr/my libexec"}, "slurm.conf can not have"),
    ],
)
def test_impossible_paths(options: inst.Options, change: dict[str, str], words: str) -> None:
    with pytest.raises(InputError) as raised:
        inst.install(options._replace(**change))
    assert words in str(raised.value)
    assert not os.path.exists(options.libdir)


def test_interpreter_that_can_not_load_us(options: inst.Options) -> None:
    for python in ("/nowhere/python3", "/bin/false"):
        with pytest.raises(MonitorError) as raised:
            inst.install(options._replace(python=python))
        assert f"{python}: can not load slurm_nvhc" in str(raised.value)
    assert not os.path.exists(options.libdir)


def test_a_place_that_can_not_be_written(options: inst.Options, tmp_path: Path) -> None:
    (tmp_path / "usr").write_text("a file")
    with pytest.raises(MonitorError) as raised:
        inst.install(options)
    assert options.libdir in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_warns_of_what_others_can_change(options: inst.Options, tmp_path: Path) -> None:
    assert not [w for w in inst.install(options).warnings if str(tmp_path) in w]
    os.makedirs(tmp_path / "usr", exist_ok=True)
    (tmp_path / "usr").chmod(0o777)
    os.chown(tmp_path / "etc", 12345, 12345)
    warnings = "\n".join(inst.install(options).warnings)
    assert f"{tmp_path}/usr can be written by others (mode 0777)" in warnings
    assert f"{tmp_path}/etc belongs to user 12345" in warnings


def lines(options: inst.Options) -> dict[str, bool]:
    return {line.text: line.present for line in inst.install(options).lines}


def test_slurm_conf_lines(options: inst.Options) -> None:
    lib = options.libdir
    conf(options, "")
    assert lines(options) == dict.fromkeys(
        (
            f"Prolog={lib}/nvhc-prolog.sh", f"Epilog={lib}/nvhc-epilog.sh", "PrologFlags=Alloc",
            f"HealthCheckProgram={lib}/nvhc-health-check.sh", "HealthCheckInterval=300", "HealthCheckNodeState=ANY",
            "SchedulerParameters=nohold_on_prolog_fail",
        ),
        False,
    )  # fmt: skip
    assert f"TaskProlog={lib}/nvhc-task-prolog.sh" in lines(options._replace(narrowing=True))
    conf(options, "\n".join(lines(options)))
    assert set(lines(options).values()) == {True}


def test_scheduler_parameters_are_extended_not_replaced(options: inst.Options) -> None:
    conf(options, "SchedulerParameters=bf_interval=30,defer\n")
    assert lines(options)["SchedulerParameters=bf_interval=30,defer,nohold_on_prolog_fail"] is False
    conf(options, "schedulerparameters = defer,NoHold_on_prolog_fail\n")
    assert [present for text, present in lines(options).items() if text.startswith("SchedulerParameters")] == [True]


def test_what_must_be_so_before_the_lines(options: inst.Options) -> None:
    *sentences, command = inst.install(options._replace(libdir=options.libdir + "/it's")).before
    assert "EVERY node" in " ".join(sentences)
    assert "fails every job" in " ".join(sentences)
    shown = subprocess.run(["/bin/sh", "-c", 'clush() { sh -c "$2"; }; ' + command], env={"PATH": "/usr/bin:/bin"})
    assert shown.returncode == 0
    os.unlink(options.libdir + "/it's/nvhc-prolog.sh")
    shown = subprocess.run(["/bin/sh", "-c", 'clush() { sh -c "$2"; }; ' + command], env={"PATH": "/usr/bin:/bin"})
    assert shown.returncode == 1


@pytest.mark.parametrize("bin_dir", ["{tmp}/nowhere", "{tmp}", "bin"])
def test_warns_when_scontrol_is_not_where_the_policy_says(options: inst.Options, tmp_path: Path, bin_dir: str) -> None:
    (tmp_path / "scontrol").touch(mode=0o644)
    (warning,) = [w for w in inst.install(options._replace(bin_dir=bin_dir.format(tmp=tmp_path))).warnings if "scontrol" in w]
    assert "slurm.bin_dir" in warning
    assert not [w for w in inst.install(options).warnings if "scontrol" in w]


def test_launchers_written_for_smaller_budgets_are_named(options: inst.Options) -> None:
    assert inst.too_short(options.libdir, Budgets()) == ()  # not installed
    inst.install(options)
    assert inst.too_short(options.libdir, Budgets(prolog_s=7.0)) == ()
    (said,) = inst.too_short(options.libdir, Budgets(prolog_s=8.1))
    assert said.startswith(f"{options.libdir}/nvhc-prolog.sh ends its hook after 9 s, and this policy's budget needs 10 s")
    assert "hooks install" in said
    inst.remove(options, no_answer)  # stubs have no deadline
    assert inst.too_short(options.libdir, Budgets(prolog_s=99.0)) == ()


def test_prolog_flags_are_extended_not_replaced(options: inst.Options) -> None:
    conf(options, "PrologFlags=Serial\n")
    assert "PrologFlags=Serial,Alloc" in lines(options)
    conf(options, "prologflags = Contain,X11 # implies Alloc\n")
    assert [present for text, present in lines(options).items() if text.startswith("PrologFlags")] == [True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Prolog=/a.sh\nProlog=/b.sh", "has 2 Prolog lines: Slurm 22.05 runs only the last"),
        ("Epilog=/a.sh", "Epilog is already /a.sh; a second line is not safe"),
        ("Prolog=/etc/slurm/prolog.d/*", "reverse alphabetical order"),
        ("Prolog=/etc/slurm/prolog.d/*", "link our launcher into that directory"),
        ("Prolog=/a.sh,/b.sh", "is a comma list"),
        ("HealthCheckProgram=/usr/sbin/nhc", "HealthCheckProgram is /usr/sbin/nhc"),
        ("PrologEpilogTimeout=10", "PrologEpilogTimeout=10 is not above our 21 s"),
        ("MessageTimeout=5", "MessageTimeout=5"),
        ("PrologFlags=RunInJob", "RunInJob"),
        ("SchedulerParameters=defer", "has no nohold_on_prolog_fail"),
        ("", "has no nohold_on_prolog_fail"),
    ],
)
def test_warnings_about_slurm_conf(options: inst.Options, text: str, words: str) -> None:
    def ours() -> list[str]:
        return [w for w in inst.install(options).warnings if "is root on this node" not in w]

    assert ours() == []
    conf(options, text)
    assert any(words in warning for warning in ours())


def test_settings_follow_includes_comments_and_continuations(tmp_path: Path) -> None:
    (tmp_path / "hooks.conf").write_text("Epilog=/e.sh\nInclude slurm.conf\n")  # includes itself: must end
    (tmp_path / "slurm.conf").write_text(
        "#Prolog=/no.sh\nProlog = \"/p.sh\" # here\ninclude hooks.conf\nPrologFlags=\\\nAlloc\nNodeName=n1 Prolog=/x\nInclude gone.conf\n"
    )
    settings = slurm_conf.read(str(tmp_path / "slurm.conf"))
    assert settings is not None
    assert set(settings["prolog"]) == {"/p.sh"}
    assert set(settings["epilog"]) == {"/e.sh"}
    assert set(settings["prologflags"]) == {"Alloc"}
    assert slurm_conf.read(str(tmp_path / "none")) is None


def test_running_configuration_is_read_in_both_shapes() -> None:
    text = "Configuration data as of now\nProlog       = /p.sh\nEpilog[0]    = /e.sh\nTaskProlog   = (null)\n"
    assert slurm_conf.parse_running(text) == {"prolog": ("/p.sh",), "epilog": ("/e.sh",)}


def remaining(options: inst.Options) -> set[str]:
    return set(os.listdir(options.libdir)) if os.path.isdir(options.libdir) else set()


def test_remove_deletes_what_nobody_names(options: inst.Options) -> None:
    inst.install(options)
    report = inst.remove(options, nothing_named)
    assert remaining(options) == set()
    assert not os.path.exists(options.libdir)
    assert os.path.isdir(options.state)
    assert os.path.isfile(options.config)
    assert len(report.done) == 4


def test_remove_leaves_stubs_that_exit_zero(options: inst.Options) -> None:
    report = inst.install(options)
    conf(options, "\n".join(line.text for line in report.lines))
    done = inst.remove(options, nothing_named).done
    assert remaining(options) == NAMES - {"nvhc-task-prolog.sh"}
    for name in remaining(options):
        path = os.path.join(options.libdir, name)
        assert "sleep" not in Path(path).read_text()
        assert "PYTHON" not in Path(path).read_text()
        assert mode(path) == 0o755
        assert subprocess.run([path], env={}).returncode == 0
    assert any("as a stub" in sentence and f"{options.slurm_conf} names it" in sentence for sentence in done)


def test_remove_keeps_stubs_while_slurmctld_still_has_them_in_force(options: inst.Options) -> None:
    inst.install(options)
    prolog = f"{options.libdir}/nvhc-prolog.sh"
    report = inst.remove(options, lambda _o: {"prolog": (prolog,)})
    assert remaining(options) == {"nvhc-prolog.sh"}
    assert any("scontrol reconfigure" in sentence for sentence in report.done)


@pytest.mark.parametrize("pattern", ["{lib}/*", "{dir}/prolog.d/*"])
def test_remove_sees_globs_and_links(options: inst.Options, tmp_path: Path, pattern: str) -> None:
    inst.install(options)
    (tmp_path / "prolog.d").mkdir()
    os.symlink(f"{options.libdir}/nvhc-prolog.sh", tmp_path / "prolog.d" / "50-nvhc.sh")
    conf(options, "Prolog=" + pattern.format(lib=options.libdir, dir=tmp_path))
    inst.remove(options, nothing_named)
    assert "nvhc-prolog.sh" in remaining(options)


def test_not_knowing_keeps_the_stubs(options: inst.Options, monkeypatch: pytest.MonkeyPatch) -> None:
    inst.install(options)
    assert any("did not say" in s for s in inst.remove(options, no_answer).done)
    assert remaining(options) == NAMES
    monkeypatch.setattr(slurm_conf, "WELL_KNOWN", ())
    os.unlink(options.slurm_conf)
    assert any("no slurm.conf was found" in s for s in inst.remove(options, nothing_named).done)
    assert remaining(options) == NAMES


def test_remove_dry_run_and_twice(options: inst.Options) -> None:
    inst.install(options)
    before = Path(options.libdir, "nvhc-prolog.sh").read_text()
    inst.remove(options._replace(dry_run=True, purge=True), no_answer)
    inst.remove(options._replace(dry_run=True, purge=True), nothing_named)
    assert Path(options.libdir, "nvhc-prolog.sh").read_text() == before
    assert os.path.isdir(options.state)
    inst.remove(options, nothing_named)
    assert inst.remove(options, nothing_named).done == ()


def test_purge_takes_state_and_run_but_nothing_foreign(options: inst.Options, tmp_path: Path) -> None:
    inst.install(options)
    os.makedirs(f"{options.run}/n1/narrow")
    Path(f"{options.run}/n1/narrow/12").touch()
    Path(f"{options.run}/.health_check.n1.lock").touch()
    Path(f"{options.run}/foreign").touch()
    inst.remove(options._replace(purge=True), nothing_named)
    assert not os.path.exists(options.state)
    assert os.listdir(options.run) == ["foreign"]
    foreign = tmp_path / "precious"
    foreign.mkdir()
    report = inst.remove(options._replace(purge=True, state=str(foreign)), nothing_named)
    assert foreign.is_dir()
    assert any("did not make it" in warning for warning in report.warnings)
