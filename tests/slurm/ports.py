"""Ports for a private cluster."""

from __future__ import annotations

import random
import socket

PORTS_PER_CLUSTER = 20


def reserve() -> tuple[int, socket.socket]:
    """The first of PORTS_PER_CLUSTER ports that are free now and locked against other harnesses.

    Below the ephemeral range, so that no client connection takes one in between. The lock is an
    abstract socket: it vanishes with its process, however that ends.
    """
    bases = list(range(20000, 30000, PORTS_PER_CLUSTER))
    random.shuffle(bases)
    for base in bases:
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0nvhc-test-ports-{base}")
        except OSError:
            lock.close()
            continue
        if all(_free(base + i) for i in range(PORTS_PER_CLUSTER)):
            return base, lock
        lock.close()
    raise OSError("no free ports between 20000 and 30000")


def _free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
