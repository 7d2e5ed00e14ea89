"""What must survive anything: exclusions, our own drains, intents, holds, strikes, a pause.

Kept by record/ in the ledger and mirrored to a small file; planned by act/.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SUSPECTED: Final = "suspected"
EXCLUDED: Final = "excluded"
VERIFIED: Final = "verified"
NARROW: Final = "narrow"
QUARANTINE: Final = "quarantine"
RELEASED: Final = "released"
REPLACED: Final = "replaced"
CLEARED: Final = "cleared"


class Exclusion(NamedTuple):
    """A GPU that jobs must not get, by UUID. ``code`` is the finding that led to it.

    stage: "suspected" (observe mode: it would be excluded; nothing keeps it from jobs), "excluded", or "verified" (the fault
           was proven: only an administrator releases it, or another card takes its place).
    way:   how jobs are kept off it: "narrow" (hidden from each job) or "quarantine" (a placeholder job holds it).
    slot:  the GPU's PCI address when it was excluded: another card there ends the exclusion as "replaced".
    until_ns: a quarantine that is older than this becomes a drain; 0: no such moment.
    """

    uuid: str
    code: str
    why: str
    who: str  # "nvhc" or the administrator's name
    since_ns: int
    stage: str = EXCLUDED
    way: str = NARROW
    slot: str = ""
    until_ns: int = 0


class Ended(NamedTuple):
    """An exclusion that is over. how: "released", "replaced" or "cleared" (a suspicion that did not come true)."""

    exclusion: Exclusion
    how: str
    who: str
    why: str
    at_ns: int


class OwnDrain(NamedTuple):
    """A drain that we placed and nobody has ended yet as far as we know.

    reason: the exact text we set; idents: the events it answered; keys: "CODE entity" of its findings.
    confirmed: Slurm was seen to have it. standing: as in Intent.
    stamp:     who set it and when, as Slurm says it ("root@2026-12-01T12:00:00"), once it was seen; '' = not seen yet.
               Another stamp under the same reason is another drain, not ours.
    idle:      no job was on the node when it was placed, so none has ended there since.
    barred:    the node failed again too soon after we resumed it: only an administrator ends this drain.
    """

    reason: str
    set_ns: int
    confirmed: bool
    keys: tuple[str, ...] = ()
    idents: tuple[str, ...] = ()
    standing: bool = False
    stamp: str = ""
    barred: bool = False
    idle: bool = False


class Intent(NamedTuple):
    """Something decided that is to be done in Slurm or told: written down before it is tried.

    kind:     "drain", "resume", "quarantine", "reboot", "notify", "exclude_node",
              "recount" (our drain is placed, who else drained meanwhile is still to be counted),
              "withdraw" (our drain is beyond a limit and to be taken back)
    reason:   what makes it one: the drain's reason, the GPU's UUID, the text to tell, the job's id. One intent a (kind, reason).
    standing: it answers only states that every reading shows again (a failed row remap, a lost GPU):
              when a later reading does not show them, the intent is overtaken.
    events:   it answers only what the driver logged, which a reboot ends.
    policy:   hash of the policy that asked for it: as long as that is in force, it asks still.
    next_ns:  not tried before: back-off, or the grace that a job was given. 0: at once.
    limited:  the limit that keeps it from being done now, in words; '' = none did.
    gone:     stamp (OwnDrain.stamp) of this drain as it was placed and taken back by us: a node in service that still
              shows it (24.11 keeps reasons) tells nothing new. "?": Slurm gave no stamp. '' = was not taken back.
    """

    kind: str
    reason: str
    since_ns: int
    keys: tuple[str, ...] = ()
    idents: tuple[str, ...] = ()
    tries: int = 0
    standing: bool = False
    events: bool = False
    policy: str = ""
    next_ns: int = 0
    limited: str = ""
    gone: str = ""


class Hold(NamedTuple):
    """A placeholder job that holds a GPU. job_id: as Slurm names it ("812" or "812_3"); boot_id: the boot it was placed in."""

    uuid: str
    job_id: str
    since_ns: int
    boot_id: str = ""


class Strike(NamedTuple):
    """One deed that is counted. kind: "resume", "requeue", "reboot", "signal" against a limit, "fault" a drain or exclusion
    for it, "limit" that a limit was told; key: what it is counted for ('' = the node)."""

    kind: str
    key: str
    at_ns: int


class Pause(NamedTuple):
    """Maintenance: until then nothing is done on this node, only recorded."""

    until_ns: int
    why: str
    who: str
    since_ns: int
