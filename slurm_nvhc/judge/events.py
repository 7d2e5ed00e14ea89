"""Rules over events: Xids with their own time stamps.

An event belongs to a moment, not to the state of a reading: DCGM's field 230
keeps the last Xid for ever, so its value alone says nothing about this job
(dcgm-exporter#95). A *sticky* event (GPU off the bus, uncontained error) makes
the GPU bad until the node reboots, the driver is loaded anew, the GPU is reset,
or an administrator resumes the node that was drained for it; until then it is
open, and every prolog and health check judges it again.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import xids
from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import EPILOG, HEALTH_CHECK, Input
from slurm_nvhc.judge.say import effective_mode, make_finding
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.snapshot import Event, GpuIdentity
from slurm_nvhc.model.times import iso
from slurm_nvhc.policy.compiled import Level, Rule

# Xids of one incident are logged within seconds: a dying GPU's peers (74 beside a 79), a contained
# error's parts (48 with 94). NVIDIA's Xid catalogue; ten seconds is our judgement.
SAME_TIME_NS: Final = 10 * 10**9
# How late an engine may tell of an event. Older ones were told by the kernel log before, under another
# name; they come up again when that log can not be read once.
LATE_NS: Final = 600 * 10**9
OLD_NS: Final = 600 * 10**9  # an event older than this is told with its moment, so that it does not read as new


class _Seen(NamedTuple):
    """One event, or for an open one all its occurrences. ``last_ns``: the latest of them.

    beside: Xids of the same GPU at the same time. observed: first seen when no rule was to act on it.
    """

    event: Event
    place: str
    identity: Optional[GpuIdentity]
    last_ns: int
    times: int = 1
    beside: frozenset[int] = frozenset()
    observed: bool = False


def judge_events(inp: Input, notes: memory.Notes) -> tuple[Finding, ...]:
    rules = [r for r in inp.policy.rules.values() if r.kind == "event" and r.mode != fd.OFF]
    seen = _with_company(_located(inp, inp.snapshot.events), rules)
    new = [s for s in seen if _in_window(inp, notes, s)]
    _keep_sticky(inp, notes, rules, seen)
    now_rules = [r for r in rules if not r.sticky or inp.hook == EPILOG]
    findings = _of_rules(inp, notes, now_rules, rules, [s for s in new if not _is_settled(inp, s)], seen)
    if inp.hook != EPILOG:
        opened = _open_ones(inp, notes)
        findings += _of_rules(inp, notes, [r for r in rules if r.sticky], rules, opened, opened)
    return tuple(findings)


def xids_by_gpu(inp: Input) -> Mapping[str, frozenset[int]]:
    """Xid numbers per GPU in the window (or, without a window, of all events that were read)."""
    out: dict[str, frozenset[int]] = {}
    for seen in _located(inp, inp.snapshot.events):
        if inp.window.start_ns is None or inp.events_are_new or seen.event.at_ns > inp.window.start_ns:
            out[seen.place] = out.get(seen.place, frozenset()) | {seen.event.code}
    return out


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
        out.append(_Seen(event, place, identity, event.at_ns))
    return out


def _with_company(seen: list[_Seen], rules: list[Rule]) -> list[_Seen]:
    """Each event with the excusing Xids (``unless_xid`` of any rule) that its GPU logged at the same time."""
    excuses = {code for rule in rules for level in (*rule.warn, *rule.fail) for code in level.unless_xid}
    excusing = [s for s in seen if s.event.code in excuses]
    if not excusing:
        return seen
    return [s._replace(beside=frozenset(o.event.code for o in excusing if o.place == s.place and _same_time(o, s))) for s in seen]


def _same_time(one: _Seen, other: _Seen) -> bool:
    return abs(one.event.at_ns - other.event.at_ns) <= SAME_TIME_NS


def _in_window(inp: Input, notes: memory.Notes, seen: _Seen) -> bool:
    """Did this happen in the window that is judged?

    Kernel events that were read from the window's own place in the log are new whatever their
    stamps say: printk's clock drifts, and a line logged while the log is read has a stamp after
    the snapshot's. The engine's events come late at times: a health check takes each once.
    """
    start = inp.window.start_ns
    if start is None or inp.hook not in (EPILOG, HEALTH_CHECK) or not inp.in_scope(seen.place):
        return False
    if seen.event.source == "kernel" and inp.events_are_new:
        return True
    if seen.event.source == "engine" and inp.hook == HEALTH_CHECK:
        return notes.first_sight(seen.event.ident, seen.event.at_ns > start) and seen.event.at_ns > start - LATE_NS
    return seen.event.at_ns > start


def _is_settled(inp: Input, seen: _Seen) -> bool:
    return settled.covered(settled.ident(seen.place, seen.event.code, seen.last_ns), inp.settled)


def _of_rules(
    inp: Input, notes: memory.Notes, asking: list[Rule], rules: list[Rule], here: list[_Seen], everything: list[_Seen]
) -> list[Finding]:
    """At most one finding of a rule per entity and Xid number: the strongest."""
    named = _named(rules)
    places: dict[str, list[_Seen]] = {}
    for s in here:
        places.setdefault(s.place, []).append(s)
    out: list[Finding] = []
    for place, events in places.items():
        for rule in asking:
            told: set[int] = set()
            for verdict, levels in ((fd.FAIL, rule.fail), (fd.WARN, rule.warn)):
                for level in levels:
                    matching = [s for s in events if _concerns(level, s.event.code, named) and not _excused(level, s, everything)]
                    matching = _often_enough(inp, notes, rule, level, place, matching)
                    for code in sorted({s.event.code for s in matching} - told):
                        told.add(code)
                        out.append(_finding(inp, rule, verdict, level, [s for s in matching if s.event.code == code]))
    return out


def _named(rules: Iterable[Rule]) -> frozenset[int]:
    """The Xids that some rule names; the rule for "other" concerns all the rest."""
    return frozenset(code for rule in rules for level in (*rule.warn, *rule.fail) for code in level.xid or ())


def _concerns(level: Level, code: int, named: frozenset[int]) -> bool:
    return code in (level.xid or ()) or (level.xid_other and code not in named)


def _excused(level: Level, seen: _Seen, everything: list[_Seen]) -> bool:
    """Contained (its own GPU logged one of ``unless_xid`` at the same time), or the echo of a peer's."""
    if seen.beside & set(level.unless_xid):
        return True
    if not level.unless_peer_xid:
        return False
    peers = (o for o in everything if o.event.code in level.unless_peer_xid and o.place != seen.place)
    return any(_same_time(o, seen) for o in peers)


def _often_enough(inp: Input, notes: memory.Notes, rule: Rule, level: Level, place: str, matching: list[_Seen]) -> list[_Seen]:
    if level.hits <= 1 and level.users is None:
        return matching
    who = str(inp.job.uid) if inp.job is not None and inp.job.uid is not None else ""
    new = [(s.event.at_ns, s.event.ident, who) for s in matching]
    count, users = notes.occurrences(memory.key(rule, level, place), new, level.within_s)
    return matching if matching and count >= level.hits and users >= (level.users or 0) else []


# Sticky events


def _keep_sticky(inp: Input, notes: memory.Notes, rules: list[Rule], seen: list[_Seen]) -> None:
    """Open what is new, close what was settled or what a reboot, driver load or GPU reset ended."""
    named = _named(rules)
    sticky = [r for r in rules if r.sticky]
    for s in seen:
        asking = [r for r in sticky if any(_concerns(level, s.event.code, named) for level in (*r.warn, *r.fail))]
        if asking and not _is_settled(inp, s):
            # What was seen in the observe week is known and was left alone: enforcing later must not drain for it.
            observed = all(effective_mode(inp, r) == fd.OBSERVE for r in asking)
            row = {**s.event._asdict(), "place": s.place, "boot": inp.snapshot.boot_id, "observed": observed}
            notes.open_event(settled.key(s.place, s.event.code), {**row, "beside": sorted(s.beside)})
    for key, opened in notes.open_events().items():
        last_ns = opened.get("last_ns")
        if opened.get("boot") != inp.snapshot.boot_id or not isinstance(last_ns, int) or settled.covered(f"{key}|{last_ns}", inp.settled):
            notes.close_event(key)
        elif _repaired(inp, str(opened.get("place")), last_ns):
            notes.end_event(key)


def _repaired(inp: Input, place: str, at_ns: int) -> bool:
    """The driver was loaded or the GPU was reset after this moment."""
    loaded, reset = inp.snapshot.driver_loaded_ns, inp.reset_since.get(place)
    return (loaded is not None and loaded > at_ns) or (reset is not None and reset >= at_ns)


def _open_ones(inp: Input, notes: memory.Notes) -> list[_Seen]:
    """Every sticky event that is still open, whenever it happened."""
    out: list[_Seen] = []
    for row in notes.open_events().values():
        if row.get("ended") is True:
            continue
        try:
            event = Event(**{k: row[k] for k in Event._fields if k in row})
        except TypeError:
            continue
        beside = frozenset(c for c in row.get("beside", ()) if isinstance(c, int))
        more: dict[str, Any] = {
            "last_ns": row["last_ns"],
            "times": row.get("count", 1),
            "beside": beside,
            "observed": row.get("observed") is True,
        }
        out.extend(s._replace(**more) for s in _located(inp, [event]))
    return out


def _finding(inp: Input, rule: Rule, verdict: str, level: Level, group: list[_Seen]) -> Finding:
    first = min(group, key=lambda s: s.event.at_ns)
    event, count, last_ns = first.event, sum(s.times for s in group), max(s.last_ns for s in group)
    facts = xids.BY_NUMBER.get(event.code)
    meaning = facts.meaning if facts is not None else "not in the catalogue"
    often = f" x{count}" if count > 1 else ""
    old = f", logged {iso(last_ns)}" if inp.now_ns - last_ns > OLD_NS else ""
    advice = f"; vendor: {facts.action}" if facts is not None and facts.action else ""
    evidence = fd.Evidence(
        field="xid",
        after=event.code,
        amount=float(count),
        threshold=rule.text[0] if level in rule.warn else rule.text[1],
        rule=rule.name,
        window=inp.window.text if inp.window.kind != "none" else "",
        text=f"{event.text}{advice}",
        at_ns=event.at_ns,
        source=event.source,
    )
    idents = (settled.ident(first.place, event.code, last_ns),) if rule.sticky else ()
    message = f"Xid {event.code}{often} ({meaning}){old}"
    found = make_finding(inp, rule, first.place, verdict, evidence, first.identity, absolute=rule.sticky, idents=idents, message=message)
    return found._replace(mode=fd.OBSERVE) if all(s.observed for s in group) else found
