"""What a source of readings must offer to the reader, and which sources there are.

A method that can not deliver raises PartFailed; it says which monitor finding that is.
Methods may block or crash: the process is expendable and has a deadline.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Optional, Protocol, Sequence

from slurm_nvhc.model import diag
from slurm_nvhc.model.history import Incident, Sample
from slurm_nvhc.model.reading import Reading
from slurm_nvhc.model.snapshot import Event, GpuState, PciGpu
from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.protocol import Request


class PartFailed(Exception):
    """One part of the reply could not be had. ``code`` is a MON- finding code, ``part`` as in Trouble."""

    def __init__(self, code: str, part: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.part = part
        self.detail = detail


class Clock(NamedTuple):
    """wall_ns: ns UTC; boot_ns: ns of the boot-time clock; boot_id: changes with each boot."""

    wall_ns: int
    boot_ns: int
    boot_id: str


class EngineInfo(NamedTuple):
    """driver_loaded_ns: wall time of the last driver load, None when not known."""

    version: str
    driver: str
    driver_loaded_ns: Optional[int] = None


class Backend(Protocol):
    """For a snapshot, wait() to events() are called in this order, each at most once.

    For anything else clock() and engine() are called, and then the one method for it.
    notes: trouble that did not cost the part it was met in; read after each part.
    """

    notes: list[PartFailed]

    def wait(self, seconds: float) -> None:
        """Let time pass on the node."""

    def clock(self) -> Clock: ...

    def kernel_log(self) -> Sequence[Line]:
        """The records of this boot that the kernel still has, oldest first."""

    def pci(self) -> Optional[Sequence[PciGpu]]:
        """NVIDIA GPUs on the PCI bus; None when that can not be listed."""

    def host(self, fields: Sequence[str]) -> Mapping[str, Mapping[str, Reading]]:
        """What the kernel knows of the node and its RDMA ports: entity -> readings asked for (catalogue names)."""

    def engine(self) -> EngineInfo:
        """Connect. Raises PartFailed(MON-ENGINE-ABSENT) when there is no engine."""

    def gpus(self, fields: Sequence[str]) -> Sequence[GpuState]:
        """Every GPU that the engine lists, lost ones included, with the readings asked for (catalogue names)."""

    def switches(self, fields: Sequence[str]) -> Mapping[str, Mapping[str, Reading]]:
        """NVSwitches that the engine sees, and their ports: entity -> readings asked for. {} where there are none."""

    def events(self) -> Sequence[Event]:
        """The engine's own Xid events as far as it remembers; ident must stay the same from read to read."""

    def watch(self) -> tuple[bool, bool]:
        """Have the engine sample (model.history.Watch): (it is watched now, it had to be made)."""

    def unwatch(self) -> bool:
        """Take the watch away; True when there was one."""

    def history(self, fields: Sequence[str], since_ns: int, until_ns: int) -> Optional[Mapping[str, Mapping[str, Sequence[Sample]]]]:
        """uuid -> name -> samples between two moments (ns UTC), oldest first; None without a watch."""

    def health(self) -> Optional[Sequence[Incident]]:
        """The engine's own complaints; None when it has nothing to judge by."""

    def diagnose(self, ask: diag.Ask, seconds: float) -> diag.Report:
        """Run a diagnostic to its end, or stop it after ``seconds``: when this returns none runs any more, or Report.left says so.

        The engine is told ``seconds`` as its own limit too, so that it ends the diagnostic by itself should we be killed.
        Whether the GPUs may be used was decided by who asks.
        """

    def stop_diag(self, seconds: float) -> diag.Stopped:
        """End the diagnostic that runs in the engine, whoever began it, and see that it is gone, within ``seconds``.

        Called without ``engine()`` before it.
        """


# Imported only when asked for: a source may need libraries that are not there.
_MODULES: Final[Mapping[str, str]] = {"sim": "slurm_nvhc.sense.sim.backend", "dcgm": "slurm_nvhc.sense.dcgm.backend"}


def open_backend(request: Request) -> Backend:
    """The source a request names. Raises PartFailed when there is none of that name or it can not start."""
    module = _MODULES.get(request.backend)
    if module is None:
        known = ", ".join(sorted(_MODULES))
        raise PartFailed("MON-READER", "reader", f"unknown backend {request.backend[:40]!r}; known: {known}")
    import importlib

    backend: Backend = importlib.import_module(module).open_world(request)
    return backend
