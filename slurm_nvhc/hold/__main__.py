"""`python -I -m slurm_nvhc.hold --config F --state D --run D --slurm-conf F --node N --until S [--reservation R]`

What a placeholder job runs. Exit 0: the job holds its GPU, and its script sleeps on. 1: there is nothing to hold.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final, Mapping, Optional, Sequence

from slurm_nvhc.context import Site
from slurm_nvhc.hold.fill import Fill, run
from slurm_nvhc.proc import child, log

_OPTIONS: Final = ("--config", "--state", "--run", "--slurm-conf", "--node", "--until", "--reservation")
_NUMBER: Final = re.compile(r"[0-9]{1,10}")


def parse(argv: Sequence[str], environment: Mapping[str, str]) -> Optional[Fill]:
    """None for anything but the one form in which these jobs are submitted (act/placeholder.py), within an array of Slurm's."""
    values = dict(zip(argv[::2], argv[1::2]))
    number = environment.get("SLURM_JOB_ID", "")
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    known = len(argv) % 2 == 0 and set(values) <= set(_OPTIONS) and set(_OPTIONS[:-1]) <= set(values)
    if not known or not all(_NUMBER.fullmatch(text) for text in (number, array, task, values["--until"])):
        return None
    site = Site(values["--config"], values["--state"], values["--run"], values["--slurm-conf"])
    reservation = values.get("--reservation", "")
    return Fill(site, values["--node"], number, f"{array}_{task}", reservation, float(values["--until"]), environment)


def main(argv: Sequence[str]) -> int:
    fill = parse(argv, os.environ)
    if fill is None:
        log.warning("hold: is run by placeholder jobs only")
        return 1
    try:
        return 0 if run(fill) else 1
    except Exception as exc:  # the job ends, and with it what it has; the health check begins anew
        child.kill_all()
        log.warning(f"placeholder job {fill.job_id}: MON-INTERNAL: {type(exc).__name__}: {exc}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
