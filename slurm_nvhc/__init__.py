"""slurm-nvhc: a health-check plugin that makes a Slurm GPU node judge itself around every job."""

__version__ = "0.1.0"
