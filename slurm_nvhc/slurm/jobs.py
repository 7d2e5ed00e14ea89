"""Jobs and reservations of this cluster, each command bounded and raising SlurmError (slurm/command.py).

Whose job it is comes from squeue, which prints a number: in `scontrol show job` a job's name stands before its
UserId, and users may put a line break and a UserId of their choice into it (observed).
"""

from __future__ import annotations

import os
import re
import time
from typing import Final, NamedTuple, Optional, Sequence

from slurm_nvhc.model.node_job import NodeJob
from slurm_nvhc.slurm import command, hostlist
from slurm_nvhc.slurm.command import REFUSED, TIMEOUT, SlurmError
from slurm_nvhc.slurm.environment import positions as parse_positions

__all__ = ["PartitionRules", "SlurmJobs", "parse_job", "parse_partitions"]

_ID: Final = re.compile(r"[0-9]{1,10}")
_KNOWN_AS: Final = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
_HEAD: Final = re.compile(r"JobId=(\d+)(?: ArrayJobId=(\d+))?(?: ArrayTaskId=(\d+))?.*? JobName=(.*)")
_DETAIL: Final = re.compile(r"^[ \t]+Nodes=(\S+) CPU_IDs=\S* Mem=\S*(?: GRES=(\S*))?", re.MULTILINE)
_GPUS: Final = re.compile(r"(?:^|,)gpu[^,()]*\(IDX:([0-9,-]+)\)")
_GONE: Final = "invalid job id"
_ENDING: Final = "COMPLETING"


class PartitionRules(NamedTuple):
    """As `scontrol show partition` says. preempt: PreemptMode ("OFF": its jobs are not preempted);

    alone: a node here runs one job, or one user's jobs, at a time (OverSubscribe=EXCLUSIVE, ExclusiveUser=YES);
    root: root may submit (DisableRootJobs=NO).
    """

    name: str
    tier: int = 1
    preempt: str = "OFF"
    alone: bool = False
    root: bool = True
    up: bool = True


def parse_job(text: str, node: str) -> Optional[NodeJob]:
    """One job of `scontrol -d show job`, without its owner; None when it is none."""
    head = _HEAD.search(text)
    state = _value(text, "JobState")
    if head is None or not state:
        return None
    number, array, task, name = head.groups()
    return NodeJob(
        job_id=f"{array}_{task}" if array and task is not None else number,
        state=state,
        name=name.strip(),
        partition=_value(text, "Partition"),
        batch=_value(text, "BatchFlag") == "1",
        requeue=_value(text, "Requeue") == "1",
        restarts=_number(_value(text, "Restarts")),
        comment=_line(text, "Comment"),
        admin_comment=_text(text, "AdminComment"),
        constraint=_value(text, "Features"),
        reservation=_value(text, "Reservation"),
        positions=_gpu_positions(text, node),
        started=_value(text, "StartTime"),
        het=bool(_value(text, "HetJobId")),
        excluded=_value(text, "ExcNodeList"),
        required=_value(text, "ReqNodeList"),
        number=number,
    )


def _gpu_positions(text: str, node: str) -> Optional[tuple[int, ...]]:
    """Of the job's GPUs on this node; () when it has none, None when Slurm does not say."""
    if "gpu" not in _value(text, "JOB_GRES") and not re.search(r"^[ \t]*Tres\w*=\S*gpu", text, re.MULTILINE):
        return ()
    found: list[int] = []
    for nodes, gres in _DETAIL.findall(text):
        try:
            here = hostlist.contains(nodes, node)
        except ValueError:
            here = False
        if here:
            for part in _GPUS.findall(gres):
                found += parse_positions(part) or ()
    return tuple(found) or None


def _value(text: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S*)", text)
    return "" if found is None or found.group(1) in ("(null)", "N/A", "None", "Unknown") else found.group(1)


def _line(text: str, key: str) -> str:
    found = re.search(rf"^[ \t]*{key}=(.*)$", text, re.MULTILINE)
    return "" if found is None or found.group(1).strip() == "(null)" else found.group(1).strip()


def _text(text: str, key: str) -> str:
    """A value of several lines: up to the next key at the start of a line."""
    found = re.search(rf"^[ \t]*{key}=(.*?)(?=\n[ \t]+[A-Z]\w*=|\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return "" if found is None or found.group(1).strip() == "(null)" else found.group(1).strip()


def _record(text: str, number: str) -> str:
    """The record of this job: asked for the last task of an array, whose id is the array's, Slurm shows all its tasks."""
    starts = [m.start() for m in re.finditer(r"^JobId=", text, re.MULTILINE)]
    records = [text[at:end] for at, end in zip(starts, [*starts[1:], len(text)])]
    return next((r for r in records if re.match(rf"JobId={number}\b", r)), text)


def _number(text: str) -> int:
    return int(text) if _ID.fullmatch(text) else 0


def _end(timeout_s: Optional[float]) -> Optional[float]:
    """When the time is over (monotonic seconds); None: it is not limited."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def _left(end: Optional[float]) -> Optional[float]:
    return None if end is None else end - time.monotonic()


def parse_partitions(text: str) -> dict[str, PartitionRules]:
    """`scontrol show partition`, by name."""
    out = {}
    for block in re.split(r"(?:^|\n)PartitionName=", text)[1:]:
        name = block.split(None, 1)[0]
        out[name] = PartitionRules(
            name,
            tier=_number(_value(block, "PriorityTier")),
            preempt=_value(block, "PreemptMode") or "OFF",
            alone="EXCLUSIVE" in _value(block, "OverSubscribe") or _value(block, "ExclusiveUser") == "YES",
            root=_value(block, "DisableRootJobs") != "YES",
            up=_value(block, "State") == "UP",
        )
    return out


class SlurmJobs:
    """Slurm's commands in ``bin_dir``, with ``conf`` as SLURM_CONF ('' = Slurm's default), ``timeout_s`` per call.

    The ``timeout_s`` of a method is for all that it calls: a hook gives what is left of its budget, and a slow slurmctld asked
    about each job of a busy node would take that many times over.
    """

    def __init__(self, bin_dir: str, conf: str, timeout_s: float) -> None:
        self.bin_dir = bin_dir
        self.conf = conf
        self.timeout_s = timeout_s

    # ---- questions

    def of_node(self, node: str, timeout_s: Optional[float] = None) -> tuple[NodeJob, ...]:
        """The jobs on this node, those that are ending included. One call, and one for each job."""
        return self._listed(("-w", node), node, timeout_s)

    def job(self, job_id: str, node: str, timeout_s: Optional[float] = None) -> Optional[NodeJob]:
        """One job as this node sees it; None when Slurm does not know it, or it has ended."""
        if not _KNOWN_AS.fullmatch(job_id):
            return None
        try:
            # The id of an array's last task is the array's, and names all its tasks.
            found = self._listed(("-j", job_id), node, timeout_s, only="" if "_" in job_id else job_id)
        except SlurmError as exc:
            if exc.kind == REFUSED and _GONE in str(exc).lower():
                return None
            raise
        return found[0] if found else None

    def _listed(self, which: Sequence[str], node: str, timeout_s: Optional[float], only: str = "") -> tuple[NodeJob, ...]:
        out, end = {}, _end(timeout_s)
        for number, (uid, state) in self._states(which, timeout_s).items():
            if only not in ("", number):
                continue
            try:
                text = self._run("scontrol", ("-d", "show", "job", number), _left(end))
            except SlurmError as exc:
                if exc.kind == REFUSED and _GONE in str(exc).lower():
                    continue  # it ended meanwhile
                raise
            job = parse_job(_record(text, number), node)
            if job is not None:
                out[number] = job._replace(uid=uid, state=state or job.state)
        if any(job.positions is None and job.state != _ENDING for job in out.values()):
            # One that ended between the two calls has given up its GPUs, and Slurm does not say any more which they were: it
            # must not count as one that may have any of them.
            now = self._states(which, _left(end))
            out = {number: job._replace(state=now[number][1] or job.state) for number, job in out.items() if number in now}
        return tuple(out.values())

    def _states(self, which: Sequence[str], timeout_s: Optional[float]) -> dict[str, tuple[int, str]]:
        """Number -> (whose, state)."""
        out = {}
        for line in self._run("squeue", ("-h", "-a", *which, "-o", "%A|%U|%T"), timeout_s).split("\n"):
            number, _, rest = line.strip().partition("|")
            uid, _, state = rest.partition("|")
            if _ID.fullmatch(number) and _ID.fullmatch(uid):
                out[number] = (int(uid), state)
        return out

    def alike(self, node: str, partition: str, timeout_s: Optional[float] = None) -> tuple[str, ...]:
        """The other nodes of the partitions ("a,b") that are as ``node`` is, by CPUs, memory, GRES and features, whatever state
        they are in: what fits here fits there.
        """
        out = self._run("sinfo", ("-h", "-N", "-p", partition, "-o", "%N|%c|%m|%G|%f|%b"), timeout_s)
        rows = dict(line.strip().partition("|")[::2] for line in out.split("\n") if "|" in line)
        return tuple(name for name, kind in rows.items() if name != node and kind == rows.get(node))

    def partitions(self, timeout_s: Optional[float] = None) -> dict[str, PartitionRules]:
        return parse_partitions(self._run("scontrol", ("-a", "show", "partition"), timeout_s))

    # ---- changes of jobs

    def update_job(self, job_id: str, settings: Sequence[str], timeout_s: Optional[float] = None) -> None:
        """settings: "key=value" each."""
        self._run("scontrol", ("update", f"jobid={job_id}", *settings), timeout_s)

    def requeue(self, job_id: str, timeout_s: Optional[float] = None) -> None:
        """Back into the queue, to start again by itself. ``job_id`` as NodeJob has it: the bare id of an array's last task is the
        whole array's. Slurm refuses for what is no batch job, or was submitted with --no-requeue; it also takes *finished* jobs.
        """
        self._run("scontrol", ("requeue", job_id), timeout_s)

    def signal(self, job_id: str, name: str, batch: bool, timeout_s: Optional[float] = None) -> None:
        """To the batch script alone, which may trap it; of a job without one to its steps. What does not expect it ends."""
        self._run("scancel", (f"--signal={name}", *(("--batch",) if batch else ()), job_id), timeout_s)

    def submit(self, options: Sequence[str], script: str, timeout_s: Optional[float] = None) -> str:
        """Submit a batch job as whoever runs this; its id. ``script``: shell commands, absolute paths."""
        out = self._run("sbatch", ("--parsable", *options, f"--wrap={script}"), timeout_s)
        number = out.strip().partition(";")[0]
        if not _ID.fullmatch(number):
            raise SlurmError(REFUSED, "sbatch", "", f"its answer is not a job id: {command.one_line(out)}")
        return number

    def cancel(self, job_ids: Sequence[str], timeout_s: Optional[float] = None) -> None:
        """Also when one of them has ended already."""
        if job_ids:
            self._run("scancel", ("-Q", *job_ids), timeout_s)

    def cancel_named(self, name: str, timeout_s: Optional[float] = None) -> None:
        """Root's jobs of this name, pending ones included."""
        self._run("scancel", ("-Q", "--user=root", f"--name={name}"), timeout_s)

    # ---- reservations

    def reserve(self, name: str, node: str, minutes: int, timeout_s: Optional[float] = None) -> None:
        """The node for root alone from now on, running jobs untouched; one of this name that exists is made to last as long."""
        end = _end(timeout_s)
        made = (f"reservationname={name}", "starttime=now", f"duration={minutes}", "users=root", "flags=MAINT,IGNORE_JOBS", f"nodes={node}")
        try:
            self._run("scontrol", ("create", "reservation", *made), timeout_s)
        except SlurmError as exc:
            if exc.kind != REFUSED or "duplicate" not in str(exc).lower():
                raise
            self._run("scontrol", ("update", f"reservationname={name}", f"endtime=now+{minutes}minutes"), _left(end))

    def end_reservation(self, name: str, timeout_s: Optional[float] = None) -> None:
        """Nothing is done when there is none. REFUSED while a job runs in it."""
        try:
            self._run("scontrol", ("delete", f"reservationname={name}"), timeout_s)
        except SlurmError as exc:
            if exc.kind != REFUSED or "reservation is invalid" not in str(exc).lower():
                raise

    def _run(self, program: str, arguments: Sequence[str], timeout_s: Optional[float]) -> str:
        if timeout_s is not None and timeout_s <= 0:
            raise SlurmError(TIMEOUT, program, " ".join(arguments[:2]), "not run: no time left")
        seconds = self.timeout_s if timeout_s is None else min(self.timeout_s, timeout_s)
        return command.run(os.path.join(self.bin_dir, program), arguments, seconds, self.conf)
