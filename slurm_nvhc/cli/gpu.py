"""`nvhc gpu list|exclude|verify|release|forget`: GPUs that jobs do not get, and the way back; GPUs that are gone for good."""

from __future__ import annotations

import argparse
import time
from typing import Final

from slurm_nvhc import pipeline
from slurm_nvhc.act import steps as st
from slurm_nvhc.act import ways
from slurm_nvhc.act.execute import execute
from slurm_nvhc.act.steps import Step
from slurm_nvhc.act.words import PREFIX, short_uuid
from slurm_nvhc.cli import common, show, tell
from slurm_nvhc.cli.explain import find_gpu
from slurm_nvhc.context import Context, durable
from slurm_nvhc.errors import InputError
from slurm_nvhc.judge.memory import open_names
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.protective import EXCLUDED, NARROW, QUARANTINE, RELEASED, SUSPECTED, VERIFIED, Ended, Exclusion
from slurm_nvhc.model.snapshot import GpuIdentity, Snapshot
from slurm_nvhc.model.times import iso
from slurm_nvhc.observation import read_now
from slurm_nvhc.record import lock
from slurm_nvhc.slurm import conf as slurm_conf_files
from slurm_nvhc.slurm import gres as gres_file

BY_HAND: Final = "BY-HAND"  # stands where a finding's code stands
LOCK_S: Final = 10.0  # the longest that a hook is waited for


# --- list ------------------------------------------------------------------


def show_list(args: argparse.Namespace) -> int:
    with common.open_ledger(args) as ledger:
        kept = ledger.protective()
    exclusions, gpus, holds = kept.exclusions, {g.uuid: g for g in kept.gpus}, {h.uuid: h for h in kept.holds}
    ended = kept.ended if args.all else ()
    if args.json:
        document = {"schema": 1, "exclusions": [e._asdict() for e in exclusions], "holds": [h._asdict() for h in kept.holds]}
        if args.all:
            document["ended"] = [{**e._asdict(), "exclusion": e.exclusion._asdict()} for e in ended]
        common.say_json(document)
        return common.OK

    def name(uuid: str) -> str:
        return common.gpu_name(gpus[uuid]._asdict()) if uuid in gpus else "gpu?"

    rows = [
        (name(e.uuid), e.uuid, e.stage, show.way(e, holds.get(e.uuid)), e.code, e.why, e.who, iso(e.since_ns)) for e in exclusions
    ]
    out = common.console()
    if rows:
        out.print(common.table("excluded GPUs", ("gpu", "uuid", "stage", "way", "code", "why", "by", "since"), rows))
    else:
        out.print("no GPU is excluded")
    if ended:
        over = [
            (name(e.exclusion.uuid), e.exclusion.uuid, e.exclusion.code, e.how, e.why, e.who, iso(e.exclusion.since_ns), iso(e.at_ns))
            for e in ended
        ]
        out.print(common.table("ended", ("gpu", "uuid", "code", "how", "why", "by", "since", "until"), over))
    return common.OK


# --- exclude, verify -------------------------------------------------------


def exclude(args: argparse.Namespace) -> int:
    """By hand under the same conditions as by the policy: what can not be kept up is refused, and the node is for the drain."""
    common.open_ledger(args).close()
    context = common.context(args, args.partition)
    try:
        # A hook may be excluding, or placing a job, just now.
        with lock.held(f"{context.site.state}/{context.node}/act.lock", LOCK_S):
            code, uuid = _exclude(args, context)
    finally:
        context.book.close()
    tell.by_hand(args, "exclude", _one_line(args.why), _one_line(args.why), uuid)  # not under the lock: it may take a minute
    return code


def _exclude(args: argparse.Namespace, context: Context) -> tuple[int, str]:
    """(exit code, the GPU's UUID)."""
    snapshot = read_now(context)
    if snapshot.gpus is None:
        raise InputError(args.gpu, "", "can not be seen: the engine does not list the GPUs now", "`nvhc doctor` says why; drain the node")
    kept, here = context.book.protective(), [g.identity for g in snapshot.gpus.values()]
    identity = find_gpu(args.gpu, here)
    if identity is None:
        lost = find_gpu(args.gpu, kept.gpus)
        if lost is not None:
            raise InputError(args.gpu, "", "does not answer: only a GPU that works otherwise can be taken out alone", "drain the node")
        names = ", ".join(f"{common.gpu_name(g._asdict())} {g.uuid}" for g in here)
        raise InputError(args.gpu, "", "is no GPU of this node", f"there are: {names or 'none'}")
    uuid = identity.uuid
    excluded = {e.uuid: e for e in kept.exclusions if e.stage != SUSPECTED}
    if uuid in excluded:
        raise InputError(args.gpu, "", f"is {excluded[uuid].stage} already since {iso(excluded[uuid].since_ns)}: {excluded[uuid].why}")
    way, mapping = args.way or ways.wanted(context.policy), _mapping(context, snapshot)
    if not way:
        hint = "enable quarantine or narrow there, name a partition where one is: --partition; or drain the node"
        raise InputError(context.site.config, "", "enables neither quarantine nor narrow", hint)
    if context.policy.mode == fd.OBSERVE:
        raise InputError(context.site.config, "mode", "is observe: hooks would keep no job off the GPU", "drain the node")
    survives = durable(context.policy, f"{context.site.state}/{context.node}")
    alloc = slurm_conf_files.prolog_alloc(context.slurm_conf) if context.slurm_conf else None
    ground = ways.Ground(context.policy, mapping, len(snapshot.gpus), survives, alloc)
    taken = {*(u for u in excluded if u in mapping.by_position.values()), uuid}
    problem = ways.hindrance(ground, way, uuid, taken)
    if problem:
        raise InputError(args.gpu, "", f"can not be taken out by {way}: {problem}", "drain the node")
    now_ns = snapshot.wall_ns  # the clock by which hooks reckon
    until_ns = now_ns + round(context.policy.quarantine.max_age_s * 1e9) if way == QUARANTINE else 0
    context.book.exclude(Exclusion(uuid, BY_HAND, _one_line(args.why), common.user(), now_ns, EXCLUDED, way, identity.pci, until_ns))
    name = common.gpu_name(identity._asdict())
    if way == NARROW:
        print(f"excluded {name} {uuid}: it is hidden from jobs from their prolog on; jobs that run keep it")
        return common.OK, uuid
    reason = f"{PREFIX} GPU-EXCLUDED {name} {short_uuid(uuid)} ({BY_HAND}) could not be quarantined"
    step = Step(st.QUARANTINE, reason=reason, uuid=uuid, why=args.why, keys=(f"GPU-EXCLUDED {uuid}",), way=way)
    ok, detail = _do(context, mapping, step, now_ns)
    print(f"excluded {name} {uuid}: {detail}")
    return common.OK if ok else common.TROUBLE, uuid


def verify(args: argparse.Namespace) -> int:
    """The fault was proven: from now on only --force, or another card in its place, ends the exclusion."""
    with common.open_ledger(args) as ledger:
        exclusion = _find(args.gpu, ledger.exclusions(), ledger.known_gpus())
        if exclusion.stage == SUSPECTED:
            raise InputError(args.gpu, "", "is only suspected: nothing keeps jobs off it", "nvhc gpu exclude")
        if exclusion.stage == VERIFIED:
            raise InputError(args.gpu, "", f"is verified already: {exclusion.why}")
        why = f"{exclusion.why}; verified by {common.user()} {iso(time.time_ns())}: {_one_line(args.why)}"
        ledger.change_exclusion(exclusion._replace(stage=VERIFIED, why=why))
    print(f"verified {exclusion.uuid}: it is given back only with `nvhc gpu release --force`, or ends when another card takes its place")
    return common.OK


# --- release, forget -------------------------------------------------------


def release(args: argparse.Namespace) -> int:
    with common.open_ledger(args) as ledger:
        kept = ledger.protective()
        exclusion = _find(args.gpu, kept.exclusions, kept.gpus)
        uuid = exclusion.uuid
        if exclusion.stage == VERIFIED and not args.force:
            raise InputError(args.gpu, "", f"has a fault that was proven: {exclusion.why}", "--force gives it back all the same")
        ended = Ended(exclusion, RELEASED, common.user(), _one_line(args.why), time.time_ns())
        if not ledger.end_exclusion(ended):
            raise InputError(args.gpu, "", "is not excluded any more")
        # What it was excluded for is dealt with: an Xid in this boot's log must not exclude it again.
        ledger.settle(ledger.fold_memory(lambda memory, look: (open_names(memory, uuid), memory, look)))
        held = exclusion.way == QUARANTINE or any(h.uuid == uuid for h in kept.holds)
    if exclusion.stage == SUSPECTED:
        print(f"released {uuid}: it was only suspected, and no job was kept off it")
        return common.OK
    if not held:
        print(f"released {uuid}: the next job may use it")
        tell.by_hand(args, "release", exclusion.why, _one_line(args.why), uuid)
        return common.OK
    context = common.context(args)
    try:
        with lock.held(f"{context.site.state}/{context.node}/act.lock", LOCK_S):
            step = Step(st.UNHOLD, uuid=uuid, why=args.why, keys=(f"GPU-EXCLUDED {uuid}",))
            ok, detail = _do(context, GpuMapping((), {}, False), step, time.time_ns())
    finally:
        context.book.close()
    if ok:
        print(f"released {uuid}: the next job may use it{f' ({detail})' if detail else ''}")
        tell.by_hand(args, "release", exclusion.why, _one_line(args.why), uuid)
        return common.OK
    print(f"released {uuid}; its placeholder job could not be ended: {detail}; the next health check tries again")
    return common.TROUBLE


def forget(args: argparse.Namespace) -> int:
    """A GPU that was taken out on purpose is not missed any more."""
    with common.open_ledger(args) as ledger:
        known = ledger.known_gpus()
        identity = find_gpu(args.gpu, known)
        if identity is None or not ledger.forget_gpu(identity.uuid):
            names = ", ".join(f"{common.gpu_name(g._asdict())} {g.uuid}" for g in known)
            raise InputError(args.gpu, "", "is no GPU that this node knows", f"known: {names or 'none'}")
        excluded = any(e.uuid == identity.uuid for e in ledger.exclusions())
    print(f"forgot {identity.uuid}: it is not missed any more, unless gres.conf or expect.gpus in the policy count it")
    if excluded:
        print(f"it is still excluded: `nvhc gpu release {identity.uuid}` ends that")
    return common.OK


# --- what they share -------------------------------------------------------


def _find(what: str, exclusions: tuple[Exclusion, ...], known: tuple[GpuIdentity, ...]) -> Exclusion:
    """By any name of the GPU; by UUID also when the card has left. InputError when it is not excluded."""
    table = {e.uuid: e for e in exclusions}
    identity = find_gpu(what, known)
    uuid = identity.uuid if identity is not None else what
    if uuid not in table:
        raise InputError(what, "", "is not excluded on this node", f"excluded: {', '.join(sorted(table)) or 'none'}")
    return table[uuid]


def _mapping(context: Context, snapshot: Snapshot) -> GpuMapping:
    gres = gres_file.read(context.slurm_conf, context.node)[0] if context.slurm_conf else None
    present = [g.identity for g in (snapshot.gpus or {}).values()]
    return gres_file.resolve(None, gres, present, context.book.protective().gpus, context.policy.slurm.job_gpus)


def _do(context: Context, mapping: GpuMapping, step: Step, now_ns: int) -> tuple[bool, str]:
    """(whether the step's aim is reached, what happened)."""
    outcome = execute((step,), pipeline.tools_of(context, mapping, now_ns))
    done = outcome.done[0]
    return done.ok, done.detail or "; ".join(t.detail for t in outcome.troubles)


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]
