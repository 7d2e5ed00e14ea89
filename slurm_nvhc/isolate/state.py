"""The steps of a search on disk: an interrupted one goes on, and one from before an exchange of cards is there to compare with.

One file a node, replaced whole after each step. A file that can not be read is set aside, which loses steps and nothing else.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Final, Mapping, NamedTuple, Optional, TypeVar

from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.isolate.board import Board, Card
from slurm_nvhc.isolate.model import ALONE, IDLE, TRAFFIC, Group, Seen, Step
from slurm_nvhc.isolate.run import Orders
from slurm_nvhc.proc.files import make_private_dir, write_atomic

SCHEMA: Final = 1
FILE: Final = "isolate.json"
MOST_KEPT: Final = 10  # finished searches
_MAX_BYTES: Final = 32 * 1024 * 1024


class Search(NamedTuple):
    """ended_ns: 0 while it has not come to its end. Times are the node's wall clock, ns UTC."""

    node: str
    boot_id: str
    board: Board
    orders: Orders
    seen: tuple[Seen, ...] = ()
    started_ns: int = 0
    ended_ns: int = 0

    def same_as(self, other: Search) -> bool:
        """May one go on where the other stopped? Same boot, GPUs and commands."""
        mine, theirs = (s.orders._replace(timeout_s=0) for s in (self, other))
        return (self.node, self.boot_id, self.board.uuids, mine) == (other.node, other.boot_id, other.board.uuids, theirs)


class Kept(NamedTuple):
    """current: the search that has not ended; finished: the last ones that have, oldest first."""

    current: Optional[Search] = None
    finished: tuple[Search, ...] = ()

    def going_on(self, search: Search) -> Kept:
        return self._replace(current=search)

    def ended(self, search: Search) -> Kept:
        return Kept(None, (*self.finished, search)[-MOST_KEPT:])


def load(directory: str) -> tuple[Kept, str]:
    """(what is kept in a node's state directory, a line when a file had to be set aside). Raises MonitorError when it can not be read."""
    path = os.path.join(directory, FILE)
    try:
        with open(path, encoding="utf-8") as file:
            raw = json.loads(file.read(_MAX_BYTES))
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            raise ValueError("its schema is not known")
        current = raw["current"]
        return Kept(None if current is None else search_from_json(current), tuple(search_from_json(s) for s in raw["finished"])), ""
    except FileNotFoundError:
        return Kept(), ""
    except OSError as exc:
        raise MonitorError(path, "", f"can not be read: {exc.strerror}", "--state names another directory") from exc
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        aside = f"{path}.bad-{time.time_ns()}"
        try:
            os.replace(path, aside)
        except OSError as problem:
            raise MonitorError(path, "", f"is damaged and can not be set aside: {problem.strerror}") from problem
        why = str(exc)[:80] or type(exc).__name__
        return Kept(), f"{path} can not be understood ({why}): kept as {os.path.basename(aside)}, begun anew"


def save(directory: str, kept: Kept) -> None:
    """Raises MonitorError."""
    document = {
        "schema": SCHEMA,
        "current": None if kept.current is None else search_to_json(kept.current),
        "finished": [search_to_json(search) for search in kept.finished],
    }
    path = os.path.join(directory, FILE)
    try:
        make_private_dir(directory)
        write_atomic(path, json.dumps(document) + "\n")
    except OSError as exc:
        raise MonitorError(path, "", f"can not be written: {exc.strerror}", "--state names another directory") from exc


def read_result(path: str) -> Search:
    """The search in a file that `nvhc isolate --json` wrote. Raises InputError."""
    try:
        with open(path, encoding="utf-8") as file:
            return search_from_json(json.loads(file.read(_MAX_BYTES))["search"])
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror}") from exc
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise InputError(path, "", "is not what `nvhc isolate --json` writes") from exc


# -- JSON ------------------------------------------------------------------------


def search_to_json(search: Search) -> dict[str, Any]:
    board = {**search.board._asdict(), "cards": [card._asdict() for card in search.board.cards]}
    return {**search._asdict(), "board": board, "orders": search.orders._asdict(), "seen": [seen_to_json(seen) for seen in search.seen]}


def seen_to_json(seen: Seen) -> dict[str, Any]:
    return {**seen._asdict(), "step": seen.step._asdict(), "groups": [group._asdict() for group in seen.groups]}


def search_from_json(raw: Mapping[str, Any]) -> Search:
    """KeyError, TypeError, ValueError or AttributeError for what is none."""
    orders, board = raw["orders"], raw["board"]
    return Search(
        node=_text(raw["node"]),
        boot_id=_text(raw["boot_id"]),
        board=Board(
            cards=tuple(Card(**{key: _text(value) for key, value in card.items()}) for card in board["cards"]),
            links=_table(board["links"], _texts),
            fars=_table(board["fars"], _text),
            ports=_table(board["ports"], _texts),
            names=_table(board["names"], _text),
        ),
        orders=Orders(_texts(orders["traffic"]), _texts(orders["alone"]), float(orders["seconds"]), float(orders["timeout_s"])),
        seen=tuple(_seen(item) for item in raw["seen"]),
        started_ns=int(raw["started_ns"]),
        ended_ns=int(raw["ended_ns"]),
    )


def _seen(raw: Mapping[str, Any]) -> Seen:
    step = raw["step"]
    if step["kind"] not in (IDLE, ALONE, TRAFFIC):
        raise ValueError(f"step {str(step['kind'])[:20]!r} is not known")
    groups = tuple(Group(_texts(group["gpus"]), _ended(group["ok"]), _text(group["said"])) for group in raw["groups"])
    return Seen(
        step=Step(step["kind"], tuple(_texts(group) for group in step["groups"]), _text(step["why"])),
        groups=groups,
        growth=_table(raw["growth"], lambda fields: _table(fields, int)),
        unread=_table(raw["unread"], _text),
        events=_texts(raw["events"]),
        wall_ns=int(raw["wall_ns"]),
        seconds=float(raw["seconds"]),
    )


T = TypeVar("T")


def _table(raw: Mapping[str, Any], value: Callable[[Any], T]) -> dict[str, T]:
    return {_text(key): value(item) for key, item in raw.items()}


def _texts(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, (list, tuple)):
        raise TypeError("a list was expected")
    return tuple(_text(item) for item in raw)


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError("text was expected")
    return raw


def _ended(raw: Any) -> Optional[bool]:
    if raw is not None and not isinstance(raw, bool):
        raise TypeError("true, false or null was expected")
    return raw
