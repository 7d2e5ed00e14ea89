"""The stage for one replay: a directory with everything that hooks touch, so that nothing else is touched.

``etc/`` policy, slurm.conf, gres.conf, cgroup.conf; ``libexec/`` the launchers, written by the
same installer as on a node; ``state/``, ``run/``; ``bin/``, the played commands of Slurm; ``world.json``,
the simulated node; ``slurm.json``, the played Slurm.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import yaml
from msgspec import UNSET

from slurm_nvhc import strict_yaml
from slurm_nvhc.errors import InputError
from slurm_nvhc.hooks import install
from slurm_nvhc.model.times import parse_duration
from slurm_nvhc.policy import source
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Budgets, resolve
from slurm_nvhc.proc.files import write_atomic
from slurm_nvhc.scenario import commands, scontrol
from slurm_nvhc.scenario.environment import JobValues
from slurm_nvhc.scenario.format import Scenario
from slurm_nvhc.scenario.seen import NodeSeen
from slurm_nvhc.scenario.setting import OtherNode, Scontrol, ScontrolWord, SinfoWord, Slurm, SlurmNode
from slurm_nvhc.scenario.steps import Break


class Stage(NamedTuple):
    """Paths of one replay. node: SLURMD_NODENAME."""

    root: str
    node: str

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    @property
    def conf(self) -> str:
        return self.path("etc", "slurm.conf")

    @property
    def policy(self) -> str:
        return self.path("etc", "policy.yaml")

    @property
    def world(self) -> str:
        return self.path("world.json")

    @property
    def slurm(self) -> str:
        return self.path("slurm.json")

    @property
    def node_state(self) -> str:
        """The state directory of the node: ledger and compiled policy."""
        return self.path("state", self.node)

    def launcher(self, hook: str) -> str:
        return self.path("libexec", f"nvhc-{hook.replace('_', '-')}.sh")


def build(scenario: Scenario, root: str, gpus: int) -> Stage:
    """Write everything but the world. ``gpus``: on the node, for the gres.conf that is made when none is given.

    Raises InputError (paths) and MonitorError (the installer).
    """
    stage = Stage(root, scenario.node.name)
    for name in ("etc", "bin", "log", "run", "state"):
        os.makedirs(stage.path(name), exist_ok=True)
    _write_slurm(stage, scenario.slurm, gpus)
    # A node has run before: it holds a last good policy. It also tells hooks where the simulated
    # node is when the scenario's own policy is broken from the start.
    write_policy(stage, {})
    source.load(stage.policy, stage.node_state, stage.node, scenario.slurm.partition)
    text = write_policy(stage, {} if scenario.policy is UNSET else scenario.policy)
    _install(stage, _budgets(text, stage.node, scenario.slurm.partition), _breaks_interpreter(scenario))
    return stage


def _breaks_interpreter(scenario: Scenario) -> bool:
    return any(isinstance(step.break_, Break) and step.break_.interpreter is not UNSET for step in scenario.steps)


def _install(stage: Stage, budgets: Budgets, own_interpreter: bool) -> None:
    python = sys.executable
    if own_interpreter:  # one that can be deleted; it runs the real one
        python = stage.path("bin", "python3")
        _script(python, f'exec {shlex.quote(sys.executable)} "$@"')
    install.install(
        install.Options(
            libdir=stage.path("libexec"),
            config=stage.policy,
            state=stage.path("state"),
            run=stage.path("run"),
            slurm_conf=stage.conf,
            kill_switch=stage.path("etc", "disabled"),
            python=python,
            budgets=budgets,
            narrowing=True,
        )
    )


def _budgets(text: str, node: str, partition: str) -> Budgets:
    """What the installer takes from the policy in force; a broken policy leaves the defaults."""
    try:
        return resolve(compile_policy(text, "policy"), node, partition).budgets
    except InputError:
        return Budgets()


def _script(path: str, line: str) -> None:
    write_atomic(path, f"#!/bin/sh\n{line}\n", 0o755, durable=False)


# --- policy -----------------------------------------------------------------------------------


def write_policy(stage: Stage, given: Union[Mapping[str, Any], str]) -> str:
    """Write policy.yaml as the administrator wrote it, with the replay's engine and scontrol added. Returns its text."""
    text = policy_text(given, stage.world, stage.path("bin"))
    _stays_on_stage(text, stage)
    write_atomic(stage.policy, text, 0o644, durable=False)
    return text


def _stays_on_stage(text: str, stage: Stage) -> None:
    """Refuse a policy that leads hooks to a real engine, scontrol or folder: a scenario may come from a stranger."""
    try:
        compiled = compile_policy(text, "policy")
    except InputError:
        return  # broken: it does not come into force
    base = resolve(compiled)
    patches = [patch for section in ("partitions", "nodes") for _pattern, patch in compiled[section]]
    ours = (base.engine.backend, base.engine.world, base.slurm.bin_dir) == ("sim", stage.world, stage.path("bin"))
    elsewhere = any({"backend", "world"} & set(p.get("engine", {})) or "bin_dir" in p.get("slurm", {}) for p in patches)
    if elsewhere or not ours:
        raise InputError("policy", "", "engine.backend, engine.world and slurm.bin_dir are the replay's own", "leave them out")
    if base.user_report.dir or any("dir" in p.get("user_report", {}) for p in patches):
        raise InputError("policy", "key user_report.dir", "would be written outside the replay", "leave it out; expect touched instead")


def policy_text(given: Union[Mapping[str, Any], str], world: str, bin_dir: str) -> str:
    """The policy file's text. Raw text keeps its lines: what the replay needs is appended.

    A text without content stays as it is: an empty file is broken, and must be seen as that.
    """
    ours: Dict[str, Dict[str, Any]] = {"engine": {"backend": "sim", "world": world}, "slurm": {"bin_dir": bin_dir}}
    # The played node has a disk, wherever this machine keeps its temporary files.
    ours["record"] = {"durable": True}
    if isinstance(given, str):
        if all(not line.strip() or line.lstrip().startswith("#") for line in given.splitlines()):
            return given
        data = _readable(given)
        if data is None or not set(ours) & set(data):
            return given.rstrip("\n") + "\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in ours.items())
        given = data
    merged = dict(given)
    for key, value in ours.items():
        theirs = merged.get(key, {})
        if isinstance(theirs, Mapping):
            merged[key] = {**value, **theirs} if key == "record" else {**theirs, **value}
    return yaml.safe_dump(merged, sort_keys=False, allow_unicode=True, width=1000)


def _readable(text: str) -> Optional[Dict[str, Any]]:
    try:
        return strict_yaml.load(text, "policy", dict, empty_ok=True).value
    except InputError:
        return None


# --- Slurm ------------------------------------------------------------------------------------


def _write_slurm(stage: Stage, slurm: Slurm, gpus: int) -> None:
    def put(name: str, text: str) -> None:
        write_atomic(stage.path("etc", name), text, 0o644, durable=False)

    plugins = "task/cgroup,task/affinity" if slurm.constrain_devices else "task/affinity"
    node = f"NodeName={stage.node} Gres=gpu:{gpus}"
    put("slurm.conf", f"ClusterName=replay\nSlurmctldHost=controller\n{node}\nTaskPlugin={plugins}\nPrologFlags=Alloc\n")
    put("cgroup.conf", f"ConstrainDevices={'yes' if slurm.constrain_devices else 'no'}\n")
    default = f"NodeName={stage.node} Name=gpu File=/dev/nvidia[0-{gpus - 1}]\n" if gpus else ""
    put("gres.conf", default if not isinstance(slurm.gres, str) else slurm.gres)
    state = scontrol.new_state(slurm.version, stage.node)
    state.update(partition=slurm.partition, partition_nodes=max(slurm.partition_nodes, 1 + len(slurm.others)))
    with open(stage.slurm, "w", encoding="utf-8") as handle:
        json.dump(state, handle)
    set_node(stage, slurm.node)
    for program in ("squeue", "sbatch", "scancel"):
        _command(stage, program)
    behave(stage, slurm.scontrol)
    behave_sinfo(stage, slurm.sinfo)


def _command(stage: Stage, program: str) -> None:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(scontrol.__file__))))
    run = "import sys; sys.path.insert(0, sys.argv.pop(1)); from slurm_nvhc.scenario import commands; sys.exit(commands.main(sys.argv[1:]))"
    words = [sys.executable, "-I", "-S", "-c", run, package, program, stage.slurm]
    _script(stage.path("bin", program), f'exec {" ".join(map(shlex.quote, words))} "$@"')


def set_others(stage: Stage, others: Sequence[OtherNode], wall_ns: int) -> None:
    """Other nodes of the partition that are out, or were."""

    def change(state: Dict[str, Any]) -> None:
        for other in others:
            base, flags = scontrol.split_state(other.state)
            since_ns = wall_ns - int(parse_duration(other.ago) * 1e9)
            entry = {"base": base, "flags": list(flags), "reason": other.reason, "user": other.user, "time_ns": since_ns}
            state["nodes"][other.node] = {**scontrol.new_node(), **entry}

    scontrol.with_state(stage.slurm, change)


def others_resumed(stage: Stage, name: str) -> None:
    """Somebody resumes another node of the partition."""
    scontrol.with_state(stage.slurm, lambda state: scontrol.resume(state, name))


def rebooted(stage: Stage) -> None:
    """The node is back; where Slurm had rebooted it with nextstate=RESUME, it is in service."""

    def change(state: Dict[str, Any]) -> None:
        node = state["nodes"][stage.node]
        if {"REBOOT_ISSUED", "REBOOT_REQUESTED"} & set(node["flags"]):
            node["flags"] = [f for f in node["flags"] if not f.startswith("REBOOT")]
            scontrol.resume(state, stage.node)

    scontrol.with_state(stage.slurm, change)


def behave(stage: Stage, word: ScontrolWord) -> None:
    """Let the played scontrol behave so from now on; ``missing`` takes the command away."""
    behaviour = word.behaviour if isinstance(word, Scontrol) else word
    seconds = word.seconds if isinstance(word, Scontrol) and isinstance(word.seconds, float) else 1.0
    command = stage.path("bin", "scontrol")
    if behaviour == "missing":
        if os.path.exists(command):
            os.unlink(command)
        return
    _command(stage, "scontrol")
    scontrol.with_state(stage.slurm, lambda state: state.update(behaviour=behaviour, seconds=seconds))


def behave_sinfo(stage: Stage, word: SinfoWord) -> None:
    """The same for sinfo, which apart from this does as slurmctld does."""
    path = stage.path("bin", "sinfo")
    if word != "missing":
        _command(stage, "sinfo")
    elif os.path.exists(path):
        os.unlink(path)
    scontrol.with_state(stage.slurm, lambda state: state.update(sinfo=word))


def set_node(stage: Stage, wanted: SlurmNode) -> None:
    """Put the node into a state, whoever did it."""
    base, flags = scontrol.split_state(wanted.state)
    values = {"base": base, "flags": list(flags), "reason": wanted.reason, "user": wanted.user if wanted.reason else ""}
    scontrol.with_state(stage.slurm, lambda state: state["nodes"][stage.node].update(values))


def admin_drain(stage: Stage, reason: str, user: str) -> None:
    scontrol.with_state(stage.slurm, lambda state: scontrol.drain(state, stage.node, reason, user))


def admin_resume(stage: Stage) -> None:
    scontrol.with_state(stage.slurm, lambda state: scontrol.resume(state, stage.node))


def slurmd_drain(stage: Stage, reason: str) -> None:
    """Slurm's own reaction to a failed hook: never over the reason of a node that is drained already."""

    def change(state: Dict[str, Any]) -> None:
        if "DRAIN" not in state["nodes"][stage.node]["flags"]:
            scontrol.drain(state, stage.node, reason, "root")

    scontrol.with_state(stage.slurm, change)


def set_job(stage: Stage, job: JobValues, gpus: Optional[str], word: str = "RUNNING") -> None:
    """A job is on the node with these GPUs ("all" or a list) in state ``word``, or, None, no longer.

    One that was moved away meanwhile is pending elsewhere.
    """

    def change(state: Dict[str, Any]) -> None:
        jobs, known = state["nodes"][stage.node]["jobs"], state["jobs"].get(job.job)
        if gpus is None:
            jobs.pop(job.job, None)
            if known is not None and known["state"] != "PENDING":
                del state["jobs"][job.job]
            return
        jobs[job.job] = gpus
        about = {"uid": job.uid, "user": job.user, "partition": job.partition, "gpus": job.gpus, "nodes": job.nodes, "node": stage.node}
        asked = {"batch": job.batch, "requeue": job.requeue, "comment": job.comment, "features": job.constraint}
        state["jobs"][job.job] = {**commands.new_job(**asked), **(known or {}), **about, "state": word}

    scontrol.with_state(stage.slurm, change)


def set_clock(stage: Stage, wall_ns: int) -> None:
    """Slurm's times follow the simulated node's clock."""
    scontrol.with_state(stage.slurm, lambda state: state.update(now_ns=wall_ns))


def node_seen(stage: Stage) -> NodeSeen:
    def look(state: Dict[str, Any]) -> NodeSeen:
        node = state["nodes"][stage.node]
        out = node["base"] == "DOWN" or bool({"DRAIN", "FAIL"} & set(node["flags"]))
        return NodeSeen(scontrol.word(node), out, node["reason"], node["user"])

    seen: NodeSeen = scontrol.with_state(stage.slurm, look)
    return seen


def calls(stage: Stage) -> List[Tuple[str, ...]]:
    """All calls of Slurm's commands so far: the program and its arguments."""
    try:
        with open(stage.slurm + ".calls", encoding="utf-8") as log:
            told = [json.loads(line) for line in log]
    except FileNotFoundError:
        return []
    return [("scontrol", *t) if isinstance(t, list) else (t["program"], *t["arguments"]) for t in told]


# --- what breaks ------------------------------------------------------------------------------


def kill_switch(stage: Stage, on: bool) -> None:
    path = stage.path("etc", "disabled")
    if on:
        write_atomic(path, "", 0o644, durable=False)
    elif os.path.exists(path):
        os.unlink(path)


def damage(stage: Stage, what: Break) -> None:
    """Delete or spoil our own things, as disks and people do."""
    if what.policy == "delete":
        os.unlink(stage.policy)
    elif what.policy == "corrupt":
        write_atomic(stage.policy, "rules: [\x01 not yaml\n", 0o644, durable=False)
    if what.ledger is not UNSET:
        database = os.path.join(stage.node_state, "ledger.sqlite3")
        for suffix in ("", "-wal", "-shm"):
            if os.path.exists(database + suffix):
                os.unlink(database + suffix)
        if what.ledger == "corrupt":
            with open(database, "wb") as handle:
                handle.write(b"this is no database\n" * 500)
    if what.state is not UNSET:
        shutil.rmtree(stage.path("state"))
    if what.interpreter is not UNSET:
        os.unlink(stage.path("bin", "python3"))
