"""What is wanted, whatever state the node is in: which GPUs are taken out of sight, what
the node has to be drained for, and whether the job may run. Pure.

Narrowing is for a fault that is known by UUID, that leaves the policy's
minimum in use, and that does not hurt the GPU's peers. Everything else falls
to the drain, and says which condition failed.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.act import words as wd
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled as settled_names
from slurm_nvhc.model.finding import Decision, Finding, Proposal
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Exclusion, Intent, OwnDrain
from slurm_nvhc.policy.compiled import Policy

PROLOG: Final = "prolog"
EPILOG: Final = "epilog"
HEALTH_CHECK: Final = "health_check"


class PlanInput(NamedTuple):
    """All that a plan depends on.

    node_state:   None when it was not asked for or could not be had
    intents:      those of the ledger, oldest first
    reason:       rendered for ``plan.reason_findings``; '' when there are none
    node_gpus:    how many GPUs the node has
    clean_passes: health checks in a row, this one included, that found nothing
    names:        UUID -> "gpu3", for texts about GPUs that no finding names
    seen_out:     sticky events that were open when the node was last seen out of service: whoever
                  resumed it since has settled them
    booted_ns:    when the node was booted
    judged_ok:    GPUs that were looked at and found ok
    """

    hook: str
    node: str
    job: Optional[Job]
    mapping: GpuMapping
    decision: Decision
    node_state: Optional[NodeState]
    exclusions: Mapping[str, Exclusion]
    own: Optional[OwnDrain]
    intents: tuple[Intent, ...]
    policy: Policy
    reason: str
    now_ns: int
    node_gpus: int
    clean_passes: int = 0
    names: Mapping[str, str] = {}
    seen_out: tuple[str, ...] = ()
    booted_ns: int = 0
    judged_ok: frozenset[str] = frozenset()

    def name(self, uuid: str) -> str:
        """gpuN, or the abbreviated UUID."""
        return self.names.get(uuid) or wd.short_uuid(uuid)


class Wish(NamedTuple):
    """exclude: new GPUs to keep from jobs, with the findings about each
    hide:    GPUs of this job to hide from it (prolog)
    needed:  excluded GPUs that this job would see, because it can not be narrowed
    drain:   the findings that the node has to be drained for (``needed`` is a ground too)
    fail:    why the job must not run here, '' when it may
    why:     why GPUs were not narrowed, one sentence each
    """

    exclude: Mapping[str, tuple[Finding, ...]]
    hide: tuple[str, ...]
    needed: tuple[str, ...]
    drain: tuple[Finding, ...]
    fail: str
    why: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """What a drain would answer; () when none is wanted."""
        return tuple(dict.fromkeys([*(wd.key(f) for f in self.drain), *(f"GPU-EXCLUDED {u}" for u in self.needed)]))

    @property
    def standing(self) -> bool:
        """Whether a later reading shows all of it again (Intent.standing); not so for changes over a window and for events."""
        return not self.needed and all(f.absolute and not f.idents for f in self.drain)

    @property
    def events(self) -> bool:
        """Whether all of it rests on what the driver logged (Intent.events)."""
        return not self.needed and all(f.idents for f in self.drain)

    @property
    def idents(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(i for f in self.drain for i in f.idents))


def want(inp: PlanInput, settled: frozenset[str] = frozenset()) -> Wish:
    """``settled``: events that need no drain any more."""
    narrowed: dict[str, list[Proposal]] = {}
    drained: list[Proposal] = []
    why: list[str] = []
    for uuid, proposals in _by_gpu(inp.decision, settled).items():
        here = set(inp.mapping.by_position.values())  # an exclusion outlives the card it is for
        hindrance = _gpu_hindrance(inp, uuid, proposals, {*(here & set(inp.exclusions)), *narrowed, uuid})
        if hindrance:
            drained += proposals
            if inp.policy.narrow.enabled and any(p.action == fd.NARROW for p in proposals):
                why.append(hindrance)
        elif uuid not in inp.exclusions:
            narrowed[uuid] = proposals

    hide: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    fail = ""
    if inp.hook == PROLOG and inp.job is not None and inp.job.positions is not None and inp.policy.mode != fd.OBSERVE:
        bad = tuple(u for u in dict.fromkeys(inp.mapping.uuids) if u in narrowed or u in inp.exclusions)
        hindrance = _job_hindrance(inp, len(bad)) if bad else ""
        if hindrance:
            needed = tuple(u for u in bad if u in inp.exclusions)
            for uuid in bad:
                drained += narrowed.pop(uuid, [])
            why.append(hindrance)
            fail = f"{', '.join(inp.name(u) for u in bad)} can not be hidden from this job: {hindrance}"
        else:
            hide = bad
    if inp.hook == PROLOG:
        fatal = [f for p in drained for f in p.findings if f.klass != "monitor" and (p.of_job or _was_given(inp, f))]
        if fatal:
            fail = "a fault on what this job was given: " + ", ".join(wd.brief(f) for f in wd.distinct(wd.ordered(fatal)))
    return Wish(
        exclude={uuid: _findings(proposals) for uuid, proposals in narrowed.items()},
        hide=() if fail else hide,
        needed=needed,
        drain=_findings(drained),
        fail=fail,
        why=tuple(dict.fromkeys(why)),
    )


def _was_given(inp: PlanInput, finding: Finding) -> bool:
    """Whether the finding is about a GPU that Slurm gave to the job and that is not there (so judge can not call it the job's)."""
    gone = inp.mapping.missing if inp.job is not None else ()
    uuid = ent.gpu_of(finding.entity)
    if uuid:
        return any(inp.mapping.by_position.get(position) == uuid for position in gone)
    return bool(gone) and finding.code == "GPU-LOST"


def _by_gpu(decision: Decision, settled: frozenset[str]) -> dict[str, list[Proposal]]:
    """The proposals to narrow or drain by the GPU they are about ('' = none), without settled findings."""
    table: dict[str, list[Proposal]] = {}
    for proposal in decision.proposals:
        if proposal.action not in (fd.NARROW, fd.DRAIN):
            continue
        findings = tuple(f for f in proposal.findings if not f.idents or not _all_covered(f.idents, settled))
        if findings:
            table.setdefault(proposal.uuid, []).append(proposal._replace(findings=findings))
    return table


def _all_covered(idents: Sequence[str], settled: frozenset[str]) -> bool:
    table = settled_names.table(settled)
    return all(settled_names.covered(name, table) for name in idents)


def _gpu_hindrance(inp: PlanInput, uuid: str, proposals: Sequence[Proposal], excluded: set[str]) -> str:
    """Why this GPU can not just be kept from jobs; '' when it can, or already is."""
    narrow = inp.policy.narrow
    if not uuid:
        return "the fault is not of one GPU"
    for finding in _findings(proposals):
        code = BY_CODE.get(finding.code)
        # A monitor finding never becomes "GPU n is bad".
        if code is None or not code.narrowable or finding.klass in ("node", "switch", "monitor"):
            return f"{finding.code} is not a fault to narrow for"
    asking = next((p for p in proposals if p.action != fd.NARROW), None)
    if asking is not None:
        return f"the rule for {asking.findings[0].code} asks for a drain"
    if uuid in inp.exclusions:
        # Also where this policy does not narrow: narrowing is opened per partition, and a health check
        # belongs to none. Jobs that can not be narrowed are stopped in their own prolog.
        return ""
    if not narrow.enabled:
        return "narrowing is off"
    if not inp.mapping.exact:
        return f"the GPU's position is not certain ({inp.mapping.why})"
    if uuid not in inp.mapping.by_position.values():
        return "the GPU has no position in Slurm"
    if len(excluded) > narrow.max_excluded:
        return f"{len(excluded)} GPUs would be excluded, {narrow.max_excluded} may be"
    if inp.node_gpus - len(excluded) < narrow.min_gpus:
        return f"fewer than {narrow.min_gpus} GPUs would be left on the node"
    return ""


def _job_hindrance(inp: PlanInput, hidden: int) -> str:
    """Why this job can not be narrowed by ``hidden`` of its GPUs; '' when it can."""
    narrow, job = inp.policy.narrow, inp.job
    left = len(set(inp.mapping.uuids)) - hidden
    if job is None or not narrow.enabled:
        return "narrowing is off"
    if not inp.mapping.exact:
        return f"the job's GPUs are not certain ({inp.mapping.why})"
    if left < max(1, narrow.min_gpus):
        return f"{left} of its GPUs would be left, {max(1, narrow.min_gpus)} must be"
    # Slurm sets no SLURM_JOB_NTASKS for a job that did not ask for a number of tasks: it gets one a node.
    if narrow.jobs != "any" and not (job.nodes == 1 and job.tasks in (None, 1)):
        return "it is not a job of one node and one task"
    return ""


def _findings(proposals: Sequence[Proposal]) -> tuple[Finding, ...]:
    unique: list[Finding] = []
    for proposal in proposals:
        unique += [f for f in proposal.findings if f not in unique]
    return tuple(unique)
