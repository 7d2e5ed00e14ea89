"""The simulated node: presets, targets, every fault, its file."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.sense.kernel_log import parse
from slurm_nvhc.sense.sim import inventory, target
from slurm_nvhc.sense.sim.operations import OPERATIONS
from slurm_nvhc.sense.sim.world import World

S = 1_000_000_000


@pytest.fixture
def world() -> World:
    return World.preset("hgx-h100-8")


def read(world: World, gpu: int, name: str, link: int | None = None) -> Any:
    card = world.gpus[gpu]
    return card.readings[name] if link is None else card.links[link][name]


# -- presets -------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(inventory.PRESETS))
def test_presets_are_complete_fixed_and_distinct(name: str) -> None:
    a, b, other = World.preset(name), World.preset(name), World.preset(name, node="n2")
    assert a.to_json() == b.to_json()
    assert {g.identity.uuid for g in a.gpus}.isdisjoint(g.identity.uuid for g in other.gpus)
    assert len({g.identity.uuid for g in a.gpus}) == len({g.identity.pci for g in a.gpus}) == len(a.gpus)
    for gpu in a.gpus:
        assert set(gpu.readings) == {f.name for f in cat.ALL if f.scope == cat.GPU and not f.sum_of}
        for link in gpu.links.values():
            assert set(link) == {f.name for f in cat.ALL if f.scope == cat.LINK}


def test_what_generations_lack() -> None:
    def preset(name: str, field: str, link: int | None = None) -> Any:
        return read(World.preset(name), 0, field, link)

    assert preset("hgx-b200-8", "nvlink_replay", 0) == NoData("not_supported")
    assert preset("hgx-b200-8", "nvlink_replay_total") == NoData("not_supported")
    assert preset("hgx-b200-8", "nvlink_state", 0) == "up"
    assert preset("a100-pcie-8", "nvlink_state", 11) == "down"
    assert preset("v100-8", "row_remap_failure") == NoData("not_supported")
    assert preset("v100-8", "retired_pages_dbe") == 0
    assert preset("hgx-h100-8", "retired_pages_dbe") == NoData("not_supported")
    assert [len(World.preset(p).gpus[0].links) for p in ("v100-8", "hgx-a100-8", "hgx-h200-8")] == [6, 12, 18]
    assert World.preset("cpu-only").gpus == []
    assert len(World.preset("hgx-h100-8", gpus=2).gpus) == 2
    assert World.preset("hgx-h100-8", gpus=16).gpus[15].identity.pci == "0001:8b:00.0"


@pytest.mark.parametrize(("name", "gpus"), [("hgx-h100", None), ("hgx-h100-8", -1), ("hgx-h100-8", 1000), ("hgx-h100-8", True)])
def test_a_wrong_preset_is_an_error(name: str, gpus: Any) -> None:
    with pytest.raises(InputError):
        World.preset(name, gpus=gpus)


# -- targets -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gpu", "link", "name"),
    [
        ("g3.429", 3, None, "nvlink_replay_total"),
        ("g3.nvlink_replay_total", 3, None, "nvlink_replay_total"),
        ("g3.link11.nvlink_replay", 3, 11, "nvlink_replay"),
        ("g3.link11.replay", 3, 11, "nvlink_replay"),
        ("g3.link11.468", 3, 11, "nvlink_replay"),
        ("g3.link11.1527", 3, 11, "nvlink_replay"),
        ("g3.468", 3, 11, "nvlink_replay"),
        ("*.395", None, None, "row_remap_failure"),
        ("g0.link*.state", 0, -1, "nvlink_state"),
        ("*.link2.crc_flit", None, 2, "nvlink_crc_flit"),
    ],
)
def test_targets(text: str, gpu: int | None, link: int | None, name: str) -> None:
    assert target.parse(text, 8) == (gpu, link, cat.BY_NAME[name])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("g3.230", "engine_xid"),
        ("g3.54", "identify with uuid"),
        ("g9.429", "g0 to g7"),
        ("gpu3.429", "is not a GPU"),
        ("g3.7", "not in the catalogue"),
        ("g3.nvlink_replay", "g3.link0.replay"),
        ("g3.1527", "one of a link"),
        ("g3.nvlink_reply_total", "did you mean nvlink_replay_total"),
        ("g3.link11.replai", "did you mean replay"),
        ("g3.link11.pcie_replay", "not a field"),
        ("g3.link2.468", "belongs to link 11"),
        ("g3.port2.replay", "is not a link"),
        ("g3", "is not a target"),
        ("g3.a.b.c", "is not a target"),
        ("", "is not a target"),
        (None, "is not text"),
    ],
)
def test_a_wrong_target_says_what_and_what_instead(text: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        target.parse(text, 8)


# -- readings --------------------------------------------------------------------


def test_set_numbers_words_and_no_data(world: World) -> None:
    world.set("g3.429", 57)
    world.set("g3.link11.state", "down")
    world.set("*.395", 1)
    world.set("g1.pcie_replay", "not_permitted")
    world.set("g1.recovery_action", "GPU reset")
    world.set("g2.link*.state", "disabled")
    assert read(world, 3, "nvlink_replay_total") == 57
    assert read(world, 3, "nvlink_state", 11) == "down"
    assert [read(world, i, "row_remap_failure") for i in range(8)] == [1] * 8
    assert read(world, 1, "pcie_replay") == NoData("not_permitted")
    assert read(world, 1, "recovery_action") == 1
    assert [read(world, 2, "nvlink_state", n) for n in range(18)] == ["disabled"] * 18
    assert read(world, 3, "nvlink_replay", 11) == 0


@pytest.mark.parametrize(
    ("goal", "value"),
    [("g3.429", "many"), ("g3.429", True), ("g3.429", 1.5), ("g3.429", float("nan")), ("g3.429", None), ("g3.link0.state", "sideways"),
     ("g3.link0.state", 3), ("g3.link30.replay", 1)],
)
def test_set_refuses_what_no_reading_can_be(world: World, goal: str, value: Any) -> None:
    before = world.to_json()
    with pytest.raises(InputError):
        world.set(goal, value)
    assert world.to_json() == before


def test_add_to_a_link_carries_the_total(world: World) -> None:
    world.add("g3.link11.replay", 5)
    world.add("g3.468", 2)
    world.add("g4.link*.crc_flit", 1)
    assert (read(world, 3, "nvlink_replay", 11), read(world, 3, "nvlink_replay_total")) == (7, 7)
    assert read(world, 4, "nvlink_crc_flit_total") == 18
    world.set("g5.429", "blank")
    world.add("g5.link0.replay", 1)
    assert read(world, 5, "nvlink_replay_total") == NoData("blank")
    with pytest.raises(InputError, match="use set"):
        world.add("g5.429", 1)
    with pytest.raises(InputError, match="shrink"):
        world.add("g4.429", -1)


def test_a_recovery_on_nvlink_5_carries_the_gpus_counters() -> None:
    world = World.preset("hgx-b200-8")
    world.add("g3.link11.nvlink5_link_recovery", 2)
    world.add("g3.link*.nvlink5_link_recovery", 1)
    world.add("g3.link4.nvlink5_code_errors", 9)
    assert [read(world, 3, f"nvlink5_recovery_{n}") for n in ("successful", "events", "failed")] == [20, 20, 0]
    assert read(world, 3, "nvlink5_code_errors", 4) == 9


def test_storm_and_slow_burn_take_their_time(world: World) -> None:
    start = world.wall_ns
    world.storm("g3.link11", "replay", 21200, 2460)
    assert (read(world, 3, "nvlink_replay", 11), world.wall_ns - start) == (21200, 2460 * S)
    world.slow_burn("g3.link2", "recovery", 8.6, 3600)
    assert read(world, 3, "nvlink_recovery", 2) == 8


def test_throttle_grows_the_right_counters(world: World) -> None:
    world.throttle("g1", "hw_thermal", 0.25, 100)
    assert read(world, 1, "hw_thermal_slowdown_ns") == read(world, 1, "thermal_violation_ns") == 25 * S
    assert read(world, 1, "power_violation_ns") == 0
    for wrong in (("g1", "heat", 0.1, 1), ("g1", "power", 1.1, 1), ("g1", "power", 0.1, -1)):
        with pytest.raises(InputError):
            world.throttle(*wrong)


# -- time, resets ------------------------------------------------------------------


def test_traffic_is_counted_on_nvlink_5_while_time_passes() -> None:
    world = World.preset("hgx-b200-8")
    world.traffic("g3", 20_000)
    world.advance(60)
    world.storm("g3.link11", "nvlink5_retry_events", 5, 40)
    for name in ("nvlink5_tx_bytes", "nvlink5_rx_bytes"):
        assert read(world, 3, name) == 100 * 20_000 * 10**6
        assert read(world, 4, name) == 0
    assert read(world, 3, "nvlink_throughput") == NoData("not_supported")
    world.traffic("*", 0)
    world.advance(60)
    assert read(world, 3, "nvlink5_tx_bytes") == 100 * 20_000 * 10**6
    world.traffic("g3", 1000)
    world.lose("g3")
    world.advance(10)
    assert read(world, 3, "nvlink5_tx_bytes") == 100 * 20_000 * 10**6


def test_traffic_is_a_rate_that_is_sampled_before_nvlink_5(world: World, tmp_path: Path) -> None:
    world.watch()
    world.traffic("g3", 10_000)
    path = str(tmp_path / "world.json")
    world.save(path)
    world = World.load(path)
    world.advance(600)
    world.gpu_reset("g3")
    world.advance(1)
    assert world.watched is not None
    samples = world.watched[world.gpus[3].identity.uuid]["nvlink_throughput"]
    assert [s.value for s in samples] == [0, 20_000, 0]
    assert samples[2].at_ns - samples[1].at_ns == 600 * S
    assert read(world, 3, "nvlink5_tx_bytes") == NoData("not_supported")
    with pytest.raises(InputError):
        world.traffic("g3", -1)


def test_scheduled_changes_happen_at_their_moment(world: World) -> None:
    world.schedule(60, {"op": "kernel_line", "text": "second"})
    world.schedule(30, {"op": "kernel_line", "text": "first"})
    start = world.wall_ns
    world.advance(59)
    assert [(line.text, line.wall_ns - start) for line in world.kernel] == [("first", 30 * S)]
    world.advance(1)
    assert [(line.text, line.wall_ns - start) for line in world.kernel] == [("first", 30 * S), ("second", 60 * S)]
    assert world.wall_ns - start == 60 * S


def test_a_scheduled_reboot_does_not_lose_or_repeat_time(world: World) -> None:
    world.schedule(10, {"op": "reboot", "down_s": 100})
    start = world.wall_ns
    world.advance(50)
    assert world.wall_ns - start == 110 * S
    assert world.boot_ns == 0


def test_resets_clear_what_the_catalogue_says(world: World) -> None:
    def fill() -> None:
        for name in ("429", "311", "312", "393", "395", "396", "202"):
            world.set(f"*.{name}", 9 if name not in ("395", "396") else 1)
        world.set("*.link*.replay", 9)
        world.set("g0.310", "blank")

    fill()
    world.gpu_reset("g3")
    assert (read(world, 3, "nvlink_replay", 11), read(world, 3, "pcie_replay"), read(world, 3, "row_remap_pending")) == (0, 0, 0)
    assert (read(world, 3, "ecc_sbe_aggregate"), read(world, 3, "row_remap_failure")) == (9, 1)
    assert read(world, 2, "nvlink_replay", 11) == 9
    fill()
    loaded = world.driver_loaded_ns
    world.advance(5)
    world.driver_reload()
    assert world.driver_loaded_ns == world.wall_ns != loaded
    assert (read(world, 3, "ecc_dbe_volatile"), read(world, 3, "row_remap_pending")) == (0, 1)
    assert read(world, 0, "ecc_sbe_volatile") == NoData("blank")
    fill()
    world.xid("g3", 31)
    boot = world.boot_id
    world.reboot()
    assert (world.boot_ns, world.kernel, world.engine_events, world.boot_id != boot) == (0, [], [], True)
    assert (read(world, 3, "row_remap_pending"), read(world, 3, "remapped_rows_uncorrectable")) == (0, 9)
    assert world.driver_loaded_ns == world.wall_ns


def test_recovery_actions_are_settled_by_what_they_ask_for(world: World) -> None:
    for action, after_reset in ((1, 0), (2, 2), (4, 0)):
        world.set("g0.recovery_action", action)
        world.gpu_reset("g0")
        assert read(world, 0, "recovery_action") == after_reset
    world.set("g0.recovery_action", 2)
    world.reboot()
    assert read(world, 0, "recovery_action") == 0


# -- cards ---------------------------------------------------------------------------


def test_identity_can_be_any(world: World) -> None:
    world.identify("g6", minor=0, dcgm_id=7, pci="00000001:0A:00.0")
    assert world.gpu("g6").identity[:5] == (world.gpus[6].identity.uuid, "0001:0a:00.0", 0, 6, 7)
    for wrong in ({"minor": -1}, {"uuid": "x"}, {"pci": "x"}, {"mig": 1}, {"uuid": world.gpus[0].identity.uuid}, {"colour": 1}):
        with pytest.raises(InputError):
            world.identify("g6", **wrong)


def test_swap_is_another_card_in_the_slot(world: World) -> None:
    world.set("g3.312", 7)
    world.set("g3.link11.replay", 7)
    pci = world.gpus[3].identity.pci
    world.swap("g3", "GPU-new", "42")
    row = world.gpus[3].identity
    assert (row.uuid, row.serial, row.pci) == ("GPU-new", "42", pci)
    assert (read(world, 3, "ecc_sbe_aggregate"), read(world, 3, "nvlink_replay", 11), read(world, 3, "ecc_mode")) == (0, 0, 1)


def test_identity_is_a_reading_too(world: World) -> None:
    assert (read(world, 3, "vbios"), read(world, 3, "mig_mode")) == ("96.00.74.00.01", 0)
    world.identify("g3", vbios="96.00.99.00.02", mig=True)
    assert (read(world, 3, "vbios"), read(world, 3, "mig_mode")) == ("96.00.99.00.02", 1)
    for name in ("vbios", "mig_mode"):
        with pytest.raises(InputError, match="use identify"):
            world.set(f"g3.{name}", 1)


def test_what_is_configured_outlives_a_swap_and_ecc_waits_for_a_reset(world: World) -> None:
    world.set("g3.ecc_pending", 0)
    world.swap("g3", "GPU-new")
    assert [read(world, 3, n) for n in ("ecc_mode", "ecc_pending", "persistence_mode")] == [1, 0, 1]
    world.driver_reload()
    assert read(world, 3, "ecc_mode") == 1
    world.gpu_reset("g3")
    assert read(world, 3, "ecc_mode") == 0


def test_direct_links_follow_the_cards() -> None:
    world = World.preset("hgx-a100-4")
    uuids = [card.identity.uuid for card in world.gpus]
    assert [read(world, 1, "nvlink_remote", n) for n in (0, 3, 4, 7, 8, 11)] == [uuids[i] for i in (0, 0, 2, 2, 3, 3)]
    world.swap("g2", "GPU-new")
    assert [read(world, 1, "nvlink_remote", n) for n in (3, 4, 8)] == [uuids[0], "GPU-new", uuids[3]]
    world.links("g1", 6, "down")
    assert read(world, 1, "nvlink_remote", 5) == "GPU-new"
    assert read(World.preset("hgx-a100-4", gpus=2), 1, "nvlink_remote", 4) == NoData("not_supported")
    pair = World.preset("a100-pcie-nvlink-2")
    assert {link["nvlink_remote"] for link in pair.gpus[0].links.values()} == {pair.gpus[1].identity.uuid}
    assert read(World.preset("a100-pcie-8"), 0, "nvlink_remote", 0) == NoData("not_supported")


def test_a_far_end_is_any_word(world: World) -> None:
    world.set("g3.link11.nvlink_remote", "switch:0000:c1:00.0/port5")
    assert read(world, 3, "nvlink_remote", 11) == "switch:0000:c1:00.0/port5"
    world.set("g3.link11.nvlink_remote", "blank")
    assert read(world, 3, "nvlink_remote", 11) == NoData("blank")
    for wrong in (7, ""):
        with pytest.raises(InputError):
            world.set("g3.link11.nvlink_remote", wrong)


def test_lose_and_restore(world: World) -> None:
    world.lose("g3")
    assert (world.gpus[3].listed, world.gpus[3].on_pci, world.gpus[3].responds) == (False, True, False)
    world.lose("g3", engine_lists=True, on_pci=False)
    assert (world.gpus[3].listed, world.gpus[3].on_pci) == (True, False)
    world.restore("g3")
    assert (world.gpus[3].listed, world.gpus[3].on_pci, world.gpus[3].responds, world.gpus[3].status) == (True, True, True, "ok")


def test_links_can_be_given(world: World) -> None:
    world.links("g0", 4, "down")
    assert [link["nvlink_state"] for link in world.gpus[0].links.values()] == ["down"] * 4
    for wrong in ((99, "up"), (4, "sideways")):
        with pytest.raises(InputError):
            world.links("g0", *wrong)


# -- events ----------------------------------------------------------------------------


def test_xid_is_in_the_kernel_log_and_the_engine(world: World) -> None:
    world.xid("g3", 31, "MMU Fault", pid=99, process="python")
    (event,) = parse(world.kernel, world.boot_id)
    assert (event.code, event.pci, event.pid, event.process) == (31, world.gpus[3].identity.pci, 99, "python")
    assert (world.engine_events[0].code, world.engine_events[0].uuid) == (31, world.gpus[3].identity.uuid)
    world.xid("g3", 79)
    assert parse(world.kernel, "b")[1].pid == 0
    world.engine("absent")
    world.xid("g3", 31)
    assert world.engine_events == []


def test_engine_xid_keeps_its_time(world: World) -> None:
    world.engine_xid("g1", 31, at_s=-7200)
    assert world.kernel == []
    assert world.engine_events[0].at_ns == world.wall_ns - 7200 * S
    for wrong in (1, -1e8, "x"):
        with pytest.raises(InputError):
            world.engine_xid("g1", 31, at_s=wrong)  # type: ignore[arg-type]


def test_sxid_is_one_event(world: World) -> None:
    world.sxid(2, 20034, True, 30)
    (event,) = parse(world.kernel, "b")
    assert (event.kind, event.fatal, event.link, event.pci) == ("sxid", True, 30, world.switches[2])
    with pytest.raises(InputError):
        world.sxid(4, 20034)


# -- engine, operations, file ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "options"),
    [("bored", {}), ("ok", {"after": "pci"}), ("hung", {"after": "lunch"}), ("slow", {}), ("slow", {"seconds": -1}), ("lying", {}),
     ("lying", {"kind": "white"}), ("crash", {"signal": "SIGHUP"})],
)
def test_a_wrong_engine_behaviour_is_an_error(world: World, behaviour: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        world.engine(behaviour, **options)
    assert world.behaviour == "ok"


def test_every_operation_is_a_method_with_these_arguments() -> None:
    import inspect

    for name, operation in OPERATIONS.items():
        method = inspect.signature(getattr(World, name))
        known = [p for p in method.parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD]
        required = tuple(p.name for p in known if p.default is p.empty)
        assert operation.required == required, name
        if not operation.more and name != "identify":
            assert operation.optional == tuple(p.name for p in known if p.default is not p.empty), name


@pytest.mark.parametrize(
    ("op", "word"),
    [
        ("add", "not a mapping"),
        ({}, "key op"),
        ({"op": "ad"}, "did you mean add"),
        ({"op": "add", "target": "g0.429"}, "key amount"),
        ({"op": "add", "target": "g0.429", "amont": 1, "amount": 1}, "did you mean amount"),
        ({"op": "schedule", "at_s": 1}, "key change"),
        ({"op": "schedule", "at_s": 1, "change": {"op": "x"}}, "key op"),
        ({"op": "__init__"}, "key op"),
        ({"op": "save", "path": "/x"}, "key op"),
    ],
)
def test_a_wrong_operation_names_its_key(world: World, op: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        world.apply(op)
    with pytest.raises(InputError, match=word):
        world.schedule(1, op)


def test_file_survives_all_state(world: World, tmp_path: Path) -> None:
    path = str(tmp_path / "world.json")
    world.set("g1.202", "not_permitted")
    world.xid("g2", 79)
    world.lose("g3")
    world.schedule(10, {"op": "set", "target": "g0.429", "value": 1})
    world.engine("hung", after="clock")
    world.unreadable("kernel_log")
    world.save(path)
    again = World.load(path)
    assert again.to_json() == world.to_json()
    again.advance(10)
    assert read(again, 0, "nvlink_replay_total") == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"schema": 9}', '{"schema": 1}', "\x00", "[" * 100_000],
)
def test_nonsense_in_the_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "world.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"world\.json"):
        World.load(str(path))


@pytest.mark.parametrize(
    ("key", "value"),
    [("gpus", {}), ("gpus", [{}]), ("wall_ns", "now"), ("boots", True), ("kernel", [[1]]), ("pending", [5]), ("engine", {"behaviour": "x"}),
     ("engine", {}), ("engine_events", [{"a": 1}]), ("unreadable", []), ("node", 5)],
)
def test_a_wrong_key_in_the_file_is_an_error(world: World, key: str, value: Any) -> None:
    raw = json.loads(json.dumps(world.to_json()))
    with pytest.raises(InputError, match="the world"):
        World.from_json({**raw, key: value}, "the world")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        World.load(str(tmp_path / "none"))
    with pytest.raises(InputError), World.edit(str(tmp_path / "no" / "none")):
        pass


def _advance(path: str) -> None:
    for _ in range(10):
        with World.edit(path) as world:
            world.advance(1)


def test_many_writers_lose_no_time(tmp_path: Path) -> None:
    path = str(tmp_path / "world.json")
    world = World.preset("custom")
    world.save(path)
    workers = [multiprocessing.get_context("fork").Process(target=_advance, args=(path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert World.load(path).wall_ns - world.wall_ns == 40 * S


def test_a_failed_edit_changes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "world.json")
    World.preset("custom").save(path)
    before = Path(path).read_text()

    def attempt() -> None:
        with World.edit(path) as world:
            world.advance(5)
            world.set("g0.nonsense", 1)

    with pytest.raises(InputError):
        attempt()
    assert Path(path).read_text() == before


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**6), st.floats(), st.just([]), st.just({}), st.text(max_size=6),
    st.sampled_from(["g0", "*", "g0.429", "g0.link1", "replay", "up", "lying", "frozen", "power", "kernel_log", "GPU-x"]),
)


def operation(name: str) -> st.SearchStrategy[dict[str, Any]]:
    known = OPERATIONS[name]
    arguments = st.fixed_dictionaries({k: VALUES for k in known.required}, optional={k: VALUES for k in known.optional})
    return arguments.map(lambda given_: {"op": name, **given_})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(OPERATIONS)).flatmap(operation), max_size=5))
def test_no_operation_fails_otherwise_or_spoils_the_file(ops: list[dict[str, Any]]) -> None:
    world = World.preset("hgx-h100-8", gpus=1)
    for op in ops:
        with contextlib.suppress(InputError):
            world.apply(op)
    World.from_json(json.loads(json.dumps(world.to_json())))


def test_an_unknown_field_in_the_file_is_an_error_that_names_it(world: World) -> None:
    raw = json.loads(json.dumps(world.to_json()))
    raw["gpus"][2]["links"]["3"]["nvlink_reply"] = 0
    with pytest.raises(InputError, match="nvlink_reply"):
        World.from_json(raw, "the world")
