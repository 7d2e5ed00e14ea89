"""Which end of a wire, or what both share? From what the ends counted, as judge/links.py argues. Pure.

The receiver counts damaged data, the sender what it had to send again: errors of one direction point to the end that sends them,
or to the medium; errors of both to what the two ends share.
"""

from __future__ import annotations

from typing import Mapping, Sequence

from slurm_nvhc.isolate.board import Board
from slurm_nvhc.judge.links import BOTH_LEAST, BOTH_SHARE
from slurm_nvhc.judge.wiring import Grown, by_end
from slurm_nvhc.model import entity

Amounts = Mapping[str, Mapping[str, int]]


def connector(amounts: Amounts, ends: Sequence[str]) -> bool:
    """Are both directions of the wire bad? ends: one or both of them."""
    there, back = _damage(amounts, ends)
    return min(there, back) >= max(BOTH_LEAST, BOTH_SHARE * max(there, back))


def towards(board: Board, amounts: Amounts, ends: Sequence[str]) -> str:
    """The end at which the fault is believed to be; where nothing tells, a GPU's: that is the one an administrator can reset."""
    order = {uuid: place for place, uuid in enumerate(board.uuids)}
    first = min(ends, key=lambda end: (entity.scope(end) != "link", order.get(entity.gpu_of(end), len(order))))
    if len(ends) < 2 or connector(amounts, ends):
        return first
    one, other = ends
    grown = _grown(amounts, ends)
    there, back = _damage(amounts, ends)
    if max(there, back) == 0:
        retrained = {end: grown.get(end, Grown()).retrained for end in ends}
        return max(ends, key=lambda end: (retrained[end], end == first))
    sender, receiver = (one, other) if there >= back else (other, one)
    sent, received = grown.get(sender, Grown()).sent, grown.get(receiver, Grown()).received
    confirmed = min(sent, received) > 0 and min(sent, received) >= BOTH_SHARE * max(sent, received)
    return sender if confirmed or sent > received else receiver


def _damage(amounts: Amounts, ends: Sequence[str]) -> tuple[float, float]:
    """Errors of what the first end sends, and of what it receives: by whichever end counted more of them."""
    grown = _grown(amounts, ends)
    one = grown.get(ends[0], Grown())
    other = grown.get(ends[1], Grown()) if len(ends) > 1 else Grown()
    return max(one.sent, other.received), max(one.received, other.sent)


def _grown(amounts: Amounts, ends: Sequence[str]) -> Mapping[str, Grown]:
    return by_end({(end, field): float(amount) for end in ends for field, amount in amounts.get(end, {}).items()})
