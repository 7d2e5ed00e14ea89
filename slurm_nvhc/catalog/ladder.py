"""The remediation ladder: what is done about a fault, from gentle to hard, by how often it came back. Data only.

The first time a fault shows, the first rung holds; each time it comes back on the same part the next one, until
the last. What the driver asks for at present (NVML's recovery action) counts where it is harder than the rung, and
an Xid's own bucket says where its ladder begins.

Sources: NVIDIA's GPU memory error management (resets, remaps, what is ground for an exchange), NVML's recovery
actions, the Xid catalogue's resolution buckets with its NVLink 5 part, the SXid table of the Fabric Manager guide;
what they leave open is our judgement, and practice: gpud has a GPU inspected once two reboots did not cure an Xid.
"""

from __future__ import annotations

import re
from typing import Final, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import nvlink5, sxids, xids

# Rungs, from gentle to hard
WATCH: Final = 0
RESET: Final = 1
REBOOT: Final = 2
FIELD: Final = 3
RMA: Final = 4

WORDS: Final[Mapping[int, str]] = {
    WATCH: "watch",
    RESET: "reset GPU",
    REBOOT: "reboot",
    FIELD: "reseat, field diagnostic",
    RMA: "exchange (RMA)",
}
# A switch is reset together with all GPUs, and sits on the baseboard.
SWITCH_WORDS: Final[Mapping[int, str]] = {**WORDS, RESET: "reset GPUs and switches", FIELD: "field diagnostic", RMA: "exchange baseboard (RMA)"}

# How far back a fault counts as the same one come back, in seconds: 30 d. Our judgement: longer than a repair and the
# proof of it take, shorter than two faults of independent origin lie apart.
COUNTED_S: Final = 30 * 86400.0

_MEMORY: Final = "vendor: GPU memory error management"
_XID: Final = "vendor: Xid catalogue"
_NVLINK5: Final = "vendor: Xid catalogue, NVLink 5 part"
_SXID: Final = "vendor: Fabric Manager guide, SXids"
_NVML: Final = "vendor: NVML recovery action"
_PRACTICE: Final = "practice: gpud inspects after two reboots"
_OURS: Final = "our judgement"


class Ladder(NamedTuple):
    """rungs: () when no rung would help; ``note`` then says why. begins: at the bucket of its Xid, SXid or recovery action."""

    code: str
    rungs: tuple[int, ...]
    source: str = _OURS
    note: str = ""
    begins: bool = False


_COOLING: Final = "cooling is to be looked at; the GPU protects itself"
_SETTING: Final = "a setting is to be put right"
_CABLE: Final = "cable, transceiver, port: none of the GPU's rungs helps"
_OUR_MEANS: Final = "trouble of our own means says nothing about a part"

ALL: Final = (
    Ladder("NVL-STORM", (RESET, FIELD, RMA), f"{_OURS}; DCGM: field diagnostic"),
    Ladder("NVL-REPLAY", (WATCH, FIELD, RMA)),
    Ladder("NVL-RECOVERY", (WATCH, FIELD, RMA)),
    Ladder("NVL-CRC", (WATCH, FIELD, RMA), f"{_OURS}; DCGM: field diagnostic"),
    Ladder("NVL-BER", (FIELD, RMA), _NVLINK5, "signal, cable and seating of both ends"),
    Ladder("NVL-SYMBOL", (WATCH, FIELD, RMA)),
    Ladder("NVL-ERRORS", (WATCH, FIELD, RMA)),
    Ladder("NVL-RECOVERY-FAILED", (RESET, FIELD, RMA), _NVLINK5),
    Ladder("NVL-FLAP", (WATCH, FIELD, RMA)),
    Ladder("NVL-DOWN", (RESET, REBOOT, FIELD, RMA), _OURS, "fabric manager first"),
    Ladder("MEM-UNCORRECTABLE", (RESET, FIELD, RMA), _MEMORY),
    Ladder("MEM-REMAP-FAILED", (FIELD, RMA), _MEMORY, "ground for an exchange once the field diagnostic agrees"),
    Ladder("MEM-REMAP-PENDING", (RESET,), _MEMORY, "when idle; one more row is no fault of the last reset"),
    Ladder("MEM-REMAPPED", (WATCH,), _MEMORY),
    Ladder("MEM-SRAM", (RMA,), _MEMORY),
    Ladder("MEM-UNREPAIRABLE", (FIELD, RMA), _MEMORY),
    Ladder("MEM-SPARES", (WATCH,), _MEMORY, "no ground for an exchange before a remap fails"),
    Ladder("MEM-CORRECTED", (WATCH,), _MEMORY),
    Ladder("MEM-RETIRED", (RESET, FIELD, RMA), _MEMORY),
    Ladder("GPU-LOST", (REBOOT, REBOOT, FIELD, RMA), f"{_XID} (79); {_PRACTICE}"),
    Ladder("GPU-RECOVERY", (RESET, REBOOT, FIELD, RMA), _NVML, begins=True),
    Ladder("GPU-SWAPPED", (), note="nothing is broken"),
    Ladder("GPU-NEW", (), note="nothing is broken"),
    Ladder("XID-FATAL", (RESET, REBOOT, REBOOT, FIELD, RMA), f"{_XID}; {_PRACTICE}", begins=True),
    Ladder("XID-CONTAINED", (WATCH, RESET, FIELD, RMA), f"{_XID}; {_MEMORY}", begins=True),
    Ladder("XID-NVLINK", (RESET, FIELD, RMA), _XID, "the peer that failed first", begins=True),
    Ladder("XID-NVLINK5", (WATCH, RESET, FIELD, RMA), _NVLINK5, begins=True),
    Ladder("XID-MEMORY", (WATCH, RESET, FIELD), f"{_XID}; {_MEMORY}", begins=True),
    Ladder("XID-APP", (WATCH,), _XID, "the application's; the GPU only where it follows the GPU across users"),
    Ladder("XID-OTHER", (WATCH,), _XID, "further only as far as the Xid's own buckets go", begins=True),
    Ladder("PCIE-REPLAY", (FIELD, RMA), _OURS, "riser and retimer too"),
    Ladder("PCIE-ERRORS", (FIELD, RMA), _OURS, "riser and retimer too"),
    Ladder("PCIE-WIDTH", (FIELD, RMA), _OURS, "riser too"),
    Ladder("PCIE-GEN", (FIELD, RMA), _OURS, "riser and BIOS too"),
    Ladder("THERMAL-SLOWDOWN", (), note=_COOLING),
    Ladder("THERMAL-MARGIN", (), note=_COOLING),
    Ladder("POWER-BRAKE", (), note="power supplies and chassis"),
    Ladder("POWER-CAP", (), note="normal under load"),
    Ladder("POWER-LIMIT", (), note=_SETTING),
    Ladder("CLOCK-LIMIT", (WATCH, FIELD, RMA)),
    Ladder("PEER-SLOW", (WATCH, FIELD, RMA)),
    Ladder("PEER-HOT", (), note=_COOLING),
    Ladder("PEER-POWER", (WATCH,), _OURS, "uneven work looks the same"),
    Ladder("PEER-THROTTLE", (), note="cooling and power feed"),
    Ladder("PEER-LINK", (WATCH, FIELD), _OURS, "uneven work looks the same"),
    Ladder("PEER-ERRORS", (WATCH, FIELD)),
    Ladder("FABRIC-STATE", (REBOOT, FIELD), _OURS, "fabric manager first"),
    Ladder("FABRIC-HEALTH", (RESET, REBOOT, FIELD), _OURS, "fabric manager, switches and partition first"),
    Ladder("SXID-FATAL", (RESET, REBOOT, RMA), _SXID, begins=True),
    Ladder("SXID-NONFATAL", (WATCH, FIELD), _SXID, begins=True),
    Ladder("SWITCH-LOST", (REBOOT, REBOOT, RMA), _OURS, "fabric manager first"),
    Ladder("SWITCH-RESET", (RESET, REBOOT, RMA), _SXID),
    Ladder("SWITCH-PORT", (RESET, REBOOT, FIELD), _OURS, "fabric manager first"),
    Ladder("SWITCH-ERRORS", (WATCH, FIELD, RMA), _OURS, "the link behind it first"),
    Ladder("SWITCH-TEMP", (), note=_COOLING),
    Ladder("RDMA-DOWN", (), note=_CABLE),
    Ladder("RDMA-NONE", (), note="the adapters' driver"),
    Ladder("RDMA-SLOW", (), note=_CABLE),
    Ladder("RDMA-FLAPS", (), note=_CABLE),
    Ladder("RDMA-ERRORS", (), note=_CABLE),
    Ladder("LEFT-MEMORY", (RESET, REBOOT), _OURS, "stuck processes first"),
    Ladder("LEFT-PROCESS", (), note="somebody's processes, no fault of the GPU"),
    Ladder("CONFIG-DRIFT", (), note=_SETTING),
    Ladder("CONFIG-POWER", (), note=_SETTING),
    Ladder("CONFIG-ECC", (RESET,), _OURS, "after ECC mode was set"),
    Ladder("CONFIG-PERSISTENCE", (), note=_SETTING),
    Ladder("CONFIG-CLOCKS", (), note=_SETTING),
    Ladder("GPU-EXCLUDED", (), note="see what it was excluded for"),
    Ladder("DCGM-HEALTH", (), note="evidence beside others, no finding of a part"),
    Ladder("DIAG-FAIL", (FIELD, RMA), _OURS, "DCGM's error says more"),
    Ladder("DIAG-SOFTWARE", (), note="the text says what to put right"),
    Ladder("DIAG-NO-RESULT", (), note="neither ok nor bad"),
    Ladder("DIAG-PASS", (), note="nothing is broken that it tests"),
    Ladder("SDC-DIGEST", (FIELD, RMA), _OURS, "run it again first"),
    Ladder("SITE-RULE", (), note="the site's own rule knows"),
    Ladder("NO-DATA", (), note="neither ok nor bad"),
    Ladder("NO-BASELINE", (), note="neither ok nor bad"),
    Ladder("COUNTER-RESET", (), note="nothing is broken"),
)
BY_CODE: Final[Mapping[str, Ladder]] = {row.code: row for row in ALL}

# The buckets of the Xid catalogue and of the SXid table. Those that are missing here say nothing about a part.
BUCKETS: Final[Mapping[str, int]] = {
    "IGNORE": WATCH,
    "RESTART_APP": WATCH,
    "RESTART_GUEST": WATCH,
    "CHECK_APP": WATCH,
    "RESET_GPU": RESET,
    "RESET_GPUS_AND_SWITCHES": RESET,
    "WORKFLOW_XID_48": RESET,  # alone or with 95: reset; with 94 the driver's own recovery action says otherwise
    "WORKFLOW_NVLINK_ERR": RESET,
    "RESTART_BM": REBOOT,
    "CHECK_MECHANICALS": FIELD,
    "CONTACT_SUPPORT": FIELD,
}
_NVLINK5_BUCKETS: Final[Mapping[str, int]] = {
    nvlink5.RESET: RESET, nvlink5.LOOK: FIELD, nvlink5.APP: WATCH, nvlink5.IGNORE: WATCH,
}  # fmt: skip

# NVML's recovery actions. None (0), drain P2P (3: stop what uses peer access, then the driver says more) and IMEX (5: a
# service) ask for nothing that is done to a part.
RECOVERY: Final[Mapping[int, int]] = {1: RESET, 2: REBOOT, 4: RESET, 6: RESET, 7: REBOOT}
# The Xid that says so in the log: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)".
ANNOUNCES: Final = 154
_ANNOUNCED: Final = re.compile(r"\bto 0x([0-9a-fA-F]{1,4})\b")


def ladder(code: str) -> Ladder:
    """The ladder of a code; one without rungs for codes of our own means, and for unknown ones."""
    return BY_CODE.get(code) or Ladder(code, (), note=_OUR_MEANS if code.startswith("MON-") else "not in the catalogue")


def rungs(code: str, kind: str = "", number: Optional[int] = None, text: str = "") -> tuple[int, ...]:
    """The rungs of a case. kind: "xid" or "sxid" with the event's number and line, "recovery" with the driver's action."""
    row = ladder(code)
    first, then = _buckets(kind, number, text) if row.begins and number is not None else (None, None)
    if first is None:
        return row.rungs
    out = tuple(r for r in row.rungs if r >= first)
    if not out or out[0] != first:
        out = (first, *out)
    return (*out, then) if then is not None and then > out[-1] else out


def _buckets(kind: str, number: Optional[int], text: str) -> tuple[Optional[int], Optional[int]]:
    """(the vendor's first rung, the one when it comes again); None where the vendor has no word for it."""
    if number is None:
        return None, None
    if kind == "recovery":
        return RECOVERY.get(number, WATCH), None
    announced = _ANNOUNCED.search(text) if number == ANNOUNCES else None
    if announced is not None:
        return RECOVERY.get(int(announced.group(1), 16), WATCH), None
    if kind == "sxid":
        switch = sxids.BY_NUMBER.get(number)
        return (BUCKETS.get(switch.action) if switch is not None else None), None
    decoded = nvlink5.decode(number, text)
    if decoded is not None:
        return _NVLINK5_BUCKETS.get(decoded.action), None
    row = xids.BY_NUMBER.get(number)
    return (BUCKETS.get(row.action), BUCKETS.get(row.then)) if row is not None else (None, None)


def word(rung: int, switch: bool = False) -> str:
    """A rung for people."""
    return (SWITCH_WORDS if switch else WORDS)[rung]
