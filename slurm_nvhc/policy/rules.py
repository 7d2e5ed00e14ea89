"""A rule as written -> a rule as judged, with every check that needs the catalogues."""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.errors import InputError
from slurm_nvhc.policy import levels, words
from slurm_nvhc.policy import references as ref
from slurm_nvhc.policy.references import Refused
from slurm_nvhc.yaml_errors import nearest

# (path below the rule, problem, hint) -> the error with its place
Complain = Callable[[tuple[Any, ...], str, str], InputError]

# A new rule acts only when its author says how: the weakest visible action.
DEFAULTS: Final = {"finding": "SITE-RULE", "action": "note", "mode": "enforce", "sticky": False, "after_reset": "warn"}
_TEXTS: Final = ("unit", "source", "why")
# Codes that other parts of the program give and explain; a rule of the policy can not speak for them.
NOT_FOR_RULES: Final = (
    "NO-DATA", "NO-BASELINE", "COUNTER-RESET", "GPU-EXCLUDED", "GPU-SWAPPED", "GPU-NEW", "DCGM-HEALTH", "DIAG-NO-RESULT", "DIAG-PASS",
    "SDC-DIGEST",
)  # fmt: skip


def as_lists(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The rule as written, with field, warn and fail always lists: an overlay replaces each as a whole."""
    return {k: v if k not in ("field", "warn", "fail") or isinstance(v, list) else [v] for k, v in rule.items()}


def normalise(rule: Mapping[str, Any], complain: Complain, others: Sequence[str] = (), name: str = "") -> dict[str, Any]:
    """The keyword arguments of compiled.Rule (without name) for a complete rule in ``as_lists`` form.

    others: names of the rules there are, for the hint when ``rule`` is only a part of one. Raises InputError.
    """
    fields = _fields(rule, complain)
    kind = _kind(rule, fields)
    mode = rule.get("mode", DEFAULTS["mode"])
    action = rule.get("action", DEFAULTS["action"])
    out: dict[str, Any] = {k: rule.get(k, default) for k, default in DEFAULTS.items()}
    out.update({k: rule[k] for k in _TEXTS if k in rule})
    out["kind"] = kind
    out["fields"] = [f.name for f in fields]
    out["text"] = {}
    for verdict in ("warn", "fail"):
        out[verdict] = [_level(level, fields, kind, (verdict, i), complain) for i, level in enumerate(rule.get(verdict, []))]
        out["text"][verdict] = words.levels(out[verdict], fields)
    if not out["warn"] and not out["fail"] and mode != "off" and action != "none":
        close = nearest(name, [o for o in others if o != name])
        raise complain((), "has neither warn nor fail", close or "say when it warns or fails, or set mode: off")
    _check_whole(rule, out, complain)
    return out


def _fields(rule: Mapping[str, Any], complain: Complain) -> list[cat.Field]:
    out: list[cat.Field] = []
    for i, given in enumerate(rule.get("field", [])):
        try:
            field = ref.field(given)
        except Refused as exc:
            raise complain(("field", i), exc.problem, exc.hint) from None
        if field in out:
            raise complain(("field", i), f"{field.name} is given twice", "")
        out.append(field)
    scopes = {f.scope for f in out if f.scope in cat.PART_SCOPES}
    if scopes and (len(scopes) > 1 or any(f.scope not in scopes for f in out)):
        hint = f"{out[0].name} belongs to a {out[0].scope}: make them two rules"
        raise complain(("field",), "its fields belong to different things", hint)
    if "field" in rule and not out:
        raise complain(("field",), "names no field", "leave it out for a rule over Xids, lost GPUs or diagnostics")
    return out


def _kind(rule: Mapping[str, Any], fields: Sequence[cat.Field]) -> str:
    if fields:
        return "reading"
    asked = {key for verdict in ("warn", "fail") for level in rule.get(verdict, []) for key in level}
    if asked & set(levels.DIAG):
        return "diag"
    if asked & {"xid", "sxid"}:
        return "event"
    return "presence" if "lost" in asked else "reading"


def _level(raw: Mapping[str, Any], fields: Sequence[cat.Field], kind: str, path: tuple[Any, ...], complain: Complain) -> dict[str, Any]:
    try:
        return levels.normalise(raw, fields, kind)
    except levels.LevelProblem as exc:
        raise complain((*path, exc.key) if exc.key else path, exc.problem, exc.hint) from None


def _check_whole(rule: Mapping[str, Any], out: Mapping[str, Any], complain: Complain) -> None:
    code = codes.BY_CODE.get(out["finding"])
    allowed = [c.code for c in codes.ALL if c.klass != "monitor" and c.code not in NOT_FOR_RULES]
    if code is None:
        raise complain(
            ("finding",), f"unknown finding code {out['finding']}", nearest(out["finding"], allowed, "docs/findings.md lists the codes")
        )
    if code.code not in allowed:
        raise complain(("finding",), f"{code.code} can not be given to a rule", "leave finding out: SITE-RULE")
    if not out["fields"] and out["kind"] == "reading" and (out["warn"] or out["fail"]):
        raise complain((), "reads no field", "give it a field")
    if any("peers" in level for level in out["fail"]):
        raise complain(("fail",), "peers can warn only", "a slow job says little about one GPU: put it in warn")
    if out["sticky"] and out["kind"] != "event":
        raise complain(("sticky",), "sticky is for Xids only", "a reading is judged anew at each look")
    if "after_reset" in rule and not any(f.kind == cat.COUNTER for f in (cat.BY_NAME[n] for n in out["fields"])):
        raise complain(("after_reset",), "after_reset is for counters only", "")
    if out["action"] in ("drain", "narrow") and not out["fail"] and out["mode"] != "off":
        raise complain(("action",), f"action {out['action']} needs fail", "a warning never leads to more than a notice")
