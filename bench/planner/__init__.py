"""The planner and executor of act/ against a model of Slurm and of everybody who acts on a node (docs/planner.md)."""
