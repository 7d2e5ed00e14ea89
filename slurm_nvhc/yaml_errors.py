"""msgspec's validation errors in an administrator's words, with the line.

msgspec names struct fields and list indices in its path but shows a mapping's
key as ``[...]``; the key is found again by converting ever shorter prefixes of
that mapping, since msgspec stops at the first error.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence

import msgspec
from msgspec import inspect as mi

from slurm_nvhc.errors import InputError

if TYPE_CHECKING:
    from slurm_nvhc.strict_yaml import Node, Path

_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at `(?:key` in `)?(?P<path>\$.*)`)?\Z", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`\Z", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `([^`]*)`, got `([^`]*)`\Z")
_LIMIT = re.compile(r"Expected `(\w+)` (.*)\Z", re.DOTALL)
_WORDS = {
    "int": "a whole number", "float": "a number", "str": "a word", "array": "a list", "object": "a mapping (key: value)",
    "bool": "true or false", "null": "nothing",
}  # fmt: skip
_ELLIPSIS = "[...]"


def nearest(name: str, valid: Iterable[str], otherwise: str = "") -> str:
    """A hint for a mistyped name: 'did you mean X?', X as it is in ``valid``, or ``otherwise``. Case is no difference."""
    by_lower = {v.lower(): v for v in valid}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]}?" if close else otherwise


def explain(exc: msgspec.ValidationError, root: Node, thing: str, type_: Any) -> InputError:
    """The InputError that says what msgspec found, where, and what would help."""
    from slurm_nvhc.strict_yaml import place

    match = _MESSAGE.match(str(exc))
    problem = match.group("problem") if match else str(exc)
    path = _find(root.value, _steps(match.group("path") if match else None), str(exc), type_)
    here = _types_at(mi.type_info(type_), path, root.value)
    unknown, missing, wrong, limit = (p.match(problem) for p in (_UNKNOWN, _MISSING, _WRONG_TYPE, _LIMIT))
    hint = ""
    if unknown:
        name = unknown.group(1)
        names = [field.encode_name for t in here if isinstance(t, mi.StructType) for field in t.fields]
        listed = f"known here: {', '.join(names)}" if 0 < len(names) <= 12 else ""
        problem, hint, path = f"unknown key {name}", nearest(name, names, listed), (*path, name)
    elif missing:
        problem = f"key {missing.group(1)} is missing"
    elif wrong:
        problem, hint = _wrong_type(wrong.group(1), wrong.group(2), _node(root, path))
    elif problem.startswith("Invalid enum value"):
        value = _node(root, path)
        choices = [_plain(v) for t in here if isinstance(t, mi.LiteralType) for v in t.values]
        given = _plain(value.value) if value else "?"
        problem = f"{given} is not one of {', '.join(choices)}" if len(choices) > 1 else f"{given} is not taken here"
        hint = nearest(given, choices, f"the one word taken is {choices[0]}" if len(choices) == 1 else "")
    elif limit:
        problem = f"{_WORDS.get(limit.group(1), limit.group(1))} {limit.group(2)} was expected"
    return InputError(thing, place(root, path), problem, hint)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrong_type(expected: str, got: str, node: Optional[Node]) -> tuple[str, str]:
    kinds = [k.strip() for k in expected.split("|")]
    wanted = " or ".join(dict.fromkeys(_WORDS.get(k, k) for k in kinds if k != "null"))
    text = node.value if node is not None and isinstance(node.value, str) else None
    if text is None:
        value = node.value if node is not None else None
        shown = _plain(value) if isinstance(value, (bool, int, float)) else ""
        return f"{wanted} was expected, found {shown or _WORDS.get(got, got)}", ""
    hint = text_hint(text, bool(node and node.quoted), "bool" in kinds) if {"int", "float", "bool"} & set(kinds) else ""
    return f"{wanted} was expected, found the text {text[:60]!r}", hint


def text_hint(text: str, quoted: bool, boolean: bool = False) -> str:
    """Why a text that looks like a number or boolean is none, in this YAML."""
    if text.lower() in ("yes", "no", "on", "off", "y", "n"):
        return "write true or false" if boolean else f"{text} is a boolean to some readers of YAML: write a number"
    if re.fullmatch(r"[-+]?\d+(\.\d+)?[eE][-+]?\d+", text):
        return "YAML reads this form as text: write 1000 or 1.0e+3"
    if re.fullmatch(r"[-+]?0\d+", text):
        return "write numbers without leading zeros"
    if quoted and re.fullmatch(r"[-+]?(0x[0-9a-fA-F]+|\d+(\.\d*)?)", text):
        return "take the quotes away"
    return ""


def _steps(text: Optional[str]) -> list[str]:
    """'$.rules[...].fail[0]' as ['rules', '[...]', 'fail', '[0]']."""
    return [m.group(1) if m.group(1) is not None else f"[{m.group(2)}]" for m in _STEP.finditer(text or "")]


def _find(data: Any, steps: Sequence[str], message: str, type_: Any) -> Path:
    """The path with each ``[...]`` replaced by the key it stands for, as far as it can be found."""
    path: list[Any] = []
    here = data
    for step in steps:
        if step == _ELLIPSIS and isinstance(here, dict):
            key = _guilty_key(data, path, here, message, type_)
            if key is None:
                break
            path.append(key)
        elif step.startswith("[") and step != _ELLIPSIS:
            path.append(int(step[1:-1]))
        elif step != _ELLIPSIS:
            path.append(step)
        try:
            here = here[path[-1]]
        except (KeyError, IndexError, TypeError):
            break
    return tuple(path)


def _guilty_key(data: Any, path: Sequence[Any], here: dict[str, Any], message: str, type_: Any) -> Optional[str]:
    """The first key of ``here`` (at ``path``) without which the error no longer comes: by bisection."""
    keys = list(here)
    low, high = 0, len(keys)  # the error comes with keys[:high], not with keys[:low]
    while high - low > 1:
        middle = (low + high) // 2
        try:
            msgspec.convert(_replaced(data, path, {k: here[k] for k in keys[:middle]}), type_, strict=True, str_keys=True)
            same = False
        except msgspec.ValidationError as exc:
            same = str(exc) == message
        low, high = (low, middle) if same else (middle, high)
    return keys[high - 1] if keys else None


def _replaced(data: Any, path: Sequence[Any], value: Any) -> Any:
    """A copy of ``data`` with ``value`` at ``path``; later siblings of mappings on the way are dropped."""
    if not path:
        return value
    step = path[0]
    inner = _replaced(data[step], path[1:], value)
    if isinstance(data, list):
        return [*data[:step], inner, *data[step + 1 :]]
    return {k: inner if k == step else v for k, v in data.items()}


def _types_at(info: mi.Type, path: Path, data: Any) -> list[mi.Type]:
    """The types that may stand at ``path``: alternatives of a union are all kept."""
    types = _flat(info)
    for step in path:
        inner: list[mi.Type] = []
        for t in types:
            if isinstance(t, mi.StructType) and isinstance(step, str):
                inner += [x for field in t.fields if field.encode_name == step for x in _flat(field.type)]
            elif isinstance(t, mi.DictType) and isinstance(step, str):
                inner += _flat(t.value_type)
            elif isinstance(t, (mi.ListType, mi.VarTupleType)) and isinstance(step, int):
                inner += _flat(t.item_type)
        types = inner
    return types


def _flat(info: mi.Type) -> list[mi.Type]:
    if isinstance(info, mi.UnionType):
        return [x for t in info.types for x in _flat(t)]
    if isinstance(info, mi.Metadata):
        return _flat(info.type)
    return [info]


def _node(root: Node, path: Path) -> Optional[Node]:
    node: Optional[Node] = root
    for step in path:
        if node is None or step not in node.children:
            return None
        node = node.children[step][0]
    return node
