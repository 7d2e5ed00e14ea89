"""`nvhc screen`: what digests beside each other mean, and the command run on each GPU of a simulated node."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import build
import patient
import pytest
from hypothesis import given as hyp
from hypothesis import strategies as st
from site_ import Site

from slurm_nvhc import diagnose
from slurm_nvhc.policy.acting import Screen
from slurm_nvhc.proc import child
from slurm_nvhc.record import lock
from slurm_nvhc.screen import run
from slurm_nvhc.screen.compare import DIGEST, NO_RESULT, Key, Past, Subject, compare

KEY = Key("c0", "575.57", build.H100, "96.00")
SMALL = "0993ab166db83173890db2da1d88fddce7a8dcbd9bc6a3a4627096c455b8725c"  # of the example with --cpu --size 16 --rounds 8
EXAMPLE = Path(__file__).resolve().parents[1] / "etc/screen/gemm_digest.py"


def gpu(n: int, *digests: str, before: str = "", key: Key = KEY, past_key: Key = KEY, why: str = "") -> Subject:
    identity = build.gpu(n).identity
    return Subject(identity, key, digests, why, Past(before, past_key, build.T0) if before else None)


def verdicts(*subjects: Subject) -> list[str]:
    found = compare(subjects)
    return [found.verdicts[s.identity.uuid] for s in subjects]


def texts(*subjects: Subject) -> str:
    return "\n".join(f.message for f in compare(subjects).findings)


# --- what digests mean ----------------------------------------------------------------------

A2, B2 = ("a", "a"), ("b", "b")

MEANT: list[tuple[str, list[Subject], list[str]]] = [
    ("all the same", [gpu(n, *A2) for n in range(4)], ["ok"] * 4),
    ("the odd one of four, twice", [gpu(0, *A2), gpu(1, *A2), gpu(2, *B2), gpu(3, *A2)], ["ok", "ok", "fail", "ok"]),
    ("the odd one of three, seen once", [gpu(0, "a"), gpu(1, "b"), gpu(2, "a")], ["ok", "warn", "ok"]),
    ("two that differ", [gpu(0, *A2), gpu(1, *B2)], ["warn", "warn"]),
    ("no majority", [gpu(0, *A2), gpu(1, *A2), gpu(2, *B2), gpu(3, *B2)], ["warn"] * 4),
    ("three that all differ", [gpu(0, *A2), gpu(1, *B2), gpu(2, "c", "c")], ["warn"] * 3),
    ("two odd ones with the same digest", [*(gpu(n, *A2) for n in range(3)), gpu(3, *B2), gpu(4, *B2)], ["ok"] * 3 + ["warn"] * 2),
    ("two odd ones, each its own", [*(gpu(n, *A2) for n in range(3)), gpu(3, *B2), gpu(4, "c", "c")], ["ok"] * 3 + ["fail"] * 2),
    ("one that does not repeat itself, once wrong", [gpu(0, *A2), gpu(1, *A2), gpu(2, "a", "b")], ["ok", "ok", "warn"]),
    ("one that does not repeat itself, twice wrong", [gpu(0, *A2), gpu(1, *A2), gpu(2, "c", "b")], ["ok", "ok", "fail"]),
    ("one that is wrong at times, twice", [*(gpu(n, "a", "a", "a", "a") for n in range(3)), gpu(3, "a", "b", "a", "b")],
     ["ok"] * 3 + ["fail"]),
    ("one that does not repeat itself, and others that do and differ", [gpu(0, *A2), gpu(1, *B2), gpu(2, "c", "d")], ["warn"] * 3),
    ("one that does not, and one that does", [gpu(0, *A2), gpu(1, "a", "b")], ["ok", "warn"]),
    ("alone, and it does not repeat itself", [gpu(0, "a", "b")], ["warn"]),
    ("as many that do not as do", [gpu(0, *A2), gpu(1, *A2), gpu(2, "a", "b"), gpu(3, "a", "c")], ["ok", "ok", "warn", "warn"]),
    ("none repeats itself", [gpu(0, "a", "b"), gpu(1, "a", "c"), gpu(2, "d", "e")], ["unknown"] * 3),
    ("alone, twice", [gpu(0, *A2)], ["ok"]),
    ("alone, once", [gpu(0, "a")], ["unknown"]),
    ("alone, once, as before", [gpu(0, "a", before="a")], ["ok"]),
    ("alone, another than before", [gpu(0, *B2, before="a")], ["warn"]),
    ("one of four another than before, and as the others now", [gpu(0, *A2, before="b"), gpu(1, *A2, before="a"), gpu(2, *A2)],
     ["warn", "ok", "ok"]),
    ("two of three another than before, and as the others now",
     [gpu(0, *A2, before="b"), gpu(1, *A2, before="b"), gpu(2, *A2, before="a")], ["warn", "warn", "ok"]),
    ("all another than before", [gpu(0, *B2, before="a"), gpu(1, *B2, before="a"), gpu(2, *B2)], ["ok"] * 3),
    ("a new key", [gpu(0, *B2, before="a", past_key=KEY._replace(driver="570"))], ["ok"]),
    ("no result", [gpu(0, *A2), gpu(1, *A2), gpu(2, why="timeout")], ["ok", "ok", "unknown"]),
    ("no result of one run", [gpu(0, *A2), gpu(1, "a", why="exit status 1")], ["ok", "unknown"]),
    ("two models", [gpu(0, *A2), gpu(1, *A2), gpu(2, *B2, key=KEY._replace(model="H200")), gpu(3, *B2, key=KEY._replace(model="H200"))],
     ["ok"] * 4),
    ("another firmware is no other GPU", [gpu(0, *A2), gpu(1, *A2), gpu(2, *B2, key=KEY._replace(vbios="97"))], ["ok", "ok", "fail"]),
    ("nothing", [], []),
]  # fmt: skip


@pytest.mark.parametrize(("subjects", "expected"), [(s, e) for _, s, e in MEANT], ids=[name for name, _, _ in MEANT])
def test_what_digests_mean(subjects: list[Subject], expected: list[str]) -> None:
    assert verdicts(*subjects) == expected


def test_all_changed_at_once_is_said_of_the_node() -> None:
    subjects = [gpu(0, *B2, before="a"), gpu(1, *B2, before="a")]
    found = compare(subjects)
    (said,) = found.findings
    assert (said.entity, said.klass, said.verdict, said.code, found.verdict) == ("node", "node", "warn", DIGEST, "warn")
    assert "--forget" in said.message
    assert found.agreed == (), "what is held against them stays until an administrator says otherwise"


def test_a_command_that_is_not_deterministic_accuses_nobody() -> None:
    found = compare([gpu(0, "a", "b"), gpu(1, "c", "d")])
    assert {f.code for f in found.findings} == {NO_RESULT}
    assert found.agreed == ()
    assert "not deterministic" in found.findings[0].message


def test_a_finding_names_what_was_seen_and_claims_no_more() -> None:
    found = compare([gpu(0, *A2), gpu(1, *A2, before="a"), gpu(2, *B2, before="a")], 7, "hash")
    (said,) = found.findings
    assert (said.code, said.entity, said.verdict, said.action, said.policy) == (DIGEST, build.uuid(2), "fail", "none", "hash")
    assert said.evidence[:3] == ("", "a", "b, b")
    assert said.evidence.at_ns == 7
    assert "in all 2 runs, 2 others of its model a" in said.message
    assert "what other work it would spoil is not known" in said.message
    assert "gave a before" in said.message, "both things that speak against it, in one finding"
    assert found.agreed == (build.uuid(0), build.uuid(1))


def test_words() -> None:
    assert "b of gpu1 differ: one of them computes wrongly, which one is not known" in texts(gpu(0, *A2), gpu(1, *B2))
    assert "no digest has a majority" in texts(gpu(0, *A2), gpu(1, *B2), gpu(2, "c", "c"))
    assert "gpu4 gave the same as it" in texts(*(gpu(n, *A2) for n in range(3)), gpu(3, *B2), gpu(4, *B2))
    assert "run it again" in texts(gpu(0, "a"), gpu(1, "b"), gpu(2, "a"))
    assert texts(gpu(0, *A2), gpu(1, why="timeout")) == "no result: timeout"
    assert compare([gpu(0, *B2, before="a", past_key=KEY._replace(driver="570", vbios="1"))]).notes == (
        "gpu0 starts anew: what it gave before (2027-01-15T08:00:00Z) was with another driver and vbios",
    )


subjects_of = st.lists(st.lists(st.sampled_from("abc"), max_size=3), min_size=1, max_size=8).map(
    lambda rows: [gpu(n, *row, why="" if row else "timeout") for n, row in enumerate(rows)]
)


@hyp(subjects_of, st.randoms())
def test_the_order_of_gpus_does_not_matter(subjects: list[Subject], shuffle: random.Random) -> None:
    other = subjects[:]
    shuffle.shuffle(other)
    one, two = compare(subjects), compare(other)
    assert (one.verdict, one.verdicts, set(one.agreed)) == (two.verdict, two.verdicts, set(two.agreed))


@hyp(subjects_of)
def test_who_fails_stands_alone_twice_against_others_that_agree(subjects: list[Subject]) -> None:
    found = compare(subjects)
    for s in subjects:
        verdict, others = found.verdicts[s.identity.uuid], [o for o in subjects if o is not s]
        if not s.digests:
            assert verdict == "unknown"
        if verdict == "fail":
            assert len(s.digests) > 1
            assert len([o for o in others if o.steady]) >= 2
            assert not s.steady or all(o.steady != s.steady for o in others)
            right = Counter(o.steady for o in others if o.steady).most_common(1)[0][0]
            assert sum(digest != right for digest in s.digests) > 1
            assert s.identity.uuid not in found.agreed
    assert {f.entity for f in found.findings if f.code == DIGEST} <= {s.identity.uuid for s in subjects if s.digests}
    if found.verdict == "ok":
        assert len({digest for s in subjects for digest in s.digests}) == 1


@hyp(st.integers(3, 8), st.data())
def test_one_bad_gpu_among_good_ones_is_found_and_nobody_else(number: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, number - 1))
    gives = data.draw(st.sampled_from([("b", "b"), ("b", "c")]))
    found = compare([gpu(n, *(gives if n == bad else A2)) for n in range(number)])
    assert [u for u, v in found.verdicts.items() if v != "ok"] == [build.uuid(bad)]
    assert found.verdicts[build.uuid(bad)] == "fail"
    assert len(found.agreed) == number - 1


# --- the command ----------------------------------------------------------------------------


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "digest", "why"),
    [
        ("echo working; echo; echo '  f00d  '; echo", "f00d", ""),
        ("echo f00d; exit 3", "", "exit status 3: f00d"),
        ("echo f00d; echo out of memory >&2; exit 3", "", "exit status 3: out of memory"),
        ("kill -9 $$", "", "exit status -9"),
        ("echo f00d >&2", "", "it printed nothing"),
        ("printf 'a\\033[1mb\\n'", "", "the last line it printed is no digest: a?[1mb"),
        ("printf '%0201d\\n' 1", "", "the last line it printed is no digest: 0"),
        ("head -c 2000000 /dev/zero | tr '\\0' x; echo; echo f00d", "", "it printed more than a digest"),
    ],
)
def test_only_a_clean_end_with_one_line_is_a_result(tmp_path: Path, script: str, digest: str, why: str) -> None:
    given = Screen((program(tmp_path / "work", script),), patient.PROCESS_S)
    (answer,) = run.ask(given, [build.uuid(0)])
    assert answer.digest == digest
    assert answer.why.startswith(why)
    assert bool(answer.why) == bool(why)


def test_it_is_ended_at_its_time_limit_with_all_it_started(tmp_path: Path) -> None:
    given = Screen((program(tmp_path / "work", f"sleep 600 & echo $! >{tmp_path}/pid; echo f00d; wait"),), 0.5)
    assert run.ask(given, [build.uuid(0)])[0] == ("", "not ended within 0.5 s")
    pid = int((tmp_path / "pid").read_text())
    gone(pid)


def gone(pid: int) -> None:
    until = time.monotonic() + patient.PROCESS_S
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.02)
    raise AssertionError(f"{pid} still runs")


def test_a_clean_environment_with_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("LD_PRELOAD_OF_THE_CALLER", "x")
    given = Screen(("/usr/bin/env",), patient.PROCESS_S)
    seen = child.run(given.command, given.timeout_s, {"CUDA_VISIBLE_DEVICES": build.uuid(3)}).out.splitlines()
    assert sorted(line.partition("=")[0] for line in seen) == ["CUDA_VISIBLE_DEVICES", "LC_ALL", "PATH"]
    work = Screen((program(tmp_path / "work", 'echo "$CUDA_VISIBLE_DEVICES"'),), patient.PROCESS_S)
    assert run.ask(work, [build.uuid(3)])[0].digest == build.uuid(3)


def test_another_file_behind_the_same_words_is_another_command(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text("one")
    words = ("/usr/bin/python3", str(script), "--seed", "7")
    first = run.fingerprint(words)
    assert run.fingerprint(words) == first
    assert run.fingerprint((*words[:-1], "8")) != first
    assert run.fingerprint(("/usr/bin/python3", str(script), "--seed 7")) != first
    script.write_text("two")
    assert run.fingerprint(words) != first
    script.unlink()
    assert run.fingerprint(words) != first


def test_what_is_kept(tmp_path: Path) -> None:
    first = gpu(0, *A2)
    note = run.noted({}, first, compare([first]), 5)
    assert run.past(note) == Past("a", KEY, 5)
    odd = gpu(0, *B2, before="a")
    note = run.noted(json.loads(note), odd, compare([odd]), 6)
    assert run.past(note) == Past("a", KEY, 5), "a digest that differs is not what the next one is held against"
    assert [(r["at_ns"], r["digests"], r["verdict"]) for r in json.loads(note)["last"]] == [(6, ["b", "b"], "warn"), (5, ["a", "a"], "ok")]
    for n in range(30):
        note = run.noted(json.loads(note), first, compare([first]), 10 + n)
    assert len(json.loads(note)["last"]) == run.KEPT
    for broken in ("", "{", "[]", "{}", '{"digest": "a", "key": {}, "at_ns": 1}', '{"digest": "a", "key": [], "at_ns": 1}'):
        assert run.past(broken) is None


# --- on a node ------------------------------------------------------------------------------


class Node:
    """A drained, empty node of 8 GPUs whose command gives "good", unless ``gives`` says otherwise by GPU."""

    def __init__(self, root: Path, **screen: Any) -> None:
        self.site = Site(root)
        self.root = root
        self.state("IDLE+DRAIN")
        program(root / "squeue", f"cat {root}/jobs 2>/dev/null; exit 0")
        (root / "gives").mkdir()
        self.work = program(
            root / "work",
            f"""echo "$CUDA_VISIBLE_DEVICES" >>{root}/ran
mine={root}/gives/$CUDA_VISIBLE_DEVICES
if [ -x "$mine" ]; then exec "$mine"; fi
echo good""",
        )
        self.site.write_policy({"screen": {"command": [self.work, "--seed", "1"], "timeout": f"{patient.READ_S:g}s", **screen}})

    def state(self, state: str) -> None:
        self.site.scontrol(f"printf 'NodeName=n1\\n   State={state} ThreadsPerCore=1\\n   Partitions=gpu\\n'")

    def gives(self, index: int, script: str) -> None:
        program(self.root / "gives" / self.uuid(index), script)

    def uuid(self, index: int) -> str:
        with self.site.edit() as world:
            return str(world.gpus[index].identity.uuid)

    def ran(self) -> list[str]:
        path = self.root / "ran"
        found = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def screen(self, *words: str, code: int | None = 0) -> Any:
        said = self.site.command("screen", "--json", *words)
        assert "Traceback" not in said.stderr, said.stderr
        assert code is None or said.returncode == code, f"{said.returncode}: {said.stdout}\n{said.stderr}"
        return json.loads(said.stdout)


def by_name(document: Any, key: str = "verdict") -> dict[str, Any]:
    return {row["gpu"]: row[key] for row in document["gpus"]}


def test_a_node_whose_gpus_agree(tmp_path: Path) -> None:
    node = Node(tmp_path)
    document = node.screen()
    assert (document["schema"], document["what"], document["node"], document["verdict"]) == (1, "screen", "n1", "ok")
    assert by_name(document) == {f"gpu{n}": "ok" for n in range(8)}
    assert by_name(document, "digests") == {f"gpu{n}": ["good", "good"] for n in range(8)}
    assert (document["findings"], document["why"], document["ground"]["how"]) == ([], "", "drained")
    uuids = [node.uuid(n) for n in range(8)]
    assert node.ran() == uuids * 2, "one after the other"
    again = node.screen("--gpus", "gpu3,gpu5", "--repeat", "1")
    assert set(by_name(again)) == {"gpu3", "gpu5"}
    assert by_name(again, "before")["gpu3"]["digest"] == "good"
    assert node.ran() == [uuids[3], uuids[5]]
    said = node.site.nvhc("screen", "--together")
    assert "gpu7" in said
    assert "clears no GPU" in said
    assert sorted(node.ran()) == sorted(uuids * 2)


def test_the_gpu_that_computes_something_else(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.screen()
    node.gives(3, "echo bad")
    document = node.screen(code=1)
    assert [name for name, v in by_name(document).items() if v != "ok"] == ["gpu3"]
    (finding,) = document["findings"]
    assert (finding["code"], finding["entity"], finding["verdict"], finding["gpu"]["nvml_index"]) == (DIGEST, node.uuid(3), "fail", 3)
    assert by_name(node.screen(code=1), "before")["gpu3"]["digest"] == "good", "what is wrong does not become its past"
    node.gives(3, "echo good")
    assert node.screen()["verdict"] == "ok"
    node.gives(3, f"if [ -e {tmp_path}/once ]; then echo good; else touch {tmp_path}/once; echo bad; fi")
    said = node.site.nvhc("screen", code=1)
    assert "gave 2 digests in 2 runs" in said
    assert "FAIL" not in said, "seen once"
    node.gives(3, f"if [ -e {tmp_path}/twice ]; then echo bad; else touch {tmp_path}/twice; echo worse; fi")
    said = node.site.nvhc("screen", code=1)
    assert "FAIL" in said
    assert "scontrol update nodename=n1 state=drain reason='gpu3: screen: its digest differs'" in said, "nothing can hide one GPU here"


def test_what_changed_for_all_is_no_gpus_fault_and_can_be_taken_over(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.screen()
    for n in range(8):
        node.gives(n, "echo new library")
    document = node.screen(code=1)
    assert [f["entity"] for f in document["findings"]] == ["node"]
    assert "all 8 GPUs agree, and gave something else before" in document["why"]
    assert node.screen("--forget")["verdict"] == "ok"
    assert node.screen()["verdict"] == "ok"
    with node.site.edit() as world:
        world.set("node.nvidia_driver", "999.1")
    for n in range(8):
        node.gives(n, "echo new driver")
    document = node.screen()
    assert len(document["notes"]) == 8
    assert "with another driver" in document["notes"][0]
    assert node.screen()["notes"] == []


def test_forgetting_is_not_undone_by_a_screen_in_which_something_differs(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.screen()
    node.gives(3, "echo bad")
    node.screen("--forget", code=1)
    assert by_name(node.screen(code=1), "before")["gpu3"] is None


def test_no_result_is_no_mismatch_and_not_ok(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.gives(2, "echo no memory >&2; exit 1")
    document = node.screen(code=3)
    assert by_name(document)["gpu2"] == "unknown"
    assert by_name(document, "why")["gpu2"] == "no result: exit status 1: no memory"
    assert [f["code"] for f in document["findings"]] == [NO_RESULT]
    assert node.ran().count(node.uuid(2)) == 1, "it is not tried again"


def test_gpus_that_somebody_uses_are_left_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with node.site.edit() as world:
        world.set("g4.gpu_processes", 1)
    document = node.screen(code=3)
    assert [(name, why) for name, why in by_name(document, "left_alone").items() if why] == [("gpu4", "busy: 1 processes compute on it")]
    assert by_name(document)["gpu4"] == "unknown"
    assert node.uuid(4) not in node.ran()
    assert "left alone: gpu4" in node.site.nvhc("screen", code=3)


@pytest.mark.parametrize("state", ["IDLE", "MIXED"])
def test_without_ground_nothing_is_run(tmp_path: Path, state: str) -> None:
    node = Node(tmp_path)
    node.state(state)
    document = node.screen(code=3)
    assert (document["gpus"], document["verdict"], document["ground"]["how"]) == ([], "unknown", "none")
    assert "jobs may start on it" in document["why"]
    assert node.ran() == []
    assert "no GPU was screened" in node.site.nvhc("screen", code=3)


@pytest.mark.parametrize(("how", "begun"), [((), 1), (("--together",), 8)])
def test_the_ground_is_asked_for_before_every_run(tmp_path: Path, how: tuple[str, ...], begun: int) -> None:
    """Somebody resumes the node meanwhile: jobs may start on it."""
    node = Node(tmp_path)
    node.state("IDLE+DRAIN")
    resumed = (tmp_path / "scontrol").read_text().replace("IDLE+DRAIN", "IDLE")
    (tmp_path / "resumed").write_text(resumed)
    node.gives(0, f"cat {tmp_path}/resumed >{tmp_path}/scontrol; echo good")
    document = node.screen(*how, code=3)
    assert len(node.ran()) == begun
    assert by_name(document, "digests")["gpu0"] == ["good"]
    assert set(by_name(document).values()) == {"unknown"}
    assert "was not begun: the node is IDLE, and jobs may start on it" in by_name(document, "why")["gpu7"]


def test_beside_a_diagnostic_of_ours_nothing_is_run(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.screen()
    node.ran()
    with lock.held(f"{tmp_path}/state/n1/{diagnose.LOCK}", 0.0) as held:
        assert held
        said = node.site.nvhc("screen", code=3)
    assert "is held by a diagnostic or another screen" in said
    assert said.count("\n") == 1
    assert node.ran() == []


def test_in_an_allocation_the_jobs_gpus_by_its_partitions_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    node.site.write_policy({"partitions": {"gpu": {"screen": {"command": [node.work]}}}})
    (tmp_path / "job").write_text(
        f"JobId=8812 JobName=x\n   UserId=root({os.geteuid()}) GroupId=x(1)\n   JobState=RUNNING Reason=None\n   BatchFlag=1\n"
        "   JOB_GRES=gpu:2\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:h100:2(IDX:1,6)\n   Comment=\n   Command=(null)\n"
    )
    (tmp_path / "jobs").write_text(f"8812|{os.geteuid()}|RUNNING\n")
    node.site.scontrol(f'case "$*" in *"show job 8812"*) cat {tmp_path}/job;; *) exit 1;; esac')
    monkeypatch.setenv("SLURM_JOB_ID", "8812")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
    document = node.screen()
    assert (set(by_name(document)), document["ground"]["how"], document["ground"]["job"]) == ({"gpu1", "gpu6"}, "allocation", "8812")
    assert sorted(set(node.ran())) == sorted(node.uuid(n) for n in (1, 6))


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    node = Node(tmp_path)

    def refused(*words: str) -> str:
        said = node.site.nvhc("screen", *words, code=2)
        assert said.count("\n") == 1
        return said

    assert "gpu9 is no GPU of this node" in refused("--gpus", "gpu9")
    assert "--repeat" in refused("--repeat", "0")
    node.site.write_policy({})
    assert "screen.command: names no command" in refused()
    assert "docs/screen.md" in refused()
    node.site.write_policy({"screen": {"command": ["python3", "x"]}})
    assert "'python3' is not an absolute path" in refused()
    node.site.write_policy({"screen": {"command": [str(tmp_path / "nothing")]}})
    assert "can not be executed" in refused()
    node.site.write_policy({"partitions": {"gpu": {"screen": {"command": [node.work]}}}})
    assert "names no command" in refused()
    assert node.screen("--partition", "gpu")["verdict"] == "ok"
    assert node.ran()


@pytest.mark.parametrize("how", [(), ("--together",)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ended_early_it_leaves_nothing_running(tmp_path: Path, how: tuple[str, ...], number: int) -> None:
    node = Node(tmp_path)
    node.gives(0, f"echo $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    words = ["--config", str(node.site.config), "--state", f"{tmp_path}/state", "--run", f"{tmp_path}/run", "--node", "n1"]
    command = [sys.executable, "-m", "slurm_nvhc.cli.main", "screen", *how, *words]
    # pytest may have been started with SIGINT ignored, and a child would inherit that
    process = subprocess.Popen(
        command, env={**os.environ, "SLURM_CONF": str(node.site.slurm_conf)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        until = time.monotonic() + patient.PROCESS_S
        while not (tmp_path / "pid").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=patient.PROCESS_S)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    gone(int((tmp_path / "pid").read_text()))


# --- the example ----------------------------------------------------------------------------


def test_the_example_gives_the_same_everywhere() -> None:
    def example(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLE), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=patient.PROCESS_S, check=False)

    small = ("--cpu", "--size", "16", "--rounds", "8")
    first = example(*small)
    assert first.stdout == f"{SMALL}\n", first.stderr
    assert example("--cpu", "--size", "16", "--rounds", "9").stdout != first.stdout
    assert example("--size", "5000").returncode == 2
    without = example()
    assert (without.returncode, without.stdout) == (1, ""), "no PyTorch, or no GPU: no digest"


def test_the_example_feels_one_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("gemm_digest", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    right, start = example.by_python(12, 20), example.start

    def wrong(name: str, size: int) -> bytes:
        raw = bytearray(start(name, size))
        raw[5] ^= 1 if name == "a" else 0
        return bytes(raw)

    monkeypatch.setattr(example, "start", wrong)
    assert example.by_python(12, 20) != right


def test_the_example_on_a_node(tmp_path: Path) -> None:
    node = Node(tmp_path, command=[sys.executable, str(EXAMPLE), "--cpu", "--size", "16", "--rounds", "8"])
    document = node.screen("--gpus", "gpu0,gpu1,gpu2")
    assert document["verdict"] == "ok"
    assert by_name(document, "digests")["gpu1"] == [SMALL] * 2
