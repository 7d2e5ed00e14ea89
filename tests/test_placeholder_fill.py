"""What a placeholder job does: stay on the GPU that is to be held, or make room; and never both or neither."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Optional

import pytest
from act_fakes import T0, Slurm, uuid
from site_ import Site as Node
from test_placeholder import Jobs, holder, user

from slurm_nvhc.act import placeholder
from slurm_nvhc.context import Site
from slurm_nvhc.hold import __main__ as main
from slurm_nvhc.hold import fill as fl
from slurm_nvhc.hold import place as places
from slurm_nvhc.hold.place import Place
from slurm_nvhc.model import placeholder as ph
from slurm_nvhc.model.node_state import NodeState
from slurm_nvhc.model.protective import QUARANTINE, RELEASED, SUSPECTED, Ended, Exclusion, Intent, Pause
from slurm_nvhc.proc import files
from slurm_nvhc.record import lock
from slurm_nvhc.slurm.command import REFUSED, TIMEOUT, UNREACHABLE, SlurmError

PLACE = Place(uuid(3), T0, "boot-1", {uuid(n): n for n in range(8)})
SLEEP = time.sleep
NAME = "nvhc-hold-fill-n1"
RESERVATION = "nvhc-hold-n1"
STAY = ("update_job", "900_3", "reservationname=", "jobname=nvhc-hold", "timelimit=UNLIMITED", f"admincomment=nvhc: holds {uuid(3)}")
END = ("update_job", "900_3", "reservationname=", "jobname=nvhc-hold-end")
LET_IN = [("cancel_named", NAME), ("end_reservation", RESERVATION)]


def excluded(n: int, **changes: Any) -> Exclusion:
    return Exclusion(uuid(n), "NVL-STORM", f"gpu{n} link11", "nvhc", T0, way=QUARANTINE)._replace(**changes)


class Setting:
    """One placeholder job on a node of its own, with Slurm played."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = Node(tmp_path, policy={"quarantine": {"enabled": True}})
        self.site = Site(str(self.node.config), str(tmp_path / "state"), str(tmp_path / "run"), str(self.node.slurm_conf))
        self.jobs, self.slurm = Jobs(), Slurm()
        self.slurm.state = NodeState("MIXED", frozenset())
        monkeypatch.setattr(fl, "_jobs", lambda context: self.jobs)
        monkeypatch.setattr(fl, "SlurmCommands", lambda *_args: self.slurm)
        monkeypatch.setattr(fl, "SlurmFleet", lambda *_args: None)
        for name, seconds in (("LOOK_S", 0.001), ("TRY_S", 0.05), ("UNTOLD_S", 0.05), ("LOCK_S", 0.5)):
            monkeypatch.setattr(fl, name, seconds)
        monkeypatch.setattr(fl.time, "sleep", self._pause)
        self.pauses = 0

    def _pause(self, seconds: float) -> None:
        self.pauses += 1
        assert self.pauses < 500, "it waits for something that does not come"
        SLEEP(seconds)

    def exclude(self, *exclusions: Exclusion) -> None:
        with self.node.ledger() as ledger:
            for exclusion in exclusions:
                ledger.exclude(exclusion)
                ledger.add_intent(Intent(QUARANTINE, exclusion.uuid, T0))

    def release(self, n: int) -> None:
        with self.node.ledger() as ledger:
            ledger.end_exclusion(Ended(excluded(n), RELEASED, "ada", "repaired", T0))

    def fill(self, place: Optional[Place] = PLACE, over: bool = True, reservation: str = RESERVATION) -> fl.Fill:
        if place is not None:
            places.write(self.site.run, "n1", "903", place)
        until_s = time.time() + (-1 if over else 60)
        environment = {"SLURM_JOB_ID": "903", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_UID": "0"}
        return fl.Fill(self.site, "n1", "903", "900_3", reservation, until_s, environment)

    def kept(self):  # type: ignore[no-untyped-def]
        with self.node.ledger() as ledger:
            return ledger.protective()

    def changes(self) -> list[tuple[str, ...]]:
        return [c for c in self.jobs.calls if c[0] != "of_node"]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(tmp_path, monkeypatch)


def test_on_the_bad_gpu_it_stays_and_lets_users_in(there: Setting) -> None:
    there.exclude(excluded(3))
    there.jobs.there = (holder(3),)  # as Slurm shows it once it stays
    assert fl.run(there.fill(over=False))
    assert there.changes() == [STAY, *LET_IN]
    (hold,) = there.kept().holds
    assert (hold.uuid, hold.job_id, hold.since_ns, hold.boot_id) == (uuid(3), "900_3", T0, "boot-1")
    assert there.kept().intents == ()
    assert there.slurm.updates == []


def test_also_when_the_time_is_up(there: Setting) -> None:
    there.exclude(excluded(3))
    there.jobs.there = (holder(3),)
    assert fl.run(there.fill(over=True))
    assert there.changes() == [STAY, *LET_IN]


def test_without_a_reservation_there_is_none_to_leave(there: Setting) -> None:
    there.exclude(excluded(3))
    there.jobs.there = (holder(3),)
    assert fl.run(there.fill(reservation=""))
    assert there.changes() == [("update_job", "900_3", *STAY[3:]), LET_IN[0]]


def test_while_another_gpu_is_looked_for_the_others_go_on(there: Setting) -> None:
    there.exclude(excluded(3), excluded(5))
    there.jobs.there = (holder(3),)
    assert fl.run(there.fill(over=False))
    assert there.changes() == [STAY]


@pytest.mark.parametrize("job", [user(5), user(4, 5), user(5, state="SUSPENDED")])
def test_a_gpu_that_a_users_job_has_is_not_waited_for(there: Setting, job: Any) -> None:
    there.exclude(excluded(3), excluded(5))
    there.jobs.there = (holder(3), job)
    assert fl.run(there.fill(over=False))
    assert there.changes() == [STAY, *LET_IN]


def test_on_another_gpu_it_waits_and_at_the_end_drains_before_users_are_let_in(there: Setting) -> None:
    there.exclude(excluded(5))
    drained_at = []
    there.jobs.cancel_named = lambda name, timeout_s=None: drained_at.append(list(there.slurm.updates))  # type: ignore[method-assign]
    assert not fl.run(there.fill())
    (reason,) = there.slurm.updates
    assert reason.startswith("nvhc: GPU-EXCLUDED GPU-00000005… (NVL-STORM: gpu5 link11) could not be quarantined within 30 s")
    assert drained_at == [[reason]], "first the drain, then users"
    assert there.changes() == [END, LET_IN[1]]
    own = there.kept().own_drain
    assert own is not None
    assert own.keys == (f"GPU-EXCLUDED {uuid(5)}",)


def test_at_the_end_a_gpu_in_use_is_left_to_its_epilog(there: Setting) -> None:
    there.exclude(excluded(5))
    there.jobs.there = (user(5),)
    assert not fl.run(there.fill())
    assert there.slurm.updates == []
    assert there.changes() == [END, *LET_IN]


def test_at_the_end_all_may_be_held_by_others(there: Setting) -> None:
    there.exclude(excluded(5))
    there.jobs.there = (holder(5),)
    assert not fl.run(there.fill())
    assert there.slurm.updates == []
    assert there.changes() == [END, *LET_IN]


def test_a_comment_of_a_users_holds_nothing(there: Setting) -> None:
    there.exclude(excluded(5))
    there.jobs.there = (holder(5, uid=1000, positions=(1,)),)
    fl.run(there.fill())
    assert len(there.slurm.updates) == 1


def test_a_search_that_began_later_puts_off_the_end(there: Setting) -> None:
    there.exclude(excluded(5))
    fill = there.fill()
    path = placeholder.until_file(there.site.run, "n1")
    files.write_atomic(path, f"{int(time.time()) + 60}\n")
    assert fl.deadline_s(fill) > time.time() + 30
    assert fl._clear_up(fill, PLACE, at_end=True) is True
    assert there.changes() == []


@pytest.mark.parametrize("exclusion", [excluded(3, way="narrow"), excluded(3, stage=SUSPECTED)])
def test_what_is_not_to_be_held_is_not_held(there: Setting, exclusion: Exclusion) -> None:
    there.exclude(exclusion)
    assert not fl.run(there.fill(over=False))
    assert there.changes() == [END, *LET_IN]


def test_released_meanwhile(there: Setting) -> None:
    there.exclude(excluded(3))
    fill = there.fill(over=False)
    there.release(3)
    assert fl._stay(fill, PLACE) is False, "also between the look and the deed"
    assert there.changes() == []
    assert not fl.run(fill)
    assert there.changes() == [END, *LET_IN], "users need not wait until the time is up"


def test_a_ledger_that_can_not_be_read_is_not_an_empty_one(there: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    there.exclude(excluded(3))
    fill = there.fill(over=True)
    monkeypatch.setattr("slurm_nvhc.record.ledger.Ledger.open", _full)
    monkeypatch.setattr("slurm_nvhc.record.mirror.path_in", lambda directory: "/nonexistent/protective.json")
    assert fl._looked_up(fill) is None
    assert fl._stay(fill, PLACE) is None
    assert fl._clear_up(fill, PLACE, at_end=True) is None
    assert there.changes() == []


def test_a_card_that_is_not_in_the_node_is_not_waited_for(there: Setting) -> None:
    gone = "GPU-00000099-1111-2222-3333-444444444444"
    there.exclude(excluded(3), excluded(3, uuid=gone))
    there.jobs.there = (holder(3),)
    assert fl.run(there.fill(over=False))
    assert there.changes() == [STAY, *LET_IN]
    assert fl.unheld({gone: excluded(3, uuid=gone)}, (), PLACE.positions) == []


def test_a_job_that_was_not_told_its_gpu_drains_nothing(there: Setting) -> None:
    there.exclude(excluded(3))
    assert not fl.run(there.fill(place=None))
    assert there.slurm.updates == []
    assert there.changes() == [END, *LET_IN]


@pytest.mark.parametrize("what", ["pause", "observe"])
def test_in_a_pause_and_in_observe_mode_nothing_is_drained(there: Setting, what: str) -> None:
    there.exclude(excluded(5))
    if what == "pause":
        with there.node.ledger() as ledger:
            ledger.set_pause(Pause(time.time_ns() + 10**12, "driver", "ada", time.time_ns()))
    else:
        there.node.write_policy({"quarantine": {"enabled": True}, "mode": "observe"})
    assert not fl.run(there.fill())
    assert there.slurm.updates == []
    assert there.changes() == [END, *LET_IN]


def test_slurm_that_does_not_answer_is_asked_again_and_the_gpu_kept(there: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    there.exclude(excluded(3))
    there.jobs.there = (holder(3),)
    there.jobs.trouble["update_job"] = UNREACHABLE
    calls = 0
    inner = there.jobs.update_job

    def update(*words: Any, **more: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            there.jobs.trouble.clear()
        inner(*words, **more)

    monkeypatch.setattr(there.jobs, "update_job", update)
    monkeypatch.setattr(fl, "TRY_S", 0.0)  # every try is the last of its round: the time being up must not end the job
    assert fl.run(there.fill(over=True))
    assert calls == 5
    assert there.slurm.updates == []


def test_slurm_that_says_no_leads_to_the_drain(there: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    there.exclude(excluded(3))

    def no(*words: Any, **more: Any) -> None:
        if "timelimit=UNLIMITED" in words[1]:
            raise SlurmError(REFUSED, "scontrol", "update", "Access/permission denied")

    monkeypatch.setattr(there.jobs, "update_job", no)
    assert not fl.run(there.fill())
    assert len(there.slurm.updates) == 1
    assert there.kept().holds == ()


def test_a_reservation_in_use_is_ended_once_it_is_not(there: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    there.exclude(excluded(3))
    there.jobs.there = (holder(3),)
    monkeypatch.setattr(fl, "TRY_S", 5.0)
    tries = 0

    def in_use(name: str, timeout_s: Optional[float] = None) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise SlurmError(REFUSED, "scontrol", "delete", "Requested reservation is in use")

    monkeypatch.setattr(there.jobs, "end_reservation", in_use)
    assert fl.run(there.fill())
    assert tries == 4


def test_a_new_search_between_two_tries_keeps_its_reservation(there: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    there.exclude(excluded(3))
    there.jobs.there = (holder(3),)
    tries = 0

    def in_use(name: str, timeout_s: Optional[float] = None) -> None:
        nonlocal tries
        tries += 1
        there.exclude(excluded(5))  # declared as soon as the lock is free
        raise SlurmError(REFUSED, "scontrol", "delete", "Requested reservation is in use")

    monkeypatch.setattr(there.jobs, "end_reservation", in_use)
    assert fl.run(there.fill())
    assert tries == 1


def test_nothing_is_done_without_the_nodes_lock(there: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    there.exclude(excluded(3))
    monkeypatch.setattr(fl, "LOCK_S", 0.01)
    fill = there.fill()
    with lock.held(f"{fill.state_dir}/act.lock", 1.0) as got:
        assert got
        assert fl._stay(fill, PLACE) is None
        assert fl._clear_up(fill, PLACE, at_end=True) is None
    assert there.changes() == []


def test_a_ledger_that_can_not_be_written_does_not_end_the_hold(there: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    there.exclude(excluded(3))
    there.jobs.there = (holder(3),)
    monkeypatch.setattr("slurm_nvhc.record.ledger.Ledger.set_hold", _full)
    assert fl.run(there.fill())
    assert there.changes() == [STAY, *LET_IN]


def _full(*_args: object) -> None:
    raise SlurmError(TIMEOUT, "ledger", "", "disk full")  # a MonitorError like the ledger's


# --- the command line ---------------------------------------------------------

WORDS = ["--config", "/c", "--state", "/s", "--run", "/r", "--slurm-conf", "/f", "--node", "n1", "--until", "123"]
ENV = {"SLURM_JOB_ID": "903", "SLURM_ARRAY_JOB_ID": "900", "SLURM_ARRAY_TASK_ID": "3"}


def test_the_program_reads_what_the_script_says() -> None:
    fill = main.parse([*WORDS, "--reservation", "r"], ENV)
    assert fill is not None
    assert (fill.site, fill.node) == (Site("/c", "/s", "/r", "/f"), "n1")
    assert (fill.number, fill.job_id, fill.reservation, fill.until_s) == ("903", "900_3", "r", 123.0)
    bare = main.parse(WORDS, ENV)
    assert bare is not None
    assert bare.reservation == ""


@pytest.mark.parametrize(
    ("words", "env"),
    [([], ENV), (WORDS[:-1], ENV), (WORDS[2:], ENV), ([*WORDS, "--what", "x"], ENV), (WORDS, {}), ([*WORDS[:-1], "soon"], ENV)],
)
def test_anything_else_holds_nothing(words: list[str], env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main.parse(words, env) is None
    for name in ENV:
        monkeypatch.delenv(name, raising=False)
    assert main.main(words) == 1


def test_a_failure_of_ours_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(main, "run", lambda fill: 1 / 0)
    assert main.main(WORDS) == 1


def test_names() -> None:
    assert ph.fill_name("n1") == NAME
    assert placeholder.reservation_name("n1") == RESERVATION
