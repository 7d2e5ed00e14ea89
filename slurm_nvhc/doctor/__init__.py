"""`nvhc doctor`: is this machine set up so that the hooks can do their work?

``gather`` collects facts (the only part that touches anything), ``examine`` judges them (pure).
Nothing is changed on the node, in the engine or in Slurm.
"""
