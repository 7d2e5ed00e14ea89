"""Ask for what the engine remembers: the watch, its history, and the engine's own health check.

The hook's side, like client.py: light imports, never raises, one reader process per call.
"""

from __future__ import annotations

from typing import Any, Final, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model.history import FAIL, WARN, Health, History, Incident, Sample, Watch
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.asking import ask, lies
from slurm_nvhc.sense.text import MAX_NAME, clean
from slurm_nvhc.sense.values import check

MAX_INCIDENTS: Final = 200


def ensure_watch(node: str, engine: Engine, deadline_s: float) -> Watch:
    """Have the engine sample the fields of in-job rules: found, or made where it is not there. For the health check."""
    answer = ask("watch", node, engine, deadline_s)
    if answer.part is None:
        return Watch(False, troubles=answer.troubles)
    return Watch(True, answer.part.get("watched") is True, answer.part.get("made") is True, answer.troubles)


def remove_watch(node: str, engine: Engine, deadline_s: float) -> Watch:
    """Take the watch away, for uninstalling. ``known`` is False when the engine could not be asked: it may still be there."""
    answer = ask("unwatch", node, engine, deadline_s)
    return Watch(answer.part is not None, troubles=answer.troubles)


def read_history(node: str, engine: Engine, deadline_s: float, since_ns: int, until_ns: int, fields: Sequence[str]) -> History:
    """What the engine sampled of some catalogue fields of all GPUs between two moments (ns UTC, both included)."""
    answer = ask("history", node, engine, deadline_s, since_ns=since_ns, until_ns=until_ns, fields=tuple(fields))
    if answer.part is None or answer.part.get("watched") is not True:
        return History(False, {}, answer.troubles)
    wrong: list[str] = []
    series: dict[str, dict[str, tuple[Sample, ...]]] = {}
    raw = answer.part.get("series")
    for uuid, of_gpu in raw.items() if isinstance(raw, dict) else ():
        if entity.gpu_of(uuid) != uuid or not isinstance(of_gpu, dict):
            wrong.append("a series of no GPU")
            continue
        series[uuid] = {name: _samples(cat.BY_NAME[name], taken, wrong) for name, taken in of_gpu.items() if name in fields}
    return History(True, series, (*answer.troubles, *lies(wrong)))


def read_health(node: str, engine: Engine, deadline_s: float) -> Health:
    """DCGM's own health check over its last 60 s. It needs the watch; without one nothing is known."""
    answer = ask("health", node, engine, deadline_s)
    if answer.part is None or answer.part.get("known") is not True:
        return Health(False, troubles=answer.troubles)
    raw = answer.part.get("incidents")
    wrong: list[str] = []
    found = [_incident(item, wrong) for item in (raw if isinstance(raw, list) else [])[:MAX_INCIDENTS]]
    return Health(True, tuple(i for i in found if i is not None), (*answer.troubles, *lies(wrong)))


def _samples(field: cat.Field, raw: Any, wrong: list[str]) -> tuple[Sample, ...]:
    out = []
    for item in raw if isinstance(raw, list) else [None]:
        if not isinstance(item, list) or len(item) != 2 or isinstance(item[0], bool) or not isinstance(item[0], int):
            wrong.append(f"{field.name}: a sample that is none")
            continue
        value, lie = check(field, item[1])
        if lie:
            wrong.append(f"{field.name}: {lie}")
            value = NoData("error", lie)
        out.append(Sample(item[0], value))
    return tuple(out)


def _incident(raw: Any, wrong: list[str]) -> Optional[Incident]:
    code = raw.get("code") if isinstance(raw, dict) else None
    if isinstance(code, bool) or not isinstance(code, int) or raw.get("result") not in (WARN, FAIL):
        wrong.append("an incident that is none")
        return None
    about = raw.get("entity")
    known = isinstance(about, str) and (about == entity.NODE or entity.gpu_of(about))
    return Incident(clean(raw.get("system"), MAX_NAME), code, raw["result"], about if known else entity.NODE, clean(raw.get("text")))
