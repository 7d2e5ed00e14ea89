"""Who fell first? What a dying GPU or switch makes its neighbours log is an echo, and points to it. Pure."""

from __future__ import annotations

from typing import Final, Iterable, Optional, Sequence

from slurm_nvhc.catalog import nvlink5, sxids
from slurm_nvhc.judge import scene as sc
from slurm_nvhc.judge.scene import Item, Scene, accuse, same_time
from slurm_nvhc.judge.users import CONVICTING
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.suspect import Suspect

# A GPU that is found lost has no moment of its own: it fell since the last look. Two health checks at the usual
# five minutes; our judgement.
LOST_WITHIN_NS: Final = 600 * 10**9


def gone_together(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """Most GPUs of the node gone at once: what they share, not each of them."""
    gone = {i.device for i in items if i.kind == sc.DEAD}
    inp = scene.inp
    everywhere = {r.uuid for r in inp.known} | set(inp.gpus()) | gone
    total = max(len(everywhere), inp.expected_gpus or 0)
    if sc.most(len(gone), total):
        why = f"{len(gone)} of {total} GPUs do not answer: power, baseboard or PCIe switch rather than each of them"
        yield accuse(su.NODE, entity.NODE, why, (i for i in items if i.device in gone))


def dead_gpus(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """A GPU that does not answer, with all that is said about it, and what its peers and switches logged because of it."""
    fell = _fell(scene, items)
    echoes: dict[str, list[Item]] = {}
    for item in items:
        origin = item.device if item.device in fell else _origin(scene, item, fell)
        if origin:
            echoes.setdefault(origin, []).append(item)
    for gpu, mine in sorted(echoes.items()):
        others = sorted({scene.name(i.device) for i in mine if i.device != gpu})
        why = f"{scene.name(gpu)} does not answer"
        if others:
            why += f" and was the first to fail: what {_some(others)} logged then is an echo"
        yield accuse(su.GPU, gpu, why, mine)


def _fell(scene: Scene, items: Iterable[Item]) -> dict[str, Optional[int]]:
    """GPU that does not answer -> when the first event about it was, None when it has none.

    A GPU outside of a job is no finding of its epilog; its events say that it fell all the same.
    """
    out: dict[str, Optional[int]] = {}
    for item in items:
        if item.kind == sc.DEAD:
            out[item.device] = _first(out.get(item.device), item.at_ns)
    told = {i.at_ns for i in items if i.kind in (sc.LINKS, sc.SXID)}
    for event in scene.events:
        near = any(at is not None and same_time(at, event.at_ns) for at in told)
        if sc.is_dead_xid(event) and (event.device in out or near):
            out[event.device] = _first(out.get(event.device), event.at_ns)
    return out


def _first(one: Optional[int], other: Optional[int]) -> Optional[int]:
    return min((at for at in (one, other) if at is not None), default=None)


def _origin(scene: Scene, item: Item, fell: dict[str, Optional[int]]) -> str:
    """The GPU that fell first, if this item of another device is an echo of that; '' if not."""
    wired = {device for end in item.ends for device in scene.wire(end).devices} & set(fell)
    if item.kind == sc.LINK:
        return min(wired, default="")
    if item.kind == sc.LINKS and item.numbers and item.at_ns is not None:
        return _nearest(scene, item.at_ns, {gpu: at for gpu, at in fell.items() if gpu != item.device})
    if item.kind == sc.SXID and not _whole_fabric(item) and item.at_ns is not None:
        # A port that is known to lead elsewhere tells of something else.
        known = all(len(scene.wire(end).devices) > 1 for end in item.ends) if item.ends else False
        return _nearest(scene, item.at_ns, {gpu: at for gpu, at in fell.items() if gpu in wired or not known})
    return ""


def _nearest(scene: Scene, at_ns: int, fell: dict[str, Optional[int]]) -> str:
    """Of the GPUs that fell around this moment the first."""
    near = []
    for gpu, fell_ns in fell.items():
        if fell_ns is not None and same_time(fell_ns, at_ns):
            near.append((fell_ns, gpu))
        elif fell_ns is None and 0 <= scene.inp.now_ns - at_ns <= LOST_WITHIN_NS:
            near.append((scene.inp.now_ns, gpu))
    return min(near)[1] if near else ""


def _whole_fabric(item: Item) -> bool:
    known = (sxids.BY_NUMBER.get(number) for number in item.numbers)
    return any(x is not None and x.klass == sxids.ALWAYS_FATAL for x in known)


def switches(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """SXids: the switch, when GPUs failed with it, several of its ports did, or it gave up the whole fabric.

    One port's errors are left to the rules about links: the port, the GPU's end or what lies between.
    """
    for item in items:
        if item.kind != sc.SXID or item.at_ns is None:
            continue
        at_ns = item.at_ns
        echoes = [i for i in items if i.kind == sc.LINKS and i.at_ns is not None and same_time(i.at_ns, at_ns)]
        hit = {i.device for i in echoes}
        if len(hit) >= 2:
            why = f"{scene.name(item.device)} logged errors together with the links of {len(hit)} GPUs: it is what they share"
            yield accuse(su.SWITCH, item.device, why, [item, *echoes])
        elif _whole_fabric(item) or len(item.ends) != 1:
            ports = f" at {len(item.ends)} of its ports" if len(item.ends) > 1 else ""
            yield accuse(su.SWITCH, item.device, f"{scene.name(item.device)} logged errors of its own{ports}", [item])


def secondary(scene: Scene, items: Sequence[Item], found: Sequence[Suspect]) -> Iterable[Suspect]:
    """What follows another fault: Xid 145 beside other NVLink Xids, applications' Xids beside their GPU's own fault."""
    homes = {key: suspect for suspect in found for key in suspect.findings}
    settled = [i for i in scene.items if i.key in homes and i.kind != sc.APP]
    for item in items:
        if item.kind == sc.LINKS and item.numbers == {nvlink5.ECHO}:
            near = [i for i in settled if i.at_ns is not None and item.at_ns is not None and same_time(i.at_ns, item.at_ns)]
            first = min((i for i in near if i.numbers & sc.LINK_XIDS), key=lambda i: (i.at_ns or 0, i.key), default=None)
            if first is not None:
                yield homes[first.key]._replace(findings=(item.key,))
            else:
                why = f"Xid {nvlink5.ECHO} alone: often the echo of a fault elsewhere, on another node too"
                yield accuse(su.LINK, item.device, why, [item], named=False)
        elif item.kind == sc.APP:
            near = [i for i in settled if i.device == item.device and _explains(i, item)]
            first = min(near, key=lambda i: (i.at_ns or 0, i.key), default=None)
            if first is not None:
                yield homes[first.key]._replace(findings=(item.key,))


def _explains(fault: Item, app: Item) -> bool:
    """Did the GPU's own fault end the program? It was logged with the program's Xid, or is seen now that 45 (a symptom) is."""
    if fault.kind not in (sc.DEAD, sc.LINKS, sc.OTHER):
        return False
    if fault.at_ns is not None and app.at_ns is not None:
        return same_time(fault.at_ns, app.at_ns)
    return fault.verdict == fd.FAIL and not app.numbers & CONVICTING


def _some(names: Sequence[str], limit: int = 4) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
