#!/bin/sh
# slurm-nvhc: slurmd runs this as Prolog, as root, before a job. Written by `nvhc hooks install`.
HOOK=prolog
@LAUNCHER@
