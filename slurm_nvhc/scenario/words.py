"""Words that all sections of a scenario file use.

Units: durations are text such as ``41m`` or ``1h30m``, or seconds as a number. GPUs
are named g0, g1, … in NVML order of the node as it was at the start; a name stays
with its slot when a card is swapped.
"""

from __future__ import annotations

from typing import Annotated, Any, Dict, Optional, Union

from msgspec import Meta, Struct

Duration = Annotated[
    Union[str, int, float],
    Meta(description="A duration such as 90s, 41m, 1h30m or 10d; a bare number is seconds.", examples=["41m", "1h30m", 90]),
]
Moment = Annotated[
    Union[str, int, float],
    Meta(description="A moment relative to now: -2h is two hours ago, 0 is now.", examples=["-2h", "-90s", 0]),
]
Gpu = Annotated[str, Meta(description="A GPU: g0, g1, … in NVML order of the node as it was at the start.", examples=["g3"])]
Link = Annotated[
    str, Meta(description="One NVLink of one GPU, g3.link11, or one port of a switch, switch0.port5.", examples=["g3.link11"])
]
Value = Annotated[
    Union[int, float, str],
    Meta(
        description="A number, a state word (up, down, …), or a kind of no data:"
        " blank, not_found, not_supported, not_permitted, stale, error.",
        examples=[57, "down", "blank"],
    ),
]
Readings = Annotated[
    Dict[str, Value],
    Meta(
        description="Target to value. A target is gN.FIELD, gN.linkM.FIELD, *.FIELD or gN.link*.FIELD;"
        " FIELD is a catalogue name or a DCGM field id. On links the prefix nvlink_ may be left out."
        " Parts of the node are switchN.FIELD, switchN.portM.FIELD, rdmaN.portM.FIELD and node.FIELD.",
        examples=[{"g3.429": 12, "g3.link11.replay": 12, "*.395": "blank", "switch0.port5.fatal": 1, "rdma0.port1.state": "down"}],
    ),
]
Amounts = Annotated[
    Dict[str, Union[int, float]],
    Meta(
        description="Target to what is added. Adding to a link counter also adds to its GPU's total.",
        examples=[{"g3.link11.replay": 20}],
    ),
]
JobId = Annotated[Union[int, str], Meta(description="Slurm's job id.", examples=[8812])]
PolicyText = Annotated[
    Union[Dict[str, Any], str],
    Meta(description="What the administrator wrote in policy.yaml: as a mapping, or as its raw text, which may be broken."),
]
Environment = Annotated[
    Dict[str, Optional[str]],
    Meta(description="Variables added to what Slurm gives; null takes one away."),
]


class Strict(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are errors everywhere: a misspelt key must never be read as "not asked"."""
