"""The sections beside the rules: written form -> normalised form, with limits that keep hooks safe."""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.errors import InputError
from slurm_nvhc.policy import acting, compiled
from slurm_nvhc.policy import references as ref
from slurm_nvhc.policy.references import Refused

Complain = Callable[[tuple[Any, ...], str, str], InputError]

DAY_S: Final = 86400.0


class _Key(NamedTuple):
    """Normalised name, conversion, and the least and most it may be after conversion (our judgement)."""

    name: str
    convert: Callable[[Any], Any]
    least: Optional[float] = None
    most: Optional[float] = None


def _same(value: Any) -> Any:
    return value


def _none(value: Any) -> Any:
    return None if value == "none" else value


def _auto(value: Any) -> Any:
    return None if value == "auto" else value


def _days(value: Any) -> float:
    return ref.duration(value) / DAY_S


# Keys that change name or have limits; all others pass as they are.
_KEYS: Final[Mapping[str, Mapping[str, _Key]]] = {
    "narrow": {"min_gpus": _Key("min_gpus", _same, 1, 1024), "max_excluded": _Key("max_excluded", _same, 1, 1024)},
    "expect": {"gpus": _Key("gpus", _none, 1, 1024), "links": _Key("links", _none, 1, 64)},
    "monitor": {
        "after_runs": _Key("after_runs", _same, 1, 10_000),
        "after": _Key("after_s", ref.duration, 0, 365 * DAY_S),
        "drain_after_runs": _Key("drain_after_runs", _same, 1, 10_000),
    },
    "engine": {"timeout": _Key("timeout_s", ref.duration, 0.1, 600)},
    "slurm": {"timeout": _Key("timeout_s", ref.duration, 0.1, 600)},
    "drain": {
        "max_length": _Key("max_length", _same, 60, 4000),
        "resume_passes": _Key("resume_passes", _same, 1, 10_000),
        "resume_after": _Key("resume_after_s", ref.duration, 0, 365 * DAY_S),
        "resume_per_day": _Key("resume_per_day", _same, 0, 1000),
        "resume_diagnostic": _Key("resume_diagnostic", ref.diagnostic),
    },
    "quarantine": {
        "min_gpus": _Key("min_gpus", _same, 1, 1024),
        "max_gpus": _Key("max_gpus", _same, 1, 1024),
        # A fill job gives up after 20 s, and slurmctld may take some seconds to look at it (measured: 4.7 s at most).
        "place_within": _Key("place_within_s", ref.duration, 10, 600),
        "max_age": _Key("max_age_s", ref.duration, 60, 365 * DAY_S),
        "memory": _Key("memory_mb", _same, 1, 1_000_000),
    },
    "limits": {
        "soft": _Key("soft", ref.limit),
        "hard": _Key("hard", ref.limit),
        "within": _Key("within_s", ref.duration, 60, 365 * DAY_S),
        "recount": _Key("recount_s", ref.duration, 0, 30),
    },
    "requeue": {
        "per_job": _Key("per_job", _same, 1, 100),
        "per_node": _Key("per_node", _same, 1, 1000),
        "within": _Key("within_s", ref.duration, 60, 365 * DAY_S),
    },
    "checkpoint": {"signal": _Key("signal", ref.signal_name), "grace": _Key("grace_s", ref.duration, 0, DAY_S)},
    "reboot": {"per_week": _Key("per_week", _same, 1, 100)},
    "site_hooks": {"timeout": _Key("timeout_s", ref.duration, 0.1, 60)},
    "evidence": {"keep": _Key("keep", _same, 1, 10_000)},
    "diagnostics": {
        **{k: _Key(k, ref.diagnostic) for k in ("prolog", "epilog", "drained")},
        "min_gpus": _Key("min_gpus", _same, 1, 1024),
        "min_nodes": _Key("min_nodes", _same, 1, 1_000_000),
        "require": _Key("require", ref.tests),
    },
    "isolate": {
        "seconds": _Key("seconds", ref.duration, 1, 3600),
        "timeout": _Key("timeout_s", ref.duration, 1, DAY_S),
    },
    "screen": {"timeout": _Key("timeout_s", ref.duration, 1, DAY_S)},
    # Above ten minutes no prolog is waited for at any site we know of; below one second no reader starts.
    "budgets": {
        **{k: _Key(f"{k}_s", ref.duration, 1, 600) for k in ("prolog", "epilog")},
        # slurmd kills a health check after 60 s (observed); by then ours has ended and its launcher too.
        **{k: _Key(f"{k}_s", ref.duration, 1, 50) for k in ("health_check", "registration")},
    },
    "record": {"keep": _Key("keep_days", _days, 1 / 24, 3650), "durable": _Key("durable", _auto)},
    "false_alarms": {
        "per_day": _Key("per_day", float, 1e-6, 1e6),
        "nodes": _Key("nodes", float, 1, 1e7),
        "tests": _Key("tests", float, 1, 1e9),
    },
    "learn": {"settle": _Key("settle_s", ref.duration, 0, 86400)},
    "user_report": {"keep": _Key("keep_days", _days, 1 / 24, 3650)},
}
_EVENTS: Final = ("drain", "exclude", "release", "resume", "requeue", "reboot", "limit")  # of site_hooks
_ABSOLUTE: Final = (
    ("slurm", "bin_dir"), ("slurm", "conf"), ("drain", "template"), ("engine", "world"), ("engine", "bindings"), ("user_report", "dir"),
    ("evidence", "dir"), ("diagnostics", "dcgmi"), *(("site_hooks", f"on_{event}") for event in _EVENTS),
)  # fmt: skip
_NO_FOLDER: Final = "hooks run in an unknown folder without PATH"
_REREAD: Final = _Key("reread_wait_s", ref.duration, 0, 60)


def defaults() -> dict[str, Any]:
    """The normalised policy without any rule: the built-in defaults of compiled.py."""
    return {
        "mode": "enforce",
        "rules": {},
        "narrow": acting.Narrow()._asdict(),
        "expect": compiled.Expect()._asdict(),
        "monitor": compiled.Monitor()._asdict(),
        "engine": {**compiled.Engine()._asdict(), "bindings": []},  # as JSON gives it back
        "slurm": compiled.Slurm()._asdict(),
        "drain": _plain(acting.Drain()),
        "budgets": compiled.Budgets()._asdict(),
        "record": compiled.Record()._asdict(),
        "false_alarms": compiled.FalseAlarms()._asdict(),
        "learn": compiled.Learn()._asdict(),
        "user_report": compiled.UserReport()._asdict(),
        "quarantine": acting.Quarantine()._asdict(),
        "limits": {**acting.Limits()._asdict(), "soft": acting.Limits().soft._asdict(), "hard": acting.Limits().hard._asdict()},
        "requeue": acting.Requeue()._asdict(),
        "checkpoint": acting.Checkpoint()._asdict(),
        "reboot": acting.Reboot()._asdict(),
        "site_hooks": acting.SiteHooks()._asdict(),
        "evidence": acting.Evidence()._asdict(),
        "diagnostics": _plain(acting.Diagnostics()),
        "isolate": _plain(acting.Isolate()),
        "screen": _plain(acting.Screen()),
        "kill_switch": "",
        "reread_wait_s": 2.0,  # our judgement: long enough for a link to retrain, short enough for a prolog
    }


def _plain(section: Any) -> dict[str, Any]:
    """As JSON gives it back: lists, no tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in section._asdict().items()}


def patch(written: Mapping[str, Any], complain: Complain) -> dict[str, Any]:
    """What these sections say, normalised; keys that are not written stay away. Raises InputError."""
    out: dict[str, Any] = {}
    if "mode" in written:
        out["mode"] = written["mode"]
    if "kill_switch" in written:
        if written["kill_switch"] and not written["kill_switch"].startswith("/"):
            raise complain(
                ("kill_switch",), f"{written['kill_switch']} is not an absolute path", "hooks run in an unknown folder without PATH"
            )
        out["kill_switch"] = written["kill_switch"]
    if "reread_wait" in written:
        out["reread_wait_s"] = _value(_REREAD, written["reread_wait"], ("reread_wait",), complain)
    for section, keys in _KEYS.items():
        if section not in written:
            continue
        out[section] = {}
        for key, value in written[section].items():
            known = keys.get(key, _Key(key, _same))
            if (section, key) in _ABSOLUTE:
                for path in value if isinstance(value, list) else [value]:
                    if path and not path.startswith("/"):
                        raise complain((section, key), f"{path} is not an absolute path", _NO_FOLDER)
            out[section][known.name] = _value(known, value, (section, key), complain)
    return out


def _value(key: _Key, written: Any, path: tuple[str, ...], complain: Complain) -> Any:
    try:
        value = key.convert(written)
    except Refused as exc:
        raise complain(path, exc.problem, exc.hint) from None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if key.least is not None and value < key.least:
            raise complain(path, f"{written} is too small", f"the least is {_bound(key, key.least)}")
        if key.most is not None and value > key.most:
            raise complain(path, f"{written} is too large", f"the most is {_bound(key, key.most)}")
    return value


def _bound(key: _Key, bound: float) -> str:
    if key.name.endswith("_s"):
        return f"{bound:g}s"
    return f"{bound * 24:g}h" if key.name.endswith("_days") else f"{bound:g}"
