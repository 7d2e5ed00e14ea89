"""What a scenario's ``target`` means. Pure.

``g3.429`` and ``g3.nvlink_replay_total`` are one GPU's reading, by DCGM field id or by
catalogue name; ``*.395`` the same of all GPUs; ``g3.link11.replay`` (short for
nvlink_replay) one link's; ``g3.link*.state`` of all its links; a per-link id such as
``g3.468`` says which link by itself.
"""

from __future__ import annotations

import difflib
import re
from typing import Final, Iterable, NamedTuple, NoReturn, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError

_GPU = re.compile(r"^g(\d{1,3})$")
_LINK = re.compile(r"^link(\*|\d{1,3})$")
_SHORT: Final = {f.name.removeprefix("nvlink_"): f for f in cat.ALL if f.scope == cat.LINK}
_LINK_ENTITY: Final = {f.link_entity_id: f for f in cat.ALL if f.link_entity_id is not None}
_IDENTITY_NAMES: Final = {"vbios": "vbios", "mig_mode": "mig"}
_IDENTITY_IDS: Final = {50: "model", 52: "nvml_index", 53: "serial", 54: "uuid", 55: "minor", 57: "pci", 67: "mig", 85: "vbios"}


class Target(NamedTuple):
    """gpu: index or None for all; link: number, -1 for all links, None for the GPU itself."""

    gpu: Optional[int]
    link: Optional[int]
    field: cat.Field


def _wrong(text: str, problem: str, hint: str = "") -> NoReturn:
    raise InputError(f"target {text[:60]!r}", "", problem, hint)


def gpu_index(text: str, count: int) -> Optional[int]:
    """'g3' -> 3, '*' -> None. Raises InputError for anything else and for a GPU that is not there."""
    if text == "*":
        return None
    match = _GPU.match(text)
    if not match:
        _wrong(text, "is not a GPU", "g0, g1, … in the order of the NVML index, or * for all")
    index = int(match[1])
    if index >= count:
        _wrong(text, "is not on this node", f"it has g0 to g{count - 1}" if count else "it has no GPU")
    return index


def field_name(given: str | int) -> str:
    """Catalogue name of a field written as in a target: by name, short link name or DCGM id; '' when there is none."""
    text = str(given)
    if text.isascii() and text.isdigit():
        number = int(text[:9])
        return _LINK_ENTITY[number].name if number in _LINK_ENTITY else cat.BY_ID.get(number, ("", None))[0]
    return text if text in cat.BY_NAME else _SHORT[text].name if text in _SHORT else ""


def parse(text: str, count: int) -> Target:
    """Raises InputError naming what is wrong and the nearest valid name."""
    if not isinstance(text, str):
        _wrong(repr(text), "is not text", "e.g. g3.link11.replay")
    parts = text.split(".")
    if len(parts) not in (2, 3):
        _wrong(text, "is not a target", "e.g. g3.429, g3.nvlink_replay_total, g3.link11.replay, *.395")
    gpu = gpu_index(parts[0], count)
    link: Optional[int] = None
    if len(parts) == 3:
        match = _LINK.match(parts[1])
        if not match:
            _wrong(text, f"{parts[1][:20]!r} is not a link", "link0, link1, … or link*")
        link = -1 if match[1] == "*" else int(match[1])
    if parts[-1].isascii() and parts[-1].isdigit():
        return _by_id(text, gpu, link, int(parts[-1][:9]))
    return _by_name(text, gpu, link, parts[-1])


def _by_id(text: str, gpu: Optional[int], link: Optional[int], number: int) -> Target:
    if number == cat.XID_FIELD_ID:
        _wrong(text, "field 230 is an event, not a reading", "use engine_xid, or xid for kernel log and engine")
    if number in _IDENTITY_IDS:
        _wrong(text, f"field {number} is part of the GPU's identity", f"use identify with {_IDENTITY_IDS[number]}")
    if number in _LINK_ENTITY:
        if link is None:
            _wrong(text, f"field {number} is one of a link", f"e.g. g3.link11.{number}")
        return Target(gpu, link, _LINK_ENTITY[number])
    if number not in cat.BY_ID:
        _wrong(text, f"field {number} is not in the catalogue", "see the list of fields in the documentation")
    name, of_link = cat.BY_ID[number]
    if cat.BY_NAME[name].scope in cat.PART_SCOPES:
        _wrong(text, f"{name} is no reading of a GPU", "e.g. switch0.temp, switch0.port5.fatal")
    if link is not None and link != of_link:
        _wrong(text, f"field {number} belongs to " + ("the GPU as a whole" if of_link is None else f"link {of_link}"))
    return Target(gpu, of_link, cat.BY_NAME[name])


def _by_name(text: str, gpu: Optional[int], link: Optional[int], name: str) -> Target:
    field = cat.BY_NAME.get(name)
    if link is not None:
        field = _SHORT.get(name) or field
        if field is None or field.scope != cat.LINK:
            _unknown(text, name, (*_SHORT, *(f.name for f in _SHORT.values())))
        return Target(gpu, link, field)
    if name in _IDENTITY_NAMES:
        _wrong(text, f"{name} is part of the GPU's identity", f"use identify with {_IDENTITY_NAMES[name]}")
    if field is None:
        _unknown(text, name, [f.name for f in cat.ALL if f.scope == cat.GPU])
    if field.sum_of:
        _wrong(text, f"{name} is a sum", f"its parts are {' and '.join(field.sum_of)}")
    if field.scope in cat.PART_SCOPES:
        _wrong(text, f"{name} is no reading of a GPU", "e.g. switch0.temp, rdma0.port1.state")
    if field.scope == cat.LINK:
        _wrong(text, f"{name} is counted per link", f"e.g. {text.partition('.')[0]}.link0.{name.removeprefix('nvlink_')}")
    return Target(gpu, None, field)


def _unknown(text: str, name: str, names: Iterable[str]) -> NoReturn:
    near = difflib.get_close_matches(name, list(names), n=1)
    _wrong(text, f"{name[:40]!r} is not a field", f"did you mean {near[0]}?" if near else "see the list of fields in the documentation")
