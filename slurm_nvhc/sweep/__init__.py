"""`nvhc sweep`: one diagnostic a node, each as an ordinary Slurm job of low priority (docs/diagnostics.md).

Slurm is the engine: it waits, places and pre-empts. What is decided here is only which nodes have a job in its queue just now
(`plan`, pure), and what an ended job says of its node (`outcome`, pure). `queue` runs Slurm's commands, `store` keeps one
result a node, so that an interrupted sweep goes on, `run` composes them.
"""
