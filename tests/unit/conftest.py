"""Check that the unit tests need no torch, so that they start in seconds."""

import sys
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Raise if a module of the unit tests imports torch, which another test module may have done before."""
    before = "torch" in sys.modules
    report = yield
    if "torch" in sys.modules and not before:
        raise pytest.UsageError(f"{collector.nodeid} imports torch. Tests that need torch belong in tests/verl.")
    return report
