"""Which diagnostics the policy wants of a hook, and on which GPUs. Pure; whether they may be used, and whether there is time, comes after.

Counters accuse, an active test convicts or clears: an epilog tests what the job's own changes accuse, unless the policy says
otherwise. A rule that only observes accuses as well: nothing is done for it, and a test would show whether it was right.
"""

from __future__ import annotations

from typing import Final, Optional, Sequence

from slurm_nvhc.catalog import diags, effects
from slurm_nvhc.judge.context import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.diag import Ask
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.snapshot import OK, Snapshot
from slurm_nvhc.policy.acting import Diagnostics
from slurm_nvhc.policy.compiled import Policy

ACCUSED: Final = "accused"
FAILED: Final = "failed"
_SIGNAL: Final = 128  # what a shell adds to the number of the signal that ended a program


def asks(
    hook: str, job: Optional[Job], gpus: Sequence[str], snapshot: Snapshot, findings: Sequence[Finding], policy: Policy
) -> tuple[Ask, ...]:
    """What is asked of ``gpus`` (UUIDs): one Ask for all that want the same, () for none.

    Left out without a word: a GPU that is lost, which has a finding of its own, and one in MIG mode, which DCGM's
    active tests are not for.
    """
    blamed = accused(findings)
    groups: dict[Ask, list[str]] = {}
    for uuid in gpus:
        gpu = (snapshot.gpus or {}).get(uuid)
        if gpu is None or gpu.status != OK:
            continue
        wanted = policy.for_model(gpu.identity.model).diagnostics
        tests = {PROLOG: wanted.prolog, EPILOG: wanted.epilog, HEALTH_CHECK: wanted.drained}[hook]
        if not tests or (gpu.identity.mig and diags.active(tests)):
            continue
        if (job is None or _large_enough(wanted, job)) and (hook != EPILOG or _after(wanted, job, uuid in blamed)):
            groups.setdefault(Ask(tests, (), wanted.parameters, wanted.through, wanted.dcgmi), []).append(uuid)
    return tuple(ask._replace(uuids=tuple(uuids)) for ask, uuids in groups.items())


def accused(findings: Sequence[Finding]) -> frozenset[str]:
    """GPUs that a warning or a failure of hardware is about, their links included.

    What says nothing of what happened (settings, a card that is new), and what programs do themselves, accuses no GPU.
    """
    return frozenset(
        entity.gpu_of(f.entity)
        for f in findings
        if f.verdict in (fd.WARN, fd.FAIL)
        and entity.gpu_of(f.entity)
        and effects.OF_CODE.get(f.code, effects.UNKNOWN) not in (effects.NONE, effects.PROGRAM)
    )


def exit_code(status: int) -> int:
    """A wait status as people write it: 768 -> 3; 9 (a signal) -> 137, as a shell shows it."""
    signal = status & 0x7F
    return _SIGNAL + signal if signal else (status >> 8) & 0xFF


def _large_enough(wanted: Diagnostics, job: Job) -> bool:
    return len(job.positions or ()) >= wanted.min_gpus and (job.nodes or 1) >= wanted.min_nodes


def _after(wanted: Diagnostics, job: Optional[Job], is_accused: bool) -> bool:
    """Does this job's end ask for it? An exit code that Slurm did not give is none that failed. scancel gives 0."""
    if wanted.epilog_when == ACCUSED:
        return is_accused
    if wanted.epilog_when != FAILED:
        return True
    if job is None or job.exit_code is None:
        return False
    code = exit_code(job.exit_code)
    return code in wanted.exit_codes if wanted.exit_codes else code != 0
