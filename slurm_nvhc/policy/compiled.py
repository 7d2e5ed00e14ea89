"""The policy in force, as values. Light imports only: hooks load this on their healthy path.

Units: durations in seconds, rates per second in the field's unit, shares as
fractions of the window (0.01 = 1 %).
"""

from __future__ import annotations

import fnmatch
from typing import Any, Final, Mapping, NamedTuple, Optional

from slurm_nvhc.policy.acting import (
    Checkpoint,
    Diagnostics,
    Drain,
    Evidence,
    Isolate,
    Limit,
    Limits,
    Narrow,
    Quarantine,
    Reboot,
    Requeue,
    Screen,
    SiteHooks,
)

SCHEMA: Final = 1


class Poisson(NamedTuple):
    """What growth is normal for a counter: errors per second, or, where the traffic of the window is known, per bit moved.

    own_per_s: the counter's own past may raise its normal up to this rate; None: what is normal is the same for all.
    """

    per_s: float
    ber: Optional[float] = None
    own_per_s: Optional[float] = None


class Cusum(NamedTuple):
    """Rates per second between which evidence is gathered: normal, and the one that must not be missed."""

    normal_per_s: float
    faulty_per_s: float


class Peers(NamedTuple):
    """How a GPU must stand out among the GPUs of its job: "above" or "below" their median by ``amount``.

    amount: in the field's unit, or a fraction of the median where ``relative``; and by ``mad`` median absolute deviations.
    """

    side: str
    amount: float
    relative: bool = False
    mad: float = 3.0


class Diag(NamedTuple):
    """Which results of a diagnostic are meant: those with one of these statuses, and with what else is not empty.

    tests: DCGM's plugin names. errors: DCGM_FR_ numbers; other: any error that no enabled rule names, and one without a number.
    severities: as DCGM says them; "none": it says none.
    """

    status: tuple[str, ...]
    tests: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    other: bool = False
    severities: tuple[str, ...] = ()


class Level(NamedTuple):
    """Conditions that must all hold for a rule to warn or fail. None means "not asked".

    increase_above/increase_at_least: the counter's growth over the window
    rate_above/rate_at_least: growth per second; no rate exists for a window of 0 s
    share_above:   growth of an ns counter as a fraction of the window
    over_limit:    growth per second above ``times`` x a computed limit; "pcie_replays" is the one there is
    value_above/value_below/value_at_least/value_at_most/value_is/value_is_not: the reading itself
    bits_any:      any of these bits is set in the reading
    below_field/above_field: reading compared with another field of the same GPU, after adding ``offset`` to that
    poisson:       growth over the window that chance gives less often than FalseAlarms.alpha allows, see Poisson
    cusum:         growth gathered over all looks since evidence began crosses the limit that FalseAlarms.alpha sets, see Cusum
    peers:         stands out among its job's GPUs, see Peers: gauges by their median over the job, counters by their growth in it
    below_learned: the reading is lower than the one that was learned or accepted for this entity; nothing learned: no data
    not_as_learned: the reading is another than the one that was learned or accepted; nothing learned: no data
    went_down:     link state only: not up, and it was up before or is expected up
    xid:           numbers; "other" in ``xid_other`` = any number that no enabled rule names
    sxid:          numbers of NVSwitch events; () = any
    fatal:         event rules: only events whose line says fatal (True), or does not (False)
    lost:          presence rule: an expected GPU does not answer
    diag:          diag rule: a result of a DCGM diagnostic, see Diag
    consecutive/spacing_s: seen this often in a row, looks at least spacing_s apart; 0: at least Policy.reread_wait_s
    settle_s:      not before this long after boot, driver load or the GPU's reset; what is seen before is not counted for
                   consecutive. Growth over a window that began before is a warning at most, and is no hit.
                   A lost GPU with a witness is not held back by it
    hits/of_last:  in this many of the last of_last jobs of the GPU (this one included)
    hits/within_s: this many times within within_s seconds
    users:         under this many different users within within_s
    min_window_s:  only for windows at least this long
    witness:       a kernel log line or PCI reading about the same GPU makes consecutive moot
    unless_peer_xid: an Xid does not count when another GPU logged one of these within seconds (an echo)
    unless_xid:    does not hold when the same GPU logged one of these Xids in the same window
    unless:        (field, values): does not hold when another reading of the GPU, or of the same part, is known to be one of the values;
                   without data about that reading the level is judged as if nothing spoke against it
    only_when:     (field, values): holds only when another reading of the GPU, or of the same part, is one of the values; no data
                   about it: no data
    """

    increase_above: Optional[float] = None
    increase_at_least: Optional[float] = None
    rate_above: Optional[float] = None
    rate_at_least: Optional[float] = None
    share_above: Optional[float] = None
    over_limit: Optional[str] = None
    times: float = 1.0
    value_above: Optional[float] = None
    value_below: Optional[float] = None
    value_at_least: Optional[float] = None
    value_at_most: Optional[float] = None
    value_is: Optional[tuple[Any, ...]] = None
    value_is_not: Optional[tuple[Any, ...]] = None
    bits_any: Optional[int] = None
    below_field: Optional[str] = None
    above_field: Optional[str] = None
    offset: float = 0.0
    poisson: Optional[Poisson] = None
    cusum: Optional[Cusum] = None
    peers: Optional[Peers] = None
    below_learned: bool = False
    not_as_learned: bool = False
    went_down: bool = False
    xid: Optional[tuple[int, ...]] = None
    xid_other: bool = False
    sxid: Optional[tuple[int, ...]] = None
    fatal: Optional[bool] = None
    lost: bool = False
    diag: Optional[Diag] = None
    consecutive: int = 1
    spacing_s: float = 0.0
    settle_s: float = 0.0
    hits: int = 1
    of_last: Optional[int] = None
    within_s: Optional[float] = None
    users: Optional[int] = None
    min_window_s: float = 0.0
    witness: bool = False
    unless_peer_xid: tuple[int, ...] = ()
    unless_xid: tuple[int, ...] = ()
    unless: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    only_when: tuple[tuple[str, tuple[Any, ...]], ...] = ()


class Rule(NamedTuple):
    """One rule. ``fields`` are catalogue names; for the other kinds it is empty.

    kind:  "reading", "event", "presence" or "diag"
    warn, fail: alternatives; one that holds is enough
    text:  (warn, fail) conditions as the administrator wrote them, for evidence
    sticky: an event that makes the GPU bad until reboot or until an administrator resumes the node
    after_reset: the most a lower bound after a reset may lead to: "ignore", "warn" or "fail"
    """

    name: str
    finding: str
    kind: str
    fields: tuple[str, ...]
    warn: tuple[Level, ...] = ()
    fail: tuple[Level, ...] = ()
    action: str = "none"
    mode: str = "enforce"
    sticky: bool = False
    after_reset: str = "warn"
    unit: str = ""
    source: str = ""
    why: str = ""
    text: tuple[str, str] = ("", "")


class FalseAlarms(NamedTuple):
    """One budget for all statistical tests of the fleet together: ``per_day`` false alarms in ``nodes`` nodes.

    tests: how many such tests one node makes in a day. 144 links, three statistical rules and 24 looks
           that count are 10,000; our judgement.
    """

    per_day: float = 0.1
    nodes: float = 10_000.0
    tests: float = 10_000.0

    @property
    def alpha(self) -> float:
        """How likely a single test may alarm on a healthy counter."""
        return self.per_day / (self.nodes * self.tests)


class Learn(NamedTuple):
    """What a healthy node looks like is learned once and then held against it. settle_s: not before this long after boot."""

    enabled: bool = True
    settle_s: float = 600.0


class UserReport(NamedTuple):
    """A file per job that its user can read: did a fault touch the job? dir: '' = none is written."""

    dir: str = ""
    keep_days: float = 7.0


class Expect(NamedTuple):
    """None: no expectation."""

    gpus: Optional[int] = None
    links: Optional[int] = None


class Monitor(NamedTuple):
    """What trouble of our own leads to. ``action``: none, note, notify or drain (never the default).

    after_runs/after_s: note and notify only when it lasted this many runs in a row or this long.
    drain_after_runs: the same for drain; a site that asks for a drain gets it at once by default.
    """

    action: str = "notify"
    after_runs: int = 3
    after_s: float = 1800.0
    drain_after_runs: int = 1


class Engine(NamedTuple):
    """backend "dcgm" or "sim"; address "unix:///run/…" or "tcp://host:port"; world: the sim's world file.

    bindings: folders in which NVIDIA's Python bindings are looked for, () = where DCGM installs them.
    embedded: no engine is asked, the reader becomes one itself for the time of each reading.
    health: "off"; "note" or "warn": health checks ask for DCGM's own health check too, and tell it with verdict ok or warn.
    """

    backend: str = "dcgm"
    address: str = ""
    world: str = ""
    timeout_s: float = 5.0
    bindings: tuple[str, ...] = ()
    embedded: bool = False
    health: str = "off"


class Slurm(NamedTuple):
    """bin_dir: where scontrol is. conf: slurm.conf when the hook's environment names none.

    job_gpus: what the numbers in SLURM_JOB_GPUS mean: "position", "minor" or "index".
    """

    bin_dir: str = "/usr/bin"
    conf: str = ""
    job_gpus: str = "position"
    timeout_s: float = 4.0


class Budgets(NamedTuple):
    prolog_s: float = 8.0
    epilog_s: float = 20.0
    health_check_s: float = 30.0
    registration_s: float = 10.0


class Record(NamedTuple):
    """durable: does the state directory survive a reboot? None: as its file system says."""

    keep_days: float = 30.0
    durable: Optional[bool] = None


class Policy(NamedTuple):
    """The policy in force for one node and partition. ``hash`` names its source text.

    kill_switch: a file, usually on a file system that all nodes share: while it exists no hook of any node does anything,
                 or, where it names rules, none of these rules is judged. '' = none.
    """

    hash: str
    mode: str
    rules: Mapping[str, Rule]
    narrow: Narrow
    expect: Expect
    monitor: Monitor
    engine: Engine
    slurm: Slurm
    drain: Drain
    budgets: Budgets
    record: Record
    reread_wait_s: float
    false_alarms: FalseAlarms = FalseAlarms()
    learn: Learn = Learn()
    user_report: UserReport = UserReport()
    quarantine: Quarantine = Quarantine()
    limits: Limits = Limits()
    requeue: Requeue = Requeue()
    checkpoint: Checkpoint = Checkpoint()
    reboot: Reboot = Reboot()
    site_hooks: SiteHooks = SiteHooks()
    evidence: Evidence = Evidence()
    diagnostics: Diagnostics = Diagnostics()
    isolate: Isolate = Isolate()
    screen: Screen = Screen()
    kill_switch: str = ""
    by_model: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    raw: Mapping[str, Any] = {}
    later: tuple[Mapping[str, Any], ...] = ()

    def for_model(self, model: str) -> Policy:
        """This policy with the overlays whose pattern matches the whole model name.

        A partition's and a node's own words come after the model's: ``raw`` is the policy
        without any overlay, ``later`` the partition's and node's, already part of self.
        """
        if id(self) not in _of_models:
            if len(_of_models) >= MOST_POLICIES:
                del _of_models[next(iter(_of_models))]
            _of_models[id(self)] = (self, {})
        known = _of_models[id(self)][1]
        if model not in known:
            known[model] = self._overlaid(model)
        return known[model]

    def _overlaid(self, model: str) -> Policy:
        patches = [patch for pattern, patch in self.by_model if matches(pattern, model)]
        if not patches:
            return self
        raw: Any = self.raw
        for patch in (*patches, *self.later):
            raw = merge(raw, patch)
        return build(raw, self.hash)


# By identity, which holds since the policy itself is kept beside. A hook has one policy, a simulation two for each
# partition and asks for them with every run; built anew each time they would fill what judge keeps for each level.
MOST_POLICIES: Final = 64
_of_models: dict[int, tuple[Policy, dict[str, Policy]]] = {}


def matches(pattern: str, name: str) -> bool:
    """Anchored, case-sensitive shell pattern: "NVIDIA H200" does not match "NVIDIA GH200 480GB"."""
    return fnmatch.fnmatchcase(name, pattern)


def merge(base: Any, patch: Any) -> Any:
    """Mappings merge key by key; everything else (lists included) is replaced."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        out = dict(base)
        for key, value in patch.items():
            out[key] = merge(out[key], value) if key in out else value
        return out
    return patch


def _any_matches(patterns: str, name: str) -> bool:
    """Does one of several patterns, joined by commas, match? Plain names are compared without a pattern's cost."""
    return any(p == name or (("*" in p or "?" in p or "[" in p) and matches(p, name)) for p in patterns.split(","))


def _level(raw: Mapping[str, Any]) -> Level:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    for key, kind in (("poisson", Poisson), ("cusum", Cusum), ("peers", Peers)):
        if key in values:
            values[key] = kind(**values[key])
    if "diag" in values:
        values["diag"] = Diag(**_tuples(values["diag"]))
    for key in ("unless", "only_when"):
        if key in values:
            values[key] = tuple((str(field), tuple(known)) for field, known in values[key])
    return Level(**values)


def _rule(name: str, raw: Mapping[str, Any]) -> Rule:
    fields = dict(raw)
    fields["fields"] = tuple(raw.get("fields", ()))
    fields["warn"] = tuple(_level(x) for x in raw.get("warn", ()))
    fields["fail"] = tuple(_level(x) for x in raw.get("fail", ()))
    text = raw.get("text", {})
    fields["text"] = (str(text.get("warn", "")), str(text.get("fail", "")))
    return Rule(name=name, **fields)


def _tuples(section: Mapping[str, Any]) -> dict[str, Any]:
    """JSON gives lists back."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()}


def build(raw: Mapping[str, Any], policy_hash: str) -> Policy:
    """A Policy from the normalised form (see policy/compile.py). KeyError, TypeError, ValueError when it is not that."""
    return Policy(
        hash=policy_hash,
        mode=raw["mode"],
        rules={name: _rule(name, rule) for name, rule in raw["rules"].items()},
        narrow=Narrow(**raw["narrow"]),
        expect=Expect(**raw["expect"]),
        monitor=Monitor(**raw["monitor"]),
        engine=Engine(**{**raw["engine"], "bindings": tuple(raw["engine"].get("bindings", ()))}),
        slurm=Slurm(**raw["slurm"]),
        drain=Drain(**_tuples(raw["drain"])),
        budgets=Budgets(**raw["budgets"]),
        record=Record(**raw["record"]),
        reread_wait_s=raw["reread_wait_s"],
        false_alarms=FalseAlarms(**raw["false_alarms"]),
        learn=Learn(**raw["learn"]),
        user_report=UserReport(**raw["user_report"]),
        quarantine=Quarantine(**raw["quarantine"]),
        limits=Limits(**{**raw["limits"], **{k: Limit(**raw["limits"][k]) for k in ("soft", "hard")}}),
        requeue=Requeue(**raw["requeue"]),
        checkpoint=Checkpoint(**raw["checkpoint"]),
        reboot=Reboot(**raw["reboot"]),
        site_hooks=SiteHooks(**raw["site_hooks"]),
        evidence=Evidence(**raw["evidence"]),
        diagnostics=Diagnostics(**_tuples(raw["diagnostics"])),
        isolate=Isolate(**_tuples(raw["isolate"])),
        screen=Screen(**_tuples(raw["screen"])),
        kill_switch=raw["kill_switch"],
    )


def resolve(compiled: Mapping[str, Any], node: str = "", partition: str = "") -> Policy:
    """The policy for one node and partition from a compiled document.

    ``compiled`` = {"schema": 1, "version": …, "hash": …, "base": {...normalised...},
    "models": [[pattern, patch], …], "partitions": […], "nodes": […]}; later patches win,
    partition before node. The patterns of partitions and nodes may be several, joined by
    commas. Raises KeyError, TypeError, ValueError or AttributeError when it is not such a document.
    """
    base = compiled["base"]
    later = tuple(
        patch
        for section, name in (("partitions", partition), ("nodes", node))
        for patterns, patch in compiled[section]
        if name and _any_matches(patterns, name)
    )
    raw: Any = base
    for patch in later:
        raw = merge(raw, patch)
    models = tuple((pattern, patch) for pattern, patch in compiled["models"])
    return build(raw, compiled["hash"])._replace(by_model=models, raw=base, later=later)
