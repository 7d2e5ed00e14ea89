"""What a run knows before it looks at the node: environment, policy, time budget, ledger."""

from __future__ import annotations

import time
from typing import Final, Mapping, NamedTuple, Optional

from slurm_nvhc.book import Book
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy import source
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.slurm.environment import job_from_environment, node_name

LEDGER_SHARE: Final = 0.2  # of the budget is the longest that a run waits for the ledger


class Site(NamedTuple):
    """Where things are on this node; baked into the launchers by `nvhc hooks install`."""

    config: str
    state: str
    run: str
    slurm_conf: str = ""


class Context(NamedTuple):
    """What a run knows before it looks at the node.

    troubles: those met so far
    told:     finding codes that an earlier run has announced: a broken policy edit is reported once
    keep:     False for a look by hand: what judge would remember is thrown away
    """

    hook: str
    site: Site
    node: str
    job: Optional[Job]
    policy: Policy
    budget: Budget
    book: Book
    slurm_conf: str
    troubles: tuple[Trouble, ...]
    told: frozenset[str] = frozenset()
    keep: bool = True


def prepare(
    hook: str, site: Site, environment: Mapping[str, str], started: float, hostname: str, registering: bool = False, keep: bool = True
) -> Context:
    """Environment, policy, budget and ledger of a run. Never raises for what an administrator did wrong.

    keep: False for a look by hand, which leaves memory and last good policy as they are.
    """
    node = node_name(environment, hostname)
    state_dir = f"{site.state}/{node}"
    job, troubles = (None, ()) if hook == HEALTH_CHECK else job_from_environment(environment)
    loaded = source.load(site.config, state_dir, node, job.partition if job is not None else "", keep)
    policy = loaded.policy
    budgets = {PROLOG: policy.budgets.prolog_s, EPILOG: policy.budgets.epilog_s, HEALTH_CHECK: policy.budgets.health_check_s}
    seconds = policy.budgets.registration_s if registering else budgets[hook]
    budget = Budget(max(0.0, seconds - (time.monotonic() - started)))
    slurm_conf = environment.get("SLURM_CONF") or site.slurm_conf or policy.slurm.conf
    book = Book(state_dir, seconds * LEDGER_SHARE)
    told = frozenset() if loaded.first else frozenset(t.code for t in loaded.troubles)
    return Context(hook, site, node, job, policy, budget, book, slurm_conf, (*troubles, *loaded.troubles), told, keep)
