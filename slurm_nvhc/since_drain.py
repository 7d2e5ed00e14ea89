"""What has happened on the node since our own drain: clean looks, tests, jobs that ended. Asked for only where it may end."""

from __future__ import annotations

import zlib
from typing import Any, Final

from slurm_nvhc import diagnose
from slurm_nvhc.act import healing
from slurm_nvhc.act.passes import passed
from slurm_nvhc.context import Context
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK
from slurm_nvhc.model.protective import SUSPECTED, OwnDrain
from slurm_nvhc.model.snapshot import Snapshot
from slurm_nvhc.observation import Observation
from slurm_nvhc.slurm import conf

# How the launchers are called in a site's slurm.conf (hooks/install.py); those of somebody else are called otherwise.
OUR_HOOKS: Final = ("nvhc-prolog.sh", "nvhc-epilog.sh")
_NOTE: Final = "own_passes"


def count_pass(context: Context, seen: Observation) -> None:
    """A health check adds to the row of those that found well what our drain is for, or ends the row. In a pause none counts."""
    own = context.book.protective().own_drain
    if context.hook != HEALTH_CHECK or own is None:
        return
    judgement = seen.judgement
    verdict, excluded = judgement.decision.verdict, _kept_off(context)
    well = context.pause is None and passed(own, context.policy, seen.snapshot, verdict, judgement.gpu_verdicts, excluded)
    number = _passes(context, own) + 1 if well else 0
    context.book.ask(lambda led: led.put(_NOTE, f"{_name(own)} {number}"), None)


def _kept_off(context: Context) -> frozenset[str]:
    """GPUs that no job gets."""
    return frozenset(e.uuid for e in context.book.protective().exclusions if e.stage != SUSPECTED)


def facts(context: Context, own: OwnDrain | None, snapshot: Snapshot) -> dict[str, Any]:
    """Fields of act's PlanInput."""
    if own is None or context.hook != HEALTH_CHECK or context.policy.drain.resume == healing.OFF:
        return {}
    now_ns, gpus = snapshot.wall_ns, tuple(snapshot.gpus or ())
    wanted = context.policy.drain.resume_diagnostic
    tests = {uuid: diagnose.last(context, uuid) for uuid in gpus} if wanted else {}
    untested = tuple(uuid for uuid, t in tests.items() if t is None or not t.has_passed(wanted, own.set_ns))
    kept_off = _kept_off(context)
    failed = tuple(uuid for uuid in gpus if uuid not in kept_off and diagnose.stands_failed(context, uuid))
    alone = conf.only_hooks(context.slurm_conf, OUR_HOOKS) if context.slurm_conf else None
    # The job whose own epilog drained the node ended then too: another epilog may have come after ours.
    runs = context.book.ask(lambda led: led.runs_between(EPILOG, own.set_ns - 1, now_ns + 1), None)
    ended = None if runs is None else len({run.job_id for run in runs if run.ended_ns >= own.set_ns})
    return {
        "clean_passes": _passes(context, own),
        "epilog_alone": alone,
        "jobs_ended": ended,
        "untested": untested if gpus else None,
        "diag_failed": failed,
    }


def _passes(context: Context, own: OwnDrain) -> int:
    name, _, number = context.book.ask(lambda led: led.get(_NOTE), "").partition(" ")
    return int(number) if name == _name(own) and number.isascii() and number.isdigit() else 0


def _name(own: OwnDrain) -> str:
    """Another drain, and one that was extended by another fault, begins anew."""
    what = "\n".join((own.reason, *own.keys))
    return f"{own.set_ns}:{zlib.crc32(what.encode('utf-8', 'replace')):08x}"
