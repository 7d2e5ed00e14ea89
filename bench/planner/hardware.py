"""The GPUs of one node, what is wrong with them, and what judge says about it. The truth is here; hooks see ``look``."""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Optional

from slurm_nvhc.judge.context import Judgement
from slurm_nvhc.judge.decide import decide
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.policy.compiled import Policy

GPUS: Final = 4

STANDING: Final = "standing"  # every reading shows it
GROWTH: Final = "growth"  # a counter grows while a job uses the GPU: its epilog sees it
EVENT: Final = "event"  # the driver logged it; open until a reboot, or until somebody settles it

# code -> (kind, what ends it beside a swap of the card, class)
FAULTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "MEM-REMAP-FAILED": (STANDING, "swap", "gpu"),
    "MEM-REMAP-PENDING": (STANDING, "reset", "gpu"),
    "GPU-LOST": (STANDING, "reboot", "gpu"),
    "GPU-RECOVERY": (STANDING, "reboot", "gpu"),
    "NVL-STORM": (GROWTH, "reset", "link"),
    "NVL-RECOVERY": (GROWTH, "reset", "link"),
    "XID-FATAL": (EVENT, "reboot", "gpu"),
    "XID-NVLINK": (EVENT, "reboot", "gpu"),
}
# Kinds of faults that judge calls hardware, with the action that the packaged rule asks for.
_ALONE: Final = ("MEM-REMAP-FAILED", "MEM-REMAP-PENDING", "NVL-STORM", "NVL-RECOVERY")
ACTIONS: Final = {code: fd.NARROW if code in _ALONE else fd.DRAIN for code in FAULTS}


class Fault(NamedTuple):
    """at_ns: when it began; an event's moment."""

    code: str
    uuid: str
    at_ns: int

    @property
    def kind(self) -> str:
        return FAULTS[self.code][0]

    @property
    def entity(self) -> str:
        return f"{self.uuid}/link5" if FAULTS[self.code][2] == "link" else self.uuid

    @property
    def key(self) -> str:
        return f"{self.code} {self.entity}"

    @property
    def ident(self) -> str:
        return settled.ident(self.uuid, 79 if self.code == "XID-FATAL" else 74, self.at_ns)


class Hardware:
    """engine: does the engine answer? cards: which GPU sits in which slot; quiet: slots whose GPU gives no data."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cards = list(range(GPUS))
        self.made = GPUS
        self.faults: list[Fault] = []
        self.engine = True
        self.quiet: set[int] = set()

    def uuid(self, slot: int) -> str:
        return f"GPU-{self.cards[slot]:08x}-{self.name:0>4}-2222-3333-444444444444"

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(self.uuid(n) for n in range(GPUS))

    def slot(self, uuid: str) -> Optional[int]:
        return next((n for n in range(GPUS) if self.uuid(n) == uuid), None)

    def breaks(self, code: str, slot: int, now_ns: int) -> None:
        fault = Fault(code, self.uuid(slot), now_ns)
        same = [f for f in self.faults if f.key == fault.key]
        if not same or fault.kind == EVENT:
            self.faults = [f for f in self.faults if f not in same] + [fault]

    def reset(self, slot: int) -> None:
        """Of one GPU."""
        self.faults = [f for f in self.faults if f.uuid != self.uuid(slot) or FAULTS[f.code][1] != "reset"]

    def boots(self) -> None:
        """A lost GPU comes back half of the time: those in even slots do."""
        stays = [f for f in self.faults if f.code == "GPU-LOST" and (self.slot(f.uuid) or 0) % 2]
        self.faults = [f for f in self.faults if FAULTS[f.code][1] not in ("reset", "reboot") or f in stays]
        self.engine = True
        self.quiet.clear()

    def swap(self, slot: int) -> None:
        self.faults = [f for f in self.faults if f.uuid != self.uuid(slot)]
        self.cards[slot], self.made = self.made, self.made + 1
        self.quiet.discard(slot)

    def readable(self, fault: Fault) -> bool:
        slot = self.slot(fault.uuid)
        return self.engine and slot is not None and (slot not in self.quiet or fault.kind == EVENT)

    def mapping(self, positions: tuple[int, ...]) -> GpuMapping:
        return GpuMapping(tuple(self.uuid(n) for n in positions), dict(enumerate(self.uuids)), True, (), "gres.conf")

    def look(self, policy: Policy, hook: str, job: Optional[tuple[int, ...]], known: frozenset[str], done: tuple[str, ...]) -> Judgement:
        """What judge would say. known: standing faults and growth are seen by the job's hooks; done: settled events."""
        table = settled.table(done)
        findings = []
        for fault in self.faults:
            rule = policy.rules[fault.code]
            slot = self.slot(fault.uuid)
            if rule.mode == fd.OFF or slot is None or not self.readable(fault):
                continue
            of_job = job is not None and slot in job
            if fault.kind == GROWTH and not (hook == "epilog" and of_job):
                continue
            if job is not None and not of_job and fault.kind == EVENT:
                continue  # a job's hook judges other GPUs by what every reading shows only
            if fault.kind == EVENT and settled.covered(fault.ident, table):
                continue
            mode = rule.mode if policy.mode == fd.ENFORCE else fd.OBSERVE
            findings.append(_finding(fault, slot, rule.action, mode, of_job))
        for uuid in known:  # excluded earlier: told, nothing else
            slot = self.slot(uuid)
            if hook == "prolog" and job is not None and slot is not None and slot in job:
                findings.append(Finding("GPU-EXCLUDED", uuid, "gpu", fd.WARN, "is excluded", Evidence(), {}, absolute=True))
        if not self.engine:
            findings.append(Finding("MON-ENGINE", "monitor:engine", "monitor", fd.UNKNOWN, "no answer", Evidence(), {}, action=fd.NONE))
        verdicts = {u: fd.OK if self.engine and n not in self.quiet else fd.UNKNOWN for n, u in enumerate(self.uuids)}
        if any(v == fd.UNKNOWN for v in verdicts.values()) and self.engine:
            findings.append(Finding("MON-NO-DATA", "monitor:engine", "monitor", fd.UNKNOWN, "no data", Evidence(), {}, action=fd.NONE))
        for f in findings:
            uuid = f.entity.partition("/")[0]
            if uuid in verdicts:
                verdicts[uuid] = fd.worst((verdicts[uuid], f.verdict))
        return Judgement(tuple(findings), decide(tuple(findings)), {}, False, verdicts)


def _finding(fault: Fault, slot: int, action: str, mode: str, of_job: bool) -> Finding:
    row = {"nvml_index": slot, "uuid": fault.uuid, "pci": f"0000:{slot:02x}:00.0"}
    idents = (fault.ident,) if fault.kind == EVENT else ()
    evidence = Evidence(field="xid", after=79, at_ns=fault.at_ns) if idents else Evidence()
    absolute = fault.kind != GROWTH
    klass = FAULTS[fault.code][2]
    return Finding(fault.code, fault.entity, klass, fd.FAIL, "is bad", evidence, row, mode, action, of_job, absolute, idents, "")
