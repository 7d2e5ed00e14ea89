"""How much a counter grew in how much time, under which versions."""

from __future__ import annotations

from typing import NamedTuple


class Versions(NamedTuple):
    """What a counter's growth may depend on; '' where the node does not say.

    model: NVML's name of the GPU that the counter is on; of a part that is no GPU's, its kind (switch_port, rdma …).
    """

    model: str = ""
    driver: str = ""
    vbios: str = ""
    fabric_manager: str = ""


class Tally(NamedTuple):
    """amount: growth in the field's unit. hours: of one GPU, link or port each: 144 links in one hour are 144."""

    versions: Versions
    field: str
    amount: float
    hours: float
