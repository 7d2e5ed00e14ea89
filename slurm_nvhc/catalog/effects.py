"""What a fault does to the job that meets it. Data only: what a job's user is told.

A user whose loss curve broke asks one thing: can the hardware have done that? So it is told apart whether data was
lost, or sent again, or only late. Sources: NVLink and PCIe packets carry a CRC and are sent again until they arrive
(NVLink specification as told in NVIDIA's header for the counters); ECC corrects single bits, and an uncorrectable
error ends the programs that use the data (GPU memory error management guide).
"""

from __future__ import annotations

from typing import Final, Mapping

LOST: Final = "data was lost or the program was ended"
BROKEN: Final = "a connection broke: what used it stalls, or is ended"
RESENT: Final = "data was sent again or corrected, none was lost; it costs time"
SLOWED: Final = "work was slowed down, results are not affected"
PROGRAM: Final = "usually the program itself does this"
UNKNOWN: Final = "what it did to the job is not known"
NONE: Final = ""  # says nothing about what happened in the job

# By finding code; monitor findings never touch a job.
OF_CODE: Final[Mapping[str, str]] = {
    "NVL-STORM": RESENT,
    "NVL-REPLAY": RESENT,
    "NVL-RECOVERY": RESENT,
    "NVL-CRC": RESENT,
    "NVL-BER": RESENT,
    "NVL-SYMBOL": RESENT,
    "NVL-ERRORS": RESENT,
    "NVL-RECOVERY-FAILED": LOST,
    "NVL-FLAP": LOST,
    "NVL-DOWN": LOST,
    "MEM-UNCORRECTABLE": LOST,
    "MEM-REMAP-FAILED": LOST,
    "MEM-REMAP-PENDING": NONE,  # the error that caused it is told by its own finding
    "MEM-REMAPPED": RESENT,
    "MEM-SRAM": LOST,
    "MEM-UNREPAIRABLE": LOST,
    "MEM-SPARES": NONE,
    "MEM-CORRECTED": RESENT,
    "MEM-RETIRED": NONE,
    "GPU-LOST": LOST,
    "GPU-RECOVERY": LOST,
    "DIAG-FAIL": UNKNOWN,
    "DIAG-SOFTWARE": NONE,
    "DIAG-NO-RESULT": NONE,
    "DIAG-PASS": NONE,
    "SDC-DIGEST": UNKNOWN,
    "GPU-SWAPPED": NONE,
    "GPU-NEW": NONE,
    "GPU-EXCLUDED": NONE,
    "XID-FATAL": LOST,
    "XID-CONTAINED": LOST,
    "XID-NVLINK": LOST,
    "XID-NVLINK5": UNKNOWN,
    "XID-MEMORY": RESENT,
    "XID-APP": PROGRAM,
    "XID-OTHER": UNKNOWN,
    "PCIE-REPLAY": RESENT,
    "PCIE-ERRORS": RESENT,
    "PCIE-WIDTH": SLOWED,
    "PCIE-GEN": SLOWED,
    "THERMAL-SLOWDOWN": SLOWED,
    "THERMAL-MARGIN": SLOWED,
    "POWER-BRAKE": SLOWED,
    "POWER-CAP": NONE,  # normal under load
    "POWER-LIMIT": SLOWED,
    "CLOCK-LIMIT": SLOWED,
    "PEER-SLOW": SLOWED,
    "PEER-HOT": SLOWED,
    "PEER-POWER": SLOWED,
    "PEER-THROTTLE": SLOWED,
    "PEER-LINK": SLOWED,
    "PEER-ERRORS": RESENT,
    "FABRIC-STATE": LOST,
    "FABRIC-HEALTH": SLOWED,
    "SXID-FATAL": LOST,
    "SXID-NONFATAL": RESENT,
    "SWITCH-LOST": LOST,
    "SWITCH-RESET": LOST,
    "SWITCH-PORT": LOST,
    "SWITCH-ERRORS": RESENT,
    "SWITCH-TEMP": SLOWED,
    "RDMA-DOWN": BROKEN,  # libraries wait for a port that comes back, for some time
    "RDMA-NONE": NONE,  # told by health checks; whether any port is gone is not known
    "RDMA-FLAPS": BROKEN,
    "RDMA-ERRORS": RESENT,
    "LEFT-MEMORY": NONE,
    "LEFT-PROCESS": NONE,
    "RDMA-SLOW": SLOWED,
    "CONFIG-DRIFT": NONE,
    "CONFIG-POWER": SLOWED,
    "CONFIG-ECC": NONE,
    "CONFIG-PERSISTENCE": NONE,
    "CONFIG-CLOCKS": NONE,
    "DCGM-HEALTH": NONE,  # evidence: judged by rules of our own
    "SITE-RULE": UNKNOWN,
    "NO-DATA": NONE,  # makes the answer unknown instead
    "NO-BASELINE": NONE,
    "COUNTER-RESET": NONE,
}

# Counters of which any growth in a job is worth telling its user, rule or no rule. Left out is what healthy hardware
# does all the time: traffic, time below full clocks, PCIe replays, what NVLink 5 corrects on the fly; and of networks what
# congestion does (discards, sequence errors, timeouts), what came damaged from elsewhere in the fabric, and symbol
# errors, of which the InfiniBand specification allows a good link some every hour.
OF_FIELD: Final[Mapping[str, str]] = {
    "nvlink_crc_flit": RESENT,
    "nvlink_crc_data": RESENT,
    "nvlink_replay": RESENT,
    "nvlink_recovery": RESENT,
    "nvlink_crc_flit_total": RESENT,
    "nvlink_crc_data_total": RESENT,
    "nvlink_replay_total": RESENT,
    "nvlink_recovery_total": RESENT,
    "nvlink5_rx_malformed": RESENT,
    "nvlink5_rx_dropped": RESENT,
    "nvlink5_rx_errors": RESENT,
    "nvlink5_integrity_errors": RESENT,
    "nvlink5_recovery_successful": RESENT,
    "nvlink5_recovery_failed": LOST,
    "nvlink5_effective_errors": RESENT,
    "nvlink5_ecc_errors": RESENT,
    "nvlink5_link_recovery": RESENT,
    "nvlink5_link_down": LOST,
    "nvlink5_code_uncorrectable": RESENT,
    "ecc_sbe_volatile": RESENT,
    "ecc_dbe_volatile": LOST,
    "ecc_sbe_aggregate": RESENT,
    "ecc_dbe_aggregate": LOST,
    "ecc_dbe_sram_volatile": LOST,
    "ecc_dbe_sram_aggregate": LOST,
    "retired_pages_sbe": RESENT,
    "retired_pages_dbe": LOST,
    "remapped_rows_uncorrectable": LOST,
    "remapped_rows_correctable": RESENT,
    "port_fatal": LOST,
    "port_non_fatal": RESENT,
    "port_replay": RESENT,
    "port_recovery": RESENT,
    "port_crc_flit": RESENT,
    "port_crc_data": RESENT,
    "port_ecc": RESENT,
    "rdma_link_downed": BROKEN,
    "rdma_link_recovery": RESENT,
    "rdma_rcv_errors": RESENT,
    "rdma_local_link_integrity_errors": RESENT,
    "rdma_buffer_overrun_errors": RESENT,
}
# The same errors counted twice: told only where the first did not grow.
SAME_AS: Final[Mapping[str, str]] = {
    "ecc_sbe_aggregate": "ecc_sbe_volatile",
    "ecc_dbe_aggregate": "ecc_dbe_volatile",
    "ecc_dbe_sram_volatile": "ecc_dbe_volatile",
    "ecc_dbe_sram_aggregate": "ecc_dbe_volatile",
    "nvlink_crc_flit_total": "nvlink_crc_flit",
    "nvlink_crc_data_total": "nvlink_crc_data",
    "nvlink_replay_total": "nvlink_replay",
    "nvlink_recovery_total": "nvlink_recovery",
    "nvlink5_recovery_successful": "nvlink5_link_recovery",
}

# From worst to least: what is said first.
ORDER: Final = (LOST, BROKEN, UNKNOWN, RESENT, SLOWED, PROGRAM, NONE)
