"""Traces as JSON: what broke a rule, to be kept and played again."""

from __future__ import annotations

import json
from typing import Any

from planner.walk import Failure
from planner.world import Setting, Step
from slurm_nvhc.errors import NvhcError


def as_json(failure: Failure) -> dict[str, Any]:
    return {**failure._asdict(), "setting": failure.setting._asdict(), "steps": [_step(s) for s in failure.steps]}


def _step(step: Step) -> list[Any]:
    return [step.what, step.node, list(step.args), [[at, _step(inner)] for at, inner in step.during]]


def read(file: str) -> tuple[Setting, tuple[Step, ...]]:
    """Raises NvhcError for what is no trace."""
    try:
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
        return Setting(**found["setting"]), tuple(_read(s) for s in found["steps"])
    except OSError as exc:
        raise NvhcError(file, "", f"can not be read: {exc.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError) as exc:
        raise NvhcError(file, "", f"is no trace: {type(exc).__name__}: {exc}") from None


def _read(raw: list[Any]) -> Step:
    what, node, args, during = raw
    return Step(str(what), int(node), tuple(_frozen(a) for a in args), tuple((int(at), _read(inner)) for at, inner in during))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def write(file: str, figures: dict[str, Any]) -> None:
    try:
        with open(file, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)
            out.write("\n")
    except OSError as exc:
        raise NvhcError(file, "", f"can not be written: {exc.strerror}") from None
