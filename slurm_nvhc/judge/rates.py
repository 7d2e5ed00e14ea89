"""What growth of a counter is normal over a window: by time, by the traffic that passed, by the counter's own past.

Nothing of healthy links is known better than orders of magnitude (published limits differ by a factor of a
million), so a policy says what is normal, and chance.py how much more chance alone would give. Pure.
"""

from __future__ import annotations

from typing import Final, Iterable, Mapping, NamedTuple, Optional

from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.judge import chance
from slurm_nvhc.judge.context import Input
from slurm_nvhc.judge.memory import Notes
from slurm_nvhc.model import change as ch
from slurm_nvhc.model import entity, series
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.history import INTERVAL_S
from slurm_nvhc.model.reading import number
from slurm_nvhc.model.snapshot import GpuState
from slurm_nvhc.policy.compiled import Poisson, Policy

# Readings of one look lie up to about a second apart, so no window is known to be shorter.
LEAST_WINDOW_S: Final = 1.0
# A counter's own past counts from an hour on: one of minutes would make anything normal. And it is the past of a
# month: what gets worse over a year is not normal because it was worse last year. Our judgement.
LEAST_PAST_S: Final = 3600.0
LONGEST_PAST_S: Final = 30 * 86400.0
MOST_LINKS: Final = 18  # of a GPU up to NVLink 5, where nothing tells how many a total sums over
# Links that are up exchange flow control without payload: no link is known to have moved less than a thousandth of
# the 25 GB/s of NVLink 3 and 4. Our judgement; without it two errors of an idle link would be beyond chance.
LEAST_BITS_PER_S: Final = 2e8
_THROUGHPUT_UNIT: Final = 8e6  # bits in the MB of MB/s


class Normal(NamedTuple):
    """What is known beside a counter's change over the window.

    alpha:  how likely a test may alarm on a healthy counter
    links:  how many links the counter sums over; 1 for all that is no GPU's total
    bits:   moved in the direction of its errors over the window; None when the traffic is not known
    past_count, past_s: what the counter showed before the window, and over how long
    """

    alpha: float
    links: int = 1
    bits: Optional[float] = None
    past_count: float = 0.0
    past_s: float = 0.0


class Answer(NamedTuple):
    """mean: the growth that is normal over the window. chance: of as much growth as there was, or more."""

    mean: float
    chance: float


def answer(poisson: Poisson, amount: float, seconds: float, normal: Normal) -> Answer:
    """How likely chance alone gives this growth over so many seconds."""
    seconds = max(seconds, LEAST_WINDOW_S)
    mean = poisson.per_s * normal.links * seconds
    if poisson.ber is not None and normal.bits is not None:
        mean = poisson.ber * max(normal.bits, LEAST_BITS_PER_S * normal.links * seconds)
    likely = chance.tail(amount, mean)
    if poisson.own_per_s is None or normal.past_s < LEAST_PAST_S or normal.past_count * seconds <= mean * normal.past_s:
        return Answer(mean, likely)
    most = poisson.own_per_s * normal.links * seconds
    by_past = chance.share_tail(amount, amount + normal.past_count, seconds / (seconds + normal.past_s))
    own = min(normal.past_count / normal.past_s * seconds, most)
    return Answer(max(mean, own), max(likely, min(by_past, chance.tail(amount, most))))


def beyond_chance(poisson: Poisson, change: Change, normal: Optional[Normal]) -> bool:
    """Did it grow more than chance gives? No rate exists for a window of 0 s, so nothing is beyond it there."""
    if normal is None or not change.amount or change.seconds <= 0:
        return False
    return answer(poisson, change.amount, change.seconds, normal).chance <= normal.alpha


def as_told(evidence: fd.Evidence, poisson: Poisson, normal: Normal) -> fd.Evidence:
    """The evidence of a finding about growth, with what is normal, and how likely chance alone gives as much."""
    if evidence.amount is None or evidence.seconds is None:
        return evidence
    found = answer(poisson, evidence.amount, evidence.seconds, normal)
    return evidence._replace(expected=found.mean, chance=found.chance)


class Normals:
    """Normal for any counter of one judgement; ``changes`` are those of the window."""

    def __init__(self, inp: Input, notes: Notes, changes: Mapping[tuple[str, str], Change]) -> None:
        self._inp = inp
        self._notes = notes
        self._changes = changes

    def of(self, place: str, field: str, policy: Policy) -> Normal:
        gpu = self._inp.gpus().get(entity.gpu_of(place))
        count, seconds = self._past(place, field)
        links = links_in(field, gpu, policy)
        return Normal(policy.false_alarms.alpha, links, self._bits(place, field, gpu), count, seconds)

    def _past(self, place: str, field: str) -> tuple[float, float]:
        """Before the window: all that the looks have gathered, this one included, without the window."""
        count, seconds = self._notes.past(f"{field}|{place}")
        change = self._changes.get((place, field))
        if change is not None and change.kind == ch.EXACT and change.amount is not None:
            count, seconds = max(0.0, count - change.amount), max(0.0, seconds - change.seconds)
        return count, seconds

    def _bits(self, place: str, field: str, gpu: Optional[GpuState]) -> Optional[float]:
        """Traffic over the window: of the GPU, or one link's share of it.

        Assumed: the links that are up carry equal shares (a GPU's traffic is striped over them), and, where one
        figure stands for both directions, each carries half (as collective operations do).
        """
        if gpu is None or not cat.of_links(cat.BY_NAME[field]):
            return None
        uuid = gpu.identity.uuid
        counted = self._changes.get((uuid, "nvlink5_tx_bytes" if cat.BY_NAME[field].counted_by == cat.SENDER else "nvlink5_rx_bytes"))
        if counted is not None and counted.kind == ch.EXACT and counted.amount is not None:
            bits: Optional[float] = counted.amount * 8
        else:
            bits = self._sampled(uuid)
        if bits is None or cat.BY_NAME[field].scope != cat.LINK:
            return bits
        up = _links_up(gpu)
        return bits / up if up else None

    def _sampled(self, uuid: str) -> Optional[float]:
        """From the engine's samples of the throughput (MB/s, both directions), where they cover the window."""
        history, window = self._inp.history, self._inp.window
        if history is None or not history.watched or window.start_ns is None:
            return None
        held = list(series.steps(history.series.get(uuid, {}).get("nvlink_throughput", ()), window.start_ns, window.end_ns))
        if not held or held[0].from_ns > window.start_ns + 2e9 * INTERVAL_S:
            return None
        bits = 0.0
        for step in held:
            value = number(step.value)
            if value is None or value < 0:
                return None
            bits += value * _THROUGHPUT_UNIT * (step.to_ns - step.from_ns) / 1e9
        return bits / 2


def links_in(field: str, gpu: Optional[GpuState], policy: Policy) -> int:
    """How many links a counter sums over: a healthy total grows as fast as all of them together."""
    facts = cat.BY_NAME[field]
    if facts.scope != cat.GPU or not cat.of_links(facts) or gpu is None:
        return 1
    return _links_up(gpu) or policy.expect.links or MOST_LINKS


def _links_up(gpu: GpuState) -> int:
    return sum(readings.get("nvlink_state") == "up" for readings in gpu.links.values())


def remember(inp: Input, notes: Notes, policies: Iterable[Policy]) -> None:
    """Let the looks advance the past of the counters whose own past may raise what is normal.

    A counter's past begins with its first error, which is not counted: what follows is as likely as anywhere.
    """
    levels = [(r, level) for p in policies for r in p.rules.values() if r.mode != "off" for level in (*r.warn, *r.fail)]
    fields = {field for r, level in levels if level.poisson is not None and level.poisson.own_per_s is not None for field in r.fields}
    for change in inp.since_look or ():
        if change.field in fields and change.kind == ch.EXACT and change.amount is not None:
            notes.add_past(f"{change.field}|{change.entity}", change.amount, change.seconds, LONGEST_PAST_S)
