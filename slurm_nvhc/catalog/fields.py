"""The field catalogue: every reading that a snapshot can hold.

Facts per field: DCGM's numeric field id (ids are stable over versions, names
are not), scope, kind, unit, what clears it, and on which GPUs it exists.
Sources: NVIDIA DCGM's dcgm_fields.h (2.1 to 4.6) for ids and types, the NVML
header for counter direction and clearing, NVIDIA's GPU memory error management
guide for ECC and row remapping.

Kinds:
  counter  only grows until something in ``cleared_by`` clears it
  gauge    a number with a meaning of its own at any moment
  flag     0 or 1
  state    an enumerated value; a number with ``words``, or a word
"""

from __future__ import annotations

import fnmatch
from typing import Final, Mapping, NamedTuple, Optional

# Scopes: what a reading belongs to. GPU and LINK are a GPU's own; the others are *parts* of the node
# (Snapshot.parts): an NVSwitch, one of its ports, a port of an RDMA device, the node itself.
GPU: Final = "gpu"
LINK: Final = "link"
SWITCH: Final = "switch"
SWITCH_PORT: Final = "switch_port"
RDMA: Final = "rdma"
NODE: Final = "node"
PART_SCOPES: Final = (SWITCH, SWITCH_PORT, RDMA, NODE)

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
FLAG: Final = "flag"
STATE: Final = "state"

# What clears a counter. A reboot implies a driver reload, which implies a GPU reset.
GPU_RESET: Final = "gpu_reset"
DRIVER_RELOAD: Final = "driver_reload"
REBOOT: Final = "reboot"
VOLATILE: Final = frozenset({GPU_RESET, DRIVER_RELOAD, REBOOT})
NEVER: Final[frozenset[str]] = frozenset()


class Field(NamedTuple):
    """One reading.

    dcgm_id:   field id on a GPU entity; None for fields that DCGM has no id for
    link_ids:  per-link field ids on the GPU entity (NVLink <= 4), index = link number
    link_entity_id: the same figure on LINK entities (DCGM 4.6)
    cleared_by: subset of {gpu_reset, driver_reload, reboot}
    generations: where the field is expected to exist; elsewhere it reads not_supported
    absent_on: shell patterns of whole GPU model names on which the field is known not to exist, see exists_on
    shrinks:   a counter that may go back by itself (then a decrease is no reset)
    with_mig:  False: not to be had while the GPU is in MIG mode
    """

    name: str
    scope: str
    kind: str
    unit: str
    label: str
    dcgm_id: Optional[int] = None
    link_ids: tuple[int, ...] = ()
    link_entity_id: Optional[int] = None
    cleared_by: frozenset[str] = NEVER
    generations: str = "all"
    words: Mapping[int, str] = {}
    shrinks: bool = False
    absent_on: tuple[str, ...] = ()
    with_mig: bool = True


# Per-link ids are not contiguous: L0-L5, L6-L11 and L12-L17 were added at different times.
_FLIT = (400, 401, 402, 403, 404, 405, 451, 452, 453, 454, 455, 456, 406, 407, 408, 481, 482, 483)
_DATA = (410, 411, 412, 413, 414, 415, 457, 458, 459, 460, 461, 462, 416, 417, 418, 484, 485, 486)
_REPLAY = (420, 421, 422, 423, 424, 425, 463, 464, 465, 466, 467, 468, 426, 427, 428, 487, 488, 489)
_RECOVERY = (430, 431, 432, 433, 434, 435, 469, 470, 471, 472, 473, 474, 436, 437, 438, 491, 492, 493)

_NVLINK4 = "V100 to H200 (NVLink 2 to 4); not on NVLink 5"
_HBM = "A100 and newer; not with MIG on"

# Models by NVML's name. Some engines read a field that a board does not have as blank instead of
# not_supported (eks-node-monitoring-agent#245: row remap on boards before Ampere), so the name decides.
# NVIDIA dropped the brands Tesla and Quadro with Ampere. A name that is in no list has the field.
_BEFORE_AMPERE = (
    "*Tesla K*", "*Tesla M*", "*Tesla P*", "*Tesla T*", "*Tesla V*",
    "*Quadro *", "*TITAN *", "*GeForce GTX *", "*GeForce RTX 20*",
)  # fmt: skip
_FROM_AMPERE = (
    "A100*", "NVIDIA A[0-9]*", "NVIDIA H[0-9]*", "NVIDIA GH[0-9]*", "NVIDIA L[0-9]*", "NVIDIA B[0-9]*", "NVIDIA GB[0-9]*",
    "NVIDIA RTX *", "*GeForce RTX [3-9]0*",
)  # fmt: skip
_NVLINK5 = ("*B100*", "*B200*", "*B300*")  # GB200 and GB300 included

RECOVERY_ACTIONS: Final = {
    0: "none",
    1: "GPU reset",
    2: "node reboot",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover IMEX domain",  # 5 to 7: newer NVML only
    6: "bus reset",
    7: "system reboot",
}
FABRIC_STATES: Final = {
    0: "not supported",
    1: "not started",
    2: "in progress",
    3: "success",
    4: "failure",
    5: "unrecognised",
    6: "NVML too old",
}

ALL: Final = (
    # NVLink up to generation 4, per link. Replay and recovery count at the transmitting
    # end, CRC at the receiving end (NVML header).
    Field("nvlink_crc_flit", LINK, COUNTER, "errors", "CRC flit", None, _FLIT, 1525, VOLATILE, _NVLINK4, absent_on=_NVLINK5),
    Field("nvlink_crc_data", LINK, COUNTER, "errors", "CRC data", None, _DATA, 1526, VOLATILE, _NVLINK4, absent_on=_NVLINK5),
    Field("nvlink_replay", LINK, COUNTER, "errors", "replay", None, _REPLAY, 1527, VOLATILE, _NVLINK4, absent_on=_NVLINK5),
    Field("nvlink_recovery", LINK, COUNTER, "errors", "recovery", None, _RECOVERY, 1528, VOLATILE, _NVLINK4, absent_on=_NVLINK5),
    # Not a field of DCGM: its NVLink status call gives one state per link.
    Field("nvlink_state", LINK, STATE, "", "link state", generations="V100 and newer"),
    Field("nvlink_crc_flit_total", GPU, COUNTER, "errors", "CRC flit", 409, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5),
    Field("nvlink_crc_data_total", GPU, COUNTER, "errors", "CRC data", 419, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5),
    Field("nvlink_replay_total", GPU, COUNTER, "errors", "replay", 429, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5),
    Field("nvlink_recovery_total", GPU, COUNTER, "errors", "recovery", 439, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5),
    # ECC
    Field("ecc_mode", GPU, FLAG, "", "ECC mode", 300),
    Field("ecc_sbe_volatile", GPU, COUNTER, "errors", "corrected ECC", 310, cleared_by=VOLATILE),
    Field("ecc_dbe_volatile", GPU, COUNTER, "errors", "uncorrectable ECC", 311, cleared_by=VOLATILE),
    Field("ecc_sbe_aggregate", GPU, COUNTER, "errors", "corrected ECC, lifetime", 312),
    Field("ecc_dbe_aggregate", GPU, COUNTER, "errors", "uncorrectable ECC, lifetime", 313),
    Field("sram_threshold_exceeded", GPU, FLAG, "", "SRAM error threshold exceeded", 346, generations="Ampere and newer", absent_on=_BEFORE_AMPERE),
    # Retired pages (before Ampere) and row remapping (from Ampere)
    Field("retired_pages_sbe", GPU, COUNTER, "pages", "pages retired, corrected", 390, generations="V100 and older", absent_on=_FROM_AMPERE),
    Field("retired_pages_dbe", GPU, COUNTER, "pages", "pages retired, uncorrectable", 391, generations="V100 and older", absent_on=_FROM_AMPERE),
    Field("retired_pages_pending", GPU, FLAG, "", "page retirement pending", 392, cleared_by=VOLATILE, generations="V100 and older", absent_on=_FROM_AMPERE),
    Field("remapped_rows_uncorrectable", GPU, COUNTER, "rows", "rows remapped, uncorrectable", 393, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    # May fall: a corrected row can be evicted to free a spare for an uncorrectable one.
    Field("remapped_rows_correctable", GPU, COUNTER, "rows", "rows remapped, corrected", 394, generations=_HBM, shrinks=True, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("row_remap_failure", GPU, FLAG, "", "row remap failed", 395, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("row_remap_pending", GPU, FLAG, "", "row remap pending", 396, cleared_by=frozenset({GPU_RESET, REBOOT}), generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    # PCIe. 202 is 32 bit in NVML and may wrap: a decrease is read as a reset.
    Field("pcie_replay", GPU, COUNTER, "replays", "PCIe replay", 202, cleared_by=VOLATILE),
    Field("pcie_max_gen", GPU, GAUGE, "generation", "PCIe generation possible", 235),
    Field("pcie_max_width", GPU, GAUGE, "lanes", "PCIe width possible", 236),
    Field("pcie_gen", GPU, GAUGE, "generation", "PCIe generation", 237),  # falls to 1 when idle
    Field("pcie_width", GPU, GAUGE, "lanes", "PCIe width", 238),
    # Temperatures and their limits
    Field("gpu_temp", GPU, GAUGE, "°C", "GPU temperature", 150),
    Field("memory_temp", GPU, GAUGE, "°C", "memory temperature", 140, generations="HBM parts"),
    Field("gpu_temp_margin", GPU, GAUGE, "°C", "degrees left before slowdown", 153, generations="Hopper and newer"),
    Field("gpu_temp_slowdown", GPU, GAUGE, "°C", "slowdown limit", 158, generations="may be not_supported where 153 exists"),
    Field("gpu_temp_shutdown", GPU, GAUGE, "°C", "shutdown limit", 159, generations="may be not_supported where 153 exists"),
    Field("memory_max_op_temp", GPU, GAUGE, "°C", "memory temperature limit", 151, generations="HBM parts"),
    # Clocks and power. Violation times are ns since driver load.
    Field("sm_clock", GPU, GAUGE, "MHz", "SM clock", 100),
    Field("clock_event_reasons", GPU, GAUGE, "bit mask", "clock event reasons", 112),
    Field("power_usage", GPU, GAUGE, "W", "power", 155),
    Field("power_limit_enforced", GPU, GAUGE, "W", "enforced power limit", 164),
    Field("power_limit_default", GPU, GAUGE, "W", "default power limit", 163),
    Field("power_violation_ns", GPU, COUNTER, "ns", "time below clocks for power", 240, cleared_by=VOLATILE),
    Field("thermal_violation_ns", GPU, COUNTER, "ns", "time below clocks for heat", 241, cleared_by=VOLATILE),
    Field("hw_thermal_slowdown_ns", GPU, COUNTER, "ns", "time in hardware thermal slowdown", 1423, cleared_by=VOLATILE, generations="driver R560 and newer"),
    Field("power_brake_ns", GPU, COUNTER, "ns", "time in power brake", 1424, cleared_by=VOLATILE, generations="driver R560 and newer"),
    # What the vendor says to do, and the fabric
    Field("recovery_action", GPU, STATE, "", "recovery action", 1523, generations="driver R550 and newer, DCGM 4.5 and newer", words=RECOVERY_ACTIONS),
    Field("fabric_state", GPU, STATE, "", "fabric state", 170, generations="HGX H100 and newer", words=FABRIC_STATES),
    Field("fabric_error", GPU, STATE, "", "fabric error", 171, generations="HGX H100 and newer"),
)

BY_NAME: Final[Mapping[str, Field]] = {f.name: f for f in ALL}


def of_links(field: Field) -> bool:
    """Is it about NVLinks: one link's reading, or the GPU's total over them?"""
    return field.scope == LINK or field.name.startswith("nvlink_")


def exists_on(field: Field, model: str, mig: bool = False) -> bool:
    """False when GPUs of this model (NVML's name), or in MIG mode, are known not to have the field; True for all others, and for ''.

    Where it is False, a blank reading means "does not apply", not "could not be had".
    """
    if mig and not field.with_mig:
        return False
    return not any(fnmatch.fnmatchcase(model, pattern) for pattern in field.absent_on)


# Link states, as DCGM's NVLink status call names them.
LINK_STATES: Final = ("up", "down", "disabled", "not_supported")

# clock_event_reasons bits (NVML clocks event reasons)
CLOCK_HW_SLOWDOWN: Final = 0x8
CLOCK_SW_THERMAL: Final = 0x20
CLOCK_HW_THERMAL: Final = 0x40
CLOCK_POWER_BRAKE: Final = 0x80


def _ids() -> dict[int, tuple[str, Optional[int]]]:
    table: dict[int, tuple[str, Optional[int]]] = {}
    for field in ALL:
        if field.dcgm_id is not None:
            table[field.dcgm_id] = (field.name, None)
        for number, field_id in enumerate(field.link_ids):
            table[field_id] = (field.name, number)
    return table


# DCGM field id -> (catalogue name, link number or None)
BY_ID: Final[Mapping[int, tuple[str, Optional[int]]]] = _ids()

# Field 230 (Xid) is an event, not a reading: it is read as events only.
XID_FIELD_ID: Final = 230

# Expected PCIe replays per minute and lane by generation, rounded up over the width
# (DCGM's GetExpectedPcieReplayRate: a function of raw bit rate).
PCIE_REPLAYS_PER_MINUTE_AND_LANE: Final[Mapping[int, float]] = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
