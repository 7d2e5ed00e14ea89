"""Tests in this directory run on a private real Slurm. They are skipped where none can be started; with CI=true that is a failure."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Iterator

import machine
import pytest
from harness import can_constrain_devices

Starter = Callable[[Any], Any]

HERE = os.path.dirname(os.path.abspath(__file__))
WHY_NOT = machine.why_not()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "without_slurm: a test of the harness itself that needs no Slurm")
    config.addinivalue_line("markers", "constrain: needs ConstrainDevices; skipped, in CI too, where the machine has no cgroup v1 for it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Their control groups are named after the node, which has the same name in every cluster.
    for item in items:
        if item.get_closest_marker("constrain"):
            item.add_marker(pytest.mark.xdist_group("constrain"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Asked by folder: a conftest's hook is called for every test of the session.
    if not str(item.path).startswith(HERE):
        return
    if WHY_NOT and not item.get_closest_marker("without_slurm"):
        if os.environ.get("CI") == "true":
            pytest.fail(f"a Slurm test can not run in CI: {WHY_NOT}", pytrace=False)
        pytest.skip(WHY_NOT)
    if item.get_closest_marker("constrain") and can_constrain_devices():
        pytest.skip(can_constrain_devices())


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start a Cluster or a Site for this test: ``site = start(Site(nodes=4))``. All are ended with the test."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context
