"""All looks, in an order that lets each use what the ones before it found."""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

from slurm_nvhc import resources
from slurm_nvhc.act import site_hooks
from slurm_nvhc.doctor.facts import DiagFacts, Facts, Launcher
from slurm_nvhc.doctor.look import diag, host, ledger, policy, quarantine, slurm
from slurm_nvhc.doctor.look.edges import Edges, within
from slurm_nvhc.policy import kill_switch

READ_S: Final = 30.0  # the longest that the node is read, whatever the policy gives the engine
LAUNCHERS_S: Final = 5.0


class Ask(NamedTuple):
    """Where things are said to be. All paths absolute; slurm_conf '' = as hooks find it."""

    node: str
    config: str
    state: str
    run: str
    slurm_conf: str
    libdir: str
    kill_switch: str


def gather(ask: Ask, edges: Edges) -> Facts:
    """Takes some seconds, a minute at the worst. Never raises for what is wrong on the machine."""
    given = policy.look(edges, ask.config, os.path.join(ask.state, ask.node), ask.node)
    engine, switch = given.policy.engine, given.policy.kill_switch
    nothing: tuple[Launcher, ...] = ()
    ours = within(LAUNCHERS_S, lambda: slurm.launchers(edges, ask.libdir), nothing)
    python = next((found for launcher in ours if (found := launcher.settings.get("PYTHON", ""))), sys.executable)
    trusted = [
        ("policy", ask.config if given.there else ""),
        ("launchers", ask.libdir if any(launcher.there for launcher in ours) else ""),
        ("interpreter", python),
        ("package", os.path.dirname(os.path.abspath(resources.__file__))),
        *((f"on_{event}", site_hooks.program(given.policy.site_hooks, event)) for event in site_hooks.EVENTS),
        *((program.key, program.path) for program in given.programs if program.path.startswith("/")),
    ]
    slurm_facts = slurm.look(edges, ask.node, ask.slurm_conf, given.policy.slurm, ask.run, ask.libdir, ours)
    return Facts(
        node=ask.node,
        policy=given,
        snapshot=edges.read(ask.node, engine, min(engine.timeout_s, READ_S)),
        host=host.look(edges, engine.bindings, ask.state, ask.run, trusted, ask.kill_switch)._replace(
            cluster=kill_switch.look(switch and edges.at(switch), given.policy.rules, kill_switch.READ_S)
        ),
        slurm=slurm_facts,
        ledger=ledger.look(edges, ask.state, ask.node),
        quarantine=quarantine.look(edges, ask.node, given, slurm_facts),
        diag=diag.look(edges) if given.asked else DiagFacts(),
    )
