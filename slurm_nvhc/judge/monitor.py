"""Trouble of our own, lack of data, and resets: said as what they are, never as a GPU's fault."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, Iterable

from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import EPILOG, Input
from slurm_nvhc.judge.say import note
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.snapshot import Trouble

# Without these, GPUs could not be judged: the run's verdict is unknown.
_BLINDING: Final = frozenset({"MON-ENGINE-ABSENT", "MON-ENGINE-HUNG", "MON-ENGINE-EMPTY", "MON-READER", "MON-BUDGET", "MON-INTERNAL"})
# Of these nobody can say whether anything is wrong; but a node whose diagnostic failed to run is still watched.
_UNCERTAIN: Final = _BLINDING | {"MON-DIAG"}
# Only a job's hooks can meet these: a health check without them proves nothing.
_JOB_ONLY: Final = frozenset({"MON-ENVIRONMENT", "MON-GRES"})


def judge_troubles(inp: Input, notes: memory.Notes) -> tuple[Finding, ...]:
    """One finding per code and part. Its action is the policy's, once it lasted as long as the policy says."""
    out: dict[str, Finding] = {}
    for trouble in (*inp.troubles, *inp.snapshot.troubles):
        name = f"{_code(trouble)} {trouble.part}"
        if name not in out:
            out[name] = found(inp, trouble, *notes.trouble(name))
    notes.forget_troubles_but(set(out), spared=_JOB_ONLY if inp.job is None else frozenset())
    return tuple(out.values())


def _code(trouble: Trouble) -> str:
    return trouble.code if trouble.code in codes.BY_CODE else "MON-INTERNAL"


def found(inp: Input, trouble: Trouble, runs: int, seconds: float) -> Finding:
    """One trouble that has lasted for so many runs in a row, and so long."""
    policy, code = inp.policy.monitor, _code(trouble)
    # A drain is for trouble that leaves the node unwatched; an odd environment or a broken policy
    # edit must never give a user or a typing error the power to drain.
    action = fd.NOTIFY if policy.action == fd.DRAIN and code not in _BLINDING else policy.action
    lasted = runs >= (policy.drain_after_runs if action == fd.DRAIN else policy.after_runs)
    lasted = lasted or (action != fd.DRAIN and seconds >= policy.after_s)
    since = f", {runs} runs in a row" if runs > 1 else ""
    return Finding(
        code=code,
        entity=f"monitor:{trouble.part}",
        klass="monitor",
        verdict=fd.UNKNOWN if code in _UNCERTAIN else fd.WARN,
        message=trouble.detail or codes.BY_CODE[code].meaning,
        evidence=Evidence(text=f"{trouble.detail}{since}", at_ns=inp.now_ns, rule="monitor", window=inp.window.text),
        gpu={},
        mode=fd.OBSERVE if inp.policy.mode == fd.OBSERVE else fd.ENFORCE,
        action=action if lasted else fd.NONE,
        policy=inp.policy.hash,
    )


def no_data(inp: Input, missing: Iterable[tuple[str, str, str]]) -> tuple[Finding, ...]:
    """One unknown per GPU, with the fields that could not be had and why."""
    by_gpu: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for uuid, field, why in missing:
        by_gpu[uuid][why].add(field)
    out = []
    for uuid, kinds in by_gpu.items():
        text = "; ".join(f"{why}: {_some(sorted(fields))}" for why, fields in sorted(kinds.items()))
        out.append(note(inp, "NO-DATA", uuid, fd.UNKNOWN, text, inp.gpus()[uuid].identity))
    return tuple(out)


def no_baseline(inp: Input) -> tuple[Finding, ...]:
    """An epilog without its prolog's snapshot: salloc without a step, PrologFlags unset (see docs)."""
    if inp.hook == EPILOG and inp.before is None and inp.job_uuids():
        return (note(inp, "NO-BASELINE", entity.NODE, fd.UNKNOWN, "no prolog of this job was seen on this node"),)
    return ()


def resets(inp: Input) -> tuple[Finding, ...]:
    """One note for counters that were cleared in the window, however many GPUs they are on."""
    why: dict[str, str] = {}
    for change in inp.changes:
        if change.kind == ch.AT_LEAST:
            why.setdefault(entity.gpu_of(change.entity) or entity.NODE, change.why)
    uuids = [uuid for uuid in why if uuid != entity.NODE]
    if not why:
        return ()
    if not uuids:
        return (note(inp, "COUNTER-RESET", entity.NODE, fd.OK, f"{why[entity.NODE]}: a switch or RDMA port"),)
    if len(uuids) == 1:
        gpu = inp.gpus().get(uuids[0])
        return (note(inp, "COUNTER-RESET", uuids[0], fd.OK, why[uuids[0]], gpu.identity if gpu else None),)
    text = f"{', '.join(sorted({why[u] for u in uuids}))} on {len(uuids)} GPUs"
    return (note(inp, "COUNTER-RESET", entity.NODE, fd.OK, text),)


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
