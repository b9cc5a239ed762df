"""Where the processor's time goes: seconds by folder and the dearest tests, of the tests and of what they start.

    .venv/bin/python -m pytest -p tests.support.processor -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

Wall time depends on what else a machine does, this hardly. The PostgreSQL server is nobody's child: it is not counted.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

import psutil
import pytest

_NAME = "processor seconds"
_DEAREST = 60
_begun = pytest.StashKey[float]()
_spent: dict[str, float] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_begun] = _others() + _own()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        own = _own()
        # What a server leaves to init when it ends (Chromium does) is in nobody's account any more.
        item.user_properties.append((_NAME, max(0.0, own + _others() - item.stash[_begun])))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _NAME and isinstance(value, float):
            _spent[report.nodeid] = value


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    folders: dict[str, float] = defaultdict(float)
    for test, seconds in _spent.items():
        folders[_folder(test)] += seconds
    terminalreporter.section("processor seconds")
    for folder, seconds in sorted(folders.items(), key=lambda each: -each[1]):
        terminalreporter.line(f"{seconds:8.1f}  {folder}")
    terminalreporter.line(f"{sum(folders.values()):8.1f}  all")
    for test, seconds in sorted(_spent.items(), key=lambda each: -each[1])[:_DEAREST]:
        terminalreporter.line(f"{seconds:8.1f}  {test}")


def _folder(test: str) -> str:
    """Return the folder a test counts for: a package of `backend`, or a folder of `tests`."""
    parts = test.partition("::")[0].split("/")[:-1]
    return "/".join(parts[:3]) if parts[:2] == ["tests", "backend"] else "/".join(parts[:2])


def _own() -> float:
    """Return this process's time, and that of its children which have ended."""
    return sum(os.times()[:4])


def _others() -> float:
    """Return the time of the children that run, and of theirs."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it has just ended: it is in its parent's time now, or soon
        total += times.user + times.system + times.children_user + times.children_system
    return total
