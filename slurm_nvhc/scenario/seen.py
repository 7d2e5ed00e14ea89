"""What was seen of one hook run, from outside: its exit, the ledger's run, Slurm, and the processes left."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_nvhc.model import entity
from slurm_nvhc.model.finding import FAIL, OK, UNKNOWN, WARN, Finding
from slurm_nvhc.model.suspect import Suspect, Touched, label, touched_to_json
from slurm_nvhc.model.times import minutes

# Steps that do something to Slurm, a GPU or a job; the others only tell or keep our own books.
ACTING = frozenset({
    "drain", "extend", "own", "intent", "exclude", "narrow", "fail_job", "resume", "quarantine", "unhold", "requeue", "exclude_node",
    "signal", "reboot",
})  # fmt: skip


class NodeSeen(NamedTuple):
    """The node in Slurm: one word as sinfo shows it, whether it is out of service, and the reason with its user."""

    word: str
    out: bool
    reason: str
    user: str


class Seen(NamedTuple):
    """One hook run.

    status:   the launcher's exit status, None when it had to be killed
    verdict:  '' when the ledger has no run of it (kill switch, missing interpreter, task prolog)
    troubles: trouble met while acting, "MON-SLURM what happened"
    actions:  kinds of the steps that were carried out; failed: kinds of those that could not be
    names:    entity of a GPU ("GPU-…" or "pci:…") -> gN at that moment
    calls:    each call of a command of Slurm's, its name first
    touched:  what the job's user is told of an epilog's job; None for other runs
    suspects: the parts that its findings point to
    diag:     the report of the DCGM diagnostic that it asked for (model/diag.py as JSON), None where it asked for none
    diag_running: one runs in the engine after it
    task_env: the task's environment after the task prolog, {} for other hooks
    """

    hook: str
    number: int
    label: str
    job: str
    status: Optional[int]
    seconds: float
    timed_out: bool
    out: str
    left: Tuple[str, ...]
    verdict: str
    findings: Tuple[Finding, ...]
    troubles: Tuple[str, ...]
    actions: Tuple[str, ...]
    failed: Tuple[str, ...]
    node: NodeSeen
    names: Mapping[str, str]
    calls: Tuple[Tuple[str, ...], ...]
    intents: int
    excluded: Tuple[str, ...]
    touched: Optional[Touched] = None
    task_env: Mapping[str, str] = {}
    task_unset: Tuple[str, ...] = ()
    task_prints: Tuple[str, ...] = ()
    suspects: Tuple[Suspect, ...] = ()
    diag: Optional[Mapping[str, Any]] = None
    diag_running: bool = False

    @property
    def name(self) -> str:
        """How an expectation calls it: its label, or "epilog#2"."""
        return self.label or f"{self.hook}#{self.number}"

    def gpu_name(self, finding: Finding) -> str:
        """gN of the GPU that a finding is about (also through its link or PCI address), or ''."""
        head, _link = entity.split_link(finding.entity)
        return self.names.get(head, "") or self.names.get(f"pci:{finding.gpu.get('pci', '')}", "")

    def verdict_of(self, gpu: str) -> str:
        """The worst that was said about a GPU or its links; ok when nothing was."""
        order = (OK, UNKNOWN, WARN, FAIL)
        verdicts = [f.verdict for f in self.findings if self.gpu_name(f) == gpu]
        return max(verdicts, key=order.index, default=OK)

    def when(self, finding: Finding) -> str:
        """The minutes in which it happened, as `nvhc explain` shows them; '' when that is not known."""
        return minutes([(begin, end) for begin, end, _amount in finding.evidence.moments], finding.evidence.seconds)

    def tell(self, finding: Finding) -> str:
        """A finding in a few words: 'NVL-REPLAY g3 link11 fail +20'."""
        gpu, link = self.gpu_name(finding), entity.split_link(finding.entity)[1]
        words = [finding.code, gpu or finding.entity]
        if gpu and link is not None:
            words.append(f"link{link}")
        words.append(finding.verdict)
        if finding.evidence.amount is not None:
            bound = "" if finding.evidence.bound == "exact" else " at least"
            words.append(f"{bound}+{finding.evidence.amount:g}".strip())
        if finding.evidence.moments:
            words.append(self.when(finding))
        if finding.mode != "enforce":
            words.append(f"({finding.mode})")
        return " ".join(words)


    def tell_diag(self) -> str:
        """The diagnostic in a few words: 'diagnostic 2 of g1: not_run (busy: …)'; '' when none was asked for."""
        if self.diag is None:
            return ""
        gpus = ", ".join(sorted(self.names.get(uuid, uuid) for uuid in self.diag["uuids"]))
        why = f" ({self.diag['why']})" if self.diag["why"] else ""
        return f"diagnostic {', '.join(self.diag['tests'])} of {gpus}: {self.diag['outcome']}{why}"

    def tell_suspect(self, suspect: Suspect) -> str:
        """A suspect in a few words: 'link g3 link11', 'none named: node'."""
        return f"{'' if suspect.named else 'none named: '}{suspect.kind} {label(suspect, self.names)}"


def to_json(seen: Seen) -> Dict[str, Any]:
    """The run as plain JSON, for ``nvhc replay --json``."""
    from slurm_nvhc.model import finding, suspect

    out: Dict[str, Any] = seen._asdict()
    out["findings"] = [{**finding.to_json(f), "name": seen.gpu_name(f)} for f in seen.findings]
    out["suspects"] = [suspect.to_json(s) for s in seen.suspects]
    out["node"] = seen.node._asdict()
    out["names"] = {name: ent for ent, name in seen.names.items() if ent.startswith("GPU-")}
    out["calls"] = [list(c) for c in seen.calls]
    for key in ("left", "troubles", "actions", "failed", "excluded", "task_unset", "task_prints"):
        out[key] = list(out[key])
    out["task_env"] = dict(seen.task_env)
    out["touched"] = None if seen.touched is None else touched_to_json(seen.touched)
    return out


def find(runs: List[Seen], after: str) -> Optional[Seen]:
    """The run that ``after`` names: a label, "epilog" (the last one), "epilog#2", or '' for the last of all."""
    if not after:
        return runs[-1] if runs else None
    labelled = [r for r in runs if r.label == after]
    if labelled:
        return labelled[-1]
    hook, sep, number = after.partition("#")
    same = [r for r in runs if r.hook == hook]
    if sep:
        same = [r for r in same if str(r.number) == number]
    return same[-1] if same else None
