"""The field catalogue: which fields exist on which GPUs."""

from __future__ import annotations

import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.sense.sim import inventory

NVLINK5 = {f.name for f in cat.ALL if f.name.startswith("nvlink5_")}
OLD = {
    *("remapped_rows_uncorrectable", "remapped_rows_correctable", "row_remap_failure", "row_remap_pending"),
    *(f"banks_remap_{left}" for left in ("max", "high", "partial", "low", "none")),
    *("sram_threshold_exceeded", "ecc_dbe_sram_volatile", "ecc_dbe_sram_aggregate", "memory_unrepairable", "mig_mode"),
    *NVLINK5,
}
RETIRED = {"retired_pages_sbe", "retired_pages_dbe", "retired_pages_total", "retired_pages_pending"}
NVLINK4 = {f"nvlink_{c}{t}" for c in ("crc_flit", "crc_data", "replay", "recovery") for t in ("", "_total")} | {"nvlink_throughput"}


@pytest.mark.parametrize(
    ("model", "absent"),
    [
        *((m, OLD) for m in (
            "Tesla V100-SXM2-32GB", "Tesla V100S-PCIE-32GB", "Tesla P100-PCIE-16GB", "Tesla P40", "Tesla T4", "Tesla K80",
            "Quadro RTX 8000", "Quadro GV100", "NVIDIA TITAN V", "NVIDIA TITAN RTX", "NVIDIA GeForce RTX 2080 Ti", "GeForce GTX 1080 Ti",
        )),
        *((m, RETIRED | NVLINK5) for m in (
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
def test_the_simulated_boards_have_what_their_model_has(preset: str) -> None:
    """Of what only some generations have, each has its own, with numbers; what is not on the model is not supported."""
    kind = inventory.PRESETS[preset]
    if not kind.gpus:
        return
    row = inventory.identity(preset, "n1", 0)
    readings = {**inventory.gpu_readings(kind, row), **inventory.link_readings(kind, "up")}
    assert set(readings) == {f.name for f in cat.ALL if f.scope in (cat.GPU, cat.LINK) and not f.sum_of}
    for name, value in readings.items():
        assert cat.exists_on(cat.BY_NAME[name], row.model) or isinstance(value, NoData), name
    blackwell = preset == "hgx-b200-8"
    for name in NVLINK5 | NVLINK4:
        assert isinstance(readings[name], NoData) != (blackwell == (name in NVLINK5)), name
    assert isinstance(readings["retired_pages_dbe"], NoData) == (preset != "v100-8")
    assert isinstance(readings["row_remap_failure"], NoData) == (preset == "v100-8")


def test_an_id_means_one_reading_or_items_of_one_mask() -> None:
    """A policy may name a field by its id, and the reader sorts values by it."""
    seen: dict[tuple[str, int], str] = {}
    for field in cat.ALL:
        mine = [i for i in (field.dcgm_id, field.packed_id, field.link_entity_id, *field.link_ids) if i is not None]
        for number in mine:
            before = seen.setdefault((field.scope, number), field.name)
            assert before == field.name or (field.bits is not None and cat.BY_NAME[before].bits is not None), (number, before, field.name)
        assert not any(1001 <= i < 1100 or i in (cat.XID_FIELD_ID, 450) for i in mine), field.name
    assert 174 not in cat.BY_ID  # the mask is no reading of its own
    items = sorted(f.bits for f in cat.ALL if f.bits is not None)
    assert items == [(0, 2), (2, 2), (4, 2), (6, 2), (8, 4)]


def test_counters_and_only_they_are_cleared_or_say_never() -> None:
    for field in cat.ALL:
        assert field.kind in (cat.COUNTER, cat.GAUGE, cat.FLAG, cat.STATE)
        assert not (field.cleared_by and field.kind in (cat.GAUGE, cat.STATE)), field.name
        if field.kind == cat.STATE:
            assert field.unit in ("", cat.WORD), field.name
        assert len(field.label) <= 40, field.name  # it goes into drain reasons


def test_what_is_history_only_is_never_asked_for_live() -> None:
    from slurm_nvhc.sense import protocol

    asleep = {f.name for f in cat.ALL if not f.live}
    assert asleep == {"nvlink_throughput"}
    assert asleep.isdisjoint(protocol.ALL_FIELDS)
    assert asleep <= set(cat.SAMPLED)


@pytest.mark.parametrize("level", ["value_above: 5", "value_is: 0", "below_field: nvlink_throughput", "not_as_learned: true"])
def test_a_rule_can_not_ask_a_snapshot_for_it(level: str) -> None:
    head = "rules: {x: {finding: NVL-REPLAY, field: nvlink_throughput, warn: {"
    with pytest.raises(InputError, match=r"this moment|can not be compared"):
        compile_policy(f"{head}{level}}}}}}}", "policy.yaml")
    compile_policy(f"{head}peers: {{below: 20%}}}}}}}}", "policy.yaml")
    unless = "unless: {nvlink_throughput: 0}"
    with pytest.raises(InputError, match="this moment"):
        compile_policy(f"rules: {{x: {{finding: NVL-REPLAY, field: gpu_temp, warn: {{value_above: 5, {unless}}}}}}}", "policy.yaml")


@pytest.mark.parametrize(
    ("number", "hint"), [(174, "fabric_route_unhealthy"), (1217, "nvlink5_effective_ber"), (583, "nvlink5_link_recovery")]
)
def test_an_id_that_is_no_reading_of_its_own_names_what_is(number: int, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        compile_policy(f"rules: {{x: {{finding: NVL-REPLAY, field: {number}, warn: {{value_above: 0}}}}}}", "policy.yaml")


def test_every_error_of_a_link_that_has_a_direction_says_which_end_counts_it() -> None:
    """Wiring asks which end a link's fault is at, rates which traffic its errors came with: both ask here."""
    from slurm_nvhc.judge import wiring

    ends = {f.name: f.counted_by for f in cat.ALL if f.counted_by and f.scope in (cat.LINK, cat.SWITCH_PORT)}
    assert set(ends) == wiring.SENT | wiring.RETRAINED | wiring.RECEIVED
    assert {n for n, end in ends.items() if end == cat.SENDER} == wiring.SENT | wiring.RETRAINED
    assert {"nvlink_replay", "port_replay", "nvlink5_retry_events"} == wiring.SENT
    for field in cat.ALL:
        assert field.counted_by in ("", cat.SENDER, cat.RECEIVER)
        total = cat.BY_NAME.get(f"{field.name}_total")
        assert total is None or total.counted_by == field.counted_by, field.name
