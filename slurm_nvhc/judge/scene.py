"""What is located: the findings of a run as items, with the growth, wiring and events around them. Pure."""

from __future__ import annotations

import re
from typing import Final, Iterable, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import nvlink5, xids
from slurm_nvhc.judge import wiring
from slurm_nvhc.judge.context import Input
from slurm_nvhc.judge.events import SAME_TIME_NS
from slurm_nvhc.judge.users import Programs
from slurm_nvhc.judge.wiring import Grown, Wire
from slurm_nvhc.model import entity
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.snapshot import OK
from slurm_nvhc.model.suspect import Suspect, place

# What an item is about. The worst of its findings decides.
DEAD: Final = "dead"  # a GPU that does not answer: not there, off the bus, or its own processor stopped
LINK: Final = "link"  # one link's errors or state, at one of its ends
LINKS: Final = "links"  # a GPU's total over its links, or an Xid about one of them
SXID: Final = "sxid"
FABRIC: Final = "fabric"
HEAT: Final = "heat"
POWER: Final = "power"
APP: Final = "app"  # an Xid that programs cause
UNKNOWN_XID: Final = "unknown xid"  # one that says nothing about hardware, or that no catalogue knows
SETTING: Final = "setting"  # nothing is broken
OPINION: Final = "opinion"  # supports another finding, and convicts nobody alone
OTHER: Final = "other"  # the GPU or switch speaks about itself

_KLASSES: Final = ("gpu", "link", "switch")
_VERDICTS: Final = {fd.FAIL: 0, fd.WARN: 1}
_MODES: Final = {fd.ENFORCE: 0}
_DEAD_XIDS: Final = frozenset((*xids.numbers(xids.FATAL), *xids.numbers(xids.GSP)))
LINK_XIDS: Final = frozenset((*xids.numbers(xids.NVLINK), *nvlink5.XIDS))
APP_XIDS: Final = frozenset(xids.numbers(xids.APP))
_HEAT_FIELDS: Final = frozenset(
    {"hw_thermal_slowdown_ns", "sw_thermal_slowdown_ns", "thermal_violation_ns", "gpu_temp_margin", "gpu_temp", "memory_temp"}
)
_UNEVEN: Final = frozenset({"PEER-LINK", "PEER-POWER", "PEER-ERRORS"})  # a program that spreads its work unevenly does this too
_SETTINGS: Final = frozenset({"GPU-EXCLUDED", "POWER-LIMIT", "DIAG-SOFTWARE", "DIAG-NO-RESULT"})
_LINK_WORD: Final = re.compile(r"\blink\s+(\d{1,3})\b", re.IGNORECASE)  # "…, Link 30 …", "fatal error detected on link 6(0x0, …"


class Item(NamedTuple):
    """All findings of one code about one entity: they have one suspect.

    numbers: Xids or SXids of the findings. at_ns: the first of them, None where no event is behind it.
    ends:    the ends of links that the item is about, as far as they are told.
    """

    key: str
    kind: str
    entity: str
    device: str
    verdict: str
    findings: tuple[Finding, ...]
    numbers: frozenset[int] = frozenset()
    at_ns: Optional[int] = None
    ends: frozenset[str] = frozenset()


class Happened(NamedTuple):
    """An event of a GPU or switch, whether a finding tells of it or not."""

    device: str
    number: int
    at_ns: int


class Scene(NamedTuple):
    """grown: what ends of links counted; growth: the same and all other counters, by entity and field."""

    inp: Input
    items: tuple[Item, ...]
    fars: Mapping[str, str]
    growth: Mapping[tuple[str, str], float]
    grown: Mapping[str, Grown]
    events: tuple[Happened, ...]
    programs: Programs
    names: Mapping[str, str]

    def wire(self, end: str) -> Wire:
        return wiring.wire_of(end, self.fars)

    def name(self, name: str) -> str:
        """For people: "gpu3 link11", "switch 0000:c1:00.0 port5"; "its far end, which is not known" for ''."""
        return place(name, self.names) if name else "its far end, which is not known"

    def gpus(self) -> frozenset[str]:
        """GPUs that answer and are looked at in this run."""
        return frozenset(u for u, g in self.inp.gpus().items() if g.status == OK and self.inp.in_scope(u))


def scene(inp: Input, findings: Iterable[Finding], programs: Programs) -> Scene:
    findings = tuple(findings)
    grown = {**wiring.growth(inp.changes, inp.since_look or ())}
    for f in filter(worth, findings):
        # What a rule gathered over longer, or after a reset, convicts all the same.
        if wiring.is_end(f.entity) and f.evidence.amount is not None and f.evidence.amount > grown.get((f.entity, f.evidence.field), 0.0):
            grown[f.entity, f.evidence.field] = f.evidence.amount
    rows = {i.uuid: i for i in inp.known}
    rows.update({u: g.identity for u, g in inp.gpus().items()})
    return Scene(
        inp=inp,
        items=items(inp, findings),
        fars=wiring.far_ends(inp.snapshot, inp.known),
        growth=grown,
        grown=wiring.by_end(grown),
        events=_events(inp),
        programs=programs,
        names={u: f"gpu{row.nvml_index}" for u, row in rows.items() if row.nvml_index is not None},
    )


def worth(finding: Finding) -> bool:
    """Is this finding to be located? Warnings and failures about GPUs, links and switches.

    What is said about the node as a whole, an RDMA port or our own means names its part itself.
    """
    return finding.klass in _KLASSES and finding.verdict in _VERDICTS


def items(inp: Input, findings: Iterable[Finding]) -> tuple[Item, ...]:
    """In the order of their keys, whatever the order of the findings."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if worth(finding):
            groups.setdefault(f"{finding.code} {finding.entity}", []).append(finding)
    return tuple(_item(inp, key, sorted(group, key=rank)) for key, group in sorted(groups.items()))


def rank(finding: Finding) -> tuple[int, int, str, str, str, int]:
    """Worst first, and the same order whatever order they came in."""
    e = finding.evidence
    return _VERDICTS[finding.verdict], _MODES.get(finding.mode, 1), e.rule, e.field, str(e.after), e.at_ns or 0


def _item(inp: Input, key: str, findings: Sequence[Finding]) -> Item:
    first = findings[0]
    told = [f for f in findings if f.evidence.field in ("xid", "sxid") and isinstance(f.evidence.after, int)]
    numbers = frozenset(f.evidence.after for f in told)
    kinds = [_kind(f) for f in findings]
    # An Xid that is a mere symptom says less than another one under the same code.
    kind = kinds[0] if kinds[0] != APP else next((k for k in kinds if k != APP), APP)
    return Item(
        key=key,
        kind=kind,
        entity=first.entity,
        device=wiring.device(first.entity),
        verdict=first.verdict,
        findings=tuple(findings),
        numbers=numbers,
        at_ns=min((f.evidence.at_ns for f in told if f.evidence.at_ns is not None), default=None),
        ends=frozenset() if kind == OPINION else _ends(inp, first.entity, told),
    )


def _ends(inp: Input, place: str, told: Iterable[Finding]) -> frozenset[str]:
    """The entity itself, or the links that its events name: in the finding's text, and in all lines of the same event."""
    if wiring.is_end(place):
        return frozenset((place,))
    out = set()
    for finding in told:
        sxid = finding.evidence.field == "sxid"
        if not sxid and finding.evidence.after not in LINK_XIDS:
            continue
        named = _LINK_WORD.search(finding.evidence.text)
        numbers = {int(named[1])} if named else set()
        if sxid:
            address = place.removeprefix("switch:")
            same = (e for e in inp.snapshot.events if e.kind == "sxid" and (e.pci, e.code) == (address, finding.evidence.after))
            numbers |= {e.link for e in same if e.link is not None}
            out |= {entity.switch_port(address, n) for n in numbers}
        else:
            out |= {entity.link(place, n) for n in numbers}
    return frozenset(out)


def _kind(finding: Finding) -> str:
    """What a finding is about: by its event or its reading, since a site's rules share one code; by its code where neither says."""
    e = finding.evidence
    if e.field == "presence":
        return DEAD
    if e.field == "sxid":
        return SXID
    if e.field == "xid" and isinstance(e.after, int):
        return _kind_of_xid(e.after)
    if finding.code == "DCGM-HEALTH" or finding.code in _UNEVEN:
        return OPINION
    if finding.code.startswith("PEER-"):
        return OTHER
    if wiring.is_end(finding.entity):
        return LINK
    if finding.code.startswith("FABRIC-") or e.field.startswith("fabric_"):
        return FABRIC
    if finding.code.startswith("THERMAL-") or e.field in _HEAT_FIELDS:
        return HEAT
    if finding.code in ("POWER-BRAKE", "CLOCK-LIMIT") or e.field == "power_brake_ns":
        return POWER
    if finding.code.startswith(("CONFIG-", "LEFT-")) or finding.code in _SETTINGS:
        return SETTING
    facts = cat.BY_NAME.get(e.field)
    if facts is not None and facts.scope == cat.GPU and cat.of_links(facts):
        return LINKS
    return OTHER


def _kind_of_xid(number: int) -> str:
    if number in _DEAD_XIDS:
        return DEAD
    if number in LINK_XIDS:
        return LINKS
    if number in APP_XIDS:
        return APP
    facts = xids.BY_NUMBER.get(number)
    if facts is None or facts.app_fault != xids.NO or facts.klass in ("driver", "test", "advice"):
        return UNKNOWN_XID
    return OTHER


def _events(inp: Input) -> tuple[Happened, ...]:
    rows = {i.pci: i.uuid for i in inp.known if i.pci}
    rows.update({g.identity.pci: u for u, g in inp.gpus().items() if g.identity.pci})
    out = set()
    for e in inp.snapshot.events:
        place = entity.switch(e.pci) if e.kind == "sxid" else e.uuid or rows.get(e.pci) or f"pci:{e.pci}"
        out.add(Happened(place, e.code, e.at_ns))
    return tuple(sorted(out))


def same_time(one: int, other: int) -> bool:
    """Are these moments of one incident?"""
    return abs(one - other) <= SAME_TIME_NS


def is_dead_xid(happened: Happened) -> bool:
    return happened.number in _DEAD_XIDS and entity.scope(happened.device) == "gpu"


def accuse(kind: str, place: str, why: str, items_: Iterable[Item], named: bool = True, far: str = "") -> Suspect:
    return Suspect(kind, place, why, named, far, tuple(sorted(i.key for i in items_)))


def most(some: int, of: int) -> bool:
    """At least three, and more than half: too many for a coincidence. Our judgement."""
    return some >= 3 and 2 * some > of
