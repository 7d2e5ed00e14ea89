"""Stand-in for NVIDIA's module of this name: the connection."""

from __future__ import annotations

import dcgm_structs
import stub_engine


class DcgmHandle:
    def __init__(
        self,
        handle=None,
        ipAddress=None,
        opMode=dcgm_structs.DCGM_OPERATION_MODE_AUTO,
        persistAfterDisconnect=False,
        unixSocketPath=None,
        timeoutMs=0,
    ):
        if ipAddress is not None and unixSocketPath is not None:
            raise dcgm_structs.DCGMError(-1)
        if ipAddress is None and unixSocketPath is None:
            raise dcgm_structs.DCGMError(-3)  # nothing here can be embedded
        stub_engine.connect(ipAddress, unixSocketPath, persistAfterDisconnect)
        self.handle = 1

    def __del__(self):
        if hasattr(self, "handle"):
            stub_engine.count("disconnect", 1)
