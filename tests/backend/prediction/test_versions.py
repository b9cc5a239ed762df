"""Threshold versions are read and built once, and a bounded number is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from backend.domain.guarantee import Guarantee
from backend.domain.records import VersionRecord
from backend.prediction import versions
from backend.prediction.versions import RECORDS, Versions
from conformal.errors import InvalidThresholds
from conformal.rows import TaskRows
from conformal.subsequence import EntityMethod
from conformal.thresholds import calibrate

CONTENT = calibrate(TaskRows.of(["en/1-10"] * 150, np.log(np.linspace(0.3, 1.0, 150))), classes=["PER"]).to_bytes()
SESSION: Any = None


def version(number: int, content: bytes = CONTENT) -> VersionRecord:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return VersionRecord(number, 1, 1, "0.1", "nc1", "blind", "own", 1, 150, content, {}, at)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids that were asked of the database, which knows those below 100."""
    asked: list[int] = []

    def load(_session: object, number: int) -> VersionRecord | None:
        asked.append(number)
        return version(number) if number < 100 else None

    monkeypatch.setattr(versions, "load_version", load)
    return asked


def test_a_version_is_read_once_while_it_is_in_use(loaded: list[int]) -> None:
    kept = Versions()
    for _ in range(3):
        assert kept.record(SESSION, 7) == version(7)
    assert loaded == [7]
    for number in range(RECORDS):
        kept.record(SESSION, 20 + number)
    kept.record(SESSION, 7)
    assert loaded.count(7) == 2


def test_a_version_that_is_not_there_is_asked_for_again(loaded: list[int]) -> None:
    kept = Versions()
    assert kept.record(SESSION, 100) is kept.record(SESSION, 100) is None
    assert kept.entity_method(SESSION, 100) is None
    assert loaded == [100] * 3


def test_a_calibration_is_built_once_with_what_it_falls_back_on() -> None:
    kept = Versions(calibrations=2)
    starter = kept.calibration(version(1), fallback=None)
    own = kept.calibration(version(2), fallback=starter)
    assert (own.version, own.guarantee, own.fallback) == (2, Guarantee.OWN, starter)
    assert kept.calibration(version(2), fallback=starter) is own
    kept.calibration(version(3), fallback=None)
    kept.calibration(version(4), fallback=None)
    assert kept.calibration(version(2), fallback=starter) is not own


def test_thresholds_that_cannot_be_read_are_said_each_time() -> None:
    kept = Versions()
    for _ in range(2):
        with pytest.raises(InvalidThresholds):
            kept.calibration(version(1, b"{}"), fallback=None)


def test_the_entity_method_outlives_the_record(loaded: list[int]) -> None:
    kept = Versions()
    for number in range(3 * RECORDS):
        assert kept.entity_method(SESSION, number) == EntityMethod()
    assert kept.entity_method(SESSION, 0) == EntityMethod()
    assert loaded == list(range(3 * RECORDS))
