"""Threshold versions at hand: each is read from the database and built once, as long as it is among the last used."""

from __future__ import annotations

import threading

from cachetools import LRUCache
from sqlalchemy.orm import Session

from backend.domain.records import VersionRecord
from backend.prediction.calibration import Calibration, calibration_of
from backend.store.thresholds import load_version
from conformal.subsequence import EntityMethod
from conformal.thresholds import Thresholds

RECORDS = 4  # a record holds all its scores, so few are kept
FACTS = 256  # small ones


class Versions:
    """Records and calibrations of threshold versions, by id; a version never changes. Safe to share between threads.

    All that is asked of one object about a version must name the same fallback.
    """

    def __init__(self, *, calibrations: int = RECORDS) -> None:
        self._records: LRUCache[int, VersionRecord] = LRUCache(RECORDS)
        self._calibrations: LRUCache[int, Calibration] = LRUCache(calibrations)
        self._entity_methods: LRUCache[int, EntityMethod] = LRUCache(FACTS)
        self._lock = threading.Lock()

    def record(self, session: Session, version_id: int) -> VersionRecord | None:
        """Return a version as the database has it, None when it has none of this id."""
        with self._lock:
            known = self._records.get(version_id)
        if known is not None:
            return known
        loaded = load_version(session, version_id)
        if loaded is None:
            return None
        with self._lock:
            return self._records.setdefault(version_id, loaded)

    def calibration(self, version: VersionRecord, *, fallback: Calibration | None) -> Calibration:
        """Return a version as the predictor uses it (`backend.prediction.calibration.calibration_of`).

        Raises:
            InvalidThresholds: when it was written by a later release; that is not kept.
        """
        with self._lock:
            known = self._calibrations.get(version.id)
        if known is not None:
            return known
        built = calibration_of(version, fallback=fallback)
        with self._lock:
            return self._calibrations.setdefault(version.id, built)

    def entity_method(self, session: Session, version_id: int) -> EntityMethod | None:
        """Return how a version's candidate spans were found and scored, None when there is no such version.

        Raises:
            InvalidThresholds: when it was written by a later release.
        """
        with self._lock:
            known = self._entity_methods.get(version_id)
        if known is not None:
            return known
        version = self.record(session, version_id)
        if version is None:
            return None
        method = Thresholds.from_bytes(version.content).entity_method
        with self._lock:
            return self._entity_methods.setdefault(version_id, method)
