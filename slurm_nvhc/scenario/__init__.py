"""Scenario files: a node, a Slurm, a policy, what happens, and what must come of it.

A scenario is the form of a bug report and of an acceptance case. It is run through the
real launchers, hooks and reader process; only the node's hardware and Slurm's commands
are played. Reference for people: docs/scenarios.md.
"""
