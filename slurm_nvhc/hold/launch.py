"""The command line of the program that a placeholder job runs. Light: hooks build it."""

from __future__ import annotations

import sys

from slurm_nvhc.context import Site


def program(site: Site, node: str, slurm_conf: str) -> tuple[str, ...]:
    """Without what differs from one array of jobs to the next: act/placeholder.py adds that."""
    python = sys.executable or "python3"
    places = ("--config", site.config, "--state", site.state, "--run", site.run, "--slurm-conf", slurm_conf)
    return (python, "-I", "-m", "slurm_nvhc.hold", *places, "--node", node)
