"""What placeholder jobs depend on: the policy of each partition of the node, and what Slurm says of them. Asked only where it is wanted."""

from __future__ import annotations

import os
from typing import Final

from slurm_nvhc.doctor.facts import PolicyFacts, QuarantineFacts, SlurmFacts
from slurm_nvhc.doctor.look.edges import Edges, within
from slurm_nvhc.errors import NvhcError
from slurm_nvhc.policy import compiled, source
from slurm_nvhc.policy.acting import Quarantine
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.slurm import conf as files
from slurm_nvhc.slurm.jobs import parse_partitions
from slurm_nvhc.slurm.node import parse_node

SLURM_S: Final = 5.0  # slurmctld answers in milliseconds; without it a command gives up after 9 s (observed)
POLICY_S: Final = 10.0
COMMANDS: Final = ("squeue", "sbatch", "scancel")


def look(edges: Edges, node: str, policy: PolicyFacts, slurm: SlurmFacts) -> QuarantineFacts:
    if not policy.quarantines:
        return QuarantineFacts()
    alloc = within(SLURM_S, lambda: files.prolog_alloc(edges.at(slurm.conf)), None) if slurm.conf else None
    folder = os.path.dirname(slurm.scontrol)
    missing = tuple(name for name in COMMANDS if not os.access(edges.at(os.path.join(folder, name)), os.X_OK))
    facts = QuarantineFacts(_wanted(edges, policy, node, ()), alloc, missing)
    asked = [edges.run([edges.at(slurm.scontrol), *words], SLURM_S) for words in (("show", "node", node), ("-a", "show", "partition"))]
    for answer in asked:
        if answer.rc != 0:
            said = (answer.err.strip() or answer.out.strip() or answer.problem or f"exit status {answer.rc}").splitlines()[-1]
            return facts._replace(problem=f"scontrol: {said[:200]}")
    state = parse_node(asked[0].out)
    of_node = state.partitions if state is not None else ()
    return facts._replace(wanted=_wanted(edges, policy, node, of_node), of_node=of_node, partitions=parse_partitions(asked[1].out))


def _wanted(edges: Edges, policy: PolicyFacts, node: str, partitions: tuple[str, ...]) -> dict[str, Quarantine]:
    """The section by partition, where it is enabled; '' is the policy of health checks, which belong to none."""

    def read() -> dict[str, Quarantine]:
        real = edges.at(policy.path)
        document = compile_policy(source.read_site(real), real)
        sections = {name: compiled.resolve(document, node, name).quarantine for name in ("", *partitions)}
        return {name: section for name, section in sections.items() if section.enabled}

    nothing: dict[str, Quarantine] = {}
    try:
        found = within(POLICY_S, read, nothing)
    except NvhcError:
        found = nothing
    return found or {"": policy.policy.quarantine}
