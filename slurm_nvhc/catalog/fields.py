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
from typing import Final, Mapping, NamedTuple, Optional, Union

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
ANY: Final[tuple[Union[int, str], ...]] = ()  # Field.learned
# Field.counted_by. NVML's header says it of NVLink <= 4: replay and recovery at the transmitting end, CRC at the receiving
# one. Of NVLink 5 the names say it (transmit, receive, retries of code words that were sent, code errors that arrived),
# and recovery is taken as before.
SENDER: Final = "sender"
RECEIVER: Final = "receiver"


class Field(NamedTuple):
    """One reading.

    dcgm_id:   field id on an entity of the scope (LINK: on the GPU); None for fields that DCGM has no id for
    link_ids:  per-link field ids on the GPU entity (NVLink <= 4), index = link number
    link_entity_id: the same figure on LINK entities (DCGM 4.6)
    cleared_by: subset of {gpu_reset, driver_reload, reboot}
    generations: where the field is expected to exist; elsewhere it reads not_supported
    absent_on: shell patterns of whole GPU model names on which the field is known not to exist, see exists_on
    shrinks:   a counter that may go back by itself (then a decrease is no reset)
    with_mig:  False: not to be had while the GPU is in MIG mode
    live:      False: has a meaning as a row of samples only. A snapshot never holds it, history does
    bits:      (shift, width) of an item in the DCGM field, which holds several; 0 in it is not_supported
    packed_id: DCGM field with the same figure as mantissa and exponent, for engines that do not decode it
    sum_of:    no engine has it: the sum of these readings, and no data when one of them is none
    counted_by: errors of a link: the end that counts them, SENDER or RECEIVER; '' = no end in particular, or not known
    learned:   what a healthy node shows is its normal (judge/expect.py). Of a state, the values in which a part is in
               use: only these are learned, and one that is not in use has no normal. ANY: whatever it shows
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
    live: bool = True
    bits: Optional[tuple[int, int]] = None
    packed_id: Optional[int] = None
    sum_of: tuple[str, ...] = ()
    counted_by: str = ""
    learned: Optional[tuple[Union[int, str], ...]] = None


# Per-link ids are not contiguous: L0-L5, L6-L11 and L12-L17 were added at different times.
_FLIT = (400, 401, 402, 403, 404, 405, 451, 452, 453, 454, 455, 456, 406, 407, 408, 481, 482, 483)
_DATA = (410, 411, 412, 413, 414, 415, 457, 458, 459, 460, 461, 462, 416, 417, 418, 484, 485, 486)
_REPLAY = (420, 421, 422, 423, 424, 425, 463, 464, 465, 466, 467, 468, 426, 427, 428, 487, 488, 489)
_RECOVERY = (430, 431, 432, 433, 434, 435, 469, 470, 471, 472, 473, 474, 436, 437, 438, 491, 492, 493)

_NVLINK4 = "V100 to H200 (NVLink 2 to 4); not on NVLink 5"
_HBM = "A100 and newer; not with MIG on"
_NVLINK5_ONLY = "NVLink 5: B200, GB200 and newer"
_NVLINK5_PHY = "NVLink 5 with DCGM 4.4 and newer"
_REASON_TIMES = "driver R560 and newer"
_FABRIC = "HGX H100 and newer"

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
# Boards whose links, if they have any, are of generation 4 or before.
_BEFORE_NVLINK5 = (
    *_BEFORE_AMPERE, "A100*", "NVIDIA A[0-9]*", "NVIDIA H[0-9]*", "NVIDIA GH[0-9]*", "NVIDIA L[0-9]*", "NVIDIA RTX A[0-9]*",
    "NVIDIA RTX * Ada Generation", "*GeForce RTX [3-5]0*",
)  # fmt: skip

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

FABRIC_SUMMARIES: Final = {0: "not supported", 1: "healthy", 2: "unhealthy", 3: "limited capacity"}
FABRIC_CONFIGURATIONS: Final = {
    1: "right",
    2: "wrong system GUID",
    3: "wrong chassis serial",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware",
    7: "invalid location",
}
COMPUTE_MODES: Final = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

# The unit of a state that is itself a word: free text, one short line.
WORD: Final = "word"
# The unit of bit error rates: errors per bit that was moved.
PER_BIT: Final = "errors per bit"

_NVSWITCH: Final = "HGX A100 to H200, with the engine's NvSwitch module"
_HOST_RESET: Final = frozenset({DRIVER_RELOAD, REBOOT})
_BOOT: Final = frozenset({REBOOT})
# The reader gives only switches that are present; one that was known and is no longer there is absent (judge/parts.py).
SWITCH_STATES: Final = {0: "absent", 1: "present"}
# NSCQ's port states; -1, unknown, is no data.
PORT_STATES: Final = {0: "off", 1: "safe", 2: "active", 3: "error"}
# Numbers of the kernel's sysfs (enum ib_port_state). No port is ever in 0, which is for requests only: here it is
# the port that was known and is no longer there (judge/parts.py).
RDMA_STATES: Final = {0: "absent", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"}
RDMA_PHYS_STATES: Final = {
    1: "sleep",
    2: "polling",
    3: "disabled",
    4: "training",
    5: "link up",
    6: "error recovery",
    7: "phy test",
}
RDMA_LINK_LAYERS: Final = {1: "InfiniBand", 2: "Ethernet"}

ALL: Final = (
    # NVLink up to generation 4, per link.
    Field("nvlink_crc_flit", LINK, COUNTER, "errors", "CRC flit", None, _FLIT, 1525, VOLATILE, _NVLINK4, absent_on=_NVLINK5, counted_by=RECEIVER),
    Field("nvlink_crc_data", LINK, COUNTER, "errors", "CRC data", None, _DATA, 1526, VOLATILE, _NVLINK4, absent_on=_NVLINK5, counted_by=RECEIVER),
    Field("nvlink_replay", LINK, COUNTER, "errors", "replay", None, _REPLAY, 1527, VOLATILE, _NVLINK4, absent_on=_NVLINK5, counted_by=SENDER),
    Field("nvlink_recovery", LINK, COUNTER, "errors", "recovery", None, _RECOVERY, 1528, VOLATILE, _NVLINK4, absent_on=_NVLINK5, counted_by=SENDER),
    # Not a field of DCGM: its NVLink status call gives one state per link.
    Field("nvlink_state", LINK, STATE, "", "link state", generations="V100 and newer", learned=("up",)),
    Field("nvlink_crc_flit_total", GPU, COUNTER, "errors", "CRC flit", 409, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5, counted_by=RECEIVER),
    Field("nvlink_crc_data_total", GPU, COUNTER, "errors", "CRC data", 419, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5, counted_by=RECEIVER),
    Field("nvlink_replay_total", GPU, COUNTER, "errors", "replay", 429, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5, counted_by=SENDER),
    Field("nvlink_recovery_total", GPU, COUNTER, "errors", "recovery", 439, cleared_by=VOLATILE, generations=_NVLINK4, absent_on=_NVLINK5, counted_by=SENDER),
    # The far end of a link, as an entity: GPU-…/link3, GPU-… (which of its links is not known), switch:…/port5.
    Field("nvlink_remote", LINK, STATE, WORD, "far end", generations="where the engine knows the wiring"),
    # MB/s in both directions over all links, between two samples of the engine; read live it is 0.
    Field("nvlink_throughput", GPU, GAUGE, "MB/s", "NVLink throughput", 449, generations=_NVLINK4, absent_on=_NVLINK5, live=False),
    # NVLink 5, sums over the links of a GPU.
    Field("nvlink5_tx_packets", GPU, COUNTER, "packets", "NVLink packets sent", 1200, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_tx_bytes", GPU, COUNTER, "bytes", "NVLink bytes sent", 1201, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_rx_packets", GPU, COUNTER, "packets", "NVLink packets received", 1202, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_rx_bytes", GPU, COUNTER, "bytes", "NVLink bytes received", 1203, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_rx_malformed", GPU, COUNTER, "packets", "malformed NVLink packets", 1204, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_rx_dropped", GPU, COUNTER, "packets", "NVLink packets dropped", 1205, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),  # buffer overrun
    Field("nvlink5_rx_errors", GPU, COUNTER, "packets", "NVLink receive errors", 1206, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    # Packets that came already marked as bad: the damage was done before this receiver.
    Field("nvlink5_rx_remote_errors", GPU, COUNTER, "packets", "NVLink packets bad upstream", 1207, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_rx_general_errors", GPU, COUNTER, "packets", "NVLink general receive errors", 1208, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    # How often the errors of a link of this GPU crossed the link's threshold.
    Field("nvlink5_integrity_errors", GPU, COUNTER, "errors", "NVLink integrity errors", 1209, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5),
    Field("nvlink5_tx_discards", GPU, COUNTER, "packets", "NVLink packets not sent", 1210, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_recovery_successful", GPU, COUNTER, "events", "NVLink recoveries", 1211, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_recovery_failed", GPU, COUNTER, "events", "failed NVLink recoveries", 1212, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_recovery_events", GPU, COUNTER, "events", "NVLink recovery attempts", 1213, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_symbol_errors", GPU, COUNTER, "symbols", "NVLink symbol errors", 1214, cleared_by=VOLATILE, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_symbol_ber", GPU, GAUGE, PER_BIT, "NVLink symbol BER", 1216, generations=_NVLINK5_ONLY, absent_on=_BEFORE_NVLINK5, packed_id=1215),
    # Effective: what is left after forward error correction.
    Field("nvlink5_effective_ber", GPU, GAUGE, PER_BIT, "NVLink effective BER", 1218, generations=f"{_NVLINK5_ONLY}; DCGM 4.2 and newer", absent_on=_BEFORE_NVLINK5, packed_id=1217),
    Field("nvlink5_effective_errors", GPU, COUNTER, "errors", "NVLink effective errors", 1219, cleared_by=VOLATILE, generations=f"{_NVLINK5_ONLY}; DCGM 4.2 and newer", absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_ecc_errors", GPU, COUNTER, "errors", "NVLink ECC errors", 1220, cleared_by=VOLATILE, generations=f"{_NVLINK5_ONLY}; DCGM 4.5 and newer", absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    # NVLink 5, per link: what the link's physical layer counts. PLR is its retry by code words.
    Field("nvlink5_link_recovery", LINK, COUNTER, "events", "link recovery", None, (), 583, VOLATILE, _NVLINK5_PHY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_link_phy_recovery", LINK, COUNTER, "events", "physical link recovery", None, (), 584, VOLATILE, _NVLINK5_PHY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    Field("nvlink5_link_down", LINK, COUNTER, "events", "link downs", None, (), 585, VOLATILE, _NVLINK5_PHY, absent_on=_BEFORE_NVLINK5),
    Field("nvlink5_code_errors", LINK, COUNTER, "codes", "code errors", None, (), 587, VOLATILE, _NVLINK5_PHY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_code_uncorrectable", LINK, COUNTER, "codes", "uncorrectable codes", None, (), 588, VOLATILE, _NVLINK5_PHY, absent_on=_BEFORE_NVLINK5, counted_by=RECEIVER),
    Field("nvlink5_retry_events", LINK, COUNTER, "events", "retry events", None, (), 591, VOLATILE, _NVLINK5_PHY, absent_on=_BEFORE_NVLINK5, counted_by=SENDER),
    # ECC
    Field("ecc_mode", GPU, FLAG, "", "ECC mode", 300, learned=ANY),
    Field("ecc_pending", GPU, FLAG, "", "ECC mode after the next reset", 301),
    Field("ecc_sbe_volatile", GPU, COUNTER, "errors", "corrected ECC", 310, cleared_by=VOLATILE),
    Field("ecc_dbe_volatile", GPU, COUNTER, "errors", "uncorrectable ECC", 311, cleared_by=VOLATILE),
    Field("ecc_sbe_aggregate", GPU, COUNTER, "errors", "corrected ECC, lifetime", 312),
    Field("ecc_dbe_aggregate", GPU, COUNTER, "errors", "uncorrectable ECC, lifetime", 313),
    # All memory on the chip itself. Vendor: more than 4 (parity) or 2 (SECDED) in one place is RMA class, told by 346.
    Field("ecc_dbe_sram_volatile", GPU, COUNTER, "errors", "uncorrectable SRAM errors", 343, cleared_by=VOLATILE, generations="Ampere and newer, DCGM 4.1 and newer", absent_on=_BEFORE_AMPERE),
    Field("ecc_dbe_sram_aggregate", GPU, COUNTER, "errors", "uncorrectable SRAM errors, lifetime", 345, generations="Ampere and newer, DCGM 4.1 and newer", absent_on=_BEFORE_AMPERE),
    Field("sram_threshold_exceeded", GPU, FLAG, "", "SRAM error threshold exceeded", 346, generations="Ampere and newer", absent_on=_BEFORE_AMPERE),
    # Retired pages (before Ampere) and row remapping (from Ampere)
    Field("retired_pages_sbe", GPU, COUNTER, "pages", "pages retired, corrected", 390, generations="V100 and older", absent_on=_FROM_AMPERE),
    Field("retired_pages_dbe", GPU, COUNTER, "pages", "pages retired, uncorrectable", 391, generations="V100 and older", absent_on=_FROM_AMPERE),
    # The table has 64 entries for both together. No counter: its growth is told by the two.
    Field("retired_pages_total", GPU, GAUGE, "pages", "pages retired, of both kinds", generations="V100 and older", absent_on=_FROM_AMPERE, sum_of=("retired_pages_sbe", "retired_pages_dbe")),
    Field("retired_pages_pending", GPU, FLAG, "", "page retirement pending", 392, cleared_by=VOLATILE, generations="V100 and older", absent_on=_FROM_AMPERE),
    Field("remapped_rows_uncorrectable", GPU, COUNTER, "rows", "rows remapped, uncorrectable", 393, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    # May fall: a corrected row can be evicted to free a spare for an uncorrectable one.
    Field("remapped_rows_correctable", GPU, COUNTER, "rows", "rows remapped, corrected", 394, generations=_HBM, shrinks=True, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("row_remap_failure", GPU, FLAG, "", "row remap failed", 395, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("row_remap_pending", GPU, FLAG, "", "row remap pending", 396, cleared_by=frozenset({GPU_RESET, REBOOT}), generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    # How many memory banks have how many spare rows left: max = untouched, none = the next bad row can not be remapped.
    Field("banks_remap_max", GPU, GAUGE, "banks", "banks with all spare rows", 385, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("banks_remap_high", GPU, GAUGE, "banks", "banks with many spare rows", 386, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("banks_remap_partial", GPU, GAUGE, "banks", "banks with some spare rows", 387, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("banks_remap_low", GPU, GAUGE, "banks", "banks with few spare rows", 388, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("banks_remap_none", GPU, GAUGE, "banks", "banks without spare rows", 389, generations=_HBM, absent_on=_BEFORE_AMPERE, with_mig=False),
    Field("memory_unrepairable", GPU, FLAG, "", "memory can not be repaired", 1507, generations="Blackwell and newer, DCGM 4.5 and newer", absent_on=_BEFORE_AMPERE),
    Field("fb_total", GPU, GAUGE, "MiB", "memory", 250, learned=ANY),
    Field("fb_used", GPU, GAUGE, "MiB", "memory in use", 252),
    # PCIe. 202 is 32 bit in NVML and may wrap: a decrease is read as a reset.
    Field("pcie_replay", GPU, COUNTER, "replays", "PCIe replay", 202, cleared_by=VOLATILE),
    Field("pcie_correctable_errors", GPU, COUNTER, "errors", "PCIe correctable errors", 1501, cleared_by=VOLATILE, generations="DCGM 4.4 and newer, recent drivers"),
    Field("pcie_max_gen", GPU, GAUGE, "generation", "PCIe generation possible", 235, learned=ANY),
    Field("pcie_max_width", GPU, GAUGE, "lanes", "PCIe width possible", 236, learned=ANY),
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
    Field("sm_clock_max", GPU, GAUGE, "MHz", "highest SM clock", 113),
    Field("gpu_util", GPU, GAUGE, "%", "GPU utilisation", 203),
    Field("clock_event_reasons", GPU, GAUGE, "bit mask", "clock event reasons", 112),
    Field("power_usage", GPU, GAUGE, "W", "power", 155),
    Field("power_limit_enforced", GPU, GAUGE, "W", "enforced power limit", 164, learned=ANY),
    Field("power_limit_default", GPU, GAUGE, "W", "default power limit", 163, learned=ANY),
    Field("power_limit_requested", GPU, GAUGE, "W", "requested power limit", 160),
    Field("power_limit_max", GPU, GAUGE, "W", "highest power limit", 162),
    Field("power_violation_ns", GPU, COUNTER, "ns", "time below clocks for power", 240, cleared_by=VOLATILE),
    Field("thermal_violation_ns", GPU, COUNTER, "ns", "time below clocks for heat", 241, cleared_by=VOLATILE),
    Field("board_limit_violation_ns", GPU, COUNTER, "ns", "time below clocks for the board's limit", 243, cleared_by=VOLATILE),
    Field("reliability_violation_ns", GPU, COUNTER, "ns", "time below clocks for reliability", 245, cleared_by=VOLATILE),
    Field("sw_power_cap_ns", GPU, COUNTER, "ns", "time in software power cap", 1420, cleared_by=VOLATILE, generations=_REASON_TIMES),
    Field("sync_boost_ns", GPU, COUNTER, "ns", "time in sync boost", 1421, cleared_by=VOLATILE, generations=_REASON_TIMES),
    Field("sw_thermal_slowdown_ns", GPU, COUNTER, "ns", "time in software thermal slowdown", 1422, cleared_by=VOLATILE, generations=_REASON_TIMES),
    Field("hw_thermal_slowdown_ns", GPU, COUNTER, "ns", "time in hardware thermal slowdown", 1423, cleared_by=VOLATILE, generations=_REASON_TIMES),
    Field("power_brake_ns", GPU, COUNTER, "ns", "time in power brake", 1424, cleared_by=VOLATILE, generations=_REASON_TIMES),
    # Configuration: what somebody set, or flashed
    Field("persistence_mode", GPU, FLAG, "", "persistence mode", 66, learned=ANY),
    Field("compute_mode", GPU, STATE, "", "compute mode", 65, words=COMPUTE_MODES, learned=ANY),
    Field("mig_mode", GPU, FLAG, "", "MIG mode", 67, generations="A100 and newer", absent_on=_BEFORE_AMPERE, learned=ANY),
    Field("vbios", GPU, STATE, WORD, "VBIOS", 85, learned=ANY),
    # What the vendor says to do, and the fabric
    Field("recovery_action", GPU, STATE, "", "recovery action", 1523, generations="driver R550 and newer, DCGM 4.5 and newer", words=RECOVERY_ACTIONS),
    Field("fabric_state", GPU, STATE, "", "fabric state", 170, generations=_FABRIC, words=FABRIC_STATES),
    Field("fabric_error", GPU, STATE, "", "fabric error", 171, generations=_FABRIC),
    Field("fabric_cluster", GPU, STATE, WORD, "fabric cluster UUID", 172, generations=_FABRIC),
    Field("fabric_clique", GPU, STATE, "", "fabric clique", 173, generations=_FABRIC),
    # Items of one mask. The mask itself is no reading: a healthy one is not 0, each item then says "false" (2).
    Field("fabric_degraded_bandwidth", GPU, FLAG, "", "fabric bandwidth degraded", 174, generations=f"{_FABRIC}; DCGM 4.4 and newer", bits=(0, 2)),
    Field("fabric_route_recovery", GPU, FLAG, "", "fabric route in recovery", 174, generations=f"{_FABRIC}; DCGM 4.4 and newer", bits=(2, 2)),
    Field("fabric_route_unhealthy", GPU, FLAG, "", "fabric route unhealthy", 174, generations=f"{_FABRIC}; DCGM 4.4 and newer", bits=(4, 2)),
    Field("fabric_access_timeout_recovery", GPU, FLAG, "", "fabric access timeout in recovery", 174, generations=f"{_FABRIC}; DCGM 4.4 and newer", bits=(6, 2)),
    Field("fabric_configuration", GPU, STATE, "", "fabric configuration", 174, generations=f"{_FABRIC}; DCGM 4.4 and newer", words=FABRIC_CONFIGURATIONS, bits=(8, 4)),
    Field("fabric_summary", GPU, STATE, "", "fabric health", 175, generations=f"{_FABRIC}; DCGM 4.6 and newer", words=FABRIC_SUMMARIES),
    # -- the node's parts beside its GPUs. dcgm_id is asked of the entity of the row's scope. --------------------
    # NVSwitches, through DCGM's NvSwitch module (NSCQ): up to HGX H200. B200's switches are not the host's.
    # 856 and 857, the last SXids, are left out: they stay until the engine restarts; the kernel log has the events.
    Field("switch_state", SWITCH, STATE, "", "switch state", generations=_NVSWITCH, words=SWITCH_STATES, learned=(1,)),
    Field("switch_temp", SWITCH, GAUGE, "°C", "switch temperature", 858, generations=_NVSWITCH),
    Field("switch_temp_slowdown", SWITCH, GAUGE, "°C", "switch slowdown limit", 859, generations=_NVSWITCH),
    Field("switch_temp_shutdown", SWITCH, GAUGE, "°C", "switch shutdown limit", 860, generations=_NVSWITCH),
    Field("switch_reset_required", SWITCH, FLAG, "", "switch wants a reset", 864, generations=_NVSWITCH),
    Field("switch_firmware", SWITCH, STATE, WORD, "switch firmware", 1524, generations=f"{_NVSWITCH}; DCGM 4.6 and newer", learned=ANY),
    # Ports of switches: LINK entities of the type switch. Their counters go with the fabric's reset, which GPU
    # resets do not cause (our reading of NSCQ's counters; a decrease is a reset in any case).
    Field("port_state", SWITCH_PORT, STATE, "", "port state", 870, generations=_NVSWITCH, words=PORT_STATES, learned=(2,)),
    Field("port_fatal", SWITCH_PORT, COUNTER, "errors", "port fatal errors", 782, cleared_by=_HOST_RESET, generations=_NVSWITCH),
    Field("port_non_fatal", SWITCH_PORT, COUNTER, "errors", "port non-fatal errors", 783, cleared_by=_HOST_RESET, generations=_NVSWITCH),
    Field("port_replay", SWITCH_PORT, COUNTER, "errors", "port replay", 784, cleared_by=_HOST_RESET, generations=_NVSWITCH, counted_by=SENDER),
    Field("port_recovery", SWITCH_PORT, COUNTER, "errors", "port recovery", 785, cleared_by=_HOST_RESET, generations=_NVSWITCH, counted_by=SENDER),
    Field("port_crc_flit", SWITCH_PORT, COUNTER, "errors", "port CRC flit", 786, cleared_by=_HOST_RESET, generations=_NVSWITCH, counted_by=RECEIVER),
    Field("port_crc_data", SWITCH_PORT, COUNTER, "errors", "port CRC data", 787, cleared_by=_HOST_RESET, generations=_NVSWITCH, counted_by=RECEIVER),
    Field("port_ecc", SWITCH_PORT, COUNTER, "errors", "port ECC", 788, cleared_by=_HOST_RESET, generations=_NVSWITCH, counted_by=RECEIVER),
    # The other end as an entity (872 to 876): GPU-…/link11, switch:…/port5, or pci:…/link11 of a stranger.
    Field("port_remote", SWITCH_PORT, STATE, WORD, "far end of the port", generations=_NVSWITCH),
    # Ports of RDMA devices, from sysfs. Counters as the IBTA defines them; 0 again when the device's driver is loaded.
    Field("rdma_state", RDMA, STATE, "", "RDMA port state", words=RDMA_STATES, learned=(4,)),
    Field("rdma_phys_state", RDMA, STATE, "", "RDMA physical state", words=RDMA_PHYS_STATES),
    Field("rdma_link_layer", RDMA, STATE, "", "RDMA link layer", words=RDMA_LINK_LAYERS, learned=ANY),
    Field("rdma_rate", RDMA, GAUGE, "Gb/s", "RDMA rate", learned=ANY),
    Field("rdma_link_downed", RDMA, COUNTER, "events", "RDMA link downed", cleared_by=_BOOT),  # Ethernet: the interface's carrier losses
    Field("rdma_link_recovery", RDMA, COUNTER, "events", "RDMA link recovery", cleared_by=_BOOT),
    Field("rdma_symbol_errors", RDMA, COUNTER, "errors", "RDMA symbol errors", cleared_by=_BOOT),
    Field("rdma_rcv_errors", RDMA, COUNTER, "packets", "RDMA receive errors", cleared_by=_BOOT),
    Field("rdma_rcv_remote_physical_errors", RDMA, COUNTER, "packets", "RDMA remote physical errors", cleared_by=_BOOT),
    Field("rdma_local_link_integrity_errors", RDMA, COUNTER, "errors", "RDMA link integrity errors", cleared_by=_BOOT),
    Field("rdma_buffer_overrun_errors", RDMA, COUNTER, "errors", "RDMA buffer overruns", cleared_by=_BOOT),
    Field("rdma_xmit_discards", RDMA, COUNTER, "packets", "RDMA transmit discards", cleared_by=_BOOT),
    Field("rdma_packet_seq_errors", RDMA, COUNTER, "packets", "RDMA packet sequence errors", cleared_by=_BOOT, generations="mlx5 and alike: hw_counters"),
    Field("rdma_ack_timeouts", RDMA, COUNTER, "events", "RDMA ACK timeouts", cleared_by=_BOOT, generations="mlx5 and alike: hw_counters"),
    Field("rdma_xmit_bytes", RDMA, COUNTER, "bytes", "RDMA bytes sent", cleared_by=_BOOT),
    Field("rdma_rcv_bytes", RDMA, COUNTER, "bytes", "RDMA bytes received", cleared_by=_BOOT),
    # The node itself, from the kernel.
    Field("kernel_release", NODE, STATE, WORD, "kernel release"),
    Field("nvidia_driver", NODE, STATE, WORD, "NVIDIA driver", learned=ANY),
    Field("fabric_manager", NODE, STATE, WORD, "fabric manager version", learned=ANY),
    # Processes that compute on a GPU, from /proc; only root sees all. The driver's own daemons are not counted.
    Field("gpu_processes", GPU, GAUGE, "processes", "compute processes"),
)

BY_NAME: Final[Mapping[str, Field]] = {f.name: f for f in ALL}


# Of these an engine is asked to take samples during jobs: all that rules over a job's history may use. None of NVLink 5:
# an engine that polls its counters together with ECC counters loses one of the two for everybody (DCGM#265, open, seen
# on 4.4), and others may watch ECC.
SAMPLED: Final = (
    "nvlink_crc_flit_total", "nvlink_crc_data_total", "nvlink_replay_total", "nvlink_recovery_total", "nvlink_throughput", "sm_clock",
    "clock_event_reasons", "gpu_util", "gpu_temp", "memory_temp", "gpu_temp_margin", "power_usage", "power_violation_ns",
    "thermal_violation_ns", "board_limit_violation_ns", "reliability_violation_ns", "sw_power_cap_ns", "sw_thermal_slowdown_ns",
    "hw_thermal_slowdown_ns", "power_brake_ns", "pcie_gen", "pcie_replay",
)


def of_links(field: Field) -> bool:
    """Is it about NVLinks: one link's reading, or the GPU's total over them?"""
    return field.scope == LINK or field.name.startswith(("nvlink_", "nvlink5_"))


def is_nvlink5(field: Field) -> bool:
    """Does only NVLink 5 have it?"""
    return field.name.startswith("nvlink5_")


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
        if field.dcgm_id is not None and field.bits is None:
            table[field.dcgm_id] = (field.name, None)
        for number, field_id in enumerate(field.link_ids):
            table[field_id] = (field.name, number)
    return table


# DCGM field id -> (catalogue name, link number or None). Without fields that hold several readings.
BY_ID: Final[Mapping[int, tuple[str, Optional[int]]]] = _ids()

# Field 230 (Xid) is an event, not a reading: it is read as events only.
XID_FIELD_ID: Final = 230

# Expected PCIe replays per minute and lane by generation, rounded up over the width
# (DCGM's GetExpectedPcieReplayRate: a function of raw bit rate).
PCIE_REPLAYS_PER_MINUTE_AND_LANE: Final[Mapping[int, float]] = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
