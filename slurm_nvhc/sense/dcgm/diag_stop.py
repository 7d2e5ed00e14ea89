"""Ending the diagnostic that runs in the engine, and seeing that it is gone.

First the API, as dcgmi does on Ctrl-C: the engine ends nvvs with SIGTERM, every 4 s again, and answers when it is gone. Near the
end of our time nvvs itself, and what it started, is killed. What counts is whether the processes are gone, not what was answered;
but where nobody can see them the engine's word counts: else what one dead run has left would be told for ever.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Final, NamedTuple, Optional

from slurm_nvhc.model.diag import Stopped
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.sense.dcgm import status
from slurm_nvhc.sense.dcgm.connection import Connection
from slurm_nvhc.sense.host import nvvs

KILL_S: Final = 1.5  # this long before the end of our time the processes are killed
_LOOK_S: Final = 0.05


class Engine(NamedTuple):
    """open: a connection of its own (the one that runs a diagnostic is busy with it). here: it is on this machine."""

    open: Callable[[], Connection]
    here: bool
    embedded: bool = False
    root: str = "/"

    def diagnostics(self) -> Optional[list[nvvs.Process]]:
        """The processes of the one that runs; None when that can not be told."""
        return nvvs.running(self.root, self.embedded) if self.here else None


def stop(engine: Engine, until: float) -> Stopped:
    """End what runs, until a moment of the monotonic clock. Never raises."""
    asking = _Asking(engine)
    seen = engine.diagnostics()
    ran, refused = bool(seen), False
    while time.monotonic() < until:
        if not seen and asking.over:
            break
        if seen and time.monotonic() >= until - KILL_S:
            refused = not all([nvvs.kill(process, engine.root) for process in seen])
        time.sleep(_LOOK_S)
        seen = engine.diagnostics()
        ran = ran or bool(seen)
    if seen == []:
        return Stopped(True, ran, True)
    if seen is None:
        if asking.ended:
            return Stopped(True, ran, True)
        where = "the engine's processes can not be seen from here" if engine.here else "the engine is on another host"
        return Stopped(False, ran, False, (_trouble(f"whether a diagnostic still runs can not be told: {where}; {asking.said}"),))
    why = "and only root may kill it" if refused else "even when killed"
    return Stopped(True, True, False, (_trouble(f"the diagnostic (nvvs, pid {seen[0].pid}) does not end, {why}; {asking.said}"),))


def _trouble(detail: str) -> Trouble:
    return Trouble("MON-DIAG", "engine", detail)


class _Asking:
    """The call to the engine, in a thread: it answers when nvvs is gone, which may take 40 s, or never. ended: it says so."""

    def __init__(self, engine: Engine) -> None:
        self.ended = False
        self.said = "the engine did not answer the request to stop it"
        self._thread = threading.Thread(target=self._ask, args=(engine,), daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def _ask(self, engine: Engine) -> None:
        try:
            connection = engine.open()
            # Public in the library, and not wrapped by the bindings.
            call = connection.bindings.structs._dcgmGetFunctionPointer("dcgmStopDiagnostic")
            code = int(call(connection.handle))
        except Exception as exc:  # every status is a class of its own; and no exception may end the thread unseen
            code = status.code(exc)
            self.said = f"the engine could not be asked to stop it: {exc}" if not code else f"asked to stop it: {status.words(code)}"
            return
        self.ended = code == 0
        self.said = f"asked to stop it, the engine says {status.words(code)}" if code else "the engine says that it stopped it"
