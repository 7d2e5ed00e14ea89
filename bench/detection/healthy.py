"""What goes on at sound nodes: each of these has taken healthy nodes out somewhere.

Every behaviour adds to a Draft; fleet.yaml says how often. Nothing here is a fault, so whatever
is drained for it is a false alarm.
"""

from __future__ import annotations

from random import Random

from detection.boards import Board
from detection.params import Params
from detection.plan import (
    DAY,
    GROW,
    HOUR,
    MARK,
    REBOOT,
    RELOAD,
    RESET,
    SET,
    SILENT,
    SWAP,
    UPGRADE,
    XID,
    Effect,
    Flow,
    Job,
    between,
    gpu,
    link,
    log_between,
    times,
)
from slurm_nvhc.model.reading import BLANK, NoData

BOOT_S = 240.0  # from the last look before a reboot to the kernel's start
REGISTER_S = 30.0  # slurmd registers, and runs the health check, this long after boot
LOOKS = 3 * HOUR  # a state that only warns is looked at for this long; after that each look repeats the one before
_COUNTERS_4 = ("nvlink_replay", "nvlink_recovery", "nvlink_crc_flit", "nvlink_crc_data")
_APPLICATION = (13, 31, 43, 45)


class Draft:
    """What a node's plan is made of, while it grows."""

    def __init__(self, rng: Random, params: Params, board: Board, seconds: float) -> None:
        self.rng, self.params, self.board, self.seconds = rng, params, board, seconds
        self.jobs: list[Job] = []
        self.effects: list[Effect] = []
        self.flows: list[Flow] = []
        self.unrest: list[tuple[float, float]] = []
        self.down: list[tuple[float, float]] = []
        self.extra: list[float] = []

    def add(self, at: float, what: str, place: str = "", field: str = "", value: object = 0) -> None:
        if at < self.seconds:
            self.effects.append(Effect(at, what, place, field, value))

    def some_gpu(self) -> int:
        return self.rng.randrange(self.board.gpus)

    def some_link(self) -> tuple[int, int]:
        return self.some_gpu(), self.rng.randrange(self.board.links)


def everything(draft: Draft) -> None:
    """All behaviours at the rates of the parameters. Boots come before jobs, which they cut short."""
    maintenance(draft)
    jobs(draft)
    resets(draft)
    lifetime(draft)
    retries(draft)
    crc(draft)
    thermal_bumps(draft)
    pcie_replays(draft)
    memory(draft)
    symbols(draft)
    application_xids(draft)
    hiccups(draft)


def jobs(draft: Draft) -> None:
    """Jobs one after another, of the whole node or of its halves, until the draft's end; a boot ends what runs."""
    setting, rng = draft.params.jobs, draft.rng
    everywhere = tuple(range(draft.board.gpus))
    half = draft.board.gpus // 2
    lanes = [everywhere] if rng.random() < setting.whole_node or half == 0 else [everywhere[:half], everywhere[half:]]
    weights = [length.weight for length in setting.lengths]
    for lane in lanes:
        at = rng.expovariate(1 / setting.gap)
        while at < draft.seconds:
            length = rng.choices(setting.lengths, weights)[0]
            lasts = min(max(length.median * rng.lognormvariate(0.0, length.sigma), setting.shortest), setting.longest)
            start, end, finished = at, at + lasts, True
            at = end + rng.expovariate(1 / setting.gap)
            for gone, back in draft.down:
                if start < back and end > gone:
                    end, finished, at = gone, False, back + 60.0 + rng.expovariate(1 / setting.gap)
                    break
            if start >= end:
                continue
            if end >= draft.seconds:
                break
            draft.jobs.append(Job(len(draft.jobs) + 1, start, end, lane, 1000 + rng.randrange(setting.users), finished))
            busy(draft, draft.jobs[-1])
    draft.jobs.sort(key=lambda job: job.start)


def busy(draft: Draft, job: Job) -> None:
    """A busy GPU is at its power limit most of the time, and moves data."""
    for number in job.gpus:
        draft.flows.append(Flow(gpu(number), "power_violation_ns", job.start, job.end, draft.params.healthy.power_cap * 1e9))
        for field in ("nvlink5_tx_bytes", "nvlink5_rx_bytes"):
            if field in draft.board.fields:
                draft.flows.append(Flow(gpu(number), field, job.start, job.end, 2e11))


def maintenance(draft: Draft) -> None:
    """Reboots: plain ones, for a card that is exchanged, and for a new driver on the whole fleet the same day."""
    healthy, rng = draft.params.healthy, draft.rng
    wanted: list[tuple[float, str]] = [(at, "") for at in times(rng, healthy.boots.per_day / DAY, 0, draft.seconds)]
    wanted += [(at, SWAP) for at in times(rng, healthy.swaps_per_day / DAY, 0, draft.seconds)]
    if rng.random() < healthy.upgrade.nodes:
        wanted.append((draft.seconds * healthy.upgrade.at, UPGRADE))
    for at, what in sorted(wanted):
        apart = not draft.down or at > draft.down[-1][1] + HOUR
        if apart and HOUR < at < draft.seconds - HOUR:
            boot(draft, at, what)


def boot(draft: Draft, at: float, what: str = "") -> None:
    """Links train for a minute or two, the first look comes while they do, and they count errors meanwhile (NVSentinel#1701).

    what: SWAP or UPGRADE, done while the node was down.
    """
    setting, rng = draft.params.healthy.boots, draft.rng
    up = at + BOOT_S
    draft.down.append((at, up))
    draft.add(up, REBOOT)
    if what:
        draft.add(up, what, gpu(draft.some_gpu()) if what == SWAP else "")
    draft.extra.append(up + REGISTER_S + rng.uniform(0, 30))
    longest = up
    if draft.board.links and rng.random() < setting.training_nodes:
        for number in rng.sample(range(draft.board.gpus), min(setting.gpus, draft.board.gpus)):
            for line in rng.sample(range(draft.board.links), min(setting.links, draft.board.links)):
                trained = up + between(rng, setting.down)
                longest = max(longest, trained)
                draft.add(up, SET, link(number, line), "nvlink_state", "down")
                draft.add(trained, SET, link(number, line), "nvlink_state", "up")
                _count_while_training(draft, number, line, up, trained)
    draft.unrest.append((up, max(longest, up + 2 * draft.params.health_check)))


def _count_while_training(draft: Draft, number: int, line: int, up: float, trained: float) -> None:
    if draft.board.counts_4:
        field = draft.rng.choice(_COUNTERS_4)
        errors = round(between(draft.rng, draft.params.healthy.boots.errors))
        if errors:
            draft.add(draft.rng.uniform(up, trained), GROW, link(number, line), field, errors)


def resets(draft: Draft) -> None:
    """GPU resets and driver reloads: counters go back to 0, also while a job's window is open."""
    healthy = draft.params.healthy
    for at in times(draft.rng, healthy.gpu_resets_per_day / DAY, 0, draft.seconds):
        draft.add(at, RESET, gpu(draft.some_gpu()))
    for at in times(draft.rng, healthy.driver_reloads_per_day / DAY, 0, draft.seconds):
        draft.add(at, RELOAD)


def lifetime(draft: Draft) -> None:
    """Counts from long ago that never move again (eks-node-monitoring-agent#261)."""
    setting, rng = draft.params.healthy.lifetime, draft.rng
    if draft.board.counts_4 and rng.random() < setting.nodes:
        for _ in range(setting.links):
            number, line = draft.some_link()
            field = rng.choice(_COUNTERS_4)
            draft.add(0.0, GROW, link(number, line), field, round(log_between(rng, [1, max(1.0, setting.most)])))


def retries(draft: Draft) -> None:
    """Replays and recoveries of a few links at the worst rate that a healthy link may show."""
    setting, rng = draft.params.healthy.retries, draft.rng
    if not draft.board.counts_4:
        return
    for number in range(draft.board.gpus):
        for line in range(draft.board.links):
            if rng.random() < setting.links:
                for field in ("nvlink_replay", "nvlink_recovery"):
                    for at in times(rng, setting.per_h / HOUR, 0, draft.seconds):
                        draft.add(at, GROW, link(number, line), field, 1)


def crc(draft: Draft) -> None:
    """Damaged packets that are sent again: a few a day on some links, hundreds a day on very few."""
    rng = draft.rng
    for setting in (draft.params.healthy.crc_few, draft.params.healthy.crc_many):
        if not draft.board.counts_4 or rng.random() >= setting.nodes:
            continue
        for _ in range(setting.links):
            noisy_link(draft, log_between(rng, setting.per_day))


def noisy_link(draft: Draft, per_day: float) -> None:
    number, line = draft.some_link()
    field = draft.rng.choice(("nvlink_crc_flit", "nvlink_crc_data"))
    for at in times(draft.rng, per_day / DAY, 0, draft.seconds):
        draft.add(at, GROW, link(number, line), field, 1)


def thermal_bumps(draft: Draft) -> None:
    """Hot minutes: hardware slowdown for well below 1 % of one job, at a stretch."""
    setting, rng = draft.params.healthy.thermal_bumps, draft.rng
    for job in draft.jobs:
        for at in times(rng, setting.per_day / DAY, job.start, job.end):
            number = rng.choice(job.gpus)
            end = min(job.end, at + between(rng, setting.share) * (job.end - job.start))
            for field in ("hw_thermal_slowdown_ns", "thermal_violation_ns"):
                if field in draft.board.fields:
                    draft.flows.append(Flow(gpu(number), field, at, end, 1e9))
            draft.add(at, MARK, gpu(number))
            draft.add(end, MARK, gpu(number))


def pcie_replays(draft: Draft) -> None:
    """Replays below what DCGM expects of the slot's speed, for weeks."""
    setting, rng = draft.params.healthy.pcie_replays, draft.rng
    if rng.random() < setting.nodes and "pcie_replay" in draft.board.fields:
        draft.flows.append(Flow(gpu(draft.some_gpu()), "pcie_replay", 0.0, draft.seconds, between(rng, setting.per_minute) / 60))


def memory(draft: Draft) -> None:
    """Corrected errors, and now and then a row that is remapped: it is pending until the next reset."""
    healthy, rng = draft.params.healthy, draft.rng
    for at in times(rng, healthy.ecc_corrected.per_day / DAY, 0, draft.seconds):
        draft.add(at, GROW, gpu(draft.some_gpu()), "ecc_sbe_volatile", round(between(rng, healthy.ecc_corrected.count)))
    if "row_remap_pending" not in draft.board.fields:
        return
    for at in times(rng, healthy.row_remaps_per_day / DAY, 0, draft.seconds):
        number = draft.some_gpu()
        draft.add(at, GROW, gpu(number), "remapped_rows_correctable", 1)
        draft.add(at, SET, gpu(number), "row_remap_pending", 1)
        draft.add(at, XID, gpu(number), value=63)
        draft.unrest.append((at, at + LOOKS))


def symbols(draft: Draft) -> None:
    """Symbol errors of NVLink 5 now and then: error correction hides them."""
    setting, rng = draft.params.healthy.symbols, draft.rng
    if draft.board.counts_5 and rng.random() < setting.nodes:
        number, per_h = draft.some_gpu(), log_between(rng, setting.per_h)
        for at in times(rng, per_h / HOUR, 0, draft.seconds):
            draft.add(at, GROW, gpu(number), "nvlink5_symbol_errors", 1)


def application_xids(draft: Draft) -> None:
    """Programs that fail: a node must not go out for a segmentation fault (k8s-device-plugin#189)."""
    rng = draft.rng
    for job in draft.jobs:
        for at in times(rng, draft.params.healthy.application_xids_per_day / DAY, job.start, job.end):
            draft.add(at, XID, gpu(rng.choice(job.gpus)), value=rng.choice(_APPLICATION))


def hiccups(draft: Draft) -> None:
    """The engine answers nothing for some minutes, or the readings of one GPU are blank."""
    rng = draft.rng
    for at in times(rng, draft.params.healthy.hiccups_per_day / DAY, 0, draft.seconds):
        lasts = rng.uniform(30, 900)
        if rng.random() < 0.5:
            draft.add(at, SILENT, value=True)
            draft.add(at + lasts, SILENT, value=False)
        else:
            number, line = (draft.some_link() if draft.board.links else (draft.some_gpu(), 0))
            field = rng.choice(("nvlink_replay", "nvlink_crc_data"))
            if draft.board.counts_4:
                draft.add(at, SET, link(number, line), field, NoData(BLANK))
                draft.add(at + lasts, SET, link(number, line), field, None)
        draft.unrest.append((at, at + lasts))
