"""Small nodes for tests of the pure rooms."""

from __future__ import annotations

from typing import Any, Mapping

from slurm_nvhc.compare import compare
from slurm_nvhc.judge import Input, Window
from slurm_nvhc.judge.judge import judge
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.snapshot import Event, GpuIdentity, GpuState, PciGpu, Snapshot
from slurm_nvhc.policy import compiled as pol
from slurm_nvhc.policy.compiled import Level, Policy, Rule

T0 = 1_800_000_000 * 10**9
DAY_NS = 86400 * 10**9
MINUTE_NS = 60 * 10**9
H100 = "NVIDIA H100 80GB HBM3"


def uuid(n: int) -> str:
    return f"GPU-0000000{n}-1111-2222-3333-444444444444"


def gpu(n: int, links: int = 2, model: str = H100, status: str = "ok", **readings: Any) -> GpuState:
    identity = GpuIdentity(uuid(n), f"0000:{0x1B + n:02x}:00.0", n, n, n, f"serial{n}", model)
    per_link: dict[int, dict[str, Any]] = {i: {"nvlink_replay": 0, "nvlink_state": "up"} for i in range(links)}
    return GpuState(identity, status, {"nvlink_replay_total": 0, "row_remap_failure": 0, **readings}, per_link)


def with_link(state: GpuState, link: int, **readings: Any) -> GpuState:
    links = {n: dict(r) for n, r in state.links.items()}
    links.setdefault(link, {}).update(readings)
    return state._replace(links=links)


def snapshot(*gpus: GpuState, at_ns: int = T0, boot: str = "boot-1", uptime_s: float = 864000.0, **more: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "node": "n1", "source": "sim", "engine": "4.6.0", "boot_id": boot, "wall_ns": at_ns,
        "boot_ns": int(uptime_s * 1e9), "driver": "575.57", "gpus": {g.identity.uuid: g for g in gpus},
        "pci_gpus": tuple(PciGpu(g.identity.pci) for g in gpus), "events_known": True,
    }  # fmt: skip
    return Snapshot(**{**fields, **more})


def later(base: Snapshot, seconds: float, *gpus: GpuState, **more: Any) -> Snapshot:
    moved = base._replace(wall_ns=base.wall_ns + int(seconds * 1e9), boot_ns=base.boot_ns + int(seconds * 1e9), **more)
    return moved._replace(gpus={g.identity.uuid: g for g in gpus}) if gpus else moved


def xid(code: int, n: int, at_ns: int, ident: str = "") -> Event:
    address = f"0000:{0x1B + n:02x}:00.0"
    return Event("xid", code, at_ns, address, f"NVRM: Xid {code}", "kernel", ident or f"b:{code}:{n}:{at_ns}", uuid(n))


def policy(*rules: Rule, **sections: Any) -> Policy:
    fields: dict[str, Any] = {
        "hash": "test", "mode": "enforce", "rules": {r.name: r for r in rules}, "narrow": pol.Narrow(), "expect": pol.Expect(),
        "monitor": pol.Monitor(), "engine": pol.Engine(), "slurm": pol.Slurm(), "drain": pol.Drain(), "budgets": pol.Budgets(),
        "record": pol.Record(), "reread_wait_s": 2.0,
    }  # fmt: skip
    return Policy(**{**fields, **sections})


def rule(name: str, *fields: str, fail: Any = (), warn: Any = (), **more: Any) -> Rule:
    def levels(given: Any) -> tuple[Level, ...]:
        return given if type(given) is tuple else (given,)

    kind = more.pop("kind", "reading")
    return Rule(name, more.pop("finding", "SITE-RULE"), kind, fields, levels(warn), levels(fail), more.pop("action", "drain"), **more)


def job(*gpus: int, job_id: str = "8812", uid: int = 1000) -> tuple[Job, GpuMapping]:
    uuids = tuple(uuid(n) for n in gpus)
    return Job(job_id, uid, "alice", "gpu", tuple(gpus)), GpuMapping(uuids, {n: uuid(n) for n in gpus}, True)


def run(
    hook: str,
    now: Snapshot,
    rules: Policy,
    before: Snapshot | None = None,
    memory: Mapping[str, Any] | None = None,
    gpus: tuple[int, ...] | None = None,
    key: str = "w1",
    **more: Any,
):
    """One judgement, as the pipeline makes it."""
    the_job, mapping = job(*gpus) if gpus is not None else (None, None)
    kind = "none" if before is None else ("job" if hook == "epilog" else "watch")
    changes = () if before is None else compare(before, now, set(mapping.uuids) if mapping else None)
    seconds = changes[0].seconds if changes else 0.0
    window = Window(kind, key, None if before is None else before.wall_ns, now.wall_ns, seconds, f"job {key}")
    inp = Input(hook, now, before, changes, window, rules, the_job, mapping, **more)
    return judge(inp, memory or {})


def verdicts(judgement: Any) -> dict[tuple[str, str], str]:
    return {(f.code, f.entity): f.verdict for f in judgement.findings}
