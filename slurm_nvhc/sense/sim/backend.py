"""The simulated node behind the reader's interface. It sees the world file and nothing else.

Nothing sleeps where the world's clock can be moved instead. What is slower than the
deadline has to be slower in real time, though: it then stops for good, and the deadline
ends the process as it would with a real engine.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Callable, Final, Mapping, NoReturn, Optional, Sequence, cast

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.model.diag import Ask, Report, Stopped
from slurm_nvhc.model.history import Incident, Sample
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Event, GpuIdentity, GpuState, PciGpu
from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.protocol import PARTS, Request
from slurm_nvhc.sense.reader.backend import Clock, EngineInfo, PartFailed
from slurm_nvhc.sense.sim import parts
from slurm_nvhc.sense.sim.state import SimGpu, gpu_from_json
from slurm_nvhc.sense.sim.world import World

_GONE: Final = NoData(rd.BLANK, "the GPU is lost")


def open_world(request: Request) -> SimBackend:
    """Raises PartFailed when the request names no world file that can be read."""
    path = request.options.get("world")
    if not isinstance(path, str) or not path:
        raise PartFailed("MON-ENGINE-ABSENT", "engine", "the sim backend needs a world file (policy: engine.world)")
    try:
        return SimBackend(path, World.load(path), request.deadline_s)
    except InputError as exc:
        raise PartFailed("MON-ENGINE-ABSENT", "engine", str(exc)) from exc


class SimBackend:
    """See reader.backend.Backend."""

    def __init__(self, path: str, world: World, deadline_s: float) -> None:
        self.notes: list[PartFailed] = []
        self._path = path
        self._world = world
        self._deadline_s = deadline_s

    def wait(self, seconds: float) -> None:
        with World.edit(self._path) as world:
            world.advance(seconds)
            self._world = world

    def clock(self) -> Clock:
        self._reach("clock")
        world = self._world
        return Clock(world.wall_ns, world.boot_ns, world.boot_id)

    def kernel_log(self) -> Sequence[Line]:
        self._reach("kernel_log")
        return sorted(self._world.kernel, key=lambda line: line.seq)

    def pci(self) -> Optional[Sequence[PciGpu]]:
        self._reach("pci")
        return [PciGpu(gpu.identity.pci, gpu.responds) for gpu in self._world.gpus if gpu.on_pci]

    def host(self, fields: Sequence[str]) -> Mapping[str, Mapping[str, Reading]]:
        return self._told((cat.NODE, cat.RDMA), fields)  # the kernel's: no engine stands in the way

    def engine(self) -> EngineInfo:
        self._reach("engine")
        world = self._world
        if world.behaviour == "absent":
            raise PartFailed("MON-ENGINE-ABSENT", "engine", "connection refused")
        if world.behaviour == "slow":
            seconds = float(world.options["seconds"])
            if seconds >= self._deadline_s:
                _stop()
            self.wait(seconds)
            world = self._world
        return EngineInfo(world.engine_version, world.driver, world.driver_loaded_ns)

    def gpus(self, fields: Sequence[str]) -> Sequence[GpuState]:
        self._reach("gpus")
        world = self._world
        if world.behaviour == "empty":
            return []
        if world.behaviour == "lying" and world.options["kind"] == "frozen":
            cards = [gpu_from_json(raw) for raw in world.options["gpus"]]
        else:
            cards = world.gpus
        states = [_state(card, frozenset(fields)) for card in cards if card.listed]
        return _LIES[world.options["kind"]](states) if world.behaviour == "lying" else states

    def switches(self, fields: Sequence[str]) -> Mapping[str, Mapping[str, Reading]]:
        self._reach("switches")
        return {} if self._world.behaviour == "empty" else self._told((cat.SWITCH, cat.SWITCH_PORT), fields)

    def events(self) -> Sequence[Event]:
        self._reach("events")
        return self._world.engine_events

    def watch(self) -> tuple[bool, bool]:
        with World.edit(self._path) as world:
            made = world.watch()
        return True, made

    def unwatch(self) -> bool:
        with World.edit(self._path) as world:
            return world.unwatch()

    def history(self, fields: Sequence[str], since_ns: int, until_ns: int) -> Optional[Mapping[str, Mapping[str, Sequence[Sample]]]]:
        if self._world.watched is None:
            return None
        asked = [name for name in fields if name in cat.SAMPLED]
        return {
            uuid: {name: inside for name in asked if (inside := _between(series.get(name, ()), since_ns, until_ns))}
            for uuid, series in self._world.watched.items()
        }

    def health(self) -> Optional[Sequence[Incident]]:
        return None if self._world.watched is None else self._world.incidents

    def diagnose(self, ask: Ask, seconds: float) -> Report:
        from slurm_nvhc.sense.sim import diag_run  # a snapshot needs none of it

        return diag_run.run(self._path, ask, seconds)

    def stop_diag(self, seconds: float) -> Stopped:
        from slurm_nvhc.sense.sim import diag_run

        return diag_run.stop(self._path, seconds)

    def _told(self, scopes: Sequence[str], fields: Sequence[str]) -> Mapping[str, Mapping[str, Reading]]:
        world = self._world
        return parts.told(world.parts, [gpu.identity.pci for gpu in world.gpus], scopes, fields)

    def _reach(self, part: str) -> None:
        """On the way to a part: the engine may hang or crash before it, the part may be unreadable."""
        world = self._world
        if world.behaviour in ("hung", "crash") and PARTS.index(part) > PARTS.index(world.options.get("after", "pci")):
            if world.behaviour == "hung":
                _stop()
            _crash(world.options.get("signal", "SIGSEGV"))
        if part in world.blind:
            code = "MON-KERNEL-LOG" if part == "kernel_log" else "MON-READER"
            raise PartFailed(code, part, world.blind[part])


def _between(samples: Sequence[Sample], since_ns: int, until_ns: int) -> list[Sample]:
    """The samples of a time. The world keeps changes only; an engine would have gone on sampling what stands at its start."""
    before = [s for s in samples if s.at_ns < since_ns]
    inside = [s for s in samples if since_ns <= s.at_ns <= until_ns]
    standing = before and since_ns <= until_ns and not (inside and inside[0].at_ns == since_ns)
    return [Sample(since_ns, before[-1].value), *inside] if standing else inside


def _stop() -> NoReturn:
    while True:
        signal.pause()


def _crash(name: str) -> NoReturn:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = signal.Signals[name]
    if number is not signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    _stop()


def _state(card: SimGpu, wanted: frozenset[str]) -> GpuState:
    lost = card.status == snap.LOST

    def pick(readings: dict[str, Reading]) -> dict[str, Reading]:
        return {name: _GONE if lost else value for name, value in readings.items() if name in wanted}

    return GpuState(card.identity, card.status, pick(card.readings), {n: pick(r) for n, r in card.links.items()})


# -- lies: what an engine might say that can not be ------------------------------------


def _each(change: Callable[[str, Any], Any]) -> Callable[[list[GpuState]], list[GpuState]]:
    """A lie about every number."""

    def lie(states: list[GpuState]) -> list[GpuState]:
        def bend(readings: Any) -> dict[str, Reading]:
            return {k: cast(Reading, change(k, v)) if rd.number(v) is not None else v for k, v in readings.items()}

        return [s._replace(readings=bend(s.readings), links={n: bend(r) for n, r in s.links.items()}) for s in states]

    return lie


def _counters(change: Callable[[Any], Any]) -> Callable[[list[GpuState]], list[GpuState]]:
    return _each(lambda name, value: change(value) if cat.BY_NAME[name].kind == cat.COUNTER else value)


def _garbage(states: list[GpuState]) -> list[GpuState]:
    return [
        GpuState(
            GpuIdentity(uuid=f"{s.identity.uuid[:2]}\x00%n", pci="nowhere", minor=cast(int, "x")),
            "\x1b[31mfine",
            {"\udcff": cast(Reading, [1, {}])},
            {},
        )
        for s in states
    ]


def _duplicate(states: list[GpuState]) -> list[GpuState]:
    return [*states, states[0]] if states else []


_LIES: Final[dict[str, Callable[[list[GpuState]], list[GpuState]]]] = {
    "negative": _counters(lambda value: -value - 1),
    "sentinel": _counters(lambda value: 0x7FFFFFFFFFFFFFF0),
    "huge": _counters(lambda value: 2**63 + 5),
    "nan": _each(lambda name, value: float("nan")),
    "wrong_types": _each(lambda name, value: [str(value)]),
    "stale": _each(lambda name, value: NoData(rd.STALE, "the engine's last sample is old")),
    "garbage": _garbage,
    "missing_gpus": lambda states: states[:-1],
    "duplicate": _duplicate,
    "frozen": lambda states: states,
}
