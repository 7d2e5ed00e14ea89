"""Having a placeholder job hold a bad GPU, and ending it. What the jobs do themselves is in hold/.

There is no way to ask Slurm for one particular GPU. So a short reservation keeps users' jobs from starting on the
node, one-GPU jobs of root take every GPU that is free or becomes free, the one that finds itself on the bad GPU
stays, and the others and the reservation go (hold/fill.py). Running jobs are not touched. Observed on 22.05 and
24.11, as is all that is said below of what Slurm does.

Called in the epilog of the job that used the GPU, this leaves no moment in which a user's job could get it: until
the epilog returns the GPU is still that job's. All is done under the node's lock, that two GPUs at once end up in
one list: without it users' jobs did get through.
"""

from __future__ import annotations

import math
import os
import shlex
import time
from typing import Final, Mapping, Sequence

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.drains import drain
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.tools import Action, Done, Hands, JobCommands, intent_of
from slurm_nvhc.model import placeholder as ph
from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.model.protective import Intent
from slurm_nvhc.model.snapshot import Trouble
from slurm_nvhc.policy.acting import Quarantine
from slurm_nvhc.proc import files
from slurm_nvhc.slurm.command import MISSING, REFUSED, SlurmError
from slurm_nvhc.slurm.jobs import PartitionRules

START_MIN: Final = 2  # minutes after its submission in which a placeholder job may still start (our judgement)
_FOREVER_S: Final = 2**31 - 1  # 68 years, in a number that every sleep takes


def reservation_name(node: str) -> str:
    return f"nvhc-hold-{node}"


def quarantine(hands: Hands, step: Step) -> Done:
    """Ok: the GPU is held, is about to be, or is left to the epilog of the job that uses it."""
    intent = intent_of(step._replace(reason=step.uuid), hands.tools.now_ns, st.QUARANTINE)
    hands.keep(lambda p: p.add_intent(intent))
    try:
        return _begin(hands, step, intent)
    except SlurmError as exc:
        done = hands.failed(step, exc)
        if exc.kind not in (REFUSED, MISSING):
            return done  # slurmctld does not answer now: the intent stays, and the job that gets the GPU is stopped in its prolog
    # Slurm said no, and will say so again: then the whole node.
    hands.keep(lambda p: p.end_intent(intent))
    drained = drain(hands, step)
    return done._replace(ok=drained.ok, detail=f"{done.detail}; the node was to be drained instead: {drained.detail or 'done'}")


def _begin(hands: Hands, step: Step, intent: Intent) -> Done:
    tools = hands.tools
    slurm = hands.jobs()
    if not tools.hold_program:
        raise SlurmError(MISSING, "placeholder jobs", tools.node, "can not be submitted here")
    state = hands.state()
    if state.flags & {"DRAIN", "FAIL"}:
        return Done(step, False, "nothing starts on a node that is out: held once it is back")
    position = next((n for n, uuid in tools.mapping.by_position.items() if uuid == step.uuid), None)
    if position is None:
        raise SlurmError(REFUSED, "placeholder jobs", tools.node, "the GPU has no position in Slurm")
    # A job of ours that seems to hold it does not count: after a reboot Slurm shows the old one as running until the node registers.
    mine = tools.job is not None and position in (tools.job.positions or ())
    user = ph.user_of(position, slurm.of_node(tools.node, hands.time()), certain=mine)
    if user is not None:
        hands.keep(lambda p: p.end_intent(intent))
        return Done(step, True, f"job {user.job_id} uses it: held when that ends")
    if not hands.searching:
        _submit(hands, slurm, state.partitions)
        hands.searching = True
    within_s = tools.policy.quarantine.place_within_s
    waiting = intent._replace(tries=intent.tries + 1, next_ns=tools.now_ns + int(within_s * 1e9))
    hands.keep(lambda p: p.update_intent(waiting))
    tools.log(f"quarantine of {step.uuid} on {tools.node}: placeholder jobs submitted")
    return Done(step, True, f"placeholder jobs are submitted, to hold it within {within_s:g} s")


def _submit(hands: Hands, slurm: JobCommands, of_node: Sequence[str]) -> None:
    tools = hands.tools
    wanted = tools.policy.quarantine
    partition, alone = choose(slurm.partitions(hands.time()), of_node, wanted, tools.job.partition if tools.job is not None else "")
    life_min = math.ceil(wanted.place_within_s / 60) + 1
    reservation = "" if alone else reservation_name(tools.node)
    if reservation:
        # It ends by itself, should everything of ours die.
        slurm.reserve(reservation, tools.node, life_min + START_MIN + 1, hands.time())
    try:
        options = submission(tools.node, partition, reservation, len(tools.mapping.by_position), life_min, wanted.memory_mb)
        until_s = math.ceil(time.time() + wanted.place_within_s)
        _put_off(tools.run_dir, tools.node, until_s)
        slurm.submit(options, script(tools.hold_program, reservation, until_s), hands.time())
    except SlurmError as exc:
        if reservation and exc.kind in (REFUSED, MISSING):
            _give_back(hands, slurm, reservation)
        raise


def until_file(run_dir: str, node: str) -> str:
    return os.path.join(run_dir, node, "hold", "until")


def until(run_dir: str, node: str) -> int:
    """When the last placeholder jobs submitted on this node give up, in seconds of the epoch; 0: not known."""
    try:
        with open(until_file(run_dir, node), encoding="ascii") as file:
            text = file.read(20).strip()
    except (OSError, ValueError):
        return 0
    return int(text) if text.isdigit() else 0


def _put_off(run_dir: str, node: str, until_s: int) -> None:
    """Jobs that look for another GPU already must not end the search for this one with theirs."""
    path = until_file(run_dir, node)
    try:
        files.make_private_dir(os.path.dirname(path))
        files.write_atomic(path, f"{until_s}\n", durable=False)
    except OSError:
        pass  # theirs may end it then: the next health check drains the node


def _give_back(hands: Hands, slurm: JobCommands, reservation: str) -> None:
    """No placeholder job will come: users need not wait until the reservation ends by itself."""
    try:
        slurm.end_reservation(reservation, hands.time())
    except SlurmError as exc:
        hands.troubles.append(Trouble("MON-SLURM", "slurm", str(exc)))


def choose(known: Mapping[str, PartitionRules], of_node: Sequence[str], wanted: Quarantine, of_job: str = "") -> tuple[str, bool]:
    """(partition for placeholder jobs, whether its rank alone keeps users' jobs off, without a reservation).

    A placeholder job must neither be preempted nor preempt anybody, and must be able to share the node: in a higher
    tier the jobs that look for the GPU killed users' jobs, reservation or not; in an EXCLUSIVE partition one takes all GPUs.
    Raises SlurmError when no partition fits.
    """
    here = [known[name] for name in of_node if name in known]
    names = [wanted.partition] if wanted.partition else list(dict.fromkeys([of_job, *of_node]))
    why: list[str] = []
    for name in names:
        if not name:
            continue
        if name not in known or name not in of_node:
            why.append(f"partition {name} does not have this node")
            continue
        problem = _unfit(known[name], here)
        if not problem:
            others = [p.tier for p in here if p.name != name]
            return name, bool(wanted.partition and others) and known[name].tier > max(others)
        why.append(f"partition {name} {problem}")
    told = "; ".join(why) or "Slurm names no partition of this node"
    raise SlurmError(REFUSED, "placeholder jobs", "partition", told, "name one that fits in quarantine.partition (docs/quarantine.md)")


def _unfit(partition: PartitionRules, here: Sequence[PartitionRules]) -> str:
    if not partition.up:
        return "is not UP"
    if not partition.root:
        return "takes no jobs of root (DisableRootJobs)"
    if partition.alone:
        return "gives whole nodes to one job or user"
    if partition.preempt != "OFF":
        return "has jobs that may be preempted"
    below = [p.name for p in here if p.preempt != "OFF" and p.tier < partition.tier]
    if below:
        return f"would preempt jobs of partition {below[0]}"
    return ""


def submission(node: str, partition: str, reservation: str, gpus: int, life_min: int, memory_mb: int) -> tuple[str, ...]:
    """Options of sbatch. One job for each GPU of the node: others may become free meanwhile, and which one is given is Slurm's choice.

    A requeued placeholder job would land on any GPU: --no-requeue. The time limit is for one that finds nothing.
    """
    options = [
        f"--partition={partition}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--gres=gpu:1",
        # Cores near another GPU will do: it computes nothing.
        "--gres-flags=disable-binding", f"--mem={memory_mb}",
        f"--time={life_min}", f"--deadline=now+{life_min + START_MIN}minutes", "--no-requeue", "--priority=TOP",
        f"--job-name={ph.fill_name(node)}", f"--comment={ph.COMMENT}", f"--array=0-{gpus - 1}", "--chdir=/",
        "--output=/dev/null", "--error=/dev/null", "--input=/dev/null",
        # sbatch runs in a clean environment. With NONE Slurm would start a login shell of root on the node.
        "--export=ALL",
    ]  # fmt: skip
    return (*options, *([f"--reservation={reservation}"] if reservation else []))


def script(program: Sequence[str], reservation: str, until_s: int) -> str:
    """Once it is certain that the job holds a GPU nothing is left of it but a sleep: next to no memory.

    until_s: when to give up, in seconds of the epoch.
    """
    words = [*program, "--until", str(until_s), *(["--reservation", reservation] if reservation else [])]
    return f"{shlex.join(words)} && exec sleep {_FOREVER_S}"


def unhold(hands: Hands, step: Step) -> Done:
    """Only ours are ended, whatever number is in the ledger: Slurm says whose job it is and what it holds."""
    tools = hands.tools
    try:
        slurm = hands.jobs()
        found = _holders(slurm.of_node(tools.node, hands.time()), step.uuid)
        if found:
            slurm.cancel(found, hands.time())
    except SlurmError as exc:
        return hands.failed(step, exc)
    hands.keep(lambda p: p.end_intent(Intent(st.QUARANTINE, step.uuid, tools.now_ns)))
    if not hands.keep(lambda p: p.end_hold(step.uuid)):
        return Done(step, False, "the placeholder job is ended, which could not be recorded")
    if found:
        tools.log(f"{step.uuid} is not held any more: placeholder job {', '.join(found)} ended")
    return Done(step, True, "" if found else "no placeholder job held it")


def _holders(jobs: Sequence[NodeJob], uuid: str) -> tuple[str, ...]:
    return tuple(job.job_id for job in jobs if ph.is_ours(job) and ph.holds(job) == uuid and job.state != "COMPLETING")


ACTIONS: Final[Mapping[str, Action]] = {st.QUARANTINE: quarantine, st.UNHOLD: unhold}
