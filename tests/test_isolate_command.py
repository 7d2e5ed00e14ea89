"""`nvhc isolate` as a person calls it, on simulated nodes: planted faults are found, and what goes wrong is one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import patient
import pytest
from isolate_site import Node

from slurm_nvhc.sense.sim.world import World


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def parts(document: Any) -> set[tuple[str, str]]:
    return {(part["kind"], part["name"]) for part in document["explanation"]["parts"]}


def traffic_steps(document: Any) -> int:
    return sum(one["step"]["kind"] == "traffic" for one in document["search"]["seen"])


def port_of(node: Node, link: str) -> str:
    world = World.load(node.site.world_file)
    name = next(name for name, part in world.parts.items() if part.readings.get("port_remote") == link)
    return name.replace("switch:", "switch ").replace("/", " ")


# -- what is found -----------------------------------------------------------------

FAULTS: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
    ("hgx-h100-8", {"kind": "link", "at": "g3.link11"}, ("link", "gpu3 link11")),
    ("hgx-h100-8", {"kind": "connector", "at": "g6.link0"}, ("connector", "connector at gpu6 link0")),
    ("hgx-h100-8", {"kind": "gpu", "at": "g2"}, ("gpu", "gpu2")),
    ("hgx-h100-8", {"kind": "gpu", "at": "g2", "shows": "command"}, ("gpu", "gpu2")),
    ("hgx-h100-8", {"kind": "gpu", "at": "g5", "counters": ["ecc_dbe_volatile"]}, ("gpu", "gpu5")),
    ("hgx-h100-8", {"kind": "switch", "at": "switch2"}, ("switch", "switch 0000:c3:00.0")),
    ("hgx-h100-8", {"kind": "pair", "at": "g1+g5"}, ("pair", "gpu1 with gpu5")),
    ("hgx-a100-8", {"kind": "link", "at": "g7.link3", "shows": "both"}, ("link", "gpu7 link3")),
    ("hgx-a100-4", {"kind": "link", "at": "g0.link5"}, ("link", "gpu0 link5")),
    ("hgx-a100-4", {"kind": "gpu", "at": "g3"}, ("gpu", "gpu3")),
    ("hgx-b200-8", {"kind": "link", "at": "g4.link17"}, ("link", "gpu4 link17")),
    ("hgx-b200-8", {"kind": "gpu", "at": "g4"}, ("gpu", "gpu4")),
]


@pytest.mark.parametrize(("preset", "fault", "part"), FAULTS, ids=[f"{p}-{f['kind']}-{f.get('shows', 'counters')}" for p, f, _ in FAULTS])
def test_a_single_fault_is_found_in_six_steps_of_traffic(tmp_path: Path, preset: str, fault: dict[str, Any], part: tuple[str, str]) -> None:
    node = Node(tmp_path, preset)
    node.fault(**fault)
    document = node.isolate_json(code=1)
    assert parts(document) == {part}
    assert document["explanation"]["parts"][0]["others"] == []
    assert traffic_steps(document) <= 6
    assert document["outcome"] == "found"
    assert document["stopped"] == ""


def test_two_at_once(node: Node) -> None:
    node.fault(kind="link", at="g3.link11")
    node.fault(kind="connector", at="g6.link0")
    assert parts(node.isolate_json(code=1)) == {("link", "gpu3 link11"), ("connector", "connector at gpu6 link0")}


def test_one_that_comes_and_goes(node: Node) -> None:
    node.fault(kind="link", at="g3.link11", share=0.5)
    document = node.isolate_json("--repeat", "5", code=1)
    assert parts(document) == {("link", "gpu3 link11")}


def test_none(node: Node) -> None:
    text = node.isolate()
    assert "nothing found in 3 traffic steps, 1m30s of traffic, 28 of 28 pairs of GPUs, 144 of 144 links" in text
    assert "to act on it" not in text
    document = node.isolate_json()
    assert (document["outcome"], document["advice"]) == ("nothing", [])
    assert set(document["matrices"]["links"].values()) == {0}


def test_what_grows_by_itself_is_told_apart(node: Node) -> None:
    for at in range(1, 29, 3):
        node.do("schedule", at_s=at, change={"op": "add", "target": "g2.link0.crc_flit", "amount": 4})
    text = node.isolate(code=1)
    assert "grows while nothing runs: gpu2 link0: CRC flit +40" in text


def test_a_gpu_that_falls_out_is_what_was_found(node: Node) -> None:
    node.do("schedule", at_s=65, change={"op": "lose", "gpu": "g3"})
    document = node.isolate_json(code=1)
    assert document["lost"] == {node.uuids[3]: "does not answer since step 3"}
    assert document["said"][0] == "gpu3 does not answer since step 3"


def test_counters_that_can_not_be_read_are_no_pass(node: Node) -> None:
    for name in ("replay", "recovery", "crc_flit", "crc_data"):
        node.do("set", target=f"g3.link*.{name}", value="blank")
    document = node.isolate_json(code=3)
    assert document["outcome"] == "unknown"
    assert document["matrices"]["links"][f"{node.uuids[3]}/link0"] == 0  # the port at its far end was read
    assert document["explanation"]["unknown"]


def test_the_table_the_maps_and_the_way_to_act(node: Node) -> None:
    node.fault(kind="link", at="g3.link11")
    assert "scontrol update nodename=n1 state=drain reason='gpu3: isolate: gpu3 link11 (certain)'" in node.isolate(code=1)
    node.site.write_policy({"isolate": {"traffic": list(node.traffic)}, "mode": "enforce", "narrow": {"enabled": True}})
    text = node.isolate(code=1)
    for expected in (
        "step 3: gpu0-7, 30s: does anything show when all GPUs move data?",
        f"gpu3 link11 +150 replay; {port_of(node, 'g3.link11')} +150 port CRC flit",
        "pairs: fewest errors",
        "gpu3 link11 (certain)",
        "nvhc gpu exclude gpu3 --why 'isolate: gpu3 link11 (certain)'",
    ):
        assert " ".join(expected.split()) in " ".join(text.split()), expected
    assert "\x1b[" not in text


# -- what is asked -----------------------------------------------------------------


def test_only_some_gpus(node: Node) -> None:
    node.fault(kind="link", at="g3.link11")
    pci = World.load(node.site.world_file).gpus[5].identity.pci
    document = node.isolate_json("--gpus", f"gpu3,{node.uuids[4]},{pci}", code=1)
    assert [card["name"] for card in document["search"]["board"]["cards"]] == ["gpu3", "gpu4", "gpu5"]
    assert parts(document) == {("link", "gpu3 link11")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--gpus", "gpu9"), "nvhc: --gpus: gpu9 is no GPU of this node (there are: gpu0, gpu1,"),
        (("--traffic", "no-such-program -x"), "nvhc: --traffic: 'no-such-program' is no program that can be run"),
        (("--traffic", "'"), "nvhc: --traffic: is no command: No closing quotation"),
        (("--seconds", "soon"), "nvhc: --seconds: 'soon' is not a duration"),
        (("--seconds", "2h"), "nvhc: --seconds: 2h is not from 1s to 1h"),
        (("--repeat", "-1"), "nvhc: --repeat: -1 is not from 0"),
        (("--max-steps", "0"), "nvhc: --max-steps: 0 is not from 1"),
        (("--before", "x.json"), "nvhc: --before: belongs to --swapped"),
        (("--swapped", "gpu3,gpu5"), "nvhc: --swapped: no search from before the exchange is kept"),
        (("--swapped", "gpu3,gpu5", "--before", "/nowhere"), "nvhc: /nowhere: can not be read"),
        (("--swapped", "gpu3,gpu5", "--before", "/etc/hostname"), "nvhc: /etc/hostname: is not what `nvhc isolate --json` writes"),
    ],
)
def test_bad_input_is_one_line(node: Node, words: tuple[str, ...], expected: str) -> None:
    done = node.site.command("isolate", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(expected), done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_command_the_examples_are_named(node: Node) -> None:
    node.write_policy(traffic=[])
    text = node.isolate(code=2)
    assert "isolate.traffic: no command is named that moves data between GPUs" in text
    assert "nvbandwidth -t device_to_device" in text
    assert "all_reduce_perf" in text
    assert node.isolate("--traffic", node.command).count("nothing found") == 1


def test_the_plan_runs_nothing(node: Node) -> None:
    node.drained.unlink()  # nor does it need ground
    text = node.isolate("--plan")
    assert "gpu0-7 each alone" in text
    assert "slurm_nvhc.sense.sim.traffic" in text
    plan = node.isolate_json("--plan")
    assert [step["kind"] for step in plan["steps"]] == ["idle", "alone", "traffic", "traffic", "traffic"]
    assert not (Path(node.directory) / "isolate.json").exists()


def test_max_steps(node: Node) -> None:
    node.fault(kind="pair", at="g1+g5")
    document = node.isolate_json("--max-steps", "2", code=1)
    assert traffic_steps(document) == 2
    assert document["explanation"]["parts"][0]["confidence"] == "one of"


def test_refused_without_ground(node: Node) -> None:
    node.drained.unlink()
    text = node.isolate(code=2)
    assert "run it in an allocation" in text


def test_one_search_at_a_time_and_none_beside_a_diagnostic(node: Node) -> None:
    from slurm_nvhc import diagnose
    from slurm_nvhc.record import lock

    os.makedirs(node.directory)
    with lock.held(f"{node.directory}/{diagnose.LOCK}", patient.PROCESS_S):
        assert "a diagnostic or another search is running" in node.isolate(code=2)


def test_nobody_is_drained_or_excluded(node: Node) -> None:
    node.fault(kind="gpu", at="g2")
    node.isolate(code=1)
    assert not [call for call in node.site.calls() if call.startswith(("update", "create"))]
    with node.site.ledger() as ledger:
        assert ledger.exclusions() == ()


# -- interrupted -------------------------------------------------------------------


def until(probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + patient.PROCESS_S
    while not (found := probe()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_told_to_stop_it_ends_its_commands_and_goes_on_later(node: Node, number: int) -> None:
    pids, slow = node.site.root / "pids", node.site.root / "slow"
    slow.touch()
    script = node.script(f'[ -e {slow} ] && [ "$(echo "$CUDA_VISIBLE_DEVICES" | tr -cd , | wc -c)" -gt 0 ] && '
                         f'{{ sleep 1000 & echo $! >>{pids}; echo $$ >>{pids}; wait; }}; exec "$@"')  # fmt: skip
    node.write_policy(traffic=list(script))
    where = ["--config", str(node.site.config), "--state", str(node.site.root / "state"), "--run", str(node.site.root / "run")]
    command = [sys.executable, "-m", "slurm_nvhc.cli.main", "isolate", *where, "--node", "n1"]
    env = {**os.environ, "SLURM_CONF": str(node.site.slurm_conf)}
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    child.send_signal(number)
    _out, err = child.communicate(timeout=patient.PROCESS_S)
    assert child.returncode == 3
    assert err.splitlines()[-1] == "nvhc: interrupted: its commands were ended, 2 steps are kept; the same command goes on after them"
    left = [int(pid) for pid in pids.read_text().split() if alive(int(pid))]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
    slow.unlink()
    text = node.isolate()
    assert "goes on after 2 steps of an interrupted search" in text
    assert "nothing found in 3 traffic steps" in text


# -- the swap test -----------------------------------------------------------------


def exchange(node: Node) -> None:
    """Cards of slots 3 and 5 of the board change places, and the node is booted."""
    with node.site.edit() as world:
        three, five = world.gpus[3].identity, world.gpus[5].identity
        world.identify("g3", uuid="GPU-aside")
        world.identify("g5", uuid=three.uuid, serial=three.serial)
        world.identify("g3", uuid=five.uuid, serial=five.serial)
        world.reboot()


@pytest.mark.parametrize(
    ("now", "how"), [("g5.link11", "followed"), ("g3.link11", "stayed"), ("", "gone"), ("g0.link1", "elsewhere")]
)
def test_followed_the_card_or_stayed_with_the_slot(node: Node, now: str, how: str) -> None:
    node.fault(kind="link", at="g3.link11")
    node.isolate(code=1)
    exchange(node)
    node.fault(kind="none")
    if now:
        node.fault(kind="link", at=now)
    document = node.isolate_json("--swapped", "gpu3,gpu5", code=1 if now else 0)
    assert [moved["how"] for moved in document["swapped"]["moved"]] == [how]


def test_cards_that_were_not_exchanged_are_refused_before_anything_runs(node: Node) -> None:
    node.fault(kind="link", at="g3.link11")
    before = node.site.root / "before.json"
    before.write_text(json.dumps(node.isolate_json(code=1)))
    done = node.site.command("isolate", "--swapped", "gpu3,gpu5", "--before", str(before))
    assert done.returncode == 2
    assert "was not exchanged" in done.stderr
    assert "step 1" not in done.stderr
    exchange(node)
    text = node.isolate("--swapped", "gpu3,gpu5", "--before", str(before), code=1)
    assert "STAYED WITH THE SLOT" in text
