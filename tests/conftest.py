"""Shared by all tests: nothing of the machine's own settings reaches them, and its pace changes no result."""

from __future__ import annotations

import functools
import os
from typing import Any, Iterator

import patient
import pytest

from slurm_nvhc import strict_yaml
from slurm_nvhc.policy.source import PACKAGED
from slurm_nvhc.scenario import stage

_FOREIGN = ("SLURM_", "SLURMD_", "CUDA_", "NVHC_")


@pytest.fixture(autouse=True)
def _no_foreign_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer may run the tests inside a Slurm job: its variables must not look like the test's."""
    for name in [n for n in os.environ if n.startswith(_FOREIGN)]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _patient_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario's hooks have the patient time limits where it gives none itself."""
    monkeypatch.setattr(stage, "policy_text", patient.stage_text(stage.policy_text))


@pytest.fixture(scope="session", autouse=True)
def _packaged_policy_is_parsed_once() -> Iterator[None]:
    """By this process, which needs its tree four times for each scenario. Hooks that are started parse it themselves."""
    load = strict_yaml.load
    once = functools.lru_cache(load)

    def loaded(text: Any, thing: str, type: Any, **more: Any) -> Any:
        return (once if thing == PACKAGED else load)(text, thing, type, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_yaml, "load", loaded)
        yield
