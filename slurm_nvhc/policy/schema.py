"""What an administrator writes in policy.yaml, as types. The meaning of each key is said here once.

Absent keys are ``UNSET``: what is not written is taken from the layer below.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import UNSET, Meta, UnsetType

Duration = Annotated[Union[str, int, float], Meta(description="a duration such as 90s, 5m, 1h30m or 7d; a bare number is seconds")]
Number = float
FieldName = Annotated[Union[str, int], Meta(description="a name of the field catalogue, or DCGM's numeric field id")]
Word = Annotated[Union[str, int, float], Meta(description="a reading: a number or a state's word")]
Mode = Literal["enforce", "observe", "off"]


class Section(msgspec.Struct, forbid_unknown_fields=True):
    """Base of all sections: an unknown key is an error (one misspelt key must not switch off a threshold)."""


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Poisson(Section):
    """What growth of a counter is normal."""

    rate: Annotated[Union[str, int, float], _doc("errors per time of a healthy counter: 0.001/h")]
    ber: Annotated[Union[Number, UnsetType], _doc("where the traffic is known: errors per bit of a healthy link, e.g. 1e-15")] = UNSET
    own: Annotated[Union[str, int, float, UnsetType], _doc("the counter's own past may raise what is normal, up to this rate: 100/s")] = (
        UNSET
    )


class Cusum(Section):
    """Between which rates evidence is gathered over jobs."""

    normal: Annotated[Union[str, int, float], _doc("errors per time of a healthy counter: 0.001/h")]
    faulty: Annotated[Union[str, int, float], _doc("the rate that must not be missed: 0.5/h")]


class Peers(Section):
    """How far a GPU must stand out among the GPUs of its job."""

    above: Annotated[Union[str, int, float, UnsetType], _doc("above their median by this much: 10 (the field's unit) or 15%")] = UNSET
    below: Annotated[Union[str, int, float, UnsetType], _doc("below their median by this much: 10 or 15%")] = UNSET
    mad: Annotated[Union[Number, UnsetType], _doc("and by this many median absolute deviations (3)")] = UNSET


class Level(Section):
    """Conditions that must all hold. Several levels in a list are alternatives."""

    increase_above: Annotated[Union[Number, UnsetType], _doc("counters: growth over the window above this")] = UNSET
    increase_at_least: Annotated[Union[Number, UnsetType], _doc("counters: growth over the window of at least this")] = UNSET
    rate_above: Annotated[Union[str, int, float, UnsetType], _doc("counters: growth per time above this: 8/min (/s, /min, /h)")] = UNSET
    rate_at_least: Annotated[Union[str, int, float, UnsetType], _doc("counters: growth per time of at least this, e.g. 100/s")] = UNSET
    share_above: Annotated[Union[str, int, float, UnsetType], _doc("time counters (ns): share of the window above this, e.g. 1%")] = UNSET
    over_limit: Annotated[Union[Literal["pcie_replays"], UnsetType], _doc("growth above DCGM's expected PCIe replays")] = UNSET
    times: Annotated[Union[Number, UnsetType], _doc("with over_limit: this many times the limit (1)")] = UNSET
    value_above: Annotated[Union[Number, UnsetType], _doc("the reading is above this")] = UNSET
    value_below: Annotated[Union[Number, UnsetType], _doc("the reading is below this")] = UNSET
    value_at_least: Annotated[Union[Number, UnsetType], _doc("the reading is at least this")] = UNSET
    value_at_most: Annotated[Union[Number, UnsetType], _doc("the reading is at most this")] = UNSET
    value_is: Annotated[Union[Word, list[Word], UnsetType], _doc("the reading is (one of) this")] = UNSET
    value_is_not: Annotated[Union[Word, list[Word], UnsetType], _doc("the reading is none of this")] = UNSET
    bits_any: Annotated[
        Union[int, str, list[str], UnsetType], _doc("bit masks: any of hw_slowdown, sw_thermal, hw_thermal, power_brake, or a mask")
    ] = UNSET
    below_field: Annotated[Union[FieldName, UnsetType], _doc("below another reading of the same GPU, plus offset")] = UNSET
    above_field: Annotated[Union[FieldName, UnsetType], _doc("above another reading of the same GPU, plus offset")] = UNSET
    offset: Annotated[Union[Number, UnsetType], _doc("with below_field, above_field: added to the other reading (0)")] = UNSET
    went_down: Annotated[Union[Literal[True], UnsetType], _doc("nvlink_state: not up, and was up before or is expected up")] = UNSET
    poisson: Annotated[
        Union[Poisson, UnsetType], _doc("counters: growth that a healthy counter shows less often than false_alarms allows")
    ] = UNSET
    cusum: Annotated[
        Union[Cusum, UnsetType], _doc("counters: evidence gathered over all jobs and health checks; false_alarms sets the limit")
    ] = UNSET
    peers: Annotated[Union[Peers, UnsetType], _doc("stands out among the GPUs of its job, over the job")] = UNSET
    below_learned: Annotated[Union[Literal[True], UnsetType], _doc("lower than what was learned on this node")] = UNSET
    not_as_learned: Annotated[Union[Literal[True], UnsetType], _doc("other than what was learned on this node")] = UNSET
    sxid: Annotated[Union[int, Literal["any"], list[int], UnsetType], _doc("SXid numbers of NVSwitches; any: all of them")] = UNSET
    fatal: Annotated[Union[bool, UnsetType], _doc("Xids and SXids: only those whose line says fatal (true) or does not (false)")] = UNSET
    xid: Annotated[Union[int, Literal["other"], list[int], UnsetType], _doc("Xid numbers; other: those that no enabled rule names")] = UNSET
    lost: Annotated[Union[Literal[True], UnsetType], _doc("a GPU that should be here does not answer")] = UNSET
    diag: Annotated[
        Union[Literal["fail", "warn"], list[Literal["fail", "warn"]], UnsetType],
        _doc("a DCGM diagnostic's result: fail, warn, or both in a list"),
    ] = UNSET
    test: Annotated[Union[str, list[str], UnsetType], _doc("with diag: of these tests; hardware: all that load the GPU (any)")] = UNSET
    error: Annotated[
        Union[int, str, list[Union[int, str]], UnsetType],
        _doc("with diag: with one of these errors, by DCGM's numbers or names; other: those that no enabled rule names (any)"),
    ] = UNSET
    severity: Annotated[
        Union[str, list[str], UnsetType], _doc("with diag: with an error of this severity; none: DCGM gave none (any)")
    ] = UNSET
    consecutive: Annotated[Union[int, UnsetType], _doc("this many observations in a row (1)")] = UNSET
    spacing: Annotated[Union[Duration, UnsetType], _doc("with consecutive: looks at least this far apart (reread_wait)")] = UNSET
    settle: Annotated[
        Union[Duration, UnsetType], _doc("not before this long after boot, driver load or reset; consecutive starts after it (0s)")
    ] = UNSET
    hits: Annotated[Union[int, UnsetType], _doc("in this many of the last of_last jobs, or this often within a time (1)")] = UNSET
    of_last: Annotated[Union[int, UnsetType], _doc("with hits: of the GPU's last so many jobs, this one included")] = UNSET
    within: Annotated[Union[Duration, UnsetType], _doc("with hits or users: within this time")] = UNSET
    users: Annotated[Union[int, UnsetType], _doc("under this many different users within that time")] = UNSET
    min_window: Annotated[Union[Duration, UnsetType], _doc("growth: only over windows at least this long (0s)")] = UNSET
    witness: Annotated[
        Union[bool, UnsetType], _doc("lost: a kernel log line or the PCI bus saying the same makes consecutive moot (false)")
    ] = UNSET
    unless: Annotated[
        Union[dict[str, Union[Word, list[Word]]], UnsetType],
        _doc("not when another reading of the GPU (or same part) is this, or when xid / peer_xid was logged on it / on another GPU"),
    ] = UNSET
    only_when: Annotated[
        Union[dict[str, Union[Word, list[Word]]], UnsetType],
        _doc("only when another reading of the GPU (or same part) is known to be this: {gpu_processes: 0}"),
    ] = UNSET


class Rule(Section):
    """One rule. It reads fields, or its levels ask for Xids, for lost GPUs, or for results of diagnostics: one of the four."""

    finding: Annotated[Union[str, UnsetType], _doc("finding code (SITE-RULE)")] = UNSET
    field: Annotated[
        Union[FieldName, list[FieldName], UnsetType], _doc("what it reads; a GPU's total counts only when no link explains it")
    ] = UNSET
    warn: Annotated[Union[Level, list[Level], UnsetType], _doc("recorded and shown, never acted on beyond a notice")] = UNSET
    fail: Annotated[Union[Level, list[Level], UnsetType], _doc("leads to the action")] = UNSET
    action: Annotated[
        Union[Literal["none", "note", "notify", "narrow", "drain"], UnsetType],
        _doc("what fail leads to; narrow drains where narrow.enabled does not hold (note)"),
    ] = UNSET
    mode: Annotated[Union[Mode, UnsetType], _doc("enforce: act; observe: record only; off: do not judge (enforce)")] = UNSET
    sticky: Annotated[
        Union[bool, UnsetType],
        _doc("Xids, SXids: stays until reboot, driver load, a GPU's reset, or until an administrator resumes the node (false)"),
    ] = UNSET
    after_reset: Annotated[
        Union[Literal["ignore", "warn", "fail"], UnsetType], _doc("the most that a count since a reset in the window leads to (warn)")
    ] = UNSET
    unit: Annotated[Union[str, UnsetType], _doc("unit of the thresholds, for people")] = UNSET
    source: Annotated[Union[str, UnsetType], _doc("where the thresholds come from")] = UNSET
    why: Annotated[Union[str, UnsetType], _doc("why the rule exists")] = UNSET


class Narrow(Section):
    """Hiding a bad GPU from the next job instead of draining the node. Opt-in."""

    enabled: Annotated[Union[bool, UnsetType], _doc("(false)")] = UNSET
    min_gpus: Annotated[Union[int, UnsetType], _doc("GPUs that must be left to a job (1)")] = UNSET
    max_excluded: Annotated[Union[int, UnsetType], _doc("GPUs of a node that may be hidden; more: drain (1)")] = UNSET
    jobs: Annotated[Union[Literal["single_task", "any"], UnsetType], _doc("which jobs may be narrowed (single_task)")] = UNSET


class Quarantine(Section):
    """Holding a bad GPU with a placeholder job, so that Slurm gives out the others. Opt-in, where part of a node is useful."""

    enabled: Annotated[Union[bool, UnsetType], _doc("(false)")] = UNSET
    min_gpus: Annotated[Union[int, UnsetType], _doc("GPUs that must be left to the node's jobs (1)")] = UNSET
    max_gpus: Annotated[Union[int, UnsetType], _doc("GPUs of a node that may be held; more: drain (1)")] = UNSET
    place_within: Annotated[Union[Duration, UnsetType], _doc("not held by then: drain (30s)")] = UNSET
    max_age: Annotated[Union[Duration, UnsetType], _doc("held for longer: drain, so that somebody repairs it (7d)")] = UNSET
    partition: Annotated[Union[str, UnsetType], _doc("partition of the placeholder jobs; empty: the job's own, see quarantine.md")] = UNSET
    memory: Annotated[Union[int, UnsetType], _doc("memory of a placeholder job in MB (64)")] = UNSET


Diagnostic = Annotated[
    Union[int, str, list[str]], Meta(description="a level (1 to 4), tests by DCGM's names (memory, pcie), or none")
]


class Diagnostics(Section):
    """DCGM diagnostics that hooks run. None by default: what does not fit in the hook's time is not run, and that is said."""

    prolog: Annotated[Union[Diagnostic, UnsetType], _doc("on the job's GPUs before it starts (none)")] = UNSET
    epilog: Annotated[Union[Diagnostic, UnsetType], _doc("on the job's GPUs after it, see epilog_when (none)")] = UNSET
    drained: Annotated[Union[Diagnostic, UnsetType], _doc("by the health check, while our own drain keeps the node empty (none)")] = UNSET
    epilog_when: Annotated[
        Union[Literal["accused", "failed", "always"], UnsetType],
        _doc("accused: GPUs that a change in the job accuses; failed: after a job that failed; always (accused)"),
    ] = UNSET
    exit_codes: Annotated[Union[list[int], UnsetType], _doc("failed: which exit codes; empty: any but 0")] = UNSET
    min_gpus: Annotated[Union[int, UnsetType], _doc("only for jobs with this many GPUs here (1)")] = UNSET
    min_nodes: Annotated[Union[int, UnsetType], _doc("only for jobs on this many nodes (1)")] = UNSET
    require: Annotated[Union[list[str], UnsetType], _doc("tests that must give a result, or it is a warning")] = UNSET
    parameters: Annotated[Union[list[str], UnsetType], _doc("for DCGM: pcie.max_pcie_replays=80")] = UNSET
    through: Annotated[
        Union[Literal["auto", "api", "dcgmi"], UnsetType], _doc("the engine's API, or the command; auto: the API where it can (auto)")
    ] = UNSET
    dcgmi: Annotated[Union[str, UnsetType], _doc("path of the command (/usr/bin/dcgmi)")] = UNSET


class Isolate(Section):
    """What `nvhc isolate` runs to move data between GPUs."""

    traffic: Annotated[Union[list[str], UnsetType], _doc("command and arguments; {gpus}, {seconds}; empty: none")] = UNSET
    alone: Annotated[Union[list[str], UnsetType], _doc("for a single GPU; empty: as traffic")] = UNSET
    seconds: Annotated[Union[Duration, UnsetType], _doc("of traffic per step (30s)")] = UNSET
    timeout: Annotated[Union[Duration, UnsetType], _doc("of one step (3m)")] = UNSET


class Screen(Section):
    """A site's own command whose printed digest must be the same on every GPU: `nvhc screen`. None by default."""

    command: Annotated[Union[list[str], UnsetType], _doc("command and arguments; empty: none")] = UNSET
    timeout: Annotated[Union[Duration, UnsetType], _doc("per GPU (2m)")] = UNSET


Nodes = Annotated[Union[int, str], Meta(description="a number of nodes, or a share of the partition's nodes: 5%")]


class Limits(Section):
    """How many nodes of a partition may be out by drains of ours. Beyond: an alert, no drain."""

    soft: Annotated[Union[Nodes, UnsetType], _doc("for suspicions (5%)")] = UNSET
    hard: Annotated[Union[Nodes, UnsetType], _doc("for faults beyond doubt, suspicions counted too (20%)")] = UNSET
    within: Annotated[Union[Duration, UnsetType], _doc("drains younger than this count (1d)")] = UNSET
    recount: Annotated[Union[Duration, UnsetType], _doc("pause after a drain before who else drained is counted (2s)")] = UNSET


class Requeue(Section):
    """Moving a batch job that was given a bad GPU, instead of failing it. By the prolog, with PrologFlags=Alloc. Opt-in."""

    enabled: Annotated[Union[bool, UnsetType], _doc("(false)")] = UNSET
    per_job: Annotated[Union[int, UnsetType], _doc("times that a job is moved (2)")] = UNSET
    per_node: Annotated[Union[int, UnsetType], _doc("jobs that a node moves away within that time (5)")] = UNSET
    within: Annotated[Union[Duration, UnsetType], _doc("for per_node (1d)")] = UNSET


class Checkpoint(Section):
    """A signal to running jobs that opted in, before their node is drained. Opt-in."""

    enabled: Annotated[Union[bool, UnsetType], _doc("(false)")] = UNSET
    comment: Annotated[Union[str, UnsetType], _doc("word of the job's comment by which it opts in (nvhc-checkpoint)")] = UNSET
    constraint: Annotated[Union[str, UnsetType], _doc("feature in the job's constraint by which it opts in")] = UNSET
    signal: Annotated[Union[str, UnsetType], _doc("signal to the batch script (USR1)")] = UNSET
    grace: Annotated[Union[Duration, UnsetType], _doc("time between signal and drain (5m)")] = UNSET


class Reboot(Section):
    """`scontrol reboot ASAP` where the remediation of all that is wrong is a reboot. Opt-in."""

    enabled: Annotated[Union[bool, UnsetType], _doc("(false)")] = UNSET
    per_week: Annotated[Union[int, UnsetType], _doc("reboots of a node in a week; then only an administrator (2)")] = UNSET


class SiteHooks(Section):
    """Programs of the site, run as root with one JSON document on stdin. None by default."""

    on_drain: Annotated[Union[str, UnsetType], _doc("after a node was drained")] = UNSET
    on_exclude: Annotated[Union[str, UnsetType], _doc("after a GPU was excluded")] = UNSET
    on_release: Annotated[Union[str, UnsetType], _doc("after a GPU was released")] = UNSET
    on_resume: Annotated[Union[str, UnsetType], _doc("after a drain of ours was ended by us")] = UNSET
    on_requeue: Annotated[Union[str, UnsetType], _doc("after a job was moved")] = UNSET
    on_reboot: Annotated[Union[str, UnsetType], _doc("before a reboot is asked for")] = UNSET
    on_limit: Annotated[Union[str, UnsetType], _doc("when a limit kept us from acting")] = UNSET
    timeout: Annotated[Union[Duration, UnsetType], _doc("then it is killed (5s)")] = UNSET


class Evidence(Section):
    """A bundle per drain and exclusion: findings, counters, kernel log, serial, slot, versions."""

    enabled: Annotated[Union[bool, UnsetType], _doc("(true)")] = UNSET
    dir: Annotated[Union[str, UnsetType], _doc("folder; empty: evidence/ in the node's state directory")] = UNSET
    keep: Annotated[Union[int, UnsetType], _doc("bundles that are kept (20)")] = UNSET
    bug_report: Annotated[Union[bool, UnsetType], _doc("nvidia-bug-report.sh too, as far as the hook's time allows (false)")] = UNSET


class Expect(Section):
    """What a node must have. Without an expectation only what was there before is missed."""

    gpus: Annotated[Union[int, Literal["none"], UnsetType], _doc("number of GPUs; none: no expectation")] = UNSET
    links: Annotated[Union[int, Literal["none"], UnsetType], _doc("NVLinks per GPU that must be up; none: no expectation")] = UNSET


class Monitor(Section):
    """Trouble of our own: DCGM, Slurm, policy, ledger. Never a GPU's fault."""

    action: Annotated[Union[Literal["none", "note", "notify", "drain"], UnsetType], _doc("(notify)")] = UNSET
    after_runs: Annotated[Union[int, UnsetType], _doc("note and notify: once it lasted this many runs in a row (3)")] = UNSET
    after: Annotated[Union[Duration, UnsetType], _doc("note and notify: or this long (30m)")] = UNSET
    drain_after_runs: Annotated[Union[int, UnsetType], _doc("drain: once it lasted this many runs in a row (1)")] = UNSET


class Engine(Section):
    """Where readings come from."""

    backend: Annotated[Union[Literal["dcgm", "sim"], UnsetType], _doc("(dcgm)")] = UNSET
    address: Annotated[Union[str, UnsetType], _doc("unix:///run/… or tcp://host:port; empty: DCGM's default")] = UNSET
    world: Annotated[Union[str, UnsetType], _doc("sim: path of the simulated node's file")] = UNSET
    timeout: Annotated[Union[Duration, UnsetType], _doc("for one reading of the node (5s)")] = UNSET
    bindings: Annotated[Union[list[str], UnsetType], _doc("folders of DCGM's Python bindings; empty: where DCGM installs them")] = UNSET
    embedded: Annotated[Union[bool, UnsetType], _doc("be the engine instead of asking one (false)")] = UNSET
    health: Annotated[
        Union[Literal["off", "note", "warn"], UnsetType], _doc("health checks: DCGM's own health check as a second opinion (off)")
    ] = UNSET


class Slurm(Section):
    """How Slurm is found and asked."""

    bin_dir: Annotated[Union[str, UnsetType], _doc("folder of scontrol (/usr/bin)")] = UNSET
    conf: Annotated[Union[str, UnsetType], _doc("slurm.conf, where the hook's environment names none")] = UNSET
    job_gpus: Annotated[
        Union[Literal["position", "minor", "index"], UnsetType], _doc("what SLURM_JOB_GPUS counts: positions in gres.conf, … (position)")
    ] = UNSET
    timeout: Annotated[Union[Duration, UnsetType], _doc("for one command (4s)")] = UNSET


class Drain(Section):
    """The reason, and what happens to our own drains."""

    template: Annotated[Union[str, UnsetType], _doc("Jinja2 template of the reason; empty: the packaged one")] = UNSET
    max_length: Annotated[Union[int, UnsetType], _doc("characters of a reason (250)")] = UNSET
    extend: Annotated[Union[bool, UnsetType], _doc("append a new fault to our own reason (false)")] = UNSET
    resume: Annotated[
        Union[Literal["off", "standing", "own"], UnsetType], _doc("which of our own drains end after resume_passes (off)")
    ] = UNSET
    resume_passes: Annotated[Union[int, UnsetType], _doc("clean health checks in a row before that (3)")] = UNSET
    resume_after: Annotated[Union[Duration, UnsetType], _doc("not sooner after the drain (10m)")] = UNSET
    resume_per_day: Annotated[Union[int, UnsetType], _doc("then only an administrator resumes (2)")] = UNSET
    resume_diagnostic: Annotated[
        Union[Diagnostic, UnsetType], _doc("and only after this one passed on every GPU since the drain (none)")
    ] = UNSET


class Budgets(Section):
    """Time for one run of a hook, acting included. The launcher's own limit is fixed at install time."""

    prolog: Annotated[Union[Duration, UnsetType], _doc("(8s)")] = UNSET
    epilog: Annotated[Union[Duration, UnsetType], _doc("(20s)")] = UNSET
    health_check: Annotated[Union[Duration, UnsetType], _doc("(30s)")] = UNSET
    registration: Annotated[Union[Duration, UnsetType], _doc("health check before the node has registered (10s)")] = UNSET


class Record(Section):
    """What the ledger keeps."""

    keep: Annotated[Union[Duration, UnsetType], _doc("runs and snapshots are kept this long (30d)")] = UNSET
    durable: Annotated[
        Union[bool, Literal["auto"], UnsetType], _doc("does the state directory survive a reboot? auto: not one in memory (auto)")
    ] = UNSET


class FalseAlarms(Section):
    """One budget for all statistical tests of the fleet."""

    per_day: Annotated[Union[Number, UnsetType], _doc("false alarms per day in the whole fleet (0.1)")] = UNSET
    nodes: Annotated[Union[Number, UnsetType], _doc("nodes of the fleet (10000)")] = UNSET
    tests: Annotated[Union[Number, UnsetType], _doc("statistical tests of one node in a day (10000)")] = UNSET


class Learn(Section):
    """What is learned of a healthy node and then held against it: `nvhc baseline`."""

    enabled: Annotated[Union[bool, UnsetType], _doc("(true)")] = UNSET
    settle: Annotated[Union[Duration, UnsetType], _doc("not before this long after boot or driver load (10m)")] = UNSET


class UserReport(Section):
    """A file per job, readable by its user: clean, suspect or hit."""

    dir: Annotated[Union[str, UnsetType], _doc("folder for these files; empty: none are written")] = UNSET
    keep: Annotated[Union[Duration, UnsetType], _doc("they are deleted after this long (7d)")] = UNSET


class Overlay(Section):
    """The sections that may differ per model, partition or node."""

    mode: Annotated[Union[Literal["enforce", "observe"], UnsetType], _doc("observe: no rule acts, whatever its own mode (enforce)")] = UNSET
    rules: Union[dict[str, Rule], UnsetType] = UNSET
    narrow: Union[Narrow, UnsetType] = UNSET
    expect: Union[Expect, UnsetType] = UNSET
    monitor: Union[Monitor, UnsetType] = UNSET
    engine: Union[Engine, UnsetType] = UNSET
    slurm: Union[Slurm, UnsetType] = UNSET
    drain: Union[Drain, UnsetType] = UNSET
    budgets: Union[Budgets, UnsetType] = UNSET
    record: Union[Record, UnsetType] = UNSET
    false_alarms: Union[FalseAlarms, UnsetType] = UNSET
    learn: Union[Learn, UnsetType] = UNSET
    user_report: Union[UserReport, UnsetType] = UNSET
    quarantine: Union[Quarantine, UnsetType] = UNSET
    limits: Union[Limits, UnsetType] = UNSET
    requeue: Union[Requeue, UnsetType] = UNSET
    checkpoint: Union[Checkpoint, UnsetType] = UNSET
    reboot: Union[Reboot, UnsetType] = UNSET
    site_hooks: Union[SiteHooks, UnsetType] = UNSET
    evidence: Union[Evidence, UnsetType] = UNSET
    diagnostics: Union[Diagnostics, UnsetType] = UNSET
    isolate: Union[Isolate, UnsetType] = UNSET
    screen: Union[Screen, UnsetType] = UNSET
    kill_switch: Annotated[
        Union[str, UnsetType],
        _doc("a file that all nodes see: while it exists the hooks do nothing; lines that name rules switch off only these"),
    ] = UNSET
    reread_wait: Annotated[Union[Duration, UnsetType], _doc("pause before a second look inside one hook; 0s: none (2s)")] = UNSET


class ModelOverlay(Section):
    """What may differ per GPU model: rules, expectations and diagnostics, since everything else is about the node."""

    rules: Union[dict[str, Rule], UnsetType] = UNSET
    expect: Union[Expect, UnsetType] = UNSET
    diagnostics: Union[Diagnostics, UnsetType] = UNSET


class PolicyFile(Overlay):
    """The whole file."""

    schema: Annotated[Literal[1], _doc("version of this format")] = msgspec.field(default=1)
    defaults: Annotated[bool, _doc("true: on top of the packaged policy; false: no rules but the file's")] = True
    models: Annotated[Union[dict[str, ModelOverlay], UnsetType], _doc("by NVML model name or shell pattern")] = UNSET
    partitions: Annotated[Union[dict[str, Overlay], UnsetType], _doc("by partition name or shell pattern")] = UNSET
    nodes: Annotated[Union[dict[str, Overlay], UnsetType], _doc("by node name, hostlist or shell pattern")] = UNSET


def json_schema() -> dict[str, Any]:
    """JSON Schema of the policy file, for editors."""
    return msgspec.json.schema(PolicyFile)
