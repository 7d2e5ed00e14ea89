"""`nvhc pause`: maintenance on this node. Hooks go on looking and recording, and do nothing."""

from __future__ import annotations

import argparse
import calendar
import re
import time
from typing import Final, Optional

from slurm_nvhc.cli import common
from slurm_nvhc.errors import InputError
from slurm_nvhc.model.protective import Pause
from slurm_nvhc.model.times import duration, iso, parse_duration
from slurm_nvhc.proc import log
from slurm_nvhc.record.ledger import Ledger

# A pause that is forgotten leaves a node unprotected; longer work is for a drain, or for the policy (our judgement).
LONGEST_S: Final = 7 * 86400.0
DAY_S: Final = 86400
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})Z?")
_DATED = re.compile(r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2})(?::\d{2})?Z?")


def pause(args: argparse.Namespace) -> int:
    now_ns = time.time_ns()
    if args.end and (args.until or args.why):
        raise InputError("--end", "", "goes alone")
    if args.end:
        return _end(args, now_ns)
    if not args.until and not args.why:
        return _show(args, now_ns)
    if not args.until:
        raise InputError("--until", "", "is missing: a pause has an end", "--until 2h, 14:00 or 2026-12-01T14:00 (UTC)")
    why = " ".join("".join(c if c.isprintable() else " " for c in args.why).split())[:300]
    if not why:
        raise InputError("--why", "", "is missing: who comes next must know why nothing is done here")
    wanted = Pause(until(args.until, now_ns), why, common.user(), now_ns)
    with common.open_ledger(args) as ledger:
        ledger.set_pause(wanted)
    log.warning(f"pause of {common.node(args)} until {iso(wanted.until_ns)} by {wanted.who}: {wanted.why}")
    return _said(args, wanted, now_ns)


def until(text: str, now_ns: int) -> int:
    """The moment that a text names, ns UTC: a duration from now, a time of day that comes next, or a date and time. InputError."""
    at_ns = _moment(text.strip(), now_ns)
    if at_ns is None:
        raise InputError("--until", "", f"{text[:40]!r} is no time", "2h, 14:00 or 2026-12-01T14:00 (UTC)")
    if at_ns <= now_ns:
        raise InputError("--until", "", f"{iso(at_ns)} is over", f"now is {iso(now_ns)}; all times are UTC")
    if (at_ns - now_ns) / 1e9 > LONGEST_S:
        raise InputError("--until", "", f"{iso(at_ns)} is too far away", f"at most {duration(LONGEST_S)}; drain the node for longer work")
    return at_ns


def _moment(text: str, now_ns: int) -> Optional[int]:
    clock, dated = _CLOCK.fullmatch(text), _DATED.fullmatch(text)
    if dated is not None:
        try:
            return calendar.timegm(time.strptime(" ".join(dated.groups()), "%Y-%m-%d %H:%M")) * 10**9
        except ValueError:
            return None
    if clock is not None:
        if int(clock[1]) > 23 or int(clock[2]) > 59:
            return None
        now_s = now_ns // 10**9
        at_s = now_s // DAY_S * DAY_S + int(clock[1]) * 3600 + int(clock[2]) * 60
        return (at_s if at_s > now_s else at_s + DAY_S) * 10**9
    try:
        return now_ns + round(parse_duration(text) * 1e9)
    except ValueError:
        return None


def in_force(ledger: Ledger, now_ns: int) -> Optional[Pause]:
    found = ledger.protective().pause
    return found if found is not None and now_ns < found.until_ns else None


def line(found: Pause, now_ns: int) -> str:
    """For people, in `nvhc status`, `check` and `explain` too."""
    return f"paused until {iso(found.until_ns)} (for {duration((found.until_ns - now_ns) / 1e9)} more) by {found.who}: {found.why}"


def _end(args: argparse.Namespace, now_ns: int) -> int:
    with common.open_ledger(args) as ledger:
        found = in_force(ledger, now_ns)
        ledger.set_pause(None)
    if found is None:
        print(f"{common.node(args)} is not paused")
    else:
        log.warning(f"pause of {common.node(args)} ended by {common.user()}")
        print(f"the pause of {common.node(args)} is over; the next hook acts again")
    return common.OK


def _show(args: argparse.Namespace, now_ns: int) -> int:
    with common.open_ledger(args) as ledger:
        found = in_force(ledger, now_ns)
    return _said(args, found, now_ns)


def _said(args: argparse.Namespace, found: Optional[Pause], now_ns: int) -> int:
    if args.json:
        common.say_json({"schema": 1, "node": common.node(args), "pause": found._asdict() if found is not None else None})
    elif found is None:
        print(f"{common.node(args)} is not paused")
    else:
        print(f"{common.node(args)} is {line(found, now_ns)}")
        print("hooks look, judge and record, and nothing is done; GPUs that are excluded stay excluded")
    return common.OK
