"""Is a GPU under quarantine given out? The long run, on a private real Slurm with one node of eight (simulated) GPUs.

    ./run bench quarantine [--starts N] [--transitions N] [--seed S] [--json FILE]

Users' jobs of 1, 2 and 4 GPUs always wait, from a queue and by srun and salloc. GPUs are declared bad, one or two at once, each
in the epilog of the job that has it, are held and released, again and again; now and then slurmctld is restarted or
reconfigured while one is held. Counted from the notes of the prologs: users' jobs that got a GPU between its declaration and
its release. docs/quarantine.md has the result.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path

import table
from table import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "slurm"))

import machine
from harness import Cluster
from quarantine_load import Load, LoadedSite

DISTURBED_EVERY = 10  # rounds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="is a GPU under quarantine given out?")
    parser.add_argument("--starts", type=_number, default=2000, help="starts of users' jobs, at least (2000)")
    parser.add_argument("--transitions", type=_number, default=200, help="GPUs put under quarantine and released, at least (200)")
    parser.add_argument("--seed", type=int, default=1, help="of what jobs ask for and which GPUs go bad (1)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE as well")
    return parser.parse_args()


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000_000:
        raise argparse.ArgumentTypeError("a number from 1 to 10000000 was expected")
    return int(text)


def disturb(cluster: Cluster, number: int) -> None:
    """reconfigure, or a restart of slurmctld with the node closed to new jobs.

    Closed, because of 22.05 itself: a job that starts in the second after a restart is given GPUs by count and none by
    number, and once (under this load) the node's GPUs stayed booked for good, with no job on it.
    """
    if number % 2:
        cluster.run("scontrol", "reconfigure")
        cluster.wait_until("slurmctld to answer", lambda: cluster.run("squeue", "-h", check=False, timeout=30).returncode == 0)
        return
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=restart of slurmctld")
    cluster.stop_slurmctld()
    cluster.start_slurmctld()
    cluster.wait_until("Slurm to know its GPUs", lambda: "(IDX:" in cluster.run("scontrol", "-d", "show", "node", "n1", check=False).stdout)
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")


def work(load: Load, starts: int, transitions: int) -> None:
    site, rounds, told = load.site, 0, time.monotonic()
    each = max(1, starts // max(1, transitions))
    while len(load.transitions) < transitions or load.starts() < starts:
        # One alone, or two at once: those are where a list that is not kept together shows.
        several = load.random.sample(range(site.cluster.gpus), 1 if rounds % 3 == 2 else 2)
        rounds += 1
        disturbance = None
        if rounds % DISTURBED_EVERY == 0:
            disturbance = rounds // DISTURBED_EVERY
        load.transition(*several, seconds=180, meanwhile=lambda n=disturbance: disturb(site.cluster, n) if n is not None else None)
        load.wait_starts(each * len(several), 300)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            text = f"{load.starts()} starts, {len(load.transitions)} transitions, {len(load.given_out())} given out"
            print(f"bench: {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def rows(load: Load, seconds: float) -> list[Row]:
    times = load.seconds_to_hold()
    given = load.given_out()
    for line in given:
        print(f"bench: {line}", file=sys.stderr)
    lost = len(load.transitions) - len(times)
    return [
        Row("starts of users' jobs", load.starts(), "", note=f"in {seconds:.0f} s"),
        Row("GPUs put under quarantine and released", len(load.transitions), ""),
        Row("given out meanwhile", len(given), "", bound=0),
        Row("not held", lost, "", bound=0),
        *_times(times),
        Row("node drained", int(load.site.cluster.node().out), "", bound=0),
    ]


def _times(ordered: list[float]) -> list[Row]:
    if not ordered:
        return []
    p95 = ordered[round(0.95 * (len(ordered) - 1))]
    what = "from the epilog's word to a hold"
    return [Row(what, statistics.median(ordered) * 1000, "ms", p95 * 1000), Row("the longest", ordered[-1] * 1000, "ms")]


def main() -> int:
    given = arguments()
    why_not = machine.why_not()
    if why_not:
        table.stop(why_not)
    began = time.monotonic()
    with LoadedSite() as site, contextlib.ExitStack() as stack:
        load = stack.enter_context(Load(site, given.seed))
        work(load, given.starts, given.transitions)
        stack.close()
        if load.trouble():
            table.stop(load.trouble())
        return table.show(rows(load, time.monotonic() - began), given.json)


if __name__ == "__main__":
    sys.exit(main())
