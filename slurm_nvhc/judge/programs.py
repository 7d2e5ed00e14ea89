"""Xids that programs cause: whose fault, as far as other jobs tell. Pure."""

from __future__ import annotations

from typing import Iterable, Sequence

from slurm_nvhc.judge import scene as sc
from slurm_nvhc.judge.scene import Item, Scene, accuse, most
from slurm_nvhc.judge.users import CONVICTING
from slurm_nvhc.model import entity
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.suspect import Suspect


def programs(scene: Scene, items: Sequence[Item], _found: Sequence[Suspect]) -> Iterable[Suspect]:
    """The GPU, when programs of several users fail on it; the program, when it fails on GPUs that serve others well; else open."""
    known = scene.programs
    mine = [i for i in items if i.kind == sc.APP]
    guilty = {i.device for i in mine if known.points_at_gpu(i.device) and i.numbers & CONVICTING}
    if most(len(guilty), len(scene.inp.gpus())):
        why = f"programs of several users fail on {len(guilty)} GPUs: driver, library or image rather than each of them"
        yield accuse(su.NODE, entity.NODE, why, [i for i in mine if i.device in guilty], named=False)
        guilty = set()
    for gpu in sorted(guilty):
        why = f"programs of {len(known.failed[gpu])} users failed on {scene.name(gpu)} within a week"
        yield accuse(su.GPU, gpu, why, [i for i in mine if i.device == gpu])
    witnesses = known.points_at_code(known.user) if known.user else frozenset()
    of_job = [i for i in mine if i.device not in guilty and i.device in scene.inp.job_uuids() and i.numbers & CONVICTING]
    if len(witnesses) >= 2 and of_job:
        who, where = known.names.get(known.user, known.user), ", ".join(sorted(scene.name(g) for g in witnesses)[:4])
        why = f"{who}'s program fails on {where}, where other users' jobs ended clean"
        yield accuse(su.CODE, f"user:{known.user}", why, of_job)
    for item in mine:
        why = f"an Xid at {scene.name(item.device)} that programs cause themselves; no other job tells whether it is the GPU"
        if not item.numbers & CONVICTING:
            why = f"Xid 45 at {scene.name(item.device)} follows something else and convicts nobody"
        yield accuse(su.CODE, item.entity, why, [item], named=False)
