"""Having a placeholder job hold a GPU, and ending it: what is asked of Slurm, and what comes of a no."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Optional, Sequence

import pytest
from act_fakes import T0, Ledger, Slurm, mapping, policy, uuid

from slurm_nvhc.act import placeholder
from slurm_nvhc.act import steps as st
from slurm_nvhc.act.execute import Done, Tools, execute
from slurm_nvhc.act.steps import Step
from slurm_nvhc.model import placeholder as ph
from slurm_nvhc.model.job import Job
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import Hold
from slurm_nvhc.policy.acting import Quarantine
from slurm_nvhc.slurm.command import MISSING, REFUSED, TIMEOUT, UNREACHABLE, SlurmError
from slurm_nvhc.slurm.jobs import PartitionRules

REASON = "nvhc: NVL-STORM gpu3 could not be quarantined"
STEP = Step(st.QUARANTINE, reason=REASON, uuid=uuid(3), keys=(f"GPU-EXCLUDED {uuid(3)}",))
ON = Quarantine(enabled=True, place_within_s=30.0, memory_mb=64)
GPU = PartitionRules("gpu")


def user(*positions: int, job_id: str = "7", state: str = "RUNNING", uid: int = 1000, comment: str = "") -> NodeJob:
    return NodeJob(job_id, state, uid=uid, positions=positions, comment=comment)


def holder(n: int = 3, job_id: str = "900_3", state: str = "RUNNING", **changes: Any) -> NodeJob:
    job = NodeJob(job_id, state, uid=0, name=ph.HOLD, comment=ph.COMMENT, admin_comment=ph.says(uuid(n)), positions=(n,))
    return job._replace(**changes)


class Jobs:
    """``trouble``: call -> kind of SlurmError."""

    def __init__(self, *jobs: NodeJob, partitions: Sequence[PartitionRules] = (GPU,)) -> None:
        self.there = jobs
        self.known = {p.name: p for p in partitions}
        self.calls: list[tuple[str, ...]] = []
        self.trouble: dict[str, str] = {}

    def _call(self, name: str, *words: str) -> None:
        self.calls.append((name, *words))
        if name in self.trouble:
            raise SlurmError(self.trouble[name], name, "", "no")

    def of_node(self, node: str, timeout_s: Optional[float] = None) -> tuple[NodeJob, ...]:
        self._call("of_node")
        return self.there

    def job(self, job_id: str, node: str, timeout_s: Optional[float] = None) -> Optional[NodeJob]:
        return next((j for j in self.there if j.job_id == job_id), None)

    def partitions(self, timeout_s: Optional[float] = None) -> dict[str, PartitionRules]:
        self._call("partitions")
        return self.known

    def update_job(self, job_id: str, settings: Sequence[str], timeout_s: Optional[float] = None) -> None:
        self._call("update_job", job_id, *settings)

    def submit(self, options: Sequence[str], script: str, timeout_s: Optional[float] = None) -> str:
        self._call("submit", *options, script)
        return "900"

    def cancel(self, job_ids: Sequence[str], timeout_s: Optional[float] = None) -> None:
        self._call("cancel", *job_ids)

    def cancel_named(self, name: str, timeout_s: Optional[float] = None) -> None:
        self._call("cancel_named", name)

    def reserve(self, name: str, node: str, minutes: int, timeout_s: Optional[float] = None) -> None:
        self._call("reserve", name, node, str(minutes))

    def end_reservation(self, name: str, timeout_s: Optional[float] = None) -> None:
        self._call("end_reservation", name)

    def requeue(self, job_id: str, timeout_s: Optional[float] = None) -> None:
        self._call("requeue", job_id)

    def signal(self, job_id: str, name: str, batch: bool, timeout_s: Optional[float] = None) -> None:
        self._call("signal", job_id)

    def named(self, name: str) -> list[tuple[str, ...]]:
        return [c for c in self.calls if c[0] == name]


class Node:
    def __init__(self, tmp_path: Path, *jobs: NodeJob, **changes: Any) -> None:
        self.jobs = Jobs(*jobs, **changes)
        self.slurm = Slurm()
        self.slurm.state = NodeState("MIXED", frozenset(), partitions=("gpu",))
        self.ledger = Ledger()
        self.run_dir = str(tmp_path / "run")
        self.wanted = ON
        self.of_job: Optional[Job] = Job("7", 1000, "ada", "gpu", (3,))

    def tools(self) -> Tools:
        return Tools(
            slurm=self.slurm, node="n1", protective=self.ledger, run_dir=self.run_dir, job=self.of_job,
            mapping=mapping(3), constrain=lambda: None, log=lambda line: None, left_s=lambda: 5.0, now_ns=T0,
            policy=policy()._replace(quarantine=self.wanted), jobs=self.jobs, hold_program=("/x/python", "-I", "-m", "slurm_nvhc.hold"),
        )  # fmt: skip

    def do(self, *steps: Step) -> tuple[Done, ...]:
        return execute(steps, self.tools()).done


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, user(3, state="COMPLETING"), user(0, 1, job_id="8"))


def test_in_the_epilog_a_reservation_and_one_job_for_each_gpu(node: Node) -> None:
    (done,) = node.do(STEP)
    assert done.ok
    assert node.jobs.named("reserve") == [("reserve", "nvhc-hold-n1", "n1", "5")]
    (submitted,) = node.jobs.named("submit")
    for option in (
        "--array=0-7", "--gres=gpu:1", "--nodelist=n1", "--partition=gpu", "--reservation=nvhc-hold-n1", "--no-requeue",
        "--time=2", "--deadline=now+4minutes", "--priority=TOP", "--mem=64", "--job-name=nvhc-hold-fill-n1",
        "--comment=nvhc-hold", "--output=/dev/null",
    ):  # fmt: skip
        assert option in submitted, option
    assert node.jobs.calls.index(node.jobs.named("reserve")[0]) < node.jobs.calls.index(submitted)
    (intent,) = node.ledger.intents()
    assert (intent.kind, intent.reason, intent.tries) == ("quarantine", uuid(3), 1)
    assert node.slurm.updates == []


def test_the_job_sleeps_only_when_the_program_says_that_it_holds() -> None:
    text = placeholder.script(("/x/my python", "-I"), "r", 123)
    assert text == "'/x/my python' -I --until 123 --reservation r && exec sleep 2147483647"
    assert "--reservation" not in placeholder.script(("/x/python",), "", 123)


def test_the_times_follow_from_the_time_allowed(node: Node) -> None:
    node.wanted = ON._replace(place_within_s=300.0)
    node.do(STEP)
    (submitted,) = node.jobs.named("submit")
    assert {"--time=6", "--deadline=now+8minutes"} <= set(submitted)
    assert node.jobs.named("reserve") == [("reserve", "nvhc-hold-n1", "n1", "9")]


def test_jobs_that_look_already_are_told_of_the_later_end(node: Node) -> None:
    assert placeholder.until(node.run_dir, "n1") == 0
    node.do(STEP)
    told = placeholder.until(node.run_dir, "n1")
    (submitted,) = node.jobs.named("submit")
    assert f"--until {told}" in submitted[-1]
    Path(placeholder.until_file(node.run_dir, "n1")).write_text("soon\n")
    assert placeholder.until(node.run_dir, "n1") == 0


def test_two_gpus_at_once_are_looked_for_by_the_same_jobs(node: Node) -> None:
    other = STEP._replace(uuid=uuid(5))
    done = node.do(STEP, other)
    assert [d.ok for d in done] == [True, True]
    assert len(node.jobs.named("submit")) == 1
    assert [i.reason for i in node.ledger.intents()] == [uuid(3), uuid(5)]


UNKNOWN = NodeJob("7", "RUNNING", uid=1000, positions=None)


@pytest.mark.parametrize("job", [user(2, 3), user(3, state="SUSPENDED"), UNKNOWN])
def test_a_gpu_in_use_is_left_to_the_epilog_of_its_job(tmp_path: Path, job: NodeJob) -> None:
    """Also while Slurm does not say which GPUs a job has: 22.05 does so just after a restart of slurmctld."""
    node = Node(tmp_path, job)
    node.of_job = None
    (done,) = node.do(STEP)
    assert (done.ok, "job 7 uses it" in done.detail) == (True, True)
    assert node.jobs.named("submit") == node.jobs.named("reserve") == []
    assert node.ledger.intents() == ()


def test_in_the_epilog_of_the_job_that_had_it_nobody_unknown_has_it(tmp_path: Path) -> None:
    node = Node(tmp_path, user(3, state="COMPLETING"), UNKNOWN._replace(job_id="8"))
    node.do(STEP)
    assert len(node.jobs.named("submit")) == 1


def test_a_job_without_gpus_and_a_comment_of_a_users_do_not_matter(tmp_path: Path) -> None:
    node = Node(tmp_path, user(), user(3, comment=ph.COMMENT, job_id="9"))
    (done,) = node.do(STEP)
    assert "job 9 uses it" in done.detail


def test_a_holder_of_before_a_reboot_does_not_count(tmp_path: Path) -> None:
    """Slurm shows it as running until the node has registered, and whoever asked for this step has looked at that."""
    node = Node(tmp_path, holder())
    assert node.do(STEP)[0].ok
    assert len(node.jobs.named("submit")) == 1


def test_only_ours_are_holders() -> None:
    jobs = (holder(1, uid=1000), holder(2, comment=""), holder(3), holder(4, state="COMPLETING"), holder(5, admin_comment=""))
    assert list(ph.held(jobs)) == [uuid(3)]


@pytest.mark.parametrize("flag", ["DRAIN", "FAIL"])
def test_nothing_is_begun_on_a_node_that_is_out(node: Node, flag: str) -> None:
    node.slurm.state = NodeState("IDLE", frozenset({flag}), "ADMIN: psu", partitions=("gpu",))
    (done,) = node.do(STEP)
    assert not done.ok
    assert node.jobs.calls == []
    assert node.slurm.updates == []


def test_a_node_that_is_down_gets_its_hold_before_it_returns(node: Node) -> None:
    node.slurm.state = NodeState("DOWN", frozenset(), "rebooting", partitions=("gpu",))
    (done,) = node.do(STEP)
    assert done.ok
    assert len(node.jobs.named("submit")) == 1


@pytest.mark.parametrize("call", ["reserve", "submit", "partitions", "of_node"])
@pytest.mark.parametrize("kind", [REFUSED, MISSING])
def test_a_no_leads_to_the_drain(node: Node, call: str, kind: str) -> None:
    node.jobs.trouble[call] = kind
    (done,) = node.do(STEP)
    assert done.ok, "the drain is in place"
    assert "drained instead" in done.detail
    assert node.slurm.updates == [REASON]
    assert node.ledger.own is not None
    assert node.ledger.intents() == ()
    if call == "submit":
        assert node.jobs.named("end_reservation"), "users need not wait for the reservation's end"


@pytest.mark.parametrize("call", ["reserve", "submit", "of_node"])
@pytest.mark.parametrize("kind", [TIMEOUT, UNREACHABLE])
def test_no_answer_leaves_the_intent(node: Node, call: str, kind: str) -> None:
    """What was asked for may be done yet, so the reservation is not taken back either."""
    node.jobs.trouble[call] = kind
    (done,) = node.do(STEP)
    assert not done.ok
    assert node.slurm.updates == []
    assert [i.kind for i in node.ledger.intents()] == ["quarantine"]
    assert node.jobs.named("end_reservation") == []


def test_without_a_ledger_the_gpu_is_held_all_the_same(node: Node) -> None:
    node.ledger.broken = True
    (done,) = node.do(STEP)
    assert done.ok
    assert len(node.jobs.named("submit")) == 1


@pytest.mark.parametrize(
    ("partitions", "why"),
    [
        ([GPU._replace(alone=True)], "whole nodes"),
        ([GPU._replace(root=False)], "root"),
        ([GPU._replace(up=False)], "UP"),
        ([GPU._replace(preempt="REQUEUE")], "preempted"),
        ([GPU._replace(tier=2), PartitionRules("low", tier=1, preempt="REQUEUE")], "preempt jobs of partition low"),
        ([], "does not have this node"),
    ],
)
def test_a_partition_that_does_not_fit_leads_to_the_drain(tmp_path: Path, partitions: list[PartitionRules], why: str) -> None:
    node = Node(tmp_path, partitions=partitions)
    node.slurm.state = NodeState("IDLE", frozenset(), partitions=tuple(p.name for p in partitions))
    (done,) = node.do(STEP)
    assert why in done.detail
    assert node.slurm.updates == [REASON]


@pytest.mark.parametrize(
    ("named", "tier", "chosen", "alone"),
    [("", 5, "gpu", False), ("nvhc", 5, "nvhc", True), ("nvhc", 1, "nvhc", False), ("nvhc", 0, "nvhc", False)],
)
def test_a_partition_of_its_own_needs_no_reservation_only_when_it_comes_first(named: str, tier: int, chosen: str, alone: bool) -> None:
    known = {"gpu": GPU, "nvhc": PartitionRules("nvhc", tier=tier)}
    assert placeholder.choose(known, ("gpu", "nvhc"), ON._replace(partition=named), "gpu") == (chosen, alone)


def test_a_partition_that_does_not_have_the_node_is_told() -> None:
    with pytest.raises(SlurmError, match="partition other does not have this node"):
        placeholder.choose({"other": GPU._replace(name="other"), "gpu": GPU}, ("gpu",), ON._replace(partition="other"))


def test_where_the_jobs_own_partition_does_not_fit_another_of_the_nodes_does() -> None:
    known = {"whole": PartitionRules("whole", alone=True), "gpu": GPU}
    assert placeholder.choose(known, ("whole", "gpu"), ON, "whole") == ("gpu", False)


def test_ending_a_hold(tmp_path: Path) -> None:
    mine, foreign = holder(), holder(job_id="8", uid=1000)
    node = Node(tmp_path, mine, foreign, holder(n=5, job_id="900_5"))
    node.ledger.holds[uuid(3)] = Hold(uuid(3), "8", T0)
    (done,) = node.do(Step(st.UNHOLD, uuid=uuid(3), job="8"))
    assert done.ok
    assert node.jobs.named("cancel") == [("cancel", "900_3")], "only ours, whatever the ledger says"
    assert node.ledger.holds == {}


def test_a_hold_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.ledger.holds[uuid(3)] = Hold(uuid(3), "900_3", T0)
    (done,) = node.do(Step(st.UNHOLD, uuid=uuid(3)))
    assert (done.ok, done.detail) == (True, "no placeholder job held it")
    assert node.jobs.named("cancel") == []
    assert node.ledger.holds == {}


@pytest.mark.parametrize("call", ["of_node", "cancel"])
def test_a_hold_that_could_not_be_ended_stays_recorded(tmp_path: Path, call: str) -> None:
    node = Node(tmp_path, holder())
    node.ledger.holds[uuid(3)] = Hold(uuid(3), "900_3", T0)
    node.jobs.trouble[call] = TIMEOUT
    (done,) = node.do(Step(st.UNHOLD, uuid=uuid(3)))
    assert not done.ok
    assert list(node.ledger.holds) == [uuid(3)]


def test_the_command_is_one_that_a_shell_reads_as_it_was_meant() -> None:
    words = ("/opt/nv hc/python", "-m", "slurm_nvhc.hold", "--config", "/etc/it's/policy.yaml")
    assert shlex.split(placeholder.script(words, "", 5).partition(" && ")[0]) == [*words, "--until", "5"]
