"""Evidence over many looks: for each counter a sum that errors raise and time lowers (Poisson CUSUM).

A short job has no power: three errors an hour are none in most jobs of ten minutes. The sum carries what is too
little in each job over to the next, by the growth since the last look of any hook, which comes exactly once.

* It rises by 1 with an error, and falls by ``chance.allowance`` per second of watched time, never below 0.
* At ``chance.cusum_limit`` the level holds: an absolute fault of the link, whoever's job it is. The limit follows
  from the policy's budget for false alarms; a counter that is followed through time counts as one test an hour,
  as in compiled.FalseAlarms.
* Only exact growth counts. What a GPU shows since a reset or reboot is no evidence (links count errors while they
  train), nor what a look saw that began within the level's ``settle`` of boot, driver load or reset. A reset ends the
  evidence before it, since it may have been the repair: all of that GPU or part, also of counters that have no data
  right after it. A counter without data gathers nothing, and no time passes for it until it is read again; after
  UNREAD_S it gives no answer until then.
* Between two looks it is not known when the errors came. The sum takes them as if they had come first, and so is
  never above the one that had watched all the time: the limit holds for it all the more.
* Errors of a link come in bursts, and a burst is one event: one look adds BURST errors at most, and what the faulty
  rate gives in its time, and one look is never enough. Looks within BURST_S of the one that saw the burst (a second
  look, an epilog and the next prolog) may see the rest of it, and count as that look. All this makes the sum hold
  later, never earlier.
* The sum goes up to twice the limit, so that it falls below it again some time after the errors have stopped.
* Who resumes a node that was drained for it, or releases the GPU, has settled it: the sum starts anew.
"""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, NamedTuple

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge import chance, memory
from slurm_nvhc.judge.context import Input
from slurm_nvhc.judge.rates import links_in
from slurm_nvhc.judge.say import describe
from slurm_nvhc.judge.settle import settling
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity, settled
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.policy.compiled import Cusum, Level, Policy, Rule

TEST_S: Final = 3600.0  # what one of FalseAlarms.tests is for a counter that is followed through time
MOST_LIMITS: Final = 2.0
BURST: Final = 2.0  # errors of one moment that count; our judgement, as the other two
BURST_S: Final = 60.0  # our judgement: the hooks around a job's end are seconds apart, health checks minutes
# An engine that is restarted, or a GPU that is profiled or split for a job, comes back within hours. What a day of
# health checks could not read is gone (another driver, MIG), and its old errors must not convict for ever. Our judgement.
UNREAD_S: Final = 86400.0
LEAST_LOOKS: Final = 2

_limits: dict[tuple[float, float, float], float] = {}  # pure, and asked of many links


class Gathered(NamedTuple):
    """The evidence about one counter.

    total, limit: the sum, and from where on it is too much to be chance
    looks:  how many runs saw errors
    errors, seconds: counted since the evidence began, and over how much watched time
    jobs:   jobs of the GPU (of the node, for its parts) that have ended since
    ident:  names the evidence for whoever settles it, '' below the limit
    """

    total: float
    limit: float
    looks: int
    errors: float
    seconds: float
    jobs: int
    normal_per_s: float
    ident: str

    @property
    def holds(self) -> bool:
        return self.total >= self.limit and self.looks >= LEAST_LOOKS


class Gathering:
    """The evidence of one judgement: brought up to date once, then asked rule by rule."""

    def __init__(self, inp: Input, notes: memory.Notes, policies: Mapping[str, Policy]) -> None:
        """``policies``: by GPU model."""
        self._inp = inp
        self._notes = notes
        self._policies = policies
        self._end_what_is_over()
        self._known = self._places()  # nearly always none
        self._gather()
        self._known = self._places()

    def knows(self, place: str, field: str) -> bool:
        """Is there evidence about this counter?"""
        return (place, field) in self._known

    def _places(self) -> frozenset[tuple[str, str]]:
        """(place, field) of all evidence"""
        return frozenset((entry["place"], key.rpartition("|")[2]) for key, entry in self._notes.all_evidence().items())

    def of(self, rule: Rule, place: str, field: str) -> Mapping[Cusum, Gathered]:
        """What was gathered about one counter, by the rates that levels of the rule ask with; {} for nearly all counters."""
        out: dict[Cusum, Gathered] = {}
        for level in (*rule.warn, *rule.fail) if self.knows(place, field) else ():
            entry = self._notes.evidence(_key(rule, level, place, field)) if level.cusum is not None else None
            if entry is not None and level.cusum is not None and not self._is_unread(entry):
                out[level.cusum] = self._gathered(entry, self._rates(level.cusum, place, field))
        return out

    def _is_unread(self, entry: Mapping[str, Any]) -> bool:
        return self._inp.now_ns - int(entry.get("read_ns", 0)) > UNREAD_S * 1e9

    def _gathered(self, entry: Mapping[str, Any], rates: Cusum) -> Gathered:
        place, crossed = entry["place"], entry["crossed"]
        jobs = self._notes.jobs_of(entity.gpu_of(place)) - entry["job"]
        known = Gathered(entry["sum"], self._limit(rates), entry["looks"], entry["errors"], entry["seconds"], jobs, rates.normal_per_s, "")
        return known._replace(ident=settled.ident(place, entry["word"], crossed)) if known.holds and crossed is not None else known

    def _end_what_is_over(self) -> None:
        """What was settled, and what was counted in another boot, even where nobody saw the counter at both its sides."""
        for key, entry in self._notes.all_evidence().items():
            facts = cat.BY_NAME.get(key.rpartition("|")[2])
            rebooted = entry["boot"] != self._inp.snapshot.boot_id and facts is not None and cat.REBOOT in facts.cleared_by
            name = "" if entry["crossed"] is None else settled.ident(entry["place"], entry["word"], entry["crossed"])
            if rebooted or settled.covered(name, self._inp.settled):
                self._notes.end_evidence(key)

    def _gather(self) -> None:
        asking = {model: _asking(policy) for model, policy in {**self._policies, "": self._inp.policy}.items()}
        wanted = frozenset[str]().union(*asking.values())
        since_look = self._inp.since_look or ()
        reset = {_thing(c.entity) for c in since_look if c.kind == ch.AT_LEAST}
        if reset:  # a counter without data right after it is no change, so its evidence is ended here
            for key, entry in self._notes.all_evidence().items():
                if _thing(entry["place"]) in reset:
                    self._notes.end_evidence(key)
        changes = [c for c in since_look if c.field in wanted]
        of_links = {(entity.gpu_of(c.entity), c.field) for c in changes if c.amount and entity.scope(c.entity) == cat.LINK}
        for change in changes:
            if not change.amount and not self.knows(change.entity, change.field):
                continue
            uuid = entity.gpu_of(change.entity)
            gpu = self._inp.gpus().get(uuid)
            for rule, level in asking[gpu.identity.model if gpu is not None else ""].get(change.field, ()):
                # Links that grew tell it better than the GPU's total: for that, time has passed, and no more. Counters of
                # links that stand still explain nothing: on NVLink 5 they count other things than the total.
                told_by_links = change.entity == uuid and any((uuid, field) in of_links for field in rule.fields)
                if _thing(change.entity) in reset:
                    self._notes.end_evidence(_key(rule, level, change.entity, change.field))
                elif not level.settle_s or not settling(self._inp, level.settle_s + change.seconds, uuid):
                    exact = change.kind == ch.EXACT
                    self._add(rule, level, change._replace(amount=0) if told_by_links and exact else change)

    def _add(self, rule: Rule, level: Level, change: Change) -> None:
        key = _key(rule, level, change.entity, change.field)
        entry = self._notes.evidence(key)
        if change.kind != ch.EXACT or change.amount is None or level.cusum is None or (entry is None and change.amount <= 0):
            return
        rates = self._rates(level.cusum, change.entity, change.field)
        if entry is None:
            job = self._notes.jobs_of(entity.gpu_of(change.entity))
            entry = _new(change.entity, _word(rule, change.field), self._inp.snapshot.boot_id, job)
        same = change.amount > 0 and 0 <= self._inp.now_ns - entry.get("burst_ns", 0) < BURST_S * 1e9
        counted = min(change.amount, (0.0 if same else BURST) + rates.faulty_per_s * change.seconds)
        total = entry["sum"] + counted - chance.allowance(rates.normal_per_s, rates.faulty_per_s) * change.seconds
        if total <= 0:
            self._notes.end_evidence(key)
            return
        entry["sum"] = min(total, MOST_LIMITS * self._limit(rates))
        if change.amount > 0 and not same:
            entry |= {"looks": entry["looks"] + (entry["run"] != self._inp.run_id or not self._inp.run_id), "run": self._inp.run_id}
            entry["burst_ns"] = self._inp.now_ns
        entry["read_ns"] = self._inp.now_ns
        entry["errors"] += change.amount
        entry["seconds"] += change.seconds
        if entry["crossed"] is None and self._gathered(entry, rates).holds:
            entry["crossed"] = self._inp.now_ns
        self._notes.keep_evidence(key, entry)

    def _rates(self, cusum: Cusum, place: str, field: str) -> Cusum:
        """A GPU's total over its links: all of them healthy, or all but one."""
        gpu = self._inp.gpus().get(entity.gpu_of(place))
        links = links_in(field, gpu, self._policies.get(gpu.identity.model, self._inp.policy)) if gpu is not None else 1
        others = (links - 1) * cusum.normal_per_s
        return Cusum(cusum.normal_per_s + others, cusum.faulty_per_s + others)

    def _limit(self, rates: Cusum) -> float:
        per_s = self._inp.policy.false_alarms.alpha / TEST_S
        asked = (rates.normal_per_s, rates.faulty_per_s, per_s)
        if asked not in _limits:
            _limits[asked] = chance.cusum_limit(*asked)
        return _limits[asked]


def as_told(evidence: fd.Evidence, place: str, gathered: Gathered) -> tuple[fd.Evidence, str]:
    """The evidence of a finding and its words: 'link11 recovery +5 in 14h over 6 jobs, 0.001/h is normal'."""
    errors, seconds = gathered.errors, gathered.seconds
    rate = errors / seconds if seconds > 0 else None
    evidence = evidence._replace(amount=errors, seconds=seconds, rate=rate, expected=gathered.normal_per_s * seconds)
    jobs = f" over {gathered.jobs} job{'' if gathered.jobs == 1 else 's'}" if gathered.jobs > 0 else ""
    return evidence, f"{describe(place, evidence)}{jobs}, {gathered.normal_per_s * 3600:.3g}/h is normal"


def _asking(policy: Policy) -> dict[str, list[tuple[Rule, Level]]]:
    """By field: the levels that gather evidence about it."""
    out: dict[str, list[tuple[Rule, Level]]] = {}
    for rule, level in _levels(policy):
        for field in rule.fields:
            out.setdefault(field, []).append((rule, level))
    return out


def _levels(policy: Policy) -> Iterator[tuple[Rule, Level]]:
    for rule in policy.rules.values():
        if rule.kind == "reading" and rule.mode != "off":
            yield from ((rule, level) for level in (*rule.warn, *rule.fail) if level.cusum is not None)


def _key(rule: Rule, level: Level, place: str, field: str) -> str:
    return f"{memory.key(rule, level, place)}|{field}"


def _thing(place: str) -> str:
    """What is reset as a whole: a GPU with its links, or a part of the node."""
    return entity.gpu_of(place) or place


def _word(rule: Rule, field: str) -> str:
    return f"{rule.name}.{field}"


def _new(place: str, word: str, boot: str, job: int) -> dict[str, Any]:
    sums = {"sum": 0.0, "looks": 0, "run": "", "errors": 0.0, "seconds": 0.0}
    return {**sums, "job": job, "boot": boot, "place": place, "word": word, "crossed": None, "burst_ns": 0, "read_ns": 0}
