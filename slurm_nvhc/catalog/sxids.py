"""The SXid catalogue: what the NVSwitch driver's error numbers mean, and how far each reaches.

Source: the SXid table of NVIDIA's Fabric Manager user guide. Data only; what an SXid leads
to is the policy's business. Only switches that the host manages log SXids (HGX V100 to
H200): those of NVLink 5 systems are managed out of band.

Numbers that are missing here are kept by every consumer and shown as numbers.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

# How far an SXid reaches.
NON_FATAL: Final = "non-fatal"  # corrected, or one transfer was lost
FATAL: Final = "fatal"  # the link: jobs on its GPU, or every partition that crosses a trunk link
ALWAYS_FATAL: Final = "always-fatal"  # the whole fabric: every GPU of the node

_SINGLE_BIT: Final = "single-bit ECC error in the switch, corrected"


class SXid(NamedTuple):
    """One SXid.

    meaning: '' where it is not known here
    action:  the vendor's advice beyond watching, or beyond the reset that its class needs; ''
    """

    number: int
    klass: str
    meaning: str = ""
    action: str = ""


def _some(klass: str, numbers: tuple[int, ...], meaning: str = "", action: str = "") -> tuple[SXid, ...]:
    return tuple(SXid(n, klass, meaning, action) for n in numbers)


ALL: Final = (
    *_some(
        NON_FATAL,
        (11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071, 24001, 24002, 24003),
        _SINGLE_BIT,
    ),
    SXid(11004, NON_FATAL, "a request was refused by its access rights", "RESTART_GUEST"),
    SXid(12028, NON_FATAL, "a request left the switch with a privilege error", "RESTART_GUEST"),
    SXid(19084, NON_FATAL, "heartbeat timed out", "RESET_GPUS_AND_SWITCHES"),
    SXid(20001, NON_FATAL, "a link had to resend data (replay)"),
    *_some(NON_FATAL, (20009, 20012, 22013)),
    *_some(
        FATAL,
        (10001, 10002, 10004, 10005, 11001, 11009, 11013, 11018, 11019, 11020, 12001, 12002, 12022, 12024, 12025, 12026, 12027, 12030,
         12031, 12032, 14017, 15001, 15006, 15009, 15010, 15012, 15013, 19047, 19048, 19054, 19056, 19058, 19060, 19061, 19063, 19064,
         19066, 19067, 19069, 19070, 24004, 24005, 24006, 24007),
    ),
    SXid(20034, FATAL, "fault of the link's state machine: the link is down"),
    *_some(ALWAYS_FATAL, (10003, 12020, 22003, 22011, *range(23001, 23018)), action="RESTART_BM"),
)  # fmt: skip

BY_NUMBER: Final[Mapping[int, SXid]] = {x.number: x for x in ALL}

_REACH: Final = {
    NON_FATAL: "error that the switch got over",
    FATAL: "fatal error of a link: its jobs are lost",
    ALWAYS_FATAL: "fatal error of the whole fabric: every GPU of the node is hit",
}


def is_fatal(number: int) -> bool:
    """The table's word, for lines that have none of their own. An unknown number is not known to be fatal."""
    known = BY_NUMBER.get(number)
    return known is not None and known.klass != NON_FATAL


def meaning(number: int) -> str:
    """What a number means, in words; says so when it is not in the catalogue."""
    known = BY_NUMBER.get(number)
    if known is None:
        return "not in the catalogue"
    return known.meaning or _REACH[known.klass]
