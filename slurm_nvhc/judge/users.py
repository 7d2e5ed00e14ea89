"""Programs that fail: the user's code, or the GPU it ran on? Who failed where is remembered over jobs. Pure.

Memory sections (see memory.py), per GPU the latest users only:
  app_failed {uuid: [[ns, uid, name], …]}  a job of this user raised an application's Xid on this GPU
  app_clean  {uuid: [[ns, uid, name], …]}  a job of this user ended without any
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple

from slurm_nvhc.catalog import xids
from slurm_nvhc.judge import memory
from slurm_nvhc.judge.context import EPILOG, Input

FAILED: Final = "app_failed"
CLEAN: Final = "app_clean"
WITHIN_NS: Final = 7 * 86400 * 10**9  # as the packaged rule xid_app_users; our judgement
SEVERAL_USERS: Final = 3  # do not share one bug: as that rule
KEPT_USERS: Final = 8  # per GPU; more than SEVERAL_USERS, and one witness is enough
# A job of seconds proves nothing about the GPU it was given. Our judgement.
LEAST_CLEAN_S: Final = 300.0

# 45 follows other errors, an interrupt or a lack of memory: it convicts nobody, neither a GPU nor a program.
CONVICTING: Final = frozenset(n for n in xids.numbers(xids.APP) if xids.BY_NUMBER[n].app_fault == xids.YES)


class Programs(NamedTuple):
    """Of the last week: GPU -> users whose programs failed there, and users whose jobs ended clean there.

    Users are uids as text; names: uid -> name. user: the job's.
    """

    failed: Mapping[str, frozenset[str]] = {}
    clean: Mapping[str, frozenset[str]] = {}
    names: Mapping[str, str] = {}
    user: str = ""

    def gpus_of(self, uid: str) -> frozenset[str]:
        """GPUs on which this user's programs failed."""
        return frozenset(gpu for gpu, users in self.failed.items() if uid in users)

    def points_at_code(self, uid: str) -> frozenset[str]:
        """GPUs on which this user failed, nobody else did, and somebody else's job ended clean. Two of them convict the program."""
        return frozenset(g for g in self.gpus_of(uid) if self.failed[g] == {uid} and self.clean.get(g, frozenset()) - {uid})

    def points_at_gpu(self, gpu: str) -> bool:
        """Programs of several users failed on this GPU, and those of one of them on no other."""
        users = self.failed.get(gpu, frozenset())
        return len(users) >= SEVERAL_USERS and any(not self.gpus_of(uid) - {gpu} for uid in users)


def remember(inp: Input, notes: memory.Notes) -> Programs:
    """Note how this job ended on each of its GPUs, and tell what is known."""
    job = inp.job
    who = str(job.uid) if job is not None and job.uid is not None else ""
    if job is not None and who and inp.hook == EPILOG and inp.window.kind == "job" and inp.snapshot.events_known:
        blamed = _failed_now(inp)
        for uuid in sorted(inp.job_uuids() & set(inp.gpus())):
            if uuid in blamed or inp.window.seconds >= LEAST_CLEAN_S:
                section = FAILED if uuid in blamed else CLEAN
                others = [row for row in notes.kept(section).get(uuid, ()) if row[1] != who]
                notes.keep(section, uuid, [*others, [inp.now_ns, who, job.user]][-KEPT_USERS:])
    names: dict[str, str] = {}
    failed, clean = (_lately(inp, notes, section, names) for section in (FAILED, CLEAN))
    return Programs(failed, clean, names, who)


def _failed_now(inp: Input) -> frozenset[str]:
    """GPUs on which a program failed in the window."""
    rows = {g.identity.pci: uuid for uuid, g in inp.gpus().items() if g.identity.pci}
    start = inp.window.start_ns or 0
    events = (e for e in inp.snapshot.events if e.kind == "xid" and e.code in CONVICTING)
    return frozenset(e.uuid or rows.get(e.pci, "") for e in events if e.at_ns > start or (inp.events_are_new and e.source == "kernel"))


def _lately(inp: Input, notes: memory.Notes, section: str, names: dict[str, str]) -> Mapping[str, frozenset[str]]:
    out: dict[str, frozenset[str]] = {}
    for uuid, known in notes.kept(section).items():
        rows = [row for row in known if row[0] >= inp.now_ns - WITHIN_NS]
        names.update({uid: name or f"user {uid}" for _at, uid, name in rows})
        if rows:
            out[uuid] = frozenset(uid for _at, uid, _name in rows)
    return out
