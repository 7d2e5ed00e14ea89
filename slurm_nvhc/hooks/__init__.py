"""What Slurm calls: prolog, epilog and health check (`python -m slurm_nvhc.hooks`), and their installation."""
