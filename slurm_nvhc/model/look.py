"""The last look: where every counter of the node stood when a hook last saw it.

What has grown since then is new to every hook alike, so that each increment is counted once, whichever hook
comes first. A look remembers *counts* only, and of each the last one that was known: a counter that gave no
data now and then keeps its older count, with the moment at which that was read.
"""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.errors import InputError

SCHEMA: Final = 1

Counts = Mapping[str, Mapping[str, float]]  # entity -> catalogue name -> count
Moments = Mapping[str, Mapping[str, tuple[int, int]]]  # entity -> catalogue name -> (wall_ns, boot_ns)


class Look(NamedTuple):
    """Moments and identities as in model/snapshot.py.

    older: counts that were read at an earlier look of the same boot, and when; all others were read at this one.
    """

    wall_ns: int
    boot_ns: int
    boot_id: str
    driver: str
    driver_loaded_ns: Optional[int]
    counts: Counts
    older: Moments = {}

    def moment(self, entity: str, field: str) -> tuple[int, int]:
        """(wall_ns, boot_ns) at which a count was read."""
        return self.older.get(entity, {}).get(field, (self.wall_ns, self.boot_ns))


def to_json(look: Look) -> dict[str, Any]:
    older = {entity: {field: list(moment) for field, moment in fields.items()} for entity, fields in look.older.items()}
    return {"schema": SCHEMA, **look._asdict(), "counts": {e: dict(f) for e, f in look.counts.items()}, "older": older}


def from_json(value: Any) -> Look:
    """Raises InputError for anything that is not a look."""
    try:
        if value["schema"] != SCHEMA:
            raise InputError("last look", "key schema", f"schema {value['schema']!r} is not known", f"this version reads {SCHEMA}")
        counts = {str(e): {str(f): _count(n) for f, n in fields.items()} for e, fields in value["counts"].items()}
        older = {str(e): {str(f): (int(m[0]), int(m[1])) for f, m in fields.items()} for e, fields in value["older"].items()}
        loaded = value["driver_loaded_ns"]
        moments = (int(value["wall_ns"]), int(value["boot_ns"]))
        return Look(*moments, str(value["boot_id"]), str(value["driver"]), None if loaded is None else int(loaded), counts, older)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as exc:
        raise InputError("last look", "", f"is not one: {str(exc) or type(exc).__name__}") from exc


def _count(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a count")
    return value
