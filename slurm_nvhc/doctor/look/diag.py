"""What nv-hostengine runs as a diagnostic: its program, and plugins for CUDA, as its packages install them."""

from __future__ import annotations

import os
from typing import Final

from slurm_nvhc.doctor.facts import DiagFacts
from slurm_nvhc.doctor.look.edges import Edges, within

# DCGM 4.x, 3.x (of its engine's source)
PLACES: Final = ("/usr/libexec/datacenter-gpu-manager-4/nvvs", "/usr/share/nvidia-validation-suite/nvvs")
FILES_S: Final = 5.0


def look(edges: Edges) -> DiagFacts:
    return within(FILES_S, lambda: _look(edges), DiagFacts(looked_at=(), cuda=None))


def _look(edges: Edges) -> DiagFacts:
    nvvs = next((path for path in PLACES if os.path.isfile(edges.at(path))), "")
    if not nvvs:
        return DiagFacts("", PLACES)
    try:
        names = sorted(os.listdir(edges.at(os.path.join(os.path.dirname(nvvs), "plugins"))))
    except OSError:
        return DiagFacts(nvvs, PLACES)
    # "cudaless" is what needs none
    return DiagFacts(nvvs, PLACES, tuple(name for name in names if name.startswith("cuda") and name[4:].isdigit()))
