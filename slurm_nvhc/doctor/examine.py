"""All checks, in the order in which one would look. Pure."""

from __future__ import annotations

from typing import Final

from slurm_nvhc.doctor import diagnostics, engine, exclusion, gpus, ledger, mapping, permissions, policy, remedies, slurm
from slurm_nvhc.doctor.facts import Facts, Line
from slurm_nvhc.model import finding as fd

_AREAS: Final = (
    policy.lines, engine.lines, gpus.lines, permissions.lines, mapping.lines, slurm.lines, diagnostics.lines, exclusion.lines,
    remedies.lines, ledger.lines,
)  # fmt: skip


def examine(facts: Facts) -> tuple[Line, ...]:
    """Every line about this machine. Nothing is looked up here."""
    return tuple(line for area in _AREAS for line in area(facts))


def verdict(lines: tuple[Line, ...]) -> str:
    """The worst: an unknown only when there is neither warn nor fail."""
    return fd.worst(line.verdict for line in lines)
