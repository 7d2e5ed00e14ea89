"""What must survive anything: exclusions, our own drains, intents.

Kept by record/ in the ledger and mirrored to a small file; planned by act/.
"""

from __future__ import annotations

from typing import NamedTuple


class Exclusion(NamedTuple):
    """A GPU that jobs must not see, by UUID. ``code`` is the finding that led to it."""

    uuid: str
    code: str
    why: str
    who: str  # "nvhc" or the administrator's name
    since_ns: int


class OwnDrain(NamedTuple):
    """A drain that we placed and nobody has ended yet as far as we know.

    reason: the exact text we set; idents: the events it answered; keys: "CODE entity" of its findings.
    confirmed: Slurm was seen to have it. standing: as in Intent.
    """

    reason: str
    set_ns: int
    confirmed: bool
    keys: tuple[str, ...] = ()
    idents: tuple[str, ...] = ()
    standing: bool = False


class Intent(NamedTuple):
    """Something decided that could not be done yet. kind: "drain".

    standing: it answers only states that every reading shows again (a failed row remap, a lost GPU):
              when a later reading does not show them, the intent is overtaken.
    events:   it answers only what the driver logged, which a reboot ends.
    policy:   hash of the policy that asked for it: as long as that is in force, it asks still.
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
