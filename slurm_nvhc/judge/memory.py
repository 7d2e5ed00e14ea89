"""What judge remembers between runs, as one JSON-able mapping that is folded, never changed in place.

  streaks     {key: {n, first, last, boot}}   consecutive observations of a condition
  hits        {key: [[at_ns, ident, who], …]} occurrences, each ident once
  job_hits    {key: [job number, …]}          jobs of a GPU in which a condition held
  jobs        {uuid: [number, window key]}    how many jobs a GPU has had
  links_up    {uuid: [link, …]}               links that were up at least once
  open        {ident: {…}}                    sticky events not settled yet
  accepted    {ident: at_ns}                  sticky events that an administrator settled
  monitor     {code: {n, since}}              trouble of our own, runs in a row

Keys hold entity, rule and the level's parameters, so a changed threshold
starts anew instead of inheriting evidence for another question.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, Mapping, Optional

from slurm_nvhc.policy.compiled import Level, Rule

KEEP_HITS: Final = 64  # per key; far above any hits/users a policy asks for
KEEP_SETTLED_NS: Final = 90 * 86400 * 10**9
_SECTIONS: Final = ("streaks", "hits", "job_hits", "jobs", "links_up", "open", "accepted", "monitor")


def key(rule: Rule, level: Level, entity: str) -> str:
    parameters = zlib.crc32(repr(level).encode())
    return f"{rule.name}|{parameters:08x}|{entity}"


def open_copy(memory: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A private two-level copy; sections that are not mappings (damaged state) start empty."""
    out: dict[str, dict[str, Any]] = {}
    for section in _SECTIONS:
        value = memory.get(section)
        out[section] = dict(value) if isinstance(value, dict) else {}
    return out


class Notes:
    """Working copy of the memory during one judgement; ``memory()`` is what is kept."""

    def __init__(self, memory: Mapping[str, Any], now_ns: int, boot_id: str) -> None:
        self._m = open_copy(memory)
        self._now = now_ns
        self._boot = boot_id

    def memory(self) -> dict[str, Any]:
        horizon = self._now - KEEP_SETTLED_NS
        self._m["accepted"] = {i: at for i, at in self._m["accepted"].items() if isinstance(at, int) and at > horizon}
        return dict(self._m)

    # Consecutive observations

    def seen_in_a_row(self, name: str, holds: bool, spacing_s: float) -> int:
        """How often in a row the condition has now held; an observation nearer than spacing_s to the last is not counted."""
        streaks = self._m["streaks"]
        if not holds:
            streaks.pop(name, None)
            return 0
        entry = streaks.get(name)
        fresh = {"n": 1, "first": self._now, "last": self._now, "boot": self._boot}
        if not isinstance(entry, dict) or not _whole(entry) or entry["boot"] != self._boot:
            streaks[name] = fresh
        elif self._now - entry["last"] >= spacing_s * 1e9:
            streaks[name] = {**entry, "n": entry["n"] + 1, "last": self._now}
        return int(streaks[name]["n"])

    # Occurrences

    def occurrences(self, name: str, new: list[tuple[int, str, str]], within_s: Optional[float]) -> tuple[int, int]:
        """Add occurrences (at_ns, ident, who), each ident once; (how many, by how many different who) within within_s."""
        kept = [h for h in self._m["hits"].get(name, []) if isinstance(h, list) and len(h) == 3]
        idents = {h[1] for h in kept}
        for at_ns, ident, who in new:
            if ident not in idents:
                idents.add(ident)
                kept.append([at_ns, ident, who])
        kept = sorted(kept, key=lambda h: int(h[0]))[-KEEP_HITS:]
        if kept:
            self._m["hits"][name] = kept
        since = 0 if within_s is None else self._now - int(within_s * 1e9)
        recent = [h for h in kept if h[0] >= since]
        return len(recent), len({h[2] for h in recent if h[2]})

    # Jobs of a GPU

    def count_job(self, uuid: str, window_key: str) -> None:
        number, last = self._job(uuid)
        if last != window_key:
            self._m["jobs"][uuid] = [number + 1, window_key]

    def job_hits(self, name: str, uuid: str, holds: bool, of_last: int) -> int:
        """In how many of the GPU's last of_last jobs the condition held, the present one included."""
        number, _ = self._job(uuid)
        hits = [n for n in self._m["job_hits"].get(name, []) if isinstance(n, int)]
        if holds and number not in hits:
            hits.append(number)
        hits = [n for n in hits if n > number - max(of_last, KEEP_HITS)]
        if hits:
            self._m["job_hits"][name] = hits
        else:
            self._m["job_hits"].pop(name, None)
        return len([n for n in hits if n > number - of_last])

    def _job(self, uuid: str) -> tuple[int, str]:
        entry = self._m["jobs"].get(uuid)
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int):
            return entry[0], str(entry[1])
        return 0, ""

    # Links

    def link_up(self, uuid: str, link: int) -> None:
        links = self._links(uuid)
        if link not in links:
            self._m["links_up"][uuid] = sorted([*links, link])

    def link_was_up(self, uuid: str, link: int) -> bool:
        return link in self._links(uuid)

    def _links(self, uuid: str) -> list[int]:
        links = self._m["links_up"].get(uuid)
        return [n for n in links if isinstance(n, int)] if isinstance(links, list) else []

    # Sticky events

    def open_event(self, ident: str, row: Mapping[str, Any]) -> None:
        """Remember it; what is known of it already stays, but for Xids beside it that were logged since."""
        if ident in self._m["accepted"]:
            return
        known = self._m["open"].setdefault(ident, dict(row))
        if isinstance(known, dict) and known.get("beside") != row.get("beside"):
            self._m["open"][ident] = {**known, "beside": sorted({*known.get("beside", ()), *row.get("beside", ())})}

    def open_events(self) -> dict[str, Mapping[str, Any]]:
        return {i: r for i, r in self._m["open"].items() if isinstance(r, dict)}

    def close_event(self, ident: str) -> None:
        self._m["open"].pop(ident, None)

    # Our own trouble

    def trouble(self, code: str) -> tuple[int, float]:
        """(runs in a row including this one, seconds since the first of them)."""
        entry = self._m["monitor"].get(code)
        if not (isinstance(entry, dict) and isinstance(entry.get("n"), int) and isinstance(entry.get("since"), int)):
            entry = {"n": 0, "since": self._now}
        entry = {"n": entry["n"] + 1, "since": entry["since"]}
        self._m["monitor"][code] = entry
        return entry["n"], max(0.0, (self._now - entry["since"]) / 1e9)

    def forget_troubles_but(self, codes: set[str]) -> None:
        self._m["monitor"] = {c: e for c, e in self._m["monitor"].items() if c in codes}


def _whole(streak: Mapping[str, Any]) -> bool:
    return all(isinstance(streak.get(k), int) for k in ("n", "last")) and "boot" in streak


def accept(memory: Mapping[str, Any], idents: tuple[str, ...], now_ns: int) -> dict[str, Any]:
    """The memory after an administrator settled these events by resuming the node."""
    notes = open_copy(memory)
    for ident in idents:
        notes["open"].pop(ident, None)
        notes["accepted"][ident] = now_ns
    return dict(notes)
