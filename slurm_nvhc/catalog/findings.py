"""Finding codes: what each means and what to do. A code never changes its meaning."""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple


class Code(NamedTuple):
    """klass: gpu, link, switch, node, job or monitor. short: the words used in a drain reason.

    narrowable: the GPU can be left out of a job's sight with the rest in use. False
    where the fault hurts its peers or the GPU does not answer.
    """

    code: str
    klass: str
    meaning: str
    advice: str
    narrowable: bool = True


ALL: Final = (
    Code("NVL-STORM", "link", "an NVLink retries or corrupts at a rate that no healthy link shows", "reset the GPU; if it returns, reseat or replace GPU or baseboard"),
    Code("NVL-REPLAY", "link", "an NVLink had to resend data", "watch; if it returns on the same link, run the field diagnostic"),
    Code("NVL-RECOVERY", "link", "an NVLink had to retrain", "watch; if it returns on the same link, run the field diagnostic"),
    Code("NVL-CRC", "link", "an NVLink received damaged data (corrected by resending)", "watch; high rates need the field diagnostic"),
    Code("NVL-DOWN", "link", "an NVLink is down that was up or is expected up", "check fabric manager, then reset the GPU, then reboot", narrowable=False),
    Code("MEM-UNCORRECTABLE", "gpu", "uncorrectable memory errors: data was lost", "reset the GPU; repeated: field diagnostic, RMA"),
    Code("MEM-REMAP-FAILED", "gpu", "a bad memory row could not be remapped", "field diagnostic, then RMA"),
    Code("MEM-REMAP-PENDING", "gpu", "a bad memory row is remapped at the next GPU reset", "reset the GPU when it is idle"),
    Code("MEM-REMAPPED", "gpu", "memory rows were remapped", "watch the trend"),
    Code("MEM-SRAM", "gpu", "on-chip memory errors passed the vendor's threshold", "RMA"),
    Code("MEM-CORRECTED", "gpu", "corrected memory errors grew", "watch the trend"),
    Code("MEM-RETIRED", "gpu", "memory pages were retired", "pending: reset the GPU; 63 or more: RMA"),
    Code("GPU-LOST", "gpu", "a GPU that should be here does not answer", "reboot; repeated: check power, seating and riser; taken out on purpose: `nvhc gpu forget`", narrowable=False),
    Code("GPU-RECOVERY", "gpu", "the driver asks for a recovery action", "do what the action says", narrowable=False),
    Code("GPU-SWAPPED", "gpu", "another card sits in this slot than before", "none, if you swapped it"),
    Code("GPU-NEW", "gpu", "a GPU appeared that was not known", "none, if you added it"),
    Code("XID-FATAL", "gpu", "the driver logged an Xid that makes the GPU unusable until reset or reboot", "see the Xid's own advice", narrowable=False),
    Code("XID-CONTAINED", "gpu", "a contained uncorrectable error killed one application", "watch; twice in a day: field diagnostic"),
    Code("XID-NVLINK", "gpu", "the driver logged a fatal NVLink error", "reset the GPU; check the peer that failed first", narrowable=False),
    Code("XID-MEMORY", "gpu", "the driver recorded a memory repair or a high error rate", "watch; reset when idle if a remap is pending"),
    Code("XID-APP", "gpu", "an Xid that applications usually cause", "tell the user; the GPU only if it follows the GPU across users"),
    Code("XID-OTHER", "gpu", "an Xid without a rule of its own", "look it up in the vendor's catalogue"),
    Code("PCIE-REPLAY", "gpu", "PCIe resends more than its speed explains", "reseat; check riser and retimer"),
    Code("PCIE-WIDTH", "gpu", "PCIe runs on fewer lanes than GPU and slot can", "reseat; check riser"),
    Code("PCIE-GEN", "gpu", "PCIe runs at a lower generation than possible under load", "reseat; check riser and BIOS"),
    Code("THERMAL-SLOWDOWN", "gpu", "the GPU slowed itself down for heat", "check airflow, inlet temperature, cooling loop"),
    Code("THERMAL-MARGIN", "gpu", "the GPU is at its temperature limit", "check airflow, inlet temperature, cooling loop"),
    Code("POWER-BRAKE", "gpu", "the chassis asked the GPU to brake", "check power supplies and chassis"),
    Code("POWER-CAP", "gpu", "the GPU was held at its power limit", "none: normal under load"),
    Code("FABRIC-STATE", "gpu", "the NVLink fabric is not ready for this GPU", "check fabric manager; reboot", narrowable=False),
    Code("CONFIG-ECC", "gpu", "ECC is not as it should be", "set ECC mode and reset the GPU"),
    Code("GPU-EXCLUDED", "gpu", "the GPU was excluded earlier and not released since", "repair it, then `nvhc gpu release`"),
    Code("DCGM-HEALTH", "gpu", "DCGM's own health check complains: evidence, at most a warning", "look at what is found beside it; set aside: nothing"),
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
    Code("MON-POLICY", "monitor", "the policy file is broken; the last good one stays in force", "run `nvhc policy check`"),
    Code("MON-LEDGER", "monitor", "the ledger failed", "check disk space and permissions of the state directory"),
    Code("MON-SLURM", "monitor", "a Slurm command failed", "check slurmctld and the slurm section of the policy"),
    Code("MON-GRES", "monitor", "GPU positions could not be resolved from gres.conf", "give a File= list in gres.conf"),
    Code("MON-ENVIRONMENT", "monitor", "the hook's environment is not what Slurm gives", "is the hook run by slurmd?"),
    Code("MON-BUDGET", "monitor", "the time budget ended before the work", "see what was not run; raise the budget"),
    Code("MON-INTERNAL", "monitor", "slurm-nvhc failed inside", "report it with the detail"),
)

BY_CODE: Final[Mapping[str, Code]] = {c.code: c for c in ALL}
