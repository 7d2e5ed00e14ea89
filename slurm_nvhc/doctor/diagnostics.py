"""Diagnostics and the site's own commands: is there time for them, and can they be run? Said only where the policy wants them."""

from __future__ import annotations

import math
from typing import Final, Mapping, Optional, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.diagnose import LOOK_S
from slurm_nvhc.doctor.facts import DCGMI, Asked, Facts, Line, fail, ok, unknown, warn
from slurm_nvhc.doctor.remedies import unusable
from slurm_nvhc.doctor.words import some
from slurm_nvhc.hooks import install, slurm_conf
from slurm_nvhc.hooks.slurm_conf import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model import diag, tested
from slurm_nvhc.policy.compiled import matches
from slurm_nvhc.proc.budget import ACT_SHARE
from slurm_nvhc.sense.diag import STOP_S

MOST_S: Final[Mapping[str, float]] = {PROLOG: 600.0, EPILOG: 600.0, HEALTH_CHECK: 50.0}  # that a policy may give (policy/sections.py)
_STEP_S: Final = 10  # budgets are advised in whole steps
_BUDGET: Final[Mapping[str, str]] = {PROLOG: "prolog_s", EPILOG: "epilog_s", HEALTH_CHECK: "health_check_s"}
_CHECK: Final[Mapping[str, str]] = {PROLOG: "diagnostics.prolog", EPILOG: "diagnostics.epilog", HEALTH_CHECK: "diagnostics.drained"}


def lines(facts: Facts) -> list[Line]:
    return [*(_fits(facts, asked) for asked in _here(facts)), *_way(facts), *_engine(facts), *_programs(facts)]


def _here(facts: Facts) -> list[Asked]:
    """Without what the policy says of GPU models that this node does not have."""
    models = {gpu.identity.model for gpu in (facts.snapshot.gpus or {}).values()}
    out = []
    for asked in facts.policy.asked:
        places = tuple((p, m) for p, m in asked.places if not m or not models or any(matches(m, model) for model in models))
        out += [asked._replace(places=places)] if places else []
    return out


def _where(places: Sequence[tuple[str, str]]) -> str:
    """' (partition a; partition b, model NVIDIA H100*)'; '' for everywhere."""
    told = [", ".join(filter(None, (p and f"partition {p}", m and f"model {m}"))) for p, m in places]
    return f" ({'; '.join(told)})" if all(told) else ""


# --- time


def _kept_s(asked: Asked) -> float:
    """What the diagnostic itself does not have of a hook's time for looking: the node is read, and one that hangs must be stopped."""
    again = asked.hook == PROLOG and diags.active(asked.tests)
    return STOP_S + (2 * LOOK_S if again else LOOK_S)


def room_s(asked: Asked) -> float:
    """What the hook has for it: the last quarter is for acting."""
    return max(0.0, asked.budget_s * (1 - ACT_SHARE) - _kept_s(asked))


def needed_s(asked: Asked, usual_s: float) -> int:
    """The budget in which it fits when it takes so long."""
    return math.ceil((usual_s + _kept_s(asked)) / (1 - ACT_SHARE) / _STEP_S) * _STEP_S


def _fits(facts: Facts, asked: Asked) -> Line:
    check, usual, room = _CHECK[asked.hook], tested.usual_s(asked.tests, facts.ledger.tested), room_s(asked)
    what = f"{diags.told(asked.tests)} in the {asked.hook}{_where(asked.places)}"
    take = "takes" if len(asked.tests) == 1 else "take"
    found = f"{what} usually {take} {usual:.0f} s, and its budget of {asked.budget_s:g} s leaves {room:.0f} s"
    if usual <= room:
        return ok(check, found)
    needed = needed_s(asked, usual)
    if needed > MOST_S[asked.hook]:
        other = "`nvhc diag` by hand, or `nvhc sweep`"
        return warn(check, f"{found}: it will not be run", f"no budget of it is long enough (at most {MOST_S[asked.hook]:g}s): {other}")
    return warn(check, f"{found}: it will not be run", f"raise {_raised(facts, asked.hook, needed)}; then `nvhc hooks install`")


def _raised(facts: Facts, hook: str, needed: int) -> str:
    """The budget, and every limit of Slurm's that it would then run into."""
    out = [f"budgets.{hook.replace(' ', '_')} to {needed}s"]
    budgets = facts.policy.budgets._replace(**{_BUDGET[hook]: float(needed)})
    hooks = install.hooks_of(facts.slurm.libdir, budgets)
    over = [limit.key for limit in slurm_conf.exceeded(hooks, facts.slurm.settings or {}) if limit.hook == hook]
    return " and ".join([*out, *([f"{some(over)} above {hooks.seconds(hook)}"] if over else [])])


# --- the engine's side


def _way(facts: Facts) -> list[Line]:
    """How a diagnostic is begun: through the bindings, or by dcgmi."""
    if facts.policy.policy.engine.backend != "dcgm" or not _here(facts):
        return []
    ways = {asked.through for asked in _here(facts)}
    bindings = any(place.there for place in facts.host.bindings)
    out = []
    for path in (program.path for program in facts.policy.programs if program.key == DCGMI):
        problem = _problem(facts, DCGMI, path)
        if problem and (diag.DCGMI in ways or not bindings):
            advice = "install datacenter-gpu-manager-4-core, or name it in the policy: diagnostics.dcgmi"
            out.append(fail(DCGMI, f"{path} {problem}: no diagnostic is run", advice))
        elif problem is not None:
            out.append(ok(DCGMI, f"{path} {problem}: the engine's API is used" if problem else path))
    if diag.API in ways and not bindings:
        found = "the policy wants diagnostics through the engine's API, and there are no bindings: none is run"
        out.append(fail("diagnostics.bindings", found, "see engine.bindings, or diagnostics.through: auto"))
    return out


def _engine(facts: Facts) -> list[Line]:
    """Only where the engine is seen to run on this machine: elsewhere its files are not here."""
    here = facts.policy.policy.engine.embedded or any(not e.embedded for e in facts.host.engines or ())
    if facts.policy.policy.engine.backend != "dcgm" or not _here(facts) or not here:
        return []
    found, check = facts.diag, "diagnostics.nvvs"
    if not found.looked_at:
        return [unknown(check, "it can not be told whether the engine's diagnostic is installed", "look after that file system")]
    if not found.nvvs:
        said = f"the engine's diagnostic is at none of {some(found.looked_at)}: none is run, unless its unit sets NVVS_BIN_PATH"
        return [warn(check, said, "install DCGM's packages completely (4.x: datacenter-gpu-manager-4-core)")]
    if found.cuda == () and any(diags.active(asked.tests) for asked in _here(facts)):
        said = f"{found.nvvs} has no plugins for CUDA beside it: tests that load the GPU are skipped"
        return [warn(check, said, "install the package for the driver's CUDA (datacenter-gpu-manager-4-cuda12 or -cuda13)")]
    return [ok(check, f"{found.nvvs}{f', plugins {some(found.cuda)}' if found.cuda else ''}")]


# --- commands


def _programs(facts: Facts) -> list[Line]:
    """The site's own. That nobody but root can change them is among the permissions."""
    out = []
    for key, path, runs in facts.policy.programs:
        if key == DCGMI or not runs:
            continue
        if not path.startswith("/"):
            out.append(fail(key, f"{path} is not an absolute path: it is run without a PATH of yours", "name it in full"))
        elif (problem := _problem(facts, key, path)) is not None:
            advice = f"chmod 0755, or correct {key} in the policy"
            out.append(fail(key, f"{path} {problem}: it can not be run", advice) if problem else ok(key, path))
    return out


def _problem(facts: Facts, key: str, path: str) -> Optional[str]:
    """Why a program can not be run; '' when it can, None when that can not be told."""
    places = [t.chain[-1] for t in facts.host.trusted if t.what == key and t.chain[-1].path == path]
    return unusable(places[0]) if places and not places[0].problem else None
