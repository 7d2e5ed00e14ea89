"""Time limits that a busy machine keeps, for every test that is not about limits.

Under production's limits a hook on a busy machine may run out of time and say "unknown": right, and not what such a test
asks. Hooks of tests therefore get these limits where a test gives none itself. A test about limits gives its own.
Run as a program, this is ``nvhc`` whose replays have these limits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Callable, Union

from slurm_nvhc import strict_yaml
from slurm_nvhc.errors import InputError
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Budgets
from slurm_nvhc.scenario import stage

PROCESS_S = 300.0  # for a process or an event that comes by itself
READ_S = 120.0  # for one reading of the node
LEDGER_S = 60.0  # for a call to the ledger
# Below the time after which the played slurmd ends a hook (scenario/process.py); of a health check what a policy may give at most.
BUDGETS = Budgets(prolog_s=100, epilog_s=100, health_check_s=50, registration_s=50)
LIMITS: dict[str, dict[str, str]] = {
    "engine": {"timeout": "30s"},
    "slurm": {"timeout": "30s"},
    "budgets": {key.removesuffix("_s"): f"{seconds:g}s" for key, seconds in BUDGETS._asdict().items()},
}


def policy(given: Mapping[str, Any]) -> dict[str, Any]:
    """This policy with these limits where it names none."""
    merged = dict(given)
    for section, limits in LIMITS.items():
        theirs = merged.get(section, {})
        if isinstance(theirs, Mapping):
            merged[section] = {**limits, **theirs}
    return merged


def policy_of_scenario(given: Union[Mapping[str, Any], str]) -> Union[Mapping[str, Any], str]:
    """As ``policy``. A text that is broken stays as it is: it does not come into force."""
    if not isinstance(given, str):
        return policy(given)
    try:
        compile_policy(given, "policy")
        return policy(strict_yaml.load(given, "policy", dict).value)
    except InputError:
        return given


def stage_text(written: Callable[..., str]) -> Callable[..., str]:
    """In place of ``scenario.stage.policy_text``: the hooks of a replay have these limits where its scenario gives none."""
    return lambda given, *places: written(policy_of_scenario(given), *places)


def limit_for(work: Callable[[], object]) -> float:
    """A limit for work that will hang, seconds: it gets as far as it would have, at this machine's present pace.

    work: the same without the hanging.
    """
    began = time.monotonic()
    work()
    return 0.5 + 3 * (time.monotonic() - began)


if __name__ == "__main__":
    from slurm_nvhc.cli.main import main

    stage.policy_text = stage_text(stage.policy_text)
    sys.exit(main())
