"""The life of an exclusion: suspected, excluded, verified, and how it ends by itself. Pure.

A GPU that was suspected or excluded, and then fails an active test, is verified: two that do not know of each other agree.

It is known by the GPU's UUID, so reboots and new numbers do not matter. It ends
by an administrator's word (`nvhc gpu release`), or as *replaced* when another
card sits where the GPU was and the GPU is nowhere else in the node. A suspicion
(the policy only observes, or the node is paused) ends as *cleared* too, once the
GPU was found well often enough in a row: nothing ever depended on it.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping

from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.wish import HEALTH_CHECK, PlanInput, Wish, want
from slurm_nvhc.catalog.findings import PROOFS
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.protective import CLEARED, EXCLUDED, REPLACED, VERIFIED, Exclusion

# Health checks in a row that find a suspected GPU well: an hour at the usual 300 s. Our judgement: a link that goes bad
# under load shows again within the next jobs, and a suspicion keeps nobody off the GPU.
CLEAN_LOOKS: Final = 12


def current(inp: PlanInput) -> PlanInput:
    """Without the exclusions of cards that another one has replaced."""
    gone = {e.uuid for e in _all(inp) if replaced_by(inp, e)}
    if not gone:
        return inp
    return inp._replace(
        exclusions={u: e for u, e in inp.exclusions.items() if u not in gone},
        suspected={u: e for u, e in inp.suspected.items() if u not in gone},
    )


def replaced_by(inp: PlanInput, exclusion: Exclusion) -> str:
    """The UUID of the card in this one's place; '' while the GPU itself is in the node, or nobody sits there."""
    return "" if exclusion.uuid in inp.slots.values() else inp.slots.get(exclusion.slot, "")


def ends(inp: PlanInput) -> Iterable[Step]:
    """Exclusions that are over, and cards that were moved; to be planned with all of them, see ``current``."""
    places = {uuid: slot for slot, uuid in inp.slots.items()}
    for exclusion in _all(inp):
        uuid, code = exclusion.uuid, exclusion.code
        other = replaced_by(inp, exclusion)
        if other:
            why = f"{wd.short_uuid(other)} sits at {exclusion.slot} now, and {wd.short_uuid(uuid)} is not in this node"
            yield Step(st.END_EXCLUSION, uuid=uuid, why=why, about=REPLACED, code=code, way=exclusion.way)
        elif places.get(uuid, exclusion.slot) != exclusion.slot:
            # Its old place may get a card of its own: only the place where it was last tells that it was replaced.
            yield Step(st.NEW_SLOT, uuid=uuid, why=f"sits at {places[uuid]} now", slot=places[uuid], code=code, way=exclusion.way)
        elif uuid in inp.suspected and inp.hook == HEALTH_CHECK and inp.clean_looks.get(uuid, 0) >= CLEAN_LOOKS:
            why = f"found well in {inp.clean_looks[uuid]} health checks in a row"
            yield Step(st.END_EXCLUSION, uuid=uuid, why=why, about=CLEARED, code=code, way=exclusion.way)


def suspects(inp: PlanInput, wish: Wish) -> Iterable[Step]:
    """GPUs that would be excluded if the policy did not only observe, or the node were not paused."""
    # As a health check would: whether this job could be narrowed does not matter.
    observed = inp._replace(hook=HEALTH_CHECK, decision=inp.decision._replace(proposals=inp.decision.observed))
    would = dict(want(observed).exclude) if inp.decision.observed else {}
    if inp.pause is not None:
        would.update(wish.exclude)
    for uuid, findings in would.items():
        if uuid not in inp.suspected and (uuid not in wish.exclude or inp.pause is not None):
            yield taken_out(inp, st.SUSPECT, uuid, findings)


def proven(inp: PlanInput) -> Iterable[Step]:
    """Excluded GPUs that an active test convicts as well."""
    for proposal in inp.decision.proposals:
        known = inp.exclusions.get(proposal.uuid)
        told = [f for f in proposal.findings if f.code in PROOFS and f.verdict == fd.FAIL]
        if known is not None and known.stage == EXCLUDED and told:
            first = told[0]
            yield Step(st.VERIFY, uuid=proposal.uuid, why=f"{first.code} {wd.what(first)}", keys=(wd.key(first),), code=known.code)


def taken_out(inp: PlanInput, kind: str, uuid: str, findings: tuple[Finding, ...], reason: str = "") -> Step:
    """The step that excludes a GPU for these findings, or suspects it."""
    first = wd.ordered(findings)[0]
    return Step(
        kind,
        reason=reason,
        uuid=uuid,
        why=" ".join(part for part in (inp.name(uuid), wd.words(first).link, first.code, wd.what(first)) if part),
        keys=tuple(dict.fromkeys(wd.key(f) for f in findings)),
        idents=tuple(dict.fromkeys(i for f in findings for i in f.idents)),
        code=first.code,
        way=inp.way,
        slot=next((slot for slot, here in inp.slots.items() if here == uuid), ""),
        about=VERIFIED if uuid in inp.suspected and any(f.code in PROOFS for f in findings) else "",
    )


def clean_looks(before: Mapping[str, int], suspected: Iterable[str], verdicts: Mapping[str, str]) -> dict[str, int]:
    """Looks in a row that found each suspected GPU well, this one included. One that saw nothing of it counts neither way."""
    out = {}
    for uuid in suspected:
        verdict = verdicts.get(uuid, fd.UNKNOWN)
        out[uuid] = before.get(uuid, 0) + (1 if verdict == fd.OK else 0) if verdict in (fd.OK, fd.UNKNOWN) else 0
    return out


def _all(inp: PlanInput) -> tuple[Exclusion, ...]:
    return (*inp.exclusions.values(), *inp.suspected.values())
