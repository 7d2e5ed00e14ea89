"""What a scenario starts with: the node's and Slurm's sections."""

from __future__ import annotations

from typing import Annotated, Dict, List, Literal, Optional, Union

import msgspec
from msgspec import UNSET, Meta, UnsetType

from slurm_nvhc.scenario.words import Duration, Environment, Gpu, Moment, Readings, Strict

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
    mig: Optional[bool] = None


class LogLine(Strict):
    """A kernel log line, verbatim, and when it was written."""

    text: str
    at: Moment = 0


class EngineXid(Strict):
    """An Xid that only the DCGM engine's event stream shows (field 230 with its own time)."""

    gpu: Gpu
    code: int
    at: Moment = 0


class Incident(Strict):
    """A complaint of DCGM's own health check (policy: engine.health). It stays until the engine forgets.

    system: pcie, nvlink, memory, thermal, power, …; code: DCGM_FR_ number; gpu: left out, about the node.
    """

    system: str
    code: int
    result: Literal["warn", "fail"]
    text: str = ""
    gpu: Union[Gpu, UnsetType] = UNSET


class DiagResult(Strict):
    """What one test of DCGM's diagnostic says from now on, of a GPU ("*": of each) or, left out, of the node. pass takes it away.

    test: software, memory, pcie, …; error: DCGM_FR_ number; text, severity: left out, as the number says.
    """

    test: str
    result: Literal["pass", "warn", "fail", "skip", "not_run"]
    gpu: Union[Gpu, UnsetType] = UNSET
    error: Union[int, UnsetType] = UNSET
    text: str = ""
    severity: str = ""


DiagBehaviour = Literal["ok", "hangs", "stubborn", "absent", "crashes", "running"]


class DiagPlan(Strict):
    """How diagnostics go from now on; one that runs has ended.

    behaviour: hangs (never ends, but stops when asked), stubborn (does not stop either), absent (no nvvs is installed), crashes,
    running (somebody else's runs now). seconds: each takes this long, left out: as usual. output, exit: dcgmi's text and exit
    status, played instead of an answer of the node's own. real_seconds: it takes this much real time too.
    """

    behaviour: DiagBehaviour = "ok"
    seconds: Union[Duration, UnsetType] = UNSET
    output: Union[str, UnsetType] = UNSET
    exit: int = 0
    real_seconds: float = 0.0


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
    incidents: List[Incident] = []
    pci: Dict[str, PciWord] = {}
    engine: EngineWord = "ok"
    engine_version: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", description="DCGM's version.")] = "4.6.0"
    diag_results: List[DiagResult] = []
    diag_plan: DiagPlan = msgspec.field(default_factory=DiagPlan)


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


class OtherNode(Strict, kw_only=True):
    """Another node of the partition, as the played sinfo shows it. ago: since when it is so, before the first step."""

    node: str
    state: str = "IDLE+DRAIN"
    reason: str
    user: str = "root"
    ago: Duration = "5m"


SinfoWord = Literal["ok", "missing", "fails"]


class Slurm(Strict):
    """The played Slurm. gres: text of gres.conf; left out, one File list over all GPUs of the node.

    partition_nodes: how many the partition has; others: those of them, beside the node itself, that are not just idle.
    """

    version: Literal["22.05", "24.11"] = "24.11"
    partition: str = "gpu"
    gres: Union[str, UnsetType] = UNSET
    constrain_devices: bool = False
    environment: Environment = {}
    node: SlurmNode = msgspec.field(default_factory=SlurmNode)
    scontrol: ScontrolWord = "ok"
    sinfo: SinfoWord = "ok"
    partition_nodes: int = 1
    others: List[OtherNode] = []
