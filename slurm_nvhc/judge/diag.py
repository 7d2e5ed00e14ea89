"""What a DCGM diagnostic means: each result of each part by the policy's rules of kind "diag". Pure.

It adds findings and takes none away: a test that passed clears nothing that was counted or logged. A result that says
nothing (skipped, not run, busy, stopped, not read) neither clears nor convicts; that nothing was said is told by name.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.judge import monitor
from slurm_nvhc.judge.context import Input
from slurm_nvhc.judge.say import effective_mode, make_finding, note
from slurm_nvhc.model import diag as dg
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.diag import Error, Report, Result
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import GpuIdentity, Trouble
from slurm_nvhc.policy.compiled import Level, Policy, Rule

FAILED: Final = "DIAG-FAIL"
SOFTWARE: Final = "DIAG-SOFTWARE"
NO_RESULT: Final = "DIAG-NO-RESULT"
PASSED: Final = "DIAG-PASS"
TROUBLE: Final = "MON-DIAG"

_SEVEREST: Final = ("isolate", "reset", "triage", "config", "monitor", "unknown", "none")
_VERDICTS: Final = {fd.FAIL: 2, fd.WARN: 1}
_SAID: Final = {dg.FAIL: "failed", dg.WARN: "warned"}
_ANSWERS: Final = (dg.PASS, dg.WARN, dg.FAIL)
# Of several results of one test and part (DCGM 3.x has one a software check) this one is the test's, from last to first.
_WEIGHT: Final = (dg.SKIP, dg.NOT_RUN, dg.BUSY, dg.PASS, dg.WARN, dg.FAIL)
_OTHERWISE: Final = {dg.SKIP: "skipped", dg.NOT_RUN: "not run", dg.FAIL: "failed", dg.WARN: "warned", dg.BUSY: "busy"}
_WITHOUT: Final = {dg.SKIP: "skipped", dg.NOT_RUN: "not run", "": "missing"}
_SHOWN: Final = 120  # characters of DCGM's text in a message; the evidence has all of it


class _Part(NamedTuple):
    """What results are about: a GPU with the policy of its model, or the node."""

    place: str
    policy: Policy
    identity: Optional[GpuIdentity] = None
    readings: Mapping[str, Reading] = {}


class _Hit(NamedTuple):
    rule: Rule
    verdict: str
    errors: tuple[Error, ...]


def findings(inp: Input, report: Report) -> tuple[Finding, ...]:
    """All that the report says, unordered. Total: whatever the report holds, this gives findings."""
    out: list[Finding] = []
    for result in report.results:
        if result.status in _SAID:
            out += _complaints(inp, report, result)
    # A GPU that was left alone has results that say why, though the engine was not asked about it.
    asked = dict.fromkeys((*report.uuids, *(r.entity for r in report.results if r.entity != entity.NODE)))
    for place in asked or (entity.NODE,):
        out += _gaps(inp, report, _part(inp, place))
    return (*out, *_passed(inp, report), *_troubles(inp, report))


def _part(inp: Input, place: str) -> _Part:
    gpu = inp.gpus().get(place)
    if gpu is not None:
        return _Part(place, inp.policy.for_model(gpu.identity.model), gpu.identity, gpu.readings)
    identity = next((row for row in inp.known if row.uuid == place), None)
    return _Part(place, inp.policy if identity is None else inp.policy.for_model(identity.model), identity)


# Complaints


def _complaints(inp: Input, report: Report, result: Result) -> list[Finding]:
    part = _part(inp, result.entity)
    errors = result.errors or (Error(""),)
    rules = [rule for rule in part.policy.rules.values() if rule.kind == "diag"]
    named = _named(rules)
    hits = [hit for rule in rules if rule.mode != fd.OFF for hit in _strongest(part, rule, result, errors, named)]
    out = [_of_rule(inp, report, result, part, hit) for hit in _dominant(inp, hits)]
    # A rule that is switched off has spoken as well: it says that nobody wants to hear of it.
    unspoken = tuple(e for e in errors if not any(_fits(lv, result, e, named) for rule in rules for lv in (*rule.fail, *rule.warn)))
    return [*out, _unspoken(inp, report, result, part, unspoken)] if unspoken else out


def _named(rules: Iterable[Rule]) -> frozenset[int]:
    """The errors that some enabled rule names; "other" concerns all the rest."""
    levels = (level for rule in rules if rule.mode != fd.OFF for level in (*rule.fail, *rule.warn))
    return frozenset(code for level in levels if level.diag is not None for code in level.diag.errors)


def _strongest(part: _Part, rule: Rule, result: Result, errors: Sequence[Error], named: frozenset[int]) -> list[_Hit]:
    """At most one: with the errors of every level of the strongest verdict that holds."""
    for verdict, levels in ((fd.FAIL, rule.fail), (fd.WARN, rule.warn)):
        asking = [level for level in levels if not _excused(level, part)]
        meant = tuple(e for e in errors if any(_fits(level, result, e, named) for level in asking))
        if meant:
            return [_Hit(rule, verdict, meant)]
    return []


def _fits(level: Level, result: Result, error: Error, named: frozenset[int]) -> bool:
    asked = level.diag
    if asked is None or result.status not in asked.status or (asked.tests and result.test not in asked.tests):
        return False
    if asked.errors and error.code not in asked.errors:
        return False
    if asked.other and error.code in named:
        return False
    return not asked.severities or (error.severity or "none") in asked.severities


def _excused(level: Level, part: _Part) -> bool:
    return any(part.readings.get(field) in values for field, values in level.unless)


def _dominant(inp: Input, hits: Sequence[_Hit]) -> list[_Hit]:
    """Without those that say less than another one under the same code; what only observes hides nothing that acts."""
    out = []
    for hit in hits:
        acts = effective_mode(inp, hit.rule) == fd.ENFORCE
        others = [h for h in hits if h.rule.finding == hit.rule.finding and (not acts or effective_mode(inp, h.rule) == fd.ENFORCE)]
        if _VERDICTS[hit.verdict] >= max(_VERDICTS[h.verdict] for h in others):
            out.append(hit)
    return out


def _of_rule(inp: Input, report: Report, result: Result, part: _Part, hit: _Hit) -> Finding:
    evidence = _evidence(inp, report, hit.errors)._replace(
        rule=hit.rule.name, threshold=hit.rule.text[1 if hit.verdict == fd.FAIL else 0], source=_source(report)
    )
    message = _message(result, hit.errors)
    # Not absolute: no later reading shows it again, only the same test would.
    return make_finding(inp, hit.rule, part.place, hit.verdict, evidence, part.identity, absolute=False, message=message)


def _unspoken(inp: Input, report: Report, result: Result, part: _Part, errors: tuple[Error, ...]) -> Finding:
    hardware = diags.active((result.test,))
    message = f"{_message(result, errors)}; no rule of the policy says what to do"
    return _note(inp, report, FAILED if hardware else SOFTWARE, part, fd.WARN, message, errors, fd.NOTE)


def _message(result: Result, errors: Sequence[Error]) -> str:
    """'diag memory failed: … (error 58 MEMORY_MISMATCH, isolate)'; the severest error speaks for all."""
    first = min(errors, key=lambda e: _SEVEREST.index(e.severity) if e.severity in _SEVEREST else len(_SEVEREST))
    text = " ".join((first.text or result.info).split())
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1].rstrip() + "…"
    number = "" if first.code is None else f"error {first.code} {diags.error_name(first.code)}".rstrip()
    told = ", ".join(x for x in (number, first.severity) if x)
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    where = f" ({told})" if told else ""
    return f"diag {result.test} {_SAID[result.status]}{': ' if text else ''}{text}{where}{more}"


# What has no result


def standing(report: Report, place: str) -> dict[str, str]:
    """Test -> status on this GPU. What the node says of a test holds for a GPU that the test has no word for; a pass of the
    node's is a GPU's only where the test is not about single GPUs."""
    out: dict[str, str] = {}
    for result in report.of(place):
        out[result.test] = _heavier(out.get(result.test), result.status)
    of_node: dict[str, str] = {}
    for result in report.of(entity.NODE):
        known = diags.BY_NAME.get(result.test)
        if result.status != dg.PASS or (known is not None and not (known.active and known.gpu)):
            of_node[result.test] = _heavier(of_node.get(result.test), result.status)
    return {**of_node, **out}


def _heavier(one: Optional[str], other: str) -> str:
    return other if one is None or _WEIGHT.index(other) > _WEIGHT.index(one) else one


def _gaps(inp: Input, report: Report, part: _Part) -> Iterable[Finding]:
    """What this GPU was to be asked and gave no answer to: one finding a reason, a warning where the policy requires a test."""
    said, asked = standing(report, part.place), diags.told(report.tests)
    ended = report.outcome == dg.DONE or (bool(report.uuids) and part.place not in report.uuids)  # one that was left alone
    without = {t: said.get(t, "") for t in diags.core(report.tests) if said.get(t) not in (*_ANSWERS, dg.BUSY)}
    busy = [test for test, status in said.items() if status == dg.BUSY]
    if busy:
        info = _info(report, part, busy)
        why = info if info.startswith("busy") else f"busy{f' ({info})' if info else ''}"
        yield _note(inp, report, NO_RESULT, part, fd.UNKNOWN, f"diag {', '.join(busy)}: {why}")
    required = {t: said.get(t, "") for t in part.policy.diagnostics.require if diags.includes(report.tests, t)}
    required = {t: status for t, status in required.items() if status not in (*_ANSWERS, dg.BUSY)}
    if required and report.outcome != dg.FAILED:  # that one is trouble of our own, and nobody knows
        named = ", ".join(f"{test} ({_WITHOUT[status]})" for test, status in required.items())
        why = "" if ended else f"; {why_not(report)}"
        yield _note(inp, report, NO_RESULT, part, fd.WARN, f"diag {asked}: required, and without a result: {named}{why}", action=fd.NOTE)
    if any(status == dg.FAIL and diags.active((test,)) for test, status in said.items()) or (busy and not without):
        return  # that it failed, or is busy, says enough
    if not ended:
        of = f"; no result of {', '.join(without)}" if without and report.outcome == dg.STOPPED else ""
        yield _note(inp, report, NO_RESULT, part, fd.UNKNOWN, f"diag {asked}: {why_not(report)}{of}")
        return
    for status, word in _WITHOUT.items():
        tests = [t for t, had in without.items() if had == status and t not in required]
        if tests:
            info = _info(report, part, tests)
            yield _note(inp, report, NO_RESULT, part, fd.UNKNOWN, f"diag {', '.join(tests)}: {word}{f' ({info})' if info else ''}")


def why_not(report: Report) -> str:
    """Why it did not come to its end: 'not run (budget): …', 'stopped: …'; whoever wrote the sentence may have begun it so."""
    word = {dg.NOT_STARTED: "not run", dg.STOPPED: "stopped", dg.FAILED: "failed"}.get(report.outcome, report.outcome)
    if report.why.startswith(word):
        return report.why
    return f"{word}: {report.why}" if report.why else word


def _info(report: Report, part: _Part, tests: Sequence[str]) -> str:
    """The first reason that is given for one of these."""
    for result in (*report.of(part.place), *report.of(entity.NODE)):
        if result.test in tests and result.status not in _ANSWERS:
            text = result.info or next((e.text for e in result.errors if e.text), "")
            if text:
                return " ".join(text.split())[:_SHOWN]
    return ""


# What passed


def cleared(report: Report, uuid: str, required: Sequence[str] = ()) -> bool:
    """Did every test that was promised pass on this GPU, and nothing complain? What is skipped in a level is not missed there.

    Where the GPU was loaded, software checks do not count: they tell of the node's set-up, and have findings of their own.
    """
    loads = diags.active(report.tests)
    said = {test: status for test, status in standing(report, uuid).items() if diags.active((test,)) or not loads}
    promised = (*diags.core(report.tests), *(t for t in required if diags.includes(report.tests, t)))
    wanted = [t for t in promised if diags.active((t,)) or not loads]
    if report.outcome != dg.DONE or not wanted:
        return False
    return all(said.get(t) == dg.PASS for t in wanted) and not set(said.values()) & {dg.FAIL, dg.WARN, dg.BUSY}


def _passed(inp: Input, report: Report) -> Iterable[Finding]:
    """One line for all GPUs, so that a fleet's sweep stays readable."""
    groups: dict[str, list[_Part]] = {}
    for uuid in dict.fromkeys(report.uuids):
        part = _part(inp, uuid)
        if cleared(report, uuid, part.policy.diagnostics.require):
            said = standing(report, uuid)
            others = "".join(f"; {test} {_OTHERWISE[status]}" for test, status in said.items() if status != dg.PASS)
            groups.setdefault(f"{', '.join(t for t, status in said.items() if status == dg.PASS)}{others}", []).append(part)
    if groups:
        parts = [part for group in groups.values() for part in group]
        named = "; ".join(f"{', '.join(map(_name, group))}: {tests}" for tests, group in groups.items())
        where = parts[0] if len(parts) == 1 else _Part(entity.NODE, inp.policy)
        yield _note(inp, report, PASSED, where, fd.OK, f"diag {diags.told(report.tests)}: passed on {named}")


def _name(part: _Part) -> str:
    index = None if part.identity is None else part.identity.nvml_index
    return f"gpu{index}" if index is not None else part.place[:12]


# Ours


def _troubles(inp: Input, report: Report) -> tuple[Finding, ...]:
    """What went wrong in asking: never a GPU's. It lasts for one run as far as this can tell, since nothing is remembered here."""
    troubles = list(report.troubles)
    ours = any(t.code == TROUBLE for t in troubles)
    if report.left and not ours:
        troubles.append(Trouble(TROUBLE, "diag", f"{why_not(report)}; it may still run in the engine"))
    elif report.outcome == dg.FAILED and not troubles:
        troubles.append(Trouble(TROUBLE, "diag", f"diag {diags.told(report.tests)}: {why_not(report)}"))
    once = {(t.code, t.part): t for t in reversed(troubles)}
    return tuple(monitor.found(inp, trouble, 1, 0.0) for trouble in reversed(once.values()))


def _note(
    inp: Input, report: Report, code: str, part: _Part, verdict: str, message: str, errors: tuple[Error, ...] = (), action: str = fd.NONE
) -> Finding:
    found = note(inp, code, part.place, verdict, message, part.identity)
    return found._replace(
        klass="node" if part.place == entity.NODE else "gpu",
        evidence=_evidence(inp, report, errors)._replace(source=_source(report)),
        mode=fd.OBSERVE if inp.policy.mode == fd.OBSERVE else fd.ENFORCE,
        action=action,
    )


def _evidence(inp: Input, report: Report, errors: Sequence[Error]) -> Evidence:
    text = "; ".join(dict.fromkeys(e.text for e in errors if e.text))
    return Evidence(text=text, at_ns=report.ended_ns or inp.now_ns)


def _source(report: Report) -> str:
    return f"DCGM diag {report.version}".rstrip()
