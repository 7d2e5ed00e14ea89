"""The environment that Slurm gives each hook, and what it makes of a task prolog's output. Pure.

Which hook gets which variable was observed on 22.05 and 24.11: no PATH, HOME or LANG for
hooks run by slurmd, SLURMD_NODENAME alone for the health check, GPU variables only for jobs
with GPUs, and positions in gres.conf's File list as their numbers.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from msgspec import UNSET, UnsetType

from slurm_nvhc.scenario.steps import JobStep, TaskStep

GPU_LISTS = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
CONTEXTS = {"prolog": "prolog_slurmd", "epilog": "epilog_slurmd", "task_prolog": "prolog_task"}


class JobValues(NamedTuple):
    """A job as the scenario has described it so far. gpus: text of SLURM_JOB_GPUS, '' for a job without GPUs."""

    job: str
    gpus: str
    visible: str
    user: str = "alice"
    uid: int = 1001
    partition: str = "gpu"
    nodes: int = 1
    tasks: int = 1
    exclusive: bool = False
    exit_code: int = 0
    batch: bool = True
    requeue: bool = True
    comment: str = ""
    constraint: str = ""


def _given(value: object, otherwise: object) -> object:
    return otherwise if isinstance(value, UnsetType) else value


def positions_text(gpus: Union[List[int], str, UnsetType], on_node: int) -> str:
    """SLURM_JOB_GPUS for what a step says about GPUs; "all" and left out mean every position of the node."""
    if isinstance(gpus, UnsetType) or gpus == "all":
        return ",".join(str(n) for n in range(on_node))
    return gpus if isinstance(gpus, str) else ",".join(str(n) for n in gpus)


def _expanded(text: str) -> List[str]:
    """'0-2,4' as its numbers; parts that are no range stay as they are."""
    out: List[str] = []
    for part in text.split(","):
        first, sep, last = part.partition("-")
        whole = sep and first.isdigit() and last.isdigit()
        out += [str(n) for n in range(int(first), int(last) + 1)] if whole else [part]
    return out


def job_values(step: JobStep, earlier: Optional[JobValues], partition: str, on_node: int) -> JobValues:
    """What is left out of a step comes from the job's earlier step, else from the defaults."""
    known = earlier or JobValues(str(step.job), positions_text(UNSET, on_node), "", partition=partition)
    gpus = known.gpus if step.gpus is UNSET else positions_text(step.gpus, on_node)
    same_gpus = earlier is not None and gpus == earlier.gpus
    visible = _given(step.cuda_visible_devices, known.visible if same_gpus else gpus)
    fields = {name: _given(getattr(step, name), getattr(known, name)) for name in known._fields[3:]}
    return known._replace(gpus=gpus, visible=str(visible), **fields)  # type: ignore[arg-type]


def slurmd_hook(kind: str, job: JobValues, node: str, conf: str) -> Dict[str, str]:
    """Prolog and epilog: run by slurmd as root."""
    env = {
        "SLURM_CLUSTER_NAME": "replay",
        "SLURM_CONF": conf,
        "SLURMD_NODENAME": node,
        "SLURM_JOB_ID": job.job,
        "SLURM_JOBID": job.job,
        "SLURM_JOB_UID": str(job.uid),
        "SLURM_UID": str(job.uid),
        "SLURM_JOB_GID": str(job.uid),
        "SLURM_JOB_USER": job.user,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_JOB_NUM_NODES": str(job.nodes),
        "SLURM_JOB_NTASKS": str(job.tasks),
        "SLURM_JOB_CPUS_PER_NODE": "64",
        "SLURM_NODELIST": node,
        "SLURM_JOB_RESTART_COUNT": "0",
        "SLURM_JOB_WORK_DIR": "/",
        "SLURM_JOB_STDIN": "/dev/null",
        "SLURM_JOB_STDOUT": f"/slurm-{job.job}.out",
        "SLURM_SCRIPT_CONTEXT": CONTEXTS[kind],
    }
    if job.gpus:
        env["SLURM_JOB_GPUS"] = job.gpus
        env.update(dict.fromkeys(GPU_LISTS, job.visible))
    if job.comment:
        env["SLURM_JOB_COMMENT"] = job.comment
    if job.constraint:
        env["SLURM_JOB_CONSTRAINTS"] = job.constraint
    if kind == "epilog":
        code = job.exit_code  # a wait status: exit 3 is 768, SIGKILL is 9
        env.update(SLURM_JOB_EXIT_CODE=str(code), SLURM_JOB_EXIT_CODE2=f"{code >> 8}:{code & 127}", SLURM_JOB_DERIVED_EC="0")
    return env


def health_check(node: str) -> Dict[str, str]:
    """SLURMD_NODENAME is the only variable that slurmd sets for HealthCheckProgram."""
    return {"SLURMD_NODENAME": node}


def task(step: TaskStep, job: JobValues, node: str, conf: str, constrained: bool) -> Dict[str, str]:
    """Task prolog: runs as the user, with the user's environment, once per task."""
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": f"/home/{job.user}",
        "USER": job.user,
        "SLURM_CONF": conf,
        "SLURMD_NODENAME": node,
        "SLURM_JOB_ID": job.job,
        "SLURM_JOBID": job.job,
        "SLURM_JOB_UID": str(job.uid),
        "SLURM_JOB_USER": job.user,
        "SLURM_JOB_PARTITION": job.partition,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_SCRIPT_CONTEXT": CONTEXTS["task_prolog"],
    }
    if not job.gpus or job.exclusive:
        # --exclusive without --gres: the prolog sees all GPUs, tasks see no GPU variable.
        return env
    positions = _expanded(job.gpus) if isinstance(step.gpus, UnsetType) else [str(n) for n in step.gpus]
    given_by_user = job.visible if job.visible != job.gpus and isinstance(step.gpus, UnsetType) else None
    numbers = [str(n) for n in range(len(positions))] if constrained else positions
    visible = _given(step.cuda_visible_devices, given_by_user or ",".join(numbers))
    env["SLURM_STEP_GPUS" if step.launch == "step" else "SLURM_JOB_GPUS"] = ",".join(positions)
    env["SLURM_GPUS_ON_NODE"] = str(len(positions))
    env.update(dict.fromkeys(GPU_LISTS, str(visible)))
    return env


def apply_extra(env: Dict[str, str], extras: Sequence[Mapping[str, Optional[str]]]) -> Dict[str, str]:
    """The scenario's own variables on top; null takes one away."""
    out = dict(env)
    for extra in extras:
        for name, value in extra.items():
            if value is None:
                out.pop(name, None)
            else:
                out[name] = value
    return out


def after_task_prolog(env: Mapping[str, str], output: str) -> Tuple[Dict[str, str], Tuple[str, ...], Tuple[str, ...]]:
    """(environment, unset names, printed lines): slurmstepd takes export K=V (literally), unset K, print TEXT."""
    out, unset, prints = dict(env), [], []
    for line in output.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "export" and "=" in rest:
            name, _, value = rest.partition("=")
            out[name.strip()] = value
        elif word == "unset":
            out.pop(rest.strip(), None)
            unset.append(rest.strip())
        elif word == "print":
            prints.append(rest)
    return out, tuple(unset), tuple(prints)
