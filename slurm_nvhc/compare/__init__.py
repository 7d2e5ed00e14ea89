"""What changed between two snapshots? Pure."""

from slurm_nvhc.compare.compare import compare, noteworthy, window_seconds
from slurm_nvhc.compare.since import since
from slurm_nvhc.compare.tally import tally

__all__ = ["compare", "noteworthy", "since", "tally", "window_seconds"]
