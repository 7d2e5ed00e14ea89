"""Which GPU a placeholder job was given: its prolog finds out and writes, the job reads, its epilog removes.

``<run>/<node>/hold/<job id>``, root's alone. Below /run: neither the job nor its place in the list outlasts a boot.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.proc import files

MAX_BYTES: Final = 64 * 1024
_JOB_ID: Final = re.compile(r"[0-9]{1,10}")


class Place(NamedTuple):
    """uuid: the GPU that the job has. at_ns, boot_id: of the reading that told. positions: UUID -> position, of all the node's GPUs."""

    uuid: str
    at_ns: int
    boot_id: str
    positions: Mapping[str, int]


def folder(run_dir: str, node: str) -> str:
    return os.path.join(run_dir, node, "hold")


def write(run_dir: str, node: str, job_id: str, place: Place) -> None:
    """Raises OSError."""
    if not _JOB_ID.fullmatch(job_id):
        raise OSError(22, "not a job id", job_id[:40])
    files.make_private_dir(folder(run_dir, node))
    document = json.dumps({**place._asdict(), "positions": dict(place.positions)})
    files.write_atomic(os.path.join(folder(run_dir, node), job_id), document, durable=False)


def read(run_dir: str, node: str, job_id: str) -> Optional[Place]:
    """None when the prolog did not say, or not in a way that can be understood."""
    try:
        with open(os.path.join(folder(run_dir, node), job_id), encoding="utf-8") as file:
            raw = json.loads(file.read(MAX_BYTES))
        table = {_typed(str, uuid): _typed(int, position) for uuid, position in raw["positions"].items()}
        return Place(_typed(str, raw["uuid"]), _typed(int, raw["at_ns"]), _typed(str, raw["boot_id"]), table)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} was expected")
    return value


def remove(run_dir: str, node: str, job_id: str) -> None:
    if not _JOB_ID.fullmatch(job_id):
        return
    try:
        os.unlink(os.path.join(folder(run_dir, node), job_id))
    except OSError:
        pass  # its prolog could not tell
