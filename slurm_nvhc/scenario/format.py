"""What a scenario file may say. The JSON Schema in docs/ is made from these types.

Units: durations are text such as ``41m`` or ``1h30m``, or seconds as a number. GPUs
are named g0, g1, … in NVML order of the node as it was at the start; a name stays
with its slot when a card is swapped.
"""

from __future__ import annotations

from typing import Annotated, Any, Dict, List, Literal, Optional, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

SCHEMA = 1

Duration = Annotated[
    Union[str, int, float],
    Meta(description="A duration such as 90s, 41m, 1h30m or 10d; a bare number is seconds.", examples=["41m", "1h30m", 90]),
]
Moment = Annotated[
    Union[str, int, float],
    Meta(description="A moment relative to now: -2h is two hours ago, 0 is now.", examples=["-2h", "-90s", 0]),
]
Gpu = Annotated[str, Meta(description="A GPU: g0, g1, … in NVML order of the node as it was at the start.", examples=["g3"])]
Link = Annotated[str, Meta(description="One NVLink of one GPU: g3.link11.", examples=["g3.link11"])]
Value = Annotated[
    Union[int, float, str],
    Meta(
        description="A number, a state word (up, down, …), or a kind of no data:"
        " blank, not_found, not_supported, not_permitted, stale, error.",
        examples=[57, "down", "blank"],
    ),
]
Readings = Annotated[
    Dict[str, Value],
    Meta(
        description="Target to value. A target is gN.FIELD, gN.linkM.FIELD, *.FIELD or gN.link*.FIELD;"
        " FIELD is a catalogue name or a DCGM field id. On links the prefix nvlink_ may be left out.",
        examples=[{"g3.429": 12, "g3.link11.replay": 12, "*.395": "blank"}],
    ),
]
Amounts = Annotated[
    Dict[str, Union[int, float]],
    Meta(
        description="Target to what is added. Adding to a link counter also adds to its GPU's total.",
        examples=[{"g3.link11.replay": 20}],
    ),
]
JobId = Annotated[Union[int, str], Meta(description="Slurm's job id.", examples=[8812])]
PolicyText = Annotated[
    Union[Dict[str, Any], str],
    Meta(description="What the administrator wrote in policy.yaml: as a mapping, or as its raw text, which may be broken."),
]
Environment = Annotated[
    Dict[str, Optional[str]],
    Meta(description="Variables added to what Slurm gives; null takes one away."),
]


class Strict(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are errors everywhere: a misspelt key must never be read as "not asked"."""


# --- node -------------------------------------------------------------------------------------


class Identity(Strict):
    """What the sources say a GPU is. Everything left out stays as the preset has it."""

    minor: Optional[int] = None
    nvml_index: Optional[int] = None
    dcgm_id: Optional[int] = None
    uuid: Optional[str] = None
    pci: Optional[str] = None
    serial: Optional[str] = None
    slot: Optional[str] = None
    model: Optional[str] = None


class LogLine(Strict):
    """A kernel log line, verbatim, and when it was written."""

    text: str
    at: Moment = 0


class EngineXid(Strict):
    """An Xid that only the DCGM engine's event stream shows (field 230 with its own time)."""

    gpu: Gpu
    code: int
    at: Moment = 0


EngineBehaviour = Literal["ok", "absent", "hung", "slow", "lying", "crash", "empty"]


class Engine(Strict):
    """How nv-hostengine behaves.

    seconds: slow only, how long an answer takes; kind: lying only, what is wrong with the
    answers; after: hung and crash, the last part of the reply that still comes (clock, kernel_log,
    pci, engine, gpus); signal: crash only, what ends the process.
    """

    behaviour: EngineBehaviour
    seconds: Union[float, UnsetType] = UNSET
    kind: Union[str, UnsetType] = UNSET
    after: Union[str, UnsetType] = UNSET
    signal: Union[str, UnsetType] = UNSET


EngineWord = Union[Engine, EngineBehaviour]
PciWord = Annotated[
    Literal["ok", "dead", "absent"],
    Meta(description="ok: on the bus and answering; dead: config space reads all ones; absent: not on the bus."),
]


class Node(Strict):
    """All that the simulated node may see."""

    preset: str = "hgx-h100-8"
    name: str = "n1"
    gpus: Optional[int] = None
    uptime: Optional[Duration] = None
    identities: Dict[str, Identity] = {}
    readings: Readings = {}
    kernel_log: List[Union[LogLine, str]] = []
    engine_xids: List[EngineXid] = []
    pci: Dict[str, PciWord] = {}
    engine: EngineWord = "ok"


# --- slurm ------------------------------------------------------------------------------------

ScontrolBehaviour = Literal["ok", "missing", "fails", "refuses", "down", "hangs", "slow", "applies_then_times_out", "applies_then_hangs"]


class Scontrol(Strict):
    """How the scontrol command behaves; seconds: slow only."""

    behaviour: ScontrolBehaviour
    seconds: Union[float, UnsetType] = UNSET


ScontrolWord = Union[Scontrol, ScontrolBehaviour]


class SlurmNode(Strict):
    """The node in Slurm at the start. state as scontrol shows it: IDLE, IDLE+DRAIN, DOWN, …"""

    state: str = "IDLE"
    reason: str = ""
    user: str = "root"


class Slurm(Strict):
    """The played Slurm. gres: text of gres.conf; left out, one File list over all GPUs of the node."""

    version: Literal["22.05", "24.11"] = "24.11"
    partition: str = "gpu"
    gres: Union[str, UnsetType] = UNSET
    constrain_devices: bool = False
    environment: Environment = {}
    node: SlurmNode = msgspec.field(default_factory=SlurmNode)
    scontrol: ScontrolWord = "ok"


# --- steps ------------------------------------------------------------------------------------


class HookStep(Strict):
    """What every hook step may say.

    as: a name for this run, for ``after`` in expect. cwd: deleted = a directory that is gone.
    terminate_after: seconds of real time until slurmd sends SIGTERM.
    """

    label: str = msgspec.field(default="", name="as")
    environment: Environment = {}
    cwd: Literal["log", "deleted", "root"] = "log"
    stdin: Literal["null", "closed"] = "null"
    terminate_after: Optional[float] = None


class JobStep(HookStep, kw_only=True):
    """Prolog or epilog of a job. What is left out is taken from the job's earlier step, else from the defaults.

    gpus: positions in gres.conf's File list ([0, 1]), "all", the text of SLURM_JOB_GPUS, or [] for a job
    without GPUs; default all. exclusive: whole node without asking for GPUs, so tasks see no GPU variable.
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


class Scheduled(Strict):
    """World changes that happen ``after`` a time, also in the middle of a hook's own waiting."""

    after: Duration
    set: Readings = {}
    add: Amounts = {}


class Step(Strict):
    """Exactly one key."""

    prolog: Union[JobStep, UnsetType] = UNSET
    epilog: Union[JobStep, UnsetType] = UNSET
    health_check: Union[HookStep, UnsetType] = UNSET
    task_prolog: Union[TaskStep, UnsetType] = UNSET
    wait: Union[Duration, UnsetType] = UNSET
    set: Union[Readings, UnsetType] = UNSET
    add: Union[Amounts, UnsetType] = UNSET
    storm: Union[Storm, UnsetType] = UNSET
    slow_burn: Union[SlowBurn, UnsetType] = UNSET
    gpu_reset: Union[Gpu, UnsetType] = UNSET
    driver_reload: Union[Empty, UnsetType] = UNSET
    reboot: Union[Reboot, UnsetType] = UNSET
    lose: Union[Lose, Gpu, UnsetType] = UNSET
    restore: Union[Gpu, UnsetType] = UNSET
    swap: Union[Swap, UnsetType] = UNSET
    xid: Union[Xid, UnsetType] = UNSET
    engine_xid: Union[EngineXid, UnsetType] = UNSET
    sxid: Union[Sxid, UnsetType] = UNSET
    kernel_log: Union[List[Union[LogLine, str]], LogLine, str, UnsetType] = UNSET
    unreadable: Union[Unreadable, UnsetType] = UNSET
    throttle: Union[Throttle, UnsetType] = UNSET
    engine: Union[EngineWord, UnsetType] = UNSET
    schedule: Union[Scheduled, UnsetType] = UNSET
    scontrol: Union[ScontrolWord, UnsetType] = UNSET
    admin_drain: Union[AdminDrain, UnsetType] = UNSET
    admin_resume: Union[Empty, UnsetType] = UNSET
    node_state: Union[SlurmNode, UnsetType] = UNSET
    policy: Union[PolicyText, UnsetType] = UNSET
    kill_switch: Union[Literal["on", "off"], UnsetType] = UNSET
    break_: Union[Break, UnsetType] = msgspec.field(default=UNSET, name="break")


# --- expect -----------------------------------------------------------------------------------

VerdictWord = Literal["ok", "unknown", "warn", "fail"]
ActionWord = Literal[
    "none", "note", "notify", "keep",
    "drain", "extend", "own", "intent", "exclude", "narrow", "fail_job", "resume",
    "end_intent", "end_own", "accept",
]  # fmt: skip


class FindingMatch(Strict):
    """A finding that fits everything said here. Numbers in evidence are compared as numbers.

    gpu: g3; link: with gpu; entity: node, monitor:engine, … where gpu does not fit; amount_below and
    amount_at_least bound the amount; message: words that its message holds.
    """

    code: Optional[str] = None
    gpu: Optional[Gpu] = None
    link: Optional[int] = None
    entity: Optional[str] = None
    verdict: Optional[VerdictWord] = None
    mode: Optional[Literal["enforce", "observe"]] = None
    field: Optional[str] = None
    before: Union[Value, UnsetType] = UNSET
    after: Union[Value, UnsetType] = UNSET
    amount: Optional[float] = None
    amount_at_least: Optional[float] = None
    amount_below: Optional[float] = None
    bound: Optional[Literal["exact", "at_least", "unknown"]] = None
    rule: Optional[str] = None
    message: Optional[str] = None
    count: Optional[int] = None


OneOrMore = Union[FindingMatch, List[FindingMatch]]
Words = Union[str, List[str]]


class NodeExpect(Strict):
    """state: idle, mixed, allocated, drained, draining, down; drain = drained or draining; up = not out of service.

    reason: the whole text; reason_contains / reason_lacks: parts of it.
    """

    state: Union[Literal["idle", "mixed", "allocated", "drained", "draining", "drain", "down", "up"], UnsetType] = UNSET
    reason: Union[str, UnsetType] = UNSET
    reason_contains: Union[Words, UnsetType] = UNSET
    reason_lacks: Union[Words, UnsetType] = UNSET
    user: Union[str, UnsetType] = UNSET


class Expect(Strict):
    """What must hold after one hook run. What is not mentioned is not checked.

    after: a label, "epilog" (the last one) or "epilog#2" (the second); left out: the last hook run.
    exit: the launcher's status, as slurmd sees it. within: real time of the hook.
    monitor: finding codes of class monitor that must be there; [] = none at all.
    action / no_action: steps that were (not) carried out; none = nothing was done to Slurm, a GPU or a job.
    intents: actions waiting for Slurm. excluded: GPUs kept from later jobs.
    """

    after: str = ""
    verdict: Union[VerdictWord, UnsetType] = UNSET
    exit: Union[int, UnsetType] = UNSET
    within: Union[Duration, UnsetType] = UNSET
    finding: Union[OneOrMore, UnsetType] = UNSET
    no_finding: Union[OneOrMore, UnsetType] = UNSET
    monitor: Union[Words, UnsetType] = UNSET
    action: Union[ActionWord, List[ActionWord], UnsetType] = UNSET
    no_action: Union[ActionWord, List[ActionWord], UnsetType] = UNSET
    gpus: Union[Dict[str, VerdictWord], UnsetType] = UNSET
    node: Union[NodeExpect, UnsetType] = UNSET
    intents: Union[int, UnsetType] = UNSET
    excluded: Union[List[str], UnsetType] = UNSET
    scontrol_calls: Union[int, UnsetType] = UNSET
    left_processes: Union[int, UnsetType] = UNSET
    task_env: Union[Dict[str, str], UnsetType] = UNSET
    task_unset: Union[Words, UnsetType] = UNSET
    task_print: Union[Words, UnsetType] = UNSET


class Scenario(Strict, kw_only=True):
    """One scenario file."""

    schema: Literal[1]
    name: str
    report: str = ""
    description: str = ""
    node: Node = msgspec.field(default_factory=Node)
    slurm: Slurm = msgspec.field(default_factory=Slurm)
    policy: Union[PolicyText, UnsetType] = UNSET
    steps: List[Step]
    expect: List[Expect]


def json_schema() -> Dict[str, Any]:
    """JSON Schema (2020-12) of a scenario file, for editors and other tools."""
    schema = msgspec.json.schema(Scenario)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "slurm-nvhc scenario, schema 1", **schema}
