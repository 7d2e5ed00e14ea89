"""Parts that vanished, and resets of parts, as judge sees them."""

from __future__ import annotations

from typing import Any

import pytest
from build import gpu, later, policy, rule, run, snapshot, uuid, verdicts, with_link

from slurm_nvhc.judge.context import Input, Window
from slurm_nvhc.judge.learn import lesson
from slurm_nvhc.judge.parts import with_absent
from slurm_nvhc.model.reading import BLANK, NoData
from slurm_nvhc.model.snapshot import GpuState, Snapshot
from slurm_nvhc.policy.compiled import Level

NODE: dict[str, dict[str, Any]] = {"node": {"kernel_release": "6.8"}}
PORT = {"rdma:mlx5_0/port1": {"rdma_state": 4}, "rdma:mlx5_1/port1": {"rdma_state": 4}}
SWITCHES = {f"switch:0000:c{i}:00.0": {"switch_state": 1} for i in (1, 2)}
ONE_SWITCH = {"switch:0000:c1:00.0": {"switch_state": 1}}
DOWN = policy(rule("rdma_down", "rdma_state", fail=Level(value_is=(0, 1))), rule("switch_gone", "switch_state", fail=Level(value_is=(0,))))

WATCH = Window("watch", "w", None, 0, 0.0, "w")


def node(**parts: Any) -> Snapshot:
    return snapshot(gpu(0), parts={k: v for group in parts.values() for k, v in group.items()})


def absent(now: Snapshot, before: Snapshot | None = None, learned: Any = None) -> set[str]:
    inp = Input("health_check", now, before, (), Window("watch", "w", None, now.wall_ns, 0.0, "w"), DOWN, learned=learned or {})
    return {name for name, r in with_absent(inp).items() if r.get("rdma_state") == 0 or r.get("switch_state") == 0}


def test_what_was_there_at_the_windows_start_is_missed() -> None:
    before = node(n=NODE, p=PORT, s=SWITCHES)
    assert absent(before, before) == set()
    one = {"rdma:mlx5_1/port1": {"rdma_state": 4}}
    assert absent(node(n=NODE, p=one, s=SWITCHES), before) == {"rdma:mlx5_0/port1"}
    assert absent(node(n=NODE, p=PORT, s=ONE_SWITCH), before) == {"switch:0000:c2:00.0"}


def test_what_was_learned_is_missed_without_any_window() -> None:
    learned = {**PORT, **SWITCHES, "GPU-a": {"vbios": "1"}, "node": {"nvidia_driver": "575"}}
    one = {"rdma:mlx5_1/port1": {"rdma_state": 4}}
    assert absent(node(n=NODE, p=one, s=ONE_SWITCH), None, learned) == {"rdma:mlx5_0/port1", "switch:0000:c2:00.0"}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (node(s=SWITCHES), "the kernel was not read"),
        (node(n=NODE, p=PORT), "the engine lists no switch at all"),
        (node(), "nothing was read"),
    ],
)
def test_silence_is_no_absence(now: Snapshot, why: str) -> None:
    before = node(n=NODE, p=PORT, s=SWITCHES)
    assert absent(now, before, {**PORT, **SWITCHES}) == set(), why


RENAMED = {"rdma:ibs0/port1": {"rdma_state": 4}, "rdma:ibs1/port1": {"rdma_state": 4}}


@pytest.mark.parametrize(
    ("now", "before", "says"),
    [
        (node(n=NODE), node(n=NODE, p=PORT), "is the driver of the adapters loaded?"),
        (node(n=NODE), node(n=NODE), "is the driver of the adapters loaded?"),
        (node(n=NODE, p=RENAMED), node(n=NODE, p=PORT), "2 under other names"),
        (node(n=NODE, p=RENAMED), node(n=NODE, p=RENAMED), "2 under other names"),
    ],
    ids=["driver unloaded", "and still", "renamed", "and still so"],
)
def test_all_rdma_ports_gone_at_once_are_one_word_and_no_faults(now: Snapshot, before: Snapshot, says: str) -> None:
    """Ports go by the name of their device: a rename makes all of them absent."""
    assert absent(now, before, PORT) == set()
    (found,) = run("health_check", now, DOWN, before, learned=PORT).findings
    assert (found.code, found.entity, found.verdict, found.action) == ("RDMA-NONE", "node", "warn", "none")
    assert says in found.message
    assert run("epilog", now, DOWN, before, learned=PORT, gpus=(0,)).findings == (), "told by health checks only"
    assert not any(name.startswith("rdma:") for name in lesson(Input("health_check", now, before, (), WATCH, DOWN, learned=PORT), ()))


def test_the_only_port_in_use_is_missed_beside_others_that_never_were() -> None:
    spare = {"rdma:mlx5_9/port1": {"rdma_state": 1}}
    one = {"rdma:mlx5_0/port1": {"rdma_state": 4}}
    now = node(n=NODE, p=spare)
    assert absent(now, node(n=NODE, p={**one, **spare}), one) == set(one)
    assert absent(now, now, one) == set(one)


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (gpu(0), True),
        (with_link(gpu(0), 1, nvlink_state="down"), True),
        (with_link(gpu(0), 1, nvlink_state="disabled"), False),
        (gpu(0, status="lost"), False),
        (gpu(1), False),
        (gpu(0)._replace(identity=gpu(0).identity._replace(mig=True)), False),
    ],
    ids=["in use", "down", "disabled", "lost", "not listed", "MIG"],
)
def test_a_port_whose_link_is_not_in_use_does_not_count(state: GpuState, counts: bool) -> None:
    place = "switch:0000:c1:00.0/port5"
    rules = policy(rule("port", "port_state", fail=Level(not_as_learned=True)))
    up = snapshot(gpu(0), parts={**ONE_SWITCH, place: {"port_state": 2, "port_remote": f"{uuid(0)}/link1"}})
    for readings in ({"port_state": 1, "port_remote": f"{uuid(0)}/link1"}, {"port_state": 1, "port_remote": NoData(BLANK)}):
        now = later(up, 60.0, state, parts={**ONE_SWITCH, place: readings})
        found = verdicts(run("health_check", now, rules, up, learned={place: {"port_state": 2}}))
        assert (("SITE-RULE", place) in found) is counts


def test_ports_of_a_switch_that_is_gone_are_not_judged_beside_it() -> None:
    with_port = {**SWITCHES, "switch:0000:c2:00.0/port5": {"port_state": 2}}
    assert absent(node(n=NODE, s=ONE_SWITCH), node(n=NODE, s=with_port)) == {"switch:0000:c2:00.0"}


def test_a_rule_about_the_state_finds_it_in_every_hook() -> None:
    before = node(n=NODE, p=PORT, s=SWITCHES)
    now = later(before, 60.0, parts={**NODE, **ONE_SWITCH, "rdma:mlx5_1/port1": {"rdma_state": 4}})
    for hook, gpus in (("health_check", None), ("epilog", (0,))):
        found = verdicts(run(hook, now, DOWN, before, gpus=gpus))
        assert found == {("SITE-RULE", "rdma:mlx5_0/port1"): "fail", ("SITE-RULE", "switch:0000:c2:00.0"): "fail"}


def test_a_part_that_was_reset_is_the_nodes_note_and_no_gpus() -> None:
    quiet = {"rdma:mlx5_0/port1": {"rdma_link_downed": 9}}
    before = node(n=NODE, p=quiet)
    now = later(before, 60.0, parts={**NODE, "rdma:mlx5_0/port1": {"rdma_link_downed": 1}})
    notes = [f for f in run("health_check", now, DOWN, before).findings if f.code == "COUNTER-RESET"]
    assert [(f.entity, f.gpu) for f in notes] == [("node", {})]
    assert "switch or RDMA port" in notes[0].message
