"""A scenario's node section and world steps, done to the simulated node.

The world never sees more than this: neither the policy nor what is expected of it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, TypeVar, Union

from msgspec import UNSET, UnsetType

from slurm_nvhc.errors import InputError
from slurm_nvhc.model.times import parse_duration
from slurm_nvhc.scenario import setting, steps
from slurm_nvhc.scenario.format import Scenario
from slurm_nvhc.scenario.times import moment
from slurm_nvhc.sense.sim.world import World
from slurm_nvhc.strict_yaml import Loaded

Path = Tuple[Union[str, int], ...]
Operation = Mapping[str, Any]  # as World.apply takes it
T = TypeVar("T")


def build(scenario: Scenario, source: Loaded[Scenario]) -> World:
    """The node at the start. Raises InputError naming file, line and key."""
    node = scenario.node
    uptime = {} if node.uptime is None else {"uptime_s": _at(source, ("node", "uptime"), lambda: parse_duration(node.uptime or 0))}
    world = _at(source, ("node", "preset"), lambda: World.preset(node.preset, node=node.name, gpus=node.gpus, **uptime))
    for name, identity in node.identities.items():
        given = {f: v for f in identity.__struct_fields__ if (v := getattr(identity, f)) is not None}
        _at(source, ("node", "identities", name), lambda: world.identify(name, **given))  # noqa: B023
    for target, value in node.readings.items():
        _at(source, ("node", "readings", target), lambda: world.set(target, value))  # noqa: B023
    for name, word in node.pci.items():
        _at(source, ("node", "pci", name), lambda: world.pci(name, word))  # noqa: B023
    for number, line in enumerate(node.kernel_log):
        _at(source, ("node", "kernel_log", number), lambda: world.apply(_line(line)))  # noqa: B023
    for number, xid in enumerate(node.engine_xids):
        _at(source, ("node", "engine_xids", number), lambda: world.engine_xid(xid.gpu, xid.code, moment(xid.at)))  # noqa: B023
    for number, incident in enumerate(node.incidents):
        _at(source, ("node", "incidents", number), lambda: world.apply(_incident(incident)))  # noqa: B023
    _at(source, ("node", "engine"), lambda: world.apply(_engine(node.engine)))
    world.engine_version = node.engine_version
    for number, result in enumerate(node.diag_results):
        _at(source, ("node", "diag_results", number), lambda: world.apply(_diag_result(result)))  # noqa: B023
    _at(source, ("node", "diag_plan"), lambda: world.apply(_diag_plan(node.diag_plan)))
    return world


def rehearse(scenario: Scenario, source: Loaded[Scenario]) -> World:
    """Do the whole file once without hooks, to find what the node does not know. Returns the node at the start."""
    world = build(scenario, source)
    for number, step in enumerate(scenario.steps):
        apply(world, step, source, ("steps", number))
    start = build(scenario, source)
    for number, expect in enumerate(scenario.expect):
        for key in ("gpus", "excluded"):
            named = getattr(expect, key)
            for name in [] if named is UNSET else named:
                _at(source, ("expect", number, key, name), lambda: start.gpu(name))  # noqa: B023
        if not isinstance(expect.diag, UnsetType) and not isinstance(expect.diag.gpus, UnsetType):
            for name in expect.diag.gpus:
                _at(source, ("expect", number, "diag", "gpus"), lambda: start.gpu(name))  # noqa: B023
        for key in ("finding", "no_finding"):
            value = getattr(expect, key)
            for match in [] if value is UNSET else value if isinstance(value, list) else [value]:
                if match.gpu is not None:
                    _at(source, ("expect", number, key, "gpu"), lambda: start.gpu(match.gpu))  # noqa: B023
    return start


def apply(world: World, step: steps.Step, source: Loaded[Scenario], path: Path) -> bool:
    """Do one step to the world. False when it is not a world step. Raises InputError with file, line and key."""
    for key, act in _TAKES_TIME.items():
        value = getattr(step, key)
        if value is not UNSET:
            _at(source, (*path, key), lambda: act(world, value))  # noqa: B023
            return True
    for key in _AT_ONCE:
        if getattr(step, key) is not UNSET:
            _at(source, (*path, key), lambda: _do(world, _operations(step)))
            return True
    return False


def _at(source: Loaded[Scenario], path: Path, call: Callable[[], T]) -> T:
    """Give an error from below the file, line and key it belongs to."""
    try:
        return call()
    except InputError as exc:
        raise source.error(path, " ".join(p for p in (exc.thing, exc.place, exc.problem) if p), exc.hint) from None
    except ValueError as exc:
        raise source.error(path, str(exc)) from None


def _do(world: World, operations: Sequence[Operation]) -> None:
    for operation in operations:
        world.apply(operation)


def _operations(happening: steps.Happening) -> List[Operation]:
    """What a step, or the content of a schedule, is to the simulated node."""
    out: List[Operation] = []
    for key, write in _AT_ONCE.items():
        value = getattr(happening, key)
        if value is not UNSET:
            out += write(value)
    return out


def _line(line: Union[setting.LogLine, str]) -> Operation:
    text, at = (line, 0.0) if isinstance(line, str) else (line.text, moment(line.at))
    return {"op": "kernel_line", "text": text, "at_s": at}


def _engine(value: setting.EngineWord) -> Operation:
    if isinstance(value, str):
        return {"op": "engine", "behaviour": value}
    options = {k: getattr(value, k) for k in ("seconds", "kind", "after", "signal") if getattr(value, k) is not UNSET}
    return {"op": "engine", "behaviour": value.behaviour, **options}


def _lose(value: Union[steps.Lose, str]) -> List[Operation]:
    lose = steps.Lose(value) if isinstance(value, str) else value
    gone = {"op": "lose", "gpu": lose.gpu, "engine_lists": lose.engine_lists}
    return [gone, {"op": "pci", "gpu": lose.gpu, "shows": lose.pci}]


def _incident(value: setting.Incident) -> Operation:
    about = {} if value.gpu is UNSET else {"gpu": value.gpu}
    return {"op": "incident", "system": value.system, "code": value.code, "result": value.result, "text": value.text, **about}


def _fault(value: Union[steps.Fault, str]) -> Operation:
    if isinstance(value, str):
        return {"op": "fault", "kind": value}
    return {"op": "fault", **{key: given for key in value.__struct_fields__ if (given := getattr(value, key)) is not UNSET}}


def _diag_result(value: setting.DiagResult) -> Operation:
    about = {key: got for key in ("gpu", "error") if (got := getattr(value, key)) is not UNSET}
    return {"op": "diag_result", "test": value.test, "result": value.result, "text": value.text, "severity": value.severity, **about}


def _diag_plan(value: setting.DiagPlan) -> Operation:
    plan = {"op": "diag_plan", "behaviour": value.behaviour, "rc": value.exit, "real_seconds": value.real_seconds}
    seconds = {} if isinstance(value.seconds, UnsetType) else {"seconds": parse_duration(value.seconds)}
    return {**plan, **seconds, **({} if value.output is UNSET else {"output": value.output})}


def _share(text: str) -> float:
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise ValueError(f"{text!r} is not a share such as 10%") from None


def _schedule(world: World, value: steps.Scheduled) -> None:
    after = parse_duration(value.after)
    # Tried on a copy first: what is wrong would else be found in the middle of a hook.
    copy = World.from_json(world.to_json())
    for operation in _operations(value):
        copy.schedule(after, operation)
        world.schedule(after, operation)
    copy.advance(after)


# Steps that happen at one moment, and so can be scheduled -> the simulated node's operations.
_AT_ONCE: Dict[str, Callable[[Any], List[Operation]]] = {
    "set": lambda v: [{"op": "set", "target": target, "value": value} for target, value in v.items()],
    "add": lambda v: [{"op": "add", "target": target, "amount": amount} for target, amount in v.items()],
    "traffic": lambda v: [{"op": "traffic", "gpu": v.gpu, "mb_per_s": v.mb_per_s}],
    "fault": lambda v: [_fault(v)],
    "gpu_reset": lambda v: [{"op": "gpu_reset", "gpu": v}],
    "driver_reload": lambda v: [{"op": "driver_reload"}],
    "lose": _lose,
    "restore": lambda v: [{"op": "restore", "gpu": v}],
    "part": lambda v: [{"op": "part", "part": v.part, "shows": v.shows}],
    "swap": lambda v: [{"op": "swap", "gpu": v.gpu, "uuid": v.uuid, "serial": v.serial}],
    "xid": lambda v: [{"op": "xid", "gpu": v.gpu, "code": v.code, "text": v.text, "pid": v.pid, "process": v.process}],
    "engine_xid": lambda v: [{"op": "engine_xid", "gpu": v.gpu, "code": v.code, "at_s": moment(v.at)}],
    "incident": lambda v: [_incident(v)],
    "sxid": lambda v: [{"op": "sxid", "switch": v.switch, "code": v.code, "fatal": v.fatal, "link": v.link, "text": v.text}],
    "kernel_log": lambda v: [_line(line) for line in (v if isinstance(v, list) else [v])],
    "unreadable": lambda v: [{"op": "unreadable", "part": v.part, "reason": v.reason}],
    "engine": lambda v: [_engine(v)],
    "diag_result": lambda v: [_diag_result(one) for one in (v if isinstance(v, list) else [v])],
    "diag_plan": lambda v: [_diag_plan(v)],
}
_TAKES_TIME: Dict[str, Callable[[World, Any], Any]] = {
    "wait": lambda w, v: w.advance(parse_duration(v)),
    "storm": lambda w, v: w.storm(v.link, v.counter, v.amount, parse_duration(v.over)),
    "slow_burn": lambda w, v: w.slow_burn(v.link, v.counter, v.per_hour, parse_duration(v.over)),
    "reboot": lambda w, v: w.reboot(parse_duration(v.down)),
    "throttle": lambda w, v: w.throttle(v.gpu, v.reason, _share(v.share), parse_duration(v.over)),
    "schedule": _schedule,
}
