"""Which GPU a number in SLURM_JOB_GPUS means: exact or assumed, and what slurmd itself says.

Observed on 22.05 and 24.11: the number is the position in the concatenated File list, and
`slurmd -G` prints that list in order. It is the authority: it is what slurmd hands out by.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from slurm_nvhc.doctor.facts import Facts, Line, fail, ok, unknown, warn
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.slurm import gres as gres_file


class Row(NamedTuple):
    """One position. file is '' without a File list; minor None and the texts '' when unknown."""

    position: int
    file: str
    minor: Optional[int]
    pci: str
    uuid: str


def lines(facts: Facts) -> list[Line]:
    if facts.no_gpus and not facts.slurm.listing.files:
        return []
    return [_rests_on(facts), _authority(facts)]


def rows(facts: Facts) -> tuple[Row, ...]:
    """The node's positions as the hooks resolve them, in order."""
    mapping, gres = resolved(facts), facts.slurm.gres
    files = dict(enumerate(gres.files)) if gres is not None else {}
    known = {g.uuid: g for g in facts.ledger.known}
    known.update({uuid: g.identity for uuid, g in (facts.snapshot.gpus or {}).items()})
    out = []
    for position in sorted({*mapping.by_position, *files}):
        identity = known.get(mapping.by_position.get(position, ""))
        file = files.get(position, "") if facts.policy.policy.slurm.job_gpus == gres_file.POSITION else ""
        minor = identity.minor if identity is not None else gres_file.minor_of(file)
        pci, uuid = (identity.pci, identity.uuid) if identity is not None else ("", "")
        out.append(Row(position, file, minor, pci, uuid))
    return tuple(out)


def resolved(facts: Facts) -> GpuMapping:
    """As a hook would resolve a job that has all GPUs."""
    gres, snapshot, known = facts.slurm.gres, facts.snapshot, facts.ledger.known
    present = [g.identity for g in snapshot.gpus.values()] if snapshot.gpus is not None else known
    numbers = facts.policy.policy.slurm.job_gpus
    positions = range(len(gres.files)) if gres is not None and numbers == gres_file.POSITION else ()
    return gres_file.resolve(tuple(positions), gres, present, known, numbers)


def _rests_on(facts: Facts) -> Line:
    mapping = resolved(facts)
    if mapping.missing:
        lost = f"no GPU at position {', '.join(map(str, mapping.missing))}"
        return fail("mapping.positions", f"{lost} ({mapping.why})", "find the missing GPU, see gpus.count")
    if mapping.exact:
        return ok("mapping.positions", f"exact: {mapping.why}")
    if facts.snapshot.gpus is None and not facts.ledger.known:
        return unknown("mapping.positions", f"no GPU is known ({mapping.why})", "make the engine answer first")
    if any(gpu.identity.mig for gpu in (facts.snapshot.gpus or {}).values()):
        return warn(
            "mapping.positions", f"assumed: {mapping.why}", "as it is with MIG: parents are judged for their instances, never narrowed"
        )
    advice = "a GPU is never narrowed on an assumed mapping, a node can be drained: "
    problem = f" ({facts.slurm.gres_problem})" if facts.slurm.gres_problem else ""
    return warn("mapping.positions", f"assumed: {mapping.why}{problem}", advice + _list_advice(facts))


def _list_advice(facts: Facts) -> str:
    files = facts.slurm.listing.files
    if files:
        return f"write gres.conf as slurmd has it: Name=gpu File={','.join(files)}"
    return "give a File= list in gres.conf"


def _authority(facts: Facts) -> Line:
    check, listing, gres = "mapping.slurmd", facts.slurm.listing, facts.slurm.gres
    if listing.files is None:
        return unknown(check, f"slurmd's own list is not known: {listing.problem}", "compare gres.conf with `slurmd -G` by hand")
    ours = gres.files if gres is not None else ()
    if not listing.files:
        if ours:
            return fail(check, f"slurmd has no GPU, gres.conf names {len(ours)}", "check NodeName's Gres= in slurm.conf")
        return warn(check, "slurmd has no GPU: it gives none to jobs", "check gres.conf and NodeName's Gres= in slurm.conf")
    if not ours:
        return warn(check, f"slurmd has {len(listing.files)} GPUs, gres.conf has no File list that hooks can read", _list_advice(facts))
    if ours != listing.files:
        at = next((n for n, pair in enumerate(zip(ours, listing.files)) if pair[0] != pair[1]), min(len(ours), len(listing.files)))
        there = ours[at] if at < len(ours) else "nothing"
        here = listing.files[at] if at < len(listing.files) else "nothing"
        found = f"slurmd hands out another list than gres.conf says: position {at} is {here}, gres.conf says {there}"
        return fail(check, found, f"hooks would name the wrong GPU; {_list_advice(facts)}")
    return ok(check, f"`slurmd -G` gives the same {len(ours)} device files in the same order")
