"""Which part the findings of a run point to, and whether the job was touched by it."""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple

# Suspect.kind
GPU: Final = "gpu"
LINK: Final = "link"  # one direction or both of one link, the end not known
CONNECTOR: Final = "connector"  # both directions of one link: cable, bridge, connector
SWITCH: Final = "switch"
SLOT: Final = "slot"  # it stayed when the card was exchanged: board, riser, power, cooling
NODE: Final = "node"  # chassis, facility
CODE: Final = "code"  # the user's program

# Touched.verdict, from best to worst; UNKNOWN: what happened in the job could not be seen.
CLEAN: Final = "clean"
UNKNOWN: Final = "unknown"
SUSPECTED: Final = "suspect"
HIT: Final = "hit"


class Suspect(NamedTuple):
    """One part that findings point to.

    entity: as in findings; for a link the end where the fault is believed to be.
    far:    the other end of the link, '' when it is not known.
    named:  False when the evidence does not tell which end or part it is (an abstention: nobody is accused).
    why:    one sentence.
    findings: "CODE entity" of each finding behind it.
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


def to_json(suspect: Suspect) -> dict[str, Any]:
    return {**suspect._asdict(), "findings": list(suspect.findings)}


def from_json(value: Mapping[str, Any]) -> Suspect:
    return Suspect(**{**value, "findings": tuple(str(f) for f in value.get("findings", ()))})


def touched_to_json(touched: Touched) -> dict[str, Any]:
    return {**touched._asdict(), "minutes": [list(m) for m in touched.minutes], "counters": list(touched.counters)}


def touched_from_json(value: Mapping[str, Any]) -> Touched:
    minutes = tuple((int(a), int(b), str(what)) for a, b, what in value.get("minutes", ()))
    return Touched(str(value["verdict"]), str(value["why"]), minutes, tuple(str(c) for c in value.get("counters", ())))
