"""What hooks must be able to read and write, and what nobody but root may."""

from __future__ import annotations

import stat
from typing import Final

from slurm_nvhc.doctor.facts import AS_ROOT, Facts, Line, PathFact, fail, ok, unknown, warn
from slurm_nvhc.doctor.words import some

MEMORY: Final = frozenset({"tmpfs", "ramfs"})
# SQLite's locks are not to be relied upon there, and a server that hangs hangs every hook.
NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "afs"}
    | {"pvfs2", "wekafs", "fuse.juicefs", "9p"}
)
LAYERED: Final = frozenset({"overlay", "aufs", "rootfs"})  # a diskless node's root is often one over memory


def lines(facts: Facts) -> list[Line]:
    return [_kernel_log(facts), *_state(facts), _run(facts), *_trusted(facts)]


def _kernel_log(facts: Facts) -> Line:
    if facts.snapshot.events_known:
        return ok("permissions.kernel_log", "readable: Xids are seen")
    said = next((t.detail for t in facts.snapshot.troubles if t.part == "kernel_log"), "it was not read")
    if not facts.host.root:
        return unknown("permissions.kernel_log", said, AS_ROOT)
    return fail("permissions.kernel_log", said, "give slurmd's user CAP_SYSLOG (kernel.dmesg_restrict), or let the container see /dev/kmsg")


def _state(facts: Facts) -> list[Line]:
    return [_state_directory(facts), _state_filesystem(facts.host.state.path.path, facts.host.state.filesystem)]


def _state_directory(facts: Facts) -> Line:
    check, place = "permissions.state", facts.host.state.path
    if place.problem:
        return unknown(check, f"{place.path}: {place.problem}", AS_ROOT)
    if not place.there:
        found = f"{place.path} does not exist: no hook has run here"
        return ok(check, found) if facts.no_gpus else warn(check, found, "run `nvhc hooks install`")
    if not stat.S_ISDIR(place.mode):
        return fail(check, f"{place.path} is not a directory", "move it away, then `nvhc hooks install`")
    found = f"{place.path}: owner uid {place.uid}, mode {place.permissions}"
    if place.uid != 0 or stat.S_IMODE(place.mode) & 0o077:
        return fail(check, found, f"chown root {place.path} && chmod 0700 {place.path}")
    return ok(check, found)


def _state_filesystem(path: str, kind: str) -> Line:
    check = "permissions.state_filesystem"
    if kind in MEMORY:
        advice = "use a directory on a disk (nvhc hooks install --state), or accept it"
        return warn(check, f"{path} is in memory ({kind}): exclusions, own drains and baselines do not survive a reboot", advice)
    if kind in NETWORK:
        advice = "use a directory on a local disk: nvhc hooks install --state"
        return warn(check, f"{path} is on {kind}: the server's trouble becomes every hook's, and locks are not safe", advice)
    if not kind or kind in LAYERED:
        what = f"on {kind}: what lies below it may be memory" if kind else "on an unknown file system"
        return unknown(check, f"{path} is {what}", "make sure that it survives a reboot")
    return ok(check, f"{path} is on {kind}")


def _run(facts: Facts) -> Line:
    check, place, kind = "permissions.run", facts.host.run.path, facts.host.run.filesystem
    if place.problem:
        return unknown(check, f"{place.path}: {place.problem}", AS_ROOT)
    where = f"{place.path} is on {kind or 'an unknown file system'}"
    if kind in NETWORK:
        return warn(check, f"{where}, shared and slow", "use a directory below /run: nvhc hooks install --run")
    if place.there and not stat.S_ISDIR(place.mode):
        return fail(check, f"{place.path} is not a directory", "remove it: hooks make it anew")
    if place.there and (place.uid != 0 or place.mode & 0o022):
        found = f"{place.path}: owner uid {place.uid}, mode {place.permissions}: others decide which GPUs a job sees"
        return fail(check, found, f"chown root {place.path} && chmod 0755 {place.path}")
    if place.there and place.mode & 0o005 != 0o005:
        return warn(check, f"{place.path} has mode {place.permissions}: task prologs can not read it", f"chmod 0755 {place.path}")
    if kind not in MEMORY:
        return warn(check, f"{where}: files of jobs from before a reboot stay", "use a directory below /run: nvhc hooks install --run")
    return ok(check, f"{where}, mode {place.permissions}" if place.there else f"{where}; a hook's launcher makes it")


def _trusted(facts: Facts) -> list[Line]:
    """Root runs or obeys these: whoever can change one of them, or put another in its place, is root."""
    out = []
    for trust in facts.host.trusted:
        check = f"permissions.{trust.what}"
        last = trust.chain[-1]
        unclear = [p for p in trust.chain if p.problem]
        open_to = [f"{p.path} {bad}" for p in trust.chain if (bad := untrusted(p))]
        if open_to:
            advice = f"whoever can change {last.path} is root on this node: chown root, chmod go-w"
            out.append(fail(check, some(open_to), advice))
        elif unclear:
            out.append(unknown(check, f"{unclear[0].path}: {unclear[0].problem}", AS_ROOT))
        elif last.there:
            out.append(ok(check, f"{last.path}: only root can change it"))
    return out


def untrusted(place: PathFact) -> str:
    """What lets others than root change it, '' when nothing does."""
    if not place.there:
        return ""
    if place.uid != 0:
        return f"belongs to uid {place.uid}"
    if stat.S_ISLNK(place.mode):
        return ""
    sticky = stat.S_ISDIR(place.mode) and place.mode & stat.S_ISVTX  # others' entries are safe there
    if place.mode & 0o022 and not sticky:
        return f"can be written by others (mode {place.permissions})"
    return ""
