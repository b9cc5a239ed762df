"""Figures that live in the database, for Prometheus: read when asked, and not more often than they change."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from backend.errors import BackendError
from backend.serving.service import Service

KEPT_SECONDS = 15.0  # scrapes may come every second

_log = logging.getLogger(__name__)


class StoredFigures(Collector):
    """Metric families read from the service's database at most every `KEPT_SECONDS`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._families: list[Metric] = []

    def describe(self) -> list[Metric]:
        """Name nothing, so that registering does not read the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the families; none when the database cannot be read."""
        with self._lock:
            if time.monotonic() - self._at > KEPT_SECONDS:
                try:
                    self._families = list(self._read())
                except BackendError as error:
                    _log.warning("metrics of the database not read", extra={"reason": type(error).__name__})
                    self._families = []
                self._at = time.monotonic()
            yield from self._families

    @abstractmethod
    def _read(self) -> Iterator[Metric]:
        """Return the families as the database has them now."""
