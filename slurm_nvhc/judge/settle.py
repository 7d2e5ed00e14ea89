"""Is it too soon to judge? Pure."""

from __future__ import annotations

from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import Input, Reset


def settling(inp: Input, settle_s: float, uuid: str = "") -> bool:
    """Too soon after boot or driver load, or after the reset of the GPU ``uuid``, to judge.

    214 of 288 nodes raised link-down while links trained (NVSentinel#1701). A reset is seen by looks only, so it
    counts from the look that saw it: later than it was, never earlier.
    """
    if inp.snapshot.uptime_s() < settle_s:
        return True
    loaded = inp.snapshot.driver_loaded_ns
    if loaded is not None and (inp.now_ns - loaded) / 1e9 < settle_s:
        return True
    reset = inp.resets.get(uuid)
    return reset is not None and (inp.now_ns - reset.seen_ns) / 1e9 < settle_s


def last_resets(inp: Input, notes: memory.Notes) -> dict[str, Reset]:
    """The last reset of each GPU in this boot, with those that this look saw; they are remembered.

    What the driver's load explains is none: its moment is known better than by looks.
    """
    loaded = inp.snapshot.driver_loaded_ns
    for uuid, since_ns in inp.reset_since.items():
        if loaded is None or loaded <= since_ns:
            notes.keep_reset(uuid, since_ns)
    return {uuid: Reset(*moments) for uuid, moments in notes.resets().items()}
