"""The ledger's methods on a healthy file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import zlib
from typing import Any

import build
import pytest

from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Evidence, Finding
from slurm_nvhc.model.look import Look
from slurm_nvhc.model.protective import Ended, Exclusion, Intent, OwnDrain
from slurm_nvhc.model.reading import NoData
from slurm_nvhc.model.snapshot import GpuIdentity, GpuState
from slurm_nvhc.record import query
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run

DAY = build.DAY_NS
T0 = build.T0


@pytest.fixture
def folder(tmp_path: Any) -> str:
    return str(tmp_path / "state" / "n1")


@pytest.fixture
def ledger(folder: str) -> Any:
    with Ledger.open(folder, 5.0) as opened:
        yield opened


def run(**more: Any) -> Run:
    at_ns = more.pop("at_ns", T0)
    return Run(**{"hook": "epilog", "started_ns": at_ns, "ended_ns": at_ns, "verdict": "ok", **more})


def sql(folder: str, statement: str, *values: Any) -> list[Any]:
    conn = sqlite3.connect(os.path.join(folder, "ledger.sqlite3"), isolation_level=None)
    try:
        return conn.execute(statement, values).fetchall()
    finally:
        conn.close()


def test_open_makes_a_private_directory_and_file(folder: str) -> None:
    with Ledger.open(folder, 5.0) as ledger:
        ledger.put("a", "b")
        modes = {n: os.stat(os.path.join(folder, n)).st_mode & 0o777 for n in os.listdir(folder)}
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}
    assert ledger.restored == ""


def test_a_second_open_finds_everything_and_leaks_no_descriptor(folder: str) -> None:
    before = os.listdir("/proc/self/fd")
    for i in range(5):
        with Ledger.open(folder, 5.0) as ledger:
            assert ledger.get("n") == (str(i - 1) if i else "")
            ledger.put("n", str(i))
            assert ledger.restored == ""
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_exclusions(ledger: Ledger) -> None:
    first = Exclusion(build.uuid(1), "NVL-STORM", "link11", "nvhc", T0)
    ledger.exclude(first)
    ledger.exclude(Exclusion(build.uuid(2), "MEM-SRAM", "", "alice", T0 + 1))
    ledger.exclude(Exclusion(build.uuid(1), "XID-APP", "later", "nvhc", T0 + 2))
    assert ledger.exclusions()[0] == first
    assert len(ledger.exclusions()) == 2
    ended = Ended(first, "released", "alice", "repaired", T0 + 3)
    assert ledger.end_exclusion(ended) is True
    assert ledger.end_exclusion(ended) is False
    assert ledger.protective().ended == (ended,)
    assert [e.uuid for e in ledger.exclusions()] == [build.uuid(2)]


def test_own_drain(ledger: Ledger) -> None:
    assert ledger.own_drain() is None
    drain = OwnDrain("nvhc: NVL-STORM gpu3", T0, False, ("NVL-STORM GPU-1/link2",), ("e1",))
    ledger.set_own_drain(drain)
    assert ledger.own_drain() == drain
    ledger.set_own_drain(None)
    assert ledger.own_drain() is None


def test_intents_are_one_a_kind_and_reason(ledger: Ledger) -> None:
    ledger.add_intent(Intent("drain", "nvhc: a", T0, ("k1",), ("GPU-a|79|1",)))
    ledger.add_intent(Intent("drain", "nvhc: a", T0 + 9, ("k2", "k1"), ("GPU-a|79|1", "GPU-b|79|2")))
    ledger.add_intent(Intent("drain", "nvhc: b", T0 + 1))
    assert ledger.intents()[0] == Intent("drain", "nvhc: a", T0, ("k1", "k2"), ("GPU-a|79|1", "GPU-b|79|2"), 0)
    ledger.update_intent(ledger.intents()[0]._replace(tries=3))
    assert ledger.intents()[0].tries == 3
    ledger.end_intent(ledger.intents()[0])
    assert [i.reason for i in ledger.intents()] == ["nvhc: b"]


def test_an_ended_intent_does_not_come_back_by_an_update(ledger: Ledger) -> None:
    intent = Intent("drain", "nvhc: a", T0)
    ledger.add_intent(intent)
    ledger.end_intent(intent)
    ledger.update_intent(intent._replace(tries=1))
    assert ledger.intents() == ()


def test_a_lost_gpu_stays_known_and_a_swapped_one_goes(ledger: Ledger) -> None:
    ledger.remember_gpus(build.snapshot(build.gpu(0), build.gpu(1), build.gpu(2)))
    ledger.remember_gpus(build.snapshot(build.gpu(0), at_ns=T0 + 5))
    assert [g.uuid for g in ledger.known_gpus()] == [build.uuid(n) for n in (0, 1, 2)]
    swapped = build.gpu(1)._replace(identity=build.gpu(1).identity._replace(uuid="GPU-new", serial="s2"))
    ledger.remember_gpus(build.snapshot(build.gpu(0), swapped))
    assert [g.uuid for g in ledger.known_gpus()] == [build.uuid(0), "GPU-new", build.uuid(2)]
    assert ledger.forget_gpu(build.uuid(2)) is True
    assert ledger.forget_gpu(build.uuid(2)) is False
    assert len(ledger.known_gpus()) == 2


def test_a_gpu_moved_to_another_slot_is_the_same_gpu(ledger: Ledger) -> None:
    ledger.remember_gpus(build.snapshot(build.gpu(0)))
    moved = build.gpu(0)._replace(identity=build.gpu(0).identity._replace(pci="0000:99:00.0", slot="7"))
    ledger.remember_gpus(build.snapshot(moved))
    assert [(g.uuid, g.pci, g.slot) for g in ledger.known_gpus()] == [(build.uuid(0), "0000:99:00.0", "7")]


def test_what_a_lost_gpu_does_not_say_is_kept(ledger: Ledger) -> None:
    ledger.remember_gpus(build.snapshot(build.gpu(0)))
    lost = GpuState(GpuIdentity(build.uuid(0)), "lost", {}, {})
    ledger.remember_gpus(build.snapshot(lost, at_ns=T0 + 5))
    assert ledger.known_gpus() == (build.gpu(0).identity,)


def test_no_listing_is_not_an_empty_node(ledger: Ledger) -> None:
    ledger.remember_gpus(build.snapshot(build.gpu(0)))
    ledger.remember_gpus(build.snapshot()._replace(gpus=None))
    assert len(ledger.known_gpus()) == 1


def test_remembering_the_same_gpus_again_writes_no_mirror(ledger: Ledger, folder: str) -> None:
    ledger.remember_gpus(build.snapshot(build.gpu(0)))
    mirror = os.stat(os.path.join(folder, "protective.json"))
    ledger.remember_gpus(build.snapshot(build.gpu(0), at_ns=T0 + 5))
    assert os.stat(os.path.join(folder, "protective.json")).st_ino == mirror.st_ino


def test_baseline_pairs_by_job_and_run(ledger: Ledger) -> None:
    assert ledger.baseline("8") is None
    first = ledger.save_baseline("8", build.snapshot(build.gpu(0, gpu_temp=NoData("blank", "x"))))
    other = ledger.save_baseline("9", build.snapshot(build.gpu(1)))
    found = ledger.baseline("8")
    assert found == (first, build.snapshot(build.gpu(0, gpu_temp=NoData("blank", "x"))))
    ledger.end_baseline(first)
    assert ledger.baseline("8") is None
    assert ledger.baseline("9") is not None
    assert ledger.snapshot_of(first) == found[1]
    assert other != first


def test_a_requeued_job_never_sees_the_baseline_of_its_earlier_run(ledger: Ledger) -> None:
    ledger.save_baseline("8", build.snapshot(at_ns=T0))  # its epilog never came
    second = ledger.save_baseline("8", build.snapshot(at_ns=T0 + 9))
    found = ledger.baseline("8")
    assert found is not None
    assert (found[0], found[1].wall_ns) == (second, T0 + 9)
    ledger.end_baseline(second)
    assert ledger.baseline("8") is None


def test_last_seen(ledger: Ledger) -> None:
    assert ledger.last_seen() is None
    ledger.save_last_seen(build.snapshot(build.gpu(0)))
    ledger.save_last_seen(build.snapshot(build.gpu(1), at_ns=T0 + 1))
    assert ledger.last_seen() == build.snapshot(build.gpu(1), at_ns=T0 + 1)


def test_fold_memory(ledger: Ledger) -> None:
    assert ledger.fold_memory(lambda m, look: (m == {}, {"a": [1, None, "\udc80\x00"]}, look)) is True
    assert ledger.fold_memory(lambda m, look: (m, m, look)) == {"a": [1, None, "\udc80\x00"]}


def test_fold_memory_writes_nothing_when_the_function_fails(ledger: Ledger) -> None:
    ledger.fold_memory(lambda m, look: (None, {"a": 1}, look))

    def broken(memory: dict[str, Any], look: Any) -> tuple[None, dict[str, Any], Any]:
        memory["a"] = 2
        raise KeyError("judge")

    with pytest.raises(KeyError):
        ledger.fold_memory(broken)
    assert ledger.fold_memory(lambda m, look: (m, m, look)) == {"a": 1}
    with pytest.raises(MonitorError, match="memory: can not be kept"):
        ledger.fold_memory(lambda m, look: (None, {"a": object()}, look))
    assert ledger.fold_memory(lambda m, look: (m, m, look)) == {"a": 1}


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, 7, "text", None])
def test_a_memory_that_can_not_be_read_is_empty_and_said(ledger: Ledger, folder: str, raw: Any) -> None:
    ledger.fold_memory(lambda m, look: (None, {"a": 1}, look))
    ledger.put("k", "v")
    if raw is None:
        sql(folder, "DELETE FROM state WHERE key = 'memory'")
    else:
        sql(folder, "UPDATE state SET value = ? WHERE key = 'memory'", raw)
    assert ledger.fold_memory(lambda m, look: (m, {"b": 2}, look)) == {}
    assert len(ledger.damaged) == (raw is not None)
    assert ledger.fold_memory(lambda m, look: (m, m, look)) == {"b": 2}
    assert ledger.get("k") == "v"


LOOK = Look(T0, 5, "boot-1", "575.57", None, {"GPU-1/link0": {"nvlink_replay": 7}}, {"GPU-1/link0": {"nvlink_replay": (T0 - 1, 4)}})


def test_the_last_look_is_kept_beside_the_memory(ledger: Ledger) -> None:
    assert ledger.fold_memory(lambda m, look: (look, {"a": 1}, LOOK)) is None
    assert ledger.fold_memory(lambda m, look: (look, m, None)) == LOOK  # none to remember: the last one stays
    assert ledger.fold_memory(lambda m, look: (look, m, look)) == LOOK


def test_memory_and_look_are_written_together_or_not_at_all(ledger: Ledger) -> None:
    ledger.fold_memory(lambda m, look: (None, {"a": 1}, LOOK))
    with pytest.raises(MonitorError):
        ledger.fold_memory(lambda m, look: (None, {"a": object()}, LOOK._replace(boot_ns=6)))
    assert ledger.fold_memory(lambda m, look: ((m, look), m, look)) == ({"a": 1}, LOOK)


@pytest.mark.parametrize("raw", [b"", b"junk", zlib.compress(b"[]"), zlib.compress(b'{"schema": 9}'), zlib.compress(b'{"schema": 1}'), 7])
def test_a_look_that_can_not_be_read_is_none_and_said(ledger: Ledger, folder: str, raw: Any) -> None:
    ledger.fold_memory(lambda m, look: (None, {"a": 1}, LOOK))
    sql(folder, "UPDATE state SET value = ? WHERE key = 'last_look'", raw)
    assert ledger.fold_memory(lambda m, look: ((m, look), m, LOOK)) == ({"a": 1}, None)
    assert [said.partition(":")[0] for said in ledger.damaged] == ["last look"]
    assert ledger.fold_memory(lambda m, look: (look, m, look)) == LOOK


def test_notes(ledger: Ledger) -> None:
    assert ledger.get("cursor") == ""
    ledger.put("cursor", "12\udcff,\x00\n")
    ledger.put("cursor", "13\udcff,\x00\n")
    assert ledger.get("cursor") == "13?,\x00\n"


def test_runs_come_back_as_they_were(ledger: Ledger) -> None:
    evidence = Evidence("nvlink_replay", 0, 21200)
    finding = Finding("NVL-STORM", f"{build.uuid(3)}/link11", "link", "fail", "m", evidence, {"pci": "x"}, idents=("e",))
    change = Change(f"{build.uuid(2)}/link1", "nvlink_replay", NoData("blank"), 7, "unknown", None, 2.5, "blank before")
    given = run(
        job_id="8812",
        user="ada",
        partition="gpu",
        gpus=(build.uuid(1),),
        policy_hash="h",
        snapshot=build.snapshot(build.gpu(1)),
        before_run=1,
        changes=(change,),
        findings=(finding,),
        decision={"verdict": "fail"},
        steps=({"do": "drain"},),
        outcome={"done": True},
        exit_code=97,
        verdict="fail",
    )
    number = ledger.record_run(given)
    assert ledger.runs_of_job("8812") == (given._replace(id=number, snapshot=None),)
    assert ledger.snapshot_of(number) == given.snapshot
    for n in (1, 2, 3):  # the job's GPU, a change's, a finding's
        assert [r.id for r in ledger.runs_of_gpu(build.uuid(n), 9)] == [number]
    assert ledger.runs_of_gpu(build.uuid(4), 9) == ()


def test_runs_not_ok_are_found_behind_any_number_of_clean_ones(ledger: Ledger) -> None:
    bad = [ledger.record_run(run(job_id=str(n), verdict=verdict)) for n, verdict in enumerate(("fail", "warn", "unknown"))]
    for n in range(20):
        ledger.record_run(run(job_id=f"9{n}", verdict="ok"))
    assert [r.id for r in ledger.runs_not_ok(9)] == bad[::-1]
    assert [r.id for r in ledger.runs_not_ok(2)] == bad[:0:-1]


def test_lists_are_newest_first_and_bounded(ledger: Ledger) -> None:
    ids = [ledger.record_run(run(hook="epilog" if i % 2 else "prolog", job_id=str(i), gpus=("GPU-a",))) for i in range(5)]
    assert [r.id for r in ledger.recent_runs(3)] == ids[:1:-1]
    assert [r.id for r in ledger.runs_of_gpu("GPU-a", 2)] == ids[:2:-1]
    last = ledger.last_run("epilog")
    assert last is not None
    assert last.id == ids[3]
    assert ledger.last_run("health_check") is None
    assert ledger.snapshot_of(ids[0]) is None
    assert ledger.snapshot_of(10**30) is None


def test_of_the_runs_in_a_time_the_worst_are_taken_first(ledger: Ledger, monkeypatch: Any) -> None:
    def keep(hook: str, at_ns: int, verdict: str) -> None:
        ledger.record_run(Run(hook=hook, started_ns=at_ns, ended_ns=at_ns, verdict=verdict))

    keep("health_check", T0 - 1, "fail")
    keep("prolog", T0, "fail")
    for minute in range(1, 4):
        keep("health_check", T0 + minute, "ok")
    keep("health_check", T0 + 4, "warn")
    keep("health_check", T0 + 5, "ok")
    keep("health_check", T0 + 6, "fail")
    within = [run.ended_ns - T0 for run in ledger.runs_within(T0, T0 + 5)]
    assert within == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(query, "MOST_WITHIN", 3)
    assert [run.ended_ns - T0 for run in ledger.runs_within(T0, T0 + 5)] == [0, 4, 5]


def test_a_prolog_finishes_the_row_of_its_baseline(ledger: Ledger) -> None:
    key = ledger.save_baseline("8", build.snapshot(build.gpu(0)))
    assert ledger.recent_runs(9) == ()  # a prolog killed here is no run that said anything
    assert ledger.record_run(run(hook="prolog", job_id="8", id=key)) == key
    assert [r.id for r in ledger.recent_runs(9)] == [key]
    assert ledger.snapshot_of(key) == build.snapshot(build.gpu(0))
    assert ledger.baseline("8") is not None  # the job runs on
    assert ledger.record_run(run(hook="prolog", job_id="8", id=key)) != key  # once finished, never overwritten
    assert ledger.record_run(run(hook="prolog", job_id="9", id=key)) != key


def test_hostile_text_and_numbers_are_kept_somehow(ledger: Ledger) -> None:
    nasty = "a\nb\x00\udcff'; DROP TABLE runs;--" + "x" * 100_000
    hostile = run(job_id=nasty, user=nasty, gpus=(nasty,), started_ns=10**40, exit_code=-(10**40), decision={"o": object()})
    number = ledger.record_run(hostile)
    assert [r.id for r in ledger.runs_of_job(nasty)] == [number]
    assert ledger.runs_of_job(nasty)[0].started_ns == 2**63 - 1
    ledger.exclude(Exclusion(nasty, nasty, nasty, nasty, 10**40))
    assert ledger.exclusions()[0].uuid == nasty


def test_a_run_that_json_can_not_say_is_one_line(ledger: Ledger) -> None:
    loop: dict[str, Any] = {}
    loop["x"] = loop
    with pytest.raises(MonitorError, match="run of epilog: can not be kept"):
        ledger.record_run(run(outcome=loop))
    assert ledger.recent_runs(1) == ()


@pytest.mark.parametrize("column", ["body", "snapshot"])
@pytest.mark.parametrize("raw", [b"", b"junk", "text", 5, None])
def test_damaged_rows_are_no_data(ledger: Ledger, folder: str, column: str, raw: Any) -> None:
    number = ledger.record_run(run(job_id="8", snapshot=build.snapshot(build.gpu(0)), verdict="fail"))
    sql(folder, f"UPDATE runs SET {column} = ?, open = 1", raw)
    if column == "body":
        assert [(r.id, r.verdict, r.findings) for r in ledger.recent_runs(1)] == [(number, "fail", ())]
        assert len(ledger.damaged) == 1
    else:
        assert ledger.snapshot_of(number) is None
        assert ledger.baseline("8") is None
        assert len(ledger.damaged) == (0 if raw is None else 2)


def test_a_compressed_bomb_is_no_data(ledger: Ledger, folder: str) -> None:
    import zlib

    number = ledger.record_run(run())
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(b" " * 2**20) for _ in range(65)) + packer.flush()
    sql(folder, "UPDATE runs SET snapshot = ?", bomb)
    assert ledger.snapshot_of(number) is None
    assert "too large" in ledger.damaged[0]


def test_prune_keeps_what_is_needed(ledger: Ledger) -> None:
    old = ledger.record_run(run(at_ns=T0 - 40 * DAY, job_id="old", gpus=("GPU-a",)))
    before = ledger.record_run(run(at_ns=T0 - 35 * DAY, job_id="before"))
    after = ledger.record_run(run(at_ns=T0 - DAY, before_run=before))
    long_job = ledger.save_baseline("long", build.snapshot(at_ns=T0 - 50 * DAY))
    gone_job = ledger.save_baseline("gone", build.snapshot(at_ns=T0 - 95 * DAY))
    ledger.exclude(Exclusion("GPU-a", "X", "", "nvhc", 1))
    ledger.fold_memory(lambda m, look: (None, {"a": 1}, look))
    assert ledger.prune(30.0, T0) == 2
    assert [r.id for r in ledger.recent_runs(9)] == [after, before]
    assert ledger.runs_of_gpu("GPU-a", 9) == ()
    assert ledger.snapshot_of(gone_job) is None
    assert ledger.baseline("long") is not None
    assert (old, long_job) == (1, 4)
    assert ledger.exclusions()
    assert ledger.fold_memory(lambda m, look: (m, m, look)) == {"a": 1}
    assert ledger.prune(30.0, T0) == 0


def test_a_run_counts_from_its_end(ledger: Ledger) -> None:
    ledger.record_run(run(started_ns=T0 - 40 * DAY, ended_ns=T0))  # the epilog of a long job
    assert ledger.prune(30.0, T0 + DAY) == 0


def test_a_chain_of_health_checks_is_pruned(ledger: Ledger) -> None:
    previous = None
    for i in range(10):
        previous = ledger.record_run(run(hook="health_check", at_ns=T0 - (10 - i) * DAY, before_run=previous))
    assert ledger.prune(4.5, T0) == 5  # of the six older ones, the last is what the first kept one was measured from
    assert len(ledger.recent_runs(99)) == 5


def test_prune_goes_in_small_steps_and_gives_space_back(ledger: Ledger, folder: str) -> None:
    blob = {"x": [os.urandom(500).hex() for _ in range(40)]}
    for _ in range(30):
        ledger.record_run(run(at_ns=T0 - 40 * DAY, outcome=blob))
    pages = sql(folder, "PRAGMA page_count")[0][0]
    assert [ledger.prune(30.0, T0, limit=20) for _ in range(3)] == [20, 10, 0]
    assert sql(folder, "PRAGMA page_count")[0][0] < pages / 2


@pytest.mark.parametrize("keep_days", [float("nan"), float("inf"), -1.0, 1e300])
def test_prune_with_nonsense_deletes_nothing(ledger: Ledger, keep_days: float) -> None:
    ledger.record_run(run(at_ns=1))
    assert ledger.prune(keep_days, T0) == 0


def test_prune_removes_what_a_killed_writer_of_the_mirror_left(ledger: Ledger, folder: str) -> None:
    left = os.path.join(folder, ".protective.json.123.new")
    open(left, "w").close()
    ledger.prune(30.0, T0)
    assert not os.path.exists(left)


def test_a_locked_ledger_is_one_line_within_the_timeout(folder: str) -> None:
    with Ledger.open(folder, 0.2) as ledger:
        holder = sqlite3.connect(os.path.join(folder, "ledger.sqlite3"), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(MonitorError, match="locked") as caught:
            ledger.put("a", "b")
        assert "\n" not in str(caught.value)
        assert ledger.get("a") == ""  # reading goes on
        holder.execute("ROLLBACK")
        holder.close()
        ledger.put("a", "b")


def test_a_closed_ledger_says_so(folder: str) -> None:
    ledger = Ledger.open(folder, 0.2)
    ledger.close()
    ledger.close()
    with pytest.raises(MonitorError, match="closed"):
        ledger.get("a")


def test_another_thread_gets_an_error_of_ours(ledger: Ledger) -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            ledger.get("a")
        except BaseException as exc:
            caught.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(caught[0], MonitorError)


def test_light_imports() -> None:
    code = (
        "import sys; import slurm_nvhc.record.ledger;"
        "print(sorted({'dataclasses','logging','argparse','subprocess','msgspec','yaml','jinja2','pathlib','tempfile','shutil','inspect'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_mirror_is_plain_json(ledger: Ledger, folder: str) -> None:
    ledger.exclude(Exclusion("GPU-a", "X", "why", "nvhc", 1))
    with open(os.path.join(folder, "protective.json"), encoding="ascii") as file:
        document = json.load(file)
    assert document["schema"] == 2
    assert document["exclusions"][0]["uuid"] == "GPU-a"
