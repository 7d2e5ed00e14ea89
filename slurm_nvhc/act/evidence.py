"""The evidence bundle: what a reset, a reboot or an exchange destroys, in one file, written before that.

One JSON document beside the ledger for each drain and each exclusion, before a reboot, and by hand. Bounded in size
and number, readable by root alone, written whole or not at all. It stops nothing: what fails becomes a trouble.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import zlib
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.act.remedy import Remedy
from slurm_nvhc.act.words import clean
from slurm_nvhc.errors import MonitorError
from slurm_nvhc.model import diag as dg
from slurm_nvhc.model import entity as ent
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model import reading as rd
from slurm_nvhc.model import suspect as su
from slurm_nvhc.model.change import Change
from slurm_nvhc.model.finding import Finding
from slurm_nvhc.model.job import GpuMapping, Job
from slurm_nvhc.model.protective import Exclusion, OwnDrain, Strike
from slurm_nvhc.model.snapshot import GpuState, Snapshot
from slurm_nvhc.model.suspect import Suspect
from slurm_nvhc.model.times import iso
from slurm_nvhc.proc import child
from slurm_nvhc.proc.files import make_private_dir, write_atomic

SCHEMA: Final = 1
FOLDER: Final = "evidence"
MAX_BYTES: Final = 1024 * 1024  # of one bundle on disk
PLAIN_BYTES: Final = 128 * 1024  # a larger one is compressed
MOST_GPUS: Final = 16
MOST_EVENTS: Final = 500  # kernel log lines, the newest
MOST_ROWS: Final = 500  # findings, changes
MAX_TEXT: Final = 1000  # characters of a kernel log line
# Left out first when a bundle is too large: what other places keep as well.
_DROPPED: Final = ("ledger", "changes", "before", "events", "parts", "now", "diag", "findings")
_NAME: Final = re.compile(r"(\d{8}T\d{6}Z-[A-Za-z0-9-]{1,40}-[A-Za-z0-9]{1,20}(?:\.\d{1,3})?)\.(?:json|bug-report\.log)(?:\.gz)?")

BUG_REPORT: Final = "/usr/bin/nvidia-bug-report.sh"
LEAST_BUG_REPORT_S: Final = 1.0  # with less time left it is not begun


class Scene(NamedTuple):
    """All that a run knows, as values.

    before:   the snapshot at the start of the window; None without one
    ledger:   UUID -> the last runs that said something about this GPU, JSON-able, newest first
    diag:     what a diagnostic of this run said; None when there was none
    """

    node: str
    hook: str
    job: Optional[Job]
    mapping: GpuMapping
    findings: Sequence[Finding]
    suspects: Sequence[Suspect]
    remedies: Sequence[Remedy]
    changes: Sequence[Change]
    now: Snapshot
    before: Optional[Snapshot]
    exclusions: Sequence[Exclusion]
    own: Optional[OwnDrain]
    strikes: Sequence[Strike]
    policy: str
    mode: str
    ledger: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    diag: Optional[dg.Report] = None


class Occasion(NamedTuple):
    """Why it is written: "drain", "exclude", "reboot" or "by hand"; about ``uuid``, '' = the node."""

    kind: str
    code: str
    uuid: str = ""
    reason: str = ""
    why: str = ""


class Written(NamedTuple):
    path: str = ""
    problem: str = ""


def concerned(scene: Scene, uuid: str = "") -> tuple[str, ...]:
    """UUIDs of the GPUs that something is said about, the one that is meant first."""
    bad = [f for f in scene.findings if f.verdict != fd.OK and f.klass != "monitor"]
    named = [uuid, *(ent.gpu_of(f.entity) for f in bad)]
    named += [ent.gpu_of(e) for s in scene.suspects for e in (s.entity, s.far)]
    return tuple(dict.fromkeys(u for u in named if u))[:MOST_GPUS]


def document(scene: Scene, occasion: Occasion) -> dict[str, Any]:
    """The bundle, JSON-able. Pure."""
    gpus = concerned(scene, occasion.uuid)
    now, before = scene.now, scene.before
    parts = {f.entity.partition("/")[0] for f in scene.findings if f.entity.startswith(("switch:", "rdma:"))}
    rows = (now.gpus or {}).values()
    return {
        "schema": SCHEMA,
        "occasion": occasion._asdict(),
        "time": iso(now.wall_ns),
        "node": scene.node,
        "hook": scene.hook,
        "job": scene.job._asdict() if scene.job is not None else None,
        "mapping": {"uuids": list(scene.mapping.uuids), "exact": scene.mapping.exact, "why": scene.mapping.why},
        "policy": {"hash": scene.policy, "mode": scene.mode},
        "versions": {"engine": now.engine, "driver": now.driver, "source": now.source},
        "boot": {"id": now.boot_id, "uptime_s": round(now.uptime_s(), 1), "driver_loaded": _iso(now.driver_loaded_ns)},
        "identity": [g.identity._asdict() for g in rows if g.identity.uuid in gpus],
        "remedies": [r._asdict() for r in scene.remedies],
        "suspects": [su.to_json(s) for s in scene.suspects],
        "exclusions": [e._asdict() for e in scene.exclusions],
        "own_drain": scene.own._asdict() if scene.own is not None else None,
        "strikes": [s._asdict() for s in scene.strikes],
        "findings": [fd.to_json(f) for f in scene.findings][:MOST_ROWS],
        "diag": dg.to_json(scene.diag) if scene.diag is not None else None,
        "now": _readings(now, gpus),
        "parts": {n: {k: rd.to_json(v) for k, v in r.items()} for n, r in now.parts.items() if n.partition("/")[0] in parts},
        "events": [{**e._asdict(), "text": e.text[:MAX_TEXT]} for e in now.events][-MOST_EVENTS:],
        "events_known": now.events_known,
        "before": {"time": iso(before.wall_ns), **_readings(before, gpus)} if before is not None else None,
        "changes": [_change(c) for c in scene.changes if not ent.gpu_of(c.entity) or ent.gpu_of(c.entity) in gpus][:MOST_ROWS],
        "ledger": {uuid: [dict(r) for r in scene.ledger.get(uuid, ())] for uuid in gpus},
    }


def _iso(at_ns: Optional[int]) -> str:
    return iso(at_ns) if at_ns is not None else ""


def _readings(snapshot: Snapshot, gpus: Sequence[str]) -> dict[str, Any]:
    found = snapshot.gpus or {}
    return {uuid: _gpu(found[uuid]) for uuid in gpus if uuid in found}


def _gpu(gpu: GpuState) -> dict[str, Any]:
    links = {str(n): {k: rd.to_json(v) for k, v in r.items()} for n, r in gpu.links.items()}
    return {"status": gpu.status, "readings": {k: rd.to_json(v) for k, v in gpu.readings.items()}, "links": links}


def _change(change: Change) -> dict[str, Any]:
    sides = {s: rd.to_json(v) if v is not None else None for s, v in (("before", change.before), ("after", change.after))}
    return {**change._asdict(), **sides}


def packed(bundle: Mapping[str, Any], most: int = MAX_BYTES) -> tuple[bytes, str]:
    """(content, suffix): plain JSON, or gzip where that is large; what does not fit is left out, and said so. Pure."""
    left_out: list[str] = []
    for dropped in ("", *_DROPPED):
        if dropped:
            left_out.append(dropped)
        kept = {k: v for k, v in bundle.items() if k not in left_out}
        text = json.dumps({**kept, **({"left_out": left_out} if left_out else {})}, indent=1, default=str).encode("ascii") + b"\n"
        if len(text) <= min(PLAIN_BYTES, most):
            return text, "json"
        small = _gzip(text)
        if len(small) <= most:
            return small, "json.gz"
    text = json.dumps({"schema": SCHEMA, "occasion": bundle.get("occasion"), "left_out": ["everything else"]}).encode("ascii") + b"\n"
    return text, "json"


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)  # 31: with gzip's header; the module gzip is not light
    return packer.compress(data) + packer.flush()


# --- files -----------------------------------------------------------------------------------


def folder(policy_dir: str, state_dir: str, node: str) -> str:
    """Where a node's bundles are. A folder of the site's may serve several nodes: each has its own below it."""
    return os.path.join(policy_dir, node) if policy_dir else os.path.join(state_dir, FOLDER)


def stem(occasion: Occasion, at_ns: int) -> str:
    """20261201T124500Z-NVL-STORM-1f2e3d4c"""
    moment = iso(at_ns).replace("-", "").replace(":", "")
    moment = moment if len(moment) == 16 else "00000000T000000Z"  # a clock gone wild
    code = re.sub(r"[^A-Za-z0-9-]", "", occasion.code)[:40] or "NONE"
    head = occasion.uuid.split("-")
    short = re.sub(r"[^A-Za-z0-9]", "", head[1] if len(head) > 1 else occasion.uuid)[:8] or "node"
    return f"{moment}-{code}-{short}"


def write(directory: str, scene: Scene, occasion: Occasion, keep: int) -> Written:
    """Write one bundle and forget the oldest beyond ``keep``. Never raises."""
    try:
        content, suffix = packed(document(scene, occasion))
        _make(directory)
        name = _free(directory, stem(occasion, scene.now.wall_ns))
        path = os.path.join(directory, f"{name}.{suffix}")
        _write(path, content)
        prune(directory, keep)
    except (OSError, MonitorError) as exc:
        return Written("", f"{directory}: {getattr(exc, 'strerror', None) or exc}")
    except Exception as exc:  # whatever a reading holds, the step for which this is written goes on
        return Written("", f"{directory}: {clean(f'{type(exc).__name__}: {exc}', 200)}")
    return Written(path)


def _make(directory: str) -> None:
    if os.path.islink(directory):  # before anything is changed: its target would be given our mode
        raise MonitorError(directory, "", "is not a folder of our own")
    make_private_dir(directory)
    facts = os.lstat(directory)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise MonitorError(directory, "", "is not a folder of our own")


def _free(directory: str, name: str) -> str:
    taken = {found.group(1) for found in map(_NAME.fullmatch, os.listdir(directory)) if found}
    numbered = [name, *(f"{name}.{n}" for n in range(2, 1000))]
    return next(candidate for candidate in numbered if candidate not in taken)


def _write(path: str, content: bytes) -> None:
    # Bytes through a text function: surrogateescape gives each byte back as it was.
    write_atomic(path, content.decode("utf-8", "surrogateescape"), 0o600)


def prune(directory: str, keep: int) -> None:
    """Keep the newest bundles, each with its bug report. Files of another name are left alone. Raises OSError."""
    files: dict[str, list[str]] = {}
    for name in os.listdir(directory):
        found = _NAME.fullmatch(name)
        if found:
            files.setdefault(found.group(1), []).append(name)
    for old in sorted(files)[: max(0, len(files) - keep)]:
        for name in files[old]:
            os.unlink(os.path.join(directory, name))


def listed(directory: str) -> tuple[str, ...]:
    """Paths of the bundles, oldest first; () without a folder that can be read."""
    try:
        names = sorted(n for n in os.listdir(directory) if _NAME.fullmatch(n) and ".json" in n)
    except OSError:
        return ()
    return tuple(os.path.join(directory, n) for n in names)


def bug_report(bundle: str, timeout_s: float) -> str:
    """Run the vendor's own script, its report beside the bundle. What came of it, in words; '' where there is no script.

    It takes tens of seconds on a healthy node, and hangs where the driver does: it is killed with its group in time.
    """
    if not os.access(BUG_REPORT, os.X_OK):
        return ""
    if timeout_s < LEAST_BUG_REPORT_S:
        return f"{BUG_REPORT} not run: no time left"
    path = f"{re.sub(r'[.]json([.]gz)?$', '', bundle)}.bug-report.log"
    began = time.monotonic()
    done = child.run((BUG_REPORT, "--output-file", path), timeout_s)
    report = next((p for p in (f"{path}.gz", path) if os.path.exists(p)), "")
    if report:
        os.chmod(report, 0o600)
    if done.problem == "timeout":
        return f"{BUG_REPORT} killed after {time.monotonic() - began:.1f} s{f', what there is: {report}' if report else ''}"
    if done.problem or done.rc != 0 or not report:
        return f"{BUG_REPORT} failed: {done.problem or f'exit status {done.rc}'}{'' if report else ', no report'}"
    return report
