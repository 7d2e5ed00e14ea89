"""One operation of the reader that is answered by one part of its own name (docs/architecture.md, "The reader"). Never raises."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense import client, protocol
from slurm_nvhc.sense.decode import Reply, decode
from slurm_nvhc.sense.text import clean


class Answer(NamedTuple):
    """part: the operation's part of the reply, None when it did not come. reply: what all replies have.

    ended: why the reader did not come to its end, None when it did; also in troubles.
    """

    part: Optional[Mapping[str, Any]]
    reply: Reply = Reply()
    troubles: tuple[Trouble, ...] = ()
    ended: Optional[Trouble] = None


def ask(op: str, node: str, engine: Engine, deadline_s: float, **more: Any) -> Answer:
    """more: further fields of the request."""
    if deadline_s <= 0:
        return Answer(None, troubles=(Trouble("MON-BUDGET", "reader", f"no time was left for {op}"),))
    request = protocol.Request(engine.backend, node, client.options(engine), deadline_s, parent=os.getpid(), op=op, **more)
    result = client.ask(request)
    # The operation's own part is unknown to decode(): it only reads what all replies have.
    parts = [_document(line) for line in result.reply.split("\n")[:-1]]
    part = next(({k: v for k, v in p.items() if k != "part"} for p in parts if p.get("part") == op), None)
    reply = decode("".join(json.dumps(p) + "\n" for p in parts if p.get("part") != op), ())
    ended = client.ending(result, reply, deadline_s)
    return Answer(part, reply, (*reply.troubles, *lies(reply.lies), *((ended,) if ended else ())), ended)


def lies(told: Sequence[str]) -> tuple[Trouble, ...]:
    """What can not be, as a trouble; () for none."""
    return (Trouble("MON-ENGINE-LIES", "engine", clean("; ".join(told[:3]))),) if told else ()


def _document(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
