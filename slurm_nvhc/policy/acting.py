"""The sections of the policy in force that say how to act, as values. Light imports only.

Units: durations in seconds, shares as fractions. Everything that moves jobs or ends drains is off by default.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional


class Drain(NamedTuple):
    """extend: append a new fault to our own reason. template: path of a Jinja2 template, '' = packaged.

    max_length: characters of a reason. resume: after resume_passes clean health checks in a row, "standing"
    ends our own drains for what every reading shows, "own" all of ours (an idle node shows no errors).
    resume_after_s: not sooner than this after the drain. resume_per_day: after so many, only an administrator resumes.
    resume_diagnostic: and only after this diagnostic has passed on every GPU since the drain (a level, or tests); () = none.
    """

    template: str = ""
    max_length: int = 250
    extend: bool = False
    resume: str = "off"
    resume_passes: int = 3
    resume_after_s: float = 600.0
    resume_per_day: int = 2
    resume_diagnostic: tuple[str, ...] = ()


class Narrow(NamedTuple):
    """min_gpus: at least this many GPUs of a job must be left. jobs: "single_task" or "any"."""

    enabled: bool = False
    min_gpus: int = 1
    max_excluded: int = 1
    jobs: str = "single_task"


class Quarantine(NamedTuple):
    """A placeholder job holds a bad GPU, so that Slurm gives out the others (docs/quarantine.md).

    min_gpus/max_gpus: GPUs that must be left to the node's jobs, and that may be held; otherwise the node is drained.
    place_within_s: a GPU not held by then leads to a drain. max_age_s: one held for longer as well.
    partition: in which placeholder jobs run; '' = the partition of the job, with a reservation of some minutes.
    memory_mb: of one placeholder job.
    """

    enabled: bool = False
    min_gpus: int = 1
    max_gpus: int = 1
    place_within_s: float = 30.0
    max_age_s: float = 7 * 86400.0
    partition: str = ""
    memory_mb: int = 64


class Limit(NamedTuple):
    """At most so many nodes of a partition: ``number``, or ``share`` of its nodes (rounded up). None: the other one holds."""

    number: Optional[int] = None
    share: Optional[float] = None

    def nodes(self, total: int) -> int:
        """How many of ``total`` nodes; at least 1."""
        return self.number if self.number is not None else max(1, math.ceil((self.share or 0.0) * total - 1e-9))


class Limits(NamedTuple):
    """How many nodes of a partition may be out by drains of ours that are younger than within_s (decision 16).

    soft: for suspicions. hard: for faults beyond doubt (Code.hard), those of suspicions included in the count.
    recount_s: pause between a drain and the look at who else drained meanwhile.
    Figures: our judgement; a site's spare nodes are some 5 %.
    """

    soft: Limit = Limit(share=0.05)
    hard: Limit = Limit(share=0.2)
    within_s: float = 86400.0
    recount_s: float = 2.0


class Requeue(NamedTuple):
    """A batch job that got a bad GPU is moved, by the prolog only. per_job/per_node: bounces within within_s."""

    enabled: bool = False
    per_job: int = 2
    per_node: int = 5
    within_s: float = 86400.0


class Checkpoint(NamedTuple):
    """A signal to jobs that opted in, before the node they run on is drained.

    comment/constraint: a word of the job's comment, or a feature of its constraint, by which it opts in; '' = not by this.
    grace_s: from the signal to the drain.
    """

    enabled: bool = False
    comment: str = "nvhc-checkpoint"
    constraint: str = ""
    signal: str = "USR1"
    grace_s: float = 300.0


class Reboot(NamedTuple):
    """`scontrol reboot ASAP` for drains of ours whose every finding the ladder answers by a reboot. per_week: strikes."""

    enabled: bool = False
    per_week: int = 2


class SiteHooks(NamedTuple):
    """Programs of the site, each given one JSON document on stdin; '' = none. timeout_s: then it is killed."""

    on_drain: str = ""
    on_exclude: str = ""
    on_release: str = ""
    on_resume: str = ""
    on_requeue: str = ""
    on_reboot: str = ""
    on_limit: str = ""
    timeout_s: float = 5.0


class Evidence(NamedTuple):
    """What is written before it is lost, with each drain and exclusion. dir: '' = below the node's state directory.

    keep: bundles. bug_report: run nvidia-bug-report.sh too, as far as the hook's time allows.
    """

    enabled: bool = True
    dir: str = ""
    keep: int = 20
    bug_report: bool = False


class Diagnostics(NamedTuple):
    """Which DCGM diagnostics hooks run, and when; () = none. Each is one level ("1" to "4"), or names of tests.

    prolog:  on the job's GPUs before it starts
    epilog:  on the job's GPUs that its changes accuse (epilog_when "accused"), or on all of them: after a job with an exit
             code of ``exit_codes`` (() = any but 0) where it is "failed", or "always"
    drained: by the health check, on a node that our own drain keeps empty, once per drain
    min_gpus, min_nodes: only for jobs at least this large (GPUs on this node, nodes)
    require: tests that must give a result; one that was skipped or not found is a warning by name
    parameters: as DCGM takes them
    through, dcgmi: see model/diag.py

    What does not fit in the hook's time is not run, and that is said. Levels 2 and above need the GPU for themselves.
    """

    prolog: tuple[str, ...] = ()
    epilog: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    epilog_when: str = "accused"
    exit_codes: tuple[int, ...] = ()
    min_gpus: int = 1
    min_nodes: int = 1
    require: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    through: str = "auto"
    dcgmi: str = "/usr/bin/dcgmi"


class Isolate(NamedTuple):
    """What `nvhc isolate` runs. traffic: a command and its arguments that moves data between the GPUs it sees, () = none.

    alone: one for a single GPU; () = ``traffic``. In arguments {gpus} is the number of GPUs, {seconds} the time to
           fill; {uuids} and {dcgm_ids} name them.
    seconds: of traffic per step, as far as the command can be told. timeout_s: then the step is ended.
    """

    traffic: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    seconds: float = 30.0
    timeout_s: float = 180.0


class Screen(NamedTuple):
    """A site's own command whose result must be the same on every GPU. () = there is none. timeout_s: per GPU.

    It is run with one GPU visible and prints one line, the digest of what it computed.
    """

    command: tuple[str, ...] = ()
    timeout_s: float = 120.0
