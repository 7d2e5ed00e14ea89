"""What `nvhc isolate` prints: steps, heat maps, what was found and how sure that is, and the commands that would act on it."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from rich.console import Console
from rich.text import Text

from slurm_nvhc.cli import by_hand, common
from slurm_nvhc.ground import Ground
from slurm_nvhc.isolate import explain as ex
from slurm_nvhc.isolate import run, show, swap
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.explain import Accused, Explanation
from slurm_nvhc.isolate.model import IDLE, TRAFFIC, Step
from slurm_nvhc.isolate.run import Orders
from slurm_nvhc.isolate.search import Outcome
from slurm_nvhc.isolate.state import search_to_json
from slurm_nvhc.model import entity
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.times import duration
from slurm_nvhc.policy.compiled import Policy

_STYLES: Final = {ex.CERTAIN: "bold red", ex.LIKELY: "red", ex.ONE_OF: "yellow"}
_MOST_LINES: Final = 8  # of one kind: what could not be read, what is too little


class Result(NamedTuple):
    """excluded: GPUs that are kept from jobs already. compared: after an exchange of cards. policy: in force there."""

    node: str
    ground: Ground
    outcome: Outcome
    explanation: Explanation
    compared: Optional[swap.Verdict]
    excluded: frozenset[str]
    policy: Policy

    @property
    def found(self) -> bool:
        return self.explanation.found or bool(self.outcome.lost)

    @property
    def unknown(self) -> bool:
        return self.explanation.outcome == ex.UNKNOWN

    @property
    def board(self) -> Board:
        return self.outcome.search.board


def headlines(result: Result) -> list[str]:
    lost = [f"{result.board.name(uuid)} {why}" for uuid, why in result.outcome.lost.items()]
    return [*lost, *([result.explanation.said] if result.explanation.found or not lost else [])]


def advice(result: Result) -> list[str]:
    """Commands that act on what was found; none is run."""
    out = []
    for accused in result.explanation.parts:
        uuids = {entity.gpu_of(name) for name in accused.place.entities} - {""}
        why = f"isolate: {accused.place.name} ({accused.confidence})"
        if accused.others or len(uuids) != 1 or accused.place.kind in (ex.PAIR, ex.SWITCH, ex.SHARED):
            out.append(by_hand.drain(result.node, why))
            continue
        (uuid,) = uuids
        gpu = result.board.name(uuid)
        if uuid in result.excluded:
            out.append(f"nvhc gpu verify {gpu} --why {shlex.quote(why)}")
        else:
            out.append(by_hand.take_out(result.policy, result.node, gpu, why))
    return list(dict.fromkeys(out))


# --- as JSON ---------------------------------------------------------------


def document(result: Result) -> dict[str, Any]:
    search, explanation = result.outcome.search, result.explanation
    return {
        "schema": 1, "what": "isolate", "node": result.node,
        "outcome": ex.FOUND if result.found else explanation.outcome, "said": headlines(result),
        "explanation": ex.to_json(explanation), "lost": dict(result.outcome.lost), "stopped": result.outcome.stopped,
        "ground": {"how": result.ground.how, "job": result.ground.job, "why": result.ground.why}, "skipped": dict(result.ground.skipped),
        "swapped": None if result.compared is None else result.compared.to_json(),
        "advice": advice(result), "matrices": show.matrices(search.board, search.seen), "search": search_to_json(search),
    }  # fmt: skip


# --- for people ------------------------------------------------------------


def print_out(result: Result) -> None:
    out, search = common.console(), result.outcome.search
    board, seen = search.board, search.seen
    if seen:
        out.print(common.table(f"{result.node}: {result.ground.why}", show.STEP_COLUMNS, show.step_rows(board, seen)))
    if any(one.step.kind == TRAFFIC for one in seen):
        _maps(out, result)
    for uuid, why in result.ground.skipped.items():
        out.print(f"left alone: {board.name(uuid)} {uuid}: {why}")
    for line in headlines(result):
        out.print(Text(line, style="bold red" if result.found else "magenta" if result.unknown else "green"))
    _parts(out, result.explanation)
    for title, lines in _notes(result.explanation):
        for line in lines[:_MOST_LINES]:
            out.print(f"{title}: {line}")
        if len(lines) > _MOST_LINES:
            out.print(f"{title}: and {len(lines) - _MOST_LINES} more (--json has all)")
    if result.outcome.stopped:
        out.print(Text(f"it did not come to its end: {result.outcome.stopped}", style="magenta"))
    if result.compared is not None:
        _swapped(out, result.compared)
    commands = advice(result)
    if commands:
        out.print("nothing was drained or excluded; to act on it:")
    for command in commands:
        out.print(f"    {command}")


def _maps(out: Console, result: Result) -> None:
    board, seen = result.board, result.outcome.search.seen
    if len(board.cards) > 2:
        columns, rows = show.pair_map(board, seen)
        title = f"pairs: fewest errors of any group with both ({show.CLEAN} clean, empty: not known)"
        out.print(common.table(title, columns, rows))
    if any(board.links.values()):
        title = f"links: errors under traffic, both ends ({show.CLEAN} clean, {show.NO_DATA} not read)"
        out.print(common.table(title, ("gpu", "from link 0 on", "worst"), show.link_map(board, seen)))


def _parts(out: Console, explanation: Explanation) -> None:
    if explanation.parts:
        rows = [_row(accused) for accused in explanation.parts]
        out.print(common.table("", ("part", "how sure", "why", "seen in steps", "not in"), rows))


def _row(accused: Accused) -> tuple[Any, ...]:
    names = [accused.place.name, *(other.name for other in accused.others)]
    steps = (", ".join(map(str, numbers)) or "-" for numbers in (accused.shown, accused.quiet))
    return ", or ".join(names), Text(accused.confidence, style=_STYLES.get(accused.confidence, "")), accused.why, *steps


def _notes(explanation: Explanation) -> list[tuple[str, Sequence[str]]]:
    return [
        ("not explained", explanation.unexplained),
        ("grows while nothing runs", explanation.background),
        ("too few to accuse anybody", explanation.strays),
        ("not known", explanation.unknown),
    ]


def _swapped(out: Console, verdict: swap.Verdict) -> None:
    words = {
        swap.FOLLOWED: "FOLLOWED THE CARD", swap.STAYED: "STAYED WITH THE SLOT", swap.GONE: "gone", swap.ELSEWHERE: "elsewhere",
        swap.UNTOLD: "can not be told",
    }  # fmt: skip
    out.print(common.table("exchanged: " + "; ".join(verdict.exchanged), ("fault before", "the fault", "why"), [
        (moved.fault, words.get(moved.how, moved.how), moved.why) for moved in verdict.moved
    ]))  # fmt: skip
    for name in verdict.apart:
        out.print(f"not on an exchanged card, the exchange tells nothing of it: {name}")


# --- what would run --------------------------------------------------------


def planned(args: argparse.Namespace, board: Board, orders: Orders, steps: Sequence[Step], rows: Mapping[str, GpuIdentity]) -> None:
    """The steps of a search that finds nothing."""

    def command(group: Sequence[str]) -> str:
        words = orders.alone if len(group) == 1 and orders.alone else orders.traffic
        return shlex.join(run.placeholders(words, [rows[uuid] for uuid in group], orders.seconds))

    if args.json:
        common.say_json({
            "schema": 1, "what": "isolate plan", "seconds": orders.seconds, "timeout": orders.timeout_s,
            "steps": [{**step._asdict(), "commands": [command(group) for group in step.groups]} for step in steps],
        })  # fmt: skip
        return
    cells = []
    for number, step in enumerate(steps, 1):
        what = "nothing" if step.kind == IDLE else show.groups_text(board, step.groups)
        cells.append((number, what, "; ".join(dict.fromkeys(command(group) for group in step.groups)) or "-", step.why))
    out = common.console()
    out.print(common.table("if nothing is found", ("step", "groups", "command", "why"), cells))
    out.print(f"{duration(len(steps) * orders.seconds)} in all, and the readings around each step; nothing was run")
