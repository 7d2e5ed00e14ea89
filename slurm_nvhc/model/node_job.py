"""A job on this node, as Slurm says (not as a hook's environment says)."""

from __future__ import annotations

from typing import NamedTuple, Optional


class NodeJob(NamedTuple):
    """job_id: "812", or "812_3" for a task of an array. state: "RUNNING", "PENDING", "COMPLETING", …

    number:    the bare JobId that hooks get, also of a task of an array ("815"); '' = as job_id
    uid:       None when Slurm did not say
    batch:     has a batch script;  requeue: Slurm may run it again (Requeue=1)
    positions: of its GPUs on this node (IDX in gres detail); None when Slurm does not say, () when it has none
    het:       one component of a heterogeneous job
    excluded, required: the job's ExcNodeList and ReqNodeList as Slurm says them ("n[1-2],n7")
    Values that Slurm did not give are '' or None.
    """

    job_id: str
    state: str
    uid: Optional[int] = None
    name: str = ""
    partition: str = ""
    batch: bool = False
    requeue: bool = False
    restarts: int = 0
    comment: str = ""
    admin_comment: str = ""
    constraint: str = ""
    reservation: str = ""
    positions: Optional[tuple[int, ...]] = None
    started: str = ""
    het: bool = False
    excluded: str = ""
    required: str = ""
    number: str = ""
