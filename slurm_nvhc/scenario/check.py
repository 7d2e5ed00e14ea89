"""Do the expectations hold? Pure: what was seen in, one Check per mentioned thing out."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, Union, cast

from msgspec import UNSET, UnsetType

from slurm_nvhc.model.entity import split_link
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.model.times import duration, minutes, parse_duration
from slurm_nvhc.scenario import seen as seen_
from slurm_nvhc.scenario.format import DiagExpect, Expect, FindingMatch, NodeExpect, SuspectMatch, TouchedMatch
from slurm_nvhc.scenario.seen import ACTING, Seen
from slurm_nvhc.sense.sim.target import field_name

HOOK_EXITS = (0, 1)  # 1 is the launcher's "fail this on purpose"; anything else is a hook out of control


class Check(NamedTuple):
    """One expectation: where in the file, what was expected, what was seen."""

    where: str
    wanted: str
    seen: str
    ok: bool


def check(runs: List[Seen], expects: Sequence[Expect]) -> Tuple[Check, ...]:
    """All expectations, and the two that hold for every hook: it exits 0 or 1 and leaves no process."""
    out: List[Check] = []
    for run in runs:
        out += _always(run)
    for number, expect in enumerate(expects):
        where = f"expect[{number}]"
        found = seen_.find(runs, expect.after)
        if found is None:
            out.append(Check(where, f"after {expect.after or 'the last hook'}", "no such hook was run", False))
            continue
        out += [Check(f"{where}.{key} ({found.name})", wanted, got, ok) for key, wanted, got, ok in _one(found, expect)]
    return tuple(out)


def _always(run: Seen) -> List[Check]:
    out = []
    if run.timed_out or run.status not in HOOK_EXITS or (run.status == 1 and run.hook != "prolog"):
        told = "had to be killed at the timeout" if run.timed_out else f"exit {run.status}: {run.out.strip()[-200:]}"
        out.append(Check(f"every hook ({run.name})", "exit 0, or 1 from a prolog on purpose", told, False))
    if run.left:
        out.append(Check(f"every hook ({run.name})", "no process left behind", "; ".join(run.left), False))
    return out


Row = Tuple[str, str, str, bool]  # key, wanted, seen, ok


def _one(run: Seen, expect: Expect) -> List[Row]:
    rows: List[Row] = []
    for key, test in _TESTS.items():
        value = getattr(expect, key)
        if value is not UNSET:
            rows += test(run, value)
    return rows


def _row(key: str, wanted: Any, got: Any) -> List[Row]:
    return [(key, str(wanted), str(got), bool(wanted == got))]


def _words(value: Union[str, List[str]]) -> List[str]:
    return [value] if isinstance(value, str) else value


def _matches_of(value: Union[FindingMatch, List[FindingMatch]]) -> List[FindingMatch]:
    return value if isinstance(value, list) else [value]


def _all_findings(run: Seen) -> str:
    return "; ".join([*(run.tell(f) for f in run.findings), *run.troubles]) or "no finding"


def same_value(wanted: Any, got: Any) -> bool:
    """Numbers compare as numbers; a kind of no data compares with its word."""
    if isinstance(got, dict):
        got = got.get("no")
    elif hasattr(got, "kind"):
        got = got.kind
    if isinstance(wanted, (int, float)) and isinstance(got, (int, float)):
        return abs(wanted - got) <= 1e-9 * max(1.0, abs(wanted))
    return bool(wanted == got)


def fits(run: Seen, finding: Finding, match: FindingMatch) -> bool:
    """True when a finding is all that ``match`` says."""
    evidence = finding.evidence
    amount = evidence.amount
    plain = (
        (match.code, finding.code),
        (match.gpu, run.gpu_name(finding)),
        (match.link, split_link(finding.entity)[1]),
        (match.entity, finding.entity),
        (match.verdict, finding.verdict),
        (match.mode, finding.mode),
        (match.field and field_name(match.field), evidence.field),
        (match.bound, evidence.bound),
        (match.rule, evidence.rule),
    )
    if any(wanted is not None and wanted != got for wanted, got in plain):
        return False
    for wanted, got in ((match.before, evidence.before), (match.after, evidence.after)):
        if wanted is not UNSET and not same_value(wanted, got):
            return False
    if match.amount is not None and not same_value(match.amount, amount):
        return False
    if match.amount_at_least is not None and not (amount is not None and amount >= match.amount_at_least):
        return False
    if match.amount_below is not None and not (amount is not None and amount < match.amount_below):
        return False
    if match.when is not None and (match.when not in run.when(finding) if match.when else bool(evidence.moments)):
        return False
    text = f"{finding.message} {evidence.text}"
    return match.message is None or match.message.lower() in text.lower()


def _say(match: Union[FindingMatch, SuspectMatch]) -> str:
    said = {f: getattr(match, f) for f in match.__struct_fields__}
    return ", ".join(f"{k} {v}" for k, v in said.items() if v is not None and v is not UNSET) or "any"


def _finding(run: Seen, value: Union[FindingMatch, List[FindingMatch]]) -> List[Row]:
    rows: List[Row] = []
    for match in _matches_of(value):
        hits = [f for f in run.findings if fits(run, f, match)]
        good = len(hits) == match.count if match.count is not None else bool(hits)
        rows.append(("finding", _say(match), "; ".join(map(run.tell, hits)) if good else _all_findings(run), good))
    return rows


def _no_finding(run: Seen, value: Union[FindingMatch, List[FindingMatch]]) -> List[Row]:
    rows: List[Row] = []
    for match in _matches_of(value):
        hits = [f for f in run.findings if fits(run, f, match)]
        rows.append(("no_finding", f"not: {_say(match)}", "; ".join(map(run.tell, hits)) or "none", not hits))
    return rows


def accused(run: Seen, suspect: Suspect, match: SuspectMatch) -> bool:
    """True when a suspect is all that ``match`` says."""
    head, link = split_link(suspect.entity)
    plain = (
        (match.kind, suspect.kind),
        (match.gpu, run.names.get(head, "")),
        (match.link, link),
        (match.entity, suspect.entity),
        (match.far, suspect.far),
        (match.named, suspect.named),
    )
    if any(wanted is not None and wanted != got for wanted, got in plain):
        return False
    codes = {name.partition(" ")[0] for name in suspect.findings}
    return set(_words(match.findings or [])) <= codes and (match.why or "").lower() in suspect.why.lower()


def _suspect(run: Seen, value: Union[SuspectMatch, List[SuspectMatch]]) -> List[Row]:
    told = "; ".join(f"{run.tell_suspect(s)} ({s.why})" for s in run.suspects) or "none"
    if value == []:
        return [("suspect", "none", told, not run.suspects)]
    wanted = value if isinstance(value, list) else [value]
    return [("suspect", _say(match), told, any(accused(run, s, match) for s in run.suspects)) for match in wanted]


def _monitor(run: Seen, value: Union[str, List[str]]) -> List[Row]:
    got = sorted({*(f.code for f in run.findings if f.klass == "monitor"), *(t.split()[0] for t in run.troubles)})
    seen = ", ".join(got) or "none"
    if not _words(value):
        return [("monitor", "none", seen, not got)]
    return [("monitor", code, seen, code in got) for code in _words(value)]


def _told_actions(run: Seen) -> str:
    told = list(run.actions) + [f"{kind} (failed)" for kind in run.failed]
    return ", ".join(told) or "none"


def _action(run: Seen, value: Union[str, List[str]]) -> List[Row]:
    rows: List[Row] = []
    for action in _words(value):
        good = not ACTING & set(run.actions) if action == "none" else action in run.actions
        rows.append(("action", action, _told_actions(run), good))
    return rows


def _no_action(run: Seen, value: Union[str, List[str]]) -> List[Row]:
    return [("no_action", f"not: {action}", _told_actions(run), action not in run.actions) for action in _words(value)]


def _gpus(run: Seen, value: Dict[str, str]) -> List[Row]:
    rows: List[Row] = []
    for name, verdict in value.items():
        rows += _row(f"gpus.{name}", verdict, run.verdict_of(name))
    return rows


def _node(run: Seen, value: NodeExpect) -> List[Row]:
    node, rows = run.node, []
    if not isinstance(value.state, UnsetType):
        good = {"drain": node.word in ("drained", "draining"), "up": not node.out}.get(value.state, node.word == value.state)
        told = f"{node.word}, reason {node.reason!r}" if node.reason else node.word
        rows.append(("node.state", str(value.state), told, good))
    if not isinstance(value.reason, UnsetType):
        rows += _row("node.reason", value.reason, node.reason)
    if not isinstance(value.reason_contains, UnsetType):
        rows += [("node.reason_contains", w, node.reason, w in node.reason) for w in _words(value.reason_contains)]
    if not isinstance(value.reason_lacks, UnsetType):
        rows += [("node.reason_lacks", f"not: {w}", node.reason, w not in node.reason) for w in _words(value.reason_lacks)]
    if not isinstance(value.user, UnsetType):
        rows += _row("node.user", value.user, node.user)
    return rows


def _touched(run: Seen, value: Union[str, TouchedMatch]) -> List[Row]:
    told = run.touched
    if isinstance(value, str):
        value = TouchedMatch(verdict=cast(Any, value))
    verdict = told.verdict if told is not None else "none"
    seen = f"{verdict}: {told.why}" if told is not None else "no job with GPUs ended"
    rows: List[Row] = []
    if value.verdict is not None:
        rows.append(("touched", value.verdict, seen, verdict == value.verdict))
    spans = "; ".join(f"{minutes([(begin, end)])} {what}" for begin, end, what in told.minutes) if told is not None else ""
    counters = "; ".join(told.counters) if told is not None else ""
    for key, wanted, text in (("why", value.why, seen), ("when", value.when, spans), ("counters", value.counters, counters)):
        if not isinstance(wanted, UnsetType):
            rows += [(f"touched.{key}", w, text or "none", w in text) for w in _words(wanted)]
    return rows


def _diag(run: Seen, value: DiagExpect) -> List[Row]:
    report = run.diag or {"outcome": "none", "through": "", "tests": [], "uuids": [], "left": False, "why": ""}
    told = run.tell_diag() or "no diagnostic"
    seen = {
        "ran": bool(report["through"]),
        "outcome": report["outcome"],
        "tests": sorted(report["tests"]),
        "gpus": sorted(run.names.get(uuid, uuid) for uuid in report["uuids"]),
        "left": report["left"],
        "running": run.diag_running,
    }
    rows: List[Row] = []
    for key, got in seen.items():
        wanted = getattr(value, key)
        if wanted is not UNSET:
            good = (sorted(wanted) if isinstance(wanted, list) else wanted) == got
            rows.append((f"diag.{key}", str(wanted), f"{got} ({told})", good))
    if not isinstance(value.why, UnsetType):
        rows += [("diag.why", words, told, words in report["why"]) for words in _words(value.why)]
    return rows


def _task_env(run: Seen, value: Dict[str, str]) -> List[Row]:
    rows: List[Row] = []
    for name, text in value.items():
        rows += _row(f"task_env.{name}", text, run.task_env.get(name, "(not set)"))
    return rows


def _task_unset(run: Seen, value: Union[str, List[str]]) -> List[Row]:
    return [("task_unset", f"no {name}", run.task_env.get(name, "(not set)"), name not in run.task_env) for name in _words(value)]


def _task_print(run: Seen, value: Union[str, List[str]]) -> List[Row]:
    text = " / ".join(run.task_prints)
    return [("task_print", words, text or "nothing", words in text) for words in _words(value)]


def _within(run: Seen, value: Union[str, int, float]) -> List[Row]:
    limit = parse_duration(value)
    return [("within", f"at most {duration(limit)}", f"{run.seconds:.1f}s", run.seconds <= limit and not run.timed_out)]


def _calls(run: Seen, value: int) -> List[Row]:
    ours = [call for call in run.calls if call[0] == "scontrol"]
    told = "; ".join(" ".join(call) for call in ours)
    return [("scontrol_calls", str(value), f"{len(ours)}" + (f": {told}" if told else ""), len(ours) == value)]


def _called(run: Seen, value: Union[str, List[str]]) -> List[Row]:
    lines = [" ".join(call) for call in run.calls]
    return [("called", words, "; ".join(lines) or "nothing", any(words in line for line in lines)) for words in _words(value)]


def _not_called(run: Seen, value: Union[str, List[str]]) -> List[Row]:
    lines = [" ".join(call) for call in run.calls]
    told = "; ".join(lines) or "nothing"
    return [("not_called", f"not: {words}", told, all(words not in line for line in lines)) for words in _words(value)]


_TESTS: Dict[str, Callable[[Seen, Any], List[Row]]] = {
    "verdict": lambda run, v: _row("verdict", v, run.verdict or "no run in the ledger"),
    "exit": lambda run, v: _row("exit", v, run.status),
    "within": _within,
    "finding": _finding,
    "no_finding": _no_finding,
    "suspect": _suspect,
    "monitor": _monitor,
    "action": _action,
    "no_action": _no_action,
    "gpus": _gpus,
    "node": _node,
    "touched": _touched,
    "intents": lambda run, v: _row("intents", v, run.intents),
    "excluded": lambda run, v: _row("excluded", sorted(v), sorted(run.excluded)),
    "scontrol_calls": _calls,
    "called": _called,
    "not_called": _not_called,
    "left_processes": lambda run, v: _row("left_processes", v, len(run.left)),
    "diag": _diag,
    "task_env": _task_env,
    "task_unset": _task_unset,
    "task_print": _task_print,
}
