"""docs/policy.md: its examples compile, its tables are complete. `python tests/test_policy_docs.py` writes the generated ones anew."""

from __future__ import annotations

import os
import re

import msgspec
import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.policy import compiled, schema
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.rules import NOT_FOR_RULES

ROOT = os.path.join(os.path.dirname(__file__), "..")
PAGE = os.path.join(ROOT, "docs", "policy.md")
with open(PAGE, encoding="utf-8") as _file:
    TEXT = _file.read()
with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as _file:
    README = _file.read()
# The first word of everything in backticks in a table.
TABLED = {word for line in TEXT.splitlines() if line.startswith("|") for word in re.findall(r"`(\w+)[^`]*`", line)}
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
CODES_HEAD = "| code | meaning | what to do |\n|---|---|---|\n"
FIELDS_HEAD = "| name | DCGM id | what | kind | unit | where |\n|---|---|---|---|---|---|\n"
PLACES = {
    cat.GPU: "", cat.LINK: "each link", cat.SWITCH: "each NVSwitch", cat.SWITCH_PORT: "each port of an NVSwitch",
    cat.RDMA: "each RDMA port", cat.NODE: "the node",
}  # fmt: skip
HEAD = "| acts from day one | action | when |\n|---|---|---|\n"


def acting() -> list[compiled.Rule]:
    """The packaged rules that can drain or narrow as they come."""
    rules = compiled.resolve(compile_policy(None, "")).rules.values()
    return [rule for rule in rules if rule.mode == "enforce" and rule.fail and rule.action in ("drain", "narrow")]


def acting_table() -> str:
    return HEAD + "".join(f"| `{rule.name}` ({rule.finding}) | {rule.action} | {rule.text[1]} |\n" for rule in acting())


def codes_table() -> str:
    told = [c for c in codes.ALL if c.klass != "monitor" and c.code not in NOT_FOR_RULES]
    return CODES_HEAD + "".join(f"| {c.code} | {c.meaning} | {c.advice} |\n" for c in told)


def fields_table() -> str:
    rows = []
    for f in cat.ALL:
        where = "; ".join(part for part in (PLACES[f.scope], f.generations) if part and part != "all")
        rows.append(f"| `{f.name}` | {f.dcgm_id or ''} | {f.label} | {f.kind} | {f.unit} | {where} |\n")
    return FIELDS_HEAD + "".join(rows)


TABLES = {HEAD: acting_table, FIELDS_HEAD: fields_table, CODES_HEAD: codes_table}


def test_what_acts_from_day_one_is_told_completely() -> None:
    assert acting_table() + "\n" in TEXT, "run python tests/test_policy_docs.py"
    told = README[README.index("From then on these rules") : README.index("All others observe")]
    assert re.findall(r"`([a-z0-9_]+)`", told) == [rule.name for rule in acting()]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_compiles(example: str) -> None:
    compiled.resolve(compile_policy(example, "docs/policy.md"), "n001", "batch")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 10


def test_every_field_and_every_code_of_a_rule_is_listed() -> None:
    for table in (fields_table(), codes_table()):
        assert table + "\n" in TEXT + "\n", "run python tests/test_policy_docs.py"


@pytest.mark.parametrize(
    "struct",
    [schema.Level, schema.Rule, schema.Narrow, schema.Expect, schema.Monitor, schema.Engine, schema.Slurm, schema.Drain,
     schema.Poisson, schema.Cusum, schema.FalseAlarms, schema.Peers, schema.UserReport, schema.Budgets, schema.Record, schema.Reboot,
     schema.SiteHooks, schema.Evidence, schema.Limits, schema.Diagnostics, schema.Isolate, schema.Screen, schema.PolicyFile],
)  # fmt: skip
def test_every_key_is_described(struct: type[msgspec.Struct]) -> None:
    for key in struct.__struct_fields__:
        assert key in TABLED, key


if __name__ == "__main__":
    for head, table in TABLES.items():
        before, _, after = TEXT.partition(head)
        _, gap, rest = after.partition("\n\n")
        TEXT = before + table() + gap[:1] + rest
    with open(PAGE, "w", encoding="utf-8") as page:
        page.write(TEXT)
