"""Strict YAML for what people write: policy and scenario files.

PyYAML's parser gives events; the tree is built here, so that every value keeps
its line, nothing recurses on hostile input, and size is bounded. msgspec then
checks the tree against typed structures. Every problem is an ``InputError``
naming the thing, "line N, key a.b.c", what is wrong and the nearest valid name.

Scalars differ from YAML 1.1 where that has surprised people:
  yes, no, on, off   are words (only true and false are booleans)
  010, 1:30, dates   are text (1.1 reads octal, base 60 and timestamps, so that
                     the PCI address 0000:05:00.0 would become the number 300)
  1e3                is text, as in PyYAML; the error says how to write it
  .inf, .nan         are errors
Keys are always text, as they were written.
"""

from __future__ import annotations

import re
from typing import Any, Final, Generic, Iterator, NoReturn, Optional, TypeVar, Union

import msgspec
import yaml

from slurm_nvhc import yaml_errors
from slurm_nvhc.errors import InputError

T = TypeVar("T")
Path = tuple[Union[str, int], ...]

MAX_BYTES: Final = 1024 * 1024
MAX_NODES: Final = 50_000  # with aliases counted as often as they are used
MAX_DEPTH: Final = 50
MAX_NUMBER: Final = 2**63
MAX_SHOWN: Final = 100  # characters of a key's path in an error

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_HEX = re.compile(r"[-+]?0x[0-9a-fA-F_]+\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?\Z")
_NOT_FINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_CONSTANTS: Final = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_STR_TAGS: Final = (None, "!", "tag:yaml.org,2002:str")


class Node:
    """One value with its line (from 1). ``children`` maps a key or an index to (node, line of the key).

    hexadecimal: a number that was written as 0x…
    """

    __slots__ = ("children", "hexadecimal", "line", "quoted", "size", "value")

    def __init__(self, value: Any, line: int, quoted: bool = False, hexadecimal: bool = False) -> None:
        self.value = value
        self.line = line
        self.quoted = quoted
        self.hexadecimal = hexadecimal
        self.size = 1
        self.children: dict[Union[str, int], tuple[Node, int]] = {}


class Loaded(Generic[T]):
    """A checked value, its plain form, and where each part of it was written."""

    __slots__ = ("data", "root", "thing", "value")

    def __init__(self, value: T, thing: str, root: Node) -> None:
        self.value = value
        self.thing = thing
        self.root = root
        self.data: Any = root.value

    def place(self, path: Path) -> str:
        """"line 12, key rules.x.fail": of the value at ``path``, or of the nearest one around it."""
        return place(self.root, path)

    def error(self, path: Path, problem: str, hint: str = "") -> InputError:
        """The error that a later check found at ``path``."""
        return InputError(self.thing, self.place(path), problem, hint)


def load(text: Union[str, bytes], thing: str, type: type[T], *, empty_ok: bool = False) -> Loaded[T]:
    """Parse and check. ``thing`` names the text in errors. Raises InputError, nothing else.

    empty_ok: a file without content counts as an empty mapping.
    """
    decoded = _decode(text, thing)
    root = _Composer(decoded, thing).compose()
    if root is None or (root.value is None and not root.quoted):
        if not empty_ok:
            raise InputError(thing, "", "is empty")
        root = Node({}, 1)
    if not isinstance(root.value, dict):
        raise InputError(thing, f"line {root.line}", "is not a mapping", "the file must consist of 'key: value' lines")
    return Loaded(convert(root, thing, type), thing, root)


def convert(root: Node, thing: str, type: type[T]) -> T:
    """A composed tree as ``type``. Raises InputError."""
    try:
        return msgspec.convert(root.value, type, strict=True, str_keys=True)
    except msgspec.ValidationError as exc:
        raise yaml_errors.explain(exc, root, thing, type) from None
    except (RecursionError, OverflowError, ValueError, TypeError) as exc:
        raise InputError(thing, "", f"can not be read: {exc}") from None


def place(root: Node, path: Path) -> str:
    """See Loaded.place. An index where no list was written (one item given bare) is passed over."""
    node, line, shown = root, root.line, ""
    for step in path:
        entry = node.children.get(step)
        if entry is None:
            if isinstance(step, int) and not isinstance(node.value, list):
                continue
            break
        node, line = entry
        shown += f"[{step}]" if isinstance(step, int) else f".{step}" if shown else step
    return f"line {line}, key {shown}" if shown else f"line {line}"


def _decode(text: Union[str, bytes], thing: str) -> str:
    if len(text) > MAX_BYTES:
        raise InputError(thing, "", f"is larger than {MAX_BYTES // 1024} KiB")
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = text.count(b"\n", 0, exc.start) + 1
        raise InputError(thing, f"line {line}", f"is not UTF-8 text (byte 0x{text[exc.start]:02x})", "save it as UTF-8") from None


class _Frame:
    """An open mapping or list."""

    __slots__ = ("anchor", "key", "key_line", "node")

    def __init__(self, node: Node, anchor: Optional[str]) -> None:
        self.node = node
        self.anchor = anchor
        self.key: Optional[str] = None
        self.key_line = 0


class _Composer:
    """Events to a tree, without recursion: depth and size are checked before anything is built."""

    def __init__(self, text: str, thing: str) -> None:
        self.text = text
        self.thing = thing
        self.stack: list[_Frame] = []
        self.anchors: dict[str, Node] = {}
        self.count = 0
        self.root: Optional[Node] = None

    def compose(self) -> Optional[Node]:
        documents = 0
        for event in self._events():
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._fail(line, "holds more than one document", "remove the line ---")
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self._open(event, line)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                frame = self.stack.pop()
                self._remember(frame.anchor, frame.node)
                self._add(frame.node, frame.node.line)
            elif isinstance(event, yaml.ScalarEvent):
                self._scalar(event, line)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event, line)
        return self.root

    def _events(self) -> Iterator[Any]:
        try:
            yield from yaml.parse(self.text, Loader=yaml.SafeLoader)
        except InputError:
            raise
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            line = mark.line + 1 if mark else 1
            written = self.text.splitlines()[line - 1 : line]
            tab = (bool(written) and "\t" in written[0][: len(written[0]) - len(written[0].lstrip())]) or "\\t" in str(exc.problem)
            problem = ", ".join(str(part) for part in (exc.context, exc.problem) if part)
            raise InputError(self.thing, f"line {line}", f"is not YAML: {problem}", "indent with spaces, not tabs" if tab else "") from None
        except yaml.reader.ReaderError as exc:
            line = self.text.count("\n", 0, exc.position) + 1
            raise InputError(self.thing, f"line {line}", "is not YAML: it holds a character that YAML does not allow") from None
        except Exception as exc:
            # PyYAML's scanner lets ValueError, IndexError and others through on hostile escapes.
            raise InputError(self.thing, "", f"is not YAML: {exc}") from None

    def _open(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!"):
            self._fail(line, f"tag {event.tag} is not taken", "write the plain value")
        if len(self.stack) >= MAX_DEPTH:
            self._fail(line, f"is nested deeper than {MAX_DEPTH} levels")
        self._grow(1, line)
        node = Node({} if isinstance(event, yaml.MappingStartEvent) else [], line)
        self.stack.append(_Frame(node, event.anchor))

    def _alias(self, event: Any, line: int) -> None:
        node = self.anchors.get(event.anchor)
        if node is None:
            self._fail(line, f"nothing is named &{event.anchor} above this *{event.anchor}")
        self._grow(node.size, line)
        self._add(node, line)

    def _scalar(self, event: Any, line: int) -> None:
        self._grow(1, line)
        if event.tag not in _STR_TAGS:
            self._fail(line, f"tag {event.tag} is not taken", "write the plain value")
        text = str(event.value)
        if _UNWANTED.search(text):
            self._fail(line, "a control character is not taken")
        plain = event.style is None and event.tag is None
        key_wanted = bool(self.stack) and isinstance(self.stack[-1].node.value, dict) and self.stack[-1].key is None
        if key_wanted and plain and text == "<<":
            self._fail(line, "the merge key << is not taken", "write the keys out")
        value = text if key_wanted or not plain else self._plain(text, line)
        node = Node(value, line, quoted=not plain, hexadecimal=isinstance(value, int) and bool(_HEX.match(text)))
        self._remember(event.anchor, node)
        self._add(node, line)

    def _plain(self, text: str, line: int) -> Any:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _NOT_FINITE.match(text):
            self._fail(line, f"{text} is not a finite number")
        if len(text) > 40 and _INT.match(text):
            self._fail(line, "a number has too many digits")
        value: Any = text
        try:
            if _INT.match(text):
                value = int(text)
            elif _HEX.match(text):
                value = int(text, 16)
            elif _FLOAT.match(text):
                value = float(text.replace("_", ""))
        except ValueError:  # "1__" and the like: what is no number is text
            return text
        if not isinstance(value, str) and not -MAX_NUMBER < value < MAX_NUMBER:
            self._fail(line, f"{text[:40]} is too large a number")
        return value

    def _add(self, node: Node, line: int) -> None:
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        parent = frame.node
        if isinstance(parent.value, list):
            parent.children[len(parent.value)] = (node, line)
            parent.value.append(node.value)
            parent.size += node.size
        elif frame.key is None:
            if not isinstance(node.value, str) or node.value == "":
                self._fail(line, "a key must be a word")
            if node.value in parent.children:
                self._fail(line, f"key {node.value} is given twice", f"the first is on line {parent.children[node.value][1]}")
            frame.key, frame.key_line = node.value, line
        else:
            parent.children[frame.key] = (node, frame.key_line)
            parent.value[frame.key] = node.value
            parent.size += node.size
            frame.key = None

    def _remember(self, anchor: Optional[str], node: Node) -> None:
        if anchor:
            self.anchors[anchor] = node

    def _grow(self, by: int, line: int) -> None:
        self.count += by
        if self.count > MAX_NODES:
            self._fail(line, f"holds more than {MAX_NODES} values", "aliases count as often as they are used")

    def _fail(self, line: int, problem: str, hint: str = "") -> NoReturn:
        shown = ""
        for frame in self.stack:
            if isinstance(frame.node.value, list):
                shown += f"[{len(frame.node.value)}]"
            elif frame.key is not None:
                shown += f".{frame.key}" if shown else frame.key
        if len(shown) > MAX_SHOWN:
            shown = shown[:MAX_SHOWN] + "…"
        raise InputError(self.thing, f"line {line}, key {shown}" if shown else f"line {line}", problem, hint)
