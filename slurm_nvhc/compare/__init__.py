"""What changed between two snapshots? Pure."""

from slurm_nvhc.compare.compare import compare, window_seconds

__all__ = ["compare", "window_seconds"]
