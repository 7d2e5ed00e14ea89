"""slurm/environment.py: whatever a hook's environment holds, a job or a trouble comes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_nvhc.model.job import Job
from slurm_nvhc.slurm.environment import MAX_NAME, job_from_environment, node_name, positions

FULL = {
    "SLURM_JOB_ID": "8812", "SLURM_JOB_UID": "1001", "SLURM_JOB_USER": "ada", "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_GPUS": "3,4", "CUDA_VISIBLE_DEVICES": "3,4", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NTASKS": "1",
    "SLURM_JOB_COMMENT": "hello", "SLURM_JOB_EXIT_CODE": "768",
}  # fmt: skip


def test_a_whole_environment() -> None:
    job, troubles = job_from_environment(FULL)
    assert job == Job("8812", 1001, "ada", "gpu", (3, 4), "3,4", 1, 1, "hello", 768)
    assert troubles == ()


def test_only_a_job_id_is_a_job_without_gpus_and_without_trouble() -> None:
    assert job_from_environment({"SLURM_JOBID": "7"}) == (Job("7"), ())
    assert job_from_environment({"SLURM_UID": "5", "SLURM_JOB_ID": "7"})[0] == Job("7", uid=5)


@pytest.mark.parametrize("value", [None, "", " ", "abc", "1;2", "-1", "../../etc", "9" * 5000, "8812\n8813", "٣"])
def test_no_job_without_a_job_id(value: str | None) -> None:
    job, troubles = job_from_environment({k: v for k, v in {**FULL, "SLURM_JOB_ID": value}.items() if v is not None})
    assert job is None
    assert [(t.code, t.part) for t in troubles] == [("MON-ENVIRONMENT", "environment")]
    assert "SLURM_JOB" in troubles[0].detail
    assert len(troubles[0].detail) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLURM_JOB_UID", "root"), ("SLURM_JOB_UID", "9" * 99), ("SLURM_JOB_NUM_NODES", "0"), ("SLURM_JOB_NTASKS", "1e3"),
     ("SLURM_JOB_EXIT_CODE", "-"), ("SLURM_JOB_GPUS", "a,b"), ("SLURM_JOB_GPUS", "0-99999999"), ("SLURM_JOB_GPUS", "1," * 9000)],
)  # fmt: skip
def test_nonsense_is_a_trouble_and_counts_as_missing(name: str, value: str) -> None:
    job, troubles = job_from_environment({**FULL, name: value})
    assert job is not None
    assert len(troubles) == 1
    assert name in troubles[0].detail
    field = {"SLURM_JOB_UID": job.uid, "SLURM_JOB_NUM_NODES": job.nodes, "SLURM_JOB_NTASKS": job.tasks,
             "SLURM_JOB_EXIT_CODE": job.exit_code, "SLURM_JOB_GPUS": job.positions}[name]  # fmt: skip
    assert field is None


def test_names_are_cleaned_and_told() -> None:
    job, troubles = job_from_environment({**FULL, "SLURM_JOB_USER": "ada\nexport X=1", "SLURM_JOB_PARTITION": "g\udcffpu"})
    assert job is not None
    assert (job.user, job.partition) == ("ada export X=1", "g?pu")
    assert [t.detail.split()[0] for t in troubles] == ["SLURM_JOB_USER", "SLURM_JOB_PARTITION"]
    long, _ = job_from_environment({**FULL, "SLURM_JOB_USER": "x" * 10**6})
    assert long is not None
    assert len(long.user) == MAX_NAME


def test_a_comment_is_free_text_and_never_trouble() -> None:
    job, troubles = job_from_environment({**FULL, "SLURM_JOB_COMMENT": "a\n\x1b[2Jb\udc80"})
    assert job is not None
    assert job.comment == "a [2Jb?"
    assert troubles == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0,)), ("3,4", (3, 4)), ("0-2,4", (0, 1, 2, 4)), ("4,0-1,0", (4, 0, 1)), ("2-1", None), ("1-", None), ("-1", None),
     ("", None), ("1,,2", None), ("1024", None), ("GPU-aaaa", None)],
)  # fmt: skip
def test_positions(text: str, expected: tuple[int, ...] | None) -> None:
    assert positions(text) == expected


@pytest.mark.parametrize("name", ["", "..", "a..b", "../x", "a/b", "/etc", ".hidden", "-n", "a b", "n\n1", "x" * 300, "n\udcff"])
def test_a_node_name_that_is_no_directory_name_is_the_hosts(name: str) -> None:
    assert node_name({"SLURMD_NODENAME": name}, "host1") == "host1"
    assert node_name({}, name) == "localhost"


def test_node_name() -> None:
    assert node_name({"SLURMD_NODENAME": "gpu-01.cluster_a"}, "host1") == "gpu-01.cluster_a"


_TEXT = st.text(alphabet=st.characters(codec=None), max_size=60)


@given(st.dictionaries(st.one_of(st.sampled_from(sorted(FULL)), _TEXT), _TEXT, max_size=12), _TEXT)
def test_never_raises_and_never_lets_control_characters_through(env: dict[str, str], host: str) -> None:
    job, troubles = job_from_environment(env)
    for text in [*(t.detail for t in troubles), *((job.job_id, job.user, job.partition, job.visible, job.comment) if job else ())]:
        assert text.isprintable()
    name = node_name(env, host)
    assert "/" not in name
    assert ".." not in name
