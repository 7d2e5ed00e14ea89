"""`nvhc gpu`: one GPU taken out by hand, shown, verified, given back; and that it does what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from site_ import Site

from slurm_nvhc.model import placeholder, tested
from slurm_nvhc.model import protective as kept
from slurm_nvhc.model.protective import Exclusion, Hold

QUARANTINE: dict[str, Any] = {"quarantine": {"enabled": True}}
NARROW: dict[str, Any] = {"narrow": {"enabled": True, "jobs": "any"}}


class Slurm:
    """Commands of a Slurm with one node: jobs are files, what is changed is noted in ``calls``."""

    def __init__(self, site: Site) -> None:
        self.root, self.site = site.root, site
        self.calls_file, self.jobs = self.root / "calls", self.root / "jobs"
        self.jobs.mkdir()
        site.slurm_conf.write_text("ClusterName=test\nPrologFlags=Alloc\n")
        note = f'echo "$(basename "$0") $*" >>{self.calls_file}'
        refuse = f"[ -e {self.root}/refuse ]"
        self.program("squeue", f"{note}\ncat {self.jobs}/list 2>/dev/null; exit 0")
        self.program("sbatch", f"{note}\n{refuse} && {{ echo 'sbatch: error: Invalid user id' >&2; exit 1; }}\necho 700")
        self.program("scancel", f"{note}\n{refuse} && {{ echo 'scancel: error: no' >&2; exit 1; }}\nexit 0")
        self.program(
            "scontrol",
            f"""case "$*" in
  "-d show job "*) cat {self.jobs}/$4;;
  *"show partition"*) printf 'PartitionName=gpu\\n   Nodes=n1 PreemptMode=OFF PriorityTier=1 DisableRootJobs=NO State=UP\\n';;
  "show node"*) printf 'NodeName=n1\\n   State=IDLE ThreadsPerCore=1\\n   Partitions=gpu\\n';;
  *) {note};;
esac""",
        )

    def program(self, name: str, script: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def job(self, number: int, uid: int, gpus: str, comment: str = "", admin: str = "", state: str = "RUNNING") -> None:
        with open(self.jobs / "list", "a") as file:
            file.write(f"{number}|{uid}|{state}\n")
        (self.jobs / str(number)).write_text(
            f"JobId={number} JobName=x\n   UserId=someone({uid}) GroupId=x(1)\n   JobState={state} Reason=None\n"
            f"   Requeue=0 Restarts=0 BatchFlag=1\n   JOB_GRES=gpu:1\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:h100:1(IDX:{gpus})\n"
            f"   AdminComment={admin}\n   Comment={comment}\n   Command=(null)\n"
        )

    def calls(self) -> str:
        return self.calls_file.read_text() if self.calls_file.exists() else ""


def node(tmp_path: Path, policy: dict[str, Any]) -> Site:
    """A node on which a hook has run."""
    site = Site(tmp_path, policy=policy)
    site.hook("health_check")
    return site


def uuid(site: Site, gpu: int) -> str:
    with site.ledger() as ledger:
        return next(g.uuid for g in ledger.known_gpus() if g.nvml_index == gpu)


def one(site: Site) -> Exclusion:
    with site.ledger() as ledger:
        (found,) = ledger.exclusions()
    return found


def exclude(site: Site, gpu: int = 3, **changes: Any) -> str:
    with site.ledger() as ledger:
        (known,) = (g for g in ledger.known_gpus() if g.nvml_index == gpu)
        ledger.exclude(Exclusion(known.uuid, "NVL-STORM", "gpu3 link1 storms", "nvhc", 1, slot=known.pci)._replace(**changes))
    return known.uuid


# --- exclude


def test_narrow_by_hand_hides_it_from_the_next_job(tmp_path: Path) -> None:
    site = node(tmp_path, NARROW)
    said = site.nvhc("gpu", "exclude", "gpu3", "--why", "user says it is slow\nticket 812")
    assert said == f"excluded gpu3 {uuid(site, 3)}: it is hidden from jobs from their prolog on; jobs that run keep it\n"
    mine = one(site)
    assert (mine.uuid, mine.code, mine.why, mine.way) == (uuid(site, 3), "BY-HAND", "user says it is slow ticket 812", kept.NARROW)
    assert mine.who
    assert mine.slot.startswith("0000:")
    site.hook("prolog", 1)
    assert [s["kind"] for s in site.last("prolog").steps] == ["narrow"]
    assert site.last("prolog").steps[0]["uuids"] == [uuid(site, 3)]
    assert "is excluded already since" in site.nvhc("gpu", "exclude", "gpu3", "--why", "again", code=2)


@pytest.mark.parametrize(
    ("policy", "words", "problem"),
    [
        ({}, (), "enables neither quarantine nor narrow"),
        (NARROW, ("--way", "quarantine"), "gpu3: can not be taken out by quarantine: quarantine is off"),
        (QUARANTINE, (), "it is not known whether PrologFlags has Alloc"),
        (QUARANTINE, ("--way", "narrow"), "narrowing is off"),
        ({**NARROW, "mode": "observe"}, (), "is observe: hooks would keep no job off the GPU"),
        ({"partitions": {"other": NARROW}}, ("--partition", "gpu"), "enables neither"),
    ],
)
def test_what_the_policy_does_not_do_is_refused(tmp_path: Path, policy: dict[str, Any], words: tuple[str, ...], problem: str) -> None:
    site = node(tmp_path, policy)
    if policy is QUARANTINE and not words:
        site.slurm_conf.unlink()
    said = site.nvhc("gpu", "exclude", "gpu3", "--why", "w", *words, code=2)
    assert problem in said
    assert said.count("\n") == 1, "one line"
    with site.ledger() as ledger:
        assert ledger.exclusions() == ()


def test_the_policy_of_a_partition_can_be_named(tmp_path: Path) -> None:
    site = node(tmp_path, {"partitions": {"big": {"narrow": {"enabled": True}}}})
    assert "enables neither" in site.nvhc("gpu", "exclude", "gpu3", "--why", "w", code=2)
    site.nvhc("gpu", "exclude", "gpu3", "--why", "w", "--partition", "big")
    assert one(site).way == kept.NARROW


def test_no_more_than_the_policy_allows_and_only_with_a_certain_position(tmp_path: Path) -> None:
    site = node(tmp_path, NARROW)
    site.nvhc("gpu", "exclude", "gpu3", "--why", "w")
    assert "2 GPUs would be excluded, 1 may be" in site.nvhc("gpu", "exclude", "gpu4", "--why", "w", code=2)
    site.nvhc("gpu", "release", "gpu3")
    (tmp_path / "gres.conf").unlink()
    assert "the GPU's position is not certain" in site.nvhc("gpu", "exclude", "gpu3", "--why", "w", code=2)


def test_a_gpu_that_does_not_answer_is_for_the_drain(tmp_path: Path) -> None:
    site = node(tmp_path, NARROW)
    with site.edit() as world:
        world.lose("g3")
    assert "does not answer" in site.nvhc("gpu", "exclude", "gpu3", "--why", "w", code=2)
    assert "is no GPU of this node (there are: gpu0 GPU-" in site.nvhc("gpu", "exclude", "gpu12", "--why", "w", code=2)


def test_a_free_gpu_is_held_at_once(tmp_path: Path) -> None:
    site = node(tmp_path, QUARANTINE)
    slurm = Slurm(site)
    slurm.job(812, 1001, "0-1")
    said = site.nvhc("gpu", "exclude", "gpu3", "--why", "slow")
    assert "placeholder jobs are submitted" in said
    assert slurm.calls().count("sbatch --parsable") == 1
    mine = one(site)
    assert mine.way == kept.QUARANTINE
    assert mine.until_ns - mine.since_ns == 7 * 86400 * 10**9


def test_a_gpu_in_use_is_held_when_its_job_ends(tmp_path: Path) -> None:
    site = node(tmp_path, QUARANTINE)
    slurm = Slurm(site)
    slurm.job(812, 1001, "2-3")
    assert "job 812 uses it: held when that ends" in site.nvhc("gpu", "exclude", "gpu3", "--why", "slow")
    assert "sbatch" not in slurm.calls()
    (slurm.jobs / "list").write_text("")
    site.hook("epilog", 812, "2,3")
    assert slurm.calls().count("sbatch --parsable") == 1


def test_what_slurm_refuses_to_hold_drains_the_node(tmp_path: Path) -> None:
    site = node(tmp_path, QUARANTINE)
    slurm = Slurm(site)
    (tmp_path / "refuse").touch()
    said = site.nvhc("gpu", "exclude", "gpu3", "--why", "slow", code=None)
    assert "Invalid user id" in said
    assert "drained instead" in said
    assert "reason=nvhc: GPU-EXCLUDED gpu3" in slurm.calls()


# --- list, status, explain


def test_who_when_why_and_the_job_are_shown(tmp_path: Path) -> None:
    site = node(tmp_path, QUARANTINE)
    name = exclude(site, way=kept.QUARANTINE, since_ns=1_800_000_000 * 10**9)
    listed = site.nvhc("gpu", "list")
    for word in ("gpu3", name, "excluded", "quarantine, not held", "NVL-STORM", "gpu3 link1 storms", "nvhc", "2027-01-15"):
        assert word in listed
    with site.ledger() as ledger:
        ledger.set_hold(Hold(name, "812_3", 1, "b1"))
    assert "quarantine, job 812_3" in site.nvhc("gpu", "list")
    assert site.nvhc_json("gpu", "list")["holds"][0]["job_id"] == "812_3"
    assert "excluded (quarantine, job 812_3): NVL-STORM" in site.nvhc("status", code=None)
    assert site.nvhc_json("status", code=None)["holds"][0]["uuid"] == name
    assert "excluded (quarantine, job 812_3) since 2027-01-15T08:00:00Z by nvhc: NVL-STORM" in site.nvhc("explain", "gpu3", code=None)
    assert "quarantine, job 812_3" in site.nvhc_json("explain", "gpu3", code=None)["exclusions"][0]


def test_a_suspicion_is_shown_as_one(tmp_path: Path) -> None:
    site = node(tmp_path, NARROW)
    exclude(site, stage=kept.SUSPECTED)
    assert "suspected" in site.nvhc("gpu", "list")
    assert "suspected: NVL-STORM" in site.nvhc("status", code=None)
    assert "only suspected" in site.nvhc("gpu", "verify", "gpu3", "--why", "w", code=2)
    assert "it was only suspected" in site.nvhc("gpu", "release", "gpu3")


def test_what_has_ended_is_listed_on_request(tmp_path: Path) -> None:
    site = node(tmp_path, NARROW)
    exclude(site)
    site.nvhc("gpu", "release", "gpu3", "--why", "reseated")
    assert "reseated" not in site.nvhc("gpu", "list")
    for word in ("released", "reseated", "NVL-STORM"):
        assert word in site.nvhc("gpu", "list", "--all")
    assert site.nvhc_json("gpu", "list", "--all")["ended"][0]["how"] == "released"
    assert "released" in site.nvhc("explain", "gpu3", code=None)


# --- verify, release


def test_a_proven_fault_is_released_by_force_only(tmp_path: Path) -> None:
    site = node(tmp_path, NARROW)
    exclude(site)
    site.nvhc("gpu", "verify", "gpu3", "--why", "field diagnostic: fail 42")
    mine = one(site)
    assert mine.stage == kept.VERIFIED
    assert "gpu3 link1 storms; verified by " in mine.why
    assert "field diagnostic: fail 42" in mine.why
    assert "is verified already" in site.nvhc("gpu", "verify", "gpu3", "--why", "again", code=2)
    assert "has a fault that was proven" in site.nvhc("gpu", "release", "gpu3", code=2)
    assert one(site).stage == kept.VERIFIED
    site.hook("prolog", 1)
    assert [s["kind"] for s in site.last("prolog").steps] == ["narrow"], "it is kept from jobs as before"
    site.nvhc("gpu", "release", "gpu3", "--force", "--why", "the vendor says it is fine")
    with site.ledger() as ledger:
        state = ledger.protective()
    assert state.exclusions == ()
    assert (state.ended[0].exclusion.stage, state.ended[0].why) == (kept.VERIFIED, "the vendor says it is fine")


def test_release_ends_the_placeholder_job_and_only_that(tmp_path: Path) -> None:
    site = node(tmp_path, QUARANTINE)
    slurm = Slurm(site)
    name = exclude(site, way=kept.QUARANTINE)
    slurm.job(900, 0, "3", placeholder.COMMENT, placeholder.says(name))
    slurm.job(901, 1001, "5", placeholder.COMMENT, placeholder.says(name))
    with site.ledger() as ledger:
        ledger.set_hold(Hold(name, "900", 1))
    assert "released" in site.nvhc("gpu", "release", "gpu3", "--why", "new riser")
    assert [line for line in slurm.calls().splitlines() if "scancel" in line] == ["scancel -Q 900"]
    with site.ledger() as ledger:
        assert ledger.protective().holds == ()


def test_a_placeholder_job_that_can_not_be_ended_now_is_ended_by_the_next_health_check(tmp_path: Path) -> None:
    site = node(tmp_path, QUARANTINE)
    slurm = Slurm(site)
    name = exclude(site, way=kept.QUARANTINE)
    slurm.job(900, 0, "3", placeholder.COMMENT, placeholder.says(name))
    with site.ledger() as ledger:
        ledger.set_hold(Hold(name, "900", 1))
    (tmp_path / "refuse").touch()
    assert "could not be ended" in site.nvhc("gpu", "release", "gpu3", code=3)
    (tmp_path / "refuse").unlink()
    site.hook("health_check")
    assert [s["kind"] for s in site.last("health_check").steps] == ["unhold"]
    assert slurm.calls().count("scancel -Q 900") == 2


# --- the whole way through the hooks


def test_hooks_of_jobs_ask_nothing_while_it_is_held_and_a_health_check_looks_after_it(tmp_path: Path) -> None:
    site = node(tmp_path, QUARANTINE)
    slurm = Slurm(site)
    name = exclude(site, way=kept.QUARANTINE)
    slurm.job(900, 0, "3", placeholder.COMMENT, placeholder.says(name))
    with site.ledger() as ledger:
        boot = ledger.last_seen()
        assert boot is not None
        ledger.set_hold(Hold(name, "900", 1, boot.boot_id))
    site.hook("prolog", 1, "0,1")
    site.hook("epilog", 1, "0,1")
    assert slurm.calls() == ""
    site.hook("health_check")
    assert slurm.calls() == "squeue -h -a -w n1 -o %A|%U|%T\n"
    assert site.last("health_check").steps == ()
    (slurm.jobs / "list").write_text("")  # somebody cancelled it
    site.hook("health_check")
    assert [s["kind"] for s in site.last("health_check").steps] == ["hold_lost", "quarantine"]
    assert slurm.calls().count("sbatch --parsable") == 1
    with site.ledger() as ledger:
        state = ledger.protective()
    assert (state.holds, [s.key for s in state.strikes]) == ((), [name])
    assert [(i.kind, i.reason, i.tries) for i in state.intents] == [("quarantine", name, 1)]
    site.hook("health_check")
    assert slurm.calls().count("sbatch --parsable") == 1, "those that were submitted look for it"


def test_suspected_in_observe_mode_excluded_once_it_enforces(tmp_path: Path) -> None:
    storm = {"rules": {"nvl_storm": {"mode": "enforce"}}}
    site = node(tmp_path, {**storm, **NARROW, "mode": "observe"})
    site.hook("prolog", 1)
    with site.edit() as world:
        world.storm("g3.link1", "replay", 9000, 600)
    site.hook("epilog", 1)
    assert (one(site).stage, one(site).who, site.calls()) == (kept.SUSPECTED, "nvhc", [])
    site.hook("prolog", 2)
    assert [s["kind"] for s in site.last("prolog").steps] == [], "nothing is kept from jobs"
    site.write_policy({**storm, **NARROW})
    with site.edit() as world:
        world.storm("g3.link1", "replay", 9000, 600)
    site.hook("epilog", 2)
    assert one(site).stage == kept.EXCLUDED


def test_a_suspicion_is_cleared_by_clean_health_checks(tmp_path: Path) -> None:
    from slurm_nvhc.act.exclusions import CLEAN_LOOKS

    site = node(tmp_path, {**NARROW, "mode": "observe"})
    exclude(site, stage=kept.SUSPECTED)
    with site.ledger() as ledger:
        ledger.put("clean_looks", f"{uuid(site, 3)} {CLEAN_LOOKS - 2}")
    site.hook("health_check")
    assert one(site).stage == kept.SUSPECTED
    site.hook("health_check")
    with site.ledger() as ledger:
        state = ledger.protective()
    assert state.exclusions == ()
    assert state.ended[0].how == kept.CLEARED


def test_one_that_a_diagnostic_confirmed_is_not_cleared_by_looks(tmp_path: Path) -> None:
    from slurm_nvhc.act.exclusions import CLEAN_LOOKS

    site = node(tmp_path, {**NARROW, "mode": "observe"})
    exclude(site, stage=kept.SUSPECTED)
    with site.ledger() as ledger:
        ledger.put("clean_looks", f"{uuid(site, 3)} {CLEAN_LOOKS - 1}")
        ledger.put(f"diag:{uuid(site, 3)}", tested.dumps(tested.Tested(1, ("memory",), "fail", 9.0, "nvhc diag", failed={"memory": 1})))
    for _ in range(2):
        site.hook("health_check")
    assert one(site).stage == kept.SUSPECTED


def test_a_new_card_in_its_place_ends_the_exclusion(tmp_path: Path) -> None:
    site = node(tmp_path, NARROW)
    site.nvhc("gpu", "exclude", "gpu3", "--why", "w")
    old = uuid(site, 3)
    world = json.loads(Path(site.world_file).read_text())
    Path(site.world_file).write_text(json.dumps(world).replace(old, "GPU-99999999-1111-2222-3333-444444444444"))
    site.hook("health_check")
    with site.ledger() as ledger:
        state = ledger.protective()
    assert state.exclusions == ()
    assert (state.ended[0].how, state.ended[0].who) == (kept.REPLACED, "nvhc")
