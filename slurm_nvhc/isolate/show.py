"""Steps as a table, errors as heat maps: of pairs of GPUs, and of each GPU's links. What is drawn is reckoned here without drawing too."""

from __future__ import annotations

import math
from typing import Any, Final, Iterable, Mapping, Optional, Sequence

from rich.text import Text

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.isolate.board import Board
from slurm_nvhc.isolate.model import TRAFFIC, Group, Seen
from slurm_nvhc.model import entity
from slurm_nvhc.model.times import duration

BLOCKS: Final = "▁▂▃▄▅▆▇█"
CLEAN: Final = "·"
NO_DATA: Final = "?"
UNTRIED: Final = " "
MOST_NAMED: Final = 4  # parts that a row names
_FAILED: Final = 1  # a command that failed counts as so many errors: it says that there are some, not how many
_HOT: Final = ("yellow", "red", "bold red")

Pairs = Mapping[tuple[str, str], Optional[int]]


# -- reckoned ------------------------------------------------------------------------


def total(seen: Seen, name: str) -> int:
    return sum(seen.growth.get(name, {}).values())


def link_errors(board: Board, steps: Iterable[Seen]) -> dict[str, Optional[int]]:
    """Each link of the GPUs -> errors that its two ends counted under traffic; None where neither was ever read."""
    traffic = [seen for seen in steps if seen.step.kind == TRAFFIC]
    out: dict[str, Optional[int]] = {}
    for links in board.links.values():
        for link in links:
            ends = [end for end in (link, board.fars.get(link, "")) if "/" in end]
            errors = sum(total(seen, end) for seen in traffic for end in ends)
            read = any(end not in seen.unread for seen in traffic for end in ends)
            out[link] = errors if errors or read else None
    return out


def pair_errors(board: Board, steps: Iterable[Seen]) -> Pairs:
    """Two GPUs -> the fewest errors of any group that both were in; None where no group with both gave a result.

    The fewest, because one group that was clean clears its pairs: what stays dark is where the errors are.
    """
    out: dict[tuple[str, str], Optional[int]] = {}
    for seen in steps:
        for group in seen.groups if seen.step.kind == TRAFFIC else ():
            errors = _of_group(board, seen, group)
            for one in group.gpus:
                for other in group.gpus:
                    if one < other and errors is not None:
                        before = out.get((one, other))
                        out[one, other] = errors if before is None else min(before, errors)
    uuids = board.uuids
    return {(a, b): out.get((min(a, b), max(a, b))) for a in uuids for b in uuids if a != b}


def _of_group(board: Board, seen: Seen, group: Group) -> Optional[int]:
    ends = {name for uuid in group.gpus for link in board.links.get(uuid, ()) for name in (link, board.fars.get(link, ""))}
    told = _told(seen)
    errors = sum(sum(told.get(name, {}).values()) for name in (ends | set(group.gpus)) - {""})
    if group.ok is False:
        return errors + _FAILED
    blind = group.ok is None or any(name in seen.unread for name in ends & set(seen.unread))
    return errors if errors else None if blind else 0


def matrices(board: Board, steps: Sequence[Seen]) -> dict[str, Any]:
    """For programs: null is "not known", which is not 0."""
    pairs = pair_errors(board, steps)
    rows = {a: {b: pairs[a, b] for b in board.uuids if a != b} for a in board.uuids}
    return {"pairs": rows, "links": link_errors(board, steps)}


# -- drawn ---------------------------------------------------------------------------


STEP_COLUMNS: Final = ("step", "what ran", "result", "errors", "time", "why")


def step_rows(board: Board, steps: Sequence[Seen]) -> list[tuple[Any, ...]]:
    return [(number, *step_row(board, seen), duration(seen.seconds), seen.step.why) for number, seen in enumerate(steps, 1)]


def step_row(board: Board, seen: Seen) -> tuple[str, Text, Text]:
    """What ran, how the commands ended, what was counted."""
    return groups_text(board, [g.gpus for g in seen.groups]) or "nothing", _results(seen), _errors(board, seen)


def groups_text(board: Board, groups: Iterable[Sequence[str]]) -> str:
    """"gpu0-3 | gpu4-7"; each GPU alone: "gpu0-7 each alone"."""
    groups = list(groups)
    if len(groups) > 1 and all(len(group) == 1 for group in groups):
        return f"{_gpus(board, [group[0] for group in groups])} each alone"
    return " | ".join(_gpus(board, group) for group in groups)


def _gpus(board: Board, uuids: Sequence[str]) -> str:
    """"gpu0-3,6"; names that are no numbers as they are."""
    names = [board.names.get(uuid, uuid[:12]) for uuid in uuids]
    if not all(name.removeprefix("gpu").isdigit() for name in names):
        return ",".join(names)
    numbers = sorted(int(name.removeprefix("gpu")) for name in names)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "gpu" + ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in spans)


def _results(seen: Seen) -> Text:
    out = Text()
    for group in seen.groups:
        word, style = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("no result", "magenta")}[group.ok]
        out.append(" | " if out else "")
        out.append(word, style=style)
    return out if len({group.ok for group in seen.groups}) > 1 or len(seen.groups) < 2 else Text(f"all {out.plain.split(' | ')[0]}")


def _errors(board: Board, seen: Seen) -> Text:
    rows = sorted(((sum(fields.values()), name, fields) for name, fields in _told(seen).items()), key=lambda row: (-row[0], row[1]))
    parts = [f"{board.name(name)} +{count} {_labels(fields)}" for count, name, fields in rows[:MOST_NAMED]]
    if len(rows) > MOST_NAMED:
        parts.append(f"and {len(rows) - MOST_NAMED} more parts")
    parts += [_event(board, event) for event in seen.events[:MOST_NAMED]]
    out = Text("; ".join(parts), style="yellow" if parts else "")
    if seen.unread:
        # A part without counters at all is as good as not there; the others are named.
        out.append(f"{'; ' if parts else ''}{len(seen.unread)} parts not read", style="magenta")
    return out if out else Text("none")


def _told(seen: Seen) -> dict[str, Mapping[str, int]]:
    """What grew, without a GPU's sums over links that say it themselves."""
    ends = {entity.gpu_of(name) for name in seen.growth if "/link" in name}
    out: dict[str, Mapping[str, int]] = {}
    for name, fields in seen.growth.items():
        if name in ends:
            fields = {field: count for field, count in fields.items() if not cat.of_links(cat.BY_NAME[field])}
        if fields:
            out[name] = fields
    return out


def _labels(fields: Mapping[str, int]) -> str:
    names = [cat.BY_NAME[name].label if name in cat.BY_NAME else name for name in fields]
    return ", ".join("went down" if name in ("nvlink_state", "port_state") else label for name, label in zip(fields, names))


def _event(board: Board, event: str) -> str:
    """"Xid 74 on GPU-…/link11" by the name of the GPU."""
    what, _, where = event.rpartition(" on ")
    return f"{what} on {board.name(where)}" if what else event


def pair_map(board: Board, steps: Sequence[Seen]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: a GPU each."""
    pairs = pair_errors(board, steps)
    most = max((count or 0 for count in pairs.values()), default=0)
    rows: list[list[Any]] = []
    for one in board.uuids:
        cells = [Text("\\") if one == other else _cell(pairs[one, other], most) for other in board.uuids]
        rows.append([board.names.get(one, one[:12]), *cells])
    return ["", *(board.names.get(uuid, uuid[:12]) for uuid in board.uuids)], rows


def _cell(count: Optional[int], most: int) -> Text:
    if count is None:
        return Text(UNTRIED)
    return Text(f"{block(count, most)}{short(count)}", style=_heat(count, most)) if count else Text(CLEAN, style="green")


def link_map(board: Board, steps: Sequence[Seen]) -> list[list[Any]]:
    """Rows: a GPU, one sign per link in the order of their numbers, and the worst links with their counts."""
    errors = link_errors(board, steps)
    most = max((count or 0 for count in errors.values()), default=0)
    rows: list[list[Any]] = []
    for uuid in board.uuids:
        links = board.links.get(uuid, ())
        signs = Text()
        for link in links:
            count = errors[link]
            signs.append(NO_DATA if count is None else block(count, most) if count else CLEAN, style=_heat(count or 0, most))
        worst = sorted((link for link in links if errors[link]), key=lambda link: (-(errors[link] or 0), link))
        named = [f"link{entity.split_link(link)[1]} +{errors[link]}" for link in worst[:MOST_NAMED]]
        more = [f"and {len(worst) - MOST_NAMED} more"] if len(worst) > MOST_NAMED else []
        rows.append([board.names.get(uuid, uuid[:12]), signs, ", ".join([*named, *more])])
    return rows


def block(count: int, most: int) -> str:
    """A bar for a count among others, by its order of magnitude: one error must be seen beside a million."""
    if count <= 0:
        return CLEAN
    share = math.log1p(count) / math.log1p(max(count, most))
    return BLOCKS[min(len(BLOCKS) - 1, max(0, math.ceil(share * len(BLOCKS)) - 1))]


def _heat(count: int, most: int) -> str:
    if count <= 0:
        return ""
    return _HOT[min(len(_HOT) - 1, int(math.log1p(count) / math.log1p(max(count, most)) * len(_HOT)))]


def short(count: int) -> str:
    """951, 1.2k, 34k, 5.6M."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            value = count / size
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(count)
