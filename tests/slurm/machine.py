"""May a private Slurm be started on this machine, and can its packages be installed? Also run by ./run.

A machine that has a Slurm of its own is never touched: no package is installed there and no daemon started.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol", "sinfo", "sdiag")
CONFIGURED = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
PRIVATE_PREFIX = "nvhc-slurm-"  # the directories of the harness's clusters


def own_slurm() -> str:
    """'' or why this machine is taken for one with a Slurm of its own."""
    for path in CONFIGURED:
        if os.path.exists(path):
            return f"{path} exists"
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                name = Path(f"/proc/{entry}/comm").read_text().strip()
                command = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if name in ("slurmd", "slurmctld") and command and PRIVATE_PREFIX not in command:
                return f"{name} runs (process {entry})"
    return ""


def missing_tools() -> list[str]:
    return [name for name in NEEDED if not shutil.which(name, path=PATH)]


def why_not() -> str:
    """'' when a private Slurm can be started here, otherwise one sentence with what would help."""
    taken = own_slurm()
    if taken:
        return f"this machine has a Slurm of its own ({taken}), and tests do not touch such a machine"
    if os.geteuid() != 0:
        return "a private Slurm needs root"
    missing = missing_tools()
    if missing:
        return f"{', '.join(missing)} not found; on Debian or Ubuntu: apt-get install {PACKAGES}"
    return ""


def can_install() -> bool:
    """True when the packages are all that is missing and may be installed."""
    on_debian = os.path.exists("/etc/debian_version") and shutil.which("apt-get", path=PATH) is not None
    return on_debian and os.geteuid() == 0 and not own_slurm() and bool(missing_tools())


if __name__ == "__main__":
    print("install" if can_install() else why_not())
