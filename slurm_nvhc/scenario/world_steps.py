"""A scenario's node section and world steps, done to the simulated node.

The world never sees more than this: neither the policy nor what is expected of it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple, TypeVar, Union

from msgspec import UNSET

from slurm_nvhc.errors import InputError
from slurm_nvhc.model.times import parse_duration
from slurm_nvhc.scenario import setting, steps
from slurm_nvhc.scenario.format import Scenario
from slurm_nvhc.scenario.times import moment
from slurm_nvhc.scenario.words import Value
from slurm_nvhc.sense.sim.world import World
from slurm_nvhc.strict_yaml import Loaded

Path = Tuple[Union[str, int], ...]
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
        _at(source, ("node", "pci", name), lambda: _set_pci(world, name, word))  # noqa: B023
    for number, line in enumerate(node.kernel_log):
        _at(source, ("node", "kernel_log", number), lambda: _kernel_line(world, line))  # noqa: B023
    for number, xid in enumerate(node.engine_xids):
        _at(source, ("node", "engine_xids", number), lambda: world.engine_xid(xid.gpu, xid.code, moment(xid.at)))  # noqa: B023
    _at(source, ("node", "engine"), lambda: _engine(world, node.engine))
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
        for key in ("finding", "no_finding"):
            value = getattr(expect, key)
            for match in [] if value is UNSET else value if isinstance(value, list) else [value]:
                if match.gpu is not None:
                    _at(source, ("expect", number, key, "gpu"), lambda: start.gpu(match.gpu))  # noqa: B023
    return start


def apply(world: World, step: steps.Step, source: Loaded[Scenario], path: Path) -> bool:
    """Do one step to the world. False when it is not a world step. Raises InputError with file, line and key."""
    for key, act in _ACTS.items():
        value = getattr(step, key)
        if value is not UNSET:
            _at(source, (*path, key), lambda: act(world, value))  # noqa: B023
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


def _set(world: World, readings: Dict[str, Value]) -> None:
    for target, value in readings.items():
        world.set(target, value)


def _add(world: World, amounts: Dict[str, Union[int, float]]) -> None:
    for target, amount in amounts.items():
        world.add(target, amount)


def _set_pci(world: World, name: str, word: str) -> None:
    gpu = world.gpu(name)
    gpu.on_pci, gpu.responds = word != "absent", word == "ok"


def _kernel_line(world: World, line: Union[setting.LogLine, str]) -> None:
    text, at = (line, 0.0) if isinstance(line, str) else (line.text, moment(line.at))
    world.kernel_line(text, at)


def _kernel_log(world: World, value: Union[List[Union[setting.LogLine, str]], setting.LogLine, str]) -> None:
    for line in value if isinstance(value, list) else [value]:
        _kernel_line(world, line)


def _engine(world: World, value: setting.EngineWord) -> None:
    if isinstance(value, str):
        world.engine(value)
        return
    options = {k: getattr(value, k) for k in ("seconds", "kind", "after", "signal") if getattr(value, k) is not UNSET}
    world.engine(value.behaviour, **options)


def _lose(world: World, value: Union[steps.Lose, str]) -> None:
    lose = steps.Lose(value) if isinstance(value, str) else value
    world.lose(lose.gpu, engine_lists=lose.engine_lists)
    if lose.gpu != "*":
        _set_pci(world, lose.gpu, lose.pci)


def _share(text: str) -> float:
    number = text.strip()
    try:
        return float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        raise ValueError(f"{text!r} is not a share such as 10%") from None


def _schedule(world: World, value: steps.Scheduled) -> None:
    after = parse_duration(value.after)
    for target, reading in value.set.items():
        world.schedule(after, {"op": "set", "target": target, "value": reading})
    for target, amount in value.add.items():
        world.schedule(after, {"op": "add", "target": target, "amount": amount})


_ACTS: Dict[str, Callable[[World, Any], Any]] = {
    "wait": lambda w, v: w.advance(parse_duration(v)),
    "set": _set,
    "add": _add,
    "storm": lambda w, v: w.storm(v.link, v.counter, v.amount, parse_duration(v.over)),
    "slow_burn": lambda w, v: w.slow_burn(v.link, v.counter, v.per_hour, parse_duration(v.over)),
    "gpu_reset": lambda w, v: w.gpu_reset(v),
    "driver_reload": lambda w, v: w.driver_reload(),
    "reboot": lambda w, v: w.reboot(parse_duration(v.down)),
    "lose": _lose,
    "restore": lambda w, v: w.restore(v),
    "swap": lambda w, v: w.swap(v.gpu, v.uuid, v.serial),
    "xid": lambda w, v: w.xid(v.gpu, v.code, text=v.text, pid=v.pid, process=v.process),
    "engine_xid": lambda w, v: w.engine_xid(v.gpu, v.code, moment(v.at)),
    "sxid": lambda w, v: w.sxid(v.switch, v.code, fatal=v.fatal, link=v.link, text=v.text),
    "kernel_log": _kernel_log,
    "unreadable": lambda w, v: w.unreadable(v.part, v.reason),
    "throttle": lambda w, v: w.throttle(v.gpu, v.reason, _share(v.share), parse_duration(v.over)),
    "engine": _engine,
    "schedule": _schedule,
}
