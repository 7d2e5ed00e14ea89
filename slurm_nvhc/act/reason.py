"""The drain reason, by Jinja2's sandbox over cleaned, bounded data.

jinja2 is imported only here and only when a reason is rendered: about 40 ms
that a healthy hook does not pay. A broken template or a missing jinja2 must
not keep a node with a fault in service: the built-in form takes its place and
the trouble is told.
"""

from __future__ import annotations

import os
from typing import Any, Final, Mapping, Optional, Sequence

from slurm_nvhc.act import words as wd
from slurm_nvhc.errors import NvhcError
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.model.times import iso
from slurm_nvhc.policy.acting import Drain

PACKAGED: Final = "etc/templates/reason.j2"
MAX_TEMPLATE: Final = 64 * 1024
MAX_RENDERED: Final = 16 * 1024


def render(
    findings: Sequence[Finding],
    job: Optional[Job],
    node_gpus: int,
    drain: Drain,
    now_ns: int,
    suspects: Sequence[Suspect] = (),
    names: Mapping[str, str] = {},
    remedy: str = "",
) -> tuple[str, tuple[Trouble, ...]]:
    """(reason, troubles). The reason is one line, begins with "nvhc:", has at most drain.max_length
    characters, no control character and no "|". names: UUID -> "gpu3" of the node's GPUs. remedy: what to
    do about the first finding, '' when nothing is said of it. Never raises.
    """
    job_id = job.job_id if job else ""
    if not findings:
        return wd.plain((), job_id, drain.max_length), ()
    path = drain.template
    try:
        if not path:
            from slurm_nvhc import resources

            path = resources.find(PACKAGED)
        text = _render(_read(path), _context(findings, job, node_gpus, now_ns, wd.suspect(findings, suspects, names), remedy))
        if not " ".join(text.split()):
            raise ValueError("gives an empty text")
        return wd.one_line(text, drain.max_length), ()
    except Exception as exc:  # whatever a site's template does, the node is still drained
        where = path or PACKAGED
        line = getattr(exc, "lineno", None)
        problem = f"{where}{f', line {line}' if isinstance(line, int) else ''}: {_problem(exc)}; the built-in form was used"
        trouble = Trouble("MON-POLICY", "policy", problem) if drain.template else Trouble("MON-INTERNAL", "hook", problem)
        return wd.plain(findings, job_id, drain.max_length, suspects, names, remedy), (trouble,)


def _problem(exc: Exception) -> str:
    if isinstance(exc, NvhcError):
        return wd.clean(exc, 200)
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return wd.clean(f"{type(exc).__name__}: {exc}", 200)


def _read(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        data = file.read(MAX_TEMPLATE + 1) or b""
    if len(data) > MAX_TEMPLATE:
        raise ValueError("is larger than 64 KiB")
    return data.decode("utf-8")


def _context(findings: Sequence[Finding], job: Optional[Job], node_gpus: int, now_ns: int, suspect: str, remedy: str) -> dict[str, Any]:
    first, *more = wd.told(findings)
    owner = job if job and wd.ordered(findings)[0].of_job else None
    return {
        "first": first._asdict(),
        "more": [f._asdict() for f in more],
        "suspect": suspect,
        "remedy": wd.clean(remedy, wd.MAX_REMEDY),
        "job": {
            "id": wd.clean(owner.job_id, 20) if owner else "",
            "user": wd.clean(owner.user, 64) if owner else "",
            "partition": wd.clean(owner.partition, 64) if owner else "",
        },
        "node_gpus": node_gpus,
        "time": iso(now_ns),
    }


def _render(source: str, context: dict[str, Any]) -> str:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    pieces: list[str] = []
    size = 0
    for piece in environment.from_string(source).generate(context):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_RENDERED:
            break
    return "".join(pieces)[:MAX_RENDERED]
