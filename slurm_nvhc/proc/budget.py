"""One time budget per hook, monotonic, from the first instruction.

The last quarter is kept for acting: sensing must end by ``sense_s()``.
"""

from __future__ import annotations

import time
from typing import Callable, Final

ACT_SHARE: Final = 0.25  # DESIGN decision 12: the last quarter is for acting


class Budget:
    """``clock`` returns seconds and never goes back."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock())

    def sense_s(self) -> float:
        """Seconds left for sensing, keeping the acting share; never negative."""
        return max(0.0, self.left_s() - self.seconds * ACT_SHARE)
