"""Which end, link, GPU or switch is behind errors of NVLinks? Pure.

Spread first: what many links have in common outweighs what each of them says. Then the direction: the
receiver counts damaged data (CRC), the transmitter what it had to send again (replay), so one direction
convicts the transmitter or the medium, both directions what the two share: connector, cable, bridge.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, Sequence

from slurm_nvhc.catalog import nvlink5
from slurm_nvhc.judge import scene as sc
from slurm_nvhc.judge.scene import Item, Scene, accuse, most
from slurm_nvhc.judge.second_opinion import SETTLE_S
from slurm_nvhc.judge.settle import settling
from slurm_nvhc.judge.wiring import RECEIVED, Grown, Wire, device
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.model.times import duration

# A link without a finding of its own counts as bad from this many errors at its sending side: the exact Poisson
# limit for a mean of 0.001 at 7e-9, which is a false alarm in ten days over 10,000 nodes.
FEW: Final = 3
# Errors of the weaker direction, as a share of the stronger. Below it the link is bad in one direction: what is
# damaged there are acknowledgements too, so its victim resends a little. Our judgement.
BOTH_SHARE: Final = 0.1
BOTH_LEAST: Final = 2.0

_STATES: Final = ("nvlink_state", "port_state")


def training(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """Links seen down soon after boot or driver load, and no more than warned of: they train (NVSentinel#1701)."""
    if settling(scene.inp, SETTLE_S):
        mine = [i for i in items if i.verdict == fd.WARN and all(f.evidence.field in _STATES for f in i.findings)]
        why = f"{len(mine)} links are not up within {duration(SETTLE_S)} of boot or driver load: they may be training"
        yield accuse(su.NODE, entity.NODE, why, mine, named=False)


def many_links(scene: Scene, items: Sequence[Item], found: Sequence[Suspect]) -> Iterable[Suspect]:
    """Links of many GPUs at one switch: the switch. Many links of one GPU: the GPU. Both everywhere: the node."""
    bad = _bad(scene, items, found)
    by_gpu = _by_gpu(bad)
    everyone = [u for u, g in scene.inp.gpus().items() if g.links]
    by_switch = _switches(scene, bad)
    involved = {gpu for gpus in by_switch.values() for gpu in gpus}
    known = {d for end, far in scene.fars.items() for d in (device(end), device(far)) if d.startswith("switch:")}
    if len(by_switch) > 1 and set(by_switch) == known and most(len(involved), len(everyone)):
        why = f"links of {len(involved)} of {len(everyone)} GPUs to all {len(known)} switches: baseboard, driver or fabric manager"
        yield _all_of(su.NODE, entity.NODE, why, items, bad, involved)
        return
    for switch, gpus in sorted(by_switch.items()):
        why = f"links of {len(gpus)} GPUs have errors, and {scene.name(switch)} is what they share"
        yield _all_of(su.SWITCH, switch, why if gpus else _share(scene, switch), items, [w for w in bad if switch in w.devices], gpus)
    wide = {gpu: wires for gpu, wires in by_gpu.items() if gpu not in involved and _is_wide(scene, gpu, wires)}
    if most(len(wide), len(everyone)):
        why = f"many links of {len(wide)} of {len(everyone)} GPUs: baseboard, driver or fabric manager, or a switch"
        yield _all_of(su.NODE, entity.NODE, why, items, bad, set(wide))
        return
    for gpu, wires in sorted(wide.items()):
        why = f"{len(wires)} links of {scene.name(gpu)} have errors while its peers' other links are clean"
        yield _all_of(su.GPU, gpu, why, items, wires, {gpu})
    rest = {gpu: wires for gpu, wires in by_gpu.items() if gpu not in involved and gpu not in wide}
    yield from _bridges(scene, items, rest, set(wide))
    blind = {gpu for gpu, wires in rest.items() if all(not w.far for w in wires)}
    if len(by_switch) == 1 and most(len(blind), len(everyone)):
        switch = next(iter(by_switch))
        yield _all_of(su.SWITCH, switch, _share(scene, switch), items, [w for g in blind for w in by_gpu[g]], blind)
    elif most(len(blind), len(everyone)):
        why = f"links of {len(blind)} GPUs at once: a switch or the baseboard, how they are wired is not known"
        yield _all_of(su.SWITCH, entity.NODE, why, items, [w for g in blind for w in by_gpu[g]], blind, named=False)


def _share(scene: Scene, switch: str) -> str:
    return f"more than a third of the ports of {scene.name(switch)} have errors"


def _bad(scene: Scene, items: Iterable[Item], found: Iterable[Suspect]) -> list[Wire]:
    """Wires with something to locate, and those whose sending sides counted errors below any threshold."""
    explained = {s.entity for s in found}
    ends = {end for item in items for end in item.ends}
    ends |= {end for end, grown in scene.grown.items() if grown.sent + grown.retrained >= FEW}
    return sorted({w for w in map(scene.wire, ends) if not explained & set(w.devices)})


def _switches(scene: Scene, bad: Iterable[Wire]) -> dict[str, set[str]]:
    """Switch -> the GPUs with bad links there, for switches that are what bad links of three GPUs share.

    Of a switch that begins to fail one link is found first. So links that counted anything at all are asked too, but then
    more than half of them must be at this switch: single errors of healthy links are everywhere.
    """
    stirred = {*bad, *(scene.wire(end) for end, grown in scene.grown.items() if grown.sent + grown.retrained > 0)}
    out: dict[str, set[str]] = {}
    for switch in sorted({d for w in bad for d in w.devices if d.startswith("switch:")}):
        convicted, hinted = _gathered(switch, bad), _gathered(switch, stirred)
        here = sum(switch in w.devices for w in stirred)
        if len(convicted) >= 3:
            out[switch] = convicted
        elif len(hinted) >= 3 and 2 * here > len(stirred):
            out[switch] = hinted
        elif _many_ports(scene, switch, bad):
            out[switch] = convicted
    return out


def _many_ports(scene: Scene, switch: str, bad: Iterable[Wire]) -> bool:
    """Where nothing is known of far ends: more than a third of a switch's ports. One GPU has 5 of 40 at one on an HGX H100."""
    mine = [w for w in bad if device(w.end) == switch and not w.far]
    ports = sum(1 for name in scene.inp.snapshot.parts if device(name) == switch and name != switch)
    return len(mine) >= 3 and 3 * len(mine) > ports


def _gathered(switch: str, wires: Iterable[Wire]) -> set[str]:
    """GPUs that have a third or more of these links at the switch.

    A GPU that is bad itself has its bad links at all switches: at most 5 of 18 at one on an HGX H100.
    """
    by_gpu = _by_gpu(wires)
    return {gpu for gpu, mine in by_gpu.items() if (here := sum(switch in w.devices for w in mine)) and 3 * here >= len(mine)}


def _by_gpu(wires: Iterable[Wire]) -> dict[str, set[Wire]]:
    out: dict[str, set[Wire]] = {}
    for wire in wires:
        for gpu in (d for d in wire.devices if entity.scope(d) == "gpu"):
            out.setdefault(gpu, set()).add(wire)
    return out


def _is_wide(scene: Scene, gpu: str, wires: set[Wire]) -> bool:
    """Are these too many of a GPU's links for one of them, or for one device at their far ends?

    Three to different devices are. Where far ends are not known, more than a third of its links must be bad: one
    switch has 5 of 18 on an HGX H100 and 2 of 12 on an HGX A100.
    """
    fars = {d for w in wires for d in w.devices if d != gpu}
    if len(wires) < 3 or (len(fars) == 1 and all(w.far for w in wires)):
        return False
    if len(fars) > 1:
        return True
    links = scene.inp.gpus()[gpu].links if gpu in scene.inp.gpus() else {}
    used = sum(1 for readings in links.values() if readings.get("nvlink_state") not in ("disabled", "not_supported"))
    return 3 * len(wires) > used


def _bridges(scene: Scene, items: Sequence[Item], rest: Mapping[str, set[Wire]], explained: set[str]) -> Iterable[Suspect]:
    """Three or more links between the same two GPUs, and nothing else of either: the bridge or connector between them."""
    for gpu, wires in sorted(rest.items()):
        peers = {d for w in wires for d in w.devices if d != gpu}
        peer = min(peers, default="")
        if len(wires) < 3 or len(peers) != 1 or entity.scope(peer) != "gpu" or peer < gpu or peer in explained:
            continue
        if all(gpu in w.devices for w in rest.get(peer, set())):
            first = min(wires)
            why = f"{len(wires)} links between {scene.name(gpu)} and {scene.name(peer)}, and no others: the bridge or connector"
            yield _all_of(su.CONNECTOR, first.end, why, items, wires | rest.get(peer, set()), {gpu, peer}, far=first.far)


def _all_of(
    kind: str, place: str, why: str, items: Iterable[Item], wires: Iterable[Wire], gpus: set[str], named: bool = True, far: str = ""
) -> Suspect:
    """A suspect behind all items about these wires, and what these GPUs say about their links without naming one."""
    ends = {end for w in wires for end in w.ends}
    mine = [i for i in items if i.ends & ends or (i.kind == sc.LINKS and not i.ends and i.device in gpus)]
    return accuse(kind, place, why, mine, named, far)


def single_links(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """Each link that is left: the end that its counters, its Xid or nothing points to; with it what its GPU says without naming a link."""
    wires: dict[Wire, list[Item]] = {}
    for item in items:
        for end in sorted(item.ends)[:1]:
            wires.setdefault(scene.wire(end), []).append(item)
    strongest: dict[str, Wire] = {}
    for wire in sorted(wires, key=lambda w: (-_amount(scene, w), w)):
        for gpu in wire.devices:
            strongest.setdefault(gpu, wire)
    for item in items:
        if item.kind == sc.LINKS and not item.ends and item.device in strongest and item.numbers != {nvlink5.ECHO}:
            wires[strongest[item.device]].append(item)
    for wire, mine in sorted(wires.items()):
        yield _one(scene, wire, mine)


def some_link(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """Totals and Xids that name no link, and no link that explains them: one of that GPU's links. Of most GPUs: what they share."""
    mine = [i for i in items if i.kind == sc.LINKS]
    gpus = sorted({i.device for i in mine})
    everyone = sum(1 for g in scene.inp.gpus().values() if g.links)
    if most(len(gpus), everyone):
        why = f"links of {len(gpus)} of {everyone} GPUs at once, none of them named: a switch or the baseboard"
        yield accuse(su.SWITCH, entity.NODE, why, mine, named=False)
        return
    for gpu in gpus:
        why = f"one of the links of {scene.name(gpu)} or the device at its far end: which is not told"
        yield accuse(su.LINK, gpu, why, [i for i in mine if i.device == gpu])


def _amount(scene: Scene, wire: Wire) -> float:
    return sum(sum(scene.grown.get(end, Grown())) for end in wire.ends)


def _one(scene: Scene, wire: Wire, items: Sequence[Item]) -> Suspect:
    blamed = _blamed(items)
    if blamed:
        far = wire.other(blamed)
        why = f"the driver's reason at {scene.name(blamed)} blames {scene.name(far)}"
        return accuse(su.LINK, far or blamed, why, items, far=blamed if far else "")
    one, other = wire.end, wire.far
    there, back = _damage(scene, items, one, other), _damage(scene, items, other, one)
    if min(there, back) >= max(BOTH_LEAST, BOTH_SHARE * max(there, back)):
        why = f"errors in both directions between {scene.name(one)} and {scene.name(other)}: connector, cable or bridge"
        near, far = _gpu_first(one, other)
        return accuse(su.CONNECTOR, near, why, items, far=far)
    if max(there, back) > 0:
        return _one_way(scene, (one, other) if there >= back else (other, one), items)
    return _undirected(scene, wire, items)


def _blamed(items: Iterable[Item]) -> str:
    """The end whose Xid 149 gives a reason that blames the device at its far end; '' when none does."""
    for item in items:
        for finding in item.findings:
            decoded = nvlink5.decode(finding.evidence.after, finding.evidence.text) if finding.evidence.field == "xid" else None
            if decoded is not None and decoded.peer and not decoded.injected and decoded.link is not None:
                return entity.link(item.entity, decoded.link)
    return ""


def _damage(scene: Scene, items: Iterable[Item], sender: str, receiver: str) -> float:
    """Errors of what ``sender`` sent: those it had to send again, and those ``receiver`` met.

    A few damaged packets are normal: they count when their number is a finding, or when the sender confirms them.
    """
    sent = scene.grown.get(sender, Grown()).sent
    return max(sent, _met(scene, items, receiver) if not sent else scene.grown.get(receiver, Grown()).received)


def _met(scene: Scene, items: Iterable[Item], receiver: str) -> float:
    """Damaged data that arrived at an end, where a finding says that it is too much."""
    told = any(f.evidence.field in RECEIVED and f.entity == receiver for i in items for f in i.findings)
    return scene.grown.get(receiver, Grown()).received if told else 0.0


def _one_way(scene: Scene, way: tuple[str, str], items: Sequence[Item]) -> Suspect:
    sender, receiver = way
    sent, received = scene.grown.get(sender, Grown()).sent, scene.grown.get(receiver, Grown()).received
    to, of = scene.name(receiver), scene.name(sender)
    if min(sent, received) > 0 and min(sent, received) >= BOTH_SHARE * max(sent, received):
        why = f"what {of} sends arrives damaged at {to}, and not the other way: its transmitter or the medium"
        return accuse(su.LINK, sender, why, items, far=receiver)
    if sent > received:
        why = f"what {of} sends is rejected by {to}: its transmitter, the medium or the receiver there"
        return accuse(su.LINK, sender, why, items, far=receiver)
    why = f"what arrives at {to} is damaged: the transmitter of {of}, the medium or its receiver"
    return accuse(su.LINK, receiver, why, items, far=sender)


def _undirected(scene: Scene, wire: Wire, items: Sequence[Item]) -> Suspect:
    """No direction: a retrain, a dead link, an event. The end that retrained more, else a GPU's."""
    near, far = _gpu_first(wire.end, wire.far)
    if scene.grown.get(far, Grown()).retrained > scene.grown.get(near, Grown()).retrained:
        near, far = far, near
    if scene.grown.get(near, Grown()).retrained:
        why = f"{scene.name(near)} had to retrain, which is severe and tells no direction; beyond it is {_beyond(scene, far)}"
    else:
        why = f"{scene.name(near)} or what it leads to, {_beyond(scene, far)}: nothing tells which end"
    return accuse(su.LINK, near, why, items, far=far)


def _beyond(scene: Scene, far: str) -> str:
    return scene.name(far) if far else "a far end that is not known"


def _gpu_first(one: str, other: str) -> tuple[str, str]:
    """The two ends with a GPU's first: that is the one an administrator can reset."""
    return (other, one) if entity.scope(one) == "switch_port" and entity.scope(other) == "link" else (one, other)
