"""A played scontrol: the few commands about nodes that hooks use, over a JSON file instead of slurmctld.

Self-contained: it is also run by path as a program (``scontrol.py STATE.json ARGUMENTS…``).
What it says and which exit status it gives was observed on Slurm 22.05.8 and 24.11.5.
Jobs, reservations and Slurm's other commands: commands.py.

State file: ``{"version", "behaviour", "seconds", "now_ns", "partition", "partition_nodes", "nodes": {name: {"base",
"flags", "reason", "user", "time_ns", "jobs"}}, "jobs": {id: …}, "reservations": {name: …}}``. Each call is appended
to ``STATE.json.calls`` before anything else happens: scontrol's as a JSON list of its arguments, another command's
as ``{"program", "arguments"}``.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

KEEPS_REASON = "24.11"  # this version keeps a reason on nodes that are in service, 22.05 drops it
UNREACHABLE = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"
NEEDS_REASON = "You must specify a reason when DOWNING or DRAINING a node. Request denied"


class Answer(NamedTuple):
    """What the command prints and returns."""

    rc: int
    out: str = ""
    err: str = ""


def with_state(path: str, change: Callable[[Dict[str, Any]], Any]) -> Any:
    """Read the state, let ``change`` alter it, write it back whole; one at a time."""
    with open(path + ".lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(path, encoding="utf-8") as handle:
            state = json.load(handle)
        result = change(state)
        with open(path + ".new", "w", encoding="utf-8") as handle:
            json.dump(state, handle)
        os.replace(path + ".new", path)
        return result


def new_state(version: str, node: str) -> Dict[str, Any]:
    """A Slurm with one idle node."""
    return {
        "version": version, "behaviour": "ok", "seconds": 0.0, "now_ns": 0, "partition": "gpu", "partition_nodes": 1,
        "nodes": {node: new_node()}, "jobs": {}, "reservations": {},
    }  # fmt: skip


def new_node() -> Dict[str, Any]:
    """An idle one."""
    return {"base": "IDLE", "flags": [], "reason": "", "user": "", "time_ns": 0, "jobs": {}}


def split_state(text: str) -> Tuple[str, Tuple[str, ...]]:
    """'IDLE+DRAIN' -> ('IDLE', ('DRAIN',)); 'drained' and 'draining' are understood too."""
    base, *flags = [part for part in text.upper().replace("*", "").split("+") if part]
    if base in ("DRAIN", "DRAINED", "DRAINING"):
        base, flags = ("MIXED" if base == "DRAINING" else "IDLE"), ["DRAIN", *flags]
    return base, tuple(flags)


def word(node: Dict[str, Any]) -> str:
    """The state in one word as sinfo shows it: idle, mixed, drained, draining, down, …"""
    base = busy_base(node)
    if "DRAIN" in node["flags"]:
        return "draining" if base in ("MIXED", "ALLOCATED", "COMPLETING") else "drained"
    return str(base.lower())


def busy_base(node: Dict[str, Any]) -> str:
    """The base state, which for a node in use follows from its jobs."""
    if node["base"] != "IDLE" or not node["jobs"]:
        return str(node["base"])
    return "ALLOCATED" if "all" in node["jobs"].values() else "MIXED"


def drain(state: Dict[str, Any], name: str, reason: str, user: str) -> None:
    """Set DRAIN with a reason; an older reason is overwritten, as slurmctld does."""
    node = state["nodes"][name]
    node["flags"] = sorted({*node["flags"], "DRAIN"})
    node.update(reason=reason, user=user, time_ns=state["now_ns"])


def resume(state: Dict[str, Any], name: str) -> bool:
    """End drain or down. False when there was nothing to end."""
    node = state["nodes"][name]
    out = {"DRAIN", "FAIL"} & set(node["flags"])
    if not out and node["base"] != "DOWN":
        return False
    node["flags"] = [f for f in node["flags"] if f not in ("DRAIN", "FAIL")]
    if node["base"] == "DOWN":
        node["base"] = "IDLE"
    if state["version"] != KEEPS_REASON:
        node.update(reason="", user="", time_ns=0)
    return True


def answer(state: Dict[str, Any], arguments: List[str]) -> Answer:
    """Do one command on the state, as a slurmctld that is well would."""
    plain = [a for a in arguments if not a.startswith("-")]
    if "--json" in arguments and state["version"] != KEEPS_REASON:
        return Answer(1, err="scontrol: unrecognized option '--json'")
    if not plain:
        return Answer(1, err="too few arguments for keyword")
    keyword = plain[0].lower()
    if keyword == "ping":
        return Answer(0, "Slurmctld(primary) at controller is UP\n")
    if keyword == "show" and len(plain) > 1 and plain[1].lower() in ("node", "nodes"):
        return _show(state, plain[2] if len(plain) > 2 else "", "--json" in arguments)
    if keyword == "update":
        return _update(state, plain[1:])
    return Answer(1, err=f"invalid keyword: {plain[0]}")


def _show(state: Dict[str, Any], name: str, as_json: bool) -> Answer:
    names = [name] if name else sorted(state["nodes"])
    unknown = [n for n in names if n not in state["nodes"]]
    if unknown:
        return Answer(1, f"Node {unknown[0]} not found\n")
    if as_json:
        return Answer(0, json.dumps({"nodes": [_node_json(state, n) for n in names]}, indent=2) + "\n")
    return Answer(0, "\n".join(_node_text(state, n) for n in names) + "\n")


def _node_json(state: Dict[str, Any], name: str) -> Dict[str, Any]:
    node = state["nodes"][name]
    when = {"set": bool(node["time_ns"]), "infinite": False, "number": node["time_ns"] // 10**9}
    return {
        "name": name,
        "hostname": name,
        "state": [busy_base(node), *node["flags"]],
        "reason": node["reason"],
        "reason_changed_at": when,
        "reason_set_by_user": node["user"] if node["reason"] else "",
    }


def _node_text(state: Dict[str, Any], name: str) -> str:
    node = state["nodes"][name]
    shown = "+".join([busy_base(node), *node["flags"]])
    lines = [
        f"NodeName={name} Arch=x86_64 CoresPerSocket=32 ",
        "   CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.07",
        "   AvailableFeatures=(null)",
        "   ActiveFeatures=(null)",
        "   Gres=gpu:8(S:0-1)",
        f"   NodeAddr={name} NodeHostName={name} Version={state['version']}",
        "   OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC ",
        "   RealMemory=1000000 AllocMem=0 FreeMem=990000 Sockets=2 Boards=1",
        f"   State={shown} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"   Partitions={state['partition']} ",
        "   BootTime=2026-01-01T00:00:00 SlurmdStartTime=2026-01-01T00:01:00",
        "   CfgTRES=cpu=64,mem=1000000M,billing=64",
        "   AllocTRES=",
    ]
    if state["version"] == KEEPS_REASON:
        lines.append("   CurrentWatts=0 AveWatts=0")
    else:
        lines += ["   CapWatts=n/a", "   CurrentWatts=0 AveWatts=0", "   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"]
    if node["reason"]:
        # The mark follows the first line of a reason, so a newline in it breaks line-oriented parsing.
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(node["time_ns"] // 10**9))
        first, sep, rest = node["reason"].partition("\n")
        lines.append(f"   Reason={first} [{node['user']}@{when}]{sep}{rest}")
    return "\n".join(lines) + "\n"


def _update(state: Dict[str, Any], pairs: List[str]) -> Answer:
    values = {key.lower(): value for key, _sep, value in (pair.partition("=") for pair in pairs)}
    name = values.get("nodename", values.get("node", ""))
    if name not in state["nodes"]:
        return Answer(1, err="slurm_update error: Invalid node name specified")
    node = state["nodes"][name]
    wanted = values.get("state", "").lower()
    reason = values.get("reason", "")
    if wanted in ("drain", "down", "fail") and not reason:
        return Answer(1, err=NEEDS_REASON)
    if wanted == "drain":
        drain(state, name, reason, "root")
    elif wanted == "down":
        node.update(base="DOWN", reason=reason, user="root", time_ns=state["now_ns"])
    elif wanted == "fail":
        node["flags"] = sorted({*node["flags"], "FAIL"})
        node.update(reason=reason, user="root", time_ns=state["now_ns"])
    elif wanted == "resume":
        if not resume(state, name):
            return Answer(1, err="slurm_update error: Invalid node state specified")
    elif wanted == "undrain":
        resume(state, name)
    elif wanted:
        return Answer(1, err="slurm_update error: Invalid node state specified")
    elif reason and ("DRAIN" in node["flags"] or node["base"] == "DOWN" or state["version"] == KEEPS_REASON):
        node.update(reason=reason, user="root", time_ns=state["now_ns"])
    return Answer(0)


Answering = Callable[[Dict[str, Any], List[str]], Answer]


def played(state: Dict[str, Any], arguments: List[str], answering: Answering = answer) -> Answer:
    """One command under the behaviour that the scenario asks for."""
    behaviour = state["behaviour"]
    is_update = bool(arguments) and arguments[0].lower() == "update"
    if behaviour == "fails":
        return Answer(1, err="scontrol: fatal: Could not establish a configuration source")
    if behaviour == "down":
        pinged = bool(arguments) and arguments[0].lower() == "ping"
        return Answer(1, "Slurmctld(primary) at controller is DOWN\n") if pinged else Answer(1, err=UNREACHABLE)
    if behaviour == "refuses" and is_update:
        return Answer(1, err="slurm_update error: Invalid user id")
    done = answering(state, arguments)
    if behaviour in ("applies_then_times_out", "applies_then_hangs") and is_update and done.rc == 0:
        # slurmctld was only slow: the change is made although the caller hears otherwise.
        return Answer(1, err=f"slurm_update error: {TIMED_OUT}")
    return done


def main(arguments: List[str]) -> int:
    return play(arguments[0], arguments[1:], arguments[1:], answer)


def play(path: str, rest: List[str], told: Any, answering: Answering) -> int:
    """One call, start to end. told: how it is written to the list of calls."""
    with open(path + ".calls", "a", encoding="utf-8") as log:
        log.write(json.dumps(told) + "\n")
    with open(path, encoding="utf-8") as handle:
        behaviour, seconds = (lambda s: (s["behaviour"], s["seconds"]))(json.load(handle))
    if behaviour == "hangs":
        _hang()
    if behaviour == "slow":
        time.sleep(seconds)
    done: Answer = with_state(path, lambda state: played(state, rest, answering))
    if behaviour == "applies_then_hangs" and rest and rest[0].lower() == "update":
        _hang()
    sys.stdout.write(done.out)
    if done.err:
        sys.stderr.write(done.err + "\n")
    return done.rc


def _hang() -> None:
    """Never answer: who waits must have a deadline of his own. Bounded so that a test's orphan dies."""
    time.sleep(600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
