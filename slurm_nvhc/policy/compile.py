"""Policy texts -> the compiled document that hooks load (compiled.resolve).

Layers, later over earlier: built-in defaults, the packaged policy, its model
overlays, the site file, its model overlays, partition overlays, node overlays.
Every overlay is checked merged on what lies below it, so that what is wrong is
found when the file is edited, not on the one node that it concerns.
"""

from __future__ import annotations

from typing import Any, Final, Mapping, Optional, Sequence, Union

import msgspec

import slurm_nvhc
from slurm_nvhc import strict_yaml
from slurm_nvhc.policy import compiled, rules, sections
from slurm_nvhc.policy import references as ref
from slurm_nvhc.policy.references import Refused
from slurm_nvhc.policy.schema import PolicyFile
from slurm_nvhc.policy.source import PACKAGED, digest, read_packaged
from slurm_nvhc.strict_yaml import Loaded, Node

_FROM_RULE: Final = {"field": ("fields", "kind")}  # written key -> normalised keys; all others keep their name

Rules = dict[str, dict[str, Any]]
Document = dict[str, Any]


def compile_policy(text: Union[str, bytes, None], thing: str, packaged: Optional[bytes] = None) -> Document:
    """The compiled document of a site's policy (None: no site file) over the packaged one.

    ``thing`` names the text in errors. Raises InputError for anything wrong in it.
    """
    packaged = read_packaged() if packaged is None else packaged
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    layers = []
    site = strict_yaml.load(text, thing, PolicyFile) if text is not None else None
    if site is None or site.value.defaults:
        layers.append(_Layer(strict_yaml.load(packaged, PACKAGED, PolicyFile)))
    if site is not None:
        layers.append(_Layer(site))
    full = digest(packaged, raw)
    return {"schema": compiled.SCHEMA, "version": slurm_nvhc.__version__, "hash": full[:12], "key": full, "site": site is not None,
            **_stack(layers)}  # fmt: skip


class _Layer:
    """One policy text as plain data."""

    def __init__(self, loaded: Loaded[PolicyFile]) -> None:
        self.loaded = loaded
        _refuse_hexadecimal(loaded, loaded.root, ())
        self.written: dict[str, Any] = msgspec.to_builtins(loaded.value)

    def complain(self, *prefix: Any) -> Any:
        return lambda path, problem, hint="": self.loaded.error((*prefix, *path), problem, hint)


def _refuse_hexadecimal(loaded: Loaded[PolicyFile], node: Node, path: tuple[Any, ...]) -> None:
    """A threshold in hexadecimal is a slip (R77: '0x1F'); a mask of bits is written so."""
    if node.hexadecimal:
        raise loaded.error(path, "hexadecimal is for bits_any only", f"write {node.value}")
    for key, (child, _line) in node.children.items():
        if key != "bits_any":
            _refuse_hexadecimal(loaded, child, (*path, key))


def _stack(layers: Sequence[_Layer]) -> Document:
    base: Any = sections.defaults()
    known: Rules = {}
    overlays: dict[str, list[list[Any]]] = {"models": [], "partitions": [], "nodes": []}
    for layer in layers:
        patch = _patch(layer, layer.written, known, ())
        base = compiled.merge(base, patch)
        known = _merge_rules(known, layer.written.get("rules", {}))
        # A site's own words come after the packaged overlays: what it says at the top wins over a packaged model.
        overlays["models"] = [[pattern, left] for pattern, old in overlays["models"] if (left := _without(old, patch))]
        overlays["models"] += _overlays(layer, "models", known)
    for layer in layers:
        for section in ("partitions", "nodes"):
            overlays[section] += _overlays(layer, section, known)
    return {"base": base, **overlays}


def _overlays(layer: _Layer, section: str, known: Rules) -> list[list[Any]]:
    out = []
    for pattern, written in layer.written.get(section, {}).items():
        if section == "nodes":
            try:
                name = ",".join(ref.node_names(pattern))
            except Refused as exc:
                raise layer.loaded.error((section, pattern), exc.problem, exc.hint) from None
        else:
            name = pattern
        if section == "partitions" and "," in pattern:
            raise layer.loaded.error((section, pattern), "a partition pattern holds no comma", "write one entry for each")
        out.append([name, _patch(layer, written, known, (section, pattern))])
    return out


def _patch(layer: _Layer, written: Mapping[str, Any], known: Rules, prefix: tuple[Any, ...]) -> dict[str, Any]:
    """What ``written`` changes in what lies below, normalised; rules are checked merged on ``known``."""
    out = sections.patch(written, layer.complain(*prefix))
    for name, rule in written.get("rules", {}).items():
        complain = layer.complain(*prefix, "rules", name)
        if not rule:
            raise complain((), "says nothing")
        below = known.get(name)
        new = rules.normalise({**(below or {}), **rules.as_lists(rule)}, complain, tuple(known), name)
        out.setdefault("rules", {})[name] = new if below is None else _changed(new, rule, below, complain)
    return out


def _changed(new: dict[str, Any], written: Mapping[str, Any], below: Mapping[str, Any], complain: Any) -> dict[str, Any]:
    """Of a changed rule, the keys that were written or follow from them: other overlays keep their say on the rest."""
    old = rules.normalise(below, complain)
    named = {n for key in written for n in _FROM_RULE.get(key, (key,))}
    out = {k: v for k, v in new.items() if k != "text" and (k in named or old.get(k) != v)}
    text = {v: t for v, t in new["text"].items() if v in out or old["text"][v] != t}
    return {**out, "text": text} if text else out


def _merge_rules(below: Rules, above: Mapping[str, Mapping[str, Any]]) -> Rules:
    out = {name: dict(rule) for name, rule in below.items()}
    for name, rule in above.items():
        out[name] = {**out.get(name, {}), **rules.as_lists(rule)}
    return out


def _without(patch: Any, said: Any) -> Any:
    """``patch`` less every leaf that ``said`` says as well; empty mappings vanish."""
    out = {}
    for key, value in patch.items():
        if key not in said:
            out[key] = value
        elif isinstance(value, dict) and isinstance(said[key], dict) and (left := _without(value, said[key])):
            out[key] = left
    return out
