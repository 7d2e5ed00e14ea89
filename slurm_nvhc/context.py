"""What a run knows before it looks at the node: environment, policy, time budget, ledger."""

from __future__ import annotations

import time
from typing import Final, Mapping, NamedTuple, Optional

from slurm_nvhc.book import Book
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.protective import Pause
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy import kill_switch, source
from slurm_nvhc.policy.compiled import Policy
from slurm_nvhc.proc import mounts
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.slurm.environment import job_from_environment, node_name

LEDGER_SHARE: Final = 0.2  # of the budget is the longest that a run waits for the ledger


class Site(NamedTuple):
    """Where things are on this node; baked into the launchers by `nvhc hooks install`."""

    config: str
    state: str
    run: str
    slurm_conf: str = ""


def durable(policy: Policy, state_dir: str) -> bool:
    """Does the node's state survive a reboot? As the policy says, or else as the file system does."""
    return mounts.durable(state_dir) if policy.record.durable is None else policy.record.durable


class Context(NamedTuple):
    """What a run knows before it looks at the node.

    troubles: those met so far
    told:     finding codes that an earlier run has announced: a broken policy edit is reported once
    keep:     False for a look by hand: what judge would remember is thrown away
    pause:    maintenance on this node: looked at and recorded as ever, nothing is done; None = none
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
    pause: Optional[Pause] = None

    @property
    def judged_by(self) -> Policy:
        """The policy that judges. In a pause it only observes, so what is logged meanwhile is not drained for later."""
        return self.policy if self.pause is None else self.policy._replace(mode=fd.OBSERVE)


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
    pause = book.protective().pause
    if pause is not None and time.time_ns() >= pause.until_ns:
        pause = None
    return Context(hook, site, node, job, policy, budget, book, slurm_conf, (*troubles, *loaded.troubles), told, keep, pause)


def at_switch(context: Context) -> tuple[Context, kill_switch.Switch]:
    """Look at the cluster's kill switch, once the run's time is bounded: (context without the rules it names, switch).

    A switch that can not be read is as it was when it last could: a file system that fails must neither
    start what an administrator has stopped nor stop what protects.
    """
    policy, book = context.policy, context.book
    if not policy.kill_switch:
        return context, kill_switch.Switch()
    timeout_s = min(kill_switch.READ_S, kill_switch.SHARE * context.budget.left_s())
    switch = kill_switch.look(policy.kill_switch, policy.rules, timeout_s)
    last = book.ask(lambda led: led.get("kill_switch"), "")
    troubles = []
    if switch.problem:
        left = kill_switch.parse(policy.kill_switch, last, policy.rules) if last else kill_switch.Switch(policy.kill_switch)
        known = str(left) or "nothing was switched off when it was last read, and nothing is now"
        troubles.append(Trouble(source.CODE, "kill_switch", f"{switch.problem}; {known}"))
        switch = left
    elif switch.text != last and context.keep:
        book.ask(lambda led: led.put("kill_switch", switch.text), None)
    if switch.unknown:
        names = ", ".join(switch.unknown)
        troubles.append(Trouble(source.CODE, "kill_switch", f"{switch.file}: no rule of the policy is called {names}"))
    policy = kill_switch.without(policy, switch.rules)
    return context._replace(policy=policy, troubles=(*context.troubles, *troubles)), switch
