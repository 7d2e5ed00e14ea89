"""The policy that hooks would load now, without leaving a trace: no compiled form, no mark of a refusal."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from slurm_nvhc.doctor.facts import PolicyFacts
from slurm_nvhc.doctor.look.edges import Edges, within
from slurm_nvhc.errors import NvhcError
from slurm_nvhc.policy import compiled, show, source
from slurm_nvhc.policy.compile import compile_policy

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
    return found._replace(narrowing=show.narrows_anywhere(real), quarantines=show.quarantines_anywhere(real))


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
