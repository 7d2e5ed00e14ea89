"""The ledger as a run uses it: what fails gives a default and leaves a trouble, and stops nothing.

A run spends at most one wait on a ledger that does not answer: after a call that
ran into its time limit the ledger counts as absent, so that a locked file can not
eat the time that acting needs. What protects (exclusions, own drain, intents,
known GPUs, settled events) is then read from the ledger's mirror.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Final, Optional, Sequence, TypeVar, Union

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.protective import Ended, Exclusion, Hold, Intent, OwnDrain, Strike
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.record import mirror
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.protective import Protective

T = TypeVar("T")
U = TypeVar("U")

SLOW_SHARE: Final = 0.5  # a failure that took this much of the time limit was a wait, not an answer


class Book:
    """``directory``: the node's state directory; ``timeout_s``: for any one call."""

    def __init__(self, directory: str, timeout_s: float) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._troubles: list[Trouble] = []
        self._ledger: Optional[Ledger] = None
        try:
            self._ledger = Ledger.open(directory, timeout_s)
            if self._ledger.restored:
                self._trouble(self._ledger.restored)
        except MonitorError as exc:
            self._trouble(str(exc))

    def ask(self, call: Callable[[Ledger], T], default: U) -> Union[T, U]:
        """What the ledger answers, or ``default``."""
        try:
            return self._call(call)
        except MonitorError as exc:
            self._trouble(str(exc))
            return default

    def _call(self, call: Callable[[Ledger], T]) -> T:
        if self._ledger is None:
            raise MonitorError(self._directory, "", "there is no ledger in this run")
        began = time.monotonic()
        try:
            return call(self._ledger)
        except MonitorError:
            if time.monotonic() - began > self._timeout_s * SLOW_SHARE:
                self.close()
            raise

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        damaged = self._ledger.damaged if self._ledger is not None else []
        lost = (Trouble("MON-LEDGER", "ledger", f"can not be read back, taken as no data: {what}") for what in damaged)
        return tuple(dict.fromkeys((*self._troubles, *lost)))

    def protective(self) -> Protective:
        """Empty when neither ledger nor mirror can be read."""
        if self._ledger is not None:
            found = self.ask(lambda led: led.protective(), None)
            if found is not None:
                return found
        mirrored = mirror.read(self._directory)
        if mirrored.problem:
            self._trouble(f"{mirror.path_in(self._directory)}: {mirrored.problem}")
        return mirrored.state if mirrored.state is not None else Protective()

    # What act/ changes; each raises MonitorError, at once when there is no ledger.

    def exclusions(self) -> tuple[Exclusion, ...]:
        return self._call(lambda led: led.exclusions())

    def change_exclusion(self, exclusion: Exclusion) -> bool:
        return self._call(lambda led: led.change_exclusion(exclusion))

    def exclude(self, exclusion: Exclusion) -> None:
        self._call(lambda led: led.exclude(exclusion))

    def own_drain(self) -> Optional[OwnDrain]:
        return self._call(lambda led: led.own_drain())

    def set_own_drain(self, drain: Optional[OwnDrain]) -> None:
        self._call(lambda led: led.set_own_drain(drain))

    def intents(self) -> tuple[Intent, ...]:
        return self._call(lambda led: led.intents())

    def add_intent(self, intent: Intent) -> None:
        self._call(lambda led: led.add_intent(intent))

    def update_intent(self, intent: Intent) -> None:
        self._call(lambda led: led.update_intent(intent))

    def end_intent(self, intent: Intent) -> None:
        self._call(lambda led: led.end_intent(intent))

    def settle(self, names: Sequence[str]) -> None:
        self._call(lambda led: led.settle(names))

    def end_exclusion(self, ended: Ended) -> bool:
        return self._call(lambda led: led.end_exclusion(ended))

    def set_hold(self, hold: Hold) -> None:
        self._call(lambda led: led.set_hold(hold))

    def end_hold(self, uuid: str) -> None:
        self._call(lambda led: led.end_hold(uuid))

    def add_strike(self, strike: Strike) -> None:
        self._call(lambda led: led.add_strike(strike))

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *_exc: Any) -> None:
        self.close()

    def _trouble(self, detail: str) -> None:
        trouble = Trouble("MON-LEDGER", "ledger", detail)
        # "There is no ledger" follows a trouble that said why.
        if trouble not in self._troubles and (self._ledger is not None or not self._troubles):
            self._troubles.append(trouble)
