"""Findings, and the decision they lead to."""

from __future__ import annotations

from typing import Any, Final, Mapping, NamedTuple, Optional

# Verdicts, from best to worst when several are rolled up.
OK: Final = "ok"
UNKNOWN: Final = "unknown"
WARN: Final = "warn"
FAIL: Final = "fail"
_ORDER: Final = {OK: 0, UNKNOWN: 1, WARN: 2, FAIL: 3}

# Evidence.field of events; theirs alone is an ``at_ns`` that says when it happened, and not when it was read.
EVENTS: Final = ("xid", "sxid")

# Modes of a rule
ENFORCE: Final = "enforce"
OBSERVE: Final = "observe"
OFF: Final = "off"

# Actions, from weakest to strongest
NONE: Final = "none"
NOTE: Final = "note"
NOTIFY: Final = "notify"
NARROW: Final = "narrow"
DRAIN: Final = "drain"
ACTIONS: Final = (NONE, NOTE, NOTIFY, NARROW, DRAIN)


def worst(verdicts: Any) -> str:
    """The worst of some verdicts; OK for none. Unknown is worse than ok and better than warn."""
    return max(verdicts, key=_ORDER.__getitem__, default=OK)


def told_action(action: str, narrows: bool) -> str:
    """What a rule's action comes to under a policy: a narrowing one drains where narrowing is off."""
    return DRAIN if action == NARROW and not narrows else action


class Evidence(NamedTuple):
    """Why a finding was made; every value as it was read.

    amount/rate are lower bounds when ``bound`` is "at_least". ``rate`` is per second.
    window is text for people ("job 8812, 41m"), threshold is the rule's condition as text.
    limit is the other reading that a condition compared with (the widest PCIe link, a slowdown limit, what was learned).
    learned: the condition is about what was learned here, or about what the siblings of a new card have: limit is that.
    expected, chance: statistical rules: the growth that is normal, and how likely chance alone gives this much.
    moments: when within the window it grew: (from ns, to ns, amount), oldest first; () when that is not known.
    """

    field: str = ""
    before: Any = None
    after: Any = None
    amount: Optional[float] = None
    bound: str = "exact"
    seconds: Optional[float] = None
    rate: Optional[float] = None
    threshold: str = ""
    rule: str = ""
    window: str = ""
    text: str = ""
    at_ns: Optional[int] = None
    source: str = ""
    limit: Any = None
    learned: bool = False
    expected: Optional[float] = None
    chance: Optional[float] = None
    moments: tuple[tuple[int, int, float], ...] = ()


class Finding(NamedTuple):
    """One statement about one entity.

    code:    stable, from catalog.findings; never changes meaning
    klass:   gpu, link, switch, node or monitor
    gpu:     the identity row of the GPU concerned, as a mapping, or {} (pci, index, minor, position …)
    mode:    enforce or observe: what the rule is allowed to do
    action:  what the rule asks for when enforced
    of_job:  the entity belongs to the job that the hook runs for
    idents:  events behind it (Event.ident): a sticky event is settled by these
    policy:  hash of the policy in force
    """

    code: str
    entity: str
    klass: str
    verdict: str
    message: str
    evidence: Evidence
    gpu: Mapping[str, Any]
    mode: str = ENFORCE
    action: str = NONE
    of_job: bool = False
    absolute: bool = False
    idents: tuple[str, ...] = ()
    policy: str = ""


class Proposal(NamedTuple):
    """An action that enforced findings ask for. ``uuid`` is '' when no single GPU is meant."""

    action: str
    uuid: str
    findings: tuple[Finding, ...]
    of_job: bool


class Decision(NamedTuple):
    """What judge proposes. ``observed`` holds what would have been proposed without observe mode."""

    verdict: str
    proposals: tuple[Proposal, ...] = ()
    observed: tuple[Proposal, ...] = ()


def to_json(finding: Finding) -> dict[str, Any]:
    out = finding._asdict()
    out["evidence"] = finding.evidence._asdict()
    out["gpu"] = dict(finding.gpu)
    out["idents"] = list(finding.idents)
    return out


def from_json(value: Mapping[str, Any]) -> Finding:
    fields = dict(value)
    evidence = Evidence(**fields["evidence"])
    fields["evidence"] = evidence._replace(moments=tuple((int(a), int(b), float(n)) for a, b, n in evidence.moments))
    fields["idents"] = tuple(fields.get("idents", ()))
    return Finding(**fields)
