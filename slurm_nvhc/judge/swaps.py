"""Did a fault stay with the slot or follow the card, when cards were exchanged? Pure.

Known is what this node's ledger has seen: a card that came from another node brings no past.
Memory section (see memory.py): faults {code|link|card|place: [ns, serial, PCI address, slot]}, one row per kind
of fault, card and place.
"""

from __future__ import annotations

from typing import Final, Iterable, NamedTuple, Optional

from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import Input
from slurm_nvhc.judge.scene import Item, Scene
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.snapshot import GpuIdentity
from slurm_nvhc.model.suspect import Suspect

SECTION: Final = "faults"
# A fault that stays with its slot shows again within weeks; half a year later it is another one. Our judgement.
KEEP_NS: Final = 180 * 86400 * 10**9
# People exchange two cards to see whether a fault follows. When more change their addresses at once, the bus was numbered anew.
MOST_MOVED: Final = 2

_MOVABLE: Final = (su.GPU, su.LINK, su.CONNECTOR)


class _Row(NamedTuple):
    """One fault as it was seen: what, on which card, where."""

    code: str
    link: str
    uuid: str
    at_ns: int
    serial: str
    pci: str
    slot: str

    @property
    def key(self) -> str:
        return "|".join((self.code, self.link, self.uuid, self.slot or self.pci))


def after_exchange(scene: Scene, suspects: Iterable[Suspect], notes: memory.Notes) -> list[Suspect]:
    """The suspects, those changed that an exchange of cards tells more about; today's faults are remembered."""
    inp = scene.inp
    past = _known(inp, notes)
    items = {i.key: i for i in scene.items}
    out = []
    for suspect in suspects:
        seen = [row for key in suspect.findings for row in [_row(inp, items[key])] if row is not None]
        told = {_told(row, past) for row in seen} if suspect.kind in _MOVABLE and suspect.named else set()
        out.append(_changed(scene, suspect, seen, told - {""}))
        if suspect.kind in (*_MOVABLE, su.SLOT):
            for row in seen:
                notes.keep(SECTION, row.key, list(row[3:]))
    return out


def _changed(scene: Scene, suspect: Suspect, seen: list[_Row], told: set[str]) -> Suspect:
    if len(told) != 1 or not seen:
        return suspect
    uuid, place = seen[0].uuid, f"slot {seen[0].slot}" if seen[0].slot else seen[0].pci
    if told == {su.SLOT}:
        why = f"another card had the same fault in {place} of this node: it stayed with the slot (board, riser, power, cooling)"
        return suspect._replace(kind=su.SLOT, entity=uuid, far="", why=why)
    why = f"{scene.name(uuid)} had the same fault in another slot of this node: it followed the card"
    return suspect._replace(kind=su.GPU, entity=uuid, far="", why=why)


def _told(now: _Row, past: Iterable[_Row]) -> str:
    """SLOT, GPU or '': what earlier rows of the same fault say. Both at once say nothing."""
    same = [row for row in past if (row.code, row.link) == (now.code, now.link)]
    stayed = any(_same_place(row, now) and not _same_card(row, now) for row in same)
    followed = any(_same_card(row, now) and not _same_place(row, now) for row in same)
    if stayed == followed:
        return ""
    return su.SLOT if stayed else su.GPU


def _same_card(one: _Row, other: _Row) -> bool:
    return one.uuid == other.uuid or (bool(one.serial) and one.serial == other.serial)


def _same_place(one: _Row, other: _Row) -> bool:
    if one.slot and other.slot:
        return one.slot == other.slot
    return bool(one.pci) and one.pci == other.pci


def _row(inp: Input, item: Item) -> Optional[_Row]:
    """A fault of a card, None for warnings and for what has no card."""
    gpu = inp.gpus().get(item.device)
    identity = gpu.identity if gpu is not None else next((i for i in inp.known if i.uuid == item.device), None)
    if item.verdict != fd.FAIL or identity is None:
        return None
    number = entity.split_link(item.entity)[1]
    link = "" if number is None else str(number)
    return _Row(_code(item), link, item.device, inp.now_ns, identity.serial, identity.pci, identity.slot)


def _code(item: Item) -> str:
    """What counts as the same fault: the finding's code, and the rule where a site's rules share one."""
    code = item.key.partition(" ")[0]
    return f"{code}/{item.findings[0].evidence.rule}" if code == "SITE-RULE" else code


def _known(inp: Input, notes: memory.Notes) -> list[_Row]:
    """Earlier faults that are not too old, with today's address where the bus was numbered anew."""
    now: dict[str, GpuIdentity] = {u: g.identity for u, g in inp.gpus().items()}
    moved = {i.uuid: now[i.uuid].pci for i in inp.known if i.uuid in now and i.pci and now[i.uuid].pci not in ("", i.pci)}
    out = []
    for key, value in sorted(notes.kept(SECTION).items()):
        code, link, uuid, _place = key.split("|")
        row = _Row(code, link, uuid, *value)
        if row.at_ns < inp.now_ns - KEEP_NS:
            notes.drop(SECTION, key)
            continue
        if len(moved) > MOST_MOVED and row.uuid in moved:
            notes.drop(SECTION, key)
            row = row._replace(pci=moved[row.uuid])
            notes.keep(SECTION, row.key, list(row[3:]))
        out.append(row)
    return out
