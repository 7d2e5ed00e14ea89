"""A whole search: begun or gone on with, step by step as the plan says, kept on disk after each."""

from __future__ import annotations

from typing import Callable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.context import Context
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.ground import Ground
from slurm_nvhc.isolate import board as boards
from slurm_nvhc.isolate import plan, run, show, state
from slurm_nvhc.isolate.counted import GONE
from slurm_nvhc.isolate.model import ALONE, Group, Seen, Step
from slurm_nvhc.isolate.run import Orders
from slurm_nvhc.isolate.state import Kept, Search
from slurm_nvhc.model.times import duration

Say = Callable[[str], None]  # a line about the progress


class Begun(NamedTuple):
    """ground: what may be used, and what was left alone. notes: lines about what was kept from earlier."""

    search: Search
    ground: Ground
    kept: Kept
    cursor: str
    notes: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """stopped: why it did not come to its end, '' when it did. lost: GPUs that fell out on the way -> what was seen of it."""

    search: Search
    stopped: str = ""
    lost: Mapping[str, str] = {}


def begin(context: Context, environment: Mapping[str, str], wanted: Sequence[str], orders: Orders, fresh: bool, directory: str) -> Begun:
    """Where the search stands: on which ground, and after which steps. Raises InputError and MonitorError; starts nothing.

    wanted: UUIDs, () = all that may be used. fresh: do not go on with an interrupted search.
    """
    snapshot = run.look(context)
    ground = run.stand(context, snapshot, environment, wanted)
    if not ground.uuids:
        left = "; ".join(f"{uuid}: {why}" for uuid, why in ground.skipped.items())
        raise InputError(context.node, "", f"no GPU of it can be used: {left or ground.why}")
    search = Search(context.node, snapshot.boot_id, boards.of(snapshot, ground.uuids), orders, started_ns=snapshot.wall_ns)
    kept, note = state.load(directory)
    notes = [note] if note else []
    old = kept.current
    if old is not None and not fresh:
        if search.same_as(old):
            notes.append(f"goes on after {_steps(len(old.seen))} of an interrupted search (--fresh begins anew)")
            search = old._replace(orders=orders)
        elif old.seen:
            notes.append(f"an interrupted search of {_steps(len(old.seen))} is given up: {_difference(search, old)}")
    return Begun(search, ground, kept, snapshot.kernel_cursor, tuple(notes))


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _difference(new: Search, old: Search) -> str:
    if new.boot_id != old.boot_id:
        return "the node was booted since"
    return "it was about other GPUs" if new.board.uuids != old.board.uuids else "its commands were others"


def carry_on(context: Context, environment: Mapping[str, str], begun: Begun, limits: plan.Limits, directory: str, say: Say) -> Outcome:
    """All steps that are left. Interrupted passes through, with all steps that were done on disk."""
    search, kept, cursor = begun.search, begun.kept, begun.cursor
    while (step := plan.next_step(search.board, search.seen, limits)) is not None:
        try:
            before = run.free(context, environment, search.board.uuids, cursor)
            say(announced(search, step))
            seen = run.do(context, search.orders, step, len(search.seen) + 1, before, search.board.uuids)
        except run.Lost as exc:
            return Outcome(search, f"{', '.join(map(search.board.name, exc.uuids))} {exc.problem}", dict.fromkeys(exc.uuids, exc.problem))
        except MonitorError as exc:
            return Outcome(search, str(exc))
        cursor = before.kernel_cursor
        useless = _useless(seen)
        # A step that told nothing is no step to go on from: the command may be mended by then.
        kept = kept.going_on(search if useless else search._replace(seen=(*search.seen, seen)))
        search = search._replace(seen=(*search.seen, seen))
        state.save(directory, kept)
        say(done(search))
        gone = {uuid: f"does not answer since step {len(search.seen)}" for uuid in search.board.uuids if seen.unread.get(uuid) == GONE}
        if gone or useless:
            named = "; ".join(f"{search.board.name(uuid)} {why}" for uuid, why in gone.items())
            return Outcome(search, named or useless, gone)
    search = search._replace(ended_ns=_end_ns(search))
    state.save(directory, kept.ended(search))
    return Outcome(search)


def if_nothing(board: boards.Board, limits: plan.Limits) -> tuple[Step, ...]:
    """The steps of a search that finds nothing. Anything that it finds leads elsewhere."""
    seen: list[Seen] = []
    while (step := plan.next_step(board, seen, limits)) is not None:
        seen.append(Seen(step, tuple(Group(gpus, True) for gpus in step.groups)))
    return tuple(one.step for one in seen)


def announced(search: Search, step: Step) -> str:
    what = f"{show.groups_text(search.board, step.groups)}, " if step.groups else ""
    return f"step {len(search.seen) + 1}: {what}{duration(search.orders.seconds)}: {step.why}"


def done(search: Search) -> str:
    _what, results, errors = show.step_row(search.board, search.seen[-1])
    return f"step {len(search.seen)}: {f'{results.plain}; ' if results else ''}errors: {errors.plain}"


def _useless(seen: Seen) -> str:
    """A command that gives no result on any GPU by itself tells nothing about hardware."""
    if seen.step.kind != ALONE or len(seen.groups) < 2 or any(group.ok for group in seen.groups):
        return ""
    said = next((group.said for group in seen.groups if group.said), "")
    return f"the command works on no GPU, so it is not a GPU's fault: {said}"


def _end_ns(search: Search) -> int:
    last: Optional[Seen] = search.seen[-1] if search.seen else None
    return search.started_ns if last is None else last.wall_ns + round(last.seconds * 1e9)
