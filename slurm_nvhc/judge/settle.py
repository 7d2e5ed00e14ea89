"""Is it too soon to judge? Pure."""

from __future__ import annotations

from slurm_nvhc.judge.context import Input


def settling(inp: Input, settle_s: float) -> bool:
    """Too soon after boot or driver load to judge (214 of 288 nodes raised link-down while training: NVSentinel#1701)."""
    if inp.snapshot.uptime_s() < settle_s:
        return True
    loaded = inp.snapshot.driver_loaded_ns
    return loaded is not None and (inp.now_ns - loaded) / 1e9 < settle_s
