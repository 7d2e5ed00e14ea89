"""Pages that are made from the catalogues stay current. `python tests/test_docs.py` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_nvhc.catalog import fields, findings, sxids, xids

DOCS = Path(__file__).parent.parent / "docs"


def findings_page() -> str:
    lines = [
        "# Findings",
        "",
        "A finding says one thing about one GPU, link, node, or about our own means. Its code never changes",
        "its meaning. Findings of class *monitor* are trouble with DCGM, Slurm, the policy or slurm-nvhc",
        "itself: they never speak about a GPU and by default never drain. *Narrow* says whether a policy that",
        "narrows may hide just this GPU from jobs for it; otherwise the node is drained.",
        "",
        "| code | class | meaning | what to do | narrow |",
        "|---|---|---|---|---|",
    ]
    for code in findings.ALL:
        narrow = "" if code.klass in ("monitor", "node") else ("yes" if code.narrowable else "no")
        lines.append(f"| `{code.code}` | {code.klass} | {code.meaning} | {code.advice} | {narrow} |")
    return "\n".join(lines) + "\n"


def fields_page() -> str:
    lines = [
        "# Fields",
        "",
        "Every reading that a rule can name, in a policy by its name or by its DCGM field id. *Cleared by* is",
        "what sets a counter back to 0; a counter that went back in a window gives a lower bound, never a",
        "negative amount. Per-link counters have one DCGM id per link, which are not contiguous; those of NVLink 5",
        "one id for all links.",
        "",
        "| name | DCGM id | of | kind | unit | meaning | cleared by | where |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for field in fields.ALL:
        ids = str(field.dcgm_id) if field.dcgm_id is not None else ("per link" if field.link_ids else str(field.link_entity_id or "-"))
        if field.bits is not None:
            ids += f", bits {field.bits[0]} to {sum(field.bits) - 1}"
        where = field.generations if field.live else f"{field.generations}; in the watch's history only"
        cleared = ", ".join(sorted(field.cleared_by)).replace("_", " ") or ("never" if field.kind == fields.COUNTER else "-")
        cells = [f"`{field.name}`", ids, field.scope, field.kind, field.unit or "-", field.label, cleared, where]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Known not to exist",
        "",
        "On these models (NVML's name, as a shell pattern) a reading that is blank means that it does not apply;",
        "elsewhere a blank reading of a rule's field makes the GPU *unknown*.",
        "",
        "| fields | not on |",
        "|---|---|",
    ]
    for patterns in dict.fromkeys(f.absent_on for f in fields.ALL if f.absent_on):
        names = ", ".join(f"`{f.name}`" for f in fields.ALL if f.absent_on == patterns)
        models = ", ".join(f"`{p}`" for p in patterns)
        lines.append(f"| {names} | {models} |")
    return "\n".join(lines) + "\n"


def xids_page() -> str:
    lines = [
        "# Xids and SXids",
        "",
        "What the driver's error numbers mean. *First* and *again* are NVIDIA's buckets for the first occurrence",
        "and for one that comes again; *DCGM health* is what DCGM 4.6's own health check makes of it, *checker* what",
        "a public node checker (gpud) does. Where they disagree on whether the GPU may go on, the number is marked",
        "with an asterisk. What an Xid leads to here is the policy's business, see [policy.md](policy.md); numbers",
        "that are missing in this table are kept and told as numbers.",
        "",
        "| Xid | meaning | class | the application's doing | first | again | DCGM health | checker | note |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for x in sorted(xids.ALL, key=lambda x: x.number):
        number = f"{x.number}\\*" if x.disputed else str(x.number)
        cells = [number, x.meaning, x.klass, x.app_fault, x.action or "-", x.then or "-", x.health or "-", x.checker or "-", x.note]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## SXids of NVSwitches",
        "",
        "*non-fatal*: the switch got over it. *fatal*: a link is lost, and the jobs on it. *always-fatal*: the whole",
        "fabric. The line's own word counts; the table speaks where the line has none.",
        "",
        "| SXid | class | meaning | vendor |",
        "|---|---|---|---|",
    ]
    lines += [f"| {x.number} | {x.klass} | {sxids.meaning(x.number)} | {x.action or '-'} |" for x in sorted(sxids.ALL)]
    return "\n".join(lines) + "\n"


PAGES = {"findings.md": findings_page, "fields.md": fields_page, "xids.md": xids_page}


def test_generated_pages_are_current():
    for name, page in PAGES.items():
        assert (DOCS / name).read_text() == page(), f"docs/{name} is old: run python tests/test_docs.py"


def test_links_between_pages_lead_somewhere():
    root = DOCS.parent
    for page in [*root.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


if __name__ == "__main__":
    for file, make in PAGES.items():
        (DOCS / file).write_text(make())
