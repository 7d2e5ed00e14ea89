#!/bin/sh
# slurm-nvhc: slurmd runs this as HealthCheckProgram, as root, when it starts and between jobs. Written by `nvhc hooks install`.
HOOK=health_check
@LAUNCHER@
