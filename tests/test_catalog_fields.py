"""The field catalogue: which fields exist on which GPUs."""

from __future__ import annotations

import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.sense.sim import inventory

REMAP = {"remapped_rows_uncorrectable", "remapped_rows_correctable", "row_remap_failure", "row_remap_pending", "sram_threshold_exceeded"}
RETIRED = {"retired_pages_sbe", "retired_pages_dbe", "retired_pages_pending"}
NVLINK4 = {f"nvlink_{c}{t}" for c in ("crc_flit", "crc_data", "replay", "recovery") for t in ("", "_total")}


@pytest.mark.parametrize(
    ("model", "absent"),
    [
        *((m, REMAP) for m in (
            "Tesla V100-SXM2-32GB", "Tesla V100S-PCIE-32GB", "Tesla P100-PCIE-16GB", "Tesla P40", "Tesla T4", "Tesla K80",
            "Quadro RTX 8000", "Quadro GV100", "NVIDIA TITAN V", "NVIDIA TITAN RTX", "NVIDIA GeForce RTX 2080 Ti", "GeForce GTX 1080 Ti",
        )),
        *((m, RETIRED) for m in (
            "NVIDIA A100-SXM4-80GB", "A100-SXM4-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA A40", "NVIDIA A10", "NVIDIA A2", "NVIDIA L4",
            "NVIDIA L40S", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H20", "NVIDIA GH200 480GB", "NVIDIA RTX A6000",
            "NVIDIA RTX 6000 Ada Generation", "NVIDIA GeForce RTX 4090",
        )),
        *((m, RETIRED | NVLINK4) for m in ("NVIDIA B200", "NVIDIA B300 SXM6 AC", "NVIDIA GB200", "NVIDIA GB300")),
        ("", set()),
        ("NVIDIA Z900", set()),
    ],
)  # fmt: skip
def test_fields_that_a_model_does_not_have(model: str, absent: set[str]) -> None:
    assert {f.name for f in cat.ALL if not cat.exists_on(f, model)} == absent


@pytest.mark.parametrize("preset", inventory.PRESETS)
def test_the_simulated_boards_agree(preset: str) -> None:
    """A field that a simulated board has a number for exists on that model."""
    kind = inventory.PRESETS[preset]
    if not kind.gpus:
        return
    model = inventory.identity(preset, "n1", 0).model
    readings = {**inventory.gpu_readings(kind), **inventory.link_readings(kind, "up")}
    for name, value in readings.items():
        assert not isinstance(value, (int, float)) or cat.exists_on(cat.BY_NAME[name], model), (model, name)
