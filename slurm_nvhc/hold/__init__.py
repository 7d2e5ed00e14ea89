"""What placeholder jobs do: jobs of root that hold a bad GPU, so that Slurm gives out the others (docs/quarantine.md).

launch: the command line;  place: which GPU a job was given, told by its prolog;  hook: prolog and epilog of such a job;
fill: the job itself.
"""
