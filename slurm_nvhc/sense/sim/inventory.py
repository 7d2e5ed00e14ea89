"""Healthy nodes to start from. Data, and the one function that makes a GPU out of it.

Gauges of an idle H100 are as DCGM 4.6 gave them on a (simulated) HGX board; what other
generations lack follows the field catalogue. Names are NVML's.
"""

from __future__ import annotations

import hashlib
from typing import Final, Mapping, NamedTuple

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model.reading import NOT_SUPPORTED, NoData, Reading
from slurm_nvhc.model.snapshot import GpuIdentity

DRIVER: Final = "575.57.08"
ENGINE: Final = "4.6.0"
WALL_NS: Final = 1_793_606_400_000_000_000  # 2026-11-02T08:00:00Z: any fixed moment would do
UPTIME_S: Final = 10 * 86400.0

_N_A: Final = NoData(NOT_SUPPORTED)
_NVLINK4: Final = tuple(f.name for f in cat.ALL if f.name.startswith("nvlink_") and f.kind == cat.COUNTER)
_REMAP: Final = ("remapped_rows_uncorrectable", "remapped_rows_correctable", "row_remap_failure", "row_remap_pending")
_RETIRED: Final = ("retired_pages_sbe", "retired_pages_dbe", "retired_pages_pending")

_IDLE: Final[Mapping[str, Reading]] = {
    "ecc_mode": 1,
    "pcie_max_gen": 5,
    "pcie_max_width": 16,
    "pcie_gen": 5,
    "pcie_width": 16,
    "gpu_temp": 33,
    "memory_temp": 44,
    "gpu_temp_margin": 54,
    "gpu_temp_slowdown": 89,
    "gpu_temp_shutdown": 92,
    "memory_max_op_temp": 95,
    "sm_clock": 345,
    "clock_event_reasons": 1,
    "power_usage": 71.234,
    "power_limit_enforced": 700.0,
    "power_limit_default": 700.0,
    "recovery_action": 0,
    "fabric_state": 3,
    "fabric_error": 0,
}


class Preset(NamedTuple):
    """links: NVLinks per GPU; switches: NVSwitches that the host sees; lacks: fields read as not_supported."""

    model: str
    gpus: int
    links: int
    link_state: str = "up"
    switches: int = 0
    lacks: tuple[str, ...] = _RETIRED
    gauges: Mapping[str, Reading] = {}


def _power(watts: float) -> dict[str, Reading]:
    return {"power_limit_enforced": watts, "power_limit_default": watts}


def _pcie(generation: int) -> dict[str, Reading]:
    return {"pcie_max_gen": generation, "pcie_gen": generation}


# Boards without a fabric manager answer 0 = not supported as the fabric's state.
_NO_FABRIC: Final[Mapping[str, Reading]] = {"fabric_state": 0}
_AMPERE: Final = (*_RETIRED, "gpu_temp_margin")

PRESETS: Final[Mapping[str, Preset]] = {
    "hgx-h100-8": Preset("NVIDIA H100 80GB HBM3", 8, 18, switches=4),
    "hgx-h200-8": Preset("NVIDIA H200", 8, 18, switches=4),
    # NVLink 5: the counters of earlier generations do not exist, and its switches are not the host's.
    "hgx-b200-8": Preset("NVIDIA B200", 8, 18, lacks=(*_RETIRED, *_NVLINK4), gauges=_power(1000.0)),
    "hgx-a100-8": Preset(
        "NVIDIA A100-SXM4-80GB", 8, 12, switches=6, lacks=_AMPERE, gauges={**_NO_FABRIC, **_pcie(4), **_power(400.0)}
    ),
    # Without a bridge every link of a PCIe board is down, and always was.
    "a100-pcie-8": Preset(
        "NVIDIA A100 80GB PCIe", 8, 12, "down", lacks=_AMPERE, gauges={**_NO_FABRIC, **_pcie(4), **_power(300.0)}
    ),
    "v100-8": Preset(
        "Tesla V100-SXM2-32GB",
        8,
        6,
        lacks=(*_REMAP, "gpu_temp_margin", "sram_threshold_exceeded", "recovery_action"),
        gauges={**_NO_FABRIC, **_pcie(3), **_power(300.0)},
    ),
    "cpu-only": Preset("", 0, 0),
    "custom": Preset("NVIDIA GPU", 1, 0),
}


def identity(preset: str, node: str, index: int) -> GpuIdentity:
    """The same for the same preset, node and index, and different from every other node's."""
    digest = hashlib.sha256(f"{node}/{preset}/gpu{index}".encode()).hexdigest()
    return GpuIdentity(
        uuid=f"GPU-{uuid_form(digest)}",
        pci=f"{index // 8:04x}:{0x1B + 0x10 * (index % 8):02x}:00.0",
        minor=index,
        nvml_index=index,
        dcgm_id=index,
        serial=f"165{int(digest[-12:], 16) % 10**10:010d}",
        model=PRESETS[preset].model,
        slot=str(index + 1),
        vbios="96.00.74.00.01",
        mig=False,
    )


def uuid_form(digest: str) -> str:
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def switch_addresses(count: int) -> list[str]:
    return [f"0000:{0xC1 + i:02x}:00.0" for i in range(count)]


def gpu_readings(preset: Preset) -> dict[str, Reading]:
    """Every GPU field of a healthy, idle GPU: counters and flags 0."""
    out: dict[str, Reading] = {}
    for field in cat.ALL:
        if field.scope == cat.GPU:
            value = preset.gauges.get(field.name, _IDLE.get(field.name, 0))
            out[field.name] = _N_A if field.name in preset.lacks else value
    return out


def link_readings(preset: Preset, state: str) -> dict[str, Reading]:
    out: dict[str, Reading] = {}
    for field in cat.ALL:
        if field.scope == cat.LINK:
            value: Reading = state if field.name == "nvlink_state" else 0
            out[field.name] = _N_A if field.name in preset.lacks else value
    return out
