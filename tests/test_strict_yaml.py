"""strict_yaml: every problem is one line with thing, line, key and a hint; nothing else ever comes out."""

from __future__ import annotations

from typing import Any, Literal, Union

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from slurm_nvhc import strict_yaml
from slurm_nvhc.errors import InputError
from slurm_nvhc.policy.schema import PolicyFile


class Level(msgspec.Struct, forbid_unknown_fields=True):
    limit: Union[float, UnsetType] = UNSET
    hits: int = 1
    on: bool = False


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    field: Union[str, int, list[Union[str, int]]] = ""
    fail: Union[Level, list[Level], UnsetType] = UNSET
    mode: Literal["enforce", "observe", "off"] = "enforce"


class File(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    rules: dict[str, Rule] = {}
    names: dict[int, str] = {}
    anything: Any = None


def refused(text: Union[str, bytes]) -> str:
    with pytest.raises(InputError) as caught:
        strict_yaml.load(text, "p.yaml", File)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("p.yaml")
    return line


def test_values_come_typed_and_keys_as_text() -> None:
    loaded = strict_yaml.load("schema: 1\nnames: {3: no}\nrules:\n  on: {field: [1, a], mode: off}", "p", File)
    assert loaded.value.names == {3: "no"}
    assert loaded.value.rules["on"] == Rule(field=[1, "a"], mode="off")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1F", 31), ("1_000", 1000), ("1.0e+3", 1000.0), (".5", 0.5), ("-3", -3), ("~", None), ("", None), ("true", True),
        ("False", False), ("yes", "yes"), ("off", "off"), ("010", "010"), ("1:30", "1:30"), ("0000:05:00.0", "0000:05:00.0"),
        ("2026-12-01", "2026-12-01"),
        ("1e3", "1e3"), ("'1'", "1"), ("1.2.3", "1.2.3"), ("!!str 5", "5"), ("0x", "0x"), ("[a, {b: c}]", ["a", {"b": "c"}]),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    loaded = strict_yaml.load(f"schema: 1\nanything: {text}", "p", File)
    assert loaded.value.anything == value
    assert type(loaded.value.anything) is type(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.yaml: is empty"),
        ("# only words\n", "p.yaml: is empty"),
        ("- 1", "line 1: is not a mapping"),
        ("word", "line 1: is not a mapping"),
        ("rules: {}", "key schema is missing"),
        ("schema: 1\nrules:\n  a: {field: 429}\n  b:\n    feild: 3", "line 5, key rules.b.feild: unknown key feild (did you mean field?)"),
        ("schema: 1\nzzz: 1", "line 2, key zzz: unknown key zzz (known here: schema, rules, names, anything)"),
        ("schema: 1\nrules: {a: {mode: observ}}", "key rules.a.mode: observ is not one of enforce, observe, off (did you mean observe?)"),
        ("schema: 1\nrules:\n  a: {fail: {hits: 1}}\n  b: {fail: [{hits: 1}, {hits: x}]}", "line 4, key rules.b.fail[1].hits"),
        ("schema: 1\nrules: {a: {fail: {limit: no}}}", "found the text 'no' (no is a boolean to some readers of YAML: write a number)"),
        ("schema: 1\nrules: {a: {fail: {on: yes}}}", "write true or false"),
        ("schema: 1\nrules: {a: {fail: {limit: 1e3}}}", "write 1000 or 1.0e+3"),
        ("schema: 1\nrules: {a: {fail: {limit: '0x1F'}}}", "take the quotes away"),
        ("schema: 1\nrules: {a: {fail: {limit: 010}}}", "without leading zeros"),
        ("schema: 1\nrules: {a: {fail: {limit: 2026-12-01}}}", "a number was expected, found the text '2026-12-01'"),
        ("schema: 1\nrules: {a: {fail: {limit: true}}}", "a number was expected, found true"),
        ("schema: 1\nrules: {a: {fail: {hits: 2.5}}}", "a whole number was expected, found 2.5"),
        ("schema: 1\nrules: {a: {fail: }}", "key rules.a.fail: a mapping (key: value) or a list was expected, found nothing"),
        ("schema: 1\nrules: {a: {fail: {limit: .nan}}}", ".nan is not a finite number"),
        ("schema: 1\nanything: -.inf", "-.inf is not a finite number"),
        ("schema: 1\nanything: 1.0e+999", "too large"),
        ("schema: 1\nanything: 99999999999999999999", "too large"),
        ("schema: 1\nanything: " + "9" * 10000, "too many digits"),
        ("schema: 1\nschema: 1", "line 2: key schema is given twice (the first is on line 1)"),
        ("schema: 1\nrules:\n\ta: {}", "line 3: is not YAML"),
        ("schema: 1\nrules:\n\ta: {}", "indent with spaces, not tabs"),
        ("schema: 1\n---\nschema: 1", "line 2: holds more than one document"),
        ("schema: 1\nanything: !!python/object/apply:os.system [x]", "tag tag:yaml.org,2002:python/object/apply:os.system is not taken"),
        ("schema: 1\nanything: !!int x", "is not taken"),
        ("schema: 1\nanything: {<<: {a: 1}}", "merge key"),
        ("schema: 1\nanything: *x", "nothing is named &x"),
        ("schema: 1\nanything: &x [*x]", "nothing is named &x"),
        ("schema: 1\nanything: {? [a] : 1}", "a key must be a word"),
        ("schema: 1\nanything: {~: 1, '': 2}", "a key must be a word"),
        ('schema: 1\nanything: "\\0"', "control character"),
        ('schema: 1\nanything: "\\ud800"', "control character"),
        ('schema: 1\nanything: "\\UFFFFFFFF"', "is not YAML"),
        ("schema: 1\nanything: 'x", "is not YAML"),
        ("schema: 1\nanything: a: b", "line 2: is not YAML"),
        ("schema: 1\nanything: \x07", "line 2: is not YAML"),
        ("schema: 1\nanything: " + "[" * 100_000, "nested deeper than 50"),
        ("schema: 1\nanything: " + "{a: " * 100_000, "nested deeper than 50"),
        ("schema: 1\nanything: [" + "1," * 60_000 + "]", "more than 50000 values"),
        ("a" * (1024 * 1024 + 1), "larger than 1024 KiB"),
        (b"schema: 1\nanything: \xff", "line 2: is not UTF-8 text (byte 0xff)"),
        ("schema: 1".encode("utf-16"), "is not UTF-8 text"),
    ],
    ids=lambda text: repr(text[:50]),
)  # fmt: skip
def test_what_is_refused(text: Union[str, bytes], said: str) -> None:
    assert said in refused(text)


def test_alias_bomb_counts_each_use() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "more than 50000 values" in refused("schema: 1\nanything:\n  " + "\n  ".join(rows))


def test_aliases_within_bounds_are_values() -> None:
    loaded = strict_yaml.load("schema: 1\nanything: {a: &x [1, 2], b: *x}", "p", File)
    assert loaded.value.anything == {"a": [1, 2], "b": [1, 2]}


def test_a_byte_order_mark_is_no_content() -> None:
    assert strict_yaml.load(b"\xef\xbb\xbfschema: 1", "p", File).value.schema == 1


def test_empty_ok() -> None:
    class Empty(msgspec.Struct):
        pass

    assert strict_yaml.load("# nothing\n", "p", Empty, empty_ok=True).data == {}


def test_place_names_line_and_key_of_the_value_or_of_what_is_around_it() -> None:
    loaded = strict_yaml.load("schema: 1\nrules:\n  a:\n    fail:\n      limit: 3\n  b: {fail: [{},\n   {hits: 2}]}", "p", File)
    assert loaded.place(("rules", "a", "fail", "limit")) == "line 5, key rules.a.fail.limit"
    assert loaded.place(("rules", "a", "fail", 0, "limit")) == "line 5, key rules.a.fail.limit"
    assert loaded.place(("rules", "b", "fail", 1, "hits")) == "line 7, key rules.b.fail[1].hits"
    assert loaded.place(("rules", "a", "warn")) == "line 3, key rules.a"
    assert loaded.place(()) == "line 1"
    assert str(loaded.error(("schema",), "is old", "update")) == "p, line 1, key schema: is old (update)"


def test_the_guilty_one_of_many_is_found() -> None:
    text = "schema: 1\nrules:\n" + "".join(f"  r{i}: {{fail: {{hits: {'x' if i in (700, 900) else 1}}}}}\n" for i in range(1000))
    assert "line 703, key rules.r700.fail.hits" in refused(text)


def test_of_several_mistakes_the_reported_one_gets_its_own_key() -> None:
    text = "rules:\n  a: {}\n  b: {}\n  c: {fail: {hits: x}}\n  d: {}\nschema: 1\nanything: 1\nnames: {1: {}, 2: {}, 3: {}}\n"
    line = refused(text)
    assert "line 4, key rules.c.fail.hits" in line or "line 8, key names.1" in line


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
@example(b"\x00")
@example("? - : [\n")
def test_arbitrary_input_raises_nothing_else(text: Union[str, bytes]) -> None:
    try:
        strict_yaml.load(text, "p", PolicyFile)
    except InputError as exc:
        str(exc).encode()


PIECES = [
    "schema: 1\n", "rules:", "\n  ", "a", ": ", "{", "}", "[", "]", ", ", "- ", "fail", "xid", "&a ", "*a", "!!int ", "? ", "|\n", ">\n",
    "'", '"', "\\x", "#", "\t", "---\n", "...\n", "%YAML 1.1\n", "<<: ", "429", "1e3", "field", "warn", "{increase_above: 1}", "\n",
]  # fmt: skip
YAML_PIECES = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@settings(max_examples=500, deadline=None)
@given(YAML_PIECES)
def test_pieces_of_yaml_raise_nothing_else(text: str) -> None:
    try:
        strict_yaml.load(text, "p", PolicyFile)
    except InputError as exc:
        str(exc).encode()
