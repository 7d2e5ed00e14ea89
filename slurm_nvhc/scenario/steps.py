"""What can happen in a scenario: one structure per step, and ``Step``, which has exactly one of them."""

from __future__ import annotations

from typing import List, Literal, Union

import msgspec
from msgspec import UNSET, UnsetType

from slurm_nvhc.scenario.setting import (
    DiagPlan,
    DiagResult,
    EngineWord,
    EngineXid,
    Incident,
    LogLine,
    PciWord,
    ScontrolWord,
    SinfoWord,
    SlurmNode,
)
from slurm_nvhc.scenario.words import Amounts, Duration, Environment, Gpu, JobId, Link, PolicyText, Readings, Strict


class HookStep(Strict):
    """What every hook step may say.

    as: a name for this run, for ``after`` in expect. cwd: deleted = a directory that is gone.
    terminate_after: seconds of real time until slurmd sends SIGTERM; "diagnostic": once the engine runs one.
    """

    label: str = msgspec.field(default="", name="as")
    environment: Environment = {}
    cwd: Literal["log", "deleted", "root"] = "log"
    stdin: Literal["null", "closed"] = "null"
    terminate_after: Union[float, Literal["diagnostic"], None] = None


class JobStep(HookStep, kw_only=True):
    """Prolog or epilog of a job. What is left out is taken from the job's earlier step, else from the defaults.

    gpus: positions in gres.conf's File list ([0, 1]), "all", the text of SLURM_JOB_GPUS, or [] for a job
    without GPUs; default all. exclusive: whole node without asking for GPUs, so tasks see no GPU variable.
    batch: has a batch script; requeue: Slurm may run it again; comment, constraint: as its user gave them.
    """

    job: JobId
    gpus: Union[List[int], str, UnsetType] = UNSET
    cuda_visible_devices: Union[str, UnsetType] = UNSET
    user: Union[str, UnsetType] = UNSET
    uid: Union[int, UnsetType] = UNSET
    partition: Union[str, UnsetType] = UNSET
    nodes: Union[int, UnsetType] = UNSET
    tasks: Union[int, UnsetType] = UNSET
    exclusive: Union[bool, UnsetType] = UNSET
    exit_code: Union[int, UnsetType] = UNSET
    batch: Union[bool, UnsetType] = UNSET
    requeue: Union[bool, UnsetType] = UNSET
    comment: Union[str, UnsetType] = UNSET
    constraint: Union[str, UnsetType] = UNSET


class TaskStep(HookStep, kw_only=True):
    """Task prolog of one task. launch: batch (the script) or step (srun).

    gpus: the positions that this task was bound to; default the job's.
    cuda_visible_devices: default as Slurm makes it: positions, or 0, 1, … under ConstrainDevices.
    """

    job: JobId
    launch: Literal["batch", "step"] = "batch"
    gpus: Union[List[int], UnsetType] = UNSET
    cuda_visible_devices: Union[str, UnsetType] = UNSET


class Storm(Strict, kw_only=True):
    """``amount`` errors on one link within ``over``."""

    link: Link
    counter: str = "replay"
    amount: int
    over: Duration


class SlowBurn(Strict, kw_only=True):
    """``per_hour`` errors each hour on one link for ``over``."""

    link: Link
    counter: str = "replay"
    per_hour: float
    over: Duration


class Reboot(Strict):
    """down: how long the node is away."""

    down: Duration = "5m"


class Lose(Strict):
    """A GPU stops answering ("*": all). pci: what the bus shows. engine_lists: the engine still lists it, as lost."""

    gpu: Gpu
    pci: PciWord = "dead"
    engine_lists: bool = False


class Part(Strict):
    """A part of the node beside its GPUs vanishes or is back: rdma3.port1, or switch0 with its ports; * for all."""

    part: str
    shows: Literal["present", "absent"] = "absent"


class Swap(Strict):
    """Another card in the same slot."""

    gpu: Gpu
    uuid: str
    serial: str = ""


class Xid(Strict):
    """The driver logs an Xid now: a kernel log line and the engine's event."""

    gpu: Gpu
    code: int
    text: str = ""
    pid: int = 0
    process: str = ""


class Sxid(Strict):
    """An NVSwitch error as the driver logs it. switch: its number on the node, from 0."""

    switch: int
    code: int
    fatal: bool = False
    link: int = 0
    text: str = ""


class Unreadable(Strict):
    """Something of the node can not be read from now on; an empty reason makes it readable again."""

    part: Literal["clock", "kernel_log", "pci"]
    reason: str = "Permission denied"


class Throttle(Strict):
    """A GPU is slowed down during ``share`` (10%) of ``over``. reason: power, thermal, hw_thermal or power_brake."""

    gpu: Gpu
    reason: str
    share: str
    over: Duration


class Traffic(Strict):
    """A GPU ("*": all) sends and receives this much over NVLink from now on, MB/s each way; 0 ends it."""

    gpu: Gpu
    mb_per_s: float


class Fault(Strict):
    """A fault that shows itself only under load: sense/sim/faults.py. Left out: five errors a second of replay and CRC, always."""

    kind: Literal["link", "connector", "gpu", "switch", "pair"]
    at: str
    shows: Union[Literal["counters", "command", "both"], UnsetType] = UNSET
    per_second: Union[float, UnsetType] = UNSET
    per_gb: Union[float, UnsetType] = UNSET
    counters: Union[List[str], UnsetType] = UNSET
    share: float = 1.0


class AdminDrain(Strict):
    """An administrator drains the node."""

    reason: str
    user: str = "root"


class Empty(Strict):
    """Nothing more to say: write {}."""


Broken = Literal["delete", "corrupt"]


class Break(Strict):
    """Something of ours is deleted or overwritten with rubbish.

    state: the whole state directory; ledger: the database and its mirror stays; interpreter: Python.
    """

    policy: Union[Broken, UnsetType] = UNSET
    state: Union[Literal["delete"], UnsetType] = UNSET
    ledger: Union[Broken, UnsetType] = UNSET
    interpreter: Union[Literal["delete"], UnsetType] = UNSET


class Happening(Strict):
    """What can be done to the node at one moment; as steps they have these names too."""

    set: Union[Readings, UnsetType] = UNSET
    add: Union[Amounts, UnsetType] = UNSET
    traffic: Union[Traffic, UnsetType] = UNSET
    fault: Union[Fault, Literal["none"], UnsetType] = UNSET
    gpu_reset: Union[Gpu, UnsetType] = UNSET
    driver_reload: Union[Empty, UnsetType] = UNSET
    lose: Union[Lose, Gpu, UnsetType] = UNSET
    restore: Union[Gpu, UnsetType] = UNSET
    part: Union[Part, UnsetType] = UNSET
    swap: Union[Swap, UnsetType] = UNSET
    xid: Union[Xid, UnsetType] = UNSET
    engine_xid: Union[EngineXid, UnsetType] = UNSET
    incident: Union[Incident, UnsetType] = UNSET
    sxid: Union[Sxid, UnsetType] = UNSET
    kernel_log: Union[List[Union[LogLine, str]], LogLine, str, UnsetType] = UNSET
    unreadable: Union[Unreadable, UnsetType] = UNSET
    engine: Union[EngineWord, UnsetType] = UNSET
    diag_result: Union[List[DiagResult], DiagResult, UnsetType] = UNSET
    diag_plan: Union[DiagPlan, UnsetType] = UNSET


class Scheduled(Happening, kw_only=True):
    """What happens ``after`` a time, also in the middle of a hook's own waiting; several keys happen in this order."""

    after: Duration


class Step(Happening):
    """Exactly one key."""

    prolog: Union[JobStep, UnsetType] = UNSET
    epilog: Union[JobStep, UnsetType] = UNSET
    health_check: Union[HookStep, UnsetType] = UNSET
    task_prolog: Union[TaskStep, UnsetType] = UNSET
    wait: Union[Duration, UnsetType] = UNSET
    storm: Union[Storm, UnsetType] = UNSET
    slow_burn: Union[SlowBurn, UnsetType] = UNSET
    reboot: Union[Reboot, UnsetType] = UNSET
    throttle: Union[Throttle, UnsetType] = UNSET
    schedule: Union[Scheduled, UnsetType] = UNSET
    scontrol: Union[ScontrolWord, UnsetType] = UNSET
    sinfo: Union[SinfoWord, UnsetType] = UNSET
    other_resumed: Union[str, UnsetType] = UNSET
    admin_drain: Union[AdminDrain, UnsetType] = UNSET
    admin_resume: Union[Empty, UnsetType] = UNSET
    node_state: Union[SlurmNode, UnsetType] = UNSET
    policy: Union[PolicyText, UnsetType] = UNSET
    kill_switch: Union[Literal["on", "off"], UnsetType] = UNSET
    break_: Union[Break, UnsetType] = msgspec.field(default=UNSET, name="break")
