"""The task prolog, as the shell script that it is, under each POSIX shell that this machine has."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Mapping, Optional

import patient
import pytest

from slurm_nvhc.act import narrow
from slurm_nvhc.model.job import GpuMapping, Job

SOURCE = Path(__file__).parent.parent / "prolog" / "nvhc-task-prolog.sh"
SHELLS = [s for s in ("dash", "bash", "busybox") if shutil.which(s)]
UUIDS = [f"GPU-{n}{n}{n}{n}aaaa-1111-2222-3333-44444444444{n}" for n in range(8)]
WHY = "gpu3 hidden from this job: NVL-STORM"
SAID = f"print nvhc: {WHY}"

Run = Callable[..., list[str]]


@pytest.fixture(params=SHELLS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """run(positions of the job, hidden positions, constrain, **environment) -> lines of output."""
    run_dir = tmp_path / "run dir"
    script = tmp_path / "task-prolog.sh"
    script.write_text(SOURCE.read_text().replace("@RUN@", shlex.quote(str(run_dir))))
    shell = {"bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}.get(request.param, [request.param])

    def go(
        given: tuple[int, ...], hide: tuple[int, ...], constrain: Optional[bool] = False, job: str = "8812", **environment: str
    ) -> list[str]:
        mapping = GpuMapping(tuple(UUIDS[p] for p in given), dict(enumerate(UUIDS)), True)
        if hide:
            narrow.write(str(run_dir), "n1", Job("8812"), mapping, [UUIDS[p] for p in hide], constrain, WHY)
        return call({"SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", **environment})

    def call(environment: Mapping[str, str]) -> list[str]:
        done = subprocess.run(
            [shutil.which(shell[0]) or shell[0], *shell[1:], str(script)],
            env=dict(environment), cwd="/", capture_output=True, timeout=patient.PROCESS_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        assert done.stderr == b""
        return done.stdout.decode("utf-8", "replace").splitlines()

    go.call = call  # type: ignore[attr-defined]
    go.file = run_dir / "n1" / "narrow" / "8812"  # type: ignore[attr-defined]
    go.script, go.shell = script, shell  # type: ignore[attr-defined]
    return go


def test_a_job_without_a_file_gets_nothing(run: Run) -> None:
    assert run((0, 1), (), CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_GPUS="0,1") == []


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace on this machine")
def test_a_job_without_a_file_starts_no_process(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    shell = [shutil.which(run.shell[0]), *run.shell[1:]]  # type: ignore[attr-defined]
    subprocess.run(
        ["strace", "-f", "-e", "trace=execve,fork,vfork,clone,clone3", "-o", str(trace), *shell, str(run.script)],  # type: ignore[attr-defined]
        env={"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}, check=True,
    )  # fmt: skip
    assert [line for line in trace.read_text().splitlines() if "(" in line and "exited" not in line].__len__() == 1


# The launch forms of a batch script and of steps, as they were observed on 22.05 and 24.11.


def test_batch_script(run: Run) -> None:
    out = run((2, 3), (3,), SLURM_JOB_GPUS="2,3", SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="2,3", GPU_DEVICE_ORDINAL="2,3",
              ROCR_VISIBLE_DEVICES="2,3", ZE_AFFINITY_MASK="2,3")  # fmt: skip
    assert out == [
        "export CUDA_VISIBLE_DEVICES=2", "export GPU_DEVICE_ORDINAL=2", "export ROCR_VISIBLE_DEVICES=2", "export ZE_AFFINITY_MASK=2",
        "export SLURM_JOB_GPUS=2", "export SLURM_GPUS_ON_NODE=1", SAID,
    ]  # fmt: skip


def test_batch_script_under_constrain_devices(run: Run) -> None:
    out = run((3, 4, 5), (4,), True, SLURM_JOB_GPUS="3,4,5", SLURM_GPUS_ON_NODE="3", CUDA_VISIBLE_DEVICES="0,1,2")
    assert out == ["export CUDA_VISIBLE_DEVICES=0,2", "export SLURM_JOB_GPUS=3,5", "export SLURM_GPUS_ON_NODE=2", SAID]


def test_srun_step_within_a_narrowed_batch_script(run: Run) -> None:
    """SLURM_JOB_GPUS is inherited as the batch script's task prolog left it; SLURM_STEP_GPUS is fresh."""
    out = run((2, 3), (3,), SLURM_STEP_GPUS="2,3", SLURM_JOB_GPUS="2", SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="2,3")
    assert out == ["export CUDA_VISIBLE_DEVICES=2", "export SLURM_STEP_GPUS=2", "export SLURM_GPUS_ON_NODE=1", SAID]


def test_plain_srun(run: Run) -> None:
    out = run((0, 1, 2, 3), (3,), SLURM_STEP_GPUS="0,1,2,3", SLURM_GPUS_ON_NODE="4", CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert out == ["export CUDA_VISIBLE_DEVICES=0,1,2", "export SLURM_STEP_GPUS=0,1,2", "export SLURM_GPUS_ON_NODE=3", SAID]


def test_task_bound_to_one_good_gpu_is_left_alone(run: Run) -> None:
    assert run((3, 4), (3,), SLURM_STEP_GPUS="4", SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="4") == []


def test_task_bound_to_the_hidden_gpu_keeps_it_and_is_told(run: Run) -> None:
    out = run((3, 4), (3,), SLURM_STEP_GPUS="3", SLURM_GPUS_ON_NODE="2", CUDA_VISIBLE_DEVICES="3")
    assert len(out) == 1
    assert out[0].startswith("print nvhc: nothing is hidden from this task because it would be left without a GPU; wanted: gpu3")


def test_task_bound_to_one_gpu_under_constrain_devices(run: Run) -> None:
    """cgroup v1: both tasks of --gpus-per-task=1 get SLURM_STEP_GPUS=3 and CUDA_VISIBLE_DEVICES=0."""
    assert run((3, 4), (4,), True, SLURM_STEP_GPUS="3", CUDA_VISIBLE_DEVICES="0") == []
    assert "without a GPU" in run((3, 4), (3,), True, SLURM_STEP_GPUS="3", CUDA_VISIBLE_DEVICES="0")[0]


def test_task_bound_to_two_of_four(run: Run) -> None:
    """SLURM_GPUS_ON_NODE counts the step's GPUs, the list only the task's."""
    out = run((2, 3, 4, 5), (3,), SLURM_STEP_GPUS="2,3", SLURM_GPUS_ON_NODE="4", CUDA_VISIBLE_DEVICES="3,2")
    assert out == ["export CUDA_VISIBLE_DEVICES=2", "export SLURM_STEP_GPUS=2", "export SLURM_GPUS_ON_NODE=3", SAID]


def test_step_on_another_node_of_the_job_leaves_the_batch_nodes_list(run: Run) -> None:
    out = run((0, 3), (3,), SLURM_STEP_GPUS="0,3", SLURM_JOB_GPUS="3,4", SLURM_JOB_NUM_NODES="2", SLURM_GPUS_ON_NODE="2",
              CUDA_VISIBLE_DEVICES="0,3")  # fmt: skip
    assert out == ["export CUDA_VISIBLE_DEVICES=0", "export SLURM_STEP_GPUS=0", "export SLURM_GPUS_ON_NODE=1", SAID]


def test_batch_script_with_a_step_list_from_the_shell_that_submitted_it(run: Run) -> None:
    out = run((2, 3), (3,), SLURM_STEP_GPUS="6,7", SLURM_JOB_GPUS="2,3", CUDA_VISIBLE_DEVICES="2,3")
    assert out == ["export CUDA_VISIBLE_DEVICES=2", "export SLURM_JOB_GPUS=2", SAID]


def test_task_without_gpus(run: Run) -> None:
    assert run((2, 3), (3,), CUDA_VISIBLE_DEVICES="") == []
    assert run((2, 3), (3,), CUDA_VISIBLE_DEVICES="NoDevFiles", SLURM_STEP_GPUS="2,3") == []


def test_exclusive_without_gres_is_told_that_nothing_is_hidden(run: Run) -> None:
    """Its tasks get no GPU variable and see all GPUs of the node, the excluded one included."""
    out = run(tuple(range(8)), (3,))
    assert out == [f"print nvhc: nothing can be hidden because CUDA_VISIBLE_DEVICES is not set; wanted: {WHY}"]


def test_unbound_task_whose_own_positions_are_good_is_left_alone(run: Run) -> None:
    assert run((2, 3), (3,), SLURM_STEP_GPUS="2") == []


@pytest.mark.parametrize(
    ("visible", "after"),
    [("2, 5", "2"), (" 5 ,2 ", "2"), (f"{UUIDS[2]},   {UUIDS[5]}", UUIDS[2]), ("5, 2, 4", "2,4")],
)
def test_R12_blanks_around_commas_mean_nothing(run: Run, visible: str, after: str) -> None:
    out = run((2, 4, 5), (5,), SLURM_JOB_GPUS="2,4,5", CUDA_VISIBLE_DEVICES=visible, GPU_DEVICE_ORDINAL=visible)
    assert out[:2] == [f"export CUDA_VISIBLE_DEVICES={after}", f"export GPU_DEVICE_ORDINAL={after}"]


def test_gpu_bind_none_on_22_05_is_told_that_nothing_can_be_hidden(run: Run) -> None:
    """The step has GPUs and no CUDA_VISIBLE_DEVICES: setting it would be a guess, saying nothing a lie."""
    out = run((2, 3), (3,), SLURM_STEP_GPUS="2,3")
    assert out == [f"print nvhc: nothing can be hidden because CUDA_VISIBLE_DEVICES is not set; wanted: {WHY}"]


def test_order_is_kept(run: Run) -> None:
    assert run((2, 3, 4), (3,), SLURM_STEP_GPUS="2,3,4", CUDA_VISIBLE_DEVICES="4,3,2")[0] == "export CUDA_VISIBLE_DEVICES=4,2"


def test_positions_as_ranges(run: Run) -> None:
    out = run((0, 1, 2, 4), (1,), SLURM_JOB_GPUS="0-2,4", CUDA_VISIBLE_DEVICES="0,1,2,4")
    assert out[:2] == ["export CUDA_VISIBLE_DEVICES=0,2,4", "export SLURM_JOB_GPUS=0,2,4"]


# Forms of CUDA_VISIBLE_DEVICES (R12)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{UUIDS[2]},{UUIDS[5]}", UUIDS[2]),
        (f"{UUIDS[5][:10]},{UUIDS[2][:9]}", UUIDS[2][:9]),
        (f"2,{UUIDS[5]}", "2"),
        (f"{UUIDS[2][:8]},5", UUIDS[2][:8]),
    ],
)
def test_R12_form_is_kept(run: Run, before: str, after: str) -> None:
    out = run((2, 5), (5,), SLURM_JOB_GPUS="2,5", CUDA_VISIBLE_DEVICES=before)
    assert out == [f"export CUDA_VISIBLE_DEVICES={after}", "export SLURM_JOB_GPUS=2", SAID]


def test_R12_uuids_need_no_positions_and_no_constrain_line(run: Run) -> None:
    assert run((2, 5), (5,), None, CUDA_VISIBLE_DEVICES=f"{UUIDS[2]},{UUIDS[5]}")[0] == f"export CUDA_VISIBLE_DEVICES={UUIDS[2]}"


@pytest.mark.parametrize(
    "visible",
    [
        "GPU-,2",
        "GPU-ffff,2",
        "MIG-5c8a0e3f,2",
        "MIG-GPU-1111/1/0",
        "9,2",
        "x",
        "2,,5",
        ",2",
        "2,5,",
        "2 5",
        "2,5 4",
        " ",
        "2, ,5",
        "2;reboot",
        "$(id)",
        "*",
        "99999999999",
        "0" * 5000,
    ],
)
def test_R12_what_is_not_understood_is_left_and_told(run: Run, visible: str) -> None:
    out = run((2, 5), (5,), SLURM_JOB_GPUS="2,5", CUDA_VISIBLE_DEVICES=visible)
    assert len(out) == 1
    assert out[0].startswith("print nvhc: nothing is hidden from this task because ")
    assert out[0].endswith(f"wanted: {WHY}")


# Which numbers are meant


@pytest.mark.parametrize(
    ("constrain", "given", "visible", "after"),
    [
        (False, "2,3", "2,3", "2"),
        (True, "2,3", "0,1", "0"),
        (None, "2,3", "2,3", "2"),  # all are positions of the step
        (None, "2,3", "0,1", "0"),  # they can only be counted within the step
        (False, "2,3", "0,1", "0"),  # cgroup.conf says otherwise, but nothing else fits
        (True, "2,3", "2,3", "2"),
        (True, "2,3,1", "0,1", "0"),  # two readings are possible: the configuration decides
        (False, "2,3,1", "1,3", "1"),
    ],
)
def test_numbers_are_positions_or_counted_within_the_step(
    run: Run, constrain: Optional[bool], given: str, visible: str, after: str
) -> None:
    positions = tuple(int(n) for n in given.split(","))
    assert run(positions, (3,), constrain, SLURM_STEP_GPUS=given, CUDA_VISIBLE_DEVICES=visible)[0] == f"export CUDA_VISIBLE_DEVICES={after}"


def test_numbers_counted_within_the_job(run: Run) -> None:
    """A task bound to position 4 of 3,4 that is told "1"."""
    assert "without a GPU" in run((3, 4), (4,), True, SLURM_STEP_GPUS="4", CUDA_VISIBLE_DEVICES="1")[0]
    assert run((3, 4), (3,), True, SLURM_STEP_GPUS="4", CUDA_VISIBLE_DEVICES="1") == []


def test_twins_that_say_something_else_are_left(run: Run) -> None:
    out = run((2, 3), (3,), SLURM_JOB_GPUS="2,3", CUDA_VISIBLE_DEVICES="2,3", GPU_DEVICE_ORDINAL="0,1", SLURM_GPUS_ON_NODE="7")
    assert out == ["export CUDA_VISIBLE_DEVICES=2", "export SLURM_JOB_GPUS=2", SAID]


# Odd environments and files


@pytest.mark.parametrize("job", ["", "12x", "../8812", "8812 ", "9" * 300])
def test_a_job_id_that_is_none(run: Run, job: str) -> None:
    assert run((2, 3), (3,), job=job, CUDA_VISIBLE_DEVICES="2,3", SLURM_JOB_GPUS="2,3") == []


def test_the_node_name_is_the_hosts_without_slurmds(run: Run) -> None:
    run((2, 3), (3,))
    folder = run.file.parent.parent  # type: ignore[attr-defined]
    folder.rename(folder.parent / os.uname().nodename.partition(".")[0])
    out = run.call({"SLURM_JOB_ID": "8812", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"})  # type: ignore[attr-defined]
    assert out[0] == "export CUDA_VISIBLE_DEVICES=2"


def test_a_node_name_that_is_a_path(run: Run) -> None:
    run((2, 3), (3,))
    environment = {"SLURM_JOB_ID": "8812", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"}
    assert run.call({**environment, "SLURMD_NODENAME": "../n1"}) == []  # type: ignore[attr-defined]
    assert run.call({**environment, "SLURMD_NODENAME": "x/../n1"}) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\x00\xff\xfe" * 500, b"nvhc-narrow 2\nend\n", b"nvhc-narrow 1\ngpu 3 " + UUIDS[3].encode() + b" hide\n",
     b"nvhc-narrow 1\n" + b"gpu 1 GPU-x keep\n" * 5000 + b"end\n", b"$(touch /tmp/x)\nend\n"],
)  # fmt: skip
def test_a_damaged_file_hides_nothing_and_says_so(run: Run, content: bytes) -> None:
    run((2, 3), (3,))
    run.file.write_bytes(content)  # type: ignore[attr-defined]
    out = run.call({"SLURM_JOB_ID": "8812", "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"})  # type: ignore[attr-defined]
    assert out == ["print nvhc: the list of GPUs to hide from this job can not be read; nothing is hidden"]


@pytest.mark.parametrize(
    "line",
    [b"gpu", b"gpu x GPU-1 hide", b"gpu 3 `id` hide", b"gpu 99999999999999999999 GPU-1 hide", b"constrain perhaps", b"* * *", b"\xff\xfe"],
)
def test_a_strange_line_is_passed_over(run: Run, line: bytes) -> None:
    run((2, 3), (3,))
    file = run.file  # type: ignore[attr-defined]
    file.write_bytes(file.read_bytes().replace(b"constrain no\n", b"constrain no\n" + line + b"\n"))
    out = run.call({"SLURM_JOB_ID": "8812", "SLURMD_NODENAME": "n1", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"})  # type: ignore[attr-defined]
    assert out[0] == "export CUDA_VISIBLE_DEVICES=2"


@pytest.mark.parametrize("given", ["", "x", "2,3;id", "3-2", "-1", "2-", "1-2-3", "0-999999999", "2,3," * 3000, "7"])
def test_a_strange_position_list_hides_nothing_wrong(run: Run, given: str) -> None:
    out = run((2, 3), (3,), SLURM_STEP_GPUS=given, CUDA_VISIBLE_DEVICES="2,3")
    if given == "":
        assert out[0] == "export CUDA_VISIBLE_DEVICES=2"
    else:
        assert len(out) == 1
        assert "do not fit" in out[0]


def test_users_variables_do_no_harm(run: Run) -> None:
    """Names that the script uses itself, and an IFS of the user's."""
    out = run(
        (2, 3),
        (3,),
        SLURM_JOB_GPUS="2,3",
        CUDA_VISIBLE_DEVICES="2,3",
        IFS="0123,",
        new="9",
        gone="1",
        list="7",
        hidden=" 2 ",
        ENV="/nonexistent",
    )
    assert out == ["export CUDA_VISIBLE_DEVICES=2", "export SLURM_JOB_GPUS=2", SAID]
