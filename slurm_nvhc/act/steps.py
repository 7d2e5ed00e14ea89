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
# Steps that only tell
KEEP: Final = "keep"  # the node is out already: state and reason are left as they are
NOTIFY: Final = "notify"
NOTE: Final = "note"


class Step(NamedTuple):
    """One step.

    reason: the drain reason; for exclude and narrow the one to drain with if the step itself fails
    uuid:   exclude: the GPU;  uuids: narrow: the GPUs to hide
    why:    one sentence for people; for narrow also what the job's user is told
    keys, idents: what the step answers ("CODE entity", Event.ident)
    code:   exclude: the finding's code
    standing, events, policy: as in Intent
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
