"""The policy that hooks would load now, without leaving a trace: no compiled form, no mark of a refusal."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Final, Sequence

from slurm_nvhc.doctor.facts import DCGMI, Asked, PolicyFacts, Program
from slurm_nvhc.doctor.look.edges import Edges, within
from slurm_nvhc.errors import NvhcError
from slurm_nvhc.hooks import slurm_conf
from slurm_nvhc.model.diag import API
from slurm_nvhc.policy import compiled, show, source
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.show import Stance
from slurm_nvhc.proc.child import CLEAN_ENVIRONMENT

SITE: Final = "the site's policy"
PACKAGED: Final = "the packaged policy"
LAST_GOOD: Final = "the last good policy"
POLICY_S: Final = 10.0


def look(edges: Edges, path: str, state_dir: str, node: str) -> PolicyFacts:
    slow = PolicyFacts(path, source.nothing(), "no policy", readable=False, problem=f"{path}: did not answer within {POLICY_S:g} s")
    return within(POLICY_S, lambda: _look(edges, path, state_dir, node), slow)


def _look(edges: Edges, path: str, state_dir: str, node: str) -> PolicyFacts:
    real = edges.at(path)
    there = os.path.lexists(real)
    try:
        text = source.read_site(real)
        policy = compiled.resolve(compile_policy(text, real), node)
    except NvhcError as exc:
        denied = there and not os.access(real, os.R_OK)
        return _left(edges, state_dir, node, PolicyFacts(path, source.nothing(), "no policy", there, not denied, str(exc)))
    found = PolicyFacts(path, policy, SITE if text is not None else PACKAGED, there)
    stances = show.stances(real, node)
    return found._replace(
        narrowing=show.narrows_anywhere(real),
        quarantines=show.quarantines_anywhere(real),
        longest=show.longest_budgets(real, node),
        asked=asked(stances),
        programs=programs(stances),
    )


def asked(stances: Sequence[Stance]) -> tuple[Asked, ...]:
    """The diagnostics of all hooks, each with all the places that want it in the same time. Health checks know no partition."""
    found: dict[Asked, list[tuple[str, str]]] = {}
    for partition, model, policy in stances:
        section, budgets = policy.diagnostics, policy.budgets
        for hook, tests, budget_s in (
            (slurm_conf.PROLOG, section.prolog, budgets.prolog_s),
            (slurm_conf.EPILOG, section.epilog, budgets.epilog_s),
            (slurm_conf.HEALTH_CHECK, () if partition else section.drained, budgets.health_check_s),
        ):
            if tests:
                found.setdefault(Asked(hook, tests, budget_s, section.through), []).append((partition, model))
    return tuple(one._replace(places=_widest(places)) for one, places in found.items())


def _widest(places: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Without those of which a wider one is there: the packaged policy alone has a handful of models."""

    def wider(partition: str, model: str) -> set[tuple[str, str]]:
        return {("", ""), (partition, ""), ("", model)} - {(partition, model)}

    return tuple(dict.fromkeys(place for place in places if wider(*place).isdisjoint(places)))


def _path(program: str) -> str:
    return shutil.which(program, path=CLEAN_ENVIRONMENT["PATH"]) or program


def programs(stances: Sequence[Stance]) -> tuple[Program, ...]:
    """The commands of diagnostics and of tests by hand, and the files that they name: a script, say."""
    out = []
    for _, _, policy in stances:
        section = policy.diagnostics
        isolate = policy.isolate
        commands = {"screen.command": policy.screen.command, "isolate.traffic": isolate.traffic, "isolate.alone": isolate.alone}
        for key, words in commands.items():
            # isolate finds its programs as they will be found here; what is found nowhere is told by its bare name.
            words = tuple(_path(word) if n == 0 and key.startswith("isolate") else word for n, word in enumerate(words))
            out += [Program(key, word, n == 0) for n, word in enumerate(words) if n == 0 or word.startswith("/")]
        if section.through != API and (section.prolog or section.epilog or section.drained):
            out.append(Program(DCGMI, section.dcgmi))
    return tuple(dict.fromkeys(out))


def _left(edges: Edges, state_dir: str, node: str, broken: PolicyFacts) -> PolicyFacts:
    """What stays in force beside a file that can not be used."""
    try:
        with open(edges.at(os.path.join(state_dir, source.COMPILED)), "rb") as file:
            last: Any = json.loads(file.read(source.MAX_COMPILED))
        if last["schema"] == compiled.SCHEMA:
            which = LAST_GOOD if last.get("site") is True else PACKAGED
            return broken._replace(policy=compiled.resolve(last, node), which=which)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    try:
        packaged = compiled.resolve(compile_policy(None, source.PACKAGED), node)
        # As source.load does: what the administrator wanted is not known, so nothing acts.
        return broken._replace(policy=packaged._replace(mode="observe"), which=PACKAGED)
    except NvhcError:
        return broken
