"""The outbox: which of the things that are still to be done are due, when they are tried again, and when they are dropped. Pure.

An intent is written before it is tried. Whoever comes next, hook or health check, looks here: what waits
makes no hook ask Slurm, what is overtaken is dropped, and what failed is tried again ever more rarely.
"""

from __future__ import annotations

import zlib
from typing import Final, Iterable, Mapping

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.wish import HEALTH_CHECK, PlanInput
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import settled
from slurm_nvhc.model.protective import Intent
from slurm_nvhc.model.times import duration

RECOUNT: Final = "recount"
WITHDRAW: Final = "withdraw"

# What could not be done for a day is not done at all: whatever it was for is seen again
# or was dealt with (our judgement).
INTENT_AGE_NS: Final = 86400 * 10**9
# A job that was moved away is off this node for as long as it waits; after an hour it runs elsewhere or does not mind (our judgement).
_AGES_NS: Final[Mapping[str, int]] = {st.EXCLUDE_NODE: 3600 * 10**9}

# Back-off (our judgement): the first pause is longer than a slurmctld restart takes, the longest one
# still shorter than the time in which a person notices.
FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 3600.0
# A fault does not wait for one lost answer; a slurmctld that is down or hung is left in peace after so many (our judgement).
PROMPT_TRIES: Final = 3
SPREAD: Final = 0.25  # each way: a cluster's nodes, all turned away at once, do not come back at once
# An intent from the future was written by a clock that has been set back since: it does not wait for it.
_CLOCK_SLACK_NS: Final = 60 * 10**9


def age_ns(kind: str) -> int:
    """After how long an intent of this kind is dropped."""
    return _AGES_NS.get(kind, INTENT_AGE_NS)


def expired(intent: Intent, now_ns: int) -> str:
    """Why it is too old; '' when it is not."""
    age = age_ns(intent.kind)
    return f"it is older than {duration(age / 1e9)}" if now_ns - intent.since_ns > age else ""


def due(intent: Intent, now_ns: int) -> bool:
    """Whether it may be tried now."""
    return intent.next_ns <= now_ns or intent.since_ns > now_ns + _CLOCK_SLACK_NS


def waits(intent: Intent, now_ns: int) -> bool:
    """Whether it has to wait even where Slurm answers: a limit turned it away, or a job was given time.

    One that failed waits only so that hooks do not ask a Slurm that is down; it is done as soon as Slurm is heard from.
    """
    return not due(intent, now_ns) and bool(intent.limited or not intent.tries)


def unanswered(intent: Intent, now_ns: int, node: str) -> Intent:
    """After a try on which Slurm did nothing: the first few times a drain is tried by the next hook, at once."""
    if intent.kind == st.DRAIN and intent.tries < PROMPT_TRIES:
        return intent._replace(tries=intent.tries + 1, next_ns=now_ns)
    return postponed(intent, now_ns, node)


def postponed(intent: Intent, now_ns: int, node: str) -> Intent:
    """After a try that came to nothing."""
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(intent.tries, 20))
    return intent._replace(tries=intent.tries + 1, next_ns=now_ns + int(pause_s * _jitter(intent, node) * 1e9))


def _jitter(intent: Intent, node: str) -> float:
    """1 ± SPREAD; the same for the same try of the same intent on the same node."""
    text = "\0".join((node, intent.kind, intent.reason, str(intent.tries)))
    return 1 - SPREAD + 2 * SPREAD * zlib.crc32(text.encode("utf-8", "replace")) / 0xFFFFFFFF


def asleep(intents: Iterable[Intent], now_ns: int, urgent: bool = False) -> tuple[Intent, ...]:
    """Those that no hook asks Slurm for now. urgent: a job would start on the fault: only a limit keeps us from asking."""
    resting = (i for i in intents if not due(i, now_ns))
    return tuple(i for i in resting if i.limited or not (urgent and i.kind == st.DRAIN))


def held_back(intents: Iterable[Intent]) -> str:
    """The limit that keeps a drain from being placed, in words; '' = none does."""
    return next((i.limited for i in intents if i.kind == st.DRAIN and i.limited), "")


def overtaken(inp: PlanInput, intent: Intent) -> str:
    """Why an intent is not wanted any more; '' when it still is.

    slurmctld comes back after hours of maintenance to a whole cluster's intents: none may be
    carried out without another look.
    """
    own = inp.own
    # Not a younger one that happens to read the same; but an extension keeps the time of the drain that it extends.
    older = own is not None and (intent.since_ns <= own.set_ns or "; also " in intent.reason)
    if intent.kind == st.DRAIN and own is not None and own.confirmed and own.reason == intent.reason and older and not intent.limited:
        return "it was placed"  # and whoever wrote that down could not end the intent: killed, or the ledger failed
    old = expired(intent, inp.now_ns)
    if old or intent.kind != st.DRAIN:
        return old
    if intent.keys and all(_released(inp, key) for key in intent.keys):
        return "the GPU is excluded no more"
    if intent.policy != inp.policy.hash:
        # The policy was edited since. (The same policy asks still, be it by an overlay of another partition.)
        if inp.policy.mode == fd.OBSERVE:
            return "the policy is in observe mode now"
        if not any(_still_asked(inp, key) for key in intent.keys):
            return "no enforced rule asks for it any more"
    moments = settled.table(intent.idents).values()
    if intent.events and moments and max(moments) < inp.booted_ns:
        return "the node was rebooted since, which ends what the driver logged"
    known = settled.table(inp.settled)
    if intent.events and intent.idents and all(settled.covered(name, known) for name in intent.idents):
        return "what the driver logged was settled since"
    if intent.standing and inp.hook == HEALTH_CHECK and all(_seen_well(inp, key) for key in intent.keys):
        return "the fault does not show any more"
    return ""


def _released(inp: PlanInput, key: str) -> bool:
    code, _, uuid = key.partition(" ")
    return code == "GPU-EXCLUDED" and uuid not in inp.exclusions


def _seen_well(inp: PlanInput, key: str) -> bool:
    """Was what this key is about looked at now, and found ok? No data is no cure."""
    uuid = ent.gpu_of(key.partition(" ")[2])
    return uuid in inp.judged_ok if uuid else inp.decision.verdict == fd.OK and bool(inp.node_gpus)


def _still_asked(inp: PlanInput, key: str) -> bool:
    code, _, entity = key.partition(" ")
    if code == "GPU-EXCLUDED":
        return entity in inp.exclusions
    if entity.startswith("monitor:"):
        return inp.policy.monitor.action == fd.DRAIN
    return any(r.finding == code and r.mode == fd.ENFORCE and r.action in (fd.DRAIN, fd.NARROW) for r in inp.policy.rules.values())
