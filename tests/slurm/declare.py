"""Stands in for the planner under load: say that GPUs are bad, in the epilog of the job that had them, or well again.

    python -I declare.py bad|well CONFIG STATE RUN SLURM_CONF LOG POSITION...

What is under test is the mechanism, so users' jobs get light hooks of their own (quarantine_load.py), and the ones that
matter come here. As the pipeline does: under the node's lock, the exclusion first, then the step.
"""

from __future__ import annotations

import os
import sys
import time

from slurm_nvhc.act import steps as st
from slurm_nvhc.act.execute import Tools, execute
from slurm_nvhc.act.steps import Step
from slurm_nvhc.context import Context, Site, prepare
from slurm_nvhc.hold import launch
from slurm_nvhc.hold.hook import mapped
from slurm_nvhc.judge import EPILOG
from slurm_nvhc.model.protective import QUARANTINE, RELEASED, Ended, Exclusion
from slurm_nvhc.proc import log
from slurm_nvhc.record import lock
from slurm_nvhc.sense.client import read_snapshot
from slurm_nvhc.slurm.jobs import SlurmJobs
from slurm_nvhc.slurm.node import SlurmCommands


def uptime() -> str:
    with open("/proc/uptime") as file:
        return file.read().split()[0]


def note(path: str, what: str) -> None:
    with open(path, "a") as file:
        file.write(f"{uptime()} {what}\n")


def main() -> None:
    what, config, state, run, slurm_conf, path, *positions = sys.argv[1:]
    environment = {**os.environ, "SLURM_CONF": slurm_conf}
    context = prepare(EPILOG, Site(config, state, run, slurm_conf), environment, time.monotonic(), "n1")
    snapshot = read_snapshot("n1", context.policy.engine, 10.0, fields=())
    mapping = mapped(context, snapshot)
    uuids = [mapping.by_position[int(p)] for p in positions]
    with lock.held(f"{state}/n1/act.lock", 20.0) as got, context.book as book:
        assert got
        if what == "bad":
            for uuid in uuids:
                book.exclude(Exclusion(uuid, "NVL-STORM", "gpu? is bad", "test", snapshot.wall_ns, way=QUARANTINE))
            note(path, f"bad {' '.join(positions)}")
            steps = [Step(st.QUARANTINE, reason=f"nvhc: {uuid} could not be quarantined", uuid=uuid) for uuid in uuids]
        else:
            found = {e.uuid: e for e in book.protective().exclusions}
            note(path, f"well {' '.join(positions)}")
            for uuid in uuids:
                book.end_exclusion(Ended(found[uuid], RELEASED, "test", "", snapshot.wall_ns))
            steps = [Step(st.UNHOLD, uuid=uuid) for uuid in uuids]
        outcome = execute(tuple(steps), tools(context, snapshot.wall_ns, mapping))
        for done in outcome.done:
            note(path, f"done {done.step.kind} {done.ok} {done.detail}")


def tools(context: Context, now_ns: int, mapping: object) -> Tools:
    slurm = context.policy.slurm
    return Tools(
        slurm=SlurmCommands(slurm.bin_dir, context.slurm_conf, slurm.timeout_s),
        node="n1",
        protective=context.book,
        run_dir=context.site.run,
        job=context.job,
        mapping=mapping,  # type: ignore[arg-type]
        constrain=lambda: None,
        log=log.warning,
        left_s=lambda: 10.0,
        now_ns=now_ns,
        policy=context.policy,
        jobs=SlurmJobs(slurm.bin_dir, context.slurm_conf, slurm.timeout_s),
        hold_program=launch.program(context.site, "n1", context.slurm_conf),
    )


if __name__ == "__main__":
    main()
