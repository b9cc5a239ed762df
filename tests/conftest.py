"""Fixtures, marks and settings shared by all tests.

Fixtures stand in tests/support, by theme, and are made known here; those of one file only stand in that file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.support.databases import databases, empty_url, kind, migrated, postgresql, store, url
from tests.support.end_to_end import (
    blind_service,
    browser,
    context,
    label_studio,
    make_project,
    page,
    showing_service,
    start_service,
)
from tests.support.laws import obeys
from tests.support.memory import memory_directory
from tests.support.paths import ROOT
from tests.support.recipes import known
from tests.support.service import app, empty_app, idle_app, make_app, populated_app, service, settings
from tests.support.taggers import sample, served_model, tiny, tiny_model
from tests.support.workers import loader, make_worker

__all__ = [
    "app",
    "blind_service",
    "browser",
    "context",
    "databases",
    "empty_app",
    "empty_url",
    "idle_app",
    "kind",
    "known",
    "label_studio",
    "loader",
    "make_app",
    "make_project",
    "make_worker",
    "migrated",
    "obeys",
    "page",
    "populated_app",
    "postgresql",
    "sample",
    "served_model",
    "service",
    "settings",
    "showing_service",
    "start_service",
    "store",
    "tiny",
    "tiny_model",
    "url",
]

# Several processes run the tests: each of them, and what it starts, computes with one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SURESPAN_LEARN", "off")  # trainings take seconds; tests that want them say so

# Where `tmp_path` lies, unless somebody has said so.
if (_memory := memory_directory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_memory))

# Numba looks only at the file a kernel stands in, not at those it calls: after an edit, the callers' compiled code
# would stay. Nobody edits an installed package, so this concerns the tests of a working copy only.
_KERNELS = ROOT / "conformal" / "trellis" / "kernels"
_NEWEST = max(path.stat().st_mtime for path in _KERNELS.glob("*.py"))
for _index in (_KERNELS / "__pycache__").glob("*.nbi"):
    if _index.stat().st_mtime < _NEWEST:
        _index.unlink(missing_ok=True)

# Quick where somebody waits; `make soak` is thorough. Never a deadline, nor a complaint of slowness: machines are busy.
_PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", max_examples=50, **_PATIENT)
hypothesis.settings.register_profile("thorough", max_examples=300, print_blob=True, **_PATIENT)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

_END_TO_END = "tests/e2e/"
# Files of half a minute and more, longest first. They come first too: a long one that is begun last keeps one process
# busy while the others have nothing left to do.
_LONGEST = (
    "tests/backend/store/test_crashes.py",
    "tests/test_wheel.py",
    "tests/backend/store/test_upgrade_with_data.py",
    "tests/backend/monitoring/test_monitor.py",
    "tests/backend/test_trouble.py",
    "tests/statistical/test_real_coverage.py",
    "tests/backend/worker/test_replay.py",
    "tests/statistical/test_class_law.py",
    "tests/backend/preannotate/test_engines.py",
    "tests/backend/worker/test_worker.py",
    "tests/statistical/test_honesty.py",
    "tests/backend/tagger/encoder/test_training.py",
    "tests/backend/worker/test_replicas_loop.py",
)
_FOLDERS = {_END_TO_END: pytest.mark.e2e, "tests/statistical/": pytest.mark.statistical}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what can be told from a test's folder and fixtures, and begin with the end-to-end tests.

    These take longest, and mostly wait. The longest files follow.
    """
    places = {_END_TO_END: 0} | {file: place for place, file in enumerate(_LONGEST, start=1)}
    for item in items:
        for folder, mark in _FOLDERS.items():
            if item.nodeid.startswith(folder):
                item.add_marker(mark)
        if _needs_postgresql(item):
            item.add_marker(pytest.mark.postgresql)
    items.sort(key=lambda item: places.get(_scope(item.nodeid), len(places)))


def _needs_postgresql(item: pytest.Item) -> bool:
    """Say whether a test takes the server itself, or is the one of two that runs on it."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "postgresql" in getattr(item, "fixturenames", ()) or "postgresql" in parameters


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Keep the tests of a file on one process, and all end-to-end tests, which share one Label Studio."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - called by xdist only

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return ByFile(config, log)


def _scope(nodeid: str) -> str:
    """Return what is run by one process: a file, or all end-to-end tests."""
    return _END_TO_END if nodeid.startswith(_END_TO_END) else nodeid.partition("::")[0]
