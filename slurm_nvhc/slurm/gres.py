"""GPU positions: from the numbers in SLURM_JOB_GPUS to UUIDs.

Observed on 22.05 and 24.11: SLURM_JOB_GPUS holds the *position* in the
concatenated ``File=`` list of gres.conf, not the minor number; with
``File=nvidia[0-2],nvidia[4-7]`` position 3 opens /dev/nvidia4, and with
``h100: nvidia[0-2,4-7]`` followed by ``bad: nvidia3`` position 7 opens
/dev/nvidia3. So: position -> device file -> minor number -> UUID.
"""

from __future__ import annotations

import re
from typing import Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.model.job import GpuMapping
from slurm_nvhc.model.snapshot import GpuIdentity, Trouble
from slurm_nvhc.slurm import conf, hostlist

MAX_FILES: Final = 1024
POSITION: Final = "position"
MINOR: Final = "minor"
INDEX: Final = "index"

_DEVICE: Final = re.compile(r"nvidia([0-9]{1,4})$")


class GresList(NamedTuple):
    """What gres.conf says of one node's GPUs.

    files:      device paths in order, over all Name=gpu lines for the node; () when it gives no complete list
    autodetect: AutoDetect is on for the node: slurmd may add to and order the list itself
    problem:    why the list can not be relied upon; '' when it can
    parts:      some lines hand out parts of GPUs (MultipleFiles, as for MIG instances): no list of whole GPUs
    """

    files: tuple[str, ...] = ()
    autodetect: bool = False
    problem: str = ""
    parts: bool = False


def parse(text: str, node: str) -> GresList:
    """The GPU device files of ``node`` in gres.conf's text. Never raises; trouble is in ``problem``."""
    files: list[str] = []
    problems: list[str] = []
    complete, parts = True, False
    everywhere: Optional[bool] = None
    here: Optional[bool] = None
    for line in conf.lines(text):
        if conf.include(line):
            problems.append(f"Include {conf.include(line)} is not read")
            continue
        keys = conf.pairs(line)
        try:
            if "nodename" in keys and not hostlist.contains(keys["nodename"], node):
                continue
        except ValueError as exc:
            problems.append(f"NodeName: {exc}")
            continue
        if "autodetect" in keys:
            on = keys["autodetect"].lower() != "off"
            if "nodename" in keys:
                here = on
            else:
                everywhere = on
        if keys.get("name", "").lower() != "gpu":
            continue
        if "multiplefiles" in keys:
            parts, complete = True, False
        elif "file" not in keys:
            # A line with AutoDetect only switches it on; one with a count adds GPUs that no file names.
            if "count" in keys or "autodetect" not in keys:
                complete = False
                problems.append("a Name=gpu line has no File=")
        else:
            try:
                files += hostlist.expand(keys["file"], MAX_FILES)
            except ValueError as exc:
                problems.append(f"File: {exc}")
                complete = False
    if len(set(files)) != len(files):
        problems.append("a device file is listed twice")
    if len(files) > MAX_FILES:
        problems.append(f"more than {MAX_FILES} device files")
        complete = False
    autodetect = bool(everywhere if here is None else here)
    return GresList(tuple(files) if complete else (), autodetect, "; ".join(problems)[:400], parts)


def read(slurm_conf: str, node: str) -> tuple[Optional[GresList], Optional[Trouble]]:
    """gres.conf beside slurm.conf, at most 1 MiB. (None, trouble) when it can not be read. Never raises."""
    path = conf.beside(slurm_conf, "gres.conf") if slurm_conf else "gres.conf"
    if not slurm_conf:
        return None, Trouble("MON-GRES", "gres", "gres.conf: its place is not known (SLURM_CONF is not set, nor slurm.conf in the policy)")
    try:
        text = conf.read(path)
    except (OSError, ValueError) as exc:
        return None, Trouble("MON-GRES", "gres", f"{path}: {getattr(exc, 'strerror', None) or exc}")
    gres = parse(text, node)
    return gres, Trouble("MON-GRES", "gres", f"{path}: {gres.problem}") if gres.problem else None


def minor_of(path: str) -> Optional[int]:
    """The minor number in a device path (/dev/nvidia4 -> 4); None for any other name."""
    match = _DEVICE.search(path)
    return int(match.group(1)) if match else None


class _Table(NamedTuple):
    """Where each number leads. ``lost``: numbers whose GPU is not present, with its UUID or ''."""

    present: Mapping[int, str]
    lost: Mapping[int, str]
    doubts: tuple[str, ...]


def _unique(rows: Sequence[tuple[Optional[int], str]]) -> tuple[dict[int, str], set[int]]:
    """(number -> UUID, numbers that several UUIDs claim)."""
    table: dict[int, str] = {}
    twice: set[int] = set()
    for number, uuid in rows:
        if number is None:
            continue
        if table.get(number, uuid) != uuid:
            twice.add(number)
        table[number] = uuid
    for number in twice:
        del table[number]
    return table, twice


def _by_minor(gpus: Sequence[GpuIdentity], known: Sequence[GpuIdentity]) -> _Table:
    remembered = {row.uuid: row.minor for row in known}
    doubts: list[str] = []
    rows: list[tuple[Optional[int], str]] = []
    unknown = 0
    for gpu in gpus:
        minor = gpu.minor
        if minor is None:
            minor = remembered.get(gpu.uuid)  # may have changed since: a reboot numbers anew
            unknown += 1
        rows.append((minor, gpu.uuid))
    if unknown:
        doubts.append(f"{unknown} of {len(gpus)} GPUs do not tell their minor number")
    present, twice = _unique(rows)
    if twice:
        doubts.append(f"several GPUs claim minor number {min(twice)}")
    here = {gpu.uuid for gpu in gpus}
    gone, _ = _unique([(row.minor, row.uuid) for row in known if row.uuid not in here])
    lost = {minor: uuid for minor, uuid in gone.items() if minor not in present and minor not in twice}
    return _Table(present, lost, tuple(doubts))


def _by_index(gpus: Sequence[GpuIdentity], known: Sequence[GpuIdentity]) -> _Table:
    present, twice = _unique([(gpu.nvml_index, gpu.uuid) for gpu in gpus])
    doubts: list[str] = []
    if twice or len(present) < len(gpus):
        doubts.append("NVML indices are unknown or not unique")
    here = {gpu.uuid for gpu in gpus}
    if any(row.uuid not in here for row in known):
        doubts.append("a known GPU is missing, so NVML indices may have shifted")
    return _Table(present, {}, tuple(doubts))


def _by_file(gres: GresList, minors: _Table, count: int) -> _Table:
    present: dict[int, str] = {}
    lost: dict[int, str] = {}
    doubts = list(minors.doubts)
    numbers = [minor_of(path) for path in gres.files]
    for position, (path, minor) in enumerate(zip(gres.files, numbers)):
        if minor is None:
            doubts.append(f"{path[:80]} has no minor number in its name")
        elif minor in minors.present:
            present[position] = minors.present[minor]
        elif not minors.doubts:
            lost[position] = minors.lost.get(minor, "")
        elif minor in minors.lost:
            lost[position] = minors.lost[minor]
    if gres.problem:
        doubts.append(f"gres.conf: {gres.problem}")
    ascending = [n for n in numbers if n is not None] == sorted({n for n in numbers if n is not None})
    if gres.autodetect and not ascending:
        # The order that AutoDetect makes of such a list was not observed; for an ascending one it can not differ.
        doubts.append("AutoDetect may order the File list anew")
    if gres.autodetect and len(gres.files) < count:
        doubts.append("AutoDetect may add GPUs that the File list does not name")
    return _Table(present, lost, tuple(doubts))


def _assumed(gres: Optional[GresList], gpus: Sequence[GpuIdentity], minors: _Table) -> _Table:
    without = "gres.conf hands out parts of GPUs" if gres is not None and gres.parts else "gres.conf has no File list"
    why = "gres.conf could not be read" if gres is None else gres.problem or without
    if minors.present or minors.lost:
        order = sorted({**minors.lost, **minors.present}.items())
        rows = [uuid for _minor, uuid in order]
        doubts = (f"{why}: assumed ascending minor numbers",)
    else:
        rows = [gpu.uuid for gpu in sorted(gpus, key=lambda g: (g.nvml_index is None, g.nvml_index or 0, g.pci))]
        doubts = (f"{why} and no minor numbers: assumed the order of NVML indices",)
    here = {gpu.uuid for gpu in gpus}
    table = dict(enumerate(rows))
    return _Table(
        {n: u for n, u in table.items() if u in here}, {n: u for n, u in table.items() if u not in here}, (*doubts, *minors.doubts)
    )


def _counts_instances(gres: Optional[GresList], gpus: Sequence[GpuIdentity], known: Sequence[GpuIdentity]) -> bool:
    """Do positions count MIG instances? Only a File list that AutoDetect does not touch says that they count whole GPUs.

    A parent that is gone counts: its loss does not turn the others' positions into those of whole GPUs.
    """
    here = {gpu.uuid for gpu in gpus}
    any_mig = any(gpu.mig for gpu in gpus) or any(row.mig and row.uuid not in here for row in known)
    return any_mig and (gres is None or gres.autodetect or not gres.files)


def _instances(asked: Sequence[int], gres: Optional[GresList], gpus: Sequence[GpuIdentity]) -> GpuMapping:
    """A node with MIG GPUs: any parent may have the job's instances, and is judged for them.

    No position leads to a GPU here, so nothing is said about positions, and nothing is narrowed.
    """
    parents = tuple(gpu.uuid for gpu in gpus if gpu.mig)
    if gres is None:
        what = "could not be read"
    elif gres.parts:
        what = "hands out parts of GPUs"
    else:
        what = "leaves the list to AutoDetect" if gres.autodetect else gres.problem or "has no File list"
    why = f"gres.conf {what}, and {len(parents)} of {len(gpus)} GPUs are in MIG mode: assumed that any of them has the job's instances"
    return GpuMapping(parents if asked else (), {}, False, (), why)


def resolve(
    job_positions: Optional[Sequence[int]],
    gres: Optional[GresList],
    gpus: Sequence[GpuIdentity],
    known: Sequence[GpuIdentity],
    numbers: str = POSITION,
) -> GpuMapping:
    """Which GPUs the numbers mean.

    gpus:    the GPUs that are present; known: those seen earlier, which give a
             missing GPU its name.
    numbers: what SLURM_JOB_GPUS holds: "position" (Slurm's own meaning),
             "minor" or "index" (NVML) where a site's Slurm is known to differ.

    Not exact, and then never used to narrow: without a File list, when a minor
    number is unknown or claimed twice, when a position lies outside the list, or
    when the job has a GPU in MIG mode (CUDA_VISIBLE_DEVICES then names instances).
    """
    asked = tuple(job_positions or ())
    minors = _by_minor(gpus, known)
    if numbers == MINOR:
        table, rests_on = minors, "numbers are minor numbers (policy)"
    elif numbers == INDEX:
        table, rests_on = _by_index(gpus, known), "numbers are NVML indices (policy)"
    elif _counts_instances(gres, gpus, known):
        return _instances(asked, gres, gpus)
    elif gres is not None and gres.files:
        table, rests_on = _by_file(gres, minors, len(gpus)), f"File list of {len(gres.files)} in gres.conf"
    else:
        table, rests_on = _assumed(gres, gpus, minors), ""
    doubts = list(table.doubts)
    missing: list[int] = []
    for number in asked:
        if number in table.present:
            continue
        outside = numbers == POSITION and gres is not None and gres.files and number >= len(gres.files)
        if number in table.lost or (numbers == MINOR and not doubts):
            missing.append(number)
        elif outside:
            doubts.append(f"position {number} is outside gres.conf's File list")
        else:
            doubts.append(f"number {number} leads to no GPU")
    uuids = tuple(table.present[n] for n in asked if n in table.present)
    if any(gpu.mig and gpu.uuid in uuids for gpu in gpus):
        doubts.append("a GPU of the job is in MIG mode")
    return GpuMapping(
        uuids=uuids,
        by_position={**{n: u for n, u in table.lost.items() if u}, **table.present},
        exact=not doubts,
        missing=tuple(missing),
        why="; ".join(dict.fromkeys([*doubts] or [rests_on])),
    )
