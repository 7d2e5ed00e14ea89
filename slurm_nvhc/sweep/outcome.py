"""What an ended job of a sweep says of its node. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.model import finding as fd
from slurm_nvhc.proc.child import Result as Ended
from slurm_nvhc.slurm.command import one_line

BAD_INPUT: Final = 2  # nvhc's exit status then
VERDICTS: Final = (fd.OK, fd.WARN, fd.FAIL, fd.UNKNOWN)
# srun's and slurmstepd's own words about a job that did not come to its end by itself (observed on 22.05).
_CUT: Final = (
    (re.compile(r"DUE TO PREEMPTION"), "pre-empted by another job"),
    (re.compile(r"DUE TO TIME LIMIT"), "ended at its time limit"),
    (re.compile(r"DUE TO NODE FAILURE|Node failure on"), "its node failed"),
    (re.compile(r"CANCELLED AT|Force Terminated"), "cancelled"),
    (re.compile(r"already completing or completed|Job allocation \S+ has been revoked"), "cancelled while it waited"),
)
_REFUSED: Final = re.compile(r"Unable to allocate resources|Job submit/allocate failed|invalid (?:partition|account|qos)", re.IGNORECASE)


class Gpu(NamedTuple):
    """A GPU that the node's own nvhc found something about. name: "gpu3". why: its findings, one line."""

    name: str
    uuid: str
    verdict: str
    why: str = ""


class NodeResult(NamedTuple):
    """verdict: one of VERDICTS. seconds: of the diagnostic itself. at_ns: when its job ended. tries: jobs that it took.

    why: what makes it unknown, or the first finding that names no GPU; '' = nothing to say.
    document: what nvhc on the node printed, {} when it printed nothing that can be read.
    """

    node: str
    verdict: str
    gpus: tuple[Gpu, ...] = ()
    seconds: float = 0.0
    at_ns: int = 0
    tries: int = 1
    why: str = ""
    document: Mapping[str, Any] = {}


class Verdict(NamedTuple):
    """result: None when the job told nothing of the node, and why is what happened to it.

    refused: Slurm did not take the job, or nvhc on the node its words; the next one is refused as well unless something changes.
    """

    result: Optional[NodeResult]
    why: str = ""
    refused: bool = False


def judge(node: str, ended: Ended, at_ns: int) -> Verdict:
    """srun's end. Anything but a document of this node is no result: an exit code alone says nothing of a GPU."""
    document = _document(ended.out)
    if document is not None and document.get("node") == node:
        stopped = document.get("outcome") == "stopped"
        if not (stopped and _cut(ended.err)):
            return Verdict(of_document(document, at_ns))
    if ended.problem:
        return Verdict(None, f"srun: {ended.problem}")
    cut = _cut(ended.err)
    if cut:
        return Verdict(None, cut)
    if document is not None:
        return Verdict(None, f"the answer is of node {str(document.get('node'))[:60]!r}: is SLURMD_NODENAME set in jobs there?")
    said = _last_words(ended.err)
    if ended.rc and _REFUSED.search(ended.err):
        return Verdict(None, f"Slurm refused the job: {said}", refused=True)
    return Verdict(None, f"nvhc on the node gave no answer (exit {ended.rc}){f': {said}' if said else ''}", ended.rc == BAD_INPUT)


def of_document(document: Mapping[str, Any], at_ns: int) -> NodeResult:
    """What matters of the JSON that nvhc prints on a node. What is not as it should be is unknown, and said."""
    verdict, seconds, rows = document.get("verdict"), document.get("seconds"), document.get("gpus")
    why = str(document.get("why") or "")
    if verdict not in VERDICTS:
        verdict, why = fd.UNKNOWN, f"verdict {str(verdict)[:20]!r} is not known: is another version of nvhc on the node?"
    gpus = tuple(_gpu(row) for row in rows if isinstance(row, Mapping)) if isinstance(rows, list) else ()
    return NodeResult(
        node=str(document.get("node", "")),
        verdict=verdict,
        gpus=tuple(gpu for gpu in gpus if gpu.verdict != fd.OK),
        seconds=float(seconds) if isinstance(seconds, (int, float)) else 0.0,
        at_ns=at_ns,
        why=one_line(why),
        document=document,
    )


def _gpu(row: Mapping[str, Any]) -> Gpu:
    verdict = row.get("verdict")
    name, uuid, why = (one_line(str(row.get(key) or "")) for key in ("gpu", "uuid", "why"))
    return Gpu(name, uuid, verdict if verdict in VERDICTS else fd.UNKNOWN, why)


def _document(out: str) -> Optional[Mapping[str, Any]]:
    """The first JSON object of ours in what the job printed: a site's task prolog may print before and after it."""
    decoder, at = json.JSONDecoder(), out.find("{")
    while at >= 0:
        try:
            value, _end = decoder.raw_decode(out, at)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and value.get("schema") == 1 and "verdict" in value:
            return value
        at = out.find("\n{", at + 1)
        at = at + 1 if at >= 0 else at
    return None


def _cut(err: str) -> str:
    return next((why for pattern, why in _CUT if pattern.search(err)), "")


def _last_words(err: str) -> str:
    lines = [line for line in err.split("\n") if line.strip()]
    told = [line for line in lines if "Exited with exit code" not in line] or lines
    return one_line(told[-1].removeprefix("srun: error: ")) if told else ""
