"""A scenario file as a whole, and its expectations. The JSON Schema in docs/ is made from these types."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, Union

import msgspec
from msgspec import UNSET, UnsetType

from slurm_nvhc.scenario.setting import Node, Slurm
from slurm_nvhc.scenario.steps import Step
from slurm_nvhc.scenario.words import Duration, Gpu, PolicyText, Strict, Value

SCHEMA = 1

VerdictWord = Literal["ok", "unknown", "warn", "fail"]
ActionWord = Literal[
    "none", "note", "notify", "keep",
    "drain", "extend", "own", "intent", "exclude", "narrow", "fail_job", "resume",
    "quarantine", "unhold", "requeue", "exclude_node", "signal", "reboot", "recount", "alert",
    "suspect", "end_exclusion", "new_slot", "hold_lost", "end_intent", "end_own", "accept",
]  # fmt: skip

TouchedWord = Literal["clean", "suspect", "hit", "unknown", "none"]
Words = Union[str, List[str]]


class FindingMatch(Strict):
    """A finding that fits everything said here. Numbers in evidence are compared as numbers.

    gpu: g3; link: with gpu; entity: node, monitor:engine, … where gpu does not fit; amount_below and
    amount_at_least bound the amount; field: as in a target; message: words that its message holds; when: words of
    the minutes in which it happened, such as 08:10-08:11Z, or "" for none known.
    """

    code: Optional[str] = None
    gpu: Optional[Gpu] = None
    link: Optional[int] = None
    entity: Optional[str] = None
    verdict: Optional[VerdictWord] = None
    mode: Optional[Literal["enforce", "observe"]] = None
    field: Union[str, int, None] = None
    before: Union[Value, UnsetType] = UNSET
    after: Union[Value, UnsetType] = UNSET
    amount: Optional[float] = None
    amount_at_least: Optional[float] = None
    amount_below: Optional[float] = None
    bound: Optional[Literal["exact", "at_least", "unknown"]] = None
    rule: Optional[str] = None
    message: Optional[str] = None
    when: Optional[str] = None
    count: Optional[int] = None


class TouchedMatch(Strict):
    """Was the job touched by a fault: verdict, and words that the reasons, the minutes or the counters hold."""

    verdict: Optional[TouchedWord] = None
    why: Union[Words, UnsetType] = UNSET
    when: Union[Words, UnsetType] = UNSET
    counters: Union[Words, UnsetType] = UNSET


class SuspectMatch(Strict):
    """A suspect that fits everything said here: the part that findings point to.

    gpu, link, entity: as in a finding, of the part itself; far: the other end of a link, as an entity. named: false is
    an abstention. why: words that its reason holds. findings: codes of findings behind it.
    """

    kind: Optional[Literal["gpu", "link", "connector", "switch", "slot", "node", "code"]] = None
    gpu: Optional[Gpu] = None
    link: Optional[int] = None
    entity: Optional[str] = None
    far: Optional[str] = None
    named: Optional[bool] = None
    why: Optional[str] = None
    findings: Union[str, List[str], None] = None


class DiagExpect(Strict):
    """The DCGM diagnostic that a hook asked for. ran: it was begun; tests, gpus: what was asked; left: it may still run.

    why: words of the sentence that says why it did not come to its end. running: one runs in the engine after the hook.
    """

    ran: Union[bool, UnsetType] = UNSET
    outcome: Union[Literal["done", "not_run", "stopped", "failed"], UnsetType] = UNSET
    tests: Union[List[str], UnsetType] = UNSET
    gpus: Union[List[Gpu], UnsetType] = UNSET
    left: Union[bool, UnsetType] = UNSET
    why: Union[Words, UnsetType] = UNSET
    running: Union[bool, UnsetType] = UNSET


OneOrMore = Union[FindingMatch, List[FindingMatch]]
Suspects = Union[SuspectMatch, List[SuspectMatch]]


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
    suspect: the parts that the findings point to; [] = none at all.
    monitor: finding codes of class monitor that must be there; [] = none at all.
    action / no_action: steps that were (not) carried out; none = nothing was done to Slurm, a GPU or a job.
    touched: what the job's user is told; none: no job with GPUs ended.
    intents: actions waiting for Slurm. excluded: GPUs kept from later jobs.
    called / not_called: parts of the command lines that Slurm was asked with, such as "scontrol requeue 7" or "sinfo".
    """

    after: str = ""
    verdict: Union[VerdictWord, UnsetType] = UNSET
    exit: Union[int, UnsetType] = UNSET
    within: Union[Duration, UnsetType] = UNSET
    finding: Union[OneOrMore, UnsetType] = UNSET
    no_finding: Union[OneOrMore, UnsetType] = UNSET
    suspect: Union[Suspects, UnsetType] = UNSET
    monitor: Union[Words, UnsetType] = UNSET
    action: Union[ActionWord, List[ActionWord], UnsetType] = UNSET
    no_action: Union[ActionWord, List[ActionWord], UnsetType] = UNSET
    gpus: Union[Dict[str, VerdictWord], UnsetType] = UNSET
    node: Union[NodeExpect, UnsetType] = UNSET
    touched: Union[TouchedWord, TouchedMatch, UnsetType] = UNSET
    intents: Union[int, UnsetType] = UNSET
    excluded: Union[List[str], UnsetType] = UNSET
    scontrol_calls: Union[int, UnsetType] = UNSET
    called: Union[Words, UnsetType] = UNSET
    not_called: Union[Words, UnsetType] = UNSET
    left_processes: Union[int, UnsetType] = UNSET
    diag: Union[DiagExpect, UnsetType] = UNSET
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
