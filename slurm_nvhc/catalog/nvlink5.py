"""NVLink 5 Xids (144 to 150): what their line says beyond the number. Pure; text and tables only.

One line of the driver: unit, severity, XC flag, injected flag, link, then hexadecimal words, the
interrupt information first and the unit's error status second:

    NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)

A link that went down (149) says why in bits 20 to 25 of the first word; 0x25 above.

Sources: the NVLink 5 part of NVIDIA's Xid catalogue (units, error status, reasons, buckets of action), with
lines of this form from its examples; the words of the reasons are the port diagnostics' list of NVIDIA's
networking firmware (PRM, "local reason opcode"). A line of another layout has no severity, which is never a fault.
"""

from __future__ import annotations

import re
from typing import Final, Mapping, NamedTuple, Optional

XIDS: Final = range(144, 151)
LINK_LAYER: Final = 149
ECHO: Final = 145  # of 64 GPUs of a rack one logged a fatal 149, and the 63 others only this (marin#9086)

# Severity as the line says it.
FATAL: Final = "fatal"
LINK_FATAL: Final = "link fatal"
NON_FATAL: Final = "non-fatal"

# What the vendor does about it; '' where the table has no row.
RESET: Final = "reset"
LOOK: Final = "look at signal and cable"
APP: Final = "the application"  # follow the Xid or the recovery action that comes with it
IGNORE: Final = "ignore"
_STRENGTH: Final = (IGNORE, APP, LOOK, RESET)

# Set in any unit's error status: the error was injected by software.
INJECTED: Final = 0x80000000


class Decoded(NamedTuple):
    """What a line of an NVLink 5 Xid says.

    unit:     the part of the link's logic, e.g. "NETIR_LINK_EVT"
    severity: fatal, link fatal or non-fatal
    link:     the number on this GPU; None when the line gives none
    status:   the unit's error status; None when the words are missing
    injected: a test by software, not an error
    action:   one of the words above, '' when the table does not know the status
    reason:   why a link went down, '' when the line does not say
    peer:     the reason blames the device at the far end
    """

    unit: str
    severity: str
    link: Optional[int]
    status: Optional[int]
    injected: bool = False
    action: str = ""
    reason: str = ""
    peer: bool = False

    @property
    def fatal(self) -> bool:
        """Is the link, or the GPU, unusable until a reset? The vendor's table outranks the word: where it asks for
        something else than a reset, the error is not fatal. Nor is an injected one."""
        return self.severity != NON_FATAL and not self.injected and self.action in (RESET, "")


# The whole layout is asked for: 15 characters of a process name, which users choose, can not hold it.
_LINE: Final = re.compile(
    r"(?:^|[\s,])(?P<unit>[A-Z][A-Z0-9_]{1,31})\s+(?P<severity>(?:Link[ -]?|Non-?)?Fatal)\s+XC[0-9]\s+i(?P<injected>[0-9])\s+"
    r"Link\s+(?P<link>-?[0-9]{1,3})(?:\s+\((?P<words>[0-9a-fA-Fx\s]{0,400})\))?",
    re.IGNORECASE,
)

# Why a link went down: bits 20 to 25 of the interrupt word.
REASON_SHIFT: Final = 20
REASON_MASK: Final = 0x3F
REASONS: Final[Mapping[int, str]] = {
    0x02: "high bit error rate",
    0x03: "block lock lost",
    0x04: "alignment lost",
    0x05: "FEC synchronisation lost",
    0x06: "PLL lock lost",
    0x07: "FIFO overflow",
    0x0A: "retransmission timed out",
    0x0B: "heartbeat errors",
    0x0C: "credit watchdog",
    0x0D: "integrity threshold exceeded",
    0x0E: "buffer overrun",
    0x0F: "taken down by command, link healthy",
    0x10: "taken down by command, high bit error rate",
    0x11: "taken down by command, link healthy",
    0x12: "taken down by command, high bit error rate",
    0x14: "remote fault received",
    0x15: "the far end started training",
    0x16: "taken down by management",
    0x17: "cable unplugged",
    0x19: "too hot",
    0x20: "the far end went to sleep",
    0x21: "the far end was disabled",
    0x22: "the far end was disabled and locked",
    0x23: "the far end was too hot",
    0x24: "the far end forced it down",
    0x25: "the far end was reset",
    0x26: "reset by software or a user",
    0x28: "taken down by the host",
    0x2A: "signal or cable",
    0x2B: "signal or cable",
}
# The catalogue's "investigate peer device": the far end took the link down, so the fault or the wish was there.
PEER_REASONS: Final = frozenset((0x15, *range(0x20, 0x26)))

# The catalogue's bucket for these is "ignore"; a reset is asked for after any other reason.
IGNORED_REASONS: Final = frozenset((0x26, 0x28))

# (Xid, beginning of the unit's name) -> bit of the error status -> action. Several bits: the strongest counts.
_BITS: Final[Mapping[tuple[int, str], Mapping[int, str]]] = {
    (144, ""): {0x1: IGNORE, 0x2: RESET, 0x4: IGNORE, 0x8: IGNORE, 0x10: RESET, 0x20: IGNORE},
    (145, "RLW_REMAP"): {**dict.fromkeys((0x1, 0x2, 0x4, 0x8, 0x10, 0x20), APP), 0x40: RESET, 0x80: RESET},
    (145, "RLW_RSPCOL"): {0x2: RESET},
    (145, "RLW_SRC_TRACK"): {0x1: RESET, 0x10: RESET, 0x20: RESET},
    (145, "RLW_TAGSTATE"): {0x2: RESET, 0x20000: RESET, 0x100000: RESET},
    (145, "RLW_RXPIPE"): {0x1: LOOK, 0x2: LOOK, 0x4: LOOK},
    (146, ""): {0x1: IGNORE, 0x2: APP, 0x4: RESET},
}
_WENT_DOWN: Final = "NETIR_LINK"
# (Xid, beginning of the unit's name) -> action whatever the status.
_UNITS: Final = (
    (148, "", IGNORE),
    (149, "NETIR_BER", LOOK),
    (149, _WENT_DOWN, RESET),
    (149, "NETIR_INT", RESET),
    (150, "", RESET),
)
_FIRMWARE: Final[Mapping[int, str]] = {1: RESET, 3: IGNORE, 4: RESET, 5: RESET, 7: RESET}  # 149 NETIR_MFDE


def decode(number: int, text: str) -> Optional[Decoded]:
    """What the text of an Xid line says, or None when the Xid is of another kind or the layout is not known.

    text: the line, or what follows the number in it. Never raises.
    """
    match = _LINE.search(text) if number in XIDS else None
    if match is None:
        return None
    unit = match["unit"].upper()
    words = _words(match["words"] or "")
    status = words[1] if len(words) > 1 else None
    injected = match["injected"] != "0" or (status is not None and bool(status & INJECTED))
    link = int(match["link"])
    reason = (words[0] >> REASON_SHIFT) & REASON_MASK if words and number == LINK_LAYER and unit.startswith(_WENT_DOWN) else None
    return Decoded(
        unit=unit,
        severity=_severity(match["severity"]),
        link=link if link >= 0 else None,
        status=status,
        injected=injected,
        action=IGNORE if reason in IGNORED_REASONS else _action(number, unit, status),
        reason=REASONS.get(reason, "") if reason is not None else "",
        peer=reason in PEER_REASONS,
    )


def _severity(word: str) -> str:
    lower = word.lower()
    if lower.startswith("non"):
        return NON_FATAL
    return LINK_FATAL if lower.startswith("link") else FATAL


def _words(text: str) -> list[int]:
    """The hexadecimal words up to the first that is none."""
    out: list[int] = []
    for part in text.split():
        try:
            out.append(int(part, 16))
        except ValueError:
            break
    return out


def _action(number: int, unit: str, status: Optional[int]) -> str:
    for (xid, beginning), bits in _BITS.items():
        if number == xid and unit.startswith(beginning) and status is not None:
            known = [action for bit, action in bits.items() if status & bit]
            return max(known, key=_STRENGTH.index, default="")
    if number == LINK_LAYER and unit.startswith("NETIR_MFDE"):
        return _FIRMWARE.get(status, "") if status is not None else ""
    return next((action for xid, beginning, action in _UNITS if number == xid and unit.startswith(beginning)), "")


def tell(decoded: Decoded) -> str:
    """For people: "link 5, fatal, NETIR_LINK_EVT: the far end was disabled; look at the far end first"."""
    said = [f"link {decoded.link}"] if decoded.link is not None else []
    said += [decoded.severity, decoded.unit + (f": {decoded.reason}" if decoded.reason else "")]
    text = ", ".join(said)
    if decoded.injected:
        return f"{text}; injected by software"
    return f"{text}; look at the far end first" if decoded.peer else text
