"""What has taken sound nodes out elsewhere, each alone, and much of it. Nothing of it may drain."""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Final, Mapping, NamedTuple

from msgspec.structs import replace

from detection import healthy
from detection.boards import Board, board
from detection.fleet import finish
from detection.healthy import Draft
from detection.params import Healthy, Params
from detection.plan import DAY, HOUR, Plan

DAYS: Final = 3.0
EVERY_S: Final = 3 * HOUR  # as long as every look is judged, for what moves all the time


class Trap(NamedTuple):
    """changes: of a fleet in which nothing happens. fits: boards that can have it. every: every look is judged, for EVERY_S."""

    changes: Callable[[Healthy], Mapping[str, Any]]
    fits: Callable[[Board], bool] = lambda b: b.links > 0
    every: bool = False


TRAPS: Final[Mapping[str, Trap]] = {
    "links train after a boot, and count errors": Trap(
        lambda h: {"boots": replace(h.boots, per_day=1.0, training_nodes=1.0)},
    ),
    "GPU resets, in jobs as well": Trap(lambda h: {"gpu_resets_per_day": 4.0, "lifetime": replace(h.lifetime, nodes=1.0)}),
    "driver reloads, in jobs as well": Trap(lambda h: {"driver_reloads_per_day": 2.0, "lifetime": replace(h.lifetime, nodes=1.0)}),
    "large counters that never move": Trap(lambda h: {"lifetime": replace(h.lifetime, nodes=1.0, links=40)}, lambda b: b.counts_4),
    "CRC errors, a few a day": Trap(lambda h: {"crc_few": replace(h.crc_few, nodes=1.0, links=8)}, lambda b: b.counts_4),
    "CRC errors, hundreds a day": Trap(lambda h: {"crc_many": replace(h.crc_many, nodes=1.0)}, lambda b: b.counts_4),
    "replays and recoveries of every link at 0.001 an hour": Trap(
        lambda h: {"retries": replace(h.retries, links=1.0, per_h=0.001)}, lambda b: b.counts_4
    ),
    "busy, at the power limit": Trap(lambda h: {"power_cap": 1.0}, lambda b: True, every=True),
    "no NVLink bridge": Trap(lambda h: {}, lambda b: b.links == 0, every=True),
    "PCIe replays below the vendor's limit": Trap(
        lambda h: {"pcie_replays": replace(h.pcie_replays, nodes=1.0)}, lambda b: True, every=True
    ),
    "short slowdowns by heat": Trap(lambda h: {"thermal_bumps": replace(h.thermal_bumps, per_day=20.0)}, lambda b: True),
    "corrected memory errors and single remaps": Trap(
        lambda h: {"ecc_corrected": replace(h.ecc_corrected, per_day=4.0), "row_remaps_per_day": 0.3}, lambda b: True
    ),
    "programs that fail": Trap(lambda h: {"application_xids_per_day": 10.0}, lambda b: True),
    "an engine that does not answer now and then": Trap(lambda h: {"hiccups_per_day": 4.0}, lambda b: True),
    "cards that are exchanged": Trap(lambda h: {"swaps_per_day": 0.7}, lambda b: True),
    "a new driver and engine on every node": Trap(lambda h: {"upgrade": replace(h.upgrade, nodes=1.0)}, lambda b: True),
}


def nothing(params: Params) -> Healthy:
    """A fleet in which nothing happens."""
    h = params.healthy
    return replace(
        h,
        boots=replace(h.boots, per_day=0.0),
        gpu_resets_per_day=0.0,
        driver_reloads_per_day=0.0,
        lifetime=replace(h.lifetime, nodes=0.0),
        retries=replace(h.retries, links=0.0),
        crc_few=replace(h.crc_few, nodes=0.0),
        crc_many=replace(h.crc_many, nodes=0.0),
        power_cap=0.0,
        thermal_bumps=replace(h.thermal_bumps, per_day=0.0),
        pcie_replays=replace(h.pcie_replays, nodes=0.0),
        ecc_corrected=replace(h.ecc_corrected, per_day=0.0),
        row_remaps_per_day=0.0,
        symbols=replace(h.symbols, nodes=0.0),
        application_xids_per_day=0.0,
        hiccups_per_day=0.0,
        swaps_per_day=0.0,
        upgrade=replace(h.upgrade, nodes=0.0),
    )


def plans(params: Params, name: str, each: int) -> list[Plan]:
    """``each`` nodes of every board that can have it."""
    trap = TRAPS[name]
    quiet = nothing(params)
    setting = replace(params, healthy=replace(quiet, **trap.changes(params.healthy)), jobs=replace(params.jobs, longest=DAY / 2))
    out = []
    for board_name in params.fleet.boards:
        home = board(board_name)
        if not trap.fits(home):
            continue
        for number in range(each):
            draft = Draft(Random(f"{params.seed}/{name}/{board_name}/{number}"), setting, home, EVERY_S if trap.every else DAYS * DAY)
            healthy.everything(draft)
            out.append(finish(draft, f"{name}, {board_name} {number}"))
    return out
