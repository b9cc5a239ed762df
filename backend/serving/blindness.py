"""The priorities that stand for blind tasks, by project and model: seeded from what was served, then kept fresh."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence

from cachetools import LRUCache

from backend.errors import StoreError
from backend.review.blind_priorities import PrioritySample, sample_priorities
from backend.store import Store
from backend.store.projects import find_project, lookup_model
from backend.tagger.identity import ModelHeader

_log = logging.getLogger(__name__)

_Key = tuple[str, str, int]

_MOST_SAMPLES = 256  # projects
_MOST_TASKS = 20_000  # blind ones


class BlindPriorities:
    """Samples of the priorities of shown tasks. Safe to share between threads.

    `version` is the threshold version that serves (0: the starter): what goes first depends on it.
    """

    def __init__(self, reads: Store) -> None:
        self._reads = reads
        self._samples: LRUCache[_Key, PrioritySample] = LRUCache(_MOST_SAMPLES)
        self._stand_ins: LRUCache[tuple[_Key, str], float] = LRUCache(_MOST_TASKS)
        self._lock = threading.Lock()

    def add(self, project: str, model: ModelHeader, priorities: Iterable[float], *, version: int = 0) -> None:
        """Take in the priorities of tasks that are shown; those of blind tasks must not decide where these stand."""
        self._sample(project, model, version).add(priorities)

    def at(self, project: str, model: ModelHeader, quantile: float, *, version: int = 0) -> float:
        """Return the priority at a quantile in [0, 1) of those of the project."""
        return self._sample(project, model, version).at(quantile)

    def stand_in(
        self,
        project: str,
        model: ModelHeader,
        task: str,
        quantile: float,
        *,
        version: int = 0,
        beside: Sequence[float] = (),
    ) -> float:
        """Return the priority that stands for a blind task, the same as long as it is remembered.

        Args:
            beside: priorities of tasks that are about to be shown together with it.
        """
        key = ((project, model.hash, version), task)
        with self._lock:
            if key in self._stand_ins:
                return self._stand_ins[key]
        priority = self._sample(project, model, version).at(quantile, beside=beside)
        with self._lock:
            return self._stand_ins.setdefault(key, priority)

    def _sample(self, project: str, model: ModelHeader, version: int) -> PrioritySample:
        key = (project, model.hash, version)
        with self._lock:
            if key in self._samples:
                return self._samples[key]
        seeded = PrioritySample(self._seed(project, model, version))
        with self._lock:
            # Two threads may have seeded one at once; the first is kept.
            return self._samples.setdefault(key, seeded)

    def _seed(self, project: str, model: ModelHeader, version: int) -> list[float]:
        try:
            with self._reads.read() as session:
                row = find_project(session, project)
                record = lookup_model(session, model.name, model.hash)
                if row is None or record is None:
                    return []
                return sample_priorities(session, row.id, model_id=record.id, version_id=version or None)
        except StoreError as error:
            _log.warning("priorities of the project not read", extra={"reason": type(error).__name__})
            return []
