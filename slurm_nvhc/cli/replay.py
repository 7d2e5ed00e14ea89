"""`nvhc replay FILE...`"""

from __future__ import annotations

import argparse

from slurm_nvhc.scenario.replay import replay as one


def replay(args: argparse.Namespace) -> int:
    """The worst exit code of the files: 0 all held, 1 an expectation missed, 2 bad input, 3 trouble."""
    return max(one(path, args.json) for path in args.file)
