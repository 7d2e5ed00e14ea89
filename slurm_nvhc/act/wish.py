"""What is wanted, whatever state the node is in: which GPUs are taken out of sight, what
the node has to be drained for, and whether the job may run. Pure.

Narrowing is for a fault that is known by UUID, that leaves the policy's
minimum in use, and that does not hurt the GPU's peers. Everything else falls
to the drain, and says which condition failed.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.act import ways
from slurm_nvhc.act import words as wd
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled as settled_names
from slurm_nvhc.model.finding import Decision, Finding, Proposal
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import NARROW, QUARANTINE, Exclusion, Hold, Intent, OwnDrain, Pause, Strike
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
    clean_passes: health checks in a row since our drain, this one included, that looked at all it was for and found nothing wrong
    names:        UUID -> "gpu3", for texts about GPUs that no finding names
    seen_out:     sticky events that were open when the node was last seen out of service: whoever
                  resumed it since has settled them
    booted_ns:    when the node was booted
    settled:      sticky events that need no drain any more, as the ledger knows
    judged_ok:    GPUs that were looked at and found ok
    suspected:    GPUs that would be excluded if the policy did not only observe; ``exclusions`` are the others
    holds:        placeholder jobs as the ledger knows them, by UUID
    jobs:         the node's jobs as Slurm says; None when it was not asked or did not answer
    strikes:      deeds that count against limits, oldest first
    pause:        maintenance; a pause whose time is over is none
    boot_id:      of this boot
    durable:      does the ledger survive a reboot? Without that no GPU is excluded
    alloc:        PrologFlags has Alloc (or Contain): the prolog runs before the job starts anywhere; None: not known
    epilog_alone: no other prolog and epilog than ours run here, so a drain that is ours can have no other ground; None: not known
    jobs_ended:   jobs that ended here since our drain was set; None: not known
    slots:        PCI address -> UUID of the GPUs that are there now; {} when they could not be listed
    slurm_job:    the hook's own job as Slurm says; None when it was not asked, or did not answer
    recovery:     UUID -> the recovery action that the driver asks for now (NVML's number), of GPUs that say so
    clean_looks:  suspected GPU -> health checks in a row, this one included, that found it well
    untested:     UUIDs of GPUs here on which the diagnostic that drain.resume_diagnostic asks for has not passed since our drain;
                  None: it is not known which GPUs there are
    diag_failed:  UUIDs of GPUs here that jobs get, and on which a diagnostic's test of hardware has failed and not passed after that
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
    settled: tuple[str, ...] = ()
    suspected: Mapping[str, Exclusion] = {}
    holds: Mapping[str, Hold] = {}
    jobs: Optional[tuple[NodeJob, ...]] = None
    strikes: tuple[Strike, ...] = ()
    pause: Optional[Pause] = None
    boot_id: str = ""
    durable: bool = True
    alloc: Optional[bool] = None
    epilog_alone: Optional[bool] = None
    jobs_ended: Optional[int] = 0
    slots: Mapping[str, str] = {}
    clean_looks: Mapping[str, int] = {}
    recovery: Mapping[str, int] = {}
    slurm_job: Optional[NodeJob] = None
    untested: Optional[tuple[str, ...]] = ()
    diag_failed: tuple[str, ...] = ()

    def name(self, uuid: str) -> str:
        """gpuN, or the abbreviated UUID."""
        return self.names.get(uuid) or wd.short_uuid(uuid)

    @property
    def way(self) -> str:
        """How a GPU would be taken out alone under this policy; narrow stands for none."""
        return ways.wanted(self.policy) or NARROW


class Wish(NamedTuple):
    """exclude: new GPUs to keep from jobs, with the findings about each
    hide:    GPUs of this job to hide from it (prolog)
    needed:  excluded GPUs that this job would see, because it can not be narrowed
    drain:   the findings that the node has to be drained for (``needed`` and ``unheld`` are grounds too)
    unheld:  excluded GPUs that no placeholder job keeps from jobs as it should -> why (act/quarantine.py)
    fail:    why the job must not run here, '' when it may
    why:     why GPUs were not narrowed, one sentence each
    """

    exclude: Mapping[str, tuple[Finding, ...]]
    hide: tuple[str, ...]
    needed: tuple[str, ...]
    drain: tuple[Finding, ...]
    fail: str
    why: tuple[str, ...]
    unheld: Mapping[str, str] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """What a drain would answer; () when none is wanted."""
        return tuple(dict.fromkeys([*(wd.key(f) for f in self.drain), *(f"GPU-EXCLUDED {u}" for u in (*self.needed, *self.unheld))]))

    @property
    def standing(self) -> bool:
        """Whether a later reading shows all of it again (Intent.standing); not so for changes over a window and for events."""
        return not self.needed and not self.unheld and all(f.absolute and not f.idents for f in self.drain)

    @property
    def events(self) -> bool:
        """Whether all of it rests on what the driver logged (Intent.events)."""
        return not self.needed and not self.unheld and all(f.idents for f in self.drain)

    @property
    def idents(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(i for f in self.drain for i in f.idents))


def want(inp: PlanInput, settled: frozenset[str] = frozenset(), moves: bool = False) -> Wish:
    """``settled``: events that need no drain any more. moves: the job of this prolog can be moved to other nodes."""
    narrowed: dict[str, list[Proposal]] = {}
    drained: list[Proposal] = []
    why: list[str] = []
    for uuid, proposals in _by_gpu(inp.decision, settled).items():
        here = set(inp.mapping.by_position.values())  # an exclusion outlives the card it is for
        hindrance = _gpu_hindrance(inp, uuid, proposals, {*(here & set(inp.exclusions)), *narrowed, uuid})
        if hindrance:
            drained += proposals
            if ways.wanted(inp.policy) and any(p.action == fd.NARROW for p in proposals):
                why.append(hindrance)
        elif uuid not in inp.exclusions:
            narrowed[uuid] = proposals

    hide: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    fail = ""
    if inp.hook == PROLOG and inp.job is not None and inp.job.positions is not None and inp.policy.mode != fd.OBSERVE:
        bad = tuple(u for u in dict.fromkeys(inp.mapping.uuids) if u in narrowed or u in inp.exclusions)
        hindrance = _job_hindrance(inp, bad) if bad else ""
        if hindrance:
            # A job that is moved leaves the GPU to its epilog, which has a placeholder job hold it: the node stays in service.
            if not moves or any((inp.exclusions[u].way if u in inp.exclusions else inp.way) != QUARANTINE for u in bad):
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
    ground = ways.Ground(inp.policy, inp.mapping, inp.node_gpus, inp.durable, inp.alloc)
    return ways.hindrance(ground, inp.way, uuid, excluded)


def _job_hindrance(inp: PlanInput, bad: Sequence[str]) -> str:
    """Why this job can not be narrowed by these of its GPUs; '' when it can."""
    narrow, job = inp.policy.narrow, inp.job
    left = len(set(inp.mapping.uuids)) - len(bad)
    if job is None or not narrow.enabled:
        held = any(u in inp.exclusions and inp.exclusions[u].way == QUARANTINE for u in bad)
        return "no placeholder job holds it" if held else "narrowing is off"
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
