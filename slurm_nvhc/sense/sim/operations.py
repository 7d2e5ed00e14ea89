"""The operations that a scenario or a schedule may name, and their arguments. Data and its check."""

from __future__ import annotations

import difflib
from typing import Any, Final, Mapping, NamedTuple

from slurm_nvhc.errors import InputError


class Operation(NamedTuple):
    """Names of arguments, as World's method of that name takes them. ``more``: others are passed on to be checked there."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    more: bool = False


OPERATIONS: Final[Mapping[str, Operation]] = {
    "set": Operation(("target", "value")),
    "add": Operation(("target", "amount")),
    "storm": Operation(("link", "counter", "amount", "seconds")),
    "slow_burn": Operation(("link", "counter", "per_hour", "seconds")),
    "throttle": Operation(("gpu", "reason", "share", "seconds")),
    "traffic": Operation(("gpu", "mb_per_s")),
    "fault": Operation(("kind",), ("at", "shows", "per_second", "per_gb", "counters", "share")),
    "advance": Operation(("seconds",)),
    "schedule": Operation(("at_s", "change")),
    "gpu_reset": Operation(("gpu",)),
    "driver_reload": Operation(),
    "reboot": Operation((), ("down_s",)),
    "lose": Operation(("gpu",), ("engine_lists", "on_pci")),
    "pci": Operation(("gpu", "shows")),
    "restore": Operation(("gpu",)),
    "part": Operation(("part", "shows")),
    "swap": Operation(("gpu", "uuid"), ("serial",)),
    "identify": Operation(("gpu",), ("uuid", "pci", "minor", "nvml_index", "dcgm_id", "serial", "model", "slot", "vbios", "mig")),
    "links": Operation(("gpu", "count"), ("state",)),
    "kernel_line": Operation(("text",), ("at_s",)),
    "xid": Operation(("gpu", "code"), ("text", "pid", "process", "at_s")),
    "engine_xid": Operation(("gpu", "code"), ("at_s",)),
    "sxid": Operation(("switch", "code"), ("fatal", "link", "text")),
    "incident": Operation(("system", "code", "result"), ("text", "gpu")),
    "diag_result": Operation(("test", "result"), ("gpu", "error", "text", "severity")),
    "diag_plan": Operation((), ("behaviour", "seconds", "output", "rc", "real_seconds")),
    "engine": Operation(("behaviour",), (), True),
    "unreadable": Operation(("part",), ("reason",)),
}


def check_operation(op: Any) -> tuple[str, dict[str, Any]]:
    """(name, arguments) of {"op": name, …}. Raises InputError naming the key that is wrong."""
    if not isinstance(op, Mapping):
        raise InputError("operation", "", "is not a mapping", "e.g. {op: add, target: g3.link11.replay, amount: 5}")
    arguments = dict(op)
    name = arguments.pop("op", None)
    known = OPERATIONS.get(name) if isinstance(name, str) else None
    if known is None:
        near = difflib.get_close_matches(str(name), list(OPERATIONS), n=1)
        raise InputError("operation", "key op", f"{str(name)[:40]!r} is not known", f"did you mean {near[0]}?" if near else "")
    for key in known.required:
        if key not in arguments:
            raise InputError(f"operation {name}", f"key {key}", "is missing")
    allowed = (*known.required, *known.optional)
    for key in arguments:
        if key not in allowed and not known.more:
            near = difflib.get_close_matches(str(key), list(allowed), n=1)
            raise InputError(f"operation {name}", f"key {str(key)[:40]}", "is not known", f"did you mean {near[0]}?" if near else "")
    if name == "schedule":
        check_operation(arguments["change"])
    return str(name), arguments
