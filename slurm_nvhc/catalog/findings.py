"""Finding codes: what each means and what to do. A code never changes its meaning."""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple


class Code(NamedTuple):
    """klass: gpu, link, switch, node, job or monitor. short: the words used in a drain reason.

    narrowable: the GPU can be left out of a job's sight with the rest in use. False
    where the fault hurts its peers or the GPU does not answer.

    hard: a fault beyond doubt, for the larger limit on how many nodes may be out (docs/limits.md):
    the device, the driver or the vendor's own threshold says that this part does not work, and no
    mistake outside the node makes it say so. Not hard: rates and comparisons, which a threshold or a
    load decides; settings; and what one cause outside the nodes (a fabric manager, an InfiniBand
    switch, a driver update) shows on all of them at once, since that is what the smaller limit is for.
    """

    code: str
    klass: str
    meaning: str
    advice: str
    narrowable: bool = True
    hard: bool = False


# What an active test says of hardware: it proves what was suspected.
PROOFS: Final = ("DIAG-FAIL",)

ALL: Final = (
    Code("NVL-STORM", "link", "an NVLink retries or corrupts at a rate that no healthy link shows", "reset the GPU; if it returns, reseat or replace GPU or baseboard"),
    Code("NVL-REPLAY", "link", "an NVLink had to resend data", "watch; if it returns on the same link, run the field diagnostic"),
    Code("NVL-RECOVERY", "link", "an NVLink had to retrain", "watch; if it returns on the same link, run the field diagnostic"),
    Code("NVL-CRC", "link", "an NVLink received damaged data (corrected by resending)", "watch; high rates need the field diagnostic"),
    Code("NVL-BER", "link", "an NVLink corrupts more bits than error correction can hide", "look at signal, cable and seating of both ends; if it returns, run the field diagnostic"),
    Code("NVL-SYMBOL", "link", "an NVLink receives symbols that error correction has to repair", "watch; if it returns, run the field diagnostic"),
    Code("NVL-ERRORS", "link", "an NVLink received damaged or dropped packets", "watch; if it returns on the same GPU, run the field diagnostic"),
    Code("NVL-RECOVERY-FAILED", "link", "an NVLink did not come back from recovery", "reset the GPU; check the far end; if it returns, run the field diagnostic", narrowable=False, hard=True),
    Code("NVL-FLAP", "link", "an NVLink went down and came back", "watch; if it returns on the same link, run the field diagnostic"),
    Code("NVL-DOWN", "link", "an NVLink is down that was up or is expected up", "check fabric manager, then reset the GPU, then reboot", narrowable=False, hard=True),
    Code("MEM-UNCORRECTABLE", "gpu", "uncorrectable memory errors: data was lost", "reset the GPU; repeated: field diagnostic, RMA", hard=True),
    Code("MEM-REMAP-FAILED", "gpu", "a bad memory row could not be remapped", "field diagnostic, then RMA", hard=True),
    Code("MEM-REMAP-PENDING", "gpu", "a bad memory row is remapped at the next GPU reset", "reset the GPU when it is idle"),
    Code("MEM-REMAPPED", "gpu", "memory rows were remapped", "watch the trend"),
    Code("MEM-SRAM", "gpu", "on-chip memory errors passed the vendor's threshold", "RMA", hard=True),
    Code("MEM-UNREPAIRABLE", "gpu", "the memory has errors that it can not repair any more", "field diagnostic, then RMA", hard=True),
    Code("MEM-SPARES", "gpu", "a memory bank has no spare rows left", "plan the exchange: the next bad row in that bank can not be remapped"),
    Code("MEM-CORRECTED", "gpu", "corrected memory errors grew", "watch the trend"),
    Code("MEM-RETIRED", "gpu", "memory pages were retired", "pending: reset the GPU; 63 or more: RMA"),
    Code("GPU-LOST", "gpu", "a GPU that should be here does not answer", "reboot; repeated: check power, seating and riser; taken out on purpose: `nvhc gpu forget`", narrowable=False, hard=True),
    Code("GPU-RECOVERY", "gpu", "the driver asks for a recovery action", "do what the action says", narrowable=False, hard=True),
    Code("GPU-SWAPPED", "gpu", "another card sits in this slot than before", "none, if you swapped it"),
    Code("GPU-NEW", "gpu", "a GPU appeared that was not known", "none, if you added it"),
    Code("XID-FATAL", "gpu", "the driver logged an Xid that makes the GPU unusable until reset or reboot", "see the Xid's own advice", narrowable=False, hard=True),
    Code("XID-CONTAINED", "gpu", "a contained uncorrectable error killed one application", "watch; twice in a day: field diagnostic"),
    Code("XID-NVLINK", "gpu", "the driver logged a fatal NVLink error", "reset the GPU; check the peer that failed first", narrowable=False, hard=True),
    Code("XID-NVLINK5", "gpu", "the driver logged an NVLink 5 error that is not fatal, or the echo of one", "watch; look at signal, cable and the far end if it returns"),
    Code("XID-MEMORY", "gpu", "the driver recorded a memory repair or a high error rate", "watch; reset when idle if a remap is pending"),
    Code("XID-APP", "gpu", "an Xid that applications usually cause", "tell the user; the GPU only if it follows the GPU across users"),
    Code("XID-OTHER", "gpu", "an Xid without a rule of its own", "look it up in the vendor's catalogue"),
    Code("PCIE-REPLAY", "gpu", "PCIe resends more than its speed explains", "reseat; check riser and retimer"),
    Code("PCIE-ERRORS", "gpu", "PCIe corrects errors at a high rate", "reseat; check riser and retimer"),
    Code("PCIE-WIDTH", "gpu", "PCIe runs on fewer lanes than GPU and slot can", "reseat; check riser"),
    Code("PCIE-GEN", "gpu", "PCIe runs at a lower generation than possible under load", "reseat; check riser and BIOS"),
    Code("THERMAL-SLOWDOWN", "gpu", "the GPU slowed itself down for heat", "check airflow, inlet temperature, cooling loop"),
    Code("THERMAL-MARGIN", "gpu", "the GPU is at its temperature limit", "check airflow, inlet temperature, cooling loop"),
    Code("POWER-BRAKE", "gpu", "the chassis asked the GPU to brake", "check power supplies and chassis"),
    Code("POWER-CAP", "gpu", "the GPU was held at its power limit", "none: normal under load"),
    Code("POWER-LIMIT", "gpu", "the GPU may use less power than its board is made for", "who set it? power supplies, chassis, nvidia-smi -pl"),
    Code("CLOCK-LIMIT", "gpu", "the board held the clocks down, for neither heat nor the power cap", "check power supplies and board; if it stays, run the field diagnostic"),
    Code("PEER-SLOW", "gpu", "the GPU ran slower than the other GPUs of its jobs", "compare clock event reasons, cooling and power; returns: field diagnostic"),
    Code("PEER-HOT", "gpu", "the GPU ran hotter than the other GPUs of its jobs", "check its heat sink, airflow or cold plate"),
    Code("PEER-POWER", "gpu", "the GPU drew far less power than the other GPUs of its jobs", "uneven work, or a GPU held back: compare clocks and power limits"),
    Code("PEER-THROTTLE", "gpu", "the GPU was slowed down for heat or power while the other GPUs of its jobs were not", "check its cooling and power feed"),
    Code("PEER-LINK", "gpu", "the GPU moved less over NVLink than the other GPUs of its jobs", "uneven work, or a slow link without errors: test its bandwidth"),
    Code("PEER-ERRORS", "gpu", "the GPU counted more errors than the other GPUs of its jobs", "watch; look at the counter's own rule"),
    Code("FABRIC-STATE", "gpu", "the NVLink fabric is not ready for this GPU", "check fabric manager; reboot", narrowable=False),
    Code("FABRIC-HEALTH", "gpu", "the fabric is degraded for this GPU, or configured wrongly", "check fabric manager, switches and partition; reset; reboot", narrowable=False),
    Code("SXID-FATAL", "switch", "the driver logged a fatal error of an NVSwitch", "reset all GPUs and switches, or reboot; repeated: replace the baseboard", narrowable=False, hard=True),
    Code("SXID-NONFATAL", "switch", "the driver logged an error that an NVSwitch got over", "watch; repeated on one port: look at that link", narrowable=False),
    Code("SWITCH-LOST", "switch", "an NVSwitch that should be here is not seen", "check fabric manager; reboot; repeated: replace the baseboard", narrowable=False, hard=True),
    Code("SWITCH-RESET", "switch", "an NVSwitch asks for a reset", "reset all GPUs and switches, or reboot", narrowable=False, hard=True),
    Code("SWITCH-PORT", "switch", "a port of an NVSwitch is in error, or down that was in use", "check fabric manager; reset the GPU at its far end; reboot", narrowable=False),
    Code("SWITCH-ERRORS", "switch", "a port of an NVSwitch counts errors", "look at the link behind it; several ports of one switch: replace the baseboard", narrowable=False),
    Code("SWITCH-TEMP", "switch", "an NVSwitch is at its temperature limit", "check airflow, inlet temperature, cooling loop", narrowable=False),
    Code("RDMA-DOWN", "node", "an RDMA port is down that should be up", "cable, transceiver, switch port; then the adapter", narrowable=False),
    Code("RDMA-NONE", "node", "none of the RDMA ports that were there is listed any more", "load the adapters' driver; renamed devices: `nvhc baseline accept rdma`", narrowable=False),
    Code("RDMA-SLOW", "node", "an RDMA port is slower than this node was accepted with", "cable, transceiver; lanes and speed at the switch", narrowable=False),
    Code("RDMA-FLAPS", "node", "an RDMA port went down again and again", "cable, transceiver, switch port; then the adapter", narrowable=False),
    Code("RDMA-ERRORS", "node", "an RDMA port counts errors", "cable, transceiver, switch port", narrowable=False),
    Code("LEFT-MEMORY", "gpu", "memory is held though no process computes on the GPU", "look for stuck processes; reset the GPU when it is idle"),
    Code("LEFT-PROCESS", "gpu", "processes compute on the GPU after its job", "find whose they are"),
    Code("CONFIG-DRIFT", "gpu", "something is set up otherwise than this node was accepted", "put it back, or take it for normal: `nvhc baseline accept`"),
    Code("CONFIG-POWER", "gpu", "a power limit is lower than this node was accepted with", "who lowered it? check power supplies; wanted: `nvhc baseline accept`"),
    Code("CONFIG-ECC", "gpu", "ECC is not as it should be", "set ECC mode and reset the GPU"),
    Code("CONFIG-PERSISTENCE", "gpu", "persistence mode is off: the driver unloads between jobs, and counters vanish", "start nvidia-persistenced"),
    Code("CONFIG-CLOCKS", "gpu", "somebody's setting holds the clocks down", "nvidia-smi -rac, -rgc"),
    Code("GPU-EXCLUDED", "gpu", "the GPU was excluded earlier and not released since", "repair it, then `nvhc gpu release`"),
    Code("DCGM-HEALTH", "gpu", "DCGM's own health check complains: evidence, at most a warning", "look at what is found beside it; set aside: nothing"),
    Code("DIAG-FAIL", "gpu", "a DCGM diagnostic failed on hardware", "field diagnostic; RMA once it agrees"),
    Code("DIAG-SOFTWARE", "node", "DCGM's software checks complain", "see the text; a fault of the hardware has a finding of its own"),
    Code("DIAG-NO-RESULT", "gpu", "a diagnostic that was asked for says nothing: not run, skipped, busy, stopped", "see why; the GPU is neither cleared nor convicted"),
    Code("DIAG-PASS", "gpu", "a DCGM diagnostic passed", "none; what it does not test, it does not clear"),
    Code("SDC-DIGEST", "gpu", "the same work gave another result than on other GPUs, or than before on this one", "run it again; field diagnostic, and keep jobs off until it is explained"),
    Code("SITE-RULE", "gpu", "a rule of this site without a code of its own", "see the site's policy"),
    Code("NO-DATA", "gpu", "readings that rules need could not be had", "see which; the GPU is neither ok nor bad"),
    Code("NO-BASELINE", "node", "the job's start was not seen, so its changes are unknown", "PrologFlags=Alloc makes the prolog run on every node"),
    Code("COUNTER-RESET", "node", "counters were cleared in the window", "none, if a reset or reload was meant"),
    Code("MON-ENGINE-ABSENT", "monitor", "the DCGM engine can not be reached", "start nv-hostengine (service nvidia-dcgm)"),
    Code("MON-ENGINE-HUNG", "monitor", "the DCGM engine does not answer in time", "restart nv-hostengine; look for Xid 119/120 or 79"),
    Code("MON-ENGINE-LIES", "monitor", "the DCGM engine answered what can not be", "check the engine's version and bindings"),
    Code("MON-ENGINE-EMPTY", "monitor", "the DCGM engine knows no GPUs although there should be some", "was it started before the driver? restart it"),
    Code("MON-READER", "monitor", "the reader process failed", "see the detail; run `nvhc check`"),
    Code("MON-KERNEL-LOG", "monitor", "the kernel log could not be read", "CAP_SYSLOG; dmesg_restrict"),
    Code("MON-HOST", "monitor", "a device of the node does not answer the kernel", "see the detail; look for its driver in the kernel log"),
    Code("MON-POLICY", "monitor", "the policy file is broken; the last good one stays in force", "run `nvhc policy check`"),
    Code("MON-LEDGER", "monitor", "the ledger failed", "check disk space and permissions of the state directory"),
    Code("MON-DIAG", "monitor", "a DCGM diagnostic could not be run or read, or was left running", "see the detail; `nvhc doctor`, `nvhc diag --stop`"),
    Code("MON-SLURM", "monitor", "a Slurm command failed", "check slurmctld and the slurm section of the policy"),
    Code("MON-GRES", "monitor", "GPU positions could not be resolved from gres.conf", "give a File= list in gres.conf"),
    Code("MON-ENVIRONMENT", "monitor", "the hook's environment is not what Slurm gives", "is the hook run by slurmd?"),
    Code("MON-BUDGET", "monitor", "the time budget ended before the work", "see what was not run; raise the budget"),
    Code("MON-REPORT", "monitor", "the report for a job's user could not be written", "see the detail; user_report.dir must be a local folder that root alone can write"),
    Code("MON-SITE-HOOK", "monitor", "a program of the site that is told what was done failed", "see the detail; it is told again for a day"),
    Code("MON-EVIDENCE", "monitor", "an evidence bundle could not be written", "check free space and permissions of its folder"),
    Code("MON-INTERNAL", "monitor", "slurm-nvhc failed inside", "report it with the detail"),
)

BY_CODE: Final[Mapping[str, Code]] = {c.code: c for c in ALL}
