"""What judge remembers between runs, as one JSON-able mapping that is folded, never changed in place.

  streaks     {key: {n, first, last, boot}}   consecutive observations of a condition
  hits        {key: [[at_ns, ident, who], …]} occurrences, each ident once
  job_hits    {key: [job number, …]}          jobs of a GPU in which a condition held
  jobs        {uuid: [number, window key]}    how many jobs a GPU has had
  links_up    {uuid: [link, …]}               links that were up at least once
  open        {entity|xid: {…}}               sticky events not settled yet
  engine_seen {ident: run}                    the engine's events that a health check has taken
  monitor     {code part: {n, since, run}}    trouble of our own, runs in a row
  past        {field|entity: [count, seconds]}  growth of a counter since its first error, as far as looks saw it
  evidence    {key|field: {sum, …}}           errors gathered over looks, see judge/evidence.py
  resets      {uuid: [since_ns, seen_ns, boot]}  a GPU's last reset: see settle.py
  faults      {…}                             where faults were, for when cards are exchanged: see swaps.py
  app_failed, app_clean  {uuid: […]}          how users' jobs ended on each GPU: see users.py

Keys hold entity, rule and the level's parameters, so a changed threshold
starts anew instead of inheriting evidence for another question. What a row of
each section looks like, and how many are kept: rows.py.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, Iterable, Mapping, Optional

from slurm_nvhc.judge import rows
from slurm_nvhc.model import entity, settled
from slurm_nvhc.policy.compiled import Level, Rule

LONGEST_GAP_S: Final = 3600.0  # a dozen health checks at the usual 5 minutes; our judgement
LONGEST_GAP_SPACINGS: Final = 10
KEEP_PREFIXES: Final = 4096


_prefixes: dict[int, tuple[Level, str]] = {}  # by identity: a level is asked about hundreds of links


def key(rule: Rule, level: Level, entity: str) -> str:
    known = _prefixes.get(id(level))
    if known is None or known[0] is not level:
        known = (level, f"{zlib.crc32(repr(level).encode()):08x}")
        if len(_prefixes) >= KEEP_PREFIXES:  # levels of policies that are gone
            _prefixes.clear()
        _prefixes[id(level)] = known
    return f"{rule.name}|{known[1]}|{entity}"


class Notes:
    """Working copy of the memory during one judgement; ``memory()`` is what is kept."""

    def __init__(self, memory: Mapping[str, Any], now_ns: int, boot_id: str, run_id: str = "") -> None:
        self._m = rows.opened(memory)
        self._now = now_ns
        self._boot = boot_id
        self._run = run_id
        self._knows_engine = bool(self._m["engine_seen"])

    def memory(self) -> dict[str, Any]:
        """What is kept: of each section what was touched last, see rows.SECTIONS."""
        return rows.kept(self._m)

    # Consecutive observations

    def seen_in_a_row(self, name: str, holds: bool, spacing_s: float, once_a_run: bool = False) -> int:
        """How often in a row the condition has now held.

        An observation nearer than spacing_s to the last, or at the same moment, is not counted; with
        once_a_run neither is a second one of the same hook run.
        """
        streaks = self._m["streaks"]
        if not holds:
            streaks.pop(name, None)
            return 0
        entry = streaks.get(name)
        fresh = {"n": 1, "last": self._now, "boot": self._boot, "run": self._run}
        if entry is None or entry["boot"] != self._boot:
            streaks[name] = fresh
        elif self._now - entry["last"] >= max(1, spacing_s * 1e9) and not (once_a_run and self._run and entry.get("run") == self._run):
            streaks[name] = {**fresh, "n": entry["n"] + 1}
        _touch(streaks, name)
        return int(streaks[name]["n"])

    def no_answer(self, name: str, spacing_s: float) -> None:
        """A look that gave no data. Now and then it changes nothing; for long it ends the row."""
        entry = self._m["streaks"].get(name)
        longest_ns = max(LONGEST_GAP_S, LONGEST_GAP_SPACINGS * spacing_s) * 1e9
        if entry is not None and self._now - entry["last"] > longest_ns:
            del self._m["streaks"][name]

    # Occurrences

    def occurrences(self, name: str, new: Iterable[tuple[int, str, str]], level: Level, apart_s: float = 0.0) -> tuple[int, int]:
        """Add occurrences (at_ns, ident, who), each ident once; (how many, by how many different who) within the level's time.

        One nearer than apart_s to another is not counted, unless it is known to be somebody else's. What is remembered
        is what the level can need: of its time, the latest ``hits``, and the latest of each of ``users``.
        """
        known = list(self._m["hits"].get(name, ()))
        for at_ns, ident, who in new:
            same = next(
                (
                    n
                    for n, (before, other, whose) in enumerate(known)
                    if other == ident or (abs(at_ns - before) < apart_s * 1e9 and (who == whose or not who or not whose))
                ),
                None,
            )
            if same is None:
                known.append([at_ns, ident, who])
            elif who and not known[same][2]:  # a health check saw it before the job's epilog could say whose it was
                known[same] = [*known[same][:2], who]
        since = 0 if level.within_s is None else self._now - int(level.within_s * 1e9)
        recent: list[list[Any]] = []
        users: set[str] = set()
        for at_ns, ident, who in sorted((h for h in known if h[0] >= since), reverse=True):
            adds_user = who not in users and bool(who) and len(users) < (level.users or 0)
            if len(recent) < level.hits or adds_user:
                recent.append([at_ns, ident, who])
                users |= {who} - {""}
        self._m["hits"].pop(name, None)
        if recent:
            self._m["hits"][name] = recent[::-1]
        return len(recent), len(users)

    # Jobs of a GPU

    def count_job(self, uuid: str, window_key: str) -> None:
        number, last = self._job(uuid)
        if last != window_key:
            self._m["jobs"][uuid] = [number + 1, window_key]

    def job_hits(self, name: str, uuid: str, holds: bool, of_last: int) -> int:
        """In how many of the GPU's last of_last jobs the condition held, the present one included."""
        number, _ = self._job(uuid)
        hits = list(self._m["job_hits"].get(name, ()))
        if holds and number not in hits:
            hits.append(number)
        hits = [n for n in hits if n > number - of_last]
        if hits:
            self._m["job_hits"][name] = hits
            _touch(self._m["job_hits"], name)
        else:
            self._m["job_hits"].pop(name, None)
        return len(hits)

    def _job(self, uuid: str) -> tuple[int, str]:
        number, window_key = self._m["jobs"].get(uuid, (0, ""))
        return number, window_key

    def jobs_of(self, uuid: str) -> int:
        """How many jobs of the GPU have been counted so far."""
        return self._job(uuid)[0]

    # Growth over looks

    def past(self, name: str) -> tuple[float, float]:
        """(count, seconds) of a counter since its first error; (0, 0) before it."""
        count, seconds = self._m["past"].get(name, (0.0, 0.0))
        return float(count), float(seconds)

    def add_past(self, name: str, amount: float, seconds: float, longest_s: float) -> None:
        """What a look saw. Beyond ``longest_s`` the older past fades; a counter that stayed quiet so long is forgotten."""
        if name not in self._m["past"]:
            if amount > 0:
                self._m["past"][name] = [0.0, 0.0]
            return
        before_count, before_s = self.past(name)
        count, total_s = before_count + amount, before_s + seconds
        if total_s > longest_s:
            count, total_s = count * longest_s / total_s, longest_s
        if count == 0 and total_s >= longest_s:
            del self._m["past"][name]
        else:
            self._m["past"][name] = [count, total_s]
            _touch(self._m["past"], name)

    def evidence(self, name: str) -> Optional[dict[str, Any]]:
        """A copy; None when there is none."""
        entry = self._m["evidence"].get(name)
        return None if entry is None else dict(entry)

    def all_evidence(self) -> dict[str, dict[str, Any]]:
        return {name: dict(entry) for name, entry in self._m["evidence"].items()}

    def keep_evidence(self, name: str, entry: Mapping[str, Any]) -> None:
        self._m["evidence"][name] = dict(entry)
        _touch(self._m["evidence"], name)

    def end_evidence(self, name: str) -> None:
        self._m["evidence"].pop(name, None)

    # Links

    def links_are_up(self, uuid: str, up: Iterable[int]) -> None:
        links = set(self._links(uuid))
        if not links.issuperset(up := set(up)):
            self._m["links_up"][uuid] = sorted(links | up)

    def link_was_up(self, uuid: str, link: int) -> bool:
        return link in self._links(uuid)

    def _links(self, uuid: str) -> list[int]:
        return list(self._m["links_up"].get(uuid, ()))

    # Sticky events

    def open_event(self, key: str, row: Mapping[str, Any]) -> None:
        """Remember an occurrence. All of one entity and Xid are one row: the first, how many, the latest.

        An occurrence that was read before (a log read again from its start) is not counted again.
        """
        known = self._m["open"].get(key)
        at_ns = int(row["at_ns"])
        if known is None or known["boot"] != row["boot"]:
            self._m["open"][key] = {**row, "last_ns": at_ns, "last_ident": row["ident"], "count": 1}
            return
        later = _is_later(row, known)
        changes: dict[str, Any] = {}
        for name in ("beside", "peers"):
            before, now = set(known.get(name, ())), set(row.get(name, ()))
            # Read again, it may have got its company meanwhile. Another occurrence needs an excuse of its own.
            changes[name] = sorted(before & now if later else before | now)
        if row.get("fatal") is True and known.get("fatal") is not True:
            # The row speaks for its worst occurrence: a link that first stumbled and then died is dead.
            changes |= {name: row[name] for name in ("fatal", "text", "link") if name in row}
        if later:
            # A new occurrence that a rule may act on makes the whole row one to act on.
            changes |= {"last_ns": at_ns, "last_ident": row["ident"], "count": known.get("count", 1) + 1}
            changes |= {"observed": row["observed"], "ended": False, "doubt": False}
        self._m["open"][key] = {**known, **changes}

    def open_events(self) -> dict[str, Mapping[str, Any]]:
        return dict(self._m["open"])

    def close_event(self, key: str) -> None:
        self._m["open"].pop(key, None)

    def end_event(self, key: str, doubt: bool) -> None:
        """It was repaired. The row stays, so that a log that is read again does not open it anew.

        doubt: nobody knows whether it came before the repair or with it: it is still to be told once.
        """
        self._m["open"][key] = {**self._m["open"][key], "ended": True, "doubt": doubt}

    def tells_doubt(self, key: str) -> bool:
        """Is it this run's to tell of an ended event that it may have come with its repair? The run that asks first."""
        doubt = self._m["open"][key].get("doubt")
        if doubt is True:
            self._m["open"][key] = {**self._m["open"][key], "doubt": self._run}
        return doubt is True or (bool(self._run) and doubt == self._run)

    # Resets of GPUs

    def keep_reset(self, uuid: str, since_ns: int) -> None:
        """Its counters were seen reset by this look, since a moment before."""
        self._m["resets"][uuid] = [since_ns, self._now, self._boot]
        _touch(self._m["resets"], uuid)

    def resets(self) -> dict[str, tuple[int, int]]:
        """uuid -> (since_ns, seen_ns) of its last reset in this boot"""
        return {uuid: (since_ns, seen_ns) for uuid, (since_ns, seen_ns, boot) in self._m["resets"].items() if boot == self._boot}

    def first_sight(self, ident: str, if_first_ever: bool) -> bool:
        """Is this engine event met for the first time, or in this run? ``if_first_ever`` decides when none was met before."""
        seen = self._m["engine_seen"]
        if ident in seen:
            return bool(self._run) and seen[ident] == self._run
        is_new = if_first_ever or self._knows_engine
        seen[ident] = self._run if is_new else ""
        return is_new

    # What locating remembers

    def kept(self, section: str) -> Mapping[str, Any]:
        return dict(self._m[section])

    def keep(self, section: str, name: str, row: list[Any]) -> None:
        self._m[section][name] = row
        _touch(self._m[section], name)

    def drop(self, section: str, name: str) -> None:
        self._m[section].pop(name, None)

    # Our own trouble

    def trouble(self, name: str) -> tuple[int, float]:
        """(runs in a row including this one, seconds since the first of them). Counted once per run."""
        entry = self._m["monitor"].get(name)
        if entry is None:
            entry = {"n": 0, "since": self._now, "run": None}
        if entry.get("run") != self._run or not self._run:
            entry = {"n": entry["n"] + 1, "since": entry["since"], "run": self._run}
        self._m["monitor"][name] = entry
        return entry["n"], max(0.0, (self._now - entry["since"]) / 1e9)

    def forget_troubles_but(self, names: set[str], spared: frozenset[str]) -> None:
        """Troubles that did not come again are over, but for the codes that this hook does not look for."""
        self._m["monitor"] = {n: e for n, e in self._m["monitor"].items() if n in names or n.partition(" ")[0] in spared}


def forget_links(memory: Mapping[str, Any], links: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """The memory without these (uuid, link) having ever been up: an administrator accepted them as they are."""
    out = rows.opened(memory)
    for uuid, link in links:
        if uuid in out["links_up"]:
            out["links_up"][uuid] = [n for n in out["links_up"][uuid] if n != link]
    return {**memory, "links_up": out["links_up"]}


def open_names(memory: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """What is open for a GPU, as names to settle: its sticky events, and evidence about it and its links."""
    sections = rows.opened(memory)
    events = {k: r for k, r in sections["open"].items() if r["place"] == place}
    gathered = [e for e in sections["evidence"].values() if entity.gpu_of(e["place"]) == place]
    return (
        *(f"{key}|{row['last_ns']}" for key, row in events.items()),
        *(settled.ident(e["place"], e["word"], e["crossed"]) for e in gathered if e["crossed"] is not None),
    )


def _is_later(row: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Is this a later occurrence than the last one known?

    Kernel records have a number in their log (ident "boot:number"): the stamp of one and the same record
    differs between readings. Otherwise the stamps must be farther apart than one occurrence's can be.
    """
    numbers = [str(ident).rpartition(":")[2] for ident in (row["ident"], known.get("last_ident", ""))]
    if row["source"] == "kernel" and known.get("source") == "kernel" and all(n.isascii() and n.isdigit() for n in numbers):
        return int(numbers[0]) > int(numbers[1])
    return int(row["at_ns"]) > int(known["last_ns"]) + settled.SAME_MOMENT_NS


def _touch(section: dict[str, Any], name: str) -> None:
    section[name] = section.pop(name)
