"""Where the benchmark data lies, for the tests that need it. It is never part of the project."""

from pathlib import Path

import pytest


def shared_data() -> Path | None:
    """Return the data directory beside the project directory, or None."""
    place = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    return place if place.is_dir() else None


def require_shared_data() -> Path:
    """Return the data directory, or skip the test that asks."""
    place = shared_data()
    if place is None:
        pytest.skip("the benchmark data is not beside the project directory")
    return place
