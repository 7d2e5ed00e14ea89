"""docs/policy.md: its examples compile, its tables are complete."""

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

with open(os.path.join(os.path.dirname(__file__), "..", "docs", "policy.md"), encoding="utf-8") as _file:
    TEXT = _file.read()
# The first word of everything in backticks in a table.
TABLED = {word for line in TEXT.splitlines() if line.startswith("|") for word in re.findall(r"`(\w+)[^`]*`", line)}
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_compiles(example: str) -> None:
    compiled.resolve(compile_policy(example, "docs/policy.md"), "n001", "batch")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("field", cat.ALL, ids=lambda f: f.name)
def test_every_field_is_listed_with_its_id(field: cat.Field) -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{field.name}` |"))
    assert str(field.dcgm_id or "") in row
    assert field.kind in row


def test_every_code_of_a_rule_is_listed() -> None:
    for code in codes.ALL:
        elsewhere = code.klass == "monitor" or code.code in NOT_FOR_RULES
        assert elsewhere or f"| {code.code} |" in TEXT


@pytest.mark.parametrize(
    "struct",
    [schema.Level, schema.Rule, schema.Narrow, schema.Expect, schema.Monitor, schema.Engine, schema.Slurm, schema.Drain,
     schema.Budgets, schema.Record, schema.PolicyFile],
)  # fmt: skip
def test_every_key_is_described(struct: type[msgspec.Struct]) -> None:
    for key in struct.__struct_fields__:
        assert key in TABLED, key
