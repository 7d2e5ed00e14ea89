"""The doctor about taking one GPU out: said only where the policy wants it, and why it can not be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_doctor import machine

from slurm_nvhc.doctor.examine import examine
from slurm_nvhc.doctor.facts import Facts, Line, PolicyFacts, QuarantineFacts, SlurmFacts
from slurm_nvhc.doctor.look import host
from slurm_nvhc.doctor.look import quarantine as look
from slurm_nvhc.doctor.look.edges import Edges
from slurm_nvhc.model.protective import QUARANTINE, SUSPECTED, Exclusion, Hold
from slurm_nvhc.policy import source
from slurm_nvhc.policy.acting import Quarantine
from slurm_nvhc.proc import child, mounts
from slurm_nvhc.slurm.gres import GresList
from slurm_nvhc.slurm.jobs import PartitionRules

ON = Quarantine(enabled=True)
GPU = PartitionRules("gpu")
WANTED = QuarantineFacts({"gpu": ON}, True, (), ("gpu",), {"gpu": GPU})


def wanted(**changes: Any) -> Facts:
    facts = machine()
    return facts._replace(policy=facts.policy._replace(quarantines=True), quarantine=WANTED._replace(**changes))


def said(facts: Facts) -> dict[str, Line]:
    return {line.check: line for line in examine(facts) if line.check.startswith(("exclusion.", "quarantine."))}


def test_nothing_is_said_where_nobody_wants_it() -> None:
    assert said(machine()) == {}


def test_a_machine_in_order() -> None:
    lines = said(wanted())
    assert {line.verdict for line in lines.values()} == {"ok"}
    assert list(lines) == ["exclusion.state", "exclusion.positions", "quarantine.alloc", "quarantine.commands", "quarantine.partitions"]
    assert lines["quarantine.partitions"].found == "placeholder jobs: gpu in gpu with a reservation"
    assert list(said(machine(policy__narrowing=True))) == ["exclusion.state", "exclusion.positions"]


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "words"),
    [
        ({"alloc": False}, "quarantine.alloc", "warn", "PrologFlags has no Alloc"),
        ({"alloc": None}, "quarantine.alloc", "warn", "it is not known"),
        ({"missing": ("sbatch",)}, "quarantine.commands", "warn", "not there: sbatch"),
        ({"partitions": {"gpu": GPU._replace(alone=True)}}, "quarantine.partitions", "warn", "gives whole nodes to one job or user"),
        ({"partitions": {"gpu": GPU._replace(root=False)}}, "quarantine.partitions", "warn", "DisableRootJobs"),
        ({"partitions": {"gpu": GPU._replace(preempt="REQUEUE")}}, "quarantine.partitions", "warn", "preempted"),
        ({"wanted": {"gpu": ON._replace(partition="nvhc")}}, "quarantine.partitions", "warn", "partition nvhc does not have this node"),
        ({"problem": "scontrol: no answer"}, "quarantine.partitions", "unknown", "scontrol: no answer"),
    ],
)
def test_what_is_in_the_way_is_named(changes: dict[str, Any], check: str, verdict: str, words: str) -> None:
    line = said(wanted(**changes))[check]
    assert line.verdict == verdict
    assert words in line.found
    assert line.advice


def test_numbers_that_are_no_positions_are_told() -> None:
    facts = wanted()
    policy = facts.policy.policy._replace(slurm=facts.policy.policy.slurm._replace(job_gpus="minor"))
    facts = facts._replace(policy=facts.policy._replace(policy=policy))
    line = said(facts)["exclusion.positions"]
    assert line.verdict == "warn"
    assert "no quarantine" in line.found


def test_state_in_memory_and_assumed_positions() -> None:
    facts = wanted()
    state = facts.host.state
    lost = facts._replace(host=facts.host._replace(state=state._replace(lost="tmpfs")))
    line = said(lost)["exclusion.state"]
    assert line.verdict == "warn"
    assert "tmpfs" in line.found
    assert "a bad GPU drains the node" in line.advice
    unseen = facts._replace(host=facts.host._replace(state=state._replace(lost=None)))
    assert said(unseen)["exclusion.state"].verdict == "unknown"
    for word, verdict in ((True, "ok"), (False, "warn")):
        policy = facts.policy.policy._replace(record=facts.policy.policy.record._replace(durable=word))
        line = said(lost._replace(policy=facts.policy._replace(policy=policy)))["exclusion.state"]
        assert (line.verdict, "record.durable" in line.found) == (verdict, True), "the site knows better than the file system"
    assumed = facts._replace(slurm=facts.slurm._replace(gres=GresList()))
    assert said(assumed)["exclusion.positions"].verdict == "warn"


def test_the_ledger_line_tells_what_keeps_jobs_off() -> None:
    (uuid, *_) = machine().snapshot.gpus or {}
    one = Exclusion(uuid, "NVL-STORM", "w", "nvhc", 1, way=QUARANTINE)

    def line(exclusion: Exclusion, *holds: Hold) -> str:
        facts = machine(ledger__exclusions=(exclusion,))
        facts = facts._replace(ledger=facts.ledger._replace(holds=holds))
        return next(x.found for x in examine(facts) if x.check == "ledger.exclusions")

    assert "no placeholder job is known to hold it" in line(one)
    assert "no placeholder job" not in line(one, Hold(uuid, "77", 1))
    assert "only suspected" in line(one._replace(stage=SUSPECTED))


# --- looking


MOUNTS = """\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 0:1 / /run rw - tmpfs tmpfs rw
22 20 0:2 / /diskless rw - overlay overlay rw,lowerdir=/l,upperdir=/run/over\\040lay/upper,workdir=/w
23 20 0:3 / /box rw - overlay overlay rw,lowerdir=/l,upperdir=/elsewhere/upper
24 20 0:4 / /boot\\040disk rw - tmpfs tmpfs rw
25 24 254:1 / /boot\\040disk rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "lost"),
    [
        ("/var/lib/nvhc", ""),
        ("/run/nvhc", "tmpfs"),
        ("/running", ""),
        ("/diskless/var", "overlay over tmpfs"),
        ("/box/var", ""),
        ("/boot disk/x", ""),
    ],
)
def test_what_survives_a_reboot(path: str, lost: str, tmp_path: Path) -> None:
    assert mounts.in_memory(mounts.parse(MOUNTS), path) == lost
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    assert host.directory(Edges(str(tmp_path)), path).lost == lost


def test_without_a_list_of_mounts_nothing_is_relied_upon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mounts.in_memory((), "/var") == "an unknown file system"
    assert host.directory(Edges(str(tmp_path)), "/var").lost is None
    monkeypatch.setattr(mounts, "_MOUNTINFO", str(tmp_path / "none"))
    assert not mounts.durable("/var")
    (tmp_path / "none").write_text(MOUNTS)
    assert mounts.durable("/var")
    assert not mounts.durable("/run")


SHOWN = {
    "node": "NodeName=n1\n   State=IDLE ThreadsPerCore=1\n   Partitions=gpu,big\n",
    "partition": "PartitionName=gpu\n   DisableRootJobs=NO\n\nPartitionName=big\n   OverSubscribe=EXCLUSIVE\n",
}


def test_the_look_asks_slurm_only_where_it_is_wanted(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run(argv: Any, timeout_s: float) -> child.Result:
        asked.append([*argv])
        return child.Result(0, SHOWN["node" if "node" in argv else "partition"], "", "")

    policy = tmp_path / "policy.yaml"
    policy.write_text("schema: 1\npartitions: {big: {quarantine: {enabled: true}}}\n")
    for name in look.COMMANDS[:2]:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    conf = tmp_path / "slurm.conf"
    conf.write_text("PrologFlags=Contain\n")
    slurm = machine().slurm._replace(conf=str(conf), scontrol=str(tmp_path / "scontrol"))
    nothing = PolicyFacts(str(policy), source.nothing(), "x")
    assert look.look(Edges(run=run), "n1", nothing, slurm) == QuarantineFacts()
    assert asked == []
    found = look.look(Edges(run=run), "n1", nothing._replace(quarantines=True), slurm)
    assert (list(found.wanted), found.alloc, found.missing, found.of_node) == (["big"], True, ("scancel",), ("gpu", "big"))
    assert found.partitions["big"].alone
    assert len(asked) == 2


def test_a_slurm_that_does_not_answer_is_unknown(tmp_path: Path) -> None:
    slurm: SlurmFacts = machine().slurm._replace(conf="")
    given = PolicyFacts(str(tmp_path / "none.yaml"), source.nothing(), "x", quarantines=True)
    edges = Edges(run=lambda argv, s: child.Result(1, "", "slurm_load_node error: Unable to contact slurm controller\n", ""))
    found = look.look(edges, "n1", given, slurm)
    assert found.problem.endswith("Unable to contact slurm controller")
    assert found.alloc is None
    assert said(wanted()._replace(quarantine=found))["quarantine.partitions"].verdict == "unknown"
