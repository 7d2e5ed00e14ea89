"""What Slurm says: the job in a hook's environment, gres.conf's GPU positions, a node's state."""
