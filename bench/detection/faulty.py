"""What goes wrong, each kind with its truth: the part at fault, when it began, and what it calls for.

Errors are drawn minute by minute or one by one, since published rules look at minutes.
"""

from __future__ import annotations

from typing import Callable, Final, Mapping, NamedTuple, Optional

from detection.boards import Board
from detection.healthy import Draft
from detection.plan import (
    DAY,
    GROW,
    HOUR,
    LOST,
    MUST_ACT,
    SET,
    SHOULD_WARN,
    XID,
    Fault,
    Flow,
    between,
    gpu,
    link,
    log_between,
    poisson,
    times,
)
from slurm_nvhc.model import suspect

MINUTE: Final = 60.0
FATAL_AFTER: Final = 5 * DAY  # from the first errors to the link's death (marin#9086)
_LINK: Final = (suspect.LINK, suspect.CONNECTOR)
_GPU: Final = (suspect.GPU,)


class Kind(NamedTuple):
    """make: adds the fault to the draft at a moment. fits: can this board have it? every_job: each job's end counts, whatever grew."""

    make: Callable[[Draft, float], Fault]
    fits: Callable[[Board], bool]
    every_job: bool = False


def _errors(draft: Draft, place: str, field: str, per_s: float, at: float, until: Optional[float] = None) -> None:
    """Growth of a counter: one by one where it is slow, by the minute where it is fast."""
    end = min(draft.seconds, until if until is not None else draft.seconds)
    if per_s * MINUTE < 5:
        for moment in times(draft.rng, per_s, at, end):
            draft.add(moment, GROW, place, field, 1)
        return
    moment = at
    while moment < end:
        moment += MINUTE
        draft.add(moment, GROW, place, field, poisson(draft.rng, per_s * MINUTE))


def _far(draft: Draft, number: int, line: int) -> str:
    """The other end of a link, '' where the board does not tell."""
    return draft.board.remote.get((number, line), "")


def _at_far_end(draft: Draft, number: int, line: int) -> Optional[tuple[int, int]]:
    """The far end where it is another GPU's link."""
    far = _far(draft, number, line)
    for g, state in enumerate((draft.board.snapshot.gpus or {}).values()):
        head, _, name = far.partition("/link")
        if head == state.identity.uuid and name.isdigit():
            return g, int(name)
    return None


def _retrying(draft: Draft, at: float, kind: str, field: str, per_s: float) -> Fault:
    number, line = draft.some_link()
    _errors(draft, link(number, line), field, per_s, at)
    return _of_link(draft, kind, at, number, line)


def _of_link(draft: Draft, kind: str, at: float, number: int, line: int) -> Fault:
    ends = tuple(filter(None, (link(number, line), _far(draft, number, line))))
    return Fault(kind, at, MUST_ACT, ends, _LINK, ends, nvlink=True)


def slow_burn(draft: Draft, at: float) -> Fault:
    """A few recoveries an hour on one link, for days."""
    return _retrying(draft, at, "slow_burn", "nvlink_recovery", draft.params.faulty.slow_burn.per_h / HOUR)


def ember(draft: Draft, at: float) -> Fault:
    """One replay in two hours: most jobs see none, only their sum tells."""
    return _retrying(draft, at, "ember", "nvlink_replay", draft.params.faulty.ember.per_h / HOUR)


def storm(draft: Draft, at: float) -> Fault:
    return _retrying(draft, at, "storm", "nvlink_replay", log_between(draft.rng, draft.params.faulty.storm.per_minute) / MINUTE)


def dying_gpu(draft: Draft, at: float) -> Fault:
    """One GPU falls off the bus; the others log that their links to it failed, within seconds."""
    setting, rng = draft.params.faulty.dying_gpu, draft.rng
    first = draft.some_gpu()
    draft.add(at, XID, gpu(first), value=79)
    draft.add(at, LOST, gpu(first))
    others = [g for g in range(draft.board.gpus) if g != first]
    for other in rng.sample(others, min(setting.peers, len(others))):
        draft.add(at + rng.uniform(0.1, max(0.1, setting.echo)), XID, gpu(other), value=74)
    draft.unrest.append((at, draft.seconds))
    return Fault("dying_gpu", at, MUST_ACT, (gpu(first),), _GPU, tuple(gpu(g) for g in range(draft.board.gpus)))


def bad_switch(draft: Draft, at: float) -> Fault:
    """All links of all GPUs to one switch: replays where they send to it, CRC where they receive from it, and the same at its ports."""
    switch = draft.rng.choice(sorted(set(draft.board.switch_of.values())))
    per_s = log_between(draft.rng, draft.params.faulty.bad_switch.per_h) / HOUR
    behind = [place for place, address in draft.board.switch_of.items() if address == switch]
    for number, line in behind:
        _both_ways(draft, number, line, per_s, at)
    shows = tuple(link(number, line) for number, line in behind)
    return Fault("bad_switch", at, MUST_ACT, (switch,), (suspect.SWITCH,), (switch, *shows), nvlink=True)


def connector(draft: Draft, at: float) -> Fault:
    """Both directions of one link."""
    number, line = draft.some_link()
    _both_ways(draft, number, line, log_between(draft.rng, draft.params.faulty.connector.per_h) / HOUR, at)
    return _of_link(draft, "connector", at, number, line)


def _both_ways(draft: Draft, number: int, line: int, per_s: float, at: float) -> None:
    """CRC errors and replays at both ends of a link, as far as the far end counts them."""
    far = _far(draft, number, line)
    other = _at_far_end(draft, number, line)
    for name in ("replay", "crc_data"):
        _errors(draft, link(number, line), f"nvlink_{name}", per_s, at)
        if other is not None:
            _errors(draft, link(*other), f"nvlink_{name}", per_s, at)
        elif far in draft.board.snapshot.parts:
            _errors(draft, far, f"port_{name}", per_s, at)


def thermal_drift(draft: Draft, at: float) -> Fault:
    """One GPU's cooler gives way over two days: hardware slowdown for a growing share of the time."""
    number = draft.some_gpu()
    share = between(draft.rng, draft.params.faulty.thermal_drift.share)
    for field in ("hw_thermal_slowdown_ns", "thermal_violation_ns"):
        if field in draft.board.fields:
            for part in range(4):
                start = at + part * DAY / 2
                end = start + DAY / 2 if part < 3 else draft.seconds
                draft.flows.append(Flow(gpu(number), field, start, end, share * (part + 1) / 4 * 1e9))
    return Fault("thermal_drift", at, SHOULD_WARN, (gpu(number),), (*_GPU, suspect.NODE), (gpu(number),))


def straggler(draft: Draft, at: float) -> Fault:
    """One GPU runs at a lower clock than its siblings, without an error."""
    number = draft.some_gpu()
    return Fault("straggler", at, SHOULD_WARN, (gpu(number),), _GPU, (gpu(number),))


def row_remap_failure(draft: Draft, at: float) -> Fault:
    number = draft.some_gpu()
    draft.add(at, SET, gpu(number), "row_remap_failure", 1)
    draft.unrest.append((at, draft.seconds))
    return Fault("row_remap_failure", at, MUST_ACT, (gpu(number),), _GPU, (gpu(number),))


def narrow_pcie(draft: Draft, at: float) -> Fault:
    """A riser lost lanes: fewer than the slot can do."""
    number = draft.some_gpu()
    draft.add(at, SET, gpu(number), "pcie_width", int(draft.rng.choice(draft.params.faulty.narrow_pcie.width)))
    return Fault("narrow_pcie", at, MUST_ACT, (gpu(number),), (*_GPU, suspect.SLOT), (gpu(number),))


def nvlink5_link(draft: Draft, at: float) -> Fault:
    """Symbol errors and an effective error rate far above what correction leaves, for days; then a recovery that fails."""
    setting, rng = draft.params.faulty.nvlink5_link, draft.rng
    number, line = draft.some_link()
    _errors(draft, gpu(number), "nvlink5_symbol_errors", log_between(rng, setting.symbols_per_h) / HOUR, at)
    draft.add(at, SET, gpu(number), "nvlink5_effective_ber", 10.0 ** -between(rng, setting.ber_exponent))
    draft.add(at + FATAL_AFTER, GROW, gpu(number), "nvlink5_recovery_failed", 1)
    places = (gpu(number), link(number, line))
    return Fault("nvlink5_link", at, MUST_ACT, places, (*_GPU, *_LINK), places)


def _links_count(board: Board) -> bool:
    return board.counts_4


KINDS: Final[Mapping[str, Kind]] = {
    "slow_burn": Kind(slow_burn, _links_count),
    "ember": Kind(ember, _links_count),
    "storm": Kind(storm, _links_count),
    "dying_gpu": Kind(dying_gpu, lambda b: b.gpus > 1 and b.links > 0),
    "bad_switch": Kind(bad_switch, lambda b: bool(b.switch_of) and b.counts_4),
    "connector": Kind(connector, _links_count),
    "thermal_drift": Kind(thermal_drift, lambda b: "thermal_violation_ns" in b.fields, every_job=True),
    "straggler": Kind(straggler, lambda b: b.gpus >= 4, every_job=True),
    "row_remap_failure": Kind(row_remap_failure, lambda b: "row_remap_failure" in b.fields),
    "narrow_pcie": Kind(narrow_pcie, lambda b: True, every_job=True),
    "nvlink5_link": Kind(nvlink5_link, lambda b: b.counts_5),
}
