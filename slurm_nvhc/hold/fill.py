"""A placeholder job: it looks whether it was given a GPU that is to be held. If so it stays, and if not it makes room.

Whoever comes last clears up: the job by which all bad GPUs are held, or, when the time is up, the first one that
holds nothing. It drains the node for a GPU that nobody holds *before* users are let in again. Deeds are done under the
node's lock, as those of hooks are.

A reservation can not be deleted while a job runs in it. The one that stays leaves it (allowed for a running job:
`scontrol update jobid=ID reservationname=`), and takes another name first, since the rest is cancelled by name:
one that still had theirs would end itself before its work was done.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Callable, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.act import limits
from slurm_nvhc.act import steps as st
from slurm_nvhc.act import words as wd
from slurm_nvhc.act.execute import Tools, execute
from slurm_nvhc.act.placeholder import until
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import JobCommands
from slurm_nvhc.book import Book
from slurm_nvhc.context import Context, Site, at_switch, prepare
from slurm_nvhc.hold import place as places
from slurm_nvhc.hold.place import Place
from slurm_nvhc.judge import EPILOG
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import placeholder as ph
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.protective import QUARANTINE, SUSPECTED, Exclusion, Hold, Intent
from slurm_nvhc.proc import log
from slurm_nvhc.proc.budget import Budget
from slurm_nvhc.record import lock
from slurm_nvhc.record.protective import Protective
from slurm_nvhc.slurm.command import REFUSED, SlurmError
from slurm_nvhc.slurm.fleet import SlurmFleet
from slurm_nvhc.slurm.jobs import SlurmJobs
from slurm_nvhc.slurm.node import SlurmCommands

LOOK_S: Final = 0.2  # between two looks at the list of bad GPUs
LOCK_S: Final = 5.0  # a hook holds the node's lock for part of its budget
TRY_S: Final = 20.0  # for a deed, before it is given up; the job's time limit leaves as much
DEED_S: Final = 10.0  # for draining the node
UNTOLD_S: Final = 2.0  # a job that was not told which GPU it has leaves the end to one that was: it can not drain


class Fill(NamedTuple):
    """number: the job's id, by which its prolog knows it; job_id: as Slurm is asked about it (ARRAYJOB_TASK: the last

    task's own id is the array's as well). until_s: when to give up, in seconds of the epoch. reservation: '' = none.
    """

    site: Site
    node: str
    number: str
    job_id: str
    reservation: str
    until_s: float
    environment: Mapping[str, str]

    @property
    def state_dir(self) -> str:
        return f"{self.site.state}/{self.node}"


def run(fill: Fill) -> bool:
    """True: this job holds its GPU. False: there is nothing to hold for it."""
    place: Optional[Place] = None
    while True:
        place = place or places.read(fill.site.run, fill.node, fill.number)
        wanted = _looked_up(fill)
        stays: Optional[bool] = False
        if wanted is not None and place is not None and place.uuid in wanted:
            stays = _persist(partial(_stay, fill, place))
            if stays:
                _persist(partial(_clear_up, fill, place, at_end=False))
                return True
        over = time.time() >= deadline_s(fill) + (0 if place else UNTOLD_S)
        # On a bad GPU, and Slurm does not answer: nobody else gets it as long as this job is there.
        if stays is not None and (over or wanted == {}):
            _persist(partial(_clear_up, fill, place, at_end=True))
            return False
        time.sleep(LOOK_S)


def deadline_s(fill: Fill) -> float:
    """This array's own, or that of one that was submitted since: the list of bad GPUs is one."""
    return max(fill.until_s, until(fill.site.run, fill.node))


def to_hold(kept: Protective) -> dict[str, Exclusion]:
    return {e.uuid: e for e in kept.exclusions if e.way == QUARANTINE and e.stage != SUSPECTED}


def unheld(wanted: Mapping[str, Exclusion], jobs: tuple[NodeJob, ...], positions: Mapping[str, int]) -> list[str]:
    """GPUs of this node that are to be held, are not, and could be: one that a user's job has is left to that job's epilog."""
    held = ph.held(jobs)
    return [u for u in wanted if u in positions and u not in held and ph.user_of(positions[u], jobs) is None]


def _persist(deed: Callable[[], Optional[bool]]) -> Optional[bool]:
    """Try until the deed says what came of it. False also when Slurm says no; None: there was no answer in all that time."""
    end, said = time.monotonic() + TRY_S, ""
    while True:
        try:
            done = deed()
        except SlurmError as exc:
            if str(exc) != said:
                log.warning(f"placeholder job: {exc}")
            said = str(exc)
            done = False if exc.kind == REFUSED else None
        if done is not None or time.monotonic() > end:
            return done
        time.sleep(LOOK_S)


def _looked_up(fill: Fill) -> Optional[dict[str, Exclusion]]:
    """What is to be held; None when it can not be read: that is not "nothing"."""
    with Book(fill.state_dir, LOCK_S) as book:
        return _read(book)


def _read(book: Book) -> Optional[dict[str, Exclusion]]:
    found = to_hold(book.protective())
    return None if book.troubles and not found else found


def _locked(fill: Fill, deed: Callable[[], Optional[bool]]) -> Optional[bool]:
    """Unlike a hook, nothing is done here without the lock: it can be tried again."""
    with lock.held(f"{fill.state_dir}/act.lock", LOCK_S) as got:
        return deed() if got else None


def _jobs(context: Context) -> SlurmJobs:
    return SlurmJobs(context.policy.slurm.bin_dir, context.slurm_conf, context.policy.slurm.timeout_s)


def _context(fill: Fill) -> Context:
    """As a hook of this job would have it; its policy is the one in force now."""
    return prepare(EPILOG, fill.site, fill.environment, time.monotonic(), fill.node, keep=False)


def _stay(fill: Fill, place: Place) -> Optional[bool]:
    """From now on this job is the one that holds the GPU. False when it need not be held any more."""

    def deed() -> Optional[bool]:
        context = _context(fill)
        with context.book as book:
            wanted = _read(book)
            if wanted is None or place.uuid not in wanted:
                return None if wanted is None else False
            leave = ["reservationname="] if fill.reservation else []
            said = f"admincomment={ph.says(place.uuid)}"
            _jobs(context).update_job(fill.job_id, [*leave, f"jobname={ph.HOLD}", "timelimit=UNLIMITED", said])
            # Not recorded it holds the GPU all the same: the job itself says which, and the next health check sees it.
            book.ask(lambda led: led.set_hold(Hold(place.uuid, fill.job_id, place.at_ns, place.boot_id)), None)
            book.ask(lambda led: led.end_intent(Intent(st.QUARANTINE, place.uuid, place.at_ns)), None)
        log.warning(f"{fill.node}: placeholder job {fill.job_id} holds {place.uuid}")
        return True

    return _locked(fill, deed)


def _clear_up(fill: Fill, place: Optional[Place], at_end: bool) -> Optional[bool]:
    """Let users in again, unless others are still looking. at_end: the time is up, or nothing is to be held any more."""

    def deed() -> Optional[bool]:
        context = _context(fill)
        with context.book as book:
            slurm = _jobs(context)
            wanted = _read(book)
            if wanted is None:
                return None  # the reservation ends by itself
            if wanted and at_end and time.time() < deadline_s(fill):
                return True  # another GPU is looked for meanwhile: the jobs submitted for that clear up
            left = unheld(wanted, slurm.of_node(fill.node), place.positions) if place is not None else []
            if left and not at_end:
                return True
            if left:
                _drain(context, [wanted[uuid] for uuid in left], place.at_ns if place is not None else time.time_ns())
            if at_end:
                leave = ["reservationname="] if fill.reservation else []
                slurm.update_job(fill.job_id, [*leave, f"jobname={ph.ENDING}"])
            return _let_in(fill, slurm)

    return _locked(fill, deed)


def _let_in(fill: Fill, slurm: JobCommands) -> Optional[bool]:
    """None while a cancelled job still runs in the reservation: to be tried again."""
    slurm.cancel_named(ph.fill_name(fill.node))
    if fill.reservation:
        try:
            slurm.end_reservation(fill.reservation)
        except SlurmError as exc:
            if exc.kind == REFUSED and "in use" in str(exc).lower():
                return None
            raise
    return True


def _drain(context: Context, bad: list[Exclusion], now_ns: int) -> None:
    """As a hook drains: an intent first, the state re-read, the limits kept. In a pause and in observe mode only said."""
    context, switch = at_switch(context)
    within = f"could not be quarantined within {context.policy.quarantine.place_within_s:g} s"
    named = ", ".join(f"{wd.short_uuid(e.uuid)} ({e.code}: {e.why})" for e in bad)
    reason = wd.one_line(f"{wd.PREFIX} GPU-EXCLUDED {named} {within}", context.policy.drain.max_length)
    if switch.everything or context.pause is not None or context.policy.mode == fd.OBSERVE:
        log.warning(f"{context.node}: not drained for: {reason}")
        return
    keys = tuple(f"GPU-EXCLUDED {e.uuid}" for e in bad)
    budget = Budget(DEED_S)
    tools = Tools(
        slurm=SlurmCommands(context.policy.slurm.bin_dir, context.slurm_conf, context.policy.slurm.timeout_s),
        node=context.node,
        protective=context.book,
        run_dir=context.site.run,
        job=None,
        mapping=GpuMapping((), {}, False),
        constrain=lambda: None,
        log=log.warning,
        left_s=budget.left_s,
        now_ns=now_ns,
        policy=context.policy,
        fleet=SlurmFleet(context.policy.slurm.bin_dir, context.slurm_conf, context.policy.slurm.timeout_s),
    )
    step = Step(st.DRAIN, reason=reason, why=within, keys=keys, policy=context.policy.hash)
    outcome = execute((step._replace(soft=limits.soft(keys, {e.uuid: e for e in bad})),), tools)
    for alert in (d.step for d in outcome.done if d.step.kind == st.ALERT):
        log.warning(f"{context.node}: {alert.why}")
    for trouble in outcome.troubles:
        log.warning(f"{context.node}: {trouble.code}: {trouble.detail}")
