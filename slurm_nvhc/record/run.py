"""One hook run as it is kept, and its form in the database. Pure."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.model import entity, finding
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.model.snapshot import from_json as snapshot_from_json
from slurm_nvhc.model.snapshot import to_json as snapshot_to_json

_LEVEL: Final = 1  # zlib: a snapshot of 8 GPUs shrinks about as well as at 9, in a fraction of the time
_MAX_BYTES: Final = 64 * 1024 * 1024  # unpacked; far beyond any node, and a bound for damaged data


class Run(NamedTuple):
    """One hook run.

    gpus:       UUIDs of the job's GPUs
    snapshot:   kept compressed; None in what queries return (see Ledger.snapshot_of)
    before_run: id of the run whose snapshot the changes were measured from (a baseline's key)
    changes:    those that are not an exact zero
    decision, steps, outcome: JSON-able; what judge proposed, act planned and act did
    given:      JSON-able; what judging it again takes beside the snapshots (model/given.py)
    touched:    JSON-able; was the job touched by a fault (model/suspect.py), {} where no job with GPUs ended
    timeline:   JSON-able; what the job's GPUs did minute by minute (model/timeline.py), {} without samples
    id:         given by the ledger; for a prolog, the key that save_baseline returned
    """

    hook: str
    started_ns: int
    ended_ns: int
    verdict: str
    job_id: str = ""
    user: str = ""
    partition: str = ""
    gpus: tuple[str, ...] = ()
    policy_hash: str = ""
    snapshot: Optional[Snapshot] = None
    before_run: Optional[int] = None
    changes: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()
    decision: Mapping[str, Any] = {}
    steps: Sequence[Mapping[str, Any]] = ()
    outcome: Mapping[str, Any] = {}
    given: Mapping[str, Any] = {}
    exit_code: int = 0
    touched: Mapping[str, Any] = {}
    timeline: Mapping[str, Any] = {}
    id: int = 0


def text(value: str) -> str:
    """Text that SQLite takes: an environment that is not UTF-8 arrives with lone surrogates."""
    return value.encode("utf-8", "replace").decode("utf-8")


def int64(value: int) -> int:
    """SQLite's integers have 64 bits; a number beyond is a wild one and is kept at the edge."""
    return max(-(1 << 63), min((1 << 63) - 1, int(value)))


def pack(value: Any) -> bytes:
    """Compressed JSON. ValueError or TypeError for what JSON can not say."""
    return zlib.compress(json.dumps(value, separators=(",", ":"), default=str).encode("utf-8"), _LEVEL)


def unpack(raw: Any) -> Any:
    """The inverse of pack. ValueError for anything else."""
    if not isinstance(raw, bytes):
        raise ValueError("not compressed JSON")
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(raw, _MAX_BYTES)
        if not unpacker.eof:
            raise ValueError("cut off or too large")
        return json.loads(plain.decode("utf-8"))
    except (zlib.error, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


def pack_snapshot(snapshot: Snapshot) -> bytes:
    return pack(snapshot_to_json(snapshot))


def unpack_snapshot(raw: Any) -> Snapshot:
    """ValueError or InputError for anything that is not a packed snapshot."""
    return snapshot_from_json(unpack(raw), "snapshot in the ledger")


def body_of(run: Run) -> bytes:
    """The parts of a run that are only ever read whole."""
    return pack(
        {
            "gpus": list(run.gpus),
            "changes": [_change_to_json(c) for c in run.changes],
            "findings": [finding.to_json(f) for f in run.findings],
            "decision": dict(run.decision),
            "steps": [dict(s) for s in run.steps],
            "outcome": dict(run.outcome),
            "given": dict(run.given),
            "touched": dict(run.touched),
            "timeline": dict(run.timeline),
        }
    )


def with_body(run: Run, raw: Any) -> Run:
    """The run with the parts that body_of packed. ValueError, TypeError, KeyError or AttributeError for damage."""
    body = unpack(raw)
    return run._replace(
        gpus=tuple(str(u) for u in body["gpus"]),
        changes=tuple(_change_from_json(c) for c in body["changes"]),
        findings=tuple(finding.from_json(f) for f in body["findings"]),
        decision=dict(body["decision"]),
        steps=tuple(dict(s) for s in body["steps"]),
        outcome=dict(body["outcome"]),
        given=dict(body.get("given", {})),
        touched=dict(body.get("touched", {})),
        timeline=dict(body.get("timeline", {})),
    )


def gpus_concerned(run: Run) -> tuple[str, ...]:
    """UUIDs that this run says something about: the job's, and those of findings and changes."""
    named = (entity.gpu_of(e) for e in (*(f.entity for f in run.findings), *(c.entity for c in run.changes)))
    return tuple(dict.fromkeys(u for u in (*run.gpus, *named) if u))


def _change_to_json(change: Change) -> dict[str, Any]:
    out = change._asdict()
    for side in ("before", "after"):
        if out[side] is not None:
            out[side] = rd.to_json(out[side])
    return out


def _change_from_json(value: Mapping[str, Any]) -> Change:
    fields = dict(value)
    for side in ("before", "after"):
        if fields[side] is not None:
            fields[side] = rd.from_json(fields[side])
    return Change(**fields)
