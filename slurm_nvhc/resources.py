"""Where packaged files are: the default policy, templates, launchers."""

from __future__ import annotations

import os
from typing import Final

from slurm_nvhc.errors import InputError

_PACKAGE: Final = os.path.dirname(os.path.abspath(__file__))
# A wheel carries the files inside the package; a source tree (editable install) has them beside it.
_ROOTS: Final = (os.path.join(_PACKAGE, "data"), os.path.dirname(_PACKAGE))


def find(relative: str) -> str:
    """Absolute path of a packaged file such as "etc/policy.yaml". InputError when it is not there."""
    for root in _ROOTS:
        path = os.path.join(root, relative)
        if os.path.isfile(path):
            return path
    raise InputError(relative, "", "is missing from the installation", "reinstall slurm-nvhc")
