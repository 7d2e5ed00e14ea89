"""Ask for what the engine remembers: the watch, its history, and the engine's own health check.

The hook's side, like client.py: light imports, never raises, one reader process per call.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model.history import FAIL, WARN, Health, History, Incident, Sample, Watch
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense import client, protocol
from slurm_nvhc.sense.decode import decode
from slurm_nvhc.sense.text import MAX_NAME, clean
from slurm_nvhc.sense.values import check

MAX_INCIDENTS: Final = 200


class _Answer(NamedTuple):
    """part: the operation's part of the reply, None when it did not come."""

    part: Optional[Mapping[str, Any]]
    troubles: tuple[Trouble, ...]


def ensure_watch(node: str, engine: Engine, deadline_s: float) -> Watch:
    """Have the engine sample the fields of in-job rules: found, or made where it is not there. For the health check."""
    answer = _ask("watch", node, engine, deadline_s)
    if answer.part is None:
        return Watch(False, troubles=answer.troubles)
    return Watch(True, answer.part.get("watched") is True, answer.part.get("made") is True, answer.troubles)


def remove_watch(node: str, engine: Engine, deadline_s: float) -> Watch:
    """Take the watch away, for uninstalling. ``known`` is False when the engine could not be asked: it may still be there."""
    answer = _ask("unwatch", node, engine, deadline_s)
    return Watch(answer.part is not None, troubles=answer.troubles)


def read_history(node: str, engine: Engine, deadline_s: float, since_ns: int, until_ns: int, fields: Sequence[str]) -> History:
    """What the engine sampled of some catalogue fields of all GPUs between two moments (ns UTC, both included)."""
    answer = _ask("history", node, engine, deadline_s, since_ns=since_ns, until_ns=until_ns, fields=tuple(fields))
    if answer.part is None or answer.part.get("watched") is not True:
        return History(False, {}, answer.troubles)
    lies: list[str] = []
    series: dict[str, dict[str, tuple[Sample, ...]]] = {}
    raw = answer.part.get("series")
    for uuid, of_gpu in raw.items() if isinstance(raw, dict) else ():
        if entity.gpu_of(uuid) != uuid or not isinstance(of_gpu, dict):
            lies.append("a series of no GPU")
            continue
        series[uuid] = {name: _samples(cat.BY_NAME[name], taken, lies) for name, taken in of_gpu.items() if name in fields}
    return History(True, series, (*answer.troubles, *_lies(lies)))


def read_health(node: str, engine: Engine, deadline_s: float) -> Health:
    """DCGM's own health check over its last 60 s. It needs the watch; without one nothing is known."""
    answer = _ask("health", node, engine, deadline_s)
    if answer.part is None or answer.part.get("known") is not True:
        return Health(False, troubles=answer.troubles)
    raw = answer.part.get("incidents")
    lies: list[str] = []
    found = [_incident(item, lies) for item in (raw if isinstance(raw, list) else [])[:MAX_INCIDENTS]]
    return Health(True, tuple(i for i in found if i is not None), (*answer.troubles, *_lies(lies)))


def _ask(op: str, node: str, engine: Engine, deadline_s: float, **more: Any) -> _Answer:
    if deadline_s <= 0:
        return _Answer(None, (Trouble("MON-BUDGET", "reader", f"no time was left for {op}"),))
    request = protocol.Request(engine.backend, node, client.options(engine), deadline_s, parent=os.getpid(), op=op, **more)
    result = client.ask(request)
    # The operation's own part is unknown to decode(): it only reads what all replies have.
    parts = [_document(line) for line in result.reply.split("\n")[:-1]]
    part = next((p for p in parts if p.get("part") == op), None)
    rest = "".join(json.dumps(p) + "\n" for p in parts if p.get("part") != op)
    reply = decode(rest, ())
    ended = client.ending(result, reply, deadline_s)
    return _Answer(part, (*reply.troubles, *_lies(reply.lies), *((ended,) if ended else ())))


def _document(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _lies(lies: Sequence[str]) -> tuple[Trouble, ...]:
    return (Trouble("MON-ENGINE-LIES", "engine", clean("; ".join(lies[:3]))),) if lies else ()


def _samples(field: cat.Field, raw: Any, lies: list[str]) -> tuple[Sample, ...]:
    out = []
    for item in raw if isinstance(raw, list) else [None]:
        if not isinstance(item, list) or len(item) != 2 or isinstance(item[0], bool) or not isinstance(item[0], int):
            lies.append(f"{field.name}: a sample that is none")
            continue
        value, lie = check(field, item[1])
        if lie:
            lies.append(f"{field.name}: {lie}")
            value = NoData("error", lie)
        out.append(Sample(item[0], value))
    return tuple(out)


def _incident(raw: Any, lies: list[str]) -> Optional[Incident]:
    code = raw.get("code") if isinstance(raw, dict) else None
    if isinstance(code, bool) or not isinstance(code, int) or raw.get("result") not in (WARN, FAIL):
        lies.append("an incident that is none")
        return None
    about = raw.get("entity")
    known = isinstance(about, str) and (about == entity.NODE or entity.gpu_of(about))
    return Incident(clean(raw.get("system"), MAX_NAME), code, raw["result"], about if known else entity.NODE, clean(raw.get("text")))
