"""The steps that a plan is made of."""

from __future__ import annotations

from typing import Final, NamedTuple

# Steps that change something, in Slurm or in what we remember
DRAIN: Final = "drain"  # set the node to drain with ``reason``
EXTEND: Final = "extend"  # the node is out by our own drain: give it the longer ``reason``
OWN: Final = "own"  # the node is out with exactly ``reason``, an intent of ours that was applied late
INTENT: Final = "intent"  # the node's state is unknown: remember the drain
END_INTENT: Final = "end_intent"  # the intent with ``reason`` is settled
END_OWN: Final = "end_own"  # our drain is over: somebody resumed the node or gave it another reason
ACCEPT: Final = "accept"  # events ``idents`` were answered by a drain that somebody ended: no new drain for them
EXCLUDE: Final = "exclude"  # GPU ``uuid`` is not to be seen by jobs from now on
NARROW: Final = "narrow"  # hide ``uuids`` from the job of this prolog
FAIL_JOB: Final = "fail_job"  # prolog only: the job must not run here
RESUME: Final = "resume"  # end our own drain
BAR: Final = "bar"  # our own drain has ended too often by itself: from now on only an administrator ends it
SUSPECT: Final = "suspect"  # observe mode: GPU ``uuid`` would be excluded
VERIFY: Final = "verify"  # the fault of the excluded GPU ``uuid`` was proven by an active test
NEW_SLOT: Final = "new_slot"  # excluded GPU ``uuid`` sits at ``slot`` now
END_EXCLUSION: Final = "end_exclusion"  # GPU ``uuid`` is released, replaced or cleared of a suspicion (``about``)
QUARANTINE: Final = "quarantine"  # have a placeholder job hold GPU ``uuid``
HOLD_LOST: Final = "hold_lost"  # the placeholder job that held GPU ``uuid`` is gone
UNHOLD: Final = "unhold"  # end the placeholder job that holds GPU ``uuid``
REQUEUE: Final = "requeue"  # prolog only: move this job to other nodes
EXCLUDE_NODE: Final = "exclude_node"  # keep the job that was moved away (``job``) off this node, and say so in its AdminComment
SIGNAL: Final = "signal"  # tell ``job`` to checkpoint
REBOOT: Final = "reboot"  # ask Slurm to reboot this node
RECOUNT: Final = "recount"  # our drain is placed: count who else drained meanwhile, and take it back when it is beyond a limit
ALERT: Final = "alert"  # a limit keeps us from acting
# Steps that only tell
KEEP: Final = "keep"  # the node is out already: state and reason are left as they are
NOTIFY: Final = "notify"
NOTE: Final = "note"


class Step(NamedTuple):
    """One step.

    reason: the drain reason; for exclude, narrow, requeue and signal the one to drain with if the step itself fails
    uuid:   exclude: the GPU;  uuids: narrow: the GPUs to hide
    why:    one sentence for people; for narrow also what the job's user is told
    keys, idents: what the step answers ("CODE entity", Event.ident)
    code:   exclude: the finding's code
    standing, events, policy: as in Intent
    stamp:  own: who set the drain and when, as Slurm says it; intent: Intent.gone
    about:  end_intent: the intent's kind ('' = drain); end_exclusion: how it ended; hold_lost: "reboot" when by that;
            exclude: "verified" where its fault was proven
    slot:   exclude, suspect, new_slot: the GPU's PCI address, '' when it is not known
    job:    requeue, exclude_node, signal: the job, as Slurm names it;  next_ns: intent: not before
    way:    exclude: narrow or quarantine; requeue: quarantine where the node is not drained for it
    soft:   what drains, or may fall back to it: only for suspicions (the smaller limit)
    """

    kind: str
    reason: str = ""
    uuid: str = ""
    why: str = ""
    keys: tuple[str, ...] = ()
    idents: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    code: str = ""
    standing: bool = False
    events: bool = False
    policy: str = ""
    about: str = ""
    way: str = "narrow"
    soft: bool = False
    job: str = ""
    next_ns: int = 0
    slot: str = ""
    stamp: str = ""
