"""For `nvhc policy check` and `nvhc policy show`: is the file right, and what is in force where."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple, Optional

from slurm_nvhc.errors import InputError, NvhcError
from slurm_nvhc.policy import compiled, source
from slurm_nvhc.policy.compile import Document, compile_policy
from slurm_nvhc.policy.compiled import Budgets, Level, Policy, Rule
from slurm_nvhc.policy.schema import json_schema

__all__ = ["Check", "Stance", "check", "json_schema", "longest_budgets", "narrows_anywhere", "quarantines_anywhere", "stances", "to_json"]


_SECTIONS: Final = (
    "narrow", "quarantine", "expect", "monitor", "engine", "slurm", "drain", "limits", "requeue", "checkpoint", "reboot", "site_hooks",
    "evidence", "diagnostics", "isolate", "screen", "budgets", "record", "false_alarms", "learn", "user_report",
)  # fmt: skip


class Check(NamedTuple):
    """lines: one problem, or a summary of what the file makes. hash: of the policy, '' when it is broken."""

    ok: bool
    lines: tuple[str, ...]
    hash: str = ""


def check(path: str) -> Check:
    """Read and compile the file as a hook would, without touching any state."""
    try:
        document = _compile(path)
    except NvhcError as exc:
        return Check(False, (str(exc),))
    base = document["base"]
    modes = Counter(rule["mode"] for rule in base["rules"].values())
    counted = ", ".join(f"{modes[mode]} {mode}" for mode in ("enforce", "observe", "off"))
    lines = [f"{path}: ok, policy {document['hash']}", f"{len(base['rules'])} rules: {counted}"]
    if base["mode"] == "observe":
        lines.append("the whole policy is in observe mode: no rule acts")
    for section in ("models", "partitions", "nodes"):
        if document[section]:
            lines.append(f"{section}: {', '.join(_short(pattern) for pattern, _ in document[section])}")
    return Check(True, tuple(lines), document["hash"])


def narrows_anywhere(path: str) -> bool:
    """Does the policy narrow on any partition, node or model? Then the task prolog is wanted. False for a broken file."""
    return _enabled_anywhere(path, "narrow")


def quarantines_anywhere(path: str) -> bool:
    """Does it have placeholder jobs hold bad GPUs on any? False for a broken file."""
    return _enabled_anywhere(path, "quarantine")


def _enabled_anywhere(path: str, name: str) -> bool:
    try:
        document = _compile(path if source.read_site(path) is not None else "")
    except NvhcError:
        return False
    parts = [document["base"], *(patch for section in ("models", "partitions", "nodes") for _, patch in document[section])]
    return any(part.get(name, {}).get("enabled") for part in parts)


class Stance(NamedTuple):
    """What one job's hooks, or with '' any other hook, may meet on a node. partition, model: patterns, '' = none of those named."""

    partition: str
    model: str
    policy: Policy


def stances(path: str, node: str) -> tuple[Stance, ...]:
    """Every policy that can be in force on this node: by partition and GPU model. () for a broken file.

    Each overlay by itself: what several that match the same name come to together is not among them.
    """
    try:
        document = _compile(path if source.read_site(path) is not None else "")
    except NvhcError:
        return ()
    of_node = compiled.resolve(document, node).later
    out = []
    for partition, of_partition in (("", {}), *document["partitions"]):
        for model, of_model in (("", {}), *document["models"]):
            raw: Any = document["base"]
            for patch in (of_model, of_partition, *of_node):
                raw = compiled.merge(raw, patch)
            out.append(Stance(partition, model, compiled.build(raw, document["hash"])))
    return tuple(out)


def longest_budgets(path: str, node: str) -> Optional[Budgets]:
    """The longest time that each hook may take on this node, whatever the job's partition: what a launcher must allow.

    None for a broken file.
    """
    found = [stance.policy.budgets for stance in stances(path, node)]
    return Budgets(**{key: max(getattr(budgets, key) for budgets in found) for key in Budgets._fields}) if found else None


def to_json(policy: Policy) -> dict[str, Any]:
    """A policy as people read it: JSON-able, without what is left at its default. Durations in seconds, rates per second."""
    out: dict[str, Any] = {"hash": policy.hash, "mode": policy.mode, "rules": {n: _rule(r) for n, r in policy.rules.items()}}
    for name in _SECTIONS:
        out[name] = {key: _plain(value) for key, value in getattr(policy, name)._asdict().items()}
    out["reread_wait_s"] = policy.reread_wait_s
    return out


def _compile(path: str) -> Document:
    site = source.read_site(path)
    if site is None and path:
        raise InputError(path, "", "does not exist", "without a file the packaged policy is in force")
    return compile_policy(site, path)


def _rule(rule: Rule) -> dict[str, Any]:
    out: dict[str, Any] = rule._asdict()
    del out["name"]
    out["fields"] = list(rule.fields)
    out["warn"] = [_level(level) for level in rule.warn]
    out["fail"] = [_level(level) for level in rule.fail]
    out["text"] = {"warn": rule.text[0], "fail": rule.text[1]}
    return {k: v for k, v in out.items() if v not in ("", [])}


def _level(level: Level) -> dict[str, Any]:
    return {k: _plain(v) for k, v in level._asdict().items() if v != Level._field_defaults[k]}


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {k: _plain(v) for k, v in value._asdict().items() if v is not None}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _short(pattern: str, most: int = 60) -> str:
    return pattern if len(pattern) <= most else f"{pattern[:most]}…"
