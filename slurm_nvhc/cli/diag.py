"""`nvhc diag`: a DCGM diagnostic now, by an administrator, on GPUs that nobody uses. It drains nothing; it says what would."""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from typing import Any, Final, Sequence

from slurm_nvhc import diagnose, ground
from slurm_nvhc.catalog import diags
from slurm_nvhc.cli import by_hand, common
from slurm_nvhc.cli.diag_show import Seen, document, gpu_of, print_out
from slurm_nvhc.context import Context
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.ground import Ground
from slurm_nvhc.judge import HEALTH_CHECK, Input, Window
from slurm_nvhc.judge import diag as judge_diag
from slurm_nvhc.model import diag as dg
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.diag import Ask, Report
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.snapshot import OK, Snapshot, Trouble
from slurm_nvhc.model.times import duration, parse_duration
from slurm_nvhc.observation import read_now
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.sense import diag as sense_diag
from slurm_nvhc.yaml_errors import nearest

# Slurm's KillWait is 30 s: until then a cancelled job's diagnostic must be gone from the engine.
ENDING_S: Final = 20.0
_PARAMETER: Final = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9_.]+=[^;\s]+")
_TEST: Final = re.compile(r"[a-z0-9_]+")


class ToldToStop(BaseException):
    """A signal asks us to end. Whatever runs in the engine is ended first."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")


def diag(args: argparse.Namespace) -> int:
    if args.stop:
        return _stop(args)
    tests, seconds = _tests(args), _seconds(args)
    context = by_hand.context(args)
    context = context._replace(policy=_policy(args, context.policy, tests))
    for number in by_hand.ENDING:
        signal.signal(number, _told_to_stop)
    try:
        snapshot = read_now(context)
        if snapshot.gpus is None:
            raise MonitorError("engine", "", "does not list the GPUs now", "`nvhc doctor` says why")
        wanted = by_hand.gpus("--gpus", args.gpus, [gpu.identity for gpu in snapshot.gpus.values()])
        stood = _ground(context, snapshot, tests, wanted)
        ask = _ask(args, context, tests, stood.uuids)
        seconds = seconds or 2 * diags.seconds(tests)
        if ask.uuids and not args.json:
            usual, most = duration(diagnose.usual_s(context, ask)), duration(seconds)
            by_hand.say(f"{diags.told(tests)} on {len(ask.uuids)} GPUs: usually takes {usual}, and is ended after {most}")
        report = _run(context, snapshot, ask, seconds + sense_diag.STOP_S, stood)
        _ignore_signals()  # it is over: now it is told and kept
        seen = _judged(context, snapshot, stood, report)
    except ToldToStop as told:
        return common.die(MonitorError("nvhc diag", "", str(told)), common.TROUBLE)
    finally:
        context.book.close()
    if args.json:
        common.say_json(document(context, snapshot, seen))
    else:
        print_out(context, snapshot, seen)
    return common.exit_code(seen.verdict)


def _run(context: Context, snapshot: Snapshot, ask: Ask, seconds: float, stood: Ground) -> Report:
    if not ask.uuids:
        alone = "; ".join(f"{gpu_of(snapshot, uuid)}: {why}" for uuid, why in stood.skipped.items())
        why = stood.why if stood.how == ground.NONE else alone or "there is no GPU"
        return diagnose.not_run(ask, why, snapshot)
    try:
        return diagnose.run(context, snapshot, ask, seconds, f"nvhc diag of {common.user()}")
    except ToldToStop as told:
        return _end(context, snapshot, ask, told)


def _end(context: Context, snapshot: Snapshot, ask: Ask, told: ToldToStop) -> Report:
    """What runs in the engine because of us goes on when we die (nv-hostengine's child): it is ended, and its end seen, first."""
    deadline = time.monotonic() + ENDING_S
    troubles = _end_left(context)
    while troubles and time.monotonic() < deadline:
        time.sleep(0.5)
        troubles = _end_left(context)
    why = f"{told}{f', and it may still run: {troubles[0].detail}' if troubles else ''}"
    stopped = diagnose.not_run(ask, why, snapshot)
    return stopped._replace(outcome=dg.STOPPED, left=bool(troubles), troubles=troubles)


def _end_left(context: Context) -> tuple[Trouble, ...]:
    """As a hook ends what a dead run has left; with time of its own, since what this run had is long over."""
    return diagnose.end_left(context._replace(budget=Budget(ENDING_S)))


def _ground(context: Context, snapshot: Snapshot, tests: tuple[str, ...], wanted: Sequence[str]) -> Ground:
    """Level 1 loads no GPU, so it needs no ground; a GPU that is lost is left alone there too."""
    if diags.active(tests):
        return ground.stand(context, snapshot, os.environ, wanted)
    asked = {uuid: gpu for uuid, gpu in (snapshot.gpus or {}).items() if not wanted or uuid in wanted}
    lost = {uuid: "lost" for uuid, gpu in asked.items() if gpu.status != OK}
    return Ground(ground.NEEDS_NONE, tuple(u for u in asked if u not in lost), lost, "it loads no GPU")


def _judged(context: Context, snapshot: Snapshot, stood: Ground, report: Report) -> Seen:
    inp = Input(
        hook=HEALTH_CHECK,
        snapshot=snapshot,
        before=None,
        changes=(),
        window=Window("none", "", None, snapshot.wall_ns, 0.0, ""),
        policy=context.policy,
        known=context.book.protective().gpus,
    )
    findings = tuple(sorted(judge_diag.findings(inp, report), key=_worst_first))
    # What was asked for and not looked at is unknown, and unknown is not ok.
    asked = [uuid for uuid in inp.gpus() if uuid in report.uuids or uuid in stood.skipped]
    verdicts = {uuid: fd.UNKNOWN if uuid in stood.skipped else _verdict(uuid, inp, report, findings) for uuid in asked}
    verdict = fd.worst([*verdicts.values(), *(f.verdict for f in findings), *([] if verdicts else [fd.UNKNOWN])])
    return Seen(report, stood, findings, verdicts, verdict)


def _policy(args: argparse.Namespace, policy: Policy, tests: tuple[str, ...]) -> Policy:
    """With what the command requires: after the words of the GPUs' models, too."""
    if not args.require:
        return policy
    require = words("--require", args.require)
    strange = next((test for test in require if not diags.includes(tests, test)), "")
    if strange:
        raise InputError("--require", "", f"{strange} is not part of {diags.told(tests)}")
    section = policy.diagnostics._replace(require=require)
    return policy._replace(diagnostics=section, later=(*policy.later, {"diagnostics": {"require": list(require)}}))


def _verdict(uuid: str, inp: Input, report: Report, findings: Sequence[Finding]) -> str:
    gpu = inp.gpus().get(uuid)
    policy = inp.policy.for_model(gpu.identity.model) if gpu is not None else inp.policy
    passed = judge_diag.cleared(report, uuid, policy.diagnostics.require)
    return fd.worst([fd.OK if passed else fd.UNKNOWN, *(f.verdict for f in findings if f.entity == uuid)])


def _worst_first(finding: Finding) -> tuple[int, int]:
    index = finding.gpu.get("nvml_index")
    return (fd.FAIL, fd.WARN, fd.UNKNOWN, fd.OK).index(finding.verdict), index if isinstance(index, int) else 999


# --- stop ------------------------------------------------------------------


def _stop(args: argparse.Namespace) -> int:
    """Whoever began it: an administrator says so."""
    context = by_hand.context(args)
    try:
        stopped = sense_diag.stop(context.node, context.policy.engine, ENDING_S)
        if stopped.gone:
            _end_left(context)  # takes away the mark of a dead run; one that lives does it itself
    finally:
        context.book.close()
    told = "; ".join(t.detail for t in stopped.troubles)
    if args.json:
        troubles = [t._asdict() for t in stopped.troubles]
        common.say_json({"schema": 1, "what": "diag_stop", "node": context.node, **stopped._asdict(), "troubles": troubles})
    elif not stopped.known:
        print(f"{context.node}: it can not be told whether a diagnostic runs: {told or 'the engine does not say'}")
    elif not stopped.ran:
        print(f"{context.node}: no diagnostic runs")
    else:
        print(f"{context.node}: the diagnostic {'was ended' if stopped.gone else f'could not be ended: {told}'}")
    return common.OK if stopped.known and stopped.gone else common.TROUBLE


# --- arguments -------------------------------------------------------------


def _tests(args: argparse.Namespace) -> tuple[str, ...]:
    """What is asked for: a level, or names; level 1 where nothing is said."""
    if args.tests and args.level:
        raise InputError("--tests", "", "and --level exclude each other")
    return words("--tests", args.tests) if args.tests else (str(args.level or 1),)


def words(option: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(diags.name(word) for word in text.split(",") if word.strip()))
    wrong = next((name for name in names if not _TEST.fullmatch(name)), "")
    if wrong or not names:
        raise InputError(option, "", f"{wrong or text!r} is no name of a test", f"such as {', '.join(t.name for t in diags.TESTS[:4])}")
    for name in names:
        # A newer DCGM may have tests that the catalogue does not know; one that is almost a known one is a slip.
        close = nearest(name, diags.BY_NAME) if name not in diags.BY_NAME else ""
        if close:
            raise InputError(option, "", f"unknown test {name}", close)
    return names


def _seconds(args: argparse.Namespace) -> float:
    """0 = not said."""
    if not args.timeout:
        return 0.0
    try:
        seconds = parse_duration(args.timeout)
    except ValueError as exc:
        raise InputError("--timeout", "", str(exc)) from None
    if not 1 <= seconds <= 24 * 3600:
        raise InputError("--timeout", "", f"{duration(seconds)} is no time for a diagnostic", "1s to 24h")
    return seconds


def _ask(args: argparse.Namespace, context: Context, tests: tuple[str, ...], uuids: tuple[str, ...]) -> Ask:
    given = context.policy.diagnostics
    for text in args.parameter:
        if not _PARAMETER.fullmatch(text):
            raise InputError("--parameter", "", f"{text[:60]!r} is not TEST.NAME=VALUE", "such as pcie.test_duration=30")
    return Ask(tests, uuids, tuple(args.parameter) or given.parameters, args.via or given.through, given.dcgmi)


def _told_to_stop(number: int, _frame: Any) -> None:
    _ignore_signals()
    raise ToldToStop(number)


def _ignore_signals() -> None:
    """Once is enough (a pre-empted step gets SIGTERM twice). Not SIG_IGN, which the reader would inherit."""
    for number in by_hand.ENDING:
        signal.signal(number, lambda _number, _frame: None)
