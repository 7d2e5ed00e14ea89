"""Reading a scenario file: strict form first, then what only makes sense as a whole.

Every error is one line with file, line and key. What the simulated node does not know
(a target, a preset) is found here too, by doing the file's world changes once on a
world in memory, so that a wrong scenario fails before any hook is run.
"""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Tuple, Union

from msgspec import UNSET

from slurm_nvhc.catalog import findings
from slurm_nvhc.catalog.fields import BY_NAME
from slurm_nvhc.errors import InputError
from slurm_nvhc.scenario import world_steps
from slurm_nvhc.scenario.format import Expect, FindingMatch, Scenario
from slurm_nvhc.scenario.steps import HookStep, Step
from slurm_nvhc.sense.sim.target import field_name
from slurm_nvhc.strict_yaml import Loaded, load
from slurm_nvhc.yaml_errors import nearest

HOOKS = ("prolog", "epilog", "health_check", "task_prolog")
Path = Tuple[Union[str, int], ...]
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Loading(NamedTuple):
    """A checked scenario, and where each part of it was written."""

    scenario: Scenario
    source: Loaded[Scenario]


def kind_of(step: Step) -> str:
    """The one key of a step, as it is written in the file."""
    for name, written in zip(step.__struct_fields__, step.__struct_encode_fields__):
        if getattr(step, name) is not UNSET:
            return written
    return ""


def value_of(step: Step) -> object:
    """What the one key of a step says."""
    return getattr(step, "break_" if kind_of(step) == "break" else kind_of(step))


def read(path: str) -> Loading:
    """The scenario in a file. Raises InputError."""
    try:
        with open(path, "rb") as handle:
            text = handle.read(2 << 20)
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror}") from None
    return parse(text, path)


def parse(text: Union[str, bytes], thing: str) -> Loading:
    """The scenario in a text; ``thing`` names it in errors. Raises InputError."""
    source = load(text, thing, Scenario)
    loading = Loading(source.value, source)
    _check_node_name(loading)
    _check_steps(loading)
    _check_expect(loading)
    world_steps.rehearse(loading.scenario, source)
    return loading


def _check_node_name(loading: Loading) -> None:
    """It becomes a directory's name below the replay's own: a file from a stranger must not lead out of that."""
    if not _NODE_NAME.fullmatch(loading.scenario.node.name):
        raise loading.source.error(("node", "name"), "is not a node's name", "letters, digits, dots and hyphens, such as n1")


def _check_steps(loading: Loading) -> None:
    scenario, source = loading
    written: List[dict[str, object]] = source.data["steps"]
    labels: List[str] = []
    for number, (step, given) in enumerate(zip(scenario.steps, written)):
        if len(given) != 1:
            keys = ", ".join(given) or "none"
            raise source.error(("steps", number), f"a step has exactly one key, found {keys}", "begin each with '- '")
        value = value_of(step)
        if isinstance(value, HookStep) and value.label:
            path = ("steps", number, kind_of(step), "as")
            if value.label in labels or value.label.partition("#")[0] in HOOKS:
                raise source.error(path, f"the name {value.label} is taken", "use another name")
            labels.append(value.label)
    if not any(kind_of(step) in HOOKS for step in scenario.steps):
        raise source.error(("steps",), "no hook is run", f"add a step such as {', '.join(HOOKS)}")
    if not scenario.expect:
        raise source.error(("expect",), "nothing is expected", "a scenario without an expectation can not fail")


def _check_expect(loading: Loading) -> None:
    scenario, source = loading
    for number, expect in enumerate(scenario.expect):
        path: Path = ("expect", number)
        names = _run_names(scenario)
        if expect.after and expect.after not in names:
            hint = nearest(expect.after, names, f"known: {', '.join(names)}")
            raise source.error((*path, "after"), f"no step is called {expect.after}", hint)
        if set(source.data["expect"][number]) <= {"after"}:
            raise source.error(path, "nothing is expected here", "say what must hold, e.g. verdict: ok")
        for where, match in _matches(path, expect):
            if match.code is not None and match.code not in findings.BY_CODE:
                raise source.error((*where, "code"), f"no finding is called {match.code}", _nearest_code(match.code))
            if match.field is not None and not field_name(match.field):
                hint = nearest(str(match.field), BY_NAME, "docs/fields.md lists the fields")
                raise source.error((*where, "field"), f"no field is called {match.field}", hint)
            if match.link is not None and match.gpu is None:
                raise source.error((*where, "link"), "a link needs its gpu", "add gpu: gN")
        codes = expect.monitor if isinstance(expect.monitor, list) else [expect.monitor]
        for code in codes:
            if isinstance(code, str) and code not in findings.BY_CODE:
                raise source.error((*path, "monitor"), f"no finding is called {code}", _nearest_code(code))


def _nearest_code(code: str) -> str:
    return nearest(code, findings.BY_CODE, "docs/findings.md lists the codes")


def _matches(path: Path, expect: Expect) -> Iterator[Tuple[Path, FindingMatch]]:
    for key in ("finding", "no_finding"):
        value = getattr(expect, key)
        if isinstance(value, FindingMatch):
            yield (*path, key), value
        elif isinstance(value, list):
            for index, match in enumerate(value):
                yield (*path, key, index), match


def _run_names(scenario: Scenario) -> List[str]:
    names: List[str] = []
    counts = dict.fromkeys(HOOKS, 0)
    for step in scenario.steps:
        kind, value = kind_of(step), value_of(step)
        if isinstance(value, HookStep):
            counts[kind] += 1
            names += [f"{kind}#{counts[kind]}"] + ([kind] if kind not in names else []) + ([value.label] if value.label else [])
    return names
