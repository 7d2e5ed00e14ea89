"""Healthy nodes to start from. Data, and the one function that makes a GPU out of it.

Gauges of an idle H100 are as DCGM 4.6 gave them on a (simulated) HGX board, but for the fabric's
health, which that board did not tell; what other generations lack follows the field catalogue.
Names are NVML's.
"""

from __future__ import annotations

import hashlib
from typing import Final, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.model.reading import BLANK, NOT_SUPPORTED, NoData, Reading
from slurm_nvhc.model.snapshot import GpuIdentity

DRIVER: Final = "575.57.08"
ENGINE: Final = "4.6.0"
WALL_NS: Final = 1_793_606_400_000_000_000  # 2026-11-02T08:00:00Z: any fixed moment would do
UPTIME_S: Final = 10 * 86400.0

_N_A: Final = NoData(NOT_SUPPORTED)
_NVLINK5: Final = tuple(f.name for f in cat.ALL if cat.is_nvlink5(f))
_RETIRED: Final = ("retired_pages_sbe", "retired_pages_dbe", "retired_pages_pending")
_FABRIC_HEALTH: Final = tuple(f.name for f in cat.ALL if f.bits is not None)

_IDLE: Final[Mapping[str, Reading]] = {
    "ecc_mode": 1,
    "ecc_pending": 1,
    "banks_remap_max": 2560,
    "fb_total": 81920,
    "fb_used": 1,
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
    "sm_clock_max": 1980,
    "clock_event_reasons": 1,
    "power_usage": 71.234,
    "power_limit_enforced": 700.0,
    "power_limit_default": 700.0,
    "power_limit_requested": 700.0,
    "power_limit_max": 700.0,
    "persistence_mode": 1,
    "recovery_action": 0,
    "fabric_state": 3,
    "fabric_error": 0,
    "fabric_cluster": "00000000-0000-0000-0000-000000000000",
    "fabric_configuration": 1,
    "fabric_summary": 1,
    "nvlink5_symbol_ber": 0.0,
    "nvlink5_effective_ber": 0.0,
}


class Preset(NamedTuple):
    """links: NVLinks per GPU; switches: NVSwitches that the host sees.

    direct: links from each GPU straight to each other one, 0 where they lead to switches or nowhere.
    lacks: fields read as not_supported, beside those that the catalogue knows not to exist on the model.
    fabric_manager: one runs: where there is a fabric, the host's switches or not.
    rdma, rdma_gb_s: InfiniBand devices with one port, and their rate.
    """

    model: str
    gpus: int
    links: int
    link_state: str = "up"
    switches: int = 0
    direct: int = 0
    lacks: tuple[str, ...] = ()
    gauges: Mapping[str, Reading] = {}
    fabric_manager: bool = False
    rdma: int = 0
    rdma_gb_s: int = 0


def _power(watts: float) -> dict[str, Reading]:
    return {f"power_limit_{limit}": watts for limit in ("enforced", "default", "requested", "max")}


def _pcie(generation: int) -> dict[str, Reading]:
    return {"pcie_max_gen": generation, "pcie_gen": generation}


def _memory(mib: int, sm_clock_max: int = 1980) -> dict[str, Reading]:
    return {"fb_total": mib, "sm_clock_max": sm_clock_max}


# Boards without a fabric manager answer 0 = not supported as the fabric's state.
_NO_FABRIC: Final[Mapping[str, Reading]] = {
    "fabric_state": 0,
    "fabric_summary": 0,
    **dict.fromkeys((*_FABRIC_HEALTH, "fabric_cluster", "fabric_clique"), _N_A),
}
_AMPERE: Final = ("gpu_temp_margin", "memory_unrepairable")
_A100: Final[Mapping[str, Reading]] = {**_NO_FABRIC, **_pcie(4), **_memory(81920, 1410)}

PRESETS: Final[Mapping[str, Preset]] = {
    "hgx-h100-8": Preset("NVIDIA H100 80GB HBM3", 8, 18, switches=4, fabric_manager=True, rdma=8, rdma_gb_s=400),
    "hgx-h200-8": Preset(
        "NVIDIA H200", 8, 18, switches=4, gauges=_memory(143771), fabric_manager=True, rdma=8, rdma_gb_s=400
    ),
    # Its switches are not the host's.
    "hgx-b200-8": Preset(
        "NVIDIA B200", 8, 18, gauges={**_power(1000.0), **_memory(183359, 1965)}, fabric_manager=True, rdma=8, rdma_gb_s=400
    ),
    "hgx-a100-8": Preset(
        "NVIDIA A100-SXM4-80GB",
        8,
        12,
        switches=6,
        lacks=_AMPERE,
        gauges={**_A100, **_power(400.0)},
        fabric_manager=True,
        rdma=8,
        rdma_gb_s=200,
    ),
    # The board of four has no switch.
    "hgx-a100-4": Preset(
        "NVIDIA A100-SXM4-80GB", 4, 12, direct=4, lacks=_AMPERE, gauges={**_A100, **_power(400.0)}, rdma=4, rdma_gb_s=200
    ),
    # Without a bridge every link of a PCIe board is down, and always was.
    "a100-pcie-8": Preset(
        "NVIDIA A100 80GB PCIe", 8, 12, "down", lacks=_AMPERE, gauges={**_A100, **_power(300.0)}, rdma=2, rdma_gb_s=200
    ),
    # Three bridges between the two.
    "a100-pcie-nvlink-2": Preset("NVIDIA A100 80GB PCIe", 2, 12, direct=12, lacks=_AMPERE, gauges={**_A100, **_power(300.0)}),
    "v100-8": Preset(
        "Tesla V100-SXM2-32GB",
        8,
        6,
        lacks=("gpu_temp_margin", "recovery_action"),
        gauges={**_NO_FABRIC, **_pcie(3), **_power(300.0), **_memory(32768, 1530)},
        rdma=4,
        rdma_gb_s=100,
    ),
    "cpu-only": Preset("", 0, 0, rdma=1, rdma_gb_s=200),
    # A model that the catalogue knows nothing of; with links up to generation 4.
    "custom": Preset("NVIDIA GPU", 1, 0, lacks=(*_RETIRED, *_NVLINK5)),
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


def gpu_readings(preset: Preset, row: GpuIdentity) -> dict[str, Reading]:
    """Every GPU field of a healthy, idle GPU: counters and flags 0. Sums are made of what is read."""
    values = {**_IDLE, **preset.gauges, **identity_readings(row)}
    return {f.name: _N_A if _lacks(preset, f) else values.get(f.name, 0) for f in cat.ALL if f.scope == cat.GPU and not f.sum_of}


def identity_readings(row: GpuIdentity) -> dict[str, Reading]:
    """What is part of a GPU's identity and a reading too."""
    return {
        "vbios": row.vbios or NoData(BLANK),
        "mig_mode": NoData(BLANK) if row.mig is None else int(row.mig),
    }


def link_readings(preset: Preset, state: str) -> dict[str, Reading]:
    """Every field of a healthy link; its far end is not known."""
    known: dict[str, Reading] = {"nvlink_state": state, "nvlink_remote": _N_A}
    return {f.name: _N_A if _lacks(preset, f) else known.get(f.name, 0) for f in cat.ALL if f.scope == cat.LINK}


def _lacks(preset: Preset, field: cat.Field) -> bool:
    return field.name in preset.lacks or not cat.exists_on(field, preset.model)


def peer(preset: Preset, count: int, index: int, link: int) -> Optional[int]:
    """Which of ``count`` GPUs a direct link of GPU ``index`` leads to; None when it leads to none of them."""
    others = [i for i in range(count) if i != index]
    number = link // preset.direct if preset.direct else len(others)
    return others[number] if number < len(others) else None
