"""What changed between two snapshots? Pure."""

from slurm_nvhc.compare.compare import compare, noteworthy, window_seconds

__all__ = ["compare", "noteworthy", "window_seconds"]
