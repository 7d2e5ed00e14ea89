"""Does PrologFlags have Alloc, as slurm.conf and what it includes say? What can not be told is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from slurm_nvhc.slurm.conf import prolog_alloc


@pytest.mark.parametrize(
    ("text", "alloc"),
    [
        ("ClusterName=x\n", False),
        ("PrologFlags=Alloc\n", True),
        ("prologflags = Serial,ALLOC\n", True),
        ("PrologFlags=Contain\n", True),
        ("PrologFlags=X11\n", True),
        ("PrologFlags=Serial,NoHold\n", False),
        ("#PrologFlags=Alloc\n", False),
        ("PrologFlags=Alloc\nPrologFlags=Serial\n", False),
        ("PrologFlags=Serial\nPrologFlags=Alloc\n", True),
        ("Include more.conf\n", True),
        ('Include "more.conf"\n', True),
        ("Include more.conf\nPrologFlags=Serial\n", False),
        ("PrologFlags=Serial\nInclude more.conf\n", True),
        ("Include missing.conf\n", None),
        ("Include missing.conf\nPrologFlags=Alloc\n", True),
        ("Include loop.conf\n", None),
    ],
)
def test_from_files(tmp_path: Path, text: str, alloc: Optional[bool]) -> None:
    (tmp_path / "slurm.conf").write_text(text)
    (tmp_path / "more.conf").write_text("PrologFlags=Alloc\n")
    (tmp_path / "loop.conf").write_text("Include loop.conf\n")
    assert prolog_alloc(str(tmp_path / "slurm.conf")) is alloc


def test_no_file_is_not_known(tmp_path: Path) -> None:
    assert prolog_alloc(str(tmp_path / "none.conf")) is None
