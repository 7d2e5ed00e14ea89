"""A GPU taken out of a job's sight, as the job's own processes see it, in each way in which Slurm starts them.

Throughout, GPU 2 went bad in an earlier job and another job holds position 0, so that a job
of four GPUs gets positions 1 to 4. Without ConstrainDevices the numbers in CUDA_VISIBLE_DEVICES
are positions (1,3,4 is left); with it they count within the job (0,2,3 is left).
The shell that salloc itself starts gets no task prolog and can not be narrowed.
"""

from __future__ import annotations

import re
from typing import Iterator

import pytest
from site_nvhc import NARROW_RULES, Held, Site

ANY_JOB = NARROW_RULES.replace("enabled: true", "enabled: true, jobs: any")
SHOW = 'echo "task ${SLURM_PROCID:-batch} [$CUDA_VISIBLE_DEVICES] $SLURMD_NODENAME"'
VARIANTS = [pytest.param(False, id="plain"), pytest.param(True, id="constrained", marks=pytest.mark.constrain)]


def exclude(site: Site, gpu: int = 2, node: str = "n1") -> None:
    """Have a GPU go bad in a job, so that it is excluded and the node stays in service."""
    job = Held(site.cluster, "--gres=gpu:8", "-w", node).wait_started()
    site.storm(gpu=gpu, link=5, amount=500, minutes=3, node=node)
    job.finish()
    site.cluster.wait_node("idle", node)


@pytest.fixture(scope="module", params=VARIANTS)
def narrowed(request: pytest.FixtureRequest) -> Iterator[Site]:
    with Site(ANY_JOB, narrowing=True, constrain=request.param) as site:
        exclude(site)
        blocker = Held(site.cluster, "--gres=gpu:1").wait_started()
        yield site
        blocker.let_go()


def seen(text: str) -> dict[str, str]:
    """Task -> its CUDA_VISIBLE_DEVICES."""
    return dict(re.findall(r"^task (\S+) \[(.*)\]", text, re.M))


def left(site: Site) -> str:
    return "0,2,3" if site.cluster.constrain else "1,3,4"


def test_batch_script(narrowed: Site) -> None:
    job = narrowed.cluster.sbatch(SHOW, "--gres=gpu:4")
    narrowed.cluster.wait_job(job, "COMPLETED")
    output = narrowed.cluster.output(job)
    assert seen(output) == {"0": left(narrowed)} or seen(output) == {"batch": left(narrowed)}
    assert re.search(r"^nvhc: .*gpu2", output, re.M), "the user is told"
    assert job not in narrowed.narrow_files()


def test_step_of_a_batch_script(narrowed: Site) -> None:
    job = narrowed.cluster.sbatch(f"srun sh -c '{SHOW}'", "--gres=gpu:4")
    narrowed.cluster.wait_job(job, "COMPLETED")
    assert set(seen(narrowed.cluster.output(job)).values()) == {left(narrowed)}


@pytest.mark.parametrize("ask", ["--gres=gpu:4", "--gpus=4", "--gpus-per-node=4", "--gres=gpu:h100:4"])
def test_srun(narrowed: Site, ask: str) -> None:
    assert seen(narrowed.cluster.srun(ask, "sh", "-c", SHOW).stdout) == {"0": left(narrowed)}


def test_srun_within_salloc(narrowed: Site) -> None:
    done = narrowed.cluster.run("salloc", "-Q", "--gres=gpu:4", "srun", "sh", "-c", SHOW, as_user=True)
    assert seen(done.stdout) == {"0": left(narrowed)}


def test_a_step_of_part_of_the_job(narrowed: Site) -> None:
    done = narrowed.cluster.run("salloc", "-Q", "--gres=gpu:4", "srun", "--gres=gpu:2", "sh", "-c", SHOW, as_user=True)
    assert seen(done.stdout) == {"0": "0" if narrowed.cluster.constrain else "1"}  # of positions 1 and 2


def test_tasks_that_share_all(narrowed: Site) -> None:
    assert seen(narrowed.cluster.srun("-n2", "--gres=gpu:4", "sh", "-c", SHOW).stdout) == {"0": left(narrowed), "1": left(narrowed)}


def test_stale_siblings_do_not_tell_another_story(narrowed: Site) -> None:
    show = "env | grep -E '^(CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK)='"
    values = {line.partition("=")[2] for line in narrowed.cluster.srun("--gres=gpu:4", "sh", "-c", show).stdout.splitlines() if "=" in line}
    assert values == {left(narrowed)}


def test_job_without_the_bad_gpu_is_left_alone(narrowed: Site) -> None:
    done = narrowed.cluster.srun("--gres=gpu:1", "sh", "-c", SHOW)  # position 1
    assert seen(done.stdout) == {"0": "0" if narrowed.cluster.constrain else "1"}
    assert "nvhc" not in done.stdout


def test_job_without_gpus_is_left_alone(narrowed: Site) -> None:
    assert seen(narrowed.cluster.srun("sh", "-c", SHOW).stdout) == {"0": ""}


def test_bound_tasks(narrowed: Site) -> None:
    if narrowed.cluster.constrain:
        # Slurm itself gives both tasks the same numbers there: only "no task without a GPU" can be asked.
        tasks = seen(narrowed.cluster.srun("-n2", "--gpus-per-task=2", "sh", "-c", SHOW).stdout)
        assert all(tasks.values())
        return
    tasks = seen(narrowed.cluster.srun("-n2", "--gpus-per-task=2", "sh", "-c", SHOW).stdout)
    assert tasks == {"0": "1", "1": "3,4"}


@pytest.mark.parametrize("bind", ["map_gpu:2,3", "single:1"])
def test_no_task_is_left_without_a_gpu(narrowed: Site, bind: str) -> None:
    done = narrowed.cluster.srun("-n2", "--gres=gpu:4", f"--gpu-bind={bind}", "sh", "-c", SHOW)
    tasks = seen(done.stdout)
    assert set(tasks) == {"0", "1"}
    assert all(tasks.values())
    if bind.startswith("map_gpu") and not narrowed.cluster.constrain:
        assert tasks == {"0": "2", "1": "3"}
        assert "nvhc: " in done.stdout, "a task that keeps the bad GPU is told so"


# ---- decided in the prolog


def test_four_nodes_each_with_its_own_list(start) -> None:
    site = start(Site(ANY_JOB, nodes=4, narrowing=True))
    exclude(site, gpu=6, node="n3")
    for launch in ("srun", "sbatch"):
        if launch == "srun":
            output = site.cluster.srun("-N4", "--gres=gpu:8", "sh", "-c", SHOW).stdout
        else:
            job = site.cluster.sbatch(f"srun sh -c '{SHOW}'", "-N4", "--gres=gpu:8")
            site.cluster.wait_job(job, "COMPLETED")
            output = site.cluster.output(job)
        by_node = dict((node, devices) for devices, node in re.findall(r"^task \d \[(.*)\] (n\d)", output, re.M))
        everything = "0,1,2,3,4,5,6,7"
        assert by_node == {"n1": everything, "n2": everything, "n3": "0,1,2,3,4,5,7", "n4": everything}


def test_too_few_left_is_decided_in_the_prolog(start) -> None:
    site = start(Site(NARROW_RULES, narrowing=True))
    exclude(site, gpu=0)
    done = site.cluster.srun("--gres=gpu:1", "sh", "-c", SHOW, check=False)  # would get just GPU 0
    assert done.returncode != 0
    assert "task" not in seen(done.stdout)
    node = site.cluster.wait_node("drained")
    assert node.reason.startswith("nvhc: GPU-EXCLUDED gpu0 ")


def test_exclusive_without_gres_is_told_that_nothing_is_hidden(start) -> None:
    """The hooks see all GPUs as the job's; its tasks get no GPU variable, and so see them all too."""
    site = start(Site(ANY_JOB, narrowing=True))
    exclude(site)
    done = site.cluster.srun("--exclusive", "-n1", "sh", "-c", SHOW)
    assert seen(done.stdout) == {"0": ""}
    assert "nvhc: nothing can be hidden because CUDA_VISIBLE_DEVICES is not set" in done.stdout


def test_job_of_several_tasks_is_not_narrowed_by_default(start) -> None:
    site = start(Site(NARROW_RULES, narrowing=True))
    exclude(site)
    assert seen(site.cluster.srun("-n1", "--gres=gpu:8", "sh", "-c", SHOW).stdout) == {"0": "0,1,3,4,5,6,7"}
    done = site.cluster.srun("-n2", "--gres=gpu:8", "sh", "-c", SHOW, check=False)
    assert seen(done.stdout) == {}
    assert site.cluster.wait_node("drained").reason.startswith("nvhc: GPU-EXCLUDED gpu2 ")


def test_without_the_opt_in_the_node_is_drained(start) -> None:
    site = start(Site(NARROW_RULES.replace("narrow: {enabled: true}\n", ""), narrowing=True))
    job = Held(site.cluster, "--gres=gpu:8").wait_started()
    site.storm(gpu=2)
    job.finish()
    assert site.cluster.wait_node("drained").reason.startswith("nvhc: NVL-STORM gpu2 ")
