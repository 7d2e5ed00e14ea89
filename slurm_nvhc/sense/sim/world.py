"""What can happen to the simulated node: the vocabulary of faults. All of it deterministic.

GPUs are g0, g1, … in the order of the initial inventory; ``*`` means all of them where a
fault may hit several. Times are seconds from now. Anything wrong in an argument raises
InputError.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Final, Iterator, Mapping, Optional, Sequence

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import xids
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import entity, history
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model import snapshot as snap
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.model.snapshot import Event
from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.sim import arguments, diag, faults, inventory, parts, target
from slurm_nvhc.sense.sim.operations import check_operation
from slurm_nvhc.sense.sim.state import NS, SimGpu, SimState, checked_identity, locked, read_document, write_document
from slurm_nvhc.sense.sim.target import Target

BEHAVIOURS: Final[Mapping[str, tuple[str, ...]]] = {
    "ok": (),
    "absent": (),
    "empty": (),
    "hung": ("after",),
    "slow": ("seconds",),
    "lying": ("kind",),
    "crash": ("after", "signal"),
}
LIES: Final = ("negative", "sentinel", "garbage", "wrong_types", "missing_gpus", "duplicate", "nan", "huge", "frozen", "stale")
SIGNALS: Final = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGKILL")
PARTS: Final = ("clock", "kernel_log", "pci", "engine", "gpus")
UNREADABLE: Final = ("clock", "kernel_log", "pci")
BUS: Final = ("ok", "dead", "absent")

# reason of a slowdown -> the counters of ns that grow with it
THROTTLES: Final[Mapping[str, tuple[str, ...]]] = {
    "power": ("power_violation_ns", "sw_power_cap_ns"),
    "thermal": ("thermal_violation_ns", "sw_thermal_slowdown_ns"),
    "hw_thermal": ("hw_thermal_slowdown_ns", "thermal_violation_ns"),
    "power_brake": ("power_brake_ns",),
}
# link counter -> the GPU's counters that it carries along, where the name does not say it (nvlink_replay_total)
_OF_THE_GPU: Final[Mapping[str, tuple[str, ...]]] = {
    "nvlink5_link_recovery": ("nvlink5_recovery_successful", "nvlink5_recovery_events"),
}
# Flags that somebody set: neither a reset nor a swap of the card changes them.
_CONFIGURED: Final = ("ecc_mode", "ecc_pending", "persistence_mode", "mig_mode")


class World(SimState):
    """A simulated node that things happen to."""

    # -- making, keeping ---------------------------------------------------------

    @classmethod
    def preset(cls, name: str, node: str = "n1", gpus: Optional[int] = None, uptime_s: float = inventory.UPTIME_S) -> World:
        """A healthy node; names are in inventory.PRESETS, ``gpus`` overrides their number."""
        return cls(name, node, gpus, uptime_s)

    @classmethod
    def from_json(cls, raw: Any, thing: str = "world") -> World:
        world = cls.preset("cpu-only")
        world.fill(raw, thing)
        if world.behaviour not in BEHAVIOURS:
            raise InputError(thing, "key engine", f"behaviour {world.behaviour[:40]!r} is not known")
        return world

    @classmethod
    def load(cls, path: str) -> World:
        """Raises InputError when the file can not be read or is not a simulated node."""
        return cls.from_json(read_document(path), path)

    def save(self, path: str) -> None:
        """Whole or not at all. Raises OSError."""
        self.sample()
        write_document(path, self.to_json())

    @classmethod
    @contextlib.contextmanager
    def edit(cls, path: str) -> Iterator[World]:
        """Load, change, save, with the file locked against readers that let time pass."""
        with locked(path):
            world = cls.load(path)
            yield world
            world.save(path)

    # -- time --------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass; what is scheduled happens at its moment."""
        end = self.wall_ns + int(arguments.seconds("advance", seconds) * NS)
        while self.pending and self.pending[0][0] <= end:
            at, operation = self.pending.pop(0)
            self.move_clock(at)
            self.apply(operation)
        self.move_clock(end)

    def schedule(self, at_s: float, change: Mapping[str, Any]) -> None:
        """Have an operation, as apply() takes it, happen ``at_s`` seconds from now."""
        check_operation(change)
        self.pending.append((self.wall_ns + int(arguments.seconds("schedule", at_s) * NS), dict(change)))
        self.pending.sort(key=lambda item: item[0])  # stable: same moment, same order

    def apply(self, op: Mapping[str, Any]) -> None:
        """One operation as a mapping: {"op": "add", "target": "g3.link11.replay", "amount": 5}."""
        name, given = check_operation(op)
        try:
            getattr(self, name)(**given)
        except (TypeError, ValueError, AttributeError) as exc:
            raise InputError(f"operation {name}", "", f"has an argument of the wrong type: {exc}") from exc

    def reboot(self, down_s: float = 180.0) -> None:
        """New boot id, clock and kernel log; counters are cleared as the catalogue says."""
        self.advance(arguments.seconds("reboot", down_s))
        self.boots += 1
        self.boot_ns = 0
        self.kernel = []
        self.next_seq = 0
        self._forget()
        self.driver_loaded_ns = self.wall_ns
        for gpu in self.gpus:
            gpu.clear(cat.REBOOT, range(1, 8))
        for part in self.parts.values():
            part.clear(cat.REBOOT)

    def driver_reload(self) -> None:
        self.driver_loaded_ns = self.wall_ns
        for gpu in self.gpus:
            gpu.clear(cat.DRIVER_RELOAD, ())
        for part in self.parts.values():
            part.clear(cat.DRIVER_RELOAD)

    def gpu_reset(self, gpu: str) -> None:
        for card in self._some(gpu):
            card.clear(cat.GPU_RESET, (1, 4))

    # -- readings ----------------------------------------------------------------

    def set(self, target: str, value: Any) -> None:
        """Make a reading what is given: a number, a state's word, or a kind of no data.

        Only this reading: the GPU's total does not follow a link's counter (see add).
        """
        field, places = self._aim(target)
        wanted = arguments.reading(field, value)
        for readings in places:
            readings[field.name] = wanted

    def add(self, target: str, amount: float) -> None:
        """Let a reading grow. A link's counter carries the GPU's total along."""
        field, places = self._aim(target)
        grow = arguments.number(field, amount)
        if field.kind == cat.COUNTER and grow < 0:
            raise InputError(f"add {target}", "", "a counter can not shrink", "use set")
        for readings in places:
            now = rd.number(readings[field.name])
            if now is None:
                raise InputError(f"add {target}", "", "it has no number now", "use set first")
            readings[field.name] = now + grow
        if field.scope != cat.LINK:
            return
        goal = self._target(target)
        for card in self._cards(goal.gpu):
            for total in _OF_THE_GPU.get(field.name, (f"{field.name}_total",)):
                sum_now = rd.number(card.readings.get(total))
                if sum_now is not None:
                    card.readings[total] = sum_now + grow * (len(card.links) if goal.link == -1 else 1)

    def storm(self, link: str, counter: str, amount: float, seconds: float) -> None:
        """``amount`` errors on a link ("g3.link11") in the next ``seconds``, which pass."""
        self.add(f"{link}.{counter}", amount)
        self.advance(seconds)

    def slow_burn(self, link: str, counter: str, per_hour: float, seconds: float) -> None:
        """A steady trickle while ``seconds`` pass: whole errors, rounded down."""
        rate = arguments.seconds("slow_burn", per_hour)
        self.add(f"{link}.{counter}", math.floor(rate * arguments.seconds("slow_burn", seconds) / 3600 + 1e-9))
        self.advance(seconds)

    def throttle(self, gpu: str, reason: str, share: float, seconds: float) -> None:
        """Hold the clocks down for a share (0 to 1) of the next ``seconds``, which pass."""
        if reason not in THROTTLES:
            raise InputError("throttle", "key reason", f"{str(reason)[:40]!r} is not known", "known: " + ", ".join(THROTTLES))
        if not 0 <= arguments.seconds("throttle", share) <= 1:
            raise InputError("throttle", "key share", "must be from 0 to 1")
        grow = int(share * arguments.seconds("throttle", seconds) * NS)
        for card in self._some(gpu):
            for name in THROTTLES[reason]:
                now = rd.number(card.readings[name])
                if now is not None:  # an older driver does not have it
                    card.readings[name] = now + grow
        self.advance(seconds)

    def traffic(self, gpu: str, mb_per_s: float) -> None:
        """Let a card send, and receive, this much over NVLink from now on: NVLink 5 counts the bytes, earlier ones tell the rate."""
        rate = arguments.seconds("traffic", mb_per_s)
        for card in self._some(gpu):
            card.traffic_mb_s = rate
            if not isinstance(card.readings["nvlink_throughput"], NoData):
                card.readings["nvlink_throughput"] = int(2 * rate)  # whole MB/s, as DCGM tells it

    def fault(
        self,
        kind: str,
        at: str = "",
        shows: str = "",
        per_second: Optional[float] = None,
        per_gb: Optional[float] = None,
        counters: Optional[Sequence[str]] = None,
        share: float = 1.0,
    ) -> None:
        """Plant a fault that shows itself only while data passes it (sim/faults.py); ``none`` takes all of them away."""
        if kind == faults.NONE:
            self.faults = []
        else:
            self.faults.append(faults.plant(self, kind, at, shows, per_second, per_gb, counters, share))

    # -- cards -------------------------------------------------------------------

    def gpu(self, name: str) -> SimGpu:
        """The card that "g3" names."""
        index = target.gpu_index(name, len(self.gpus))
        if index is None:
            raise InputError("gpu *", "", "one GPU was expected, such as g3")
        return self.gpus[index]

    def identify(self, gpu: str, **fields: Any) -> None:
        """Change a card's identity: any of uuid, pci, minor, nvml_index, dcgm_id, serial, model, slot, vbios, mig."""
        for card in self._some(gpu):
            try:
                row = checked_identity(card.identity._replace(**fields))
            except (ValueError, TypeError) as exc:
                raise InputError(f"identify {gpu}", "", str(exc)) from exc
            if any(other is not card and other.identity.uuid == row.uuid for other in self.gpus):
                raise InputError(f"identify {gpu}", "key uuid", f"{row.uuid[:80]} is another GPU's")
            card.identity = row
            card.readings.update(inventory.identity_readings(row))
        self.wire(range(len(self.gpus)))

    def links(self, gpu: str, count: int, state: str = "up") -> None:
        """Give a card this many NVLinks, fresh ones, all in one state."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 36:
            raise InputError("links", "key count", "must be a number from 0 to 36")
        if state not in cat.LINK_STATES:
            raise InputError("links", "key state", f"{str(state)[:40]!r} is not a link state", "known: " + ", ".join(cat.LINK_STATES))
        for card in self._some(gpu):
            card.links = {n: inventory.link_readings(inventory.PRESETS[self.base], state) for n in range(count)}
        self.wire(range(len(self.gpus)))

    def lose(self, gpu: str, engine_lists: bool = False, on_pci: bool = True) -> None:
        """The card stops answering. engine_lists: it stays in the engine's list, as lost.

        on_pci: it stays on the bus and reads all ones; False: it is gone from there too.
        """
        if not isinstance(engine_lists, bool) or not isinstance(on_pci, bool):
            raise InputError(f"lose {gpu}", "", "engine_lists and on_pci are true or false")
        for card in self._some(gpu):
            card.listed, card.status = engine_lists, snap.LOST
            card.on_pci, card.responds = on_pci, False

    def pci(self, gpu: str, shows: str) -> None:
        """What the bus shows of a card: ok, dead (config space reads all ones) or absent."""
        if shows not in BUS:
            raise InputError("pci", "key shows", f"{str(shows)[:40]!r} is not known", "known: " + ", ".join(BUS))
        for card in self._some(gpu):
            card.on_pci, card.responds = shows != "absent", shows == "ok"

    def restore(self, gpu: str) -> None:
        for card in self._some(gpu):
            card.listed, card.status, card.on_pci, card.responds = True, snap.OK, True, True

    def part(self, part: str, shows: str) -> None:
        """Make a part of the node ("rdma3.port1", "switch0" with its ports) absent, or present again."""
        parts.show(self.parts, part, shows)

    def swap(self, gpu: str, uuid: str, serial: str = "") -> None:
        """Another card in the same slot: new UUID and serial, counters at 0, lifetime ones too."""
        card = self.gpu(gpu)
        self.identify(gpu, uuid=uuid, serial=serial)
        for readings in (card.readings, *card.links.values()):
            for name, value in readings.items():
                if cat.BY_NAME[name].kind in (cat.COUNTER, cat.FLAG) and name not in _CONFIGURED and not isinstance(value, NoData):
                    readings[name] = 0

    # -- events ------------------------------------------------------------------

    def kernel_line(self, text: str, at_s: float = 0.0) -> None:
        """A line in the kernel log, verbatim. at_s: when, 0 or negative."""
        if not isinstance(text, str):
            raise InputError("kernel_line", "key text", "must be text")
        self.kernel.append(Line(self.next_seq, self._past("kernel_line", at_s), text))
        self.next_seq += 1

    def xid(self, gpu: str, code: int, text: str = "", pid: int = 0, process: str = "", at_s: float = 0.0) -> None:
        """An Xid as it happens in life: the driver's kernel line, and the engine's event while there is an engine."""
        card = self.gpu(gpu)
        number = arguments.code(code)
        who = f"pid={pid}, name={process}" if pid else "pid='<unknown>', name=<unknown>"
        words = text or ("GPU has fallen off the bus." if number == xids.FALLEN_OFF_BUS else xids.meaning(number))
        slot = card.identity.pci.rpartition(".")[0]  # the driver's line has no function
        self.kernel_line(f"NVRM: Xid (PCI:{slot}): {number}, {who}, {words}", at_s)
        if self.behaviour != "absent":
            self.engine_xid(gpu, number, at_s)

    def engine_xid(self, gpu: str, code: int, at_s: float = 0.0) -> None:
        """An Xid that only the engine tells of (DCGM field 230)."""
        row = self.gpu(gpu).identity
        number = arguments.code(code)
        at = self._past("engine_xid", at_s) // 1000 * 1000  # DCGM's timestamps are microseconds
        self.engine_events.append(
            Event("xid", number, at, row.pci, f"Xid {number}", "engine", f"engine:{row.uuid}:{number}:{at}", uuid=row.uuid)
        )

    def sxid(self, switch: int, code: int, fatal: bool = False, link: int = 0, text: str = "") -> None:
        """An NVSwitch error as the driver logs it, with its lines of detail."""
        if isinstance(switch, bool) or not isinstance(switch, int) or not 0 <= switch < len(self.switches):
            raise InputError("sxid", "key switch", "is not on this node", f"it has {len(self.switches)} switches")
        head = f"nvidia-nvswitch{switch}: SXid (PCI:{self.switches[switch]}): {arguments.code(code)}"
        self.kernel_line(f"{head}, {'Fatal' if fatal else 'Non-fatal'}, Link {link:02d} {text or 'link error'}")
        self.kernel_line(f"{head}, Severity {1 if fatal else 0} Engine instance {link:02d} Sub-engine instance 00")
        self.kernel_line(f"{head}, Data {{0x00000001, 0x00000001, 0x00000000}}")

    # -- engine and log ------------------------------------------------------------

    def engine(self, behaviour: str, **options: Any) -> None:
        """ok; absent; empty (knows no GPU); hung(after); slow(seconds); crash(after, signal); lying(kind).

        after: the last part of the reply that still comes, "pci" when not said. A crash ends
        the process by the signal (SIGSEGV). Lies are in LIES.
        """
        known = BEHAVIOURS.get(behaviour)
        if known is None:
            raise InputError("engine", "key behaviour", f"{str(behaviour)[:40]!r} is not known", "known: " + ", ".join(BEHAVIOURS))
        for key in options:
            if key not in known:
                raise InputError("engine", f"key {key[:40]}", f"means nothing for {behaviour}", "known: " + (", ".join(known) or "none"))
        if options.get("after", "pci") not in PARTS:
            raise InputError("engine", "key after", "is not a part of the reply", "known: " + ", ".join(PARTS))
        if behaviour == "slow":
            arguments.seconds("engine slow", options.get("seconds"))
        if behaviour == "crash" and options.get("signal", "SIGSEGV") not in SIGNALS:
            raise InputError("engine", "key signal", "is not one that a crash ends in", "known: " + ", ".join(SIGNALS))
        if behaviour == "lying":
            if options.get("kind") not in LIES:
                raise InputError("engine", "key kind", "is not a lie", "known: " + ", ".join(LIES))
            if options["kind"] == "frozen":
                options["gpus"] = self.to_json()["gpus"]
        if behaviour == "absent":
            self._forget()
        self.behaviour, self.options = behaviour, options

    def incident(self, system: str, code: int, result: str, text: str = "", gpu: str = "") -> None:
        """A complaint of the engine's own health check, about a GPU or (gpu: "") the node. result: warn or fail."""
        if result not in (history.WARN, history.FAIL) or not isinstance(system, str) or not isinstance(text, str):
            raise InputError("incident", "key result", f"{str(result)[:40]!r} is not known", "known: warn, fail")
        about = self.gpu(gpu).identity.uuid if gpu else entity.NODE
        self.incidents.append(history.Incident(system, arguments.code(code), result, about, text))

    def diag_result(self, test: str, result: str, gpu: str = "", error: Optional[int] = None, text: str = "", severity: str = "") -> None:
        """What a test of DCGM's diagnostic says from now on of a card ("*": of each), or (gpu: "") of the node; pass takes it away."""
        for where in [card.identity.uuid for card in self._some(gpu)] if gpu else [entity.NODE]:
            self.diag.say(diag.Said(test, where, result, error, text, severity))

    def diag_plan(self, behaviour: str = "ok", seconds: Any = None, output: Any = None, rc: int = 0, real_seconds: float = 0.0) -> None:
        """How diagnostics go from now on (diag.Plan): what is not said is as usual. One that runs has ended."""
        self.diag.take(diag.Plan(behaviour, seconds, output, rc, real_seconds), self.wall_ns)

    def watch(self) -> bool:
        """Have the engine sample from now on; False when it did already."""
        if self.watched is not None:
            return False
        self.watched = {}
        self.sample()
        return True

    def unwatch(self) -> bool:
        there = self.watched is not None
        self.watched = None
        return there

    def _forget(self) -> None:
        """What lives in the engine's memory only."""
        self.engine_events, self.watched, self.incidents, self.diag.running = [], None, [], None

    def unreadable(self, part: str, reason: str = "Permission denied") -> None:
        """Make clock, kernel_log or pci unreadable; an empty reason makes it readable again."""
        if part not in UNREADABLE:
            raise InputError("unreadable", "key part", f"{str(part)[:40]!r} is not known", "known: " + ", ".join(UNREADABLE))
        self.blind.pop(part, None)
        if reason:
            self.blind[part] = reason

    # -- helpers -------------------------------------------------------------------

    def _aim(self, text: str) -> tuple[cat.Field, list[dict[str, Reading]]]:
        """(field, the readings that a target means)."""
        if parts.names(text):
            return parts.aim(self.parts, text)
        goal = self._target(text)
        return goal.field, self._places(goal)

    def _target(self, text: str) -> Target:
        goal = target.parse(text, len(self.gpus))
        for card in self._cards(goal.gpu):
            if goal.link is not None and goal.link >= 0 and goal.link not in card.links:
                raise InputError(f"target {text[:60]!r}", "", f"there is no link {goal.link}", f"the GPU has {len(card.links)} links")
        return goal

    def _cards(self, index: Optional[int]) -> list[SimGpu]:
        return self.gpus if index is None else [self.gpus[index]]

    def _some(self, name: str) -> list[SimGpu]:
        return self._cards(target.gpu_index(name, len(self.gpus)))

    def _places(self, goal: Target) -> list[dict[str, Reading]]:
        """The readings that a target means."""
        out: list[dict[str, Reading]] = []
        for card in self._cards(goal.gpu):
            if goal.link is None:
                out.append(card.readings)
            else:
                out.extend(readings for number, readings in card.links.items() if goal.link in (-1, number))
        return out

    def _past(self, what: str, at_s: float) -> int:
        if isinstance(at_s, bool) or not isinstance(at_s, (int, float)) or not -1e9 < at_s <= 0:
            raise InputError(what, "key at_s", "must be 0 or negative: seconds before now", "use schedule for later")
        at = self.wall_ns + int(at_s * NS)
        if at < self.wall_ns - self.boot_ns:
            raise InputError(what, "key at_s", "is before the node's boot")
        return at
