"""`nvhc sweep` without a Slurm: what is submitted and withdrawn, what an ended job says, what is kept, the command's own words."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

import patient
import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_ import Site

from slurm_nvhc.errors import InputError, MonitorError
from slurm_nvhc.model import finding as fd
from slurm_nvhc.proc.child import Result as Ended
from slurm_nvhc.slurm.command import REFUSED, TIMEOUT, UNREACHABLE, SlurmError
from slurm_nvhc.slurm.fleet import FleetNode, parse_nodes
from slurm_nvhc.sweep import outcome, plan, queue, run, store
from slurm_nvhc.sweep.outcome import Gpu, NodeResult
from slurm_nvhc.sweep.plan import Flying, Next, next_actions
from slurm_nvhc.sweep.queue import Options, Waiting
from slurm_nvhc.sweep.run import Limits, Sweep

# --- what sinfo says of nodes

SINFO = """\
n1|idle|gpu:h100:8(S:0-1)|none
n2|drained*|gpu:h100:8|nvhc: a|b
two lines
n3|mixed|gpu:a100:4(S:0),gpu:l4:2,shard:8|none
n4|idle~|gpu:8|none
n5|allocated|(null)|none
"""


def test_nodes_of_a_partition() -> None:
    assert parse_nodes(SINFO) == (
        FleetNode("n1", "idle", 8),
        FleetNode("n2", "drained*", 8, "nvhc: a|b\ntwo lines"),
        FleetNode("n3", "mixed", 6),
        FleetNode("n4", "idle~", 8),
        FleetNode("n5", "allocated", 0),
    )
    with pytest.raises(ValueError, match="not a line"):
        parse_nodes("sinfo: who knows\n")


# --- plan


def fleet(**states: str) -> dict[str, FleetNode]:
    return {name: FleetNode(name, state, 8) for name, state in states.items()}


NODES = fleet(a="allocated", b="idle", c="mixed", d="idle", e="drained", f="down*", g="idle~")


def test_idle_nodes_first_then_busy_ones_up_to_the_cap() -> None:
    assert next_actions(tuple("abcdefg"), NODES, (), 3, 600) == Next(("b", "d", "a"))
    assert next_actions(tuple("abcdefg"), NODES, (), 9, 600) == Next(("b", "d", "a", "c")), "nodes that take no jobs get none"
    assert next_actions(("b", "d"), NODES, (Flying("c", None), Flying("a", 0.0)), 3, 600) == Next(("b",)), "waiting jobs count"


def test_a_job_that_waits_gives_its_place_to_an_idle_node() -> None:
    waits = (Flying("a", 700.0), Flying("c", 900.0), Flying("x", None))
    nodes = {**NODES, "x": FleetNode("x", "allocated", 8)}
    assert next_actions(("b",), nodes, waits, 3, 600) == Next((), ("c",)), "the one that waits longest, for one idle node"
    assert next_actions(("b", "d"), nodes, waits, 3, 600) == Next((), ("c", "a"))
    assert next_actions(("b", "d"), nodes, waits, 3, 800) == Next((), ("c",))
    assert next_actions(("b",), nodes, waits, 4, 600) == Next(("b",)), "while there is a place, nobody has to go"
    assert next_actions(("e", "f"), nodes, waits, 3, 600) == Next(), "only for a node that can start one now"


def test_a_job_that_waits_for_a_node_that_was_drained_is_withdrawn() -> None:
    assert next_actions((), NODES, (Flying("e", 0.0), Flying("gone", 1.0), Flying("a", 9999.0)), 8, 600) == Next((), ("e", "gone"))


STATES = st.sampled_from(["idle", "mixed", "allocated", "drained", "down*", "idle~", "completing", "reserved"])


@given(
    st.dictionaries(st.sampled_from([f"n{i}" for i in range(12)]), STATES),
    st.lists(st.sampled_from([f"n{i}" for i in range(12)]), unique=True),
    st.lists(st.tuples(st.integers(0, 11), st.none() | st.floats(0, 5000)), unique_by=lambda x: x[0], max_size=8),
    st.integers(1, 8),
)
def test_whatever_there_is(states: dict[str, str], todo: list[str], flying: list[tuple[int, Optional[float]]], at_once: int) -> None:
    nodes = fleet(**states)
    jobs = [Flying(f"n{i}", waits) for i, waits in flying]
    todo = [name for name in todo if name not in {job.node for job in jobs}]
    step = next_actions(todo, nodes, jobs, at_once, 600)
    assert len(jobs) + len(step.submit) <= max(at_once, len(jobs))
    assert len(set(step.submit)) == len(step.submit)
    assert all(name in todo and not plan.why_not(nodes.get(name)) for name in step.submit)
    waiting = {job.node: job.waiting_s for job in jobs}
    assert all(waiting[name] is not None for name in step.withdraw), "a job that runs is never ended"


# --- outcome


def document(node: str = "n1", verdict: str = "ok", **more: Any) -> str:
    usual = {"schema": 1, "what": "diag", "node": node, "verdict": verdict, "outcome": "done", "seconds": 3.5, "gpus": []}
    return json.dumps({**usual, **more})


BAD = {"gpu": "gpu3", "uuid": "GPU-3", "verdict": "fail", "why": "diag memory failed"}
TASK = "srun: error: n1: task 0: Exited with exit code 3\n"
# As srun printed it on 22.05.
PREEMPTED = f"slurmstepd-n1: error: *** STEP 28983.0 ON n1 CANCELLED AT 2026-12-01T15:42:18 DUE TO PREEMPTION ***\n{TASK}"


def ended(out: str = "", err: str = "", rc: Optional[int] = 0, problem: str = "") -> Ended:
    return Ended(rc, out, err, problem)


def test_a_result() -> None:
    good = {"gpu": "gpu2", "uuid": "GPU-2", "verdict": "ok", "why": ""}
    result = outcome.judge("n1", ended(document(verdict="fail", gpus=[good, BAD]), TASK, 1), 7).result
    assert result is not None
    assert (result.node, result.verdict, result.gpus, result.seconds, result.at_ns) == ("n1", "fail", (Gpu(*BAD.values()),), 3.5, 7)


def test_a_task_prolog_that_prints_too() -> None:
    text = f'welcome {{to}} n1\n{{"schema": 7}}\n{document(verdict="warn")}\nbye\n'
    result = outcome.judge("n1", ended(text, rc=1), 7).result
    assert result is not None
    assert result.verdict == "warn"


@pytest.mark.parametrize(
    ("end", "why", "refused"),
    [
        (ended("", PREEMPTED, 9), "pre-empted by another job", False),
        (ended(document(verdict="unknown", outcome="stopped"), PREEMPTED, 3), "pre-empted by another job", False),
        (ended("", PREEMPTED.replace("PREEMPTION", "TIME LIMIT"), 9), "ended at its time limit", False),
        (ended("", "srun: error: Node failure on n1\n", 0), "its node failed", False),
        (ended("", "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-12-01T15:42:17 ***\n", 137), "cancelled", False),
        (
            ended("", "srun: error: Unable to allocate resources: Job/step already completing or completed\n", 1),
            "cancelled while it waited", False,
        ),
        (
            ended("", "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified\n", 1),
            "Slurm refused the job: Unable to allocate resources: Invalid account or account/partition combination specified", True,
        ),
        (ended("", "", None, "timeout"), "srun: timeout", False),
        (ended("", "", 0), "nvhc on the node gave no answer (exit 0)", False),
        (
            ended("", f"slurmstepd: error: execve(): /usr/bin/nvhc: No such file or directory\n{TASK}", 2),
            "nvhc on the node gave no answer (exit 2): slurmstepd: error: execve(): /usr/bin/nvhc: No such file or directory", True,
        ),
        (ended(document("localhost")), "the answer is of node 'localhost'", False),
        (ended(document()[:-9]), "nvhc on the node gave no answer", False),
        (ended(json.dumps({"schema": 2, "verdict": "ok", "node": "n1"})), "nvhc on the node gave no answer", False),
    ],
)  # fmt: skip
def test_no_result_and_why(end: Ended, why: str, refused: bool) -> None:
    """An exit code alone, 0 above all, is no answer."""
    verdict = outcome.judge("n1", end, 7)
    assert verdict.result is None
    assert verdict.why.startswith(why)
    assert verdict.refused is refused


def test_its_own_time_limit_is_a_result_and_an_answer_before_the_end_counts() -> None:
    stopped = outcome.judge("n1", ended(document(verdict="unknown", outcome="stopped", why="it had not ended after 10 s"), rc=3), 7).result
    assert stopped is not None
    assert (stopped.verdict, stopped.why) == ("unknown", "it had not ended after 10 s")
    late = outcome.judge("n1", ended(document(verdict="ok"), PREEMPTED, 9), 7).result
    assert late is not None
    assert late.verdict == "ok", "it was pre-empted once it was over"


def test_the_words_of_a_screen() -> None:
    rows = [{"gpu": "gpu1", "uuid": "GPU-1", "verdict": "unknown", "why": "no output"}]
    text = json.dumps({"schema": 1, "what": "screen", "node": "n1", "verdict": "unknown", "gpus": rows})
    result = outcome.judge("n1", ended(text), 7).result
    assert result is not None
    assert result.gpus == (Gpu("gpu1", "GPU-1", "unknown", "no output"),)


PLAIN = st.none() | st.booleans() | st.floats() | st.integers() | st.text()


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=9))
def test_any_json_is_no_traceback(value: Any) -> None:
    text = json.dumps({"schema": 1, "verdict": value, "node": "n1", "gpus": value, "seconds": value, "why": value})
    result = outcome.judge("n1", ended(text), 7).result
    assert result is not None
    assert result.verdict in (outcome.VERDICTS if value in outcome.VERDICTS else (fd.UNKNOWN,))
    outcome.judge("n1", ended(str(value), str(value)), 7)


# --- store


def test_the_store_keeps_and_gives_back(tmp_path: Path) -> None:
    kept = store.Store(str(tmp_path / "a" / "b"))
    task = kept.open("gpu", ("diag", "--level", "2"))
    assert kept.open("gpu", ("diag", "--level", "2")) == task, "its jobs have the same name when it goes on"
    result = NodeResult("n1", fd.FAIL, (Gpu(*BAD.values()),), 3.5, 7, 2, "why", json.loads(document(verdict="fail")))
    kept.put(result)
    assert kept.results() == {"n1": result}
    assert os.stat(kept.directory).st_mode & 0o777 == 0o700
    with pytest.raises(InputError, match=r"holds the results of `diag --level 2` in partition gpu"):
        kept.open("gpu", ("diag", "--level", "3"))
    with pytest.raises(MonitorError, match="not a node name"):
        kept.put(result._replace(node="../n1"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "node": "n2", "verdict": "great"}'])
def test_a_damaged_file_is_no_result(tmp_path: Path, text: str) -> None:
    kept = store.Store(str(tmp_path))
    kept.open("gpu", ("diag",))
    (tmp_path / "nodes" / "n2.json").write_text(text)
    assert kept.results() == {}
    (tmp_path / "sweep.json").write_text(text or "[]")
    with pytest.raises(InputError):
        kept.open("gpu", ("diag",))


def test_what_is_done(tmp_path: Path) -> None:
    assert store.done(NodeResult("n1", fd.FAIL, at_ns=10), 5)
    assert not store.done(NodeResult("n1", fd.FAIL, at_ns=10), 11)
    assert not store.done(NodeResult("n1", fd.UNKNOWN, at_ns=10), 0), "unknown is no result"
    assert not store.done(None, 0)


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    one, two = store.Store(str(tmp_path)), store.Store(str(tmp_path))
    one.open("gpu", ("diag",))
    with one.alone(), pytest.raises(InputError, match="another nvhc sweep works in it"), two.alone():
        pass
    with two.alone():
        pass


# --- run, over a played Slurm


class Played:
    """Each job gives the next answer of its node's list, or the last one for ever; "wait": it stays in the queue."""

    def __init__(self, states: dict[str, str], answers: dict[str, list[Any]]) -> None:
        self.states, self.answers = states, answers
        self.flying: dict[str, str] = {}
        self.most, self.submitted, self.cancelled, self.calls = 0, [], [], 0
        self.of_held: dict[str, int] = {}
        self.left: list[Waiting] = []
        self.reason = "Resources"
        self.each_round: Callable[[], None] = lambda: None
        self._ended: list[tuple[str, Ended]] = []

    def nodes(self) -> dict[str, FleetNode]:
        self.each_round()
        return fleet(**self.states)

    def held(self) -> dict[str, int]:
        return self.of_held

    def waiting(self) -> tuple[Waiting, ...]:
        return (*self.left, *(Waiting(f"1{node}", state, node, self.reason) for node, state in self.flying.items()))

    def submit(self, node: FleetNode, held: int) -> None:
        self.submitted.append(node.name)
        answers = self.answers.get(node.name, [document(node.name)])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self.flying[node.name] = "PENDING" if answer == "wait" else "RUNNING"
        self.most = max(self.most, len(self.flying))
        if answer not in ("wait", "run"):
            self._ended.append((node.name, answer if isinstance(answer, Ended) else ended(answer)))

    def ended(self, seconds: float) -> list[tuple[str, Ended]]:
        out, self._ended = self._ended, []
        for node, _end in out:
            del self.flying[node]
        return out

    def cancel(self, numbers: Any) -> None:
        for node in [n for n in self.flying if f"1{n}" in numbers]:
            self.cancelled.append(node)
            why = "Unable to allocate resources: Job/step already completing or completed"
            self._ended.append((node, ended("", f"srun: error: {why}\n", 1)))

    def cancel_all(self) -> None:
        self.left = []
        self.cancel([f"1{node}" for node in self.flying if node not in [n for n, _e in self._ended]])


QUICK = Limits(at_once=2, wait_s=patient.PROCESS_S, patience_s=0.0, tries=3, every_s=0.001)


class Ran:
    def __init__(self, slurm: Played, todo: str = "", limits: Limits = QUICK) -> None:
        self.kept: list[NodeResult] = []
        self.said: list[str] = []
        self.sweep = Sweep(slurm, todo.split() or list(slurm.states), limits, self.kept.append, self.said.append)
        self.missed = self.sweep.run()

    def verdicts(self) -> dict[str, str]:
        return {r.node: r.verdict for r in self.kept}


def test_every_node_once_and_never_more_at_once_than_allowed() -> None:
    slurm = Played({f"n{i}": "idle" for i in range(9)}, {"n4": [document("n4", "fail", gpus=[BAD])]})
    ran = Ran(slurm)
    assert ran.verdicts() == {f"n{i}": "fail" if i == 4 else "ok" for i in range(9)}
    assert (slurm.most, sorted(slurm.submitted), ran.missed) == (2, [f"n{i}" for i in range(9)], ())
    assert any(line.startswith("n4: fail: gpu3 (") for line in ran.said)


def test_preempted_and_lost_jobs_are_tried_again_and_not_for_ever() -> None:
    cut = ended("", PREEMPTED, 9)
    slurm = Played({"n1": "idle", "n2": "idle"}, {"n1": [cut, cut, document("n1")], "n2": [cut]})
    ran = Ran(slurm)
    assert ran.verdicts() == {"n1": "ok", "n2": "unknown"}
    assert {r.node: (r.tries, r.why) for r in ran.kept} == {"n1": (3, ""), "n2": (3, "pre-empted by another job")}
    assert slurm.submitted.count("n2") == 3


def test_nodes_that_take_no_jobs_are_told_and_how_they_are_reached() -> None:
    slurm = Played({"n1": "idle", "n2": "drained$", "n3": "idle~"}, {})
    ran = Ran(slurm)
    assert ran.verdicts() == {"n1": "ok"}
    (two, three) = ran.missed
    assert (two.node, two.why, two.how) == ("n2", "drained", plan.by_hand(FleetNode("n2", "drained", 8)))
    assert "run nvhc diag on the node itself" in two.how
    assert (three.node, three.why, three.how) == ("n3", "powered down", "")


def test_a_node_that_is_drained_while_its_job_waits() -> None:
    slurm = Played({"n1": "allocated"}, {"n1": ["wait"]})
    slurm.each_round = lambda: slurm.states.update(n1="drained" if slurm.flying else slurm.states["n1"])
    ran = Ran(slurm)
    assert (slurm.cancelled, ran.kept) == (["n1"], [])
    assert [(m.node, m.why) for m in ran.missed] == [("n1", "drained")]


def test_a_waiting_job_gives_way_and_its_turn_comes_again_without_counting_as_a_try() -> None:
    states = {"n1": "allocated", "n2": "allocated", "n3": "allocated"}
    slurm = Played(states, {"n1": ["wait", document("n1")], "n2": ["run", document("n2")]})

    def meanwhile() -> None:
        if len(slurm.flying) == 2:
            slurm.states["n3"] = "idle"
        if "n3" in slurm.submitted:
            slurm.states.update(n1="idle", n3="allocated")
            if "n2" in slurm.flying and not any(node == "n2" for node, _end in slurm._ended):
                slurm._ended.append(("n2", ended(document("n2"))))

    slurm.each_round = meanwhile
    ran = Ran(slurm)
    assert slurm.submitted[:3] == ["n1", "n2", "n3"]
    assert "n1" in slurm.cancelled
    assert ran.verdicts() == {"n1": "ok", "n2": "ok", "n3": "ok"}
    assert all(r.tries == 1 for r in ran.kept)


def test_the_time_of_a_sweep() -> None:
    slurm = Played({"n1": "idle", "n2": "allocated"}, {"n2": ["wait"]})
    ran = Ran(slurm, limits=QUICK._replace(wait_s=0.2))
    assert ran.verdicts() == {"n1": "ok"}
    assert slurm.cancelled == ["n2"], "no job is left"
    assert [(m.node, m.why, m.how) for m in ran.missed] == [("n2", "its job was cancelled with the sweep; it waited (Resources)", "")]


def test_jobs_that_a_killed_sweep_left_are_ended_first() -> None:
    slurm = Played({"n1": "idle"}, {})
    slurm.left = [Waiting("9", "PENDING", "n1")]
    slurm.each_round = lambda: None if not slurm.left else pytest.fail("submitted beside what was left")
    assert Ran(slurm).verdicts() == {"n1": "ok"}


def test_options_that_slurm_refuses_end_it_with_its_words() -> None:
    refusal = ended("", "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified\n", 1)
    slurm = Played({f"n{i}": "idle" for i in range(50)}, {f"n{i}": [refusal] for i in range(50)})
    with pytest.raises(MonitorError, match=r"Slurm refused the job: .*Invalid account"):
        Ran(slurm)
    assert len(slurm.submitted) < 10, "not once for each of a thousand nodes"


def test_a_job_that_slurm_will_never_start_ends_it_with_its_word() -> None:
    """It takes the job, and would keep it until the sweep's time is over: "was busy the whole time"."""
    slurm = Played({f"n{i}": "idle" for i in range(50)}, {f"n{i}": ["wait"] for i in range(50)})
    slurm.reason = "PartitionTimeLimit"
    with pytest.raises(MonitorError, match=r"would never start the job: PartitionTimeLimit \(--time"):
        Ran(slurm, limits=QUICK._replace(patience_s=patient.PROCESS_S))
    assert len(slurm.submitted) == 2
    assert sorted(slurm.cancelled) == sorted(slurm.submitted)


def test_one_node_that_is_refused_does_not_end_it() -> None:
    refusal = ended("", "srun: error: Unable to allocate resources: Requested node configuration is not available\n", 1)
    slurm = Played({"n0": "idle", "n1": "idle", "n2": "idle", "n3": "idle", "n4": "idle"}, {f"n{i}": [refusal] for i in (1, 2, 3)})
    ran = Ran(slurm)
    assert ran.verdicts() == {"n0": "ok", "n1": "unknown", "n2": "unknown", "n3": "unknown", "n4": "ok"}
    assert slurm.submitted.count("n1") == 1, "what is refused is refused again"


def test_slurm_away_for_a_while_and_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Played({"n1": "idle"}, {})
    rounds = iter([True, False, False])

    def away() -> None:
        if not next(rounds, True):
            raise SlurmError(UNREACHABLE, "sinfo", "", "Unable to contact slurm controller")

    slurm.each_round = away
    assert Ran(slurm).verdicts() == {"n1": "ok"}
    monkeypatch.setattr(run, "SLURM_AWAY_S", 0.05)
    slurm = Played({"n1": "idle"}, {})
    first = iter([True])
    slurm.each_round = lambda: None if next(first, False) else _raise(SlurmError(TIMEOUT, "sinfo", "", "no answer"))
    with pytest.raises(SlurmError, match="no answer"):
        Ran(slurm)


def _raise(exc: Exception) -> None:
    raise exc


def test_interrupted_it_ends_its_jobs_and_keeps_what_they_said_at_last() -> None:
    slurm = Played({"n1": "idle", "n2": "idle", "n3": "idle"}, {"n1": ["run"], "n2": ["run"]})
    seen: list[int] = []

    def press() -> None:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    slurm.each_round = press
    kept: list[NodeResult] = []
    sweep = Sweep(slurm, list(slurm.states), QUICK, kept.append, lambda _line: None)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    assert slurm.flying == {}
    assert sorted(slurm.cancelled) == ["n1", "n2"]
    assert sorted(m.node for m in sweep.missed()) == ["n1", "n2", "n3"]


def test_gpus_that_our_placeholder_jobs_hold() -> None:
    slurm = Played({"n1": "idle", "n2": "idle"}, {})
    slurm.of_held = {"n2": 8}
    ran = Ran(slurm)
    assert {r.node: r.why for r in ran.kept} == {"n1": "", "n2": "each of its GPUs is held by a placeholder job of ours"}
    assert slurm.submitted == ["n1"]


# --- srun's arguments


def test_what_srun_gets() -> None:
    options = Options("gpu", "nvhc-sweep-1", 15, qos="low", account="ops", reservation="maint")
    words = queue.arguments(options, FleetNode("n1", "idle", 8), 0, ("/usr/bin/nvhc", "diag", "--json"))
    assert {"--partition=gpu", "--nodelist=n1", "--gres=gpu:8", "--exclusive", "--time=15", "--nice=2147483645"} <= set(words)
    assert {"--qos=low", "--account=ops", "--reservation=maint", "--job-name=nvhc-sweep-1"} <= set(words)
    assert words[words.index("--") + 1 :] == ("/usr/bin/nvhc", "diag", "--json")
    held = queue.arguments(Options("gpu", "x", 15), FleetNode("n1", "mixed", 8), 2, ("nvhc",))
    assert {"--gres=gpu:6", "--mem=1024"} <= set(held)
    assert "--exclusive" not in held, "beside a placeholder job nothing exclusive ever starts"
    beside = queue.arguments(Options("gpu", "x", 15, whole=False), FleetNode("n1", "mixed", 8), 0, ("nvhc",))
    assert not [word for word in beside if word.startswith(("--gres", "--exclusive"))], "what loads no GPU runs beside jobs"
    assert "--mem=1024" in beside


def test_what_waits_and_why(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    lines = "7|PENDING|n1|PartitionTimeLimit", "8|PENDING|n[2]|ReqNodeNotAvail, UnavailableNodes:n2", "9|RUNNING||None"
    cluster.program("squeue", f'echo "squeue $*" >>{cluster.calls}\ncat <<END\n' + "\n".join(lines) + "\nEND")
    here = queue.Queue(str(tmp_path), "", Options("gpu", "x", 1), (), 1.0)
    assert here.waiting() == (
        Waiting("7", "PENDING", "n1", "PartitionTimeLimit"), Waiting("8", "PENDING", "n2", "ReqNodeNotAvail, UnavailableNodes:n2"),
        Waiting("9", "RUNNING", "", "None"),
    )  # fmt: skip
    assert " -a " in cluster.calls.read_text(), "a partition may be hidden"


# --- the command, over played programs


class Cluster:
    """sinfo, squeue, scontrol, scancel and srun of scripts: srun prints what is in answers/NODE."""

    def __init__(self, root: Path) -> None:
        self.root, self.site = root, Site(root)
        self.answers = root / "answers"
        self.answers.mkdir()
        self.calls = root / "calls"
        self.calls.touch()
        self.nodes("n1|idle|gpu:8|none", "n2|idle|gpu:8|none", "n3|drained|gpu:8|dead fan")
        self.program("squeue", "exit 0")
        self.program("scancel", f'echo "scancel $*" >>{self.calls}')
        self.partition()
        self.program(
            "srun",
            f'echo "srun $*" >>{self.calls}\nfor word; do case "$word" in --nodelist=*) node=${{word#*=}};; esac; done\n'
            f"cat {self.answers}/$node; exit $(grep -c '\"verdict\": \"fail\"' {self.answers}/$node)",
        )
        for node, verdict in (("n1", "ok"), ("n2", "fail")):
            self.answer(node, document(node, verdict, gpus=[BAD] if verdict == "fail" else []))

    def program(self, name: str, script: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def nodes(self, *lines: str) -> None:
        self.program("sinfo", "cat <<'END'\n" + "\n".join(lines) + "\nEND")

    def partition(self, preempt: str = "OFF") -> None:
        self.program("scontrol", f"printf 'PartitionName=gpu\\n   PreemptMode={preempt} State=UP\\n'")

    def answer(self, node: str, text: str) -> None:
        (self.answers / node).write_text(text)

    def sruns(self) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.startswith("srun")]

    def sweep(self, *words: str, code: Optional[int] = None) -> str:
        return self.site.nvhc("sweep", *self.options(*words), code=code)

    def options(self, *words: str) -> list[str]:
        before, after = (words[: words.index("--")], words[words.index("--") :]) if "--" in words else (words, ())
        here = ["--config", str(self.site.config), "--state", str(self.root / "state"), "--run", str(self.root / "run"), "--node", "head"]
        return ["--partition", "gpu", "--every", "10ms", "--nvhc", "/opt/nvhc", *before, *here, *after]


def test_the_table_the_export_and_that_it_goes_on_where_it_was(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    out = cluster.sweep("--csv", str(tmp_path / "out.csv"), code=1)
    assert "n2: fail: gpu3 (" in out
    assert "2 nodes: 1 fail, 1 ok; 1 not reached" in out
    assert "drained: dead fan; no job starts there: run nvhc diag on the node itself" in " ".join(out.split())
    rows = {row["node"]: row for row in csv.DictReader((tmp_path / "out.csv").open())}
    assert {node: (row["verdict"], row["gpus"], row["why"]) for node, row in rows.items()} == {
        "n1": ("ok", "", ""), "n2": ("fail", "gpu3", "diag memory failed"), "n3": ("unknown", "", "not reached: drained: dead fan"),
    }  # fmt: skip
    assert "/opt/nvhc diag --level 2 --json --partition gpu --config" in cluster.sruns()[0]
    assert len(cluster.sruns()) == 2
    assert "2 of 3 nodes have a result already" in cluster.sweep(code=1)
    assert len(cluster.sruns()) == 2, "done nodes are not repeated"
    cluster.sweep("--again", code=1)
    assert len(cluster.sruns()) == 4
    cluster.sweep("--max-age", "7d", code=1)
    assert len(cluster.sruns()) == 4
    cluster.sweep("--max-age", "0s", code=1)
    assert len(cluster.sruns()) == 6


def test_json_and_what_is_kept(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    done = cluster.site.command("sweep", *cluster.options("--json", "--nodes", "n[1-2]", "--level", "3", "--", "--require", "pcie"))
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert (told["schema"], told["verdict"], told["missed"]) == (1, "fail", [])
    assert told["sweep"] == {"partition": "gpu", "command": ["diag", "--level", "3", "--require", "pcie"]}
    assert [(n["node"], n["verdict"], [g["gpu"] if "gpu" in g else g["name"] for g in n["gpus"]]) for n in told["nodes"]] == [
        ("n2", "fail", ["gpu3"]), ("n1", "ok", []),
    ]  # fmt: skip
    folder = f"{tmp_path}/state/sweeps/gpu-diag-level-3-require-pcie"
    assert sorted(os.listdir(f"{folder}/nodes")) == ["n1.json", "n2.json"]
    shown = cluster.site.nvhc("sweep", "--show", folder, code=1)
    assert "2 nodes: 1 fail, 1 ok; 0 not reached" in shown


def test_all_well_and_unknown(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.sweep("--nodes", "n1", code=0)
    cluster.sweep("--nodes", "n3", code=3)
    cluster.answer("n2", "no JSON")
    out = cluster.sweep("--nodes", "n[1-2]", "--tries", "2", code=3)
    assert "nvhc on the node gave no answer (exit 0)" in out
    assert len(cluster.sruns()) == 3
    cluster.answer("n2", document("n2"))
    cluster.sweep("--nodes", "n[1-2]", code=0)
    assert len(cluster.sruns()) == 4, "what was unknown is swept again, what was known is not"


def test_a_dry_run_submits_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    out = " ".join(cluster.sweep("--dry-run", code=0).split())
    assert "srun --partition=gpu --nodelist=n1 --nodes=1 --ntasks=1 --time=16" in out
    assert "--gres=gpu:8 --exclusive" in out
    assert "a user's job may wait up to 16 minutes for a node" in out
    assert "not reached: drained: dead fan" in out
    assert (cluster.sruns(), os.path.exists(f"{tmp_path}/state/sweeps")) == ([], False)


def test_a_partition_that_suspends_is_refused(tmp_path: Path) -> None:
    """A suspended job's diagnostic goes on in the engine, beside the job for which it made way."""
    cluster = Cluster(tmp_path)
    cluster.partition("GANG,SUSPEND")
    out = cluster.sweep(code=2)
    assert "suspends jobs (PreemptMode=GANG,SUSPEND), and a diagnostic can not be suspended" in out
    assert cluster.sruns() == []
    cluster.sweep("--level", "1", "--nodes", "n1", code=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "n9"), "'n9' is no node of partition gpu"),
        (("--nodes", "n[1-"), "--nodes:"),
        (("--at-once", "0"), "0 is not a number from 1"),
        (("--at-once", "2000"), "2000 is not a number from 1 to 256"),
        (("--", "--requre", "pcie"), "unrecognized arguments: --requre"),
        (("--", "--level", "4"), "--level, --tests and --stop do not go there"),
        (("--screen", "--", "--require", "pcie"), "unrecognized arguments: --require"),
        (("--tries", "0"), "0 is not a number from 1"),
        (("--wait", "soon"), "'soon' is not a duration"),
        (("--max-age", "x"), "'x' is not a duration"),
        (("--level", "2", "--tests", "pcie"), "exclude each other"),
        (("--screen", "--level", "1"), "goes without"),
        (("--tests", "pcie;reboot"), "no name of a test"),
        (("--partition", "a b"), "is no such name"),
        (("--partition", ""), "is missing"),
        (("--qos", "x y"), "is no such name"),
        (("--show", "/nowhere"), "is not the folder of a sweep"),
    ],
)
def test_mistakes(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    cluster = Cluster(tmp_path)
    out = cluster.sweep(*words, code=2)
    assert said in out
    assert cluster.sruns() == []


def test_another_task_in_the_same_folder(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    folder = str(tmp_path / "mine")
    cluster.sweep("--nodes", "n1", "--dir", folder, code=0)
    assert "holds the results of `diag --level 2` in partition gpu" in cluster.sweep("--level", "1", "--dir", folder, code=2)


def test_slurm_that_does_not_answer(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.program("sinfo", "echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1")
    assert "Unable to contact slurm controller" in cluster.sweep(code=3)


def test_a_signal_ends_its_jobs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    gate = tmp_path / "gate"
    cluster.program("srun", f"echo srun >>{cluster.calls}; while [ ! -e {gate} ]; do sleep 0.05; done; echo 'CANCELLED AT now' >&2; exit 1")
    cluster.program("scancel", f'echo "scancel $*" >>{cluster.calls}; touch {gate}')
    argv = [sys.executable, "-m", "slurm_nvhc.cli.main", "sweep", *cluster.options("--nodes", "n[1-2]")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + patient.PROCESS_S
        while len(cluster.sruns()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=patient.PROCESS_S)
    finally:
        process.kill()
    assert process.returncode == 3
    assert f"scancel -Q --user={os.geteuid()} --name=nvhc-sweep-" in cluster.calls.read_text()
    assert "interrupted: no job of it is left; the same command goes on where it stopped" in err
    assert "Traceback" not in err
    assert "2 not reached" in out


def test_refusals_of_the_fleet_are_slurm_errors(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.program("sinfo", "exit 0")
    with pytest.raises(SlurmError, match="says nothing about such a partition") as seen:
        queue.Queue(str(tmp_path), "", Options("gpu", "x", 1), (), 1.0).nodes()
    assert seen.value.kind == REFUSED
