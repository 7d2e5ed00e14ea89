"""Planted faults of the simulated node, and its traffic command: what shows under which traffic, and how the clock goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import patient
import pytest

from slurm_nvhc.errors import InputError
from slurm_nvhc.model import reading as rd
from slurm_nvhc.scenario import load
from slurm_nvhc.sense.sim import faults
from slurm_nvhc.sense.sim.world import World

S = 1_000_000_000


def grown(world: World) -> dict[str, dict[str, Any]]:
    """Link and port counters above 0 of a node that began with none: place -> name -> count. GPUs: theirs, without the links' sums."""
    out: dict[str, dict[str, Any]] = {}
    places = {f"g{i}.link{n}": readings for i, gpu in enumerate(world.gpus) for n, readings in gpu.links.items()}
    places |= {name: part.readings for name, part in world.parts.items() if "/port" in name and name.startswith("switch")}
    places |= {f"g{i}": {k: v for k, v in gpu.readings.items() if k == "pcie_replay"} for i, gpu in enumerate(world.gpus)}
    for place, readings in places.items():
        names = ("replay", "crc", "recovery", "retry_events", "code_errors")
        more = {k: n for k, v in readings.items() if any(word in k for word in names) and (n := rd.number(v))}
        if more:
            out[place] = more
    return out


def planted(preset: str = "hgx-h100-8", **fault: Any) -> World:
    world = World.preset(preset)
    world.apply({"op": "fault", **fault})
    return world


def port_of(world: World, link: str) -> str:
    return next(name for name, part in world.parts.items() if part.readings.get("port_remote") == link)


# -- what shows where ------------------------------------------------------------


def test_a_bad_end_sends_damaged_data_and_both_ends_say_their_part() -> None:
    world = planted(kind="link", at="g3.link11", per_second=2)
    assert faults.strike(world, [3, 5], 10) == []
    assert grown(world) == {"g3.link11": {"nvlink_replay": 20}, port_of(world, "g3.link11"): {"port_crc_flit": 20}}
    assert world.gpus[3].readings["nvlink_replay_total"] == 20


def test_a_connector_damages_both_directions() -> None:
    world = planted(kind="connector", at="g3.link11", per_second=1)
    faults.strike(world, [3, 5], 10)
    assert grown(world) == {
        "g3.link11": {"nvlink_replay": 10, "nvlink_crc_flit": 10},
        port_of(world, "g3.link11"): {"port_replay": 10, "port_crc_flit": 10},
    }


def test_a_gpu_errs_on_all_its_links() -> None:
    world = planted(kind="gpu", at="g3")
    faults.strike(world, [3, 5], 10)
    ends = {place for place in grown(world) if place.startswith("g")}
    assert ends == {f"g3.link{n}" for n in range(18)}


def test_a_gpus_own_counter_grows_alone_too() -> None:
    world = planted(kind="gpu", at="g3", counters=["pcie_replay"], per_second=1)
    faults.strike(world, [3], 10)
    assert grown(world) == {"g3": {"pcie_replay": 10}}


def test_a_switch_errs_towards_every_gpu_that_sends() -> None:
    world = planted(kind="switch", at="switch0")
    faults.strike(world, [1, 2], 10)
    ends = {place for place in grown(world) if place.startswith("g")}
    assert ends == {f"g{gpu}.link{n}" for gpu in (1, 2) for n in range(5)}
    assert {next(iter(v)) for k, v in grown(world).items() if k.startswith("switch")} == {"port_replay"}


def test_a_pair_shows_in_the_command_only() -> None:
    world = planted(kind="pair", at="g1+g5")
    assert faults.strike(world, [0, 1, 4], 10) == []
    assert faults.strike(world, [0, 1, 5], 10)
    assert grown(world) == {}


@pytest.mark.parametrize(
    ("fault", "group"),
    [
        ({"kind": "link", "at": "g3.link11"}, [0, 1, 2]),
        ({"kind": "link", "at": "g3.link11"}, [3]),
        ({"kind": "connector", "at": "g3.link11"}, [4, 5]),
        ({"kind": "gpu", "at": "g3"}, [3]),
        ({"kind": "gpu", "at": "g3"}, [0, 1]),
        ({"kind": "gpu", "at": "g3", "shows": "command"}, [0, 1]),
        ({"kind": "switch", "at": "switch0"}, [3]),
        ({"kind": "pair", "at": "g1+g5"}, [1, 2]),
    ],
)
def test_nothing_shows_without_traffic_that_passes_the_part(fault: dict[str, Any], group: list[int]) -> None:
    world = planted(**fault)
    assert faults.strike(world, group, 10) == []
    assert grown(world) == {}


def test_a_direct_wire_carries_the_data_of_its_two_gpus_only() -> None:
    world = planted("hgx-a100-4", kind="link", at="g0.link5")  # links 4 to 7 of g0 lead to g2
    faults.strike(world, [0, 1, 3], 10)
    assert grown(world) == {}
    faults.strike(world, [0, 2], 10)
    assert grown(world) == {"g0.link5": {"nvlink_replay": 50}, "g2.link1": {"nvlink_crc_flit": 50}}


def test_links_that_are_down_carry_nothing() -> None:
    world = planted("a100-pcie-8", kind="link", at="g0.link0")
    faults.strike(world, [0, 1], 10)
    assert grown(world) == {}


def test_nvlink_5_counts_other_things_and_its_switches_are_not_seen() -> None:
    world = planted("hgx-b200-8", kind="connector", at="g3.link11")
    faults.strike(world, [3, 5], 10)
    assert grown(world) == {"g3.link11": {"nvlink5_retry_events": 50, "nvlink5_code_errors": 50}}


def test_errors_may_come_by_the_gigabyte_and_in_chosen_counters() -> None:
    world = planted(kind="link", at="g3.link11", per_gb=0.1, counters=["recovery", "nvlink_crc_data"])
    faults.strike(world, [3, 5], 10)
    assert grown(world) == {"g3.link11": {"nvlink_recovery": 20}, port_of(world, "g3.link11"): {"port_crc_data": 20}}


def test_shows_in_the_command_in_the_counters_or_in_both() -> None:
    for shows in faults.SHOWS:
        world = planted(kind="link", at="g3.link11", shows=shows)
        said = faults.strike(world, [3, 5], 10)
        assert (bool(said), bool(grown(world))) == (shows != "counters", shows != "command")


def test_a_gpu_that_does_not_answer_moves_nothing() -> None:
    world = World.preset("hgx-h100-8")
    world.lose("g3")
    assert faults.strike(world, [3, 5], 10)
    assert faults.strike(world, [4, 5], 10) == []


def test_two_faults_and_none() -> None:
    world = planted(kind="link", at="g3.link11")
    world.apply({"op": "fault", "kind": "connector", "at": "g6.link0"})
    faults.strike(world, list(range(8)), 10)
    assert {"g3.link11", "g6.link0"} <= set(grown(world))
    world.apply({"op": "fault", "kind": "none"})
    before = grown(world)
    faults.strike(world, list(range(8)), 10)
    assert grown(world) == before


def test_intermittent_is_chance_that_repeats_itself(tmp_path: Path) -> None:
    def play() -> list[bool]:
        world = planted(kind="pair", at="g1+g5", share=0.5)
        out = []
        for _ in range(200):
            out.append(bool(faults.strike(world, [1, 5], 10)))
            world = World.from_json(world.to_json())  # the generator is in the state
        return out

    first = play()
    assert first == play()
    assert 60 < sum(first) < 140
    never = planted(kind="pair", at="g1+g5", share=0)
    assert not any(faults.strike(never, [1, 5], 10) for _ in range(20))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"kind": "cable", "at": "g3"}, "known: link, connector"),
        ({"kind": "link", "at": "g3"}, "such as g3.link11"),
        ({"kind": "link", "at": "g3.link18"}, "is no link of the GPU"),
        ({"kind": "link", "at": "g9.link1"}, "g0 to g7"),
        ({"kind": "gpu", "at": "*"}, "one GPU"),
        ({"kind": "switch", "at": "switch4"}, "4 switches"),
        ({"kind": "pair", "at": "g1+g9"}, "g0 to g7"),
        ({"kind": "pair", "at": "g1+g2", "shows": "counters"}, "command only"),
        ({"kind": "gpu", "at": "g3", "shows": "lamps"}, "known: counters"),
        ({"kind": "gpu", "at": "g3", "share": 2}, "from 0 to 1"),
        ({"kind": "gpu", "at": "g3", "per_gb": 1, "per_second": 1}, "exclude each other"),
        ({"kind": "link", "at": "g3.link1", "counters": ["pcie_replay"]}, "no counter of a link"),
        ({"kind": "gpu", "at": "g3", "counters": ["gpu_temp"]}, "no counter of a GPU"),
    ],
)
def test_what_can_not_be_planted_is_named(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        planted(**wrong)


def test_faults_are_kept_in_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "world.json")
    world = planted(kind="link", at="g3.link11", counters=["replay"], share=0.3)
    faults.strike(world, [3, 5], 10)
    world.save(path)
    assert World.load(path).to_json() == world.to_json()
    assert World.load(path).faults == world.faults


def test_a_scenario_plants_it_too() -> None:
    text = """\
schema: 1
name: a link that errs under load
steps:
  - fault: {kind: link, at: g3.link11, per_second: 2, share: 0.5, counters: [replay]}
  - fault: none
  - health_check: {}
expect:
  - {verdict: ok}
"""
    load.parse(text, "example")
    with pytest.raises(InputError, match="no link of the GPU"):
        load.parse(text.replace("link11", "link18"), "example")
    with pytest.raises(InputError, match="line 4"):
        load.parse(text.replace("kind: link", "kind: cable"), "example")


# -- the command -----------------------------------------------------------------


def traffic(path: str, gpus: str, step: str = "", *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slurm_nvhc.sense.sim.traffic", "--world", path, "--seconds", "30", *more]
    env = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": gpus, "NVHC_STEP": step}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=patient.PROCESS_S, check=False)


@pytest.fixture
def node(tmp_path: Path) -> tuple[str, list[str]]:
    path = str(tmp_path / "world.json")
    world = planted(kind="pair", at="g1+g5")
    world.save(path)
    return path, [gpu.identity.uuid for gpu in world.gpus]


def test_the_command_says_whether_all_arrived(node: tuple[str, list[str]]) -> None:
    path, uuids = node
    good = traffic(path, f"{uuids[1]},{uuids[4]}")
    assert (good.returncode, good.stdout) == (0, "moved data for 30 s, all of it arrived\n")
    bad = traffic(path, f"{uuids[1]},{uuids[5]}")
    assert bad.returncode == 1
    assert "is not the data that was sent" in bad.stderr


def test_groups_of_one_step_run_at_the_same_time(node: tuple[str, list[str]]) -> None:
    path, uuids = node
    began = World.load(path).wall_ns
    for pair in ("01", "23", "46"):
        assert traffic(path, ",".join(uuids[int(i)] for i in pair), "a").returncode == 0
    assert World.load(path).wall_ns - began == 30 * S
    traffic(path, uuids[0], "b")
    assert World.load(path).wall_ns - began == 60 * S
    traffic(path, uuids[0])
    traffic(path, uuids[0])
    assert World.load(path).wall_ns - began == 120 * S


def test_what_it_can_not_do_is_one_line(node: tuple[str, list[str]], tmp_path: Path) -> None:
    path, _uuids = node
    for done, word in (
        (traffic(path, ""), "names no GPU"),
        (traffic(path, "GPU-1"), "is no GPU of this node"),
        (traffic(str(tmp_path / "none.json"), "GPU-1"), "can not be read"),
    ):
        assert done.returncode == 2
        assert word in done.stderr
        assert done.stderr.count("\n") == 1
