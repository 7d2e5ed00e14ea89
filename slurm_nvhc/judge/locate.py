"""From findings to suspects: which part do they point to? Pure, total, and without a say in what is done.

Each rule is a function of the scene, the items that no rule before it explained, and the suspects so
far; it gives suspects. The order is the argument: who fell first, then what many things have in common,
then each link, then each GPU. Whatever is left reports about itself. Every warning and failure about a
GPU, link or switch ends behind exactly one suspect.
"""

from __future__ import annotations

from typing import Callable, Final, Iterable, Sequence

from slurm_nvhc.judge import memory, users
from slurm_nvhc.judge.context import Input
from slurm_nvhc.judge.echoes import dead_gpus, gone_together, secondary, switches
from slurm_nvhc.judge.environment import own_faults, rest, shared_causes
from slurm_nvhc.judge.links import many_links, single_links, some_link, training
from slurm_nvhc.judge.programs import programs
from slurm_nvhc.judge.scene import Item, Scene, rank, scene, worth
from slurm_nvhc.judge.swaps import after_exchange
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.suspect import Suspect

Rule = Callable[[Scene, Sequence[Item], Sequence[Suspect]], Iterable[Suspect]]

RULES: Final[tuple[Rule, ...]] = (
    gone_together,
    dead_gpus,
    switches,
    training,
    many_links,
    single_links,
    shared_causes,
    own_faults,
    secondary,
    some_link,
    programs,
    rest,
)


def locate(inp: Input, findings: Iterable[Finding], notes: memory.Notes) -> tuple[Suspect, ...]:
    """The suspects behind a run's findings, worst first; () when nothing is to be located.

    The same whatever the order of findings, changes and events. notes: how jobs ended and where faults were is remembered.
    """
    programs_known = users.remember(inp, notes)
    located = [f for f in findings if worth(f)]
    if not located:
        return ()
    here = scene(inp, located, programs_known)
    found: list[Suspect] = []
    claimed: set[str] = set()
    for rule in RULES:
        for suspect in list(rule(here, [i for i in here.items if i.key not in claimed], tuple(found))):
            keys = tuple(sorted(set(suspect.findings) - claimed))
            claimed.update(keys)
            if keys:
                _add(found, suspect._replace(findings=keys))
    after = after_exchange(here, found, notes)
    merged: list[Suspect] = []
    for suspect in after:
        _add(merged, suspect)
    return tuple(sorted(merged, key=lambda s: _worst_first(here, s)))


def joined(inp: Input, suspects: Sequence[Suspect], added: Iterable[Finding], findings: Iterable[Finding]) -> tuple[Suspect, ...]:
    """The suspects of a run to which findings were added afterwards (an active test): these are located by themselves.

    findings: all of the run. Nothing is remembered.
    """
    out = list(suspects)
    for suspect in locate(inp, added, memory.Notes({}, inp.now_ns, inp.snapshot.boot_id, inp.run_id)):
        _add(out, suspect)
    here = scene(inp, [f for f in findings if worth(f)], users.Programs())
    return tuple(sorted(out, key=lambda s: _worst_first(here, s)))


def _add(found: list[Suspect], suspect: Suspect) -> None:
    """Behind a suspect that is there already, or as a new one. The first reason stays: its rule outranks."""
    for at, known in enumerate(found):
        if known[:2] == suspect[:2] and (known.named, known.far) == (suspect.named, suspect.far):
            found[at] = known._replace(findings=tuple(sorted({*known.findings, *suspect.findings})))
            return
    found.append(suspect)


def _worst_first(here: Scene, suspect: Suspect) -> tuple[object, ...]:
    """By the worst finding behind it, then named before not named."""
    worst = min(rank(f) for i in here.items if i.key in set(suspect.findings) for f in i.findings)
    return (worst[:2], not suspect.named, suspect.kind, suspect.entity, suspect.far, worst)
