"""Findings as short words: names, figures, order. Pure, shared by plan and reason."""

from __future__ import annotations

import re
from typing import Any, Final, Mapping, NamedTuple, Sequence

from slurm_nvhc.catalog import fields, figures
from slurm_nvhc.catalog.findings import BY_CODE
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.model.times import duration

PREFIX: Final = "nvhc:"
MAX_LINKS: Final = 4  # named one by one; more are counted
MAX_WORDS: Final = 120  # characters of any one text from outside within a reason
MAX_SUSPECT: Final = 60
MAX_REMEDY: Final = 40

_EVENTS: Final = {"xid": "Xid", "sxid": "SXid"}  # Evidence.field of events
_VERDICTS: Final = {fd.FAIL: 0, fd.WARN: 1, fd.UNKNOWN: 2, fd.OK: 3}


def clean(value: object, limit: int = MAX_WORDS) -> str:
    """One line without control characters and without "|" (which would break sinfo's columns)."""
    text = str(value)[: limit * 4]
    kept = "".join("/" if c == "|" else c if c.isprintable() else ("?" if "\ud800" <= c <= "\udfff" else " ") for c in text)
    kept = " ".join(kept.split())
    return kept if len(kept) <= limit else cut(kept, limit)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut at a word and marked with "…"."""
    if len(text) <= limit:
        return text
    head = text[: max(0, limit - 1)]
    at = head.rfind(" ")
    if text[len(head)] != " " and at > len(head) // 2:
        head = head[:at]
    return (head.rstrip(" ,;") + "…")[:limit]


def short_uuid(uuid: str) -> str:
    """GPU-1f2e3d4c…: the first block, which CUDA takes as an abbreviated UUID too."""
    head = uuid.split("-")
    return f"GPU-{head[1][:8]}…" if len(head) > 2 and head[0] == "GPU" else clean(uuid, 40)


def key(finding: Finding) -> str:
    """What a drain answers: "CODE entity"."""
    return f"{finding.code} {finding.entity}"


def gpu_name(finding: Finding) -> str:
    """gpuN with the NVML index, "gpu?" where only an address or a UUID is known, '' when no GPU is meant."""
    index = finding.gpu.get("nvml_index", finding.gpu.get("index"))
    if isinstance(index, int):
        return f"gpu{index}"
    if ent.gpu_of(finding.entity) or finding.entity.startswith("pci:") or finding.gpu.get("pci"):
        return "gpu?"
    return ""


class Words(NamedTuple):
    """One finding for a template; every text is cleaned, bounded, '' when there is none."""

    code: str
    klass: str
    verdict: str
    gpu: str
    uuid: str
    short: str
    pci: str
    link: str
    where: str
    what: str
    window: str
    message: str
    brief: str


def words(finding: Finding) -> Words:
    uuid = clean(ent.gpu_of(finding.entity))
    link = ent.split_link(finding.entity)[1]
    gpu = clean(gpu_name(finding), 20)
    kind, colon, name = finding.entity.partition(":")
    pci = clean(finding.gpu.get("pci") or (name if kind == "pci" else ""), 40)
    where = ""
    if not gpu and kind in ("monitor", "switch") and colon:
        where = clean(name if kind == "monitor" else f"switch {name}", 60)
    elif not gpu and finding.entity != ent.NODE:
        where = clean(finding.entity, 60)
    return Words(
        code=clean(finding.code, 40),
        klass=clean(finding.klass, 20),
        verdict=clean(finding.verdict, 20),
        gpu=gpu,
        uuid=uuid,
        short=short_uuid(uuid) if uuid else "",
        pci=pci,
        link="" if link is None else f"link{link}",
        where=where,
        what=what(finding),
        window="" if finding.absolute else _lasted(finding),
        message=clean(finding.message),
        brief=_brief(finding, gpu or where),
    )


def what(finding: Finding) -> str:
    """The figure that convicts: "replay +21200", "recovery action GPU reset", "row remap failed"; else the message."""
    ev = finding.evidence
    field = fields.BY_NAME.get(ev.field)
    if ev.learned and finding.message:
        # "RDMA port state absent (learned 4 (active))", as `nvhc check` says it; the link is named beside it.
        link = ent.split_link(finding.entity)[1]
        return clean(finding.message.removeprefix(f"link{link} ").replace(": ", " ", 1))
    if field is not None and ev.amount is not None and _is_number(ev.amount):
        # What was gathered over many jobs tells its own time: the window of a job would read as this job's.
        gathered = f" in {_lasted(finding)}" if finding.absolute and _lasted(finding) else ""
        return f"{field.label} {'at least ' if ev.bound == 'at_least' else ''}+{figures.amount(ev.amount, field)}{gathered}"
    if field is not None and field.kind == fields.FLAG and ev.after == 1:
        return field.label
    if field is not None and isinstance(ev.after, (int, float, str)):
        after = field.words.get(ev.after, ev.after) if isinstance(ev.after, int) else ev.after
        limit = f"of {ev.limit:g}" if ev.limit is not None and _is_number(ev.limit) else ""
        return clean(f"{field.label} {after} {limit} {'' if field.words or field.kind == fields.STATE else field.unit}")
    code = BY_CODE.get(finding.code)
    return clean(finding.message or ev.text or (code.meaning if code else ""))


def _lasted(finding: Finding) -> str:
    """How long it took a counter to grow, '' where that is not said."""
    ev = finding.evidence
    return duration(ev.seconds) if ev.amount is not None and ev.seconds is not None and _is_number(ev.seconds) and ev.seconds else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Worst first; hardware before our own means; otherwise as given."""
    return sorted(findings, key=lambda f: (_VERDICTS.get(f.verdict, 4), f.klass == "monitor"))


def brief(finding: Finding) -> str:
    """ "NVL-CRC gpu3", "XID-FATAL gpu3 Xid 79"; for a list of further findings."""
    return words(finding).brief


def _brief(finding: Finding, where: str) -> str:
    xid = f"{_EVENTS[finding.evidence.field]} {clean(finding.evidence.after, 10)}" if finding.evidence.field in _EVENTS else ""
    return " ".join(part for part in (clean(finding.code, 40), where, xid) if part)


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Without those that read the same in a list: one code on one GPU."""
    seen: dict[str, Finding] = {}
    for finding in findings:
        seen.setdefault(_group(finding), finding)
    return list(seen.values())


def _group(finding: Finding) -> str:
    return f"{brief(finding)} {ent.gpu_of(finding.entity) or finding.entity}"


def told(findings: Sequence[Finding]) -> list[Words]:
    """The distinct findings in words, worst first; one that stands for several links of its GPU says how many."""
    ranked = ordered(findings)
    out = []
    for finding in distinct(ranked):
        links = {f.entity for f in ranked if _group(f) == _group(finding) and ent.split_link(f.entity)[1] is not None}
        w = words(finding)
        numbers = sorted(n for n in (ent.split_link(e)[1] for e in links) if n is not None)
        many = f"{len(numbers)} links" if len(numbers) > MAX_LINKS else ",".join(f"link{n}" for n in numbers)
        out.append(w._replace(link=many) if len(numbers) > 1 else w)
    return out


def suspect(findings: Sequence[Finding], suspects: Sequence[Suspect], gpus: Mapping[str, str] = {}) -> str:
    """The part that the worst finding points to, where that is another than the finding names itself; else ''.

    gpus: UUID -> "gpu2" of the node's GPUs; the suspect may be one that nothing was found on.
    """
    worst = ordered(findings)[0]
    behind = next((s for s in suspects if key(worst) in s.findings), None)
    itself = (su.GPU, ent.gpu_of(worst.entity)), (su.LINK, worst.entity), (su.SWITCH, worst.entity)
    if behind is None or not behind.named or (behind.kind, behind.entity) in itself:
        return ""
    return clean(su.label(behind, {**gpus, **names(findings)}), MAX_SUSPECT)


def plain(
    findings: Sequence[Finding],
    job_id: str,
    max_length: int,
    suspects: Sequence[Suspect] = (),
    gpus: Mapping[str, str] = {},
    remedy: str = "",
) -> str:
    """The reason without a template: the same form as the packaged one."""
    if not findings:
        return cut(f"{PREFIX} no finding", max_length)
    w, *more = told(findings)
    parts = [PREFIX, w.code, *([f"{w.where}:"] if w.where else [w.gpu, w.short, w.pci, w.link]), w.what]
    if w.window:
        parts.append(f"in {w.window}")
    if job_id and ordered(findings)[0].of_job:
        parts.append(f"{'' if w.window else 'seen at '}job {clean(job_id, 20)}")
    text = " ".join(part for part in parts if part)
    accused = suspect(findings, suspects, gpus)
    if accused:
        text += f"; suspect {accused}"
    if remedy:
        text += f"; do: {clean(remedy, MAX_REMEDY)}"
    if more:
        text += f"; +{len(more)} more: " + ", ".join(f.brief for f in more)
    return one_line(text, max_length)


def one_line(text: str, max_length: int) -> str:
    """Any text as a reason of ours: one line, prefix, at most max_length characters."""
    cleaned = clean(text, max(max_length, len(PREFIX)) * 2)
    if not cleaned.startswith(PREFIX):
        cleaned = f"{PREFIX} {cleaned}"
    return cut(cleaned, max_length)


def extend(reason: str, more: Sequence[str], max_length: int) -> str:
    """A reason of ours with further "CODE gpuN" at its end; the reason itself when there is no room."""
    added = [item for item in dict.fromkeys(more) if item and item not in reason]
    longer = f"{reason}; also {', '.join(added)}"
    if not added:
        return reason
    return longer if len(longer) <= max_length else reason


def names(findings: Sequence[Finding]) -> Mapping[str, str]:
    """UUID -> "gpu3" for the GPUs whose NVML index the findings know."""
    found = {ent.gpu_of(f.entity): gpu_name(f) for f in findings if ent.gpu_of(f.entity)}
    return {uuid: name for uuid, name in found.items() if name != "gpu?"}


def names_it(reason: str, finding: Finding) -> bool:
    """Does somebody's drain reason speak of this finding: by its code, its Xid, or its GPU in any form?"""
    uuid = ent.gpu_of(finding.entity)
    said = [finding.code, gpu_name(finding), str(finding.gpu.get("pci") or ""), uuid[:12]]
    if finding.evidence.field in _EVENTS:
        name = _EVENTS[finding.evidence.field].lower()
        said += [f"{name} {finding.evidence.after}", f"{name}{finding.evidence.after}"]
    spoken = re.sub(r"gpu[ :#]*(\d)", r"gpu\1", reason.lower())
    return any(re.search(rf"(?<![\w]){re.escape(word.lower())}(?![\d])", spoken) for word in said if word and word != "gpu?")
