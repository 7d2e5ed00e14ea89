"""Which part the findings of a run point to, and whether the job was touched by it."""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple

# Suspect.kind: the part that would be reset, reseated or exchanged first.
GPU: Final = "gpu"  # the card, where it sits: only an exchange tells it from its slot
LINK: Final = "link"  # one link: an end of it or the medium between
CONNECTOR: Final = "connector"  # both directions of a link, or all links of a pair: cable, bridge, connector
SWITCH: Final = "switch"
SLOT: Final = "slot"  # it stayed when the card was exchanged: board, riser, power, cooling
NODE: Final = "node"  # what all its GPUs share: chassis, power, cooling, baseboard, driver, fabric manager
CODE: Final = "code"  # the user's program

# Touched.verdict, from best to worst; UNKNOWN: what happened in the job could not be seen.
CLEAN: Final = "clean"
UNKNOWN: Final = "unknown"
SUSPECTED: Final = "suspect"
HIT: Final = "hit"


class Suspect(NamedTuple):
    """One part that findings point to.

    kind:   see above.
    entity: as in findings. link and connector: an end of the link, for link the one at which the fault is believed
            to be. switch, gpu, slot: the device ("GPU-…", "switch:…"; a slot by the card that sits in it). code: the
            user ("user:1001"). Where nobody is accused, what the findings are about.
    far:    link and connector: the other end, or the device there; '' when it is not known, which why then says.
    named:  True: a claim that can be right or wrong. The fault is in that part; for link it is in that one link,
            both its ends included, since which end it is can not be told for sure by counters: ``entity`` is the
            better guess, not part of the claim. A link whose entity is a GPU: one of its links, and none other's;
            which one its counters do not tell. False: an abstention. The findings fit several parts, or nothing
            is broken, and nobody is accused.
    why:    one sentence.
    findings: "CODE entity" of each finding behind it; a finding is behind one suspect only.
    """

    kind: str
    entity: str
    why: str
    named: bool = True
    far: str = ""
    findings: tuple[str, ...] = ()


class Touched(NamedTuple):
    """Did a fault touch the job? minutes: (from ns, to ns, what), oldest first; () when the moments are not known.

    counters: "link11 replay of gpu3 +21200", one per thing that counted.
    """

    verdict: str
    why: str
    minutes: tuple[tuple[int, int, str], ...] = ()
    counters: tuple[str, ...] = ()


def place(name: str, names: Mapping[str, str]) -> str:
    """An entity for people: "gpu3 link11", "switch 0000:c1:00.0 port5"; names: UUID -> "gpu3"."""
    head, slash, tail = name.partition("/")
    head = head.replace(":", " ", 1) if head.startswith(("switch:", "user:", "pci:")) else names.get(head, head[:12])
    return f"{head} {tail}" if slash else head


def label(suspect: Suspect, names: Mapping[str, str]) -> str:
    """What is suspected, in a few words: "gpu3", "connector at gpu3 link11", "slot of gpu3", "program of user 1001"."""
    where = place(suspect.entity, names)
    before = {CONNECTOR: "connector at ", SLOT: "slot of ", CODE: "program of "}.get(suspect.kind, "")
    if suspect.kind == LINK and "/" not in suspect.entity:
        before = "a link of "
    return f"{before}{where}"


def to_json(suspect: Suspect) -> dict[str, Any]:
    return {**suspect._asdict(), "findings": list(suspect.findings)}


def from_json(value: Mapping[str, Any]) -> Suspect:
    return Suspect(**{**value, "findings": tuple(str(f) for f in value.get("findings", ()))})


def touched_to_json(touched: Touched) -> dict[str, Any]:
    return {**touched._asdict(), "minutes": [list(m) for m in touched.minutes], "counters": list(touched.counters)}


def touched_from_json(value: Mapping[str, Any]) -> Touched:
    minutes = tuple((int(a), int(b), str(what)) for a, b, what in value.get("minutes", ()))
    return Touched(str(value["verdict"]), str(value["why"]), minutes, tuple(str(c) for c in value.get("counters", ())))
