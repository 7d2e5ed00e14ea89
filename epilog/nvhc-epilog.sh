#!/bin/sh
# slurm-nvhc: slurmd runs this as Epilog, as root, after a job. Written by `nvhc hooks install`.
HOOK=epilog
@LAUNCHER@
