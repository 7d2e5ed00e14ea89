"""The job that a hook runs for, from the environment that slurmd gives it.

Nothing here trusts a value: names come from outside (a user name from any
directory service, a comment from the user), so lengths are bounded, control
characters become spaces and bytes that are not UTF-8 become "?".
"""

from __future__ import annotations

import re
from typing import Final, Mapping, Optional

from slurm_nvhc.model.job import Job
from slurm_nvhc.model.snapshot import Trouble

MAX_NAME: Final = 128  # characters of a user or partition name that are kept
MAX_COMMENT: Final = 512
MAX_LIST: Final = 4096  # characters of SLURM_JOB_GPUS or CUDA_VISIBLE_DEVICES
MAX_POSITION: Final = 1023  # no node has more GPUs; keeps "0-999999999" from filling memory
_MAX_NUMBER: Final = 2**32  # a uid, a node count, a wait status: all are 32 bit in Slurm

_DIGITS: Final = re.compile(r"[0-9]{1,10}")
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def clean(text: str, limit: int) -> str:
    """One line of printable text, at most ``limit`` characters; '' stays ''."""
    kept = "".join(c if c.isprintable() else ("?" if "\ud800" <= c <= "\udfff" else " ") for c in text[: limit * 4])
    return " ".join(kept.split())[:limit]


def node_name(env: Mapping[str, str], fallback: str) -> str:
    """SLURMD_NODENAME, or ``fallback`` (the host name), safe as a directory's name.

    Several slurmds may run on one host, so the host name is only the second choice.
    """
    for name in (env.get("SLURMD_NODENAME", ""), fallback):
        if _NODE.fullmatch(name) and ".." not in name:
            return name
    return "localhost"


def positions(text: str) -> Optional[tuple[int, ...]]:
    """'0-2,4' as (0, 1, 2, 4), in the order given and each once. None when it is not such a list."""
    found: dict[int, None] = {}
    for item in text[: MAX_LIST + 1].split(","):
        low, dash, high = item.strip().partition("-")
        if not _DIGITS.fullmatch(low) or (dash and not _DIGITS.fullmatch(high)):
            return None
        first, last = int(low), int(high if dash else low)
        if not first <= last <= MAX_POSITION:
            return None
        found.update(dict.fromkeys(range(first, last + 1)))
    return tuple(found) if len(text) <= MAX_LIST else None


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.troubles: list[Trouble] = []

    def trouble(self, name: str, problem: str) -> None:
        self.troubles.append(Trouble("MON-ENVIRONMENT", "environment", f"{name} {problem}"))

    def first(self, *names: str) -> tuple[str, str]:
        """(name, value) of the first variable that is set and not empty."""
        for name in names:
            if self.env.get(name):
                return name, self.env[name]
        return names[0], ""

    def number(self, *names: str, least: int = 0) -> Optional[int]:
        name, value = self.first(*names)
        if not value:
            return None
        if _DIGITS.fullmatch(value.strip()) and least <= int(value) < _MAX_NUMBER:
            return int(value)
        self.trouble(name, f"is not a number: {clean(value, 40)!r}")
        return None

    def name(self, *names: str) -> str:
        variable, value = self.first(*names)
        cleaned = clean(value, MAX_NAME)
        if cleaned != value:
            self.trouble(variable, f"is not a plain name of at most {MAX_NAME} characters, taken as {clean(value, 40)!r}")
        return cleaned


def job_from_environment(env: Mapping[str, str]) -> tuple[Job | None, tuple[Trouble, ...]]:
    """The job, and what is wrong with the environment. Never raises.

    None without a usable job id: nothing can be paired or named then. Every
    other value may be missing ('' or None: Slurm's versions differ in what
    they give); one that is given and makes no sense is a MON-ENVIRONMENT
    trouble and counts as missing. SLURM_JOB_GPUS absent or empty means a job
    without GPUs.
    """
    read = _Reader(env)
    variable, job_id = read.first("SLURM_JOB_ID", "SLURM_JOBID")
    if not _DIGITS.fullmatch(job_id.strip()):
        read.trouble(variable, f"is not a job id: {clean(job_id, 40)!r}" if job_id else "is not set: is the hook run by slurmd?")
        return None, tuple(read.troubles)
    given = env.get("SLURM_JOB_GPUS", "").strip()
    gpus = positions(given) if given else None
    if given and gpus is None:
        read.trouble("SLURM_JOB_GPUS", f"is not a list of GPU positions: {clean(given, 40)!r}")
    job = Job(
        job_id=job_id.strip(),
        uid=read.number("SLURM_JOB_UID", "SLURM_UID"),
        user=read.name("SLURM_JOB_USER"),
        partition=read.name("SLURM_JOB_PARTITION"),
        positions=gpus,
        visible=clean(env.get("CUDA_VISIBLE_DEVICES", ""), MAX_LIST),
        nodes=read.number("SLURM_JOB_NUM_NODES", least=1),
        tasks=read.number("SLURM_JOB_NTASKS", least=1),
        # The comment is the user's own free text: cleaned without ado, or users could raise monitor findings.
        comment=clean(env.get("SLURM_JOB_COMMENT", ""), MAX_COMMENT),
        exit_code=read.number("SLURM_JOB_EXIT_CODE"),
    )
    return job, tuple(read.troubles)
