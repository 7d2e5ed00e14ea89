"""NVIDIA's Python bindings: where they are, and getting them into this process.

They are no package of PyPI: DCGM installs them as a folder of modules that import each
other by bare name, and that load ``libdcgm.so`` of their own major version.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any, Final, NamedTuple, Sequence

from slurm_nvhc.sense.reader.backend import PartFailed

# Newest first. 4.x: package datacenter-gpu-manager-4-core; 3.x and older: datacenter-gpu-manager.
INSTALL_PATHS: Final = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",
    "/usr/local/dcgm/bindings/python3",
)
# pydcgm brings the connection, whose parameters changed with 4.5.2; the rest is called directly.
MODULES: Final = ("dcgm_structs", "dcgm_fields", "dcgm_agent", "pydcgm")


class Bindings(NamedTuple):
    """The modules in use and the folder they came from."""

    agent: Any
    structs: Any
    fields: Any
    pydcgm: Any
    folder: str


def load(folders: Sequence[str]) -> Bindings:
    """The first of some folders (the policy's, else the install paths) whose bindings and library load.

    Raises PartFailed(MON-ENGINE-ABSENT) that names every place looked at and what was wrong there.
    """
    said: list[str] = []
    for folder in folders or INSTALL_PATHS:
        if not os.path.isfile(os.path.join(folder, "dcgm_agent.py")):
            said.append(f"{folder}: not there")
            continue
        try:
            return _load(folder)
        except Exception as exc:  # SyntaxError (bindings of Python 2), ImportError, OSError (no libdcgm), DCGMError
            said.append(f"{folder}: {_words(exc)}")
            _forget(folder)
    hint = "" if folders else " (package datacenter-gpu-manager-4-core, or policy: engine.bindings)"
    raise PartFailed("MON-ENGINE-ABSENT", "engine", f"no usable DCGM bindings{hint}: {'; '.join(said)}")


def _load(folder: str) -> Bindings:
    sys.path.insert(0, folder)
    _stand_in_for_logger(folder)
    structs, fields, agent, pydcgm = (importlib.import_module(name) for name in MODULES)
    structs._dcgmInit()  # loads libdcgm: here, so that another folder can be tried without it
    return Bindings(agent, structs, fields, pydcgm, folder)


def _stand_in_for_logger(folder: str) -> None:
    """4.0 to 4.5.0 import a module ``logger`` that their package does not contain (NVIDIA/DCGM issue 262)."""
    if "logger" in sys.modules or os.path.exists(os.path.join(folder, "logger.py")):
        return
    module = types.ModuleType("logger")
    for name in ("debug", "info", "warning", "error"):
        setattr(module, name, lambda *args, **kwargs: None)
    sys.modules["logger"] = module


def _forget(folder: str) -> None:
    """Undo a load that failed: the next folder's modules have the same names."""
    while folder in sys.path:
        sys.path.remove(folder)
    prefix = os.path.join(folder, "")
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(prefix):
            del sys.modules[name]
    sys.modules.pop("logger", None)


def _words(exc: Exception) -> str:
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:160]
