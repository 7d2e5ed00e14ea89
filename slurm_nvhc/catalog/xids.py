"""The Xid catalogue: what the driver's error numbers mean, and who usually causes them.

Sources: NVIDIA's Xid catalogue (R580 edition, later driver notes for 173 and up) for
meaning, ``action`` and ``then``; DCGM 4.6's health module for ``health``; gpud's own table
for ``checker``. They disagree, which is data too. What an Xid leads to is the policy's business.

Numbers that are missing here are kept by every consumer and shown as numbers: new
drivers bring new ones.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

# Classes that the default policy has rules for.
FATAL: Final = "fatal"  # the GPU is gone from the bus
GSP: Final = "gsp"  # the GPU's system processor failed: a reset is needed
MEMORY_FATAL: Final = "memory-fatal"  # data was lost, or a repair could not be made
CONTAINED: Final = "contained"  # data was lost, one application paid for it
NVLINK: Final = "nvlink"  # fatal NVLink error, generation 4 and older
MEMORY_INFO: Final = "memory-info"  # repaired, or a rate worth watching
APP: Final = "app"  # usually the application's own doing

# Who is at fault
YES: Final = "yes"
OFTEN: Final = "often"
MAYBE: Final = "maybe"
NO: Final = "no"
SYMPTOM: Final = "symptom"  # follows something else: look for the Xid before it


class Xid(NamedTuple):
    """One Xid.

    klass:     one of the classes above, or the part concerned for those without a rule of their own
    app_fault: yes, often, maybe, no or symptom
    action:    the vendor's bucket for the first reaction; '' when the catalogue gives none
    note:      what to look at, or which site does otherwise
    then:      the vendor's bucket when it comes again; ''
    health:    what DCGM's own health check makes of it: fail, warn or ''
    checker:   what a public node checker (gpud) does: reboot, inspect, reboot+inspect, check application, ignore or ''
    """

    number: int
    meaning: str
    klass: str
    app_fault: str = NO
    action: str = ""
    note: str = ""
    then: str = ""
    health: str = ""
    checker: str = ""

    @property
    def disputed(self) -> bool:
        """Do the sources disagree on whether the GPU may go on: the vendor lets it, a checker reboots or DCGM's health fails?"""
        return self.action in ("IGNORE", "RESTART_APP") and ("reboot" in self.checker or self.health == "fail")


_COPY: Final = tuple(
    Xid(n, "copy engine exception", "engine", MAYBE, "RESTART_APP")
    for n in (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
)

_ROWS: Final = (
    Xid(8, "a channel made no progress in time", "engine", MAYBE, "RESTART_APP"),
    Xid(11, "push buffer with invalid content", "engine", OFTEN, "RESTART_APP"),
    Xid(13, "exception in a graphics or compute engine (illegal instruction or address)", APP, YES, "RESTART_APP",
        "hardware only where it follows the GPU across users"),
    Xid(25, "illegal push buffer notification", "engine", OFTEN, "RESTART_APP"),
    Xid(31, "access to memory that is not mapped or not permitted", APP, YES, "RESTART_APP",
        "DCGM health counts it as a memory warning; the vendor's catalogue as the application's"),
    Xid(32, "push buffer damaged on its way", "engine", MAYBE, "RESTART_APP", "also seen with PCIe corruption"),
    Xid(37, "front-end firmware met an unknown method", "driver", MAYBE, "IGNORE"),
    Xid(38, "front-end firmware watchdog", "driver", NO, "IGNORE"),
    *_COPY,
    Xid(43, "channel reset after the application's own error", APP, YES, "IGNORE",
        "DCGM health counts it as a memory warning"),
    Xid(44, "engine fault during a context switch", "driver", NO, "IGNORE"),
    Xid(45, "channels torn down early (another Xid, an interrupt, out of memory)", APP, SYMPTOM, "WORKFLOW_XID_45"),
    Xid(46, "GPU hung, an engine did not answer", "hang", NO, "RESET_GPU"),
    Xid(48, "uncorrectable (double-bit) memory error", MEMORY_FATAL, NO, "WORKFLOW_XID_48", "together with 94 only one application is hit"),
    Xid(54, "auxiliary power cable missing", "power", NO, "CHECK_MECHANICALS"),
    Xid(56, "display engine error", "legacy", NO, "CONTACT_SUPPORT", "not used on datacentre GPUs"),
    Xid(57, "frame buffer link training failed", "legacy", NO, "CONTACT_SUPPORT", "old GPUs"),
    Xid(58, "frame buffer memory error", "legacy", NO, "CONTACT_SUPPORT", "old GPUs"),
    Xid(60, "video processor exception", "engine", MAYBE, "RESTART_APP", "DCGM health files it under heat; it is not about heat"),
    Xid(61, "power management controller breakpoint", "legacy", NO, "CONTACT_SUPPORT", "older text: a micro-controller warning"),
    Xid(62, "power management controller halted", "firmware", NO, "RESET_GPU", "DCGM health files it under heat; it is not about heat"),
    Xid(63, "a memory repair was recorded: row remap, or page retirement before Ampere", MEMORY_INFO, NO, "IGNORE",
        "run on, reset when idle"),
    Xid(64, "a memory repair could not be recorded", MEMORY_FATAL, NO, "RESET_GPU"),
    Xid(66, "illegal register access by the driver", "driver", NO, "IGNORE"),
    Xid(67, "illegal access by the driver, found in verification", "driver", NO, "IGNORE", "DCGM health files it under NVLink"),
    Xid(68, "video decoder exception", "engine", OFTEN, "RESTART_APP"),
    Xid(69, "graphics class error", "engine", YES, "RESTART_APP"),
    Xid(73, "video encoder error", "legacy", MAYBE, "CONTACT_SUPPORT", "DCGM health files it under NVLink; the catalogue under the encoder"),
    Xid(74, "fatal NVLink error (generation 4 and older)", NVLINK, NO, "WORKFLOW_NVLINK_ERR",
        "link, or the device at its far end: an echo where a peer logged 79 first"),
    Xid(78, "vGPU did not start", "driver", NO, "UPDATE_SWFW"),
    Xid(79, "the GPU has fallen off the bus", FATAL, NO, "RESTART_BM"),
    Xid(80, "push buffer checksum mismatch", "bus", MAYBE, "RESTART_APP"),
    Xid(92, "high rate of corrected memory errors", MEMORY_INFO, NO, "IGNORE"),
    Xid(93, "InfoROM was written too often", "firmware", NO, "IGNORE"),
    Xid(94, "contained uncorrectable memory error: one application was ended", CONTAINED, NO, "RESTART_APP",
        "sources range from ignore to isolate; one per day and GPU is tolerated by design"),
    Xid(95, "uncontained uncorrectable memory error: every application on the GPU is hit", MEMORY_FATAL, NO, "RESET_GPU"),
    Xid(106, "test message of the out-of-band interface", "test", NO, "IGNORE"),
    Xid(109, "context switch timed out", "hang", MAYBE, "RESET_GPU", "some sites ignore it, the vendor resets"),
    Xid(110, "security fault", "security", NO, "RESET_GPU"),
    Xid(119, "GSP firmware did not answer a call", GSP, NO, "RESET_GPU", "the engine stops all driver calls once it saw one"),
    Xid(120, "GSP firmware error", GSP, NO, "RESET_GPU"),
    Xid(121, "corrected error on the link between CPU and GPU", "c2c", NO, "IGNORE"),
    Xid(122, "firmware flash could not be read", "firmware", NO, "CONTACT_SUPPORT", "listed as unused"),
    Xid(123, "firmware flash could not be written", "firmware", NO, "CONTACT_SUPPORT", "listed as unused"),
    Xid(124, "firmware flash could not be erased", "firmware", NO, "CONTACT_SUPPORT", "listed as unused"),
    Xid(125, "InfoROM file system error", "firmware", NO, "CONTACT_SUPPORT", "listed as unused"),
    Xid(136, "NVLink training failed at start", "nvlink-training", NO, "RESET_GPU"),
    Xid(137, "the GPU refused a remote access over NVLink", "nvlink-access", OFTEN, "IGNORE", "usually an error of the peer's application"),
    Xid(140, "memory error that escaped normal handling", MEMORY_FATAL, NO, "RESET_GPU"),
    Xid(141, "CUDA fast path error", "driver", MAYBE, "IGNORE"),
    Xid(143, "the GPU failed to initialise", "init", NO, "RESET_GPU"),
    Xid(144, "NVLink 5: SAW unit", "nvlink5", NO, "WORKFLOW_NVLINK5_ERR"),
    Xid(145, "NVLink 5: RLW unit", "nvlink5", NO, "WORKFLOW_NVLINK5_ERR", "often an echo of another node's fault"),
    Xid(146, "NVLink 5: TLW unit", "nvlink5", NO, "WORKFLOW_NVLINK5_ERR"),
    Xid(147, "NVLink 5: TREX unit", "nvlink5", NO, "WORKFLOW_NVLINK5_ERR", "not in production"),
    Xid(148, "NVLink 5: NVLPW unit", "nvlink5", NO, "WORKFLOW_NVLINK5_ERR"),
    Xid(149, "NVLink 5: link layer (bit errors, link down, firmware)", "nvlink5", NO, "WORKFLOW_NVLINK5_ERR",
        "severity, link and the end at fault are in the text"),
    Xid(150, "NVLink 5: firmware watchdog", "nvlink5", NO, "WORKFLOW_NVLINK5_ERR"),
    Xid(151, "confidential computing: key rotation failed", "security", NO, "RESTART_VM"),
    Xid(154, "the recommended recovery action changed", "advice", NO, "XID_154", "the new action is in the text; the recovery action field shows it too"),
    Xid(155, "NVLink error defined by software", "nvlink-software", NO, "RESET_GPU"),
    Xid(156, "an on-die resource was retired", "retirement", NO, "RESET_GPU"),
    Xid(157, "retiring an on-die resource failed", "retirement", NO, "IGNORE"),
    Xid(158, "fatal timeout inside the GPU", "hang", NO, "RESET_GPU"),
    Xid(159, "coherent interface error without data loss", "c2c", MAYBE, "CHECK_UVM"),
    Xid(160, "a memory channel was retired", "retirement", NO, "IGNORE"),
    Xid(161, "retiring a memory channel failed", "retirement", NO, "IGNORE"),
    Xid(162, "power smoothing is on again", "power"),
    Xid(163, "power smoothing is off", "power"),
    Xid(164, "power smoothing is near the end of its life", "power"),
    Xid(165, "power smoothing is at the end of its life", "power"),
    Xid(166, "confidential computing: unencrypted NVLink traffic before the link was ready", "security"),
    Xid(167, "fatal PCIe timeout", "bus"),
    Xid(168, "errors in a protected memory region: less memory is offered", "retirement", note="a table for newer drivers reboots for it"),
    Xid(169, "security micro-controller halted", "firmware"),
    Xid(170, "interrupt seen in confidential mode", "security", MAYBE),
    Xid(171, "detail of a 48: device memory", "detail"),
    Xid(172, "detail of a 48: on-chip memory", "detail"),
    Xid(173, "fatal error on the link between CPU and GPU", "c2c"),
    Xid(174, "a process was ended silently", "advice"),
    Xid(175, "memory subsystem", "memory"),
    Xid(176, "correctable PCIe fault", "bus"),
    Xid(185, "memory sparing", "memory"),
)

_COPY_ENGINES: Final = tuple(x.number for x in _COPY)
_THEN: Final[Mapping[str, tuple[int, ...]]] = {
    "CONTACT_SUPPORT": (8, *_COPY_ENGINES, 38, 43, 44, 46, 54, 62, 64, 67, 68, 74, 79, 92, 93, 109, 121, 140, 141, 143, 151, 157, 158),
    "CHECK_APP": (11, 25, 32, 37, 69, 80),
    "INVESTIGATE_SW": (60, 66, 110, 119, 120, 155, 160, 161),
    "INVESTIGATE_LINK_SI": (136,),
    "UPDATE_SWFW": (78,),
    "WORKFLOW_XID_13": (13,),
    "WORKFLOW_XID_31": (31,),
    "WORKFLOW_XID_48": (48,),
    "WORKFLOW_NVLINK5_ERR": tuple(range(144, 151)),
    "XID_137_FLOW": (137,),
    "RESTART_FM": (45,),  # alone; with another Xid: follow that one
    "SYMPATHETIC_REPORT_SOLO": (159,),
    "IGNORE": (63, 94, 95, 106, 156),
}  # fmt: skip
_HEALTH: Final[Mapping[str, tuple[int, ...]]] = {
    "fail": (48, 64, 74, 79, 95, 119, 120, 140),
    "warn": (31, 32, 38, 39, 43, 54, 56, 57, 58, 60, 61, 62, 63, 67, 73, 78, 93, 94, 121, 137),
}
_CHECKER: Final[Mapping[str, tuple[int, ...]]] = {
    "reboot+inspect": (32, 38, 44, 48, 62, 63, 64, 68, 69, 74, 79, 95, 110, 119, 120, 121, 123, 140),
    "reboot": (46, 60, 61, 78, 94, *range(144, 152), 155, 156, 158, 163, 166, 167, 169, 172),
    "inspect": (143,),
    "check application": (13, 31, 43, 137, 170),
    "ignore": (45, 92),
}


def _in(table: Mapping[str, tuple[int, ...]], number: int) -> str:
    return next((word for word, numbers_ in table.items() if number in numbers_), "")


ALL: Final = tuple(
    x._replace(then=_in(_THEN, x.number), health=_in(_HEALTH, x.number), checker=_in(_CHECKER, x.number)) for x in _ROWS
)

BY_NUMBER: Final[Mapping[int, Xid]] = {x.number: x for x in ALL}

# Where the driver says nothing of its own, the kernel's line without a number means this one.
FALLEN_OFF_BUS: Final = 79


def numbers(klass: str) -> tuple[int, ...]:
    """The numbers of one class, ascending; () for a class without any."""
    return tuple(sorted(x.number for x in ALL if x.klass == klass))


def meaning(number: int) -> str:
    """What a number means, in words; says so when it is not in the catalogue."""
    known = BY_NUMBER.get(number)
    return known.meaning if known else "not in the catalogue"
