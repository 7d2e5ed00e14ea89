"""Rules over events: Xids of GPUs and SXids of NVSwitches, with their own time stamps.

An event belongs to a moment, not to the state of a reading: DCGM's field 230
keeps the last Xid for ever, so its value alone says nothing about this job
(dcgm-exporter#95). A *sticky* event (GPU off the bus, uncontained error) makes
the GPU bad until the node reboots, the driver is loaded anew, the GPU is reset
(for a switch: all GPUs), or an administrator settles it (resumes the node that was
drained for it, releases the GPU); until then it is open, and every prolog and
health check judges it again.

Looks see a reset, nothing tells its moment. Between the same two looks an event may
be why a GPU was reset, or come of it: deliberate resets log Xids and SXids. Such an
event is told as a warning, once, and is repaired; what is logged after it is new.

A switch is the node's, whoever has a job on it: every hook judges its SXids. Xid and
SXid numbers are two worlds, and no condition on the one ever meets the other.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import nvlink5, sxids, xids
from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import EPILOG, HEALTH_CHECK, Input, Reset
from slurm_nvhc.judge.say import effective_mode, make_finding
from slurm_nvhc.model import entity, settled
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.reading import number
from slurm_nvhc.model.snapshot import OK, Event, GpuIdentity, GpuState
from slurm_nvhc.model.times import iso
from slurm_nvhc.policy.compiled import Level, Rule

# Xids of one incident are logged within seconds: a dying GPU's peers (74 beside a 79), a contained
# error's parts (48 with 94). NVIDIA's Xid catalogue; ten seconds is our judgement.
SAME_TIME_NS: Final = 10 * 10**9
# How late an engine may tell of an event. Older ones were told by the kernel log before, under another
# name; they come up again when that log can not be read once.
LATE_NS: Final = 600 * 10**9
OLD_NS: Final = 600 * 10**9  # an event older than this is told with its moment, so that it does not read as new
SXID: Final = "sxid"  # Event.kind


class _Seen(NamedTuple):
    """One event, or for an open one all its occurrences. ``last_ns``: the latest of them.

    beside, peers: excusing Xids (unless_xid, unless_peer_xid of any rule) that the same GPU, and that other GPUs logged at
                   the same time. observed: first seen when no rule was to act on it.
    reset: its GPU was reset in the same time (a switch's: some GPU).
    """

    event: Event
    place: str
    identity: Optional[GpuIdentity]
    last_ns: int
    times: int = 1
    beside: frozenset[int] = frozenset()
    peers: frozenset[int] = frozenset()
    observed: bool = False
    reset: bool = False


def judge_events(inp: Input, notes: memory.Notes) -> tuple[Finding, ...]:
    rules = [r for r in inp.policy.rules.values() if r.kind == "event" and r.mode != fd.OFF]
    seen = _with_company(_located(inp, inp.snapshot.events), rules)
    new = [s for s in seen if _in_window(inp, notes, s)]
    _keep_sticky(inp, notes, rules, seen)
    now_rules = [r for r in rules if not r.sticky or inp.hook == EPILOG]
    unsettled = [s._replace(reset=_reset_beside(inp, s.place, s.event.at_ns)) for s in new if not _is_settled(inp, s)]
    findings = _of_rules(inp, notes, now_rules, rules, unsettled, seen)
    if inp.hook != EPILOG:
        opened = _open_ones(inp, notes)
        findings += _of_rules(inp, notes, [r for r in rules if r.sticky], rules, opened, opened)
    return tuple(findings)


def xids_by_gpu(inp: Input) -> Mapping[str, frozenset[int]]:
    """Xid numbers per GPU in the window (or, without a window, of all events that were read)."""
    out: dict[str, frozenset[int]] = {}
    for seen in _located(inp, inp.snapshot.events):
        if seen.event.kind == SXID:
            continue
        if inp.window.start_ns is None or inp.events_are_new or seen.event.at_ns > inp.window.start_ns:
            out[seen.place] = out.get(seen.place, frozenset()) | {seen.event.code}
    return out


def _located(inp: Input, events: Iterable[Event]) -> list[_Seen]:
    """Events with the GPU they are about, as far as it is known; an SXid's place is its switch."""
    rows = {i.pci: i for i in inp.known if i.pci}
    rows.update({g.identity.pci: g.identity for g in inp.gpus().values() if g.identity.pci})
    by_uuid = {i.uuid: i for i in rows.values()}
    out = []
    for event in events:
        if event.kind == SXID:
            out.append(_Seen(event, entity.switch(event.pci), None, event.at_ns))
            continue
        if event.kind not in ("xid", "off_bus"):
            continue
        identity = by_uuid.get(event.uuid) or rows.get(event.pci)
        place = identity.uuid if identity is not None else (event.uuid or f"pci:{event.pci}")
        out.append(_Seen(event, place, identity, event.at_ns))
    return out


def _with_company(seen: list[_Seen], rules: list[Rule]) -> list[_Seen]:
    """Each event with the excusing Xids that were logged at the same time."""
    excuses = {c for rule in rules for level in (*rule.warn, *rule.fail) for c in (*level.unless_xid, *level.unless_peer_xid)}
    excusing = [s for s in seen if s.event.code in excuses and s.event.kind != SXID]
    if not excusing:
        return seen
    out = []
    for s in seen:
        company = [o for o in excusing if _same_time(o, s)]
        beside = frozenset(o.event.code for o in company if o.place == s.place)
        out.append(s._replace(beside=beside, peers=frozenset(o.event.code for o in company if o.place != s.place)))
    return out


def _same_time(one: _Seen, other: _Seen) -> bool:
    return abs(one.event.at_ns - other.event.at_ns) <= SAME_TIME_NS


def _in_window(inp: Input, notes: memory.Notes, seen: _Seen) -> bool:
    """Did this happen in the window that is judged?

    Kernel events that were read from the window's own place in the log are new whatever their
    stamps say: printk's clock drifts, and a line logged while the log is read has a stamp after
    the snapshot's. The engine's events come late at times: a health check takes each once.
    """
    start = inp.window.start_ns
    if start is None or inp.hook not in (EPILOG, HEALTH_CHECK):
        return False
    if seen.event.kind != SXID and not inp.in_scope(seen.place):
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
    """At most one finding of a rule per entity and number: the strongest."""
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
                    matching = [s for s in events if _concerns(level, s.event, named) and not _excused(level, s, everything)]
                    matching = _often_enough(inp, notes, rule, level, place, matching)
                    for code in sorted({s.event.code for s in matching} - told):
                        told.add(code)
                        out.append(_finding(inp, rule, verdict, level, [s for s in matching if s.event.code == code]))
    return out


def _named(rules: Iterable[Rule]) -> frozenset[int]:
    """The Xids that some rule names; the rule for "other" concerns all the rest."""
    return frozenset(code for rule in rules for level in (*rule.warn, *rule.fail) for code in level.xid or ())


def _concerns(level: Level, event: Event, named: frozenset[int]) -> bool:
    if level.fatal is not None and level.fatal is not event.fatal:
        return False
    if event.kind == SXID:
        return level.sxid is not None and (not level.sxid or event.code in level.sxid)
    return event.code in (level.xid or ()) or (level.xid_other and event.code not in named)


def _excused(level: Level, seen: _Seen, everything: list[_Seen]) -> bool:
    """Contained (its own GPU logged one of ``unless_xid`` at the same time), or the echo of a peer's.

    An echo stays one when its cause was settled; and the cause may be read only a look later.
    """
    if seen.beside & set(level.unless_xid) or seen.peers & set(level.unless_peer_xid):
        return True
    if not level.unless_peer_xid:
        return False
    peers = (o for o in everything if o.event.code in level.unless_peer_xid and o.event.kind != SXID and o.place != seen.place)
    return any(_same_time(o, seen) for o in peers)


def _often_enough(inp: Input, notes: memory.Notes, rule: Rule, level: Level, place: str, matching: list[_Seen]) -> list[_Seen]:
    if level.hits <= 1 and level.users is None:
        return matching
    who = str(inp.job.uid) if inp.job is not None and inp.job.uid is not None else ""
    # One incident has many lines: a contained error is logged for each process and each channel.
    new = sorted((s.event.at_ns, s.event.ident, who) for s in matching)
    count, users = notes.occurrences(memory.key(rule, level, place), new, level, SAME_TIME_NS / 1e9)
    return matching if matching and count >= level.hits and users >= (level.users or 0) else []


# Sticky events


def _keep_sticky(inp: Input, notes: memory.Notes, rules: list[Rule], seen: list[_Seen]) -> None:
    """Open what is new, close what was settled or what a reboot, driver load or GPU reset ended."""
    named = _named(rules)
    sticky = [r for r in rules if r.sticky]
    for s in seen:
        asking = [r for r in sticky if any(_concerns(level, s.event, named) for level in (*r.warn, *r.fail))]
        if asking and not _is_settled(inp, s):
            # What was seen in the observe week is known and was left alone: enforcing later must not drain for it.
            observed = all(effective_mode(inp, r) == fd.OBSERVE for r in asking)
            row = {**s.event._asdict(), "place": s.place, "boot": inp.snapshot.boot_id, "observed": observed}
            notes.open_event(settled.key(s.place, s.event.code), {**row, "beside": sorted(s.beside), "peers": sorted(s.peers)})
    for key, opened in notes.open_events().items():
        last_ns = opened["last_ns"]
        if opened["boot"] != inp.snapshot.boot_id or settled.covered(f"{key}|{last_ns}", inp.settled):
            notes.close_event(key)
        elif opened.get("ended") is not True:
            place = opened["place"]
            repaired = _repaired(inp, place, last_ns)
            if repaired or _reset_beside(inp, place, last_ns):
                notes.end_event(key, doubt=not repaired)


def _repaired(inp: Input, place: str, at_ns: int) -> bool:
    """The driver was loaded after this moment, or the GPU was reset; for a switch all GPUs, as NVIDIA advises."""
    loaded = inp.snapshot.driver_loaded_ns
    if loaded is not None and loaded > at_ns:
        return True
    if entity.scope(place) == cat.SWITCH:
        return _all_reset(inp, at_ns)
    return _reset_after(inp.resets.get(place), at_ns)


def _reset_after(reset: Optional[Reset], at_ns: int) -> bool:
    return reset is not None and reset.since_ns >= at_ns


def _all_reset(inp: Input, at_ns: int) -> bool:
    """Was every GPU of the node reset since? One whose counters are all zero can not show it, and does not speak against it
    where another does; one that does not answer does."""
    gpus = inp.gpus()
    if any(i.uuid not in gpus for i in inp.known) or any(g.status != OK for g in gpus.values()):
        return False
    shown = {uuid for uuid in gpus if _reset_after(inp.resets.get(uuid), at_ns)}
    return bool(shown) and not any(_counts(gpu) for uuid, gpu in gpus.items() if uuid not in shown)


def _counts(gpu: GpuState) -> bool:
    """Does any counter that a reset clears stand above zero?"""
    readings = (r for of in (gpu.readings, *gpu.links.values()) for r in of.items())
    return any((number(value) or 0) > 0 for field, value in readings if _clears(field))


def _clears(field: str) -> bool:
    facts = cat.BY_NAME.get(field)
    return facts is not None and facts.kind == cat.COUNTER and cat.GPU_RESET in facts.cleared_by


def _reset_beside(inp: Input, place: str, at_ns: int) -> bool:
    """Was the GPU reset between the same two looks, so that none can say which came first? For a switch any GPU."""
    mine = inp.resets.values() if entity.scope(place) == cat.SWITCH else filter(None, (inp.resets.get(place),))
    return any(r.since_ns < at_ns <= r.seen_ns for r in mine)


def _is_told_here(inp: Input, place: str) -> bool:
    """May this run tell a warning about it? A job's hooks tell those of the job's GPUs and of the node."""
    return entity.scope(place) == cat.SWITCH or inp.in_scope(place)


def _open_ones(inp: Input, notes: memory.Notes) -> list[_Seen]:
    """Every sticky event that is still open, whenever it happened, and those that came with a reset, once."""
    out: list[_Seen] = []
    for key, row in notes.open_events().items():
        ended = row.get("ended") is True
        if ended and not (_is_told_here(inp, row["place"]) and notes.tells_doubt(key)):
            continue
        event = Event(**{k: row[k] for k in Event._fields if k in row})
        company = {name: frozenset(row.get(name, ())) for name in ("beside", "peers")}
        more: dict[str, Any] = {
            "last_ns": row["last_ns"],
            "times": row.get("count", 1),
            **company,
            "observed": row.get("observed") is True,
            "reset": ended,
        }
        out.extend(s._replace(**more) for s in _located(inp, [event]))
    return out


def _finding(inp: Input, rule: Rule, verdict: str, level: Level, group: list[_Seen]) -> Finding:
    first = min(group, key=lambda s: s.event.at_ns)
    event, count, last_ns = first.event, sum(s.times for s in group), max(s.last_ns for s in group)
    name, meaning, action = _catalogued(event)
    often = f" x{count}" if count > 1 else ""
    old = f", logged {iso(last_ns)}" if inp.now_ns - last_ns > OLD_NS else ""
    advice = f"; vendor: {action}" if action else ""
    evidence = fd.Evidence(
        field="sxid" if event.kind == SXID else "xid",
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
    doubtful = rule.sticky and all(s.reset for s in group)
    verdict = fd.WARN if doubtful else verdict
    with_reset = f", in the same time {'a' if event.kind == SXID else 'the'} GPU was reset" if doubtful else ""
    message = f"{name} {event.code}{often} ({meaning}){_detail(event)}{old}{with_reset}"
    found = make_finding(inp, rule, first.place, verdict, evidence, first.identity, absolute=rule.sticky, idents=idents, message=message)
    return found._replace(mode=fd.OBSERVE) if all(s.observed for s in group) else found


def _catalogued(event: Event) -> tuple[str, str, str]:
    """(Xid or SXid, what its number means, the vendor's advice or '')"""
    if event.kind == SXID:
        switch_error = sxids.BY_NUMBER.get(event.code)
        return "SXid", sxids.meaning(event.code), "" if switch_error is None else switch_error.action
    gpu_error = xids.BY_NUMBER.get(event.code)
    steps = [] if gpu_error is None else [s for s in dict.fromkeys((gpu_error.action, gpu_error.then)) if s]
    return "Xid", xids.meaning(event.code), ", if it comes again ".join(steps)


def _detail(event: Event) -> str:
    """What the line says beyond the number: the link, how grave it is, and for NVLink 5 why and which end."""
    decoded = None if event.kind == SXID else nvlink5.decode(event.code, event.text)
    if decoded is not None:
        return f": {nvlink5.tell(decoded)}"
    grave = ", fatal" if event.kind == SXID and event.fatal else ""
    return grave if event.link is None else f"{grave}, link {event.link}"
