"""`nvhc sweep`: one diagnostic a node, as Slurm jobs; results gathered, kept and shown."""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shlex
import shutil
import signal
import sys
import time
from typing import Any, Final, Iterable, Mapping, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.cli import by_hand, common, drained
from slurm_nvhc.cli.diag import words
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.times import duration, iso, parse_duration
from slurm_nvhc.proc.files import write_atomic
from slurm_nvhc.slurm import hostlist
from slurm_nvhc.slurm.fleet import MOST_NODES, FleetNode
from slurm_nvhc.slurm.jobs import SlurmJobs
from slurm_nvhc.sweep import plan, queue, store
from slurm_nvhc.sweep.outcome import NodeResult
from slurm_nvhc.sweep.queue import Queue
from slurm_nvhc.sweep.run import Limits, Missed, Sweep

START_S: Final = 300.0  # of a job's time limit: prolog, reading the node, ending what takes longer than it should
SCREEN_S: Final = 3600.0  # how long a site's own command takes is not known
GIVEN_UP_S: Final = 1800.0  # after which, beyond all that Slurm bounds, an srun is given up
MOST_AT_ONCE: Final = 256  # each is an srun here, with two pipes of the 1024 files that a process may have open
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:/@+-]+")
_COLUMNS: Final = ("verdict", "node", "GPUs", "took", "when", "what")


def sweep(args: argparse.Namespace) -> int:
    if args.show:
        kept = store.Store(args.show)
        task = kept.task()
        if task is None:
            raise InputError(args.show, "", "is not the folder of a sweep")
        return _tell(args, task, list(kept.results().values()), ())
    command = _command(args)
    limits = Limits(
        _count("--at-once", args.at_once, MOST_AT_ONCE), _time("--wait", args.wait), _time("--patience", args.patience),
        _count("--tries", args.tries), max(0.1, _time("--every", args.every)),
    )  # fmt: skip
    since_ns = time.time_ns() if args.again else time.time_ns() - round(_time("--max-age", args.max_age) * 1e9) if args.max_age else 0
    for name in ("partition", "qos", "account", "reservation"):
        if not _PLAIN.fullmatch(getattr(args, name) or ("" if name == "partition" else "-")):
            raise InputError(f"--{name}", "", "is missing" if not getattr(args, name) else "is no such name")
    given = drained.policy(args)
    slurm_conf = drained.slurm_conf(args, given)
    kept = store.Store(args.dir or f"{os.path.abspath(args.state)}/sweeps/{_folder(args.partition, command)}")
    whole = args.screen or diags.active(_tests(args))
    options = queue.Options(args.partition, "nvhc-sweep", _minutes(args), args.nice, args.qos, args.account, args.reservation, whole)
    slurm = Queue(given.slurm.bin_dir, slurm_conf, options, _remote(args, command), limits.wait_s + options.minutes * 60 + GIVEN_UP_S)
    nodes = _nodes(args, slurm)
    if whole:
        _gives_way(options, SlurmJobs(given.slurm.bin_dir, slurm_conf, queue.CALL_S))
    if args.dry_run:
        return _dry_run(args, slurm, nodes, kept, since_ns, limits)
    task = kept.open(args.partition, command)
    slurm.options = options._replace(name=task.name)
    with kept.alone():
        return _run(args, task, slurm, kept, nodes, limits, since_ns)


def _run(
    args: argparse.Namespace, task: store.Task, slurm: Queue, kept: store.Store, nodes: Iterable[str], limits: Limits, since_ns: int
) -> int:
    nodes = list(nodes)
    results = kept.results()
    todo = [name for name in nodes if not store.done(results.get(name), since_ns)]
    if len(todo) < len(nodes):
        by_hand.say(f"{len(nodes) - len(todo)} of {len(nodes)} nodes have a result already (--again sweeps them too)")
    work = Sweep(slurm, todo, limits, kept.put, by_hand.say)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, exit statuses would be lost
    for number in by_hand.ENDING:
        signal.signal(number, _interrupt)
    missed: tuple[Missed, ...] = ()
    interrupted = False
    try:
        missed = work.run()
    except KeyboardInterrupt:
        interrupted = True
        missed = work.missed()
    shown = {name: result for name, result in {**results, **work.results}.items() if name in nodes}
    code = _tell(args, task, list(shown.values()), [m for m in missed if m.node not in work.results])
    if interrupted:
        by_hand.say(f"interrupted: no job of it is left; the same command goes on where it stopped ({kept.directory})")
        return common.TROUBLE
    return code


def _interrupt(_number: int, _frame: object) -> None:
    for number in by_hand.ENDING:
        signal.signal(number, lambda _number, _frame: None)  # its jobs are ended first, which takes up to KillWait
    by_hand.say("ending the jobs of this sweep")
    raise KeyboardInterrupt


# --- arguments -------------------------------------------------------------


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    """The words for nvhc on a node that say what is run there: what a folder's results are results of."""
    if args.screen and (args.level or args.tests):
        raise InputError("--screen", "", "goes without --level and --tests")
    if args.tests and args.level:
        raise InputError("--tests", "", "and --level exclude each other")
    _check_more("screen" if args.screen else "diag", args.more)
    if args.screen:
        return ("screen", *args.more)
    what = ("--tests", ",".join(words("--tests", args.tests))) if args.tests else ("--level", str(args.level or 2))
    return ("diag", *what, *args.more)


def _check_more(command: str, more: Sequence[str]) -> None:
    """What the nodes would refuse, each of them three times; and what would make it another sweep than this one."""
    from slurm_nvhc.cli.main import parser  # it knows this module by its name only

    asked = parser().parse_args([command, *more])
    if command == "diag" and (asked.level or asked.tests or asked.stop):
        raise InputError("--", "", "--level, --tests and --stop do not go there", "nvhc sweep has --level and --tests itself")


def _tests(args: argparse.Namespace) -> tuple[str, ...]:
    return words("--tests", args.tests) if args.tests else (str(args.level or 2),)


def _minutes(args: argparse.Namespace) -> int:
    if args.time:
        return _count("--time", args.time)
    return round((SCREEN_S if args.screen else 2 * diags.seconds(_tests(args)) + START_S) / 60 + 0.5)


def _remote(args: argparse.Namespace, command: tuple[str, ...]) -> tuple[str, ...]:
    """nvhc on the node, with the same places as here."""
    nvhc = shlex.split(args.nvhc) or [_here()]
    places = ("--config", os.path.abspath(args.config), "--state", os.path.abspath(args.state), "--run", os.path.abspath(args.run))
    conf = ("--slurm-conf", args.slurm_conf) if args.slurm_conf else ()
    return (*nvhc, *command, "--json", "--partition", args.partition, *places, *conf)


def _here() -> str:
    own = os.path.abspath(sys.argv[0])
    found = own if os.path.basename(own) == "nvhc" and os.access(own, os.X_OK) else shutil.which("nvhc")
    if not found:
        raise InputError("--nvhc", "", "is missing: where nvhc is on the nodes is not known", "an absolute path")
    return found


def _nodes(args: argparse.Namespace, slurm: Queue) -> dict[str, FleetNode]:
    """Those to be swept, by name. InputError for one that is not in the partition."""
    there = slurm.nodes()
    if not args.nodes:
        return there
    try:
        named = hostlist.expand(args.nodes, MOST_NODES)
    except ValueError as exc:
        raise InputError("--nodes", "", str(exc)) from None
    unknown = next((name for name in named if name not in there), "")
    if unknown or not named:
        raise InputError("--nodes", "", f"{unknown or args.nodes!r} is no node of partition {args.partition}")
    return {name: there[name] for name in named}


def _gives_way(options: queue.Options, jobs: SlurmJobs) -> None:
    """A suspended job's diagnostic goes on in the engine, beside the job that it made way for."""
    rules = jobs.partitions().get(options.partition)
    if rules is None:
        return
    if "SUSPEND" in rules.preempt or "GANG" in rules.preempt:
        hint = "a partition with PreemptMode=CANCEL or OFF"
        raise InputError(options.partition, "", f"suspends jobs (PreemptMode={rules.preempt}), and a diagnostic can not be suspended", hint)
    if rules.preempt == "OFF" and not options.qos:
        longest = f"a user's job may wait up to {options.minutes} minutes for a node"
        by_hand.say(f"jobs in {options.partition} are not pre-empted (PreemptMode=OFF): {longest}")


def _count(option: str, number: int, most: int = MOST_NODES) -> int:
    if not 1 <= number <= most:
        raise InputError(option, "", f"{number} is not a number from 1 to {most}")
    return number


def _time(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise InputError(option, "", str(exc)) from None


def _folder(partition: str, command: Sequence[str]) -> str:
    what = "-".join(word.lstrip("-") for word in command)
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{partition}-{what}")[:120]


# --- output ----------------------------------------------------------------


def _dry_run(
    args: argparse.Namespace, slurm: Queue, nodes: Mapping[str, FleetNode], kept: store.Store, since_ns: int, limits: Limits
) -> int:
    results = kept.results() if os.path.isdir(kept.directory) else {}
    held, rows = slurm.held(), []
    for name, node in nodes.items():
        result, why = results.get(name), plan.why_not(node)
        if store.done(result, since_ns) and result is not None:
            what = f"has a result: {result.verdict} of {iso(result.at_ns)}"
        elif why:
            what = f"not reached: {_and(why, plan.by_hand(node))}"
        else:
            what = shlex.join(("srun", *queue.arguments(slurm.options, node, held.get(name, 0), slurm.remote)))
        rows.append((name, node.state, what))
    if args.json:
        common.say_json({"schema": 1, "nodes": [dict(zip(("node", "state", "what"), row)) for row in rows]})
    else:
        common.console().print(common.table(f"at most {limits.at_once} at once", ("node", "state", "what"), rows))
    return common.OK


def _tell(args: argparse.Namespace, task: store.Task, results: Sequence[NodeResult], missed: Sequence[Missed]) -> int:
    rank = {fd.FAIL: 0, fd.WARN: 1, fd.UNKNOWN: 2, fd.OK: 3}
    results = sorted(results, key=lambda r: (rank[r.verdict], r.node))
    verdict = fd.worst([*(r.verdict for r in results), *([fd.UNKNOWN] if missed or not results else [])])
    if args.csv:
        _write_csv(args.csv, results, missed)
    if args.json:
        nodes = [{**r._asdict(), "gpus": [g._asdict() for g in r.gpus], "at": iso(r.at_ns)} for r in results]
        sweep = {"partition": task.partition, "command": list(task.command)}
        common.say_json({"schema": 1, "sweep": sweep, "verdict": verdict, "nodes": nodes, "missed": [m._asdict() for m in missed]})
        return common.exit_code(verdict)
    out = common.console()
    rows: list[tuple[Any, ...]] = [
        (common.verdict_text(r.verdict), r.node, _gpus(r), duration(r.seconds), iso(r.at_ns), _what(r)) for r in results
    ]
    rows += [(common.verdict_text(fd.UNKNOWN), m.node, "", "", "", f"not reached: {_and(m.why, m.how)}") for m in missed]
    out.print(common.table(f"{task.partition}: nvhc {' '.join(task.command)}", _COLUMNS, rows))
    counted = {v: sum(r.verdict == v for r in results) for v in (fd.FAIL, fd.WARN, fd.UNKNOWN, fd.OK)}
    told = ", ".join(f"{n} {v}" for v, n in counted.items() if n)
    out.print(common.verdict_text(verdict), f" {len(results)} nodes: {told or 'none'}; {len(missed)} not reached", sep="")
    return common.exit_code(verdict)


def _write_csv(path: str, results: Sequence[NodeResult], missed: Sequence[Missed]) -> None:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("node", "verdict", "gpus", "seconds", "at", "tries", "why"))
    for r in results:
        rows.writerow((r.node, r.verdict, " ".join(g.name or g.uuid for g in r.gpus), f"{r.seconds:g}", iso(r.at_ns), r.tries, _what(r)))
    for m in missed:
        rows.writerow((m.node, fd.UNKNOWN, "", "", "", 0, f"not reached: {m.why}"))
    try:
        write_atomic(os.path.abspath(path), text.getvalue(), 0o644)
    except OSError as exc:
        raise MonitorError(path, "", f"can not be written: {exc.strerror or exc}") from exc


def _gpus(result: NodeResult) -> str:
    return " ".join(gpu.name or gpu.uuid for gpu in result.gpus)


def _what(result: NodeResult) -> str:
    told = dict.fromkeys(gpu.why for gpu in result.gpus if gpu.why)
    return "; ".join([*([result.why] if result.why else []), *told])


def _and(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
