"""Which step comes next: drawn, so that rare things meet often. What is drawn depends on the world, what it does only on the step."""

from __future__ import annotations

import random
from typing import Any, Final, Mapping

from planner.actors import NO_MANNER, ours
from planner.hardware import FAULTS, GPUS
from planner.node import ISSUED, OURS, QUIET
from planner.world import Cell, Setting, Step, World
from slurm_nvhc.model import finding as fd

MOMENTS: Final = 24  # a hook that acts passes some ten to twenty
REDRAWN: Final = 3  # times that a step which can do nothing is drawn anew

# Weights of the deeds. Our own hooks have the half of all steps; the rest is what makes their life hard.
_WEIGHTS: Final = {
    "checks": 22, "starts": 16, "ends": 14, "wait": 12, "breaks": 6, "breaks_everywhere": 0.5, "resumes": 2, "drains": 2, "slurmctld": 3,
    "edit": 2, "resets": 1, "swaps": 1, "boots": 1, "engine": 1, "nhc_drains": 1, "careless_drains": 0.5, "quiet": 1, "downs": 0.5,
    "fails": 0.3, "reboots": 1, "excludes": 0.5, "releases_gpu": 2, "same_reason_again": 1, "pauses": 1, "cancels": 1,
}  # fmt: skip
# While one of our hooks is at work. Drains and resumes by others just then are what ownership is about.
_OTHERS: Final = {
    "drains": 6, "resumes": 6, "careless_drains": 3, "nhc_drains": 3, "same_reason_again": 3, "undrains": 2, "quiet": 2, "downs": 1,
    "fails": 1,
    "reboots": 2, "slurmctld": 4, "breaks": 3, "resets": 1, "swaps": 1, "edit": 2, "excludes": 1, "releases_gpu": 2, "checks": 2,
    "pauses": 1, "cancels": 3,
}  # fmt: skip
# What the people in charge do sooner or later with a node that is not in service: with our drain, with anything else.
_AFTER_OURS: Final = {"resumes": 5, "mends": 14, "resets": 4, "swaps": 3, "boots": 3, "undrains": 1, "engine": 2, "wait": 6, "checks": 10,
                       "same_reason_again": 3}
_AFTER_OTHERS: Final = {"resumes": 8, "boots": 2, "answers": 8, "nhc_resumes": 4, "undrains": 2, "cancels_reboot": 2, "engine": 3}
# What an episode is rather about: factors; how often somebody sees to a node that we drained; how soon slurmctld is repaired.
_MOODS: Final[dict[str, tuple[float, float, dict[str, float]]]] = {
    "mixed": (0.3, 0.2, {}),
    "healing": (0.6, 0.4, {"resumes": 0.1, "drains": 0.3, "ends": 0.5, "excludes": 0, "edit": 0.2, "slurmctld": 0.3, "downs": 0.2,
                           "fails": 0.2, "careless_drains": 0.2, "reboots": 0.2, "pauses": 0.2}),
    "jobs": (0.5, 0.5, {"starts": 3, "ends": 2, "checks": 0.4, "excludes": 4, "edit": 0.5, "slurmctld": 0.5, "drains": 0.5, "pauses": 2}),
    "outage": (0.3, 0.1, {"slurmctld": 5, "edit": 6, "wait": 2, "breaks": 2}),
    "fleet": (0.6, 0.4, {"breaks": 0.5, "breaks_everywhere": 12, "wait": 2, "starts": 0.5, "ends": 0.5, "excludes": 0.1, "slurmctld": 0.3,
                         "drains": 0.2, "downs": 0.2, "fails": 0.2, "careless_drains": 0.2, "edit": 0.2, "pauses": 0.2}),
}  # fmt: skip
_TABLES: Final = {mood: [w * factors.get(what, 1) for what, w in _WEIGHTS.items()] for mood, (_, _, factors) in _MOODS.items()}
_WAITS: Final = {"healing": (5, 20, 60, 60), "outage": (1, 5, 20, 60, 1500, 1500)}  # minutes
_REASONS: Final = ("psu swap", "nvhc: looked at by ada", "gpu3 XID-FATAL", "memtest", "maintenance")


def draw_setting(rng: random.Random, mood: str = "") -> tuple[Setting, str]:
    """What an episode begins with, and its mood; one of this mood where it is given."""
    mood = mood or rng.choice(tuple(_MOODS))
    setting = Setting(
        nodes=3 if mood == "fleet" or rng.random() < 0.2 else 1,
        keeps=rng.random() < 0.5,
        returns=rng.random() < 0.8,
        mode=fd.ENFORCE if mood in ("healing", "fleet") or rng.random() < 0.8 else fd.OBSERVE,
        narrow=rng.random() < 0.4,
        extend=rng.random() < 0.4,
        resume=rng.choice(("standing", "own", "own")) if mood == "healing" else rng.choice(("off", "standing", "own")),
        passes=rng.choice((1, 2, 3)),
        after_min=rng.choice((0, 30)),
        per_day=rng.choice((1, 1, 2)),
        requeue=rng.random() < (0.8 if mood == "jobs" else 0.4),
        per_job=rng.choice((1, 2)),
        reboot=rng.random() < 0.6,
        alone=rng.random() < 0.5,
        counts=mood == "fleet" or rng.random() < 0.7,
        hard=rng.choice((1, 2)),
    )
    return setting, mood


def draw(rng: random.Random, world: World, mood: str) -> Step:
    step = _drawn(rng, world, mood)
    for _ in range(REDRAWN):
        if _can(world, world.cells[step.node], step.what):
            break
        step = _drawn(rng, world, mood)
    return step._replace(during=_during(rng, world, step.node, mood)) if ours(step) else step


def _drawn(rng: random.Random, world: World, mood: str) -> Step:
    number = rng.randrange(len(world.cells))
    cell = world.cells[number]
    seen_to, repaired, _ = _MOODS[mood]
    if world.slurmctld != "ok" and rng.random() < repaired:
        return Step("slurmctld", number, ("ok",))
    what = rng.choices(tuple(_WEIGHTS), _TABLES[mood])[0]
    if cell.node.owner == OURS:
        if rng.random() < seen_to:
            what = _one_of(rng, _AFTER_OURS)
    elif (cell.node.out or cell.node.flags or not cell.hw.engine) and rng.random() < 0.5:
        what = "boots" if ISSUED in cell.node.flags else _one_of(rng, _AFTER_OTHERS)
    waiting = sorted({k.partition(" ")[0] for i in cell.kept.state.intents for k in i.keys} & set(FAULTS))
    if what == "edit" and waiting and rng.random() < 0.5:
        mode = rng.choice((fd.OBSERVE, fd.OFF))
        return Step(what, number, ({}, {code: mode for code in waiting}))
    return Step(what, number, _args(rng, what, mood))


def _can(world: World, cell: Cell, what: str) -> bool:
    """Whether this deed could do anything now."""
    node = cell.node
    if what == "starts":
        return not node.out and not node.flags and bool(cell.free()) and world.slurmctld == "ok"
    if what == "ends":
        return bool(cell.jobs) and world.slurmctld == "ok"
    if what in ("resumes", "same_reason_again", "undrains", "nhc_resumes"):
        return node.out
    if what == "answers":
        return node.down or QUIET in node.flags
    return what != "releases_gpu" or bool(cell.kept.state.exclusions)


def _one_of(rng: random.Random, weights: Mapping[str, float]) -> str:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def _during(rng: random.Random, world: World, node: int, mood: str) -> tuple[tuple[int, Step], ...]:
    if rng.random() < 0.4:
        return ()
    out = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        what, where = _one_of(rng, _OTHERS), node if rng.random() < 0.8 else node + 1
        if len(world.cells) > 1 and rng.random() < 0.5:
            what, where = "checks", node + rng.choice((1, 2))  # two nodes drain at once: between the count and the drain
        at = rng.randrange(4, 10) if what == "checks" else rng.randrange(MOMENTS)
        out.append((at, Step(what, where % len(world.cells), _args(rng, what, mood))))
    return tuple(out)


def _manner(rng: random.Random) -> tuple[Any, ...]:
    if rng.random() < 0.6:
        return NO_MANNER
    return (
        rng.randrange(2) if rng.random() < 0.3 else None,
        rng.random() < 0.08,
        rng.randrange(6) if rng.random() < 0.2 else None,
        rng.randrange(MOMENTS) if rng.random() < 0.35 else None,
    )


def _args(rng: random.Random, what: str, mood: str) -> tuple[Any, ...]:
    slot = rng.randrange(GPUS)
    if what == "checks":
        return (_manner(rng),)
    if what == "starts":
        return (rng.choice((1, 1, 2, GPUS)), rng.random() < 0.5, "fails" if rng.random() < 0.03 else "", _manner(rng))
    if what == "ends":
        return (rng.randrange(GPUS), rng.choices(("", "before", "after"), (20, 1, 1))[0], _manner(rng))
    if what == "wait":
        return (rng.choice(_WAITS.get(mood, (0.1, 1, 5, 5, 20, 60, 600, 1500))),)
    if what in ("breaks", "breaks_everywhere"):
        return (rng.choice(tuple(FAULTS)), slot)
    if what in ("drains", "downs", "fails"):
        return (rng.choice(_REASONS),)
    if what == "slurmctld":
        return (rng.choice(("ok", "down", "hung", "hung")),)
    if what == "edit":
        return _edit(rng)
    if what in ("resets", "swaps", "excludes"):
        return (slot,)
    if what == "engine":
        return (rng.random() < 0.8, () if rng.random() < 0.5 else tuple(n for n in range(GPUS) if rng.random() < 0.15))
    if what == "quiet":
        return (rng.choice((1, 2, 2)),)
    if what == "pauses":
        return (rng.choice((0, 10, 120, 120)),)
    if what == "reboots":
        return (rng.choice((None, "kernel update")), rng.choice(("RESUME", "")))
    return ()


def _edit(rng: random.Random) -> tuple[dict[str, Any], dict[str, str]]:
    kind = rng.randrange(8)
    if kind == 0:
        return {"mode": rng.choice((fd.ENFORCE, fd.ENFORCE, fd.OBSERVE))}, {}
    if kind == 1:
        return {"resume": rng.choice(("off", "standing", "own"))}, {}
    if kind == 2:
        return {"narrow": rng.random() < 0.5}, {}
    if kind == 3:
        return {"extend": rng.random() < 0.5}, {}
    mode = rng.choice((fd.ENFORCE, fd.OBSERVE, fd.OFF))
    return {}, {code: mode for code in rng.sample(tuple(FAULTS), rng.choice((1, 1, 2, 4)))}
