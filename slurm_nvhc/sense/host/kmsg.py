"""/dev/kmsg: every record that the kernel still has, with its sequence number and time.

Each read gives one record: ``priority,sequence,microseconds,flags;text``, followed by
lines that begin with a space (KEY=value of the device). A record that was written in
pieces comes as several, flagged ``c`` for a piece that more follow and ``+`` for one that
continues; they are joined, since an Xid line may be broken that way. EPIPE says that
records were overwritten before they were read: the next read goes on with the oldest left.
"""

from __future__ import annotations

import errno
import os
from typing import Callable, Final

from slurm_nvhc.sense.kernel_log import Line
from slurm_nvhc.sense.reader.backend import Clock, PartFailed

# The kernel's largest record with its device lines is 8 KiB; a smaller buffer gives EINVAL.
RECORD: Final = 16 * 1024
# A log buffer is 64 KiB to 16 MiB of records; a log that grows as fast as it is read must end too.
MAX_RECORDS: Final = 500_000
_MAX_GAPS: Final = 1000


def read(clock: Clock, root: str = "/") -> list[Line]:
    """The records of this boot, oldest first; text without its device lines.

    Raises PartFailed(MON-KERNEL-LOG) when the log can not be opened or read: CAP_SYSLOG is
    needed where kernel.dmesg_restrict is 1.
    """
    path = os.path.join(root, "dev/kmsg")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            raw = drain(lambda: os.read(fd, RECORD))
        finally:
            os.close(fd)
    except OSError as exc:
        raise PartFailed("MON-KERNEL-LOG", "kernel_log", f"/dev/kmsg: {exc.strerror}") from exc
    return parse(raw, clock)


def drain(read_one: Callable[[], bytes]) -> bytes:
    """All that is there now. Raises OSError for what is neither an end nor a gap."""
    parts: list[bytes] = []
    gaps = 0
    while len(parts) < MAX_RECORDS:
        try:
            data = read_one()
        except BlockingIOError:
            break
        except OSError as exc:
            if exc.errno != errno.EPIPE or gaps >= _MAX_GAPS:
                raise
            gaps += 1
            continue
        if not data:
            break
        parts.append(data)
    return b"".join(parts)


def parse(raw: bytes, clock: Clock) -> list[Line]:
    """Records to lines. What is no record is passed over.

    A record's microseconds are of the monotonic clock, which stops in a suspend; compute
    nodes do not suspend, so the boot-time clock's offset turns them into wall time.
    """
    booted_ns = clock.wall_ns - clock.boot_ns
    out: list[Line] = []
    unfinished = False
    for row in raw.decode("utf-8", "replace").split("\n"):
        head, semicolon, text = row.partition(";")
        if row.startswith(" ") or not semicolon:
            continue
        fields = head.split(",")
        if len(fields) < 3 or not all(f.isascii() and f.isdigit() and len(f) < 20 for f in fields[1:3]):
            continue
        flag = fields[3] if len(fields) > 3 else "-"
        if out and (flag == "+" or (flag == "c" and unfinished)):
            out[-1] = out[-1]._replace(text=out[-1].text + text)
        else:
            out.append(Line(int(fields[1]), booted_ns + int(fields[2]) * 1000, text))
        unfinished = flag in ("c", "+")
    return out
