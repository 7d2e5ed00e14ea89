"""Plans of whole fleets from the parameters. The same seed gives the same plans, whatever the number of processes."""

from __future__ import annotations

from random import Random
from typing import Optional

from detection import faulty, healthy
from detection.boards import board
from detection.healthy import Draft
from detection.params import Params
from detection.plan import DAY, Fault, Plan


def sound(params: Params, number: int) -> Plan:
    """A node at which nothing is wrong."""
    rng = Random(f"{params.seed}/sound/{number}")
    draft = Draft(rng, params, board(_board(rng, params, None)), params.fleet.days * DAY)
    healthy.everything(draft)
    return finish(draft, f"sound-{number}", sampled=rng.random() < params.jobs.sampled)


def ill(params: Params, kind: str, number: int) -> Optional[Plan]:
    """A node that is sound for a day or two and then has a fault; None where no board of the fleet can have it."""
    rng = Random(f"{params.seed}/{kind}/{number}")
    wanted = faulty.KINDS[kind]
    name = _board(rng, params, kind)
    if not name:
        return None
    began = rng.uniform(DAY / 2, 2 * DAY)
    draft = Draft(rng, params, board(name), began + params.fleet.faulty_days * DAY)
    healthy.everything(draft)
    fault = wanted.make(draft, began)
    return finish(draft, f"{kind}-{number}", fault)


def finish(draft: Draft, node: str, fault: Optional[Fault] = None, sampled: bool = False) -> Plan:
    rng = draft.rng
    kind = faulty.KINDS.get(fault.kind) if fault is not None else None
    slow = None
    if fault is not None and fault.kind == "straggler":
        slow = (int(fault.parts[0][1:]), rng.uniform(*draft.params.faulty.straggler.clock))
    effects = [e for e in draft.effects if not any(gone < e.at < back for gone, back in draft.down)]
    return Plan(
        node=node,
        board=draft.board.name,
        seconds=draft.seconds,
        phase=rng.uniform(0, draft.params.health_check),
        period=draft.params.health_check,
        jobs=tuple(draft.jobs),
        effects=tuple(sorted(effects, key=lambda e: e.at)),
        flows=tuple(draft.flows),
        unrest=tuple(draft.unrest),
        down=tuple(draft.down),
        extra=tuple(sorted(draft.extra)),
        fault=fault,
        every_job_from=fault.at if fault is not None and kind is not None and kind.every_job else None,
        sampled=sampled,
        slow=slow,
        spread=draft.params.jobs.spread,
    )


def _board(rng: Random, params: Params, kind: Optional[str]) -> str:
    """By the fleet's weights, of those that can have the fault."""
    fits = {n: w for n, w in params.fleet.boards.items() if w > 0 and (kind is None or faulty.KINDS[kind].fits(board(n)))}
    return rng.choices(list(fits), list(fits.values()))[0] if fits else ""
