"""Random walks: draw steps, do them, and when a rule breaks cut the trace down to the steps that break it."""

from __future__ import annotations

import random
from typing import Final, NamedTuple, Optional

from planner.actors import NO_MANNER, do, ours
from planner.draw import draw, draw_setting
from planner.world import Setting, Step, Violation, World

LENGTH: Final = 200  # steps of an episode

class Failure(NamedTuple):
    """A rule that broke, and the shortest trace found that breaks it. episode: its number, of this seed."""

    rule: str
    what: str
    seed: object
    episode: int
    setting: Setting
    steps: tuple[Step, ...]


class Report(NamedTuple):
    steps: int
    counts: dict[str, int]
    failures: tuple[Failure, ...]


def walk(seed: object, steps: int, first: int = 0, stop: int = 1, shrinks: bool = True, mood: str = "") -> Report:
    """Episodes until ``steps`` steps are done, or ``stop`` rules broke; from episode ``first`` on. Within hook.machine()."""
    counts: dict[str, int] = {}
    failures: list[Failure] = []
    done, episode = 0, first
    while done < steps and len(failures) < stop:
        rng = random.Random(f"{seed}:{episode}")
        setting, kind = draw_setting(rng, mood)
        world = World(setting)
        world.do = do
        trace: list[Step] = []
        try:
            for _ in range(min(LENGTH, steps - done)):
                step = draw(rng, world, kind)
                trace.append(step)
                do(world, step)
        except Violation as broken:
            cut = shrink(setting, tuple(trace), broken.rule) if shrinks else tuple(trace)
            again = play(setting, cut) if shrinks else broken
            failures.append(Failure(broken.rule, again.what if again is not None else broken.what, seed, episode, setting, cut))
        done += len(trace)
        episode += 1
        for what, number in world.counts.items():
            counts[what] = counts.get(what, 0) + number
    return Report(done, counts, tuple(failures))


def play(setting: Setting, steps: tuple[Step, ...]) -> Optional[Violation]:
    """Do these steps; the rule that broke, or None."""
    world = World(setting)
    world.do = do
    try:
        for step in steps:
            do(world, step)
    except Violation as broken:
        return broken
    return None


def shrink(setting: Setting, steps: tuple[Step, ...], rule: str, most: int = 1500) -> tuple[Step, ...]:
    """Without steps, and without what happened during them, that the breaking of this rule does not need."""
    tries = 0

    def breaks(some: tuple[Step, ...]) -> bool:
        nonlocal tries
        tries += 1
        broken = play(setting, some)
        return broken is not None and broken.rule == rule

    size = max(1, len(steps) // 2)
    while size and tries < most:
        at = 0
        while at < len(steps) and tries < most:
            less = steps[:at] + steps[at + size :]
            if breaks(less):
                steps = less
            else:
                at += size
        size //= 2
    for at, step in enumerate(steps):
        for inner in step.during:
            plainer = steps[at]._replace(during=tuple(i for i in steps[at].during if i is not inner))
            less = (*steps[:at], plainer, *steps[at + 1 :])
            if breaks(less):
                steps = less
        if ours(step) and steps[at].args[-1] != NO_MANNER:
            less = (*steps[:at], steps[at]._replace(args=(*step.args[:-1], NO_MANNER)), *steps[at + 1 :])
            if breaks(less):
                steps = less
    return steps
