"""A plan as snapshots: the readings of one node at any moment, moved forward only."""

from __future__ import annotations

import hashlib
from typing import Any, Collection, Final, Iterable, Mapping, Optional

from detection.boards import Board
from detection.plan import (
    GROW,
    LOST,
    REBOOT,
    RELOAD,
    RESET,
    SET,
    SILENT,
    SWAP,
    UPGRADE,
    XID,
    Effect,
    Flow,
    Plan,
    gpu_of,
    link_of,
)
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import entity
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.model.reading import NoData, Reading, number
from slurm_nvhc.model.snapshot import Event, GpuIdentity, GpuState, PciGpu, Snapshot, Trouble

NS: Final = 10**9
# What a busy GPU reads at a look in mid-job: at its power limit, and warm (clock event reason 0x4 is the software power cap).
_BUSY: Final[Mapping[str, Reading]] = {"gpu_temp": 68, "memory_temp": 80, "gpu_temp_margin": 19, "sm_clock": 1755, "clock_event_reasons": 4,
                                       "gpu_util": 99, "fb_used": 61_440, "gpu_processes": 1}  # fmt: skip
_NEW_DRIVER: Final = "580.82.07"
_NEW_ENGINE: Final = "4.6.1"


class Node:
    """gpus: which GPUs are shown, each with which links; parts: which other parts. ``at`` only grows."""

    def __init__(self, plan: Plan, board: Board, gpus: Mapping[int, Collection[int]], parts: Iterable[str] = ()) -> None:
        base = board.snapshot
        states = list((base.gpus or {}).values())
        self.plan, self.board, self.at = plan, board, 0.0
        self._base, self._boot_at, self._boots = base, -base.boot_ns / NS, 1
        self._loaded_at = self._boot_at
        self._driver, self._engine, self._silent = base.driver, base.engine, False
        self._gpus = {n: _Gpu(states[n], plan.node, links) for n, links in gpus.items()}
        self._parts = {name: dict(base.parts[name]) for name in parts if name in base.parts}
        self._effects, self._next = plan.effects, 0
        self._events: list[tuple[float, Event]] = []
        self._flows = [_Running(flow) for flow in sorted(plan.flows, key=lambda f: f.start) if gpu_of(flow.place) in self._gpus]
        self._over_at = 0.0  # when the next of the flows ends

    def identity(self, n: int) -> GpuIdentity:
        return self._gpus[n].identity

    def shows(self, n: int) -> bool:
        return n in self._gpus

    def name(self, place: str) -> str:
        """A place as the entity that findings use; '' for a GPU that is not shown."""
        if not place.startswith("g") or not place[1:2].isdigit():
            return place
        shown = self._gpus.get(gpu_of(place))
        if shown is None:
            return ""
        line = link_of(place)
        return shown.identity.uuid if line is None else entity.link(shown.identity.uuid, line)

    def events(self, after: float) -> tuple[Event, ...]:
        """Kernel events since a moment, of this boot."""
        return tuple(event for at, event in self._events if at > after)

    def wall_ns(self, at: float) -> int:
        return self._base.wall_ns + int(at * NS)

    def snapshot(self, at: float, since: float) -> Snapshot:
        """What the node says at ``at``, with the kernel's events after ``since``."""
        self._advance(at)
        gpus: Optional[dict[str, GpuState]] = None
        troubles: tuple[Trouble, ...] = ()
        if self._silent:
            troubles = (Trouble("MON-ENGINE-ABSENT", "engine", "no answer"),)
        else:
            busy = {g for job in self.plan.jobs if job.start < at < job.end for g in job.gpus}
            gpus = {g.identity.uuid: g.state(n in busy) for n, g in self._gpus.items()}
        return self._base._replace(
            engine="" if self._silent else self._engine,
            boot_id=f"boot-{self._boots}",
            wall_ns=self.wall_ns(at),
            boot_ns=int((at - self._boot_at) * NS),
            driver="" if self._silent else self._driver,
            driver_loaded_ns=self.wall_ns(self._loaded_at),
            gpus=gpus,
            pci_gpus=tuple(PciGpu(g.identity.pci, not g.lost) for g in self._gpus.values()),
            parts={name: dict(readings) for name, readings in self._parts.items()},
            events=self.events(since),
            troubles=troubles,
        )

    def _advance(self, at: float) -> None:
        while self._next < len(self._effects) and self._effects[self._next].at <= at:
            effect = self._effects[self._next]
            self._flow(effect.at)
            self._apply(effect)
            self._next += 1
        self._flow(at)

    def _flow(self, at: float) -> None:
        """Let the counters that move all the time move on to ``at``."""
        for row in self._flows:
            if row.flow.start >= at:
                break
            seconds = min(at, row.flow.end) - max(self.at, row.flow.start)
            if seconds > 0:
                whole, row.left = divmod(row.left + seconds * row.flow.per_s, 1.0)
                self._gpus[gpu_of(row.flow.place)].grow(None, row.flow.field, int(whole))
        if self._flows and at > self._over_at:
            self._flows = [row for row in self._flows if row.flow.end > at]
            self._over_at = min((row.flow.end for row in self._flows), default=0.0)
        self.at = max(self.at, at)

    def _apply(self, effect: Effect) -> None:
        what = effect.what
        if what == REBOOT:
            self._boots += 1
            self._boot_at = self._loaded_at = effect.at
            self._events.clear()
            self._clear(self._gpus, cat.REBOOT)
        elif what == RELOAD:
            self._loaded_at = effect.at
            self._clear(self._gpus, cat.DRIVER_RELOAD)
        elif what == UPGRADE:
            self._driver, self._engine = _NEW_DRIVER, _NEW_ENGINE
            if "nvidia_driver" in self._parts.get(entity.NODE, {}):
                self._parts[entity.NODE]["nvidia_driver"] = _NEW_DRIVER
        elif what == SILENT:
            self._silent = bool(effect.value)
        elif effect.place in self._parts:
            self._on_part(effect)
        elif effect.place.startswith("g") and gpu_of(effect.place) in self._gpus:
            self._on_gpu(effect)

    def _on_part(self, effect: Effect) -> None:
        readings = self._parts[effect.place]
        old = number(readings.get(effect.field))
        if effect.what == SET:
            readings[effect.field] = effect.value
        elif old is not None:
            readings[effect.field] = old + effect.value

    def _on_gpu(self, effect: Effect) -> None:
        n = gpu_of(effect.place)
        shown = self._gpus[n]
        if effect.what == GROW:
            shown.grow(link_of(effect.place), effect.field, effect.value)
        elif effect.what == SET:
            shown.set(link_of(effect.place), effect.field, effect.value)
        elif effect.what == XID:
            self._events.append((effect.at, self._xid(effect, shown.identity)))
        elif effect.what == RESET:
            shown.clear(cat.GPU_RESET)
        elif effect.what == SWAP:
            shown.swap(f"{self.plan.node}/{n}/{effect.at}")
        elif effect.what == LOST:
            shown.lost = True

    def _xid(self, effect: Effect, identity: GpuIdentity) -> Event:
        code, at_ns = int(effect.value), self.wall_ns(effect.at)
        ident = f"boot-{self._boots}:{int(effect.at * 1000)}"
        return Event("xid", code, at_ns, identity.pci, f"NVRM: Xid (PCI:{identity.pci}): {code}", "kernel", ident, identity.uuid)

    def _clear(self, gpus: Iterable[int], what: str) -> None:
        """What a reboot or a load of the driver sets to 0, on GPUs and parts."""
        for n in gpus:
            self._gpus[n].clear(what)
        for readings in self._parts.values():
            _clear(readings, what)


class _Running:
    """A flow and the fraction of a count that it has not shown yet."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.left = flow, 0.0


class _Gpu:
    """Readings of one GPU, with what hides them for a while."""

    def __init__(self, state: GpuState, node: str, links: Collection[int]) -> None:
        self.identity = state.identity
        self.lost = False
        self._readings: dict[str, Reading] = dict(state.readings)
        self._links: dict[int, dict[str, Reading]] = {n: dict(readings) for n, readings in state.links.items() if n in links}
        self._hidden: dict[tuple[Optional[int], str], NoData] = {}
        self._made: dict[bool, GpuState] = {}
        self.swap(f"{node}/{state.identity.nvml_index}")

    def swap(self, name: str) -> None:
        """Another card: what it counted before is not known here."""
        digest = hashlib.sha256(name.encode()).hexdigest()
        uuid = f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
        self.identity = self.identity._replace(uuid=uuid, serial=str(int(digest[32:44], 16)))
        self._made.clear()

    def grow(self, line: Optional[int], field: str, amount: int) -> None:
        if line is not None:
            self._add(self._links.get(line, {}), field, amount)
            field += "_total"
        self._add(self._readings, field, amount)

    def _add(self, readings: dict[str, Reading], field: str, amount: int) -> None:
        old = number(readings.get(field))
        if old is not None:
            readings[field] = old + amount
            self._made.clear()

    def set(self, line: Optional[int], field: str, value: Any) -> None:
        """A reading; no data hides the one that goes on behind it, None shows it again."""
        self._made.clear()
        if value is None:
            self._hidden.pop((line, field), None)
        elif isinstance(value, NoData):
            self._hidden[line, field] = value
        else:
            (self._readings if line is None else self._links[line])[field] = value

    def clear(self, what: str) -> None:
        self._made.clear()
        for readings in (self._readings, *self._links.values()):
            _clear(readings, what)

    def state(self, busy: bool) -> GpuState:
        if busy not in self._made:
            readings = dict(self._readings)
            if busy:
                readings.update({f: v for f, v in _BUSY.items() if number(readings.get(f)) is not None})
            links = {n: dict(readings_) for n, readings_ in self._links.items()}
            for (line, field), value in self._hidden.items():
                (readings if line is None else links[line])[field] = value
            self._made[busy] = GpuState(self.identity, snap.LOST if self.lost else snap.OK, readings, links)
        return self._made[busy]


def _clear(readings: dict[str, Reading], what: str) -> None:
    for field, value in readings.items():
        if what in cat.BY_NAME[field].cleared_by and number(value) is not None:
            readings[field] = 0
