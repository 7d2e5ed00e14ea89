"""The fold: (snapshot, changes, events, policy, memory) -> (findings, decision, memory')."""

from __future__ import annotations

from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.judge import diag, monitor, when
from slurm_nvhc.judge import memory as mem
from slurm_nvhc.judge.context import HEALTH_CHECK, PROLOG, Input, Judgement, Memory
from slurm_nvhc.judge.decide import decide
from slurm_nvhc.judge.events import judge_events
from slurm_nvhc.judge.locate import joined, locate
from slurm_nvhc.judge.parts import no_rdma
from slurm_nvhc.judge.presence import judge_presence
from slurm_nvhc.judge.rules import judge_readings
from slurm_nvhc.judge.say import note
from slurm_nvhc.judge.second_opinion import judge_health
from slurm_nvhc.judge.settle import last_resets
from slurm_nvhc.judge.touched import touched
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.diag import Report
from slurm_nvhc.model.finding import Finding

_CODE_ORDER = {code.code: i for i, code in enumerate(codes.ALL)}
_VERDICT_ORDER = {fd.FAIL: 0, fd.WARN: 1, fd.UNKNOWN: 2, fd.OK: 3}


def judge(inp: Input, memory: Memory) -> Judgement:
    """Judge one run. Never raises for any reading; the same input and memory give the same result."""
    judgement = _fold(inp, memory)
    return judgement if inp.diag is None else with_diag(inp, judgement, inp.diag)


def with_diag(inp: Input, judgement: Judgement, report: Report) -> Judgement:
    """With what a diagnostic found, which was run after the node was judged.

    Nothing of it is remembered.
    """
    known = {(f.code, f.entity) for f in judgement.findings if f.klass == "monitor"}
    added = [f for f in diag.findings(inp, report) if (f.code, f.entity) not in known]
    ordered = tuple(sorted((*judgement.findings, *added), key=_rank))
    return judgement._replace(
        findings=ordered,
        decision=decide(ordered),
        gpu_verdicts=_gpu_verdicts(inp, ordered),
        suspects=joined(inp, judgement.suspects, added, ordered),
        # The other findings of a diagnostic are of states that nobody knows the age of.
        touched=touched(inp, (*judgement.findings, *(f for f in added if f.code in codes.PROOFS))),
    )


def _fold(inp: Input, memory: Memory) -> Judgement:
    notes = mem.Notes(memory, inp.now_ns, inp.snapshot.boot_id, inp.run_id)
    inp = inp._replace(resets=last_resets(inp, notes))
    readings = judge_readings(inp, notes)
    presence, second_look = judge_presence(inp, notes)
    findings = [
        *readings.findings,
        *presence,
        *judge_events(inp, notes),
        *monitor.no_baseline(inp),
        *monitor.no_data(inp, readings.missing),
        *monitor.resets(inp),
        *_excluded(inp),
        *no_rdma(inp),
        *monitor.judge_troubles(inp, notes),
    ]
    findings += judge_health(inp, notes, findings)
    concerned = [f for f in findings if _concerns(inp, f)]
    ordered = tuple(sorted(when.with_moments(concerned, inp.changes, inp.window, inp.history), key=_rank))
    suspects = locate(inp, ordered, notes)
    return Judgement(
        findings=ordered,
        decision=decide(ordered),
        memory=notes.memory(),
        # A health check comes again by itself: its observations are minutes apart, and a link that
        # trains after boot is not down twice because it was looked at twice in two seconds (NVSentinel#1701).
        second_look=second_look or (readings.second_look and inp.hook != HEALTH_CHECK),
        gpu_verdicts=_gpu_verdicts(inp, ordered),
        suspects=suspects,
        touched=touched(inp, ordered),
        not_compared=readings.not_compared,
    )


def _concerns(inp: Input, finding: Finding) -> bool:
    """In a job's hook, another GPU's finding counts only when it is an absolute fault."""
    uuid = entity.gpu_of(finding.entity)
    if inp.job is None or not uuid or uuid in inp.job_uuids():
        return True
    return finding.absolute and finding.verdict == fd.FAIL


def _excluded(inp: Input) -> list[Finding]:
    """GPUs of this job that were excluded earlier: act/ hides them or keeps the job away."""
    out = []
    if inp.hook == PROLOG:
        for uuid in sorted(inp.job_uuids() & set(inp.exclusions)):
            why = inp.exclusions[uuid]
            gpu = inp.gpus().get(uuid)
            out.append(note(inp, "GPU-EXCLUDED", uuid, fd.WARN, f"{why.code}: {why.why}", gpu.identity if gpu else None))
    return out


def _gpu_verdicts(inp: Input, findings: tuple[Finding, ...]) -> dict[str, str]:
    """Verdict per GPU that this run looked at; unknown for all when the engine gave no listing."""
    blind = fd.UNKNOWN if inp.snapshot.gpus is None else fd.OK
    known = [i.uuid for i in inp.known] if inp.snapshot.gpus is None else list(inp.gpus())
    out = {uuid: blind for uuid in known if inp.in_scope(uuid)}
    for finding in findings:
        uuid = entity.gpu_of(finding.entity)
        if uuid:
            out[uuid] = fd.worst((out.get(uuid, fd.OK), finding.verdict))
    return out


def _rank(finding: Finding) -> tuple[int, int, int, int, int, int, str]:
    """Worst first; then what may act, what concerns the job, the graver code, and in the order of GPUs and links."""
    enforced = 0 if finding.mode == fd.ENFORCE else 1
    index = finding.gpu.get("nvml_index")
    link = entity.split_link(finding.entity)[1]
    return (
        _VERDICT_ORDER[finding.verdict],
        enforced,
        0 if finding.of_job else 1,
        _CODE_ORDER.get(finding.code, 999),
        index if isinstance(index, int) else 999,
        -1 if link is None else link,
        finding.entity,
    )
