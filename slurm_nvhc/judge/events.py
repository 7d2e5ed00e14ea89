"""Rules over events: Xids with their own time stamps.

An event belongs to a moment, not to the state of a reading: DCGM's field 230
keeps the last Xid for ever, so its value alone says nothing about this job
(dcgm-exporter#95). A *sticky* event (GPU off the bus, uncontained error) makes
the GPU bad until the node reboots, the driver is loaded anew, or an
administrator resumes the node that was drained for it; it is remembered as
open and judged by every later prolog and health check, once per occurrence.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import xids
from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import EPILOG, HEALTH_CHECK, Input
from slurm_nvhc.judge.say import effective_mode, make_finding
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.snapshot import Event, GpuIdentity
from slurm_nvhc.model.times import iso
from slurm_nvhc.policy.compiled import Level, Rule

OLD_NS: Final = 600 * 10**9  # an event older than this is told with its moment, so that it does not read as new
ECHO_NS: Final = 10 * 10**9  # a dying GPU's peers log within the same seconds (NVIDIA Xid catalogue, 74)


class _Seen(NamedTuple):
    """beside: Xids of the same GPU within seconds. observed: seen first when no rule was to act on it."""

    event: Event
    place: str
    identity: Optional[GpuIdentity]
    beside: frozenset[int] = frozenset()
    observed: bool = False


def judge_events(inp: Input, notes: memory.Notes) -> tuple[Finding, ...]:
    rules = [r for r in inp.policy.rules.values() if r.kind == "event" and r.mode != fd.OFF]
    seen = _located(inp, inp.snapshot.events)
    _keep_sticky(inp, notes, rules, seen)
    findings: list[Finding] = []
    for place in dict.fromkeys(s.place for s in seen):
        here = [s for s in seen if s.place == place and _in_window(inp, s)]
        for rule in rules:
            if rule.sticky and inp.hook != EPILOG:
                continue  # comes from the open ones below
            findings.extend(_of_rule(inp, notes, rule, rules, place, here, seen))
    if inp.hook != EPILOG:
        findings.extend(_open_ones(inp, notes, rules))
    return tuple(findings)


def _located(inp: Input, events: Iterable[Event]) -> list[_Seen]:
    """Events of GPUs (NVSwitch events have no GPU), with the GPU they are about as far as it is known."""
    rows = {i.pci: i for i in inp.known if i.pci}
    rows.update({g.identity.pci: g.identity for g in inp.gpus().values() if g.identity.pci})
    by_uuid = {i.uuid: i for i in rows.values()}
    out = []
    for event in events:
        if event.kind not in ("xid", "off_bus"):
            continue
        identity = by_uuid.get(event.uuid) or rows.get(event.pci)
        place = identity.uuid if identity is not None else (event.uuid or f"pci:{event.pci}")
        out.append(_Seen(event, place, identity))
    return out


def xids_by_gpu(inp: Input) -> Mapping[str, frozenset[int]]:
    """Xid numbers per GPU in the window (or, without a window, of all events that were read)."""
    out: dict[str, frozenset[int]] = {}
    for seen in _located(inp, inp.snapshot.events):
        if inp.window.start_ns is None or seen.event.at_ns > inp.window.start_ns:
            out[seen.place] = out.get(seen.place, frozenset()) | {seen.event.code}
    return out


def _in_window(inp: Input, seen: _Seen) -> bool:
    start = inp.window.start_ns
    if start is None or inp.hook not in (EPILOG, HEALTH_CHECK):
        return False
    return start < seen.event.at_ns <= inp.now_ns and inp.in_scope(seen.place)


def _named(rules: Iterable[Rule]) -> frozenset[int]:
    return frozenset(code for rule in rules for level in (*rule.warn, *rule.fail) for code in level.xid or ())


def _concerns(level: Level, code: int, named: frozenset[int]) -> bool:
    return code in (level.xid or ()) or (level.xid_other and code not in named)


def _of_rule(
    inp: Input, notes: memory.Notes, rule: Rule, rules: list[Rule], place: str, here: list[_Seen], everything: list[_Seen]
) -> list[Finding]:
    """At most one finding of a rule per entity and Xid number: the strongest."""
    named = _named(rules)
    out: dict[int, Finding] = {}
    for verdict, levels in ((fd.FAIL, rule.fail), (fd.WARN, rule.warn)):
        for level in levels:
            matching = [s for s in here if _concerns(level, s.event.code, named)]
            matching = [s for s in matching if not _is_echo(level, s, everything) and not _is_excused(level, s, everything)]
            matching = _often_enough(inp, notes, rule, level, place, matching)
            for code in sorted({s.event.code for s in matching} - set(out)):
                group = [s for s in matching if s.event.code == code]
                out[code] = _finding(inp, rule, verdict, level, [s.event for s in group], place, group[0].identity)
    return list(out.values())


def _is_echo(level: Level, seen: _Seen, everything: list[_Seen]) -> bool:
    """Another GPU of the node logged one of ``unless_peer_xid`` within seconds: this one only felt it."""
    return any(
        other.place != seen.place and other.event.code in level.unless_peer_xid and abs(other.event.at_ns - seen.event.at_ns) <= ECHO_NS
        for other in everything
    )


def _is_excused(level: Level, seen: _Seen, everything: list[_Seen]) -> bool:
    """The same GPU logged one of ``unless_xid`` at the same time (a 48 with a 94 was contained)."""
    return bool((seen.beside | _beside(seen, everything)) & set(level.unless_xid))


def _beside(seen: _Seen, everything: list[_Seen]) -> frozenset[int]:
    near = (o.event.code for o in everything if o.place == seen.place and abs(o.event.at_ns - seen.event.at_ns) <= ECHO_NS)
    return frozenset(near)


def _often_enough(inp: Input, notes: memory.Notes, rule: Rule, level: Level, place: str, matching: list[_Seen]) -> list[_Seen]:
    if level.hits <= 1 and level.users is None:
        return matching
    who = str(inp.job.uid) if inp.job is not None and inp.job.uid is not None else ""
    new = [(s.event.at_ns, s.event.ident, who) for s in matching]
    count, users = notes.occurrences(memory.key(rule, level, place), new, level.within_s)
    return matching if matching and count >= level.hits and users >= (level.users or 0) else []


def _keep_sticky(inp: Input, notes: memory.Notes, rules: list[Rule], seen: list[_Seen]) -> None:
    """Open what is new, close what a reboot, driver load or GPU reset ended."""
    named = _named(rules)
    sticky = [r for r in rules if r.sticky]
    for s in seen:
        asking = [r for r in sticky if any(_concerns(level, s.event.code, named) for level in (*r.warn, *r.fail))]
        if asking:
            # What was seen in the observe week is known and was left alone: enforcing later must not drain for it.
            observed = all(effective_mode(inp, r) == fd.OBSERVE for r in asking)
            row = {**s.event._asdict(), "place": s.place, "boot": inp.snapshot.boot_id, "observed": observed}
            notes.open_event(s.event.ident, {**row, "beside": sorted(_beside(s, seen))})
    loaded = inp.snapshot.driver_loaded_ns
    for ident, row in notes.open_events().items():
        at_ns = row.get("at_ns")
        reset_ns = inp.reset_since.get(str(row.get("place")))
        if row.get("boot") != inp.snapshot.boot_id or not isinstance(at_ns, int):
            notes.close_event(ident)
        elif (loaded is not None and loaded > at_ns) or (reset_ns is not None and reset_ns >= at_ns):
            notes.close_event(ident)


def _open_ones(inp: Input, notes: memory.Notes, rules: list[Rule]) -> list[Finding]:
    """Findings for every sticky event that is still open, whenever it happened."""
    seen: list[_Seen] = []
    for row in notes.open_events().values():
        event = _event_of(row)
        beside = frozenset(c for c in row.get("beside", ()) if isinstance(c, int))
        located = _located(inp, [event]) if event is not None else []
        seen.extend(s._replace(beside=beside, observed=row.get("observed") is True) for s in located)
    out: list[Finding] = []
    for place, observed in dict.fromkeys((s.place, s.observed) for s in seen):
        here = [s for s in seen if (s.place, s.observed) == (place, observed)]
        for rule in (r for r in rules if r.sticky):
            found = _of_rule(inp, notes, rule, rules, place, here, seen)
            out.extend(f._replace(mode=fd.OBSERVE) if observed else f for f in found)
    return out


def _event_of(row: Mapping[str, Any]) -> Optional[Event]:
    try:
        return Event(**{k: row[k] for k in Event._fields if k in row})
    except TypeError:
        return None


def _finding(
    inp: Input, rule: Rule, verdict: str, level: Level, events: list[Event], place: str, identity: Optional[GpuIdentity]
) -> Finding:
    first = min(events, key=lambda e: e.at_ns)
    facts = xids.BY_NUMBER.get(first.code)
    meaning = facts.meaning if facts is not None else "not in the catalogue"
    count = f" x{len(events)}" if len(events) > 1 else ""
    old = f", logged {iso(first.at_ns)}" if inp.now_ns - first.at_ns > OLD_NS else ""
    advice = f"; vendor: {facts.action}" if facts is not None and facts.action else ""
    evidence = fd.Evidence(
        field="xid",
        after=first.code,
        amount=float(len(events)),
        threshold=rule.text[0] if level in rule.warn else rule.text[1],
        rule=rule.name,
        window=inp.window.text if inp.window.kind != "none" else "",
        text=f"{first.text}{advice}",
        at_ns=first.at_ns,
        source=first.source,
    )
    return make_finding(
        inp, rule, place, verdict, evidence, identity,
        absolute=rule.sticky, idents=tuple(e.ident for e in events), message=f"Xid {first.code}{count} ({meaning}){old}",
    )  # fmt: skip
