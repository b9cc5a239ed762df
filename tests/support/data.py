"""Where the benchmark data lies, for the tests that need it. It is never part of the project."""

import os
from pathlib import Path

import pytest

from tests.support.paths import ROOT

VARIABLE = "SURESPAN_TEST_DATA"


def benchmark_data() -> Path | None:
    """Return the data directory that the environment names, else the one beside the project directory, or None."""
    place = Path(os.environ.get(VARIABLE) or ROOT.parent / "shared" / "data")
    return place if place.is_dir() else None


def require_benchmark_data() -> Path:
    """Return the data directory, or skip the test that asks."""
    place = benchmark_data()
    if place is None:
        pytest.skip(f"the benchmark data is not there: name its directory with {VARIABLE}")
    return place
