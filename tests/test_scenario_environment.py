"""What Slurm gives each hook, and what it takes from a task prolog."""

from __future__ import annotations

from slurm_nvhc.scenario import environment as env
from slurm_nvhc.scenario.steps import JobStep, TaskStep

CONF = "/etc/slurm/slurm.conf"


def job(**more: object) -> env.JobValues:
    return env.job_values(JobStep(job=7, **more), None, "gpu", 4)  # type: ignore[arg-type]


def test_a_job_without_more_has_the_whole_node() -> None:
    assert job().gpus == "0,1,2,3"
    assert job(gpus="all").gpus == "0,1,2,3"
    assert job(gpus=[2, 0]).gpus == "2,0"
    assert job(gpus="0-2").gpus == "0-2"


def test_the_epilog_knows_what_the_prolog_said() -> None:
    first = job(gpus=[1, 2], user="bob", partition="long", tasks=4)
    second = env.job_values(JobStep(job=7, exit_code=9), first, "gpu", 4)
    assert (second.gpus, second.user, second.partition, second.tasks, second.exit_code) == ("1,2", "bob", "long", 4, 9)


def test_hooks_of_slurmd_have_no_path() -> None:
    got = env.slurmd_hook("prolog", job(gpus=[1, 2]), "n1", CONF)
    assert not {"PATH", "HOME", "USER", "LANG"} & set(got)
    assert got["SLURM_JOB_GPUS"] == got["CUDA_VISIBLE_DEVICES"] == got["ROCR_VISIBLE_DEVICES"] == "1,2"
    assert (got["SLURMD_NODENAME"], got["SLURM_CONF"], got["SLURM_SCRIPT_CONTEXT"]) == ("n1", CONF, "prolog_slurmd")
    assert "SLURM_JOB_EXIT_CODE" not in got


def test_a_job_without_gpus_has_no_gpu_variable() -> None:
    assert not [name for name in env.slurmd_hook("prolog", job(gpus=[]), "n1", CONF) if "GPU" in name or "CUDA" in name]


def test_the_epilog_has_the_exit_code() -> None:
    got = env.slurmd_hook("epilog", job(exit_code=768), "n1", CONF)
    assert (got["SLURM_JOB_EXIT_CODE"], got["SLURM_JOB_EXIT_CODE2"]) == ("768", "3:0")


def test_the_health_check_has_one_variable() -> None:
    assert env.health_check("n1") == {"SLURMD_NODENAME": "n1"}


def test_task_numbers_are_node_wide_or_count_within_the_job() -> None:
    plain = env.task(TaskStep(job=7), job(gpus=[2, 3]), "n1", CONF, False)
    bound = env.task(TaskStep(job=7), job(gpus=[2, 3]), "n1", CONF, True)
    assert (plain["SLURM_JOB_GPUS"], plain["CUDA_VISIBLE_DEVICES"]) == ("2,3", "2,3")
    assert (bound["SLURM_JOB_GPUS"], bound["CUDA_VISIBLE_DEVICES"]) == ("2,3", "0,1")
    step = env.task(TaskStep(job=7, launch="step", gpus=[3]), job(gpus=[2, 3]), "n1", CONF, False)
    assert (step["SLURM_STEP_GPUS"], step["CUDA_VISIBLE_DEVICES"], step["SLURM_GPUS_ON_NODE"]) == ("3", "3", "1")
    assert "SLURM_JOB_GPUS" not in step


def test_a_task_keeps_the_form_that_the_job_has() -> None:
    values = job(gpus=[2, 3], cuda_visible_devices="GPU-a,GPU-b")
    assert env.task(TaskStep(job=7), values, "n1", CONF, False)["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"


def test_exclusive_jobs_show_all_gpus_to_hooks_and_none_to_tasks() -> None:
    values = job(exclusive=True)
    assert env.slurmd_hook("prolog", values, "n1", CONF)["SLURM_JOB_GPUS"] == "0,1,2,3"
    assert "CUDA_VISIBLE_DEVICES" not in env.task(TaskStep(job=7), values, "n1", CONF, False)


def test_extra_variables_and_null() -> None:
    assert env.apply_extra({"A": "1", "B": "2"}, ({"B": None, "C": "3"}, {"C": "4"})) == {"A": "1", "C": "4"}


def test_what_slurmstepd_takes_from_a_task_prolog() -> None:
    out = 'export A=0,1\nexport B="x y"\nunset C\nprint nvhc: hidden\nnoise\n  export D=\n'
    got, unset, prints = env.after_task_prolog({"A": "0", "C": "1"}, out)
    assert got == {"A": "0,1", "B": '"x y"', "D": ""}
    assert (unset, prints) == (("C",), ("nvhc: hidden",))
