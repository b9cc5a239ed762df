"""Settings shared by all tests."""

import os
from pathlib import Path

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


_END_TO_END = Path(__file__).parent / "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file on one process, and all end-to-end tests, which share one Label Studio, on another from the start."""
    items.sort(key=lambda item: _END_TO_END not in item.path.parents)
    for item in items:
        group = "end-to-end" if _END_TO_END in item.path.parents else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
