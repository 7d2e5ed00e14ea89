"""slurm/gres.py, hostlist.py and conf.py: from SLURM_JOB_GPUS to UUIDs, through gres.conf as people write it."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.slurm import conf, gres, hostlist
from slurm_nvhc.slurm.gres import GresList, parse, resolve


def uuid(n: int) -> str:
    return f"GPU-{n:08x}-0000-0000-0000-000000000000"


def gpu(n: int, minor: Optional[int], index: Optional[int] = None) -> GpuIdentity:
    return GpuIdentity(uuid(n), f"0000:{n:02x}:00.0", minor, index if index is not None else n)


EIGHT = [gpu(n, n) for n in range(8)]


def devices(*numbers: int) -> tuple[str, ...]:
    return tuple(f"/dev/nvidia{n}" for n in numbers)


# --- parse


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("Name=gpu File=/dev/nvidia[0-3,5-7]", devices(0, 1, 2, 3, 5, 6, 7)),
        ("Name=gpu Type=h100 File=/dev/nvidia[0-2,4-7]\nName=gpu Type=bad File=/dev/nvidia3\n", devices(0, 1, 2, 4, 5, 6, 7, 3)),
        ("NodeName=n[1-4,7] Name=gpu File=/dev/nvidia0,/dev/nvidia2", devices(0, 2)),
        ("NodeName=n[2-4],m1 Name=gpu File=/dev/nvidia0\nNodeName=n1 Name=gpu File=/dev/nvidia1", devices(1)),
        ("nodename=n1 NAME=GPU type=a FILE=/dev/nvidia1 # File=/dev/nvidia9\n#Name=gpu File=/dev/nvidia8", devices(1)),
        ("Name=gpu \\\n  Type=h100 \\\n  File=/dev/nvidia[0-1]", devices(0, 1)),
        ('Name = gpu File = "/dev/nvidia0" Cores=0-3', devices(0)),
        ("Name=shard Count=8\nName=mps Count=100\nName=gpu File=/dev/nvidia0", devices(0)),
        ("Name=gpu File=/dev/nvidia0 Count=1 Flags=nvidia_gpu_env", devices(0)),
        ("AutoDetect=off\r\nName=gpu File=/dev/nvidia0\r\n", devices(0)),
        ("", ()),
    ],
)
def test_file_lists(text: str, files: tuple[str, ...]) -> None:
    assert parse(text, "n1") == GresList(files)


@pytest.mark.parametrize(
    ("text", "files", "problem"),
    [
        ("Name=gpu Count=8", (), "no File="),
        ("Name=gpu File=/dev/nvidia0\nName=gpu Type=x Count=2", (), "no File="),
        ("include other.conf\nName=gpu File=/dev/nvidia0", devices(0), "other.conf is not read"),
        ("Name=gpu File=/dev/nvidia[0-", (), "brackets"),
        ("Name=gpu File=/dev/nvidia[3-1]", (), "backwards"),
        ("Name=gpu File=/dev/nvidia[0-999999999]", (), "more than"),
        ("Name=gpu File=/dev/nvidia0,/dev/nvidia0", devices(0, 0), "twice"),
        ("NodeName=n[x] Name=gpu File=/dev/nvidia0", (), "NodeName"),
    ],
)
def test_problems(text: str, files: tuple[str, ...], problem: str) -> None:
    found = parse(text, "n1")
    assert found.files == files
    assert problem in found.problem


def test_autodetect() -> None:
    assert parse("AutoDetect=nvml", "n1") == GresList((), True)
    assert parse("AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia0", "n1") == GresList(devices(0), False)
    assert parse("AutoDetect=nvml\nNodeName=n2 AutoDetect=off Name=gpu File=/dev/nvidia0", "n1") == GresList((), True)
    assert parse("Name=gpu AutoDetect=nvml", "n1") == GresList((), True)


def test_parts_of_gpus_are_no_list_and_no_trouble() -> None:
    """MIG instances with their capability files: nothing is wrong with such a gres.conf."""
    text = "Name=gpu Type=1g MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21\nName=gpu Type=h100 File=/dev/nvidia1\n"
    assert parse(text, "n1") == GresList((), False, "", parts=True)


@given(st.text(max_size=300))
def test_parse_never_raises(text: str) -> None:
    assert len(parse(f"Name=gpu File={text}\n{text}", "n1").problem) <= 400


# --- hostlists


@given(st.lists(st.integers(0, 120), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 130))
@settings(max_examples=60)
def test_contains_agrees_with_expand(numbers: list[int], width: int, asked: int) -> None:
    text = "n[" + ",".join(f"{n:0{width}d}-{n + 3:0{width}d}" for n in numbers) + "]x[1-2]"
    name = f"n{asked:0{width}d}x2"
    assert hostlist.contains(text, name) == (name in hostlist.expand(text, 10**4))


def test_hostlists() -> None:
    assert hostlist.expand("n[08-10],m,a[1-2]b[0-1]", 100) == ("n08", "n09", "n10", "m", "a1b0", "a1b1", "a2b0", "a2b1")
    assert hostlist.contains("n[1-2][0-9]", "n15")
    assert not hostlist.contains("n[1-4]", "n04")
    assert not hostlist.contains("n[1-4]", "n1x")


# --- resolve


def mapping(
    asked: Sequence[int], files: tuple[str, ...], gpus: Sequence[GpuIdentity] = EIGHT, known: Sequence[GpuIdentity] = ()
) -> gres.GpuMapping:
    return resolve(asked, GresList(files), gpus, known)


def test_the_position_in_the_file_list_is_not_the_minor_number() -> None:
    """Observed: File=nvidia[0-2],nvidia[4-7], position 3 opens nvidia4."""
    found = mapping((2, 3), devices(0, 1, 2, 4, 5, 6, 7))
    assert found.uuids == (uuid(2), uuid(4))
    assert found.exact
    assert found.by_position[6] == uuid(7)


def test_types_in_several_lines() -> None:
    """Observed: h100: nvidia[0-2,4-7], bad: nvidia3, position 7 opens nvidia3."""
    assert mapping((7,), devices(0, 1, 2, 4, 5, 6, 7, 3)).uuids == (uuid(3),)


def test_R11_the_minor_number_is_not_the_nvml_index() -> None:
    gpus = [gpu(0, 4, 0), gpu(4, 5, 4), gpu(6, 0, 6), gpu(7, 7, 7)]
    assert mapping((0,), devices(0, 4, 5, 7), gpus).uuids == (uuid(6),)
    assert resolve((0,), None, gpus, (), "minor") == gres.GpuMapping(
        (uuid(6),), {4: uuid(0), 5: uuid(4), 0: uuid(6), 7: uuid(7)}, True, (), "numbers are minor numbers (policy)"
    )
    by_index = resolve((0,), None, gpus, gpus, "index")
    assert (by_index.uuids, by_index.exact) == ((uuid(0),), True)


def test_indices_may_have_shifted_when_a_gpu_is_missing() -> None:
    assert not resolve((0,), None, EIGHT[1:], EIGHT, "index").exact


def test_order_of_the_job_is_kept() -> None:
    assert mapping((5, 1), devices(*range(8))).uuids == (uuid(5), uuid(1))


def test_a_missing_gpu_keeps_its_name_if_it_was_known() -> None:
    rest = [g for g in EIGHT if g.uuid != uuid(3)]
    unknown = mapping((2, 3), devices(*range(8)), rest)
    assert (unknown.uuids, unknown.missing, unknown.exact) == ((uuid(2),), (3,), True)
    assert 3 not in unknown.by_position
    known = mapping((2, 3), devices(*range(8)), rest, EIGHT)
    assert (known.uuids, known.missing, known.exact) == ((uuid(2),), (3,), True)
    assert known.by_position[3] == uuid(3)


def test_a_known_row_of_a_gpu_that_is_here_under_another_minor_is_stale() -> None:
    """After a reboot without GPU 3 the driver numbers anew."""
    now = [gpu(n, n if n < 3 else n - 1) for n in range(8) if n != 3]
    found = mapping((7,), devices(*range(8)), now, EIGHT)
    assert found.missing == (7,)
    assert 7 not in found.by_position


def test_no_file_list_is_assumed_and_says_so() -> None:
    for given_list in (None, GresList((), True), GresList((), False, "a Name=gpu line has no File=")):
        found = resolve((1,), given_list, [gpu(0, 5), gpu(1, 2), gpu(2, 9)], ())
        assert found.uuids == (uuid(0),)
        assert not found.exact
        assert "assumed ascending minor numbers" in found.why


def test_an_assumed_list_does_not_shift_when_a_known_gpu_is_missing() -> None:
    found = resolve((3, 4), None, [g for g in EIGHT if g.uuid != uuid(3)], EIGHT)
    assert (found.uuids, found.missing, found.exact) == ((uuid(4),), (3,), False)


def test_without_any_minor_number() -> None:
    found = resolve((1,), GresList(()), [gpu(0, None, 1), gpu(1, None, 0)], ())
    assert found.uuids == (uuid(0),)
    assert not found.exact


@pytest.mark.parametrize(
    ("asked", "files", "gpus", "autodetect", "problem", "why"),
    [
        ((8,), devices(*range(8)), EIGHT, False, "", "outside"),
        ((1,), devices(*range(8)), [*EIGHT[:7], gpu(7, 1)], False, "", "several GPUs claim minor number 1"),
        ((1,), devices(*range(8)), [*EIGHT[:7], gpu(7, None)], False, "", "do not tell"),
        ((1,), ("/dev/nvidia0", "/dev/gpu1"), EIGHT, False, "", "no minor number in its name"),
        ((1,), devices(3, 1), EIGHT, True, "", "AutoDetect"),
        ((1,), devices(0, 1), EIGHT, True, "", "AutoDetect may add"),
        ((1,), devices(0, 1), EIGHT, False, "Include x is not read", "Include"),
    ],
)
def test_a_doubtful_mapping_is_not_exact(
    asked: tuple[int, ...], files: tuple[str, ...], gpus: list[GpuIdentity], autodetect: bool, problem: str, why: str
) -> None:
    found = resolve(asked, GresList(files, autodetect, problem), gpus, ())
    assert not found.exact
    assert why in found.why


def test_autodetect_with_an_ascending_whole_list_is_exact() -> None:
    assert resolve((1,), GresList(devices(*range(8)), True), EIGHT, ()).exact


def test_two_gpus_with_one_minor_are_not_guessed_between() -> None:
    found = mapping((1,), devices(*range(8)), [*EIGHT[:7], gpu(7, 1)])
    assert found.uuids == ()


def test_job_without_gpus() -> None:
    found = resolve(None, GresList(devices(*range(8))), EIGHT, ())
    assert found.uuids == ()
    assert found.exact
    assert len(found.by_position) == 8


# --- MIG

MIXED = [g._replace(mig=n >= 6) for n, g in enumerate(EIGHT)]


@pytest.mark.parametrize(
    ("given_list", "why"),
    [
        (None, "could not be read"),
        (GresList(parts=True), "hands out parts of GPUs"),
        (GresList((), True), "leaves the list to AutoDetect"),
        (GresList(devices(*range(8)), True), "leaves the list to AutoDetect"),
        (GresList((), False, "Include x is not read"), "Include x is not read"),
        (GresList(), "has no File list"),
    ],
)
def test_a_job_with_instances_has_all_parents_as_an_assumption(given_list: Optional[GresList], why: str) -> None:
    found = resolve((11, 2), given_list, MIXED, ())
    assert (found.uuids, found.by_position, found.missing, found.exact) == ((uuid(6), uuid(7)), {}, (), False)
    assert why in found.why
    assert "2 of 8 GPUs are in MIG mode" in found.why
    assert resolve((), given_list, MIXED, ()).uuids == ()


def test_a_lost_parent_does_not_make_positions_those_of_whole_gpus() -> None:
    here = [g for g in MIXED if not g.mig]
    found = resolve((2,), GresList(parts=True), here, MIXED)
    assert (found.uuids, found.exact) == ((), False)
    was_mig = [g._replace(mig=True) for g in here]  # MIG was switched off since
    assert resolve((2,), GresList((), True), here, was_mig).uuids == (uuid(2),)


def test_a_file_list_of_whole_gpus_holds_beside_mig_but_narrows_none_of_those() -> None:
    whole = mapping((0,), devices(*range(8)), MIXED)
    assert (whole.uuids, whole.exact) == ((uuid(0),), True)
    parent = mapping((0, 7), devices(*range(8)), MIXED)
    assert (parent.uuids, parent.exact) == ((uuid(0), uuid(7)), False)
    assert "MIG" in parent.why


@given(
    st.lists(st.integers(0, 12), max_size=8),
    st.lists(st.integers(0, 9), max_size=10),
    st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9))), max_size=9),
    st.sampled_from(["position", "minor", "index"]),
)
def test_resolve_never_raises_and_names_present_gpus_only(
    asked: list[int], files: list[int], rows: list[tuple[int, Optional[int]]], numbers: str
) -> None:
    gpus = [gpu(n, minor) for n, minor in dict(rows).items()]
    found = resolve(tuple(asked), GresList(devices(*files)), gpus, EIGHT, numbers)
    assert set(found.uuids) <= {g.uuid for g in gpus}
    assert found.why
    if found.exact:
        assert len(found.uuids) + len(found.missing) == len(asked)


# --- files


def test_read(tmp_path: Path) -> None:
    slurm_conf = str(tmp_path / "slurm.conf")
    assert gres.read("", "n1")[0] is None
    missing, trouble = gres.read(slurm_conf, "n1")
    assert missing is None
    assert trouble is not None
    assert (trouble.code, trouble.part) == ("MON-GRES", "gres")
    (tmp_path / "gres.conf").write_bytes(b"# M\xfcnchen\nName=gpu File=/dev/nvidia[0-1]\n")
    assert gres.read(slurm_conf, "n1") == (GresList(devices(0, 1)), None)
    (tmp_path / "gres.conf").write_text("Include x\nName=gpu File=/dev/nvidia[0-1]\n")
    found, trouble = gres.read(slurm_conf, "n1")
    assert found is not None
    assert trouble is not None
    assert "Include x" in trouble.detail
    (tmp_path / "gres.conf").write_bytes(b"#" * (conf.MAX_BYTES + 1))
    assert gres.read(slurm_conf, "n1")[0] is None
    (tmp_path / "gres.conf").unlink()
    (tmp_path / "gres.conf").mkdir()
    assert gres.read(slurm_conf, "n1")[0] is None


@pytest.mark.parametrize(
    ("cgroup", "slurm", "expected"),
    [
        (None, "", False),
        ("", "TaskPlugin=task/cgroup", False),
        ("ConstrainDevices=yes", "TaskPlugin=task/affinity,task/cgroup", True),
        ("constraindevices = YES # x", "taskplugin=cgroup", True),
        ("ConstrainDevices=yes", "TaskPlugin=task/none", False),
        ("ConstrainDevices=yes", "ClusterName=x", None),
        ("ConstrainDevices=no", "TaskPlugin=task/cgroup", False),
        ("Include other", "TaskPlugin=task/cgroup", None),
        ("ConstrainDevices=yes", None, None),
    ],
)
def test_constrain_devices(tmp_path: Path, cgroup: Optional[str], slurm: Optional[str], expected: Optional[bool]) -> None:
    for name, text in (("cgroup.conf", cgroup), ("slurm.conf", slurm)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert conf.constrain_devices(str(tmp_path / "slurm.conf")) is expected
