"""Steps of `nvhc isolate` on a simulated node: what runs, what is read around it, what is kept, and what stops it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Iterator

import patient
import pytest
from isolate_site import Node

from slurm_nvhc import ground
from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.isolate import counted, run, show, state
from slurm_nvhc.isolate.model import ALONE, IDLE, TRAFFIC, Group, Seen, Step
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.sense.sim.world import World


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def one_step(node: Node, step: Step, command: tuple[str, ...] = (), timeout_s: float = 100.0) -> Seen:
    context = node.context()
    try:
        before = run.look(context)
        return run.do(context, node.orders(command, timeout_s), step, 1, before, node.uuids)
    finally:
        context.book.close()


def pairs(node: Node, *groups: str) -> Step:
    return Step(TRAFFIC, tuple(tuple(node.uuids[int(i)] for i in group) for group in groups))


# -- one step ----------------------------------------------------------------------


def test_growth_is_read_around_the_traffic(node: Node) -> None:
    node.do("add", target="g3.link11.replay", amount=7)  # before it
    node.fault(kind="link", at="g3.link11", per_second=2)
    node.do("kernel_line", text="NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: old")
    seen = one_step(node, pairs(node, "0123", "4567"))
    link = f"{node.uuids[3]}/link11"
    assert seen.growth[link] == {"nvlink_replay": 60}
    assert seen.growth[node.uuids[3]] == {"nvlink_replay_total": 60}
    assert sorted(k.partition(":")[0][:6] for k in seen.growth) == sorted([node.uuids[3][:6]] * 2 + ["switch"])
    assert [group.ok for group in seen.groups] == [True, True]
    assert seen.groups[0].said == "moved data for 30 s, all of it arrived"
    assert (seen.seconds, dict(seen.unread), seen.events) == (30.0, {}, ())


def test_a_command_that_fails_leaves_its_last_words(node: Node) -> None:
    node.fault(kind="pair", at="g1+g2")
    seen = one_step(node, pairs(node, "12", "56"))
    assert [group.ok for group in seen.groups] == [False, True]
    assert seen.groups[0].said == "traffic: the data that arrived is not the data that was sent"


def test_idle_reads_twice_and_lets_the_time_pass(node: Node) -> None:
    node.do("schedule", at_s=10, change={"op": "add", "target": "g2.link0.crc_flit", "amount": 4})
    seen = one_step(node, Step(IDLE, ()))
    assert seen.growth[f"{node.uuids[2]}/link0"] == {"nvlink_crc_flit": 4}
    assert (seen.groups, seen.seconds) == ((), 30.0)


def test_what_the_kernel_logs_meanwhile_is_told_by_place(node: Node) -> None:
    for change in (
        {"op": "xid", "gpu": "g3", "code": 74},
        {"op": "sxid", "switch": 0, "code": 20034, "fatal": True, "link": 7},
    ):
        node.do("schedule", at_s=5, change=change)
    seen = one_step(node, pairs(node, "01"))
    assert seen.events == (f"Xid 74 on {node.uuids[3]}", "SXid 20034 on switch:0000:c1:00.0/port7")


def test_groups_run_at_the_same_time_with_nothing_but_their_gpus(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_X", "1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    root = node.site.root
    # Each waits for the other: one after the other they would never end.
    command = node.script(f"""me={root}/$(echo "$CUDA_VISIBLE_DEVICES" | md5sum | cut -c1-8); env >$me.env; touch $me.here
while [ $(ls {root}/*.here | wc -l) -lt 2 ]; do sleep 0.01; done; ps -o pgid= -p $$ >$me.pgid""")
    seen = one_step(node, pairs(node, "01", "23"), command)
    assert [group.ok for group in seen.groups] == [True, True]
    environments = [dict(line.split("=", 1) for line in f.read_text().splitlines()) for f in root.glob("*.env")]
    assert sorted(e["CUDA_VISIBLE_DEVICES"] for e in environments) == sorted(",".join(node.uuids[i] for i in g) for g in ((0, 1), (2, 3)))
    for env in environments:
        assert set(env) - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LC_ALL", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVHC_STEP"}
    groups = {f.read_text().strip() for f in root.glob("*.pgid")}
    assert len(groups | {str(os.getpgrp())}) == 3


@pytest.mark.parametrize(
    ("script", "ok", "said"),
    [
        ("echo first; echo last words; exit 0", True, "last words"),
        ("echo out; echo err >&2; exit 3", False, "err"),
        ("exit 3", False, "exit status 3"),
        ("kill -SEGV $$", False, "exit status -11"),
        ("kill -KILL $$", None, "it was killed"),
        ("exit 127", None, "it could not be run"),
        ("printf 'a\\033[31mb\\n'; exit 1", False, "a [31mb"),
    ],
)
def test_how_a_command_ends(node: Node, script: str, ok: bool | None, said: str) -> None:
    seen = one_step(node, pairs(node, "01"), node.script(script))
    assert seen.groups == (Group(tuple(node.uuids[:2]), ok, said),)


def test_a_command_that_does_not_end_is_ended_with_its_children(node: Node) -> None:
    pids = node.site.root / "pids"
    command = node.script(f"sleep 1000 & echo $! >>{pids}; echo $$ >>{pids}; wait")
    seen = one_step(node, pairs(node, "01"), command, timeout_s=1.0)
    assert seen.groups[0].ok is None
    assert seen.groups[0].said == "it did not end within 1 s"
    gone([int(word) for word in pids.read_text().split()])


def gone(pids: list[int]) -> None:
    deadline = time.monotonic() + patient.PROCESS_S
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_placeholders_and_programs() -> None:
    rows = [GpuIdentity("GPU-a", dcgm_id=4), GpuIdentity("GPU-b", dcgm_id=6)]
    words = ["x", "-g", "{gpus}", "t={seconds}", "{uuids}", "-i{dcgm_ids}", "{other}", "{}"]
    assert run.placeholders(words, rows, 29.6) == ["x", "-g", "2", "t=30", "GPU-a,GPU-b", "-i4,6", "{other}", "{}"]
    assert run.resolved(("env", "X=1"), "--traffic") == ("/usr/bin/env", "X=1")
    for wrong in (("no-such-program",), ("/nowhere/x",), ("/etc/passwd",)):
        with pytest.raises(InputError, match="is no program that can be run"):
            run.resolved(wrong, "--traffic")


def test_a_single_gpu_may_have_a_command_of_its_own(node: Node) -> None:
    orders = node.orders(node.script("exit 1"))._replace(alone=("/bin/true",))
    context = node.context()
    seen = run.do(context, orders, Step(ALONE, ((node.uuids[0],), (node.uuids[1],))), 1, run.look(context), node.uuids)
    assert [group.ok for group in seen.groups] == [True, True]
    context.book.close()


# -- what counted ------------------------------------------------------------------


def snapshot(world: World, path: Path) -> Snapshot:
    from slurm_nvhc.policy.compiled import Engine
    from slurm_nvhc.sense.client import read_snapshot

    world.save(str(path))
    return read_snapshot("n1", Engine("sim", world=str(path)), patient.READ_S)


def counted_between(tmp_path: Path, *operations: dict[str, Any], before: tuple[dict[str, Any], ...] = ()) -> tuple[Any, World]:
    world = World.preset("hgx-h100-8")
    for operation in before:
        world.apply(operation)
    first = snapshot(world, tmp_path / "a")
    world.advance(10)
    for operation in operations:
        world.apply(operation)
    second = snapshot(world, tmp_path / "b")
    return counted.between(first, second, [gpu.identity.uuid for gpu in world.gpus[:4]]), world


def test_only_error_counters_of_the_gpus_that_are_searched(tmp_path: Path) -> None:
    got, world = counted_between(
        tmp_path,
        {"op": "add", "target": "g1.link2.replay", "amount": 5},
        {"op": "add", "target": "g6.link2.replay", "amount": 5},
        {"op": "add", "target": "g1.power_violation_ns", "amount": 10**9},
        {"op": "add", "target": "rdma0.port1.symbol_errors", "amount": 5},
        {"op": "add", "target": "switch0.port3.crc_flit", "amount": 2},
    )
    one = world.gpus[1].identity.uuid
    assert got.growth == {
        one: {"nvlink_replay_total": 5},
        f"{one}/link2": {"nvlink_replay": 5},
        "switch:0000:c1:00.0/port3": {"port_crc_flit": 2},
    }
    assert got.unread == {}


def test_no_data_and_a_reset_are_unread_and_not_clean(tmp_path: Path) -> None:
    got, world = counted_between(
        tmp_path,
        {"op": "set", "target": "g0.link4.replay", "value": "blank"},
        {"op": "gpu_reset", "gpu": "g1"},
        {"op": "add", "target": "g1.link5.replay", "amount": 3},
        {"op": "lose", "gpu": "g2"},
        before=({"op": "add", "target": "g1.link5.replay", "amount": 9},),
    )
    zero, one, two = (world.gpus[i].identity.uuid for i in range(3))
    assert got.unread[f"{zero}/link4"] == "replay: blank at the end"
    assert got.unread[f"{one}/link5"] == "replay: counters were reset"
    assert got.unread[two] == got.unread[f"{two}/link0"] == counted.GONE
    assert f"{one}/link5" not in got.growth
    assert f"{zero}/link5" not in got.unread


def test_a_counter_that_never_gives_data_does_not_hide_the_others(tmp_path: Path) -> None:
    blank = ({"op": "set", "target": "g0.link4.recovery", "value": "blank"}, {"op": "set", "target": "g0.pcie_replay", "value": "blank"})
    got, world = counted_between(tmp_path, {"op": "add", "target": "g0.link4.replay", "amount": 3}, before=blank)
    assert got.growth[f"{world.gpus[0].identity.uuid}/link4"] == {"nvlink_replay": 3}
    assert got.unread == {}


def test_a_link_without_any_counter_is_unread(tmp_path: Path) -> None:
    names = [name for name in World.preset("hgx-h100-8").gpus[0].links[4] if name in counted.FIELDS]
    got, world = counted_between(tmp_path, before=tuple({"op": "set", "target": f"g0.link4.{n}", "value": "blank"} for n in names))
    assert got.unread == {f"{world.gpus[0].identity.uuid}/link4": "none of its error counters can be read"}


def test_a_link_that_goes_down_has_erred(tmp_path: Path) -> None:
    got, world = counted_between(
        tmp_path, {"op": "set", "target": "g0.link4.state", "value": "down"}, {"op": "set", "target": "switch1.port2.state", "value": 3}
    )
    assert got.growth == {f"{world.gpus[0].identity.uuid}/link4": {"nvlink_state": 1}, "switch:0000:c2:00.0/port2": {"port_state": 1}}
    assert got.unread == {}


def test_nothing_at_all_after_the_step(tmp_path: Path) -> None:
    got, _world = counted_between(tmp_path, {"op": "engine", "behaviour": "empty"})
    assert len([name for name in got.unread if name.startswith("GPU-")]) == 4 * 19
    assert got.growth == {}


# -- a whole search, and what stops it ---------------------------------------------------


def test_steps_are_kept_and_a_finished_search_is_one_of_the_last_ten(node: Node) -> None:
    outcome = node.search()
    assert outcome.stopped == ""
    kept = node.kept()
    assert kept.current is None
    assert kept.finished == (outcome.search,)
    assert outcome.search.ended_ns > outcome.search.started_ns > 0
    for _ in range(state.MOST_KEPT + 2):
        kept = kept.ended(outcome.search)
    assert len(kept.finished) == state.MOST_KEPT


def cut(node: Node, steps: int) -> None:
    """A search that came so far."""
    done = node.search().search
    state.save(node.directory, state.Kept(done._replace(seen=done.seen[:steps], ended_ns=0)))


def test_an_interrupted_search_goes_on(node: Node) -> None:
    cut(node, 2)
    lines: list[str] = []
    done = node.search(lines=lines).search
    assert lines[0] == "goes on after 2 steps of an interrupted search (--fresh begins anew)"
    assert lines[1].startswith("step 3: gpu0-7")
    assert [seen.step.kind for seen in done.seen] == [IDLE, ALONE, TRAFFIC, TRAFFIC, TRAFFIC]


OTHERS = [("reboot", "the node was booted since"), ("command", "its commands were others"), ("gpus", "it was about other GPUs")]


@pytest.mark.parametrize(("change", "why"), OTHERS)
def test_it_does_not_go_on_with_another_search(node: Node, change: str, why: str) -> None:
    cut(node, 2)
    orders = node.orders()
    if change == "reboot":
        node.do("reboot")
    elif change == "command":
        orders = orders._replace(seconds=31.0)
    else:
        node.do("set", target="g7.gpu_processes", value=1)
    context = node.context()
    begun = node.begin(context, orders)
    context.book.close()
    assert begun.search.seen == ()
    assert begun.notes == (f"an interrupted search of 2 steps is given up: {why}",)


def test_fresh_begins_anew(node: Node) -> None:
    cut(node, 2)
    context = node.context()
    assert node.begin(context).search.seen != ()
    begun = node.begin(context, fresh=True)
    context.book.close()
    assert (begun.search.seen, begun.notes) == ((), ())


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}', '{"schema": 1, "current": {"node": 1}, "finished": []}', "\x00"])
def test_a_damaged_file_is_set_aside(node: Node, text: str) -> None:
    cut(node, 2)
    (Path(node.directory) / state.FILE).write_text(text)
    lines: list[str] = []
    assert node.search(lines=lines).stopped == ""
    assert "can not be understood" in lines[0]
    assert [p.read_text() for p in Path(node.directory).glob("isolate.json.bad-*")] == [text]


def test_what_is_kept_comes_back_as_it_was(node: Node) -> None:
    node.fault(kind="connector", at="g3.link11")
    node.do("schedule", at_s=70, change={"op": "xid", "gpu": "g3", "code": 74})
    done = node.search().search
    assert state.search_from_json(state.search_to_json(done)) == done


def test_a_busy_gpu_and_one_in_mig_mode_are_left_out(node: Node) -> None:
    node.do("set", target="g7.gpu_processes", value=2)
    node.do("identify", gpu="g6", mig=True)
    context = node.context()
    begun = node.begin(context)
    context.book.close()
    assert begun.search.board.uuids == tuple(node.uuids[:6])
    assert begun.ground.skipped == {node.uuids[6]: "in MIG mode", node.uuids[7]: "busy: 2 processes compute on it"}


def test_no_gpu_can_be_used(node: Node) -> None:
    node.do("set", target="*.gpu_processes", value=2)
    context = node.context()
    with pytest.raises(InputError, match="no GPU of it can be used"):
        node.begin(context)
    context.book.close()


def test_refused_where_jobs_may_run(node: Node) -> None:
    context = node.context()
    node.drained.unlink()
    with pytest.raises(InputError, match="run it in an allocation"):
        node.begin(context)
    context.book.close()


def test_refused_while_a_diagnostic_is_marked(node: Node) -> None:
    context = node.context()
    with node.site.ledger() as ledger:
        ledger.put("diag_running", "{}")
    with pytest.raises(InputError, match="a diagnostic is running"):
        node.begin(context)
    context.book.close()


@contextlib.contextmanager
def when(step: int, doing: Any) -> Iterator[None]:
    """Do something as soon as so many steps are kept."""
    real = state.save

    def save(directory: str, kept: state.Kept) -> None:
        real(directory, kept)
        if kept.current is not None and len(kept.current.seen) == step:
            doing()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "save", save)
        yield


def test_the_ground_is_asked_for_before_every_step(node: Node) -> None:
    with when(2, node.drained.unlink):
        outcome = node.search()
    assert "jobs may start on it" in outcome.stopped
    assert len(outcome.search.seen) == 2
    assert node.kept().current == outcome.search


def test_a_gpu_that_is_gone_before_a_step_is_told(node: Node) -> None:
    with when(2, lambda: node.do("lose", gpu="g3")):
        outcome = node.search()
    assert outcome.lost == {node.uuids[3]: "is not seen by the engine since the last step"}
    assert outcome.stopped.startswith("gpu3 is not seen")


def test_a_gpu_that_falls_out_in_a_step_is_told(node: Node) -> None:
    node.do("schedule", at_s=65, change={"op": "lose", "gpu": "g3"})
    outcome = node.search()
    assert outcome.lost == {node.uuids[3]: "does not answer since step 3"}


def test_a_gpu_that_somebody_else_uses_ends_the_search(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "FREE_S", 0.1)
    with when(2, lambda: node.do("set", target="g3.gpu_processes", value=1)):
        outcome = node.search()
    assert "can not be used any more: busy" in outcome.stopped
    assert outcome.lost == {}


def test_a_command_that_works_on_no_gpu_is_not_a_gpus_fault(node: Node) -> None:
    outcome = node.search(node.orders(node.script("echo libcuda.so.1 is missing >&2; exit 1")))
    assert outcome.stopped == "the command works on no GPU, so it is not a GPU's fault: libcuda.so.1 is missing"
    assert len(outcome.search.seen) == 2
    lines: list[str] = []
    command = node.orders(node.script('exec "$@"'))  # mended, in the same place
    assert len(node.search(command, lines=lines).search.seen) == 5
    assert any("goes on after 1 step of" in line for line in lines), "what told nothing is done again"


def test_an_engine_that_does_not_answer_ends_the_search(node: Node) -> None:
    with when(1, lambda: node.do("engine", behaviour="absent")):
        outcome = node.search()
    assert "does not list the GPUs" in outcome.stopped
    assert len(outcome.search.seen) == 1
    context = node.context()
    with pytest.raises(MonitorError):
        node.begin(context)
    context.book.close()


# -- drawn -------------------------------------------------------------------------


def test_what_an_errors_row_names(node: Node) -> None:
    node.fault(kind="link", at="g3.link11")
    done = node.search().search
    what, results, errors = show.step_row(done.board, done.seen[2])
    assert (what, results.plain) == ("gpu0-7", "ok")
    assert errors.plain == "gpu3 link11 +150 replay; switch 0000:c3:00.0 port14 +150 port CRC flit"
    assert show.step_row(done.board, done.seen[1])[0] == "gpu0-7 each alone"


def test_heat_maps_stay_dark_where_the_fault_is(node: Node) -> None:
    node.fault(kind="pair", at="g1+g5")
    done = node.search().search
    pairs_ = show.pair_errors(done.board, done.seen)
    u = node.uuids
    assert pairs_[u[1], u[5]] == pairs_[u[5], u[1]] == 1
    assert sum(count == 0 for count in pairs_.values()) > len(pairs_) / 2
    node.fault(kind="none")
    node.fault(kind="link", at="g3.link11")
    done = node.search().search
    links = show.link_errors(done.board, done.seen)
    assert [link for link, count in links.items() if count] == [f"{u[3]}/link11"]
    assert [row[2] for row in show.link_map(done.board, done.seen)][3].startswith("link11 +")
    once, of_links = show.pair_errors(done.board, done.seen[2:3])[u[0], u[3]], show.link_errors(done.board, done.seen[2:3])
    assert once == sum(count or 0 for count in of_links.values()), "the GPU's total is not counted beside its links"


def test_a_pair_that_was_not_tried_or_gave_no_result_is_not_clean(node: Node) -> None:
    board = node.search().search.board
    u = node.uuids
    seen = [Seen(Step(TRAFFIC, ((u[0], u[1]), (u[2], u[3]))), (Group((u[0], u[1]), True), Group((u[2], u[3]), None)))]
    pairs_ = show.pair_errors(board, seen)
    assert (pairs_[u[0], u[1]], pairs_[u[2], u[3]], pairs_[u[0], u[2]]) == (0, None, None)
    blind = [seen[0]._replace(unread={f"{u[0]}/link0": "blank"})]
    assert show.pair_errors(board, blind)[u[0], u[1]] is None


def test_bars_and_numbers() -> None:
    assert [show.block(n, 10**6) for n in (0, 1, 10**3, 10**6)] == ["·", "▁", "▅", "█"] or show.block(1, 10**6) != show.block(10**6, 10**6)
    assert [show.short(n) for n in (951, 1234, 34_000, 5_600_000, 7 * 10**9)] == ["951", "1.2k", "34k", "5.6M", "7.0G"]
