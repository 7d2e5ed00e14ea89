"""What judge was told about a run besides snapshots, policy and memory: a run keeps it, so that another policy can judge it again."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

from slurm_nvhc.model.diag import Report
from slurm_nvhc.model.earlier import Earlier
from slurm_nvhc.model.history import Health, History, Incident
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.learned import Table
from slurm_nvhc.model.protective import Exclusion
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot, Trouble


class Given(NamedTuple):
    """known, exclusions, expected_gpus, troubles, events_are_new, health: as in judge.Input.

    settled: names of events that an administrator settled (model/settled.py)
    learned: what was normal here; not kept with a run, since the ledger tells since when each of it holds
    history: the engine's samples; not kept with a run, which has a short timeline of them (model/timeline.py)
    earlier: the runs in the job's time; not kept with a run, since they are runs themselves
    diag: what a diagnostic of this run said, None when there was none; kept with what the run did (Run.outcome)
    """

    mapping: GpuMapping
    known: tuple[GpuIdentity, ...] = ()
    exclusions: Mapping[str, Exclusion] = {}
    expected_gpus: Optional[int] = None
    troubles: tuple[Trouble, ...] = ()
    settled: tuple[str, ...] = ()
    learned: Table = {}
    events_are_new: bool = False
    health: Optional[Health] = None
    history: Optional[History] = None
    earlier: tuple[Earlier, ...] = ()
    diag: Optional[Report] = None


def to_json(given: Given, snapshot: Snapshot) -> dict[str, Any]:
    """What is not empty, and of known GPUs only those that ``snapshot`` does not tell of itself.

    Exclusions are left out: they lead to no finding that acts.
    """
    listed = snapshot.gpus or {}
    mapping = given.mapping._asdict()
    out: dict[str, Any] = {
        "mapping": {**mapping, "by_position": {str(p): uuid for p, uuid in given.mapping.by_position.items()}},
        "gone": [row._asdict() for row in given.known if row.uuid not in listed],
        "expected_gpus": given.expected_gpus,
        "troubles": [t._asdict() for t in given.troubles],
        "settled": list(given.settled),
        "events_are_new": given.events_are_new,
        "health": None if given.health is None else _health_to_json(given.health),
    }
    return {key: value for key, value in out.items() if value not in (None, [], False)}


def from_json(value: Mapping[str, Any], snapshot: Snapshot) -> Given:
    """KeyError, TypeError, ValueError or AttributeError for anything else."""
    mapping = value["mapping"]
    listed = tuple(gpu.identity for gpu in (snapshot.gpus or {}).values())
    health = value.get("health")
    return Given(
        mapping=GpuMapping(
            tuple(str(u) for u in mapping["uuids"]),
            {int(p): str(uuid) for p, uuid in mapping["by_position"].items()},
            bool(mapping["exact"]),
            tuple(int(p) for p in mapping["missing"]),
            str(mapping["why"]),
        ),
        known=(*listed, *(GpuIdentity(**row) for row in value.get("gone", ()))),
        expected_gpus=value.get("expected_gpus"),
        troubles=tuple(Trouble(**t) for t in value.get("troubles", ())),
        settled=tuple(str(name) for name in value.get("settled", ())),
        events_are_new=bool(value.get("events_are_new", False)),
        health=None if health is None else Health(bool(health["known"]), tuple(Incident(**i) for i in health["incidents"])),
    )


def _health_to_json(health: Health) -> dict[str, Any]:
    """Without its troubles: they are among the run's own."""
    return {"known": health.known, "incidents": [incident._asdict() for incident in health.incidents]}
