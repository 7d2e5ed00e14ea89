"""The other played commands of Slurm: sinfo, squeue, sbatch, scancel, and what scontrol says about jobs, partitions and reservations.

Run as a program by the stage: ``commands.py PROGRAM STATE.json ARGUMENTS…``; standard library and scontrol.py only.
Simple and truthful: jobs are those of the scenario's prologs and epilogs; a job that is submitted here stays pending,
since nothing is scheduled; other nodes of the partition are idle unless the scenario says otherwise.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Tuple

from slurm_nvhc.scenario import scontrol
from slurm_nvhc.scenario.scontrol import Answer

INVALID_JOB = "slurm_{0} error: Invalid job id specified"
NOT_PENDING = "Job is no longer pending execution for job {0}"
DISABLED = "Requested operation is presently disabled for job {0}"
FIRST_OWN_JOB = 900001  # ids of jobs that are submitted during a replay
OUT = ("drain", "down", "fail")


def new_job(**given: Any) -> Dict[str, Any]:
    """A running batch job of the scenario's node."""
    job = {
        "state": "RUNNING", "uid": 1001, "user": "alice", "partition": "gpu", "gpus": "", "batch": True, "requeue": True, "restarts": 0,
        "comment": "", "admincomment": "", "features": "", "excnodelist": "", "reservation": "", "nodes": 1, "node": "", "name": "job",
    }  # fmt: skip
    return {**job, **given}


# --- scontrol ---------------------------------------------------------------------------------


def scontrol_answer(state: Dict[str, Any], arguments: List[str]) -> Answer:
    plain = [a for a in arguments if not a.startswith("-")]
    keyword = plain[0].lower() if plain else ""
    about = plain[1].lower() if len(plain) > 1 else ""
    if keyword == "show" and about in ("job", "jobs"):
        return _show_jobs(state, plain[2] if len(plain) > 2 else "")
    if keyword == "show" and about in ("partition", "partitions"):
        return Answer(0, _partition(state))
    if keyword == "show" and about in ("res", "reservation", "reservations"):
        rows = [f"ReservationName={n} Nodes={v.get('nodes', '')} Users={v.get('users', '')}\n" for n, v in state["reservations"].items()]
        return Answer(0, "".join(rows) or "No reservations in the system\n")
    if keyword == "requeue":
        return _requeue(state, plain[1] if len(plain) > 1 else "")
    if keyword == "update" and about.startswith("jobid="):
        return _update_job(state, _pairs(plain[1:]))
    if keyword == "create" and about in ("res", "reservation"):
        return _reserve(state, _pairs(plain[2:]))
    if keyword == "update" and about.startswith("reservationname="):
        known = _pairs(plain[1:])["reservationname"] in state["reservations"]
        return Answer(0) if known else Answer(1, err="Error updating the reservation: Requested reservation is invalid")
    if keyword == "delete" and about.startswith("reservationname="):
        return _end_reservation(state, about.partition("=")[2])
    if keyword == "reboot":
        return _reboot(state, plain[1:])
    return scontrol.answer(state, arguments)


def _pairs(words: List[str]) -> Dict[str, str]:
    return {key.lower(): value for key, _sep, value in (word.partition("=") for word in words)}


def _show_jobs(state: Dict[str, Any], job_id: str) -> Answer:
    if job_id and job_id not in state["jobs"]:
        return Answer(1, err="slurm_load_jobs error: Invalid job id specified")
    names = [job_id] if job_id else list(state["jobs"])
    return Answer(0, "\n".join(_job_text(state, name) for name in names) or "No jobs in the system\n")


def _job_text(state: Dict[str, Any], name: str) -> str:
    job = state["jobs"][name]
    here = job["state"] != "PENDING"
    gpus = scontrol_gpus(job["gpus"])
    lines = [
        f"JobId={name} JobName={job['name']}",
        f"   UserId={job['user']}({job['uid']}) GroupId={job['user']}({job['uid']}) MCS_label=N/A",
        f"   JobState={job['state']} Reason={'None' if here else 'Priority'} Dependency=(null)",
        f"   Requeue={int(job['requeue'])} Restarts={job['restarts']} BatchFlag={int(job['batch'])} Reboot=0 ExitCode=0:0",
        f"   StartTime={_when(state) if here else 'Unknown'} EndTime=Unknown",
        f"   Partition={job['partition']} AllocNode:Sid=login:1",
        f"   ReqNodeList=(null) ExcNodeList={job['excnodelist'] or '(null)'}",
        f"   NodeList={job['node'] if here else ''}",
        f"   NumNodes={job['nodes']} NumCPUs=8 NumTasks=1 CPUs/Task=1",
    ]
    if gpus:
        lines.append(f"   JOB_GRES=gpu:{len(gpus)}")
    if here:
        shown = f"gpu:{len(gpus)}(IDX:{','.join(gpus)})" if gpus else ""
        lines.append(f"     Nodes={job['node']} CPU_IDs=0-7 Mem=0 GRES={shown}")
    lines.append(f"   Features={job['features'] or '(null)'} DelayBoot=00:00:00")
    lines += [f"   Reservation={job['reservation']}"] if job["reservation"] else []
    lines += [f"   {key}={job[key.lower()]}" for key in ("AdminComment", "Comment") if job[key.lower()]]
    lines += [f"   TresPerNode=gres:gpu:{len(gpus)}"] if gpus else []
    return "\n".join(lines) + "\n"


def scontrol_gpus(text: str) -> List[str]:
    """'0-2,4' as its numbers."""
    out: List[str] = []
    for part in [p for p in text.split(",") if p]:
        low, _, high = part.partition("-")
        out += [str(n) for n in range(int(low), int(high or low) + 1)] if low.isdigit() and (high or low).isdigit() else []
    return out


def _when(state: Dict[str, Any]) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(state["now_ns"] // 10**9))


def _partition(state: Dict[str, Any]) -> str:
    return (
        f"PartitionName={state['partition']}\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n   AllocNodes=ALL Default=YES QoS=N/A\n"
        "   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO\n"
        "   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO\n"
        f"   OverTimeLimit=NONE PreemptMode=OFF\n   State=UP TotalCPUs=64 TotalNodes={state['partition_nodes']} SelectTypeParameters=NONE\n"
    )


def _requeue(state: Dict[str, Any], name: str) -> Answer:
    job = state["jobs"].get(name)
    if job is None:
        return Answer(1, err=f"{INVALID_JOB.format('requeue')} for job {name}")
    if not (job["batch"] and job["requeue"]):
        return Answer(1, err=DISABLED.format(name))
    job.update(state="PENDING", restarts=job["restarts"] + 1)
    for node in state["nodes"].values():
        node["jobs"].pop(name, None)
    return Answer(0)


def _update_job(state: Dict[str, Any], values: Dict[str, str]) -> Answer:
    name = values.pop("jobid")
    job = state["jobs"].get(name)
    if job is None:
        return Answer(1, err=INVALID_JOB.format("update"))
    if "excnodelist" in values and job["state"] != "PENDING":
        return Answer(1, err=NOT_PENDING.format(name))
    renamed = {"reservationname": "reservation", "jobname": "name"}
    job.update({renamed.get(key, key): value for key, value in values.items()})
    return Answer(0)


def _reserve(state: Dict[str, Any], values: Dict[str, str]) -> Answer:
    name = values.get("reservationname", values.get("reservation", ""))
    if name in state["reservations"]:
        return Answer(1, err="Error creating the reservation: Duplicate reservation name")
    state["reservations"][name] = values
    return Answer(0, f"Reservation created: {name}\n")


def _end_reservation(state: Dict[str, Any], name: str) -> Answer:
    if name not in state["reservations"]:
        return Answer(1, err="Error deleting the reservation: Requested reservation is invalid")
    if any(job["reservation"] == name and job["state"] == "RUNNING" for job in state["jobs"].values()):
        return Answer(1, err="Error deleting the reservation: Requested reservation is in use")
    del state["reservations"][name]
    return Answer(0)


def _reboot(state: Dict[str, Any], words: List[str]) -> Answer:
    name, values = words[-1] if words else "", _pairs(words)
    node = state["nodes"].get(name)
    if node is None:
        return Answer(1, err="scontrol_reboot_nodes error: Invalid node name specified")
    reason = values.get("reason", node["reason"])
    busy = bool(node["jobs"])
    node["flags"] = sorted({*node["flags"], "DRAIN", "REBOOT_REQUESTED" if busy else "REBOOT_ISSUED"})
    node.update(reason=reason if busy else f"{reason} : reboot issued", user="root", time_ns=state["now_ns"])
    return Answer(0)


# --- the other programs -----------------------------------------------------------------------


def sinfo(state: Dict[str, Any], arguments: List[str]) -> Answer:
    """With -o: %R %D %N %T %H %u %E, and for nodes that are alike %c %m %G %f %b; -N: a line a node."""
    if state.get("sinfo", "ok") == "fails":
        return Answer(1, err="sinfo: error: something is wrong")
    asked = _option(arguments, "-p", "--partition")
    if asked and state["partition"] not in asked.split(","):
        return Answer(0)
    groups: Dict[Tuple[str, ...], List[str]] = {}
    for name, node in _all_nodes(state):
        out = scontrol.word(node).startswith(OUT) or bool(node["reason"])
        when = str(node["time_ns"] // 10**9) if out else "Unknown"
        key = (scontrol.word(node), when, node["user"] or "Unknown", node["reason"] or "none", name if "-N" in arguments else "")
        groups.setdefault(key, []).append(name)
    lines = []
    for (word, when, user, reason, _one), names in groups.items():
        values = {
            "R": state["partition"], "D": str(len(names)), "N": ",".join(names), "T": word, "t": word, "H": when, "u": user, "E": reason,
            "c": "64", "m": "1000000", "G": "gpu:8", "f": "(null)", "b": "(null)",
        }  # fmt: skip
        lines.append(_filled(_option(arguments, "-o", "--format") or "%R %D %T %N", values))
    return Answer(0, "".join(f"{line}\n" for line in lines))


def _all_nodes(state: Dict[str, Any]) -> List[Tuple[str, Dict[str, Any]]]:
    named = list(state["nodes"].items())
    return named + [(f"idle{n}", scontrol.new_node()) for n in range(1, state["partition_nodes"] - len(named) + 1)]


def squeue(state: Dict[str, Any], arguments: List[str]) -> Answer:
    wanted, node = _option(arguments, "-j", "--jobs"), _option(arguments, "-w", "--nodelist")
    if wanted and wanted not in state["jobs"]:
        return Answer(1, err="slurm_load_jobs error: Invalid job id specified")
    lines = []
    for name, job in state["jobs"].items():
        if (wanted and name != wanted) or (node and (job["node"] != node or job["state"] == "PENDING")):
            continue
        values = {"A": name, "i": name, "U": str(job["uid"]), "u": job["user"], "T": job["state"], "j": job["name"], "P": job["partition"]}
        lines.append(_filled(_option(arguments, "-o", "--format") or "%i %P %j %u %T", values))
    return Answer(0, "".join(f"{line}\n" for line in lines))


def sbatch(state: Dict[str, Any], arguments: List[str]) -> Answer:
    number = str(max([FIRST_OWN_JOB - 1, *(int(j) for j in state["jobs"] if j.isdigit())]) + 1)
    given = {"comment": _option(arguments, "", "--comment"), "name": _option(arguments, "-J", "--job-name") or "wrap"}
    partition = _option(arguments, "-p", "--partition") or state["partition"]
    again = "--no-requeue" not in arguments
    state["jobs"][number] = new_job(state="PENDING", uid=0, user="root", partition=partition, requeue=again, **given)
    return Answer(0, f"{number}\n" if "--parsable" in arguments else f"Submitted batch job {number}\n")


def scancel(state: Dict[str, Any], arguments: List[str]) -> Answer:
    if any(a.startswith(("--signal", "-s")) for a in arguments):
        return Answer(0)  # what a job does when it is signalled is not played
    named = _option(arguments, "-n", "--name")
    gone = [n for n, job in state["jobs"].items() if n in arguments or (named and job["name"] == named)]
    for name in gone:
        del state["jobs"][name]
        for node in state["nodes"].values():
            node["jobs"].pop(name, None)
    return Answer(0)


def _option(arguments: List[str], short: str, long: str) -> str:
    """The value of ``-o VALUE``, ``--long VALUE`` or ``--long=VALUE``; '' when it is not given."""
    for at, word in enumerate(arguments):
        if word.startswith(f"{long}="):
            return word.partition("=")[2]
        if word in (short, long) and at + 1 < len(arguments):
            return arguments[at + 1]
    return ""


def _filled(form: str, values: Dict[str, str]) -> str:
    for letter, value in values.items():
        form = form.replace(f"%{letter}", value.replace("%", "\0"))
    return form.replace("\0", "%")


PROGRAMS = {"scontrol": scontrol_answer, "sinfo": sinfo, "squeue": squeue, "sbatch": sbatch, "scancel": scancel}


def main(arguments: List[str]) -> int:
    program, path, *rest = arguments
    told: Any = rest if program == "scontrol" else {"program": program, "arguments": rest}
    return scontrol.play(path, rest, told, PROGRAMS[program])
