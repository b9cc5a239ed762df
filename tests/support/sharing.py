"""What is expensive to make is made once, also when several processes of pytest-xdist run the tests."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def shared_directory(factory: pytest.TempPathFactory) -> Path:
    """Return a directory that all processes of this run of the tests, and no other run, have."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    place.mkdir(exist_ok=True)
    return place


@contextmanager
def one_process_at_a_time(directory: Path, name: str) -> Iterator[None]:
    """Wait until no other process is inside, then go in; a process that dies leaves."""
    with (directory / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the directory of that name; the first process to ask has it made by `make`, which is given its path.

    What it holds is for reading: whoever changes it takes a copy.
    """
    directory = shared_directory(factory)
    place = directory / name
    with one_process_at_a_time(directory, name):
        if not place.exists():
            partial = directory / f"{name}.partial"
            partial.mkdir()
            make(partial)
            partial.rename(place)
    return place
