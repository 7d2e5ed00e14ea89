"""NVLink, link by link: states from DCGM's own call, counters from one of two families of ids.

Up to NVLink 4 each counter of each link has a field id of its own on the GPU (not
contiguous, 18 links). From 4.6 on the same figures also exist on LINK entities: one id
for all links, up to 36, which is all there is for links beyond the 18th and for boards
that do not support the older ids.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.dcgm import live, status
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.dcgm.live import GPU, LINK, Table
from slurm_nvhc.sense.values import sentinel

STATE: Final = "nvlink_state"
# DcgmNvLinkLinkState
_STATES: Final[Mapping[int, str]] = {0: "not_supported", 1: "disabled", 2: "down", 3: "up"}
_NO_LINK: Final = 0

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
    return [f for f in (cat.BY_NAME[n] for n in names) if f.scope == cat.LINK and f.link_ids]


def gpu_ids(wanted: Sequence[cat.Field]) -> list[int]:
    """The per-link ids on the GPU entity."""
    return [field_id for field in wanted for field_id in field.link_ids]


def entity_id(gpu: int, link: int) -> int:
    """How DCGM packs a GPU's link into an entity id: 8 bits of GPU, 16 of link, 8 of the kind of its owner."""
    return (gpu << 24) | (link << 8) | GPU


def read(connection: Connection, table: Table, wanted: Sequence[cat.Field], up: States) -> dict[int, dict[int, dict[str, Reading]]]:
    """{GPU: {link: {name: reading}}} for the GPUs in ``up``: from ``table`` (per-link ids), else from LINK entities.

    A link that has only a counter and no state (states could not be had) is a link all the same.
    """
    out: dict[int, dict[int, dict[str, Reading]]] = {}
    lacking: list[tuple[int, int]] = []
    for gpu, its_states in up.items():
        numbers = its_states.keys() if its_states is not None else _that_answer(table, gpu, wanted)
        out[gpu] = {}
        for number in sorted(numbers):
            out[gpu][number] = {f.name: _per_link(table, gpu, number, f) for f in wanted}
            if any(not _answered(value) for value in out[gpu][number].values()):
                lacking.append((gpu, number))
    _from_entities(connection, out, lacking, wanted)
    return out


def _that_answer(table: Table, gpu: int, wanted: Sequence[cat.Field]) -> set[int]:
    return {n for field in wanted for n, i in enumerate(field.link_ids) if _answered(table.reading((GPU, gpu), i))}


def _per_link(table: Table, gpu: int, number: int, field: cat.Field) -> Reading:
    if number >= len(field.link_ids):
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
    lacking: Sequence[tuple[int, int]],
    wanted: Sequence[cat.Field],
) -> None:
    """Fill in what only LINK entities have. What is blank for another reason stays blank."""
    links = [(g, n) for g, n in lacking if any(_not_supported(value) for value in out[g][n].values())]
    by_id = {f.link_entity_id: f.name for f in wanted if f.link_entity_id is not None}
    ids = live.known(connection, by_id) if links else []
    if not ids:
        return
    table = live.read(connection, [(LINK, entity_id(g, n)) for g, n in links], [ids])
    for gpu, number in links:
        for field_id in ids:
            found = table.reading((LINK, entity_id(gpu, number)), field_id)
            name = by_id[field_id]
            if _answered(found) and _not_supported(out[gpu][number][name]):
                out[gpu][number][name] = found
