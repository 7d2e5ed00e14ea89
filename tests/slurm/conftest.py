"""Tests in this directory run on a private real Slurm. They are skipped where none can be started; with CI=true that is a failure."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Iterator

import machine
import pytest

Starter = Callable[[Any], Any]

HERE = os.path.dirname(os.path.abspath(__file__))
WHY_NOT = machine.why_not()


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Asked by folder: a conftest's hook is called for every test of the session.
    if not WHY_NOT or not str(item.path).startswith(HERE) or item.get_closest_marker("without_slurm"):
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"a Slurm test can not run in CI: {WHY_NOT}", pytrace=False)
    pytest.skip(WHY_NOT)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):  # type: ignore[no-untyped-def]
    """In CI a Slurm test that skips for any other reason fails as well."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") == "true" and str(item.path).startswith(HERE):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {call.excinfo.value if call.excinfo else ''}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "without_slurm: a test of the harness itself that needs no Slurm")


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start a Cluster or a Site for this test: ``site = start(Site(nodes=4))``. All are ended with the test."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context
