"""Settings shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

# Numba looks only at the file a kernel stands in, not at those it calls: after an edit, the callers' compiled code
# would stay. Nobody edits an installed package, so this concerns the tests of a working copy only.
_KERNELS = Path(__file__).parents[1] / "conformal" / "trellis" / "kernels"
_NEWEST = max(path.stat().st_mtime for path in _KERNELS.glob("*.py"))
for _index in (_KERNELS / "__pycache__").glob("*.nbi"):
    if _index.stat().st_mtime < _NEWEST:
        _index.unlink(missing_ok=True)

# Quick where somebody waits; `make soak` is thorough. Never a deadline: machines are noisy.
hypothesis.settings.register_profile("quick", max_examples=50, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=300, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

_END_TO_END = "tests/e2e/"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the end-to-end tests: they take longest, and mostly wait."""
    items.sort(key=lambda item: not item.nodeid.startswith(_END_TO_END))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Keep the tests of a file on one process, and all end-to-end tests, which share one Label Studio."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - called by xdist only

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _END_TO_END if nodeid.startswith(_END_TO_END) else super()._split_scope(nodeid)

    return ByFile(config, log)
