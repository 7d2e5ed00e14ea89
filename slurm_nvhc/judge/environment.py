"""Heat, power and fabric: one GPU's own trouble, or what all share? And whatever needs no locating. Pure."""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Sequence

from slurm_nvhc.judge import scene as sc
from slurm_nvhc.judge.scene import Item, Scene, accuse, most
from slurm_nvhc.model import entity
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.suspect import Suspect

# Another GPU's counter supports "all at once" from this share of the worst one's growth. Our judgement: a brake or
# a hot inlet hits neighbours alike, and a GPU that was slowed a little for its own load does not count.
ALIKE_SHARE: Final = 0.1


class _Cause(NamedTuple):
    """What GPUs do, what is behind it when all do, and when one does."""

    what: str
    shared: str
    own: str


_CAUSES: Final[Mapping[str, _Cause]] = {
    sc.HEAT: _Cause("too hot or slowed for heat", "inlet air, fans or cooling loop", "the card, its cooler or its seat"),
    sc.POWER: _Cause("braked or held back for power", "power supplies or chassis", "the card or its own power feed"),
    sc.FABRIC: _Cause("without a ready fabric", "fabric manager, driver or switches", "the card or its links"),
}


def shared_causes(scene: Scene, items: Sequence[Item], found: Sequence[Suspect]) -> Iterable[Suspect]:
    """The same trouble on most GPUs at once is the node's; on one of several it is that GPU's."""
    for kind, cause in _CAUSES.items():
        mine = [i for i in items if i.kind == kind]
        hit = {i.device for i in mine}
        if not hit:
            continue
        broken = [s for s in found if s.kind == su.SWITCH and s.named] if kind == sc.FABRIC else []
        if len(broken) == 1:
            yield broken[0]._replace(findings=tuple(i.key for i in mine))
            continue
        hit |= _alike(scene, mine)
        seen = len(scene.gpus() | hit)
        if most(len(hit), seen):
            yield accuse(su.NODE, entity.NODE, f"{len(hit)} of {seen} GPUs are {cause.what}: {cause.shared}", mine)
        elif len(hit) == seen and seen > 1:
            why = f"both GPUs that were looked at are {cause.what}: {cause.shared}, or each for itself"
            yield accuse(su.NODE, entity.NODE, why, mine, named=False)
        else:
            for gpu in sorted({i.device for i in mine}):
                why = f"{scene.name(gpu)} is {cause.what}, {_others(seen, len(hit))}: {cause.own}"
                yield accuse(su.GPU, gpu, why, [i for i in mine if i.device == gpu])


def _alike(scene: Scene, items: Iterable[Item]) -> set[str]:
    """GPUs, of the job or not, whose counters of the same fields grew much like those of the items'."""
    worst: dict[str, float] = {}
    for finding in (f for i in items for f in i.findings):
        grew = scene.growth.get((finding.entity, finding.evidence.field), 0.0)
        worst[finding.evidence.field] = max(worst.get(finding.evidence.field, 0.0), grew)
    return {
        place
        for (place, field), grew in scene.growth.items()
        if worst.get(field) and grew >= ALIKE_SHARE * worst[field] and entity.scope(place) == "gpu"
    }


def _others(seen: int, hit: int) -> str:
    if seen <= 1:
        return "and no other was looked at"
    return f"{seen - hit} of {seen} are not"


def own_faults(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """What speaks for itself: a GPU's memory, its PCIe, a switch's own state."""
    for item in items:
        if item.kind in (sc.OTHER, sc.SXID):
            yield accuse(_kind(item), item.entity, f"what was found concerns {scene.name(item.entity)} alone", [item])


def rest(scene: Scene, items: Sequence[Item], found: Sequence[Suspect]) -> Iterable[Suspect]:
    """What accuses nobody: settings, opinions where nothing else was found, Xids that tell nothing about hardware."""
    for item in items:
        name = scene.name(item.entity)
        home = next((s for s in found for key in s.findings if _wears(key, item)), None) if item.kind == sc.OPINION else None
        if home is not None:
            yield home._replace(findings=(item.key,))
            continue
        why = f"an Xid at {name} that programs or the driver cause too"
        if item.kind == sc.OPINION:
            dcgm = item.findings[0].code == "DCGM-HEALTH"
            why = f"only DCGM's own health check complains about {name}" if dcgm else f"{name} stands out, as with uneven work"
        elif item.kind == sc.SETTING:
            why = f"a setting or decision about {name}: nothing there is broken"
        yield accuse(_kind(item), item.entity, why, [item], named=False)


def _wears(key: str, item: Item) -> bool:
    """Is the finding of this key about the same entity, or the same GPU or switch?"""
    place = key.partition(" ")[2]
    return place == item.entity or (bool(item.device) and (place == item.device or place.startswith(f"{item.device}/")))


def _kind(item: Item) -> str:
    kinds = {"gpu": su.GPU, "link": su.LINK, "switch": su.SWITCH, "switch_port": su.LINK}
    return kinds.get(entity.scope(item.entity), su.NODE)
