"""NVLink, link by link: states from DCGM's own call, counters from one of two families of ids.

Up to NVLink 4 each counter of each link has a field id of its own on the GPU (not
contiguous, 18 links). From 4.6 on the same figures also exist on LINK entities: one id
for all links, up to 36, which is all there is for links beyond the 18th and for boards
that do not support the older ids. What NVLink 5 counts per link is on LINK entities only.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.dcgm import live, status
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.dcgm.live import GPU, LINK, Budget, Table
from slurm_nvhc.sense.values import sentinel

STATE: Final = "nvlink_state"
REMOTE: Final = "nvlink_remote"
# DcgmNvLinkLinkState
_STATES: Final[Mapping[int, str]] = {0: "not_supported", 1: "disabled", 2: "down", 3: "up"}
_NO_LINK: Final = 0
_NOT_HERE: Final = NoData(rd.NOT_SUPPORTED, "not on this model")

# Of LINK entities of GPUs; those of switches' ports have fields of their own.
_NAMES: Final[Mapping[int, str]] = {f.link_entity_id: f.name for f in cat.ALL if f.scope == cat.LINK and f.link_entity_id is not None}

# DCGM GPU id -> link -> state; None where the states could not be had.
States = Mapping[int, Optional[Mapping[int, Reading]]]


def states(connection: Connection) -> tuple[dict[int, dict[int, Reading]], str]:
    """({DCGM GPU id: {link: state word}}, what went wrong or ''): only links that the board has.

    The structure's version is the bindings' affair (12, 18 or 36 links); a mismatch with
    the engine costs the states and nothing else.
    """
    try:
        answer = connection.bindings.agent.dcgmGetNvLinkLinkStatus(connection.handle)
    except Exception as exc:
        if status.code(exc) in status.HOPELESS - {status.VERSION_MISMATCH}:
            raise status.failed(exc, "the link states") from exc
        return {}, f"link states: {status.words(status.code(exc))}"
    out: dict[int, dict[int, Reading]] = {}
    for gpu in answer.gpus[: int(answer.numGpus)]:
        found = {number: int(state) for number, state in enumerate(gpu.linkState)}
        out[int(gpu.entityId)] = {
            number: _STATES.get(state, NoData(rd.ERROR, f"unknown link state {state}"))
            for number, state in found.items()
            if state != _NO_LINK
        }
    return out, ""


def counters(names: Iterable[str]) -> list[cat.Field]:
    """The per-link counters among some catalogue names."""
    return [f for f in (cat.BY_NAME[n] for n in names) if f.scope == cat.LINK and f.link_entity_id is not None]


def gpu_ids(wanted: Sequence[cat.Field]) -> list[int]:
    """The per-link ids on the GPU entity."""
    return [field_id for field in wanted for field_id in field.link_ids]


def entity_id(gpu: int, link: int) -> int:
    """How DCGM packs a GPU's link into an entity id: 8 bits of GPU, 16 of link, 8 of the kind of its owner."""
    return (gpu << 24) | (link << 8) | GPU


def read(
    connection: Connection, table: Table, wanted: Sequence[cat.Field], up: States, models: Mapping[int, str], budget: Budget
) -> dict[int, dict[int, dict[str, Reading]]]:
    """{GPU: {link: {name: reading}}} for the GPUs in ``up``: from ``table`` (per-link ids), else from LINK entities.

    A link that has only a counter and no state (states could not be had) is a link all the same.
    models: NVML's names; what a model is known not to have is not asked for.
    """
    out: dict[int, dict[int, dict[str, Reading]]] = {}
    # Those of one set of ids are asked together: an id of the wrong generation fails the whole call.
    lacking: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for gpu, its_states in up.items():
        has = [f for f in wanted if cat.exists_on(f, models[gpu])]
        numbers = its_states.keys() if its_states is not None else _that_answer(table, gpu, has)
        out[gpu] = {}
        for number in sorted(numbers):
            found = {f.name: _per_link(table, gpu, number, f) for f in has}
            out[gpu][number] = {**{f.name: _NOT_HERE for f in wanted}, **found}
            # What is blank for another reason than not being supported stays blank.
            ids = tuple(f.link_entity_id for f in has if f.link_entity_id is not None and _not_supported(found[f.name]))
            if ids:
                lacking.setdefault(ids, []).append((gpu, number))
    for ids, links in lacking.items():
        _from_entities(connection, out, links, ids, budget)
    return out


def add_remotes(out: dict[int, dict[int, dict[str, Reading]]], known: Mapping[int, Mapping[int, str]]) -> None:
    """The far end of every link, as far as it is known."""
    for gpu, of_gpu in out.items():
        for number, readings in of_gpu.items():
            readings[REMOTE] = known.get(gpu, {}).get(number, NoData(rd.NOT_SUPPORTED, "the engine does not tell"))


def _that_answer(table: Table, gpu: int, wanted: Sequence[cat.Field]) -> set[int]:
    return {n for field in wanted for n, i in enumerate(field.link_ids) if _answered(table.reading((GPU, gpu), i))}


def _per_link(table: Table, gpu: int, number: int, field: cat.Field) -> Reading:
    if number >= len(field.link_ids):  # none at all: NVLink 5
        return NoData(rd.NOT_SUPPORTED, f"DCGM has no id for link {number} on a GPU")
    return table.reading((GPU, gpu), field.link_ids[number])


def _answered(reading: Reading) -> bool:
    return not isinstance(reading, NoData) and sentinel(reading) is None


def _not_supported(reading: Any) -> bool:
    missing = reading if isinstance(reading, NoData) else sentinel(reading)
    return missing is not None and missing.kind == rd.NOT_SUPPORTED


def _from_entities(
    connection: Connection,
    out: dict[int, dict[int, dict[str, Reading]]],
    links: Sequence[tuple[int, int]],
    wanted: Sequence[int],
    budget: Budget,
) -> None:
    """Fill in what only LINK entities have."""
    ids = live.known(connection, wanted)
    table = live.read(connection, [(LINK, entity_id(g, n)) for g, n in links], [ids], budget=budget)
    for gpu, number in links:
        for field_id in ids:
            found = table.reading((LINK, entity_id(gpu, number)), field_id)
            if _answered(found):
                out[gpu][number][_NAMES[field_id]] = found
