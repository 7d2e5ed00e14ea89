"""Pages that are made from the catalogues stay current. `python tests/test_docs.py` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_nvhc.catalog import fields, findings

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
        "negative amount. Per-link counters have one DCGM id per link, which are not contiguous.",
        "",
        "| name | DCGM id | of | kind | unit | meaning | cleared by | where |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for field in fields.ALL:
        ids = str(field.dcgm_id) if field.dcgm_id is not None else ("per link" if field.link_ids else "-")
        cleared = ", ".join(sorted(field.cleared_by)).replace("_", " ") or ("never" if field.kind == fields.COUNTER else "-")
        cells = [f"`{field.name}`", ids, field.scope, field.kind, field.unit or "-", field.label, cleared, field.generations]
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


PAGES = {"findings.md": findings_page, "fields.md": fields_page}


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
