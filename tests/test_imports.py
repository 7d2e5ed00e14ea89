"""Who may import whom (docs/architecture.md), and what a hook's path may import at all."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "slurm_nvhc"

ROOMS = {"sense", "compare", "judge", "act", "record"}
BASE = {"model", "catalog", "policy", "slurm", "proc", "errors", "resources", "strict_yaml", "yaml_errors"}
TOP = {
    "aftermath", "book", "cli", "context", "diagnose", "doctor", "ground", "hold", "hooks", "isolate", "observation", "pipeline",
    "run_text", "scenario", "screen", "simulate", "since_drain", "sweep",
}  # fmt: skip
PURE = {"compare", "judge"}

# What a hook's healthy path must not load: each of these costs more than the hook itself, or is not light by nature.
HEAVY = {
    "argparse", "asyncio", "dataclasses", "email", "http", "importlib.metadata", "inspect", "jinja2", "logging", "msgspec",
    "multiprocessing", "pathlib", "rich", "shutil", "socket", "subprocess", "tempfile", "unittest", "urllib", "yaml",
}  # fmt: skip
# Side effects enter through sense/, act/ and record/: pure rooms touch no clock, environment, file or process.
IMPURE = {"os", "time", "subprocess", "socket", "sqlite3", "signal", "fcntl", "random", "io", "select", "syslog", "threading"}
HOOK_PATH = ["slurm_nvhc.hooks.__main__", "slurm_nvhc.pipeline", "slurm_nvhc.hooks.slurmd", "slurm_nvhc.sense.reader.__main__"]


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "data" not in path.relative_to(PACKAGE).parts[:1]:
            yield ".".join(("slurm_nvhc", *path.relative_to(PACKAGE).with_suffix("").parts)), path


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports anywhere in it, function bodies included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they lead"
            module = node.module or ""
            # `from slurm_nvhc import judge` imports the room, not only the package.
            found.update({f"{module}.{alias.name}" for alias in node.names} if module == "slurm_nvhc" else {module})
    return found


def part(module: str) -> str:
    """slurm_nvhc.judge.rules -> judge; '' for what is not ours or the package itself."""
    words = module.split(".")
    return words[1] if words[0] == "slurm_nvhc" and len(words) > 1 else ""


def may_import(importer: str, imported: str) -> bool:
    if importer == imported:
        return True
    if importer in BASE:
        return imported in BASE
    if importer in ROOMS:
        return imported in BASE
    return importer in TOP


def broken_rules() -> list[str]:
    out = []
    for module, path in modules():
        own = part(module)
        for imported in imports(path):
            other = part(imported)
            if own in ("", "__init__") and other:
                out.append(f"{module} imports {imported}: the package itself imports nothing of ours")
            elif other and not may_import(own, other):
                out.append(f"{module} imports {imported}: {own} may not import {other}")
    return out


def test_every_part_has_a_place() -> None:
    """A new top-level module or package must be put into one of the sets above, and so into the architecture."""
    parts = {part(module) for module, _path in modules()} - {"", "__init__"}
    assert parts <= ROOMS | BASE | TOP


def test_directions() -> None:
    assert broken_rules() == []


def test_pure_rooms_touch_nothing() -> None:
    bad = [
        f"{module} imports {imported}"
        for module, path in modules()
        if part(module) in PURE
        for imported in imports(path)
        if imported.partition(".")[0] in IMPURE | HEAVY
    ]
    assert bad == []


def test_the_rules_catch_what_they_are_for() -> None:
    assert not may_import("judge", "record")
    assert not may_import("compare", "sense")
    assert not may_import("model", "judge")
    assert not may_import("sense", "pipeline")
    assert may_import("pipeline", "judge")
    assert may_import("act", "slurm")


def loaded_by(module: str) -> set[str]:
    """What a fresh interpreter has loaded after importing ``module`` the way the launchers start it (-I)."""
    script = f"import sys; base = set(sys.modules); import {module}; print('\\n'.join(set(sys.modules) - base))"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def heavy(loaded: set[str]) -> set[str]:
    """The heavy modules among loaded ones, submodules included."""
    return {name for name in loaded if any(name == h or name.startswith(h + ".") for h in HEAVY)}


@pytest.mark.parametrize("module", HOOK_PATH)
def test_hook_path_is_light(module: str) -> None:
    assert heavy(loaded_by(module)) == set()


def test_light_import_check_sees_heavy_ones() -> None:
    assert "shutil" in heavy(loaded_by("slurm_nvhc.hooks.install"))
