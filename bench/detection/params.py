"""The parameters of the fleets: fleet.yaml, or another file of the same form. Anything wrong in it is one line of text."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, Optional

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from slurm_nvhc import strict_yaml
from slurm_nvhc.errors import InputError
from slurm_nvhc.sense.sim.inventory import PRESETS

PACKAGED: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fleet.yaml")

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Range = Annotated[list[NotNegative], Meta(min_length=2, max_length=2)]


class _Struct(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Fleet(_Struct):
    nodes: Annotated[int, Meta(ge=1, le=1_000_000)]
    days: Positive
    faulty: Count
    faulty_days: Positive
    boards: dict[str, NotNegative]


class Length(_Struct):
    weight: Positive
    median: Positive
    sigma: NotNegative


class Spread(_Struct):
    """clock, power, throughput: fractions; temp: °C."""

    clock: NotNegative
    temp: NotNegative
    power: NotNegative
    throughput: NotNegative


class Jobs(_Struct):
    lengths: Annotated[list[Length], Meta(min_length=1)]
    shortest: Positive
    longest: Positive
    gap: Positive
    whole_node: Share
    users: Annotated[int, Meta(ge=1)]
    sampled: Share
    spread: Spread


class Boots(_Struct):
    per_day: NotNegative
    training_nodes: Share
    gpus: Count
    links: Count
    down: Range
    errors: Range


class Lifetime(_Struct):
    nodes: Share
    links: Count
    most: Count


class Retries(_Struct):
    links: Share
    per_h: NotNegative


class Crc(_Struct):
    nodes: Share
    links: Count
    per_day: Range


class Bumps(_Struct):
    per_day: NotNegative
    share: Range


class PcieReplays(_Struct):
    nodes: Share
    per_minute: Range


class Symbols(_Struct):
    nodes: Share
    per_h: Range


class Ecc(_Struct):
    per_day: NotNegative
    count: Range


class Upgrade(_Struct):
    at: Share
    nodes: Share


class Healthy(_Struct):
    boots: Boots
    gpu_resets_per_day: NotNegative
    driver_reloads_per_day: NotNegative
    lifetime: Lifetime
    retries: Retries
    crc_few: Crc
    crc_many: Crc
    power_cap: Share
    thermal_bumps: Bumps
    pcie_replays: PcieReplays
    ecc_corrected: Ecc
    row_remaps_per_day: NotNegative
    symbols: Symbols
    application_xids_per_day: NotNegative
    hiccups_per_day: NotNegative
    swaps_per_day: NotNegative
    upgrade: Upgrade


class PerHour(_Struct):
    per_h: Positive


class RangePerHour(_Struct):
    per_h: Range


class Storm(_Struct):
    per_minute: Range


class Dying(_Struct):
    """peers: GPUs that log Xid 74 for it; echo: within so many seconds."""

    peers: Count
    echo: NotNegative


class Drift(_Struct):
    share: Range


class Straggler(_Struct):
    clock: Range


class Nothing(_Struct):
    pass


class Narrow(_Struct):
    width: Range


class Nvlink5(_Struct):
    ber_exponent: Range
    symbols_per_h: Range


class Faulty(_Struct):
    slow_burn: PerHour
    ember: PerHour
    storm: Storm
    dying_gpu: Dying
    bad_switch: RangePerHour
    connector: RangePerHour
    thermal_drift: Drift
    straggler: Straggler
    row_remap_failure: Nothing
    narrow_pcie: Narrow
    nvlink5_link: Nvlink5


class Params(_Struct):
    """See fleet.yaml for what each means."""

    schema: int
    seed: int
    fleet: Fleet
    health_check: Annotated[float, Meta(ge=10)]
    jobs: Jobs
    healthy: Healthy
    faulty: Faulty


def load(path: Optional[str] = None) -> Params:
    """Raises InputError for a file that can not be read or is not of this form."""
    path = path or PACKAGED
    try:
        with open(path, "rb") as file:
            text = file.read(strict_yaml.MAX_BYTES + 1)
    except OSError as exc:
        raise InputError(path, "", f"can not be read: {exc.strerror}") from None
    return parse(text, path)


def parse(text: str | bytes, thing: str) -> Params:
    loaded = strict_yaml.load(text, thing, Params)
    params = loaded.value
    if params.schema != 1:
        raise loaded.error(("schema",), f"schema {params.schema} is not known", "this version reads 1")
    for board in params.fleet.boards:
        if board not in PRESETS or PRESETS[board].gpus == 0:
            raise loaded.error(("fleet", "boards", board), "there is no such board", f"known: {', '.join(sorted(PRESETS))}")
    if not any(params.fleet.boards.values()):
        raise loaded.error(("fleet", "boards"), "no board has a weight")
    if params.jobs.shortest > params.jobs.longest:
        raise loaded.error(("jobs", "shortest"), "is longer than the longest")
    _ordered(loaded, params.healthy, ("healthy",))
    _ordered(loaded, params.faulty, ("faulty",))
    return params


def _ordered(loaded: Any, struct: msgspec.Struct, path: tuple[str, ...]) -> None:
    """Every range has its smaller end first."""
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, msgspec.Struct):
            _ordered(loaded, value, (*path, name))
        elif isinstance(value, list) and len(value) == 2 and value[0] > value[1]:
            raise loaded.error((*path, name), f"{value[0]:g} is more than {value[1]:g}", "the smaller one comes first")


def sized(params: Params, seed: Optional[int] = None, **fleet: Any) -> Params:
    """The same with another seed and another size of the fleet."""
    changed = replace(params, fleet=replace(params.fleet, **fleet))
    return changed if seed is None else replace(changed, seed=seed)
