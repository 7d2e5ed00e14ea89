"""What client and reader say to each other: one JSON document per line, request on 3, reply on 4.

See docs/architecture.md, "The reader". An unknown schema is an error on either side.
"""

from __future__ import annotations

import json
from typing import Any, Final, Mapping, NamedTuple

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import history

SCHEMA: Final = 1
# The order of the reply. A timeout or crash is placed after the last one that arrived.
PARTS: Final = ("clock", "kernel_log", "pci", "host", "engine", "gpus", "switches", "events")
ALL_FIELDS: Final = tuple(f.name for f in cat.ALL if f.live)
OPERATIONS: Final = ("snapshot", "watch", "unwatch", "history", "health", "diag", "diag_stop")
# More than this in one read is a storm; the first tell the cause, the last the present.
# Bounded because a reply longer than the client reads would lose everything after it.
MAX_EVENTS: Final = 1000
# Of one field of one GPU in a history: 16 GPUs with 25 fields (the watch's, less those of the other NVLink
# generation, which have one sample) stay below what the client reads.
MAX_SAMPLES: Final = history.MOST_SAMPLES


class Request(NamedTuple):
    """op: snapshot; or watch, unwatch, history, health: what the engine remembers (sense/memory.py); diag, diag_stop (sense/diag.py).

    since_ns, until_ns: history only, ns UTC. diag: what is asked for, see sense/diag.py; the other operations leave it {}.
    deadline_s: the reader's own, in seconds from its start. parent: pid of the process that asks, 0 = do not check."""

    backend: str
    node: str
    options: Mapping[str, Any]
    deadline_s: float
    kernel_cursor: str = ""
    wait_s: float = 0.0
    fields: tuple[str, ...] = ALL_FIELDS
    parent: int = 0
    op: str = "snapshot"
    since_ns: int = 0
    until_ns: int = 0
    diag: Mapping[str, Any] = {}


class Cursor(NamedTuple):
    """Where the next read of the kernel log continues; as text "boot id:sequence:wall ns".

    wall_ns is the time of the read that made it: lines and engine events from shortly
    before are looked at again, but only to recognise what was reported already.
    """

    boot_id: str
    seq: int
    wall_ns: int

    def __str__(self) -> str:
        return f"{self.boot_id}:{self.seq}:{self.wall_ns}"


def cursor(text: str) -> Cursor | None:
    """None for '' and for anything that is not a cursor: the log is then read from its start."""
    parts = text.split(":")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() and len(p) < 20 for p in parts[1:]):
        return None
    return Cursor(parts[0], int(parts[1]), int(parts[2]))


def encode(request: Request) -> str:
    document = {"schema": SCHEMA, **request._asdict()}
    document["fields"] = list(request.fields)
    document["options"] = dict(request.options)
    document["diag"] = dict(request.diag)
    return json.dumps(document) + "\n"


def decode(text: str) -> Request:
    """Raises InputError for anything that is not a request of this schema."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InputError("the request to the reader", "", "is not JSON") from exc
    if not isinstance(raw, dict):
        raise InputError("the request to the reader", "", "is not a JSON object")
    if raw.get("schema") != SCHEMA:
        raise InputError("the request to the reader", "key schema", f"schema {str(raw.get('schema'))[:20]} is not known", f"1..{SCHEMA}")
    if raw.get("op") not in OPERATIONS:
        raise InputError("the request to the reader", "key op", "is not known", "known: " + ", ".join(OPERATIONS))
    for key, kinds in _KINDS.items():
        if key in raw and (isinstance(raw[key], bool) or not isinstance(raw[key], kinds)):
            raise InputError("the request to the reader", f"key {key}", "has the wrong type")
    values = {k: raw[k] for k in Request._fields if k in raw}
    missing = [k for k in ("backend", "node", "options", "deadline_s") if k not in values]
    if missing:
        raise InputError("the request to the reader", f"key {missing[0]}", "is missing")
    if not 0 < values["deadline_s"] <= 86400 or not 0 <= values.get("wait_s", 0) <= 86400:
        raise InputError("the request to the reader", "key deadline_s or wait_s", "is out of range")
    if "fields" in values:
        values["fields"] = tuple(str(name) for name in values["fields"])
    return Request(**values)


_KINDS: Final[Mapping[str, Any]] = {
    "backend": str,
    "node": str,
    "options": dict,
    "deadline_s": (int, float),
    "kernel_cursor": str,
    "wait_s": (int, float),
    "fields": list,
    "parent": int,
    "since_ns": int,
    "until_ns": int,
    "diag": dict,
}
