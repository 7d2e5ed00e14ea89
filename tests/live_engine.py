"""A real engine as a rig of the contract. Its world is changed by the tester's command (docs/dcgm.md).

Whatever a test changed is put back after it, as far as the command can.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any

import patient
import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.policy.compiled import Engine
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.sense.memory import remove_watch
from slurm_nvhc.sense.sim import target

REFUSED = 3
UP_S = 60.0  # an engine that was restarted looks for its GPUs before it answers
PATIENT_S = patient.READ_S
GPUS = 8


class LiveEngine:
    kind = "live"
    slack_ns = 30 * 1_000_000_000

    def __init__(self, address: str, command: str, bindings: str) -> None:
        self.engine = Engine("dcgm", address, bindings=tuple(bindings.split(":")) if bindings else ())
        self._command = shlex.split(command)
        self._undo: list[Callable[[], object]] = []
        self._calls: dict[str, Callable[..., None]] = {
            "set": self._set,
            "add": self._add,
            "storm": lambda link, counter, amount, seconds: self._add(f"{link}.{counter}", amount),
            "lose": self._lose,
            "restore": self._restore,
            "engine": self._engine,
            "engine_xid": self._xid,
            "incident": self._incident,
        }

    def __enter__(self) -> LiveEngine:
        first = self.read()
        if first.gpus is None:
            pytest.fail(f"no engine at NVHC_DCGM_ADDRESS {self.engine.address}: {'; '.join(t.detail for t in first.troubles)}")
        return self

    def __exit__(self, *exc: object) -> None:
        for undo in reversed(self._undo):
            undo()
        remove_watch("n1", self.engine, PATIENT_S)

    def read(self, deadline_s: float = PATIENT_S, **options: Any) -> Snapshot:
        """Trouble with this machine's own kernel log is not the engine's."""
        s = read_snapshot("n1", self.engine, deadline_s, **options)
        return s._replace(troubles=tuple(t for t in s.troubles if t.part not in ("kernel_log", "pci")))

    def do(self, operation: str, **arguments: Any) -> None:
        call = self._calls.get(operation)
        if call is None:
            pytest.skip(f"a real engine can not be made to do {operation}")
        call(**arguments)

    def do_all(self, operations: Iterable[dict[str, Any]]) -> None:
        for operation in operations:
            arguments = dict(operation)
            self.do(arguments.pop("op"), **arguments)

    # -- the tester's command --------------------------------------------------------

    def _ctl(self, *words: str) -> None:
        if not self._command:
            pytest.skip(f"NVHC_DCGM_CTL is not set: needed for {words[0]}")
        done = subprocess.run([*self._command, *words], capture_output=True, text=True, timeout=patient.PROCESS_S, check=False)
        if done.returncode == REFUSED:
            pytest.skip(f"NVHC_DCGM_CTL refuses {' '.join(words)}")
        assert done.returncode == 0, f"NVHC_DCGM_CTL {' '.join(words)}: {done.stderr[-300:]}"

    def _any_ctl(self, choices: Iterable[tuple[str, ...]]) -> None:
        """The first spelling that the command takes."""
        for words in choices:
            if not self._command:
                break
            done = subprocess.run([*self._command, *words], capture_output=True, text=True, timeout=patient.PROCESS_S, check=False)
            if done.returncode == 0:
                return
            if done.returncode != REFUSED:
                pytest.fail(f"NVHC_DCGM_CTL {' '.join(words)}: {done.stderr[-300:]}")
        pytest.skip("NVHC_DCGM_CTL is not set or refuses it")

    # -- operations --------------------------------------------------------------------

    def _set(self, target: str, value: Any) -> None:
        goal = _goal(target)
        if goal.field.bits is not None or goal.field.packed_id is not None:
            pytest.skip(f"a real engine can not be given {goal.field.name} by itself")
        if isinstance(value, dict) or value in rd.NO_DATA_KINDS:
            pytest.skip("a real engine can not be made to give no data of a kind")
        for gpu in range(GPUS) if goal.gpu is None else (goal.gpu,):
            if goal.link is None:
                self._inject(gpu, goal.field, value)
            else:
                for link in range(18) if goal.link < 0 else (goal.link,):
                    self._inject_link(gpu, link, goal.field, value)

    def _add(self, target: str, amount: float) -> None:
        goal = _goal(target)
        assert goal.gpu is not None
        state = self._state(goal.gpu)
        readings = state.readings if goal.link is None else state.links[goal.link]
        self._set(target, int((rd.number(readings[goal.field.name]) or 0) + amount))
        total = cat.BY_NAME.get(f"{goal.field.name}_total")
        if goal.link is not None and total is not None:
            self._inject(goal.gpu, total, int((rd.number(state.readings[total.name]) or 0) + amount))

    def _state(self, gpu: int) -> Any:
        gpus = self.read().gpus or {}
        return next(g for g in gpus.values() if g.identity.nvml_index == gpu)

    def _inject(self, gpu: int, field: cat.Field, value: Any) -> None:
        before = rd.number(self._state(gpu).readings.get(field.name))
        names = [str(field.dcgm_id), field.name]
        self._any_ctl([("inject", str(gpu), name, str(value)) for name in names])
        if before is not None:
            self._undo.append(lambda: self._any_ctl([("inject", str(gpu), name, str(before)) for name in names]))

    def _inject_link(self, gpu: int, link: int, field: cat.Field, value: Any) -> None:
        before = self._state(gpu).links.get(link, {}).get(field.name)
        names = [field.name.removeprefix("nvlink_"), field.name]
        if field.link_ids:
            names = [str(field.link_ids[link]), str(field.link_entity_id), *names]
        self._any_ctl([("inject-link", str(gpu), str(link), name, str(value)) for name in names])
        if isinstance(before, (int, str)):
            self._undo.append(lambda: self._any_ctl([("inject-link", str(gpu), str(link), name, str(before)) for name in names]))

    def _lose(self, gpu: str, engine_lists: bool = True, on_pci: bool = True) -> None:
        if not engine_lists or not on_pci:
            pytest.skip("which way a real engine loses a GPU is not ours to choose")
        uuid = self._state(int(gpu[1:])).identity.uuid
        self._ctl("lose", gpu[1:])
        self._undo.append(lambda: self._ctl("restore", gpu[1:]))
        self._until(lambda: self._status(uuid) != "ok")  # until the engine has noticed

    def _restore(self, gpu: str) -> None:
        self._ctl("restore", gpu[1:])
        self._until(lambda: all(g.status == "ok" for g in (self.read().gpus or {}).values()))

    def _status(self, uuid: str) -> str:
        gpus = self.read().gpus or {}
        return gpus[uuid].status if uuid in gpus else "missing"

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + UP_S
        while not condition() and time.monotonic() < end:
            time.sleep(0.5)

    def _engine(self, behaviour: str, **options: Any) -> None:
        if options:
            pytest.skip(f"a real engine can not be made {behaviour} with {options}")
        if behaviour == "ok":
            while self._undo:
                self._undo.pop()()
        elif behaviour == "hung":
            self._ctl("stop")
            self._undo.append(lambda: self._ctl("cont"))
        elif behaviour == "absent":
            self._ctl("kill")
            self._undo.append(self._start)
        else:
            pytest.skip(f"a real engine can not be made {behaviour}")

    def _start(self) -> None:
        self._ctl("start")
        self._until(lambda: bool(self.read().gpus))

    def _xid(self, gpu: str, code: int, at_s: float = 0.0) -> None:
        if at_s:
            pytest.skip("a real engine's events are of now")
        self._ctl("xid", gpu[1:], str(code))

    def _incident(self, system: str, code: int, result: str, text: str = "", gpu: str = "") -> None:
        """DCGM makes its incidents itself: the one that the contract asks for follows from a volatile double bit error."""
        if (system, code) != ("memory", 4) or not re.fullmatch(r"g\d+", gpu):
            pytest.skip("only a volatile double bit error is made on a real engine")
        self._set(f"{gpu}.ecc_dbe_volatile", 1)
        time.sleep(35)  # until the engine has sampled it (its interval for health is 30 s)


def _goal(text: str) -> target.Target:
    return target.parse(text, GPUS)
