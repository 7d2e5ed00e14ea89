"""The simulated node's switches, RDMA ports and words of its own."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import entity
from slurm_nvhc.model.reading import NoData, Reading
from slurm_nvhc.sense.sim import inventory, parts
from slurm_nvhc.sense.sim.world import World

FIRST = "switch:0000:c1:00.0"


def told(world: World, *scopes: str) -> dict[str, dict[str, Reading]]:
    return parts.told(world.parts, [g.identity.pci for g in world.gpus], scopes or cat.PART_SCOPES, [f.name for f in cat.ALL])


@pytest.mark.parametrize(
    ("preset", "split"), [("hgx-h100-8", [5, 4, 4, 5]), ("hgx-h200-8", [5, 4, 4, 5]), ("hgx-a100-8", [2] * 6), ("hgx-b200-8", [])]
)
def test_every_link_leads_to_one_port_as_the_board_is_built(preset: str, split: list[int]) -> None:
    world = World.preset(preset)
    ends = Counter(str(r["port_remote"]) for r in told(world, cat.SWITCH_PORT).values())
    links = {f"pci:{g.identity.pci}/link{n}" for g in world.gpus for n in g.links} if split else set()
    assert ends == Counter(links)
    for number, address in enumerate(world.switches):
        of_switch = Counter(str(r["port_remote"]).partition("/")[0] for n, r in told(world).items() if n.startswith(f"switch:{address}/"))
        assert set(of_switch.values()) == {split[number]}


@pytest.mark.parametrize("preset", inventory.PRESETS)
def test_a_healthy_node_has_every_field_and_no_fault(preset: str) -> None:
    for name, readings in told(World.preset(preset)).items():
        assert set(readings) == {f.name for f in cat.ALL if f.scope == entity.scope(name)}
        for field, value in readings.items():
            facts = cat.BY_NAME[field]
            assert facts.kind != cat.COUNTER or value == 0
            assert isinstance(value, str) == (facts.unit == cat.WORD) or field == "fabric_manager"
            assert not facts.learned or value in facts.learned
        # every one of these is what a port in use shows
        assert readings.get("rdma_state", 4) == 4
        assert readings.get("port_state", 2) == 2


def test_a_node_with_fewer_gpus_has_fewer_ports() -> None:
    assert len(told(World.preset("hgx-h100-8", gpus=4), cat.SWITCH_PORT)) == 4 * 18


def test_targets() -> None:
    world = World.preset("hgx-h100-8")
    world.set("switch0.temp", 88)
    world.set("switch*.858", 70)
    world.set("switch3.temp", 71)
    world.add("switch0.port5.fatal", 2)
    world.add("switch0.port*.784", 1)
    world.set("switch1.port0.state", "error")
    world.set("switch1.port1.state", {"no": "error"})
    world.set("rdma3.port1.state", "down")
    world.add("rdma*.port1.link_downed", 4)
    world.set("rdma0.port1.rate", "blank")
    world.set("node.kernel_release", "6.8")
    world.set("node.fabric_manager", "not_found")
    world.storm("switch2.port7", "crc_data", 40, 60)
    got = told(world)
    assert [got[f"switch:{a}"]["switch_temp"] for a in world.switches] == [70, 70, 70, 71]
    assert (got[f"{FIRST}/port5"]["port_fatal"], got[f"{FIRST}/port5"]["port_replay"]) == (2, 1)
    assert (got[f"{FIRST}/port6"]["port_fatal"], got[f"{FIRST}/port39"]["port_replay"]) == (0, 1)
    assert got["switch:0000:c2:00.0/port0"]["port_state"] == 3
    assert isinstance(got["switch:0000:c2:00.0/port1"]["port_state"], NoData)
    assert got["switch:0000:c3:00.0/port7"]["port_crc_data"] == 40
    assert (got["rdma:mlx5_3/port1"]["rdma_state"], got["rdma:mlx5_2/port1"]["rdma_state"]) == (1, 4)
    assert got["rdma:mlx5_7/port1"]["rdma_link_downed"] == 4
    assert isinstance(got["rdma:mlx5_0/port1"]["rdma_rate"], NoData)
    assert (got["node"]["kernel_release"], type(got["node"]["fabric_manager"])) == ("6.8", NoData)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("switch4.temp", "switch0 to switch3"),
        ("rdma9.port1.state", "rdma0 to rdma7"),
        ("switch0.port50.fatal", "has no port 50"),
        ("rdma0.port2.state", "has no port 2"),
        ("rdma0.state", "rdma0.port1"),
        ("switch0.tmp", "did you mean temp?"),
        ("switch0.port5.fatel", "did you mean"),
        ("switch0.fatal", "is not a field of a switch"),
        ("switch0.782", "is not a field of a switch"),
        ("switch0.link5.fatal", "is not a part of the node"),
        ("node.gpu_temp", "is not a field of a node"),
        ("node", "is not a part of the node"),
        ("switchx.temp", "is not a GPU"),
        ("g0.switch_temp", "no reading of a GPU"),
        ("g0.858", "no reading of a GPU"),
        ("g0.kernel_release", "no reading of a GPU"),
    ],
)
def test_a_wrong_target_is_an_error_that_helps(target: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        World.preset("hgx-h100-8").set(target, 1)
    assert said in str(error.value)


def test_a_node_without_switches_says_so() -> None:
    with pytest.raises(InputError, match="it has no switch"):
        World.preset("hgx-b200-8").set("switch0.temp", 1)


def test_parts_vanish_and_come_back() -> None:
    world = World.preset("hgx-h100-8")
    everything = set(told(world))
    world.part("switch0", "absent")
    world.part("rdma3.port1", "absent")
    gone = everything - set(told(world))
    assert gone == {n for n in everything if n.startswith(FIRST)} | {"rdma:mlx5_3/port1"}
    assert len(gone) == 1 + 40 + 1
    world.part("rdma*.port1", "absent")
    assert not [n for n in told(world) if n.startswith("rdma:")]
    world.part("rdma*.port1", "present")
    world.part("switch0", "present")
    assert set(told(world)) == everything


@pytest.mark.parametrize("arguments", [("node", "absent"), ("rdma0.port1", "dead"), ("g3", "absent"), ("rdma0", "absent")])
def test_what_can_not_vanish(arguments: tuple[str, str]) -> None:
    with pytest.raises(InputError):
        World.preset("hgx-h100-8").part(*arguments)


def test_the_far_end_follows_the_card_and_can_be_set() -> None:
    world = World.preset("hgx-h100-8")
    world.identify("g2", pci="0000:77:00.0")
    assert told(world)[f"{FIRST}/port11"]["port_remote"] == "pci:0000:77:00.0/link1"
    world.set("switch0.port11.remote", "switch3.port4")
    assert told(world)[f"{FIRST}/port11"]["port_remote"] == "pci:0000:c4:00.0/link4"
    world.set("switch0.port11.remote", "blank")
    assert isinstance(told(world)[f"{FIRST}/port11"]["port_remote"], NoData)


def test_what_a_reboot_and_a_driver_load_clear() -> None:
    world = World.preset("hgx-h100-8")

    def grow() -> None:
        for target in ("switch0.port5.fatal", "rdma0.port1.link_downed"):
            world.add(target, 3)

    def counts() -> tuple[Any, Any]:
        return told(world)[f"{FIRST}/port5"]["port_fatal"], told(world)["rdma:mlx5_0/port1"]["rdma_link_downed"]

    grow()
    world.gpu_reset("*")
    assert counts() == (3, 3)
    world.driver_reload()
    assert counts() == (0, 3)
    grow()
    world.reboot()
    assert counts() == (0, 0)


def test_the_driver_is_one_word_everywhere() -> None:
    world = World.preset("hgx-h100-8")
    assert world.driver == inventory.DRIVER
    world.set("node.nvidia_driver", "580.65.06")
    assert (world.driver, told(world)["node"]["nvidia_driver"]) == ("580.65.06", "580.65.06")
    world.set("node.nvidia_driver", "not_found")
    assert world.driver == ""


def test_a_world_file_keeps_all_of_it() -> None:
    world = World.preset("hgx-a100-8")
    world.set("switch0.port5.state", {"no": "stale"})
    world.part("rdma3.port1", "absent")
    again = World.from_json(json.loads(json.dumps(world.to_json())))
    assert told(again) == told(world)
    assert again.to_json() == world.to_json()


@pytest.mark.parametrize(
    "damage",
    [
        {"node": {"readings": {}, "present": True}},
        {"switch:x": {"readings": {"rdma_state": 1}, "present": True}},
        {"rdma:a/port1": {"readings": {}, "present": "yes"}},
        {"rdma:a/port1": {}},
        [],
    ],
)
def test_a_damaged_world_file_is_an_error(damage: Any) -> None:
    raw = World.preset("hgx-h100-8").to_json()
    raw["parts"] = {**raw["parts"], **damage} if isinstance(damage, dict) else damage
    with pytest.raises(InputError):
        World.from_json(raw)
