"""What is folded from hook to hook, in its form in the database: judge's memory and the last look. Pure.

What can not be read back is no data, and is told as damage: a hook then judges without it.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional

from slurm_nvhc.errors import InputError
from slurm_nvhc.model import look as lk
from slurm_nvhc.model.look import Look
from slurm_nvhc.record.run import pack, unpack


def memory_from(raw: Any, damaged: list[str]) -> dict[str, Any]:
    """{} when there is none or it can not be read."""
    if raw is None:
        return {}
    try:
        memory = json.loads(raw)
    except (TypeError, ValueError, RecursionError) as exc:
        damaged.append(f"memory: {exc}")
        return {}
    if not isinstance(memory, dict):
        damaged.append("memory: is not an object")
        return {}
    return memory


def memory_to(memory: Mapping[str, Any]) -> bytes:
    """TypeError, ValueError or RecursionError for what JSON can not say."""
    return json.dumps(memory, separators=(",", ":")).encode("ascii")


def look_from(raw: Any, damaged: list[str]) -> Optional[Look]:
    """None when there is none or it can not be read."""
    if raw is None:
        return None
    try:
        return lk.from_json(unpack(raw))
    except (ValueError, InputError) as exc:
        damaged.append(f"last look: {exc}")
        return None


def look_to(look: Look) -> bytes:
    return pack(lk.to_json(look))
