"""The scores that stand for blind tasks, by project and model: seeded from what was served, then kept up to date."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable

from backend.blind import ScoreSample, sample_scores
from backend.errors import StoreError
from backend.labelstudio.identity import ModelHeader
from backend.store import Store
from backend.store.projects import find_project, lookup_model

_log = logging.getLogger(__name__)

_MOST = 256  # projects


class BlindScores:
    """Samples of the scores of shown tasks. Safe to share between threads."""

    def __init__(self, reads: Store) -> None:
        self._reads = reads
        self._samples: OrderedDict[tuple[str, str], ScoreSample] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, project: str, model: ModelHeader, scores: Iterable[float]) -> None:
        """Take in the scores of tasks that are shown; those of blind tasks must not decide where blind tasks stand."""
        self._sample(project, model).add(scores)

    def at(self, project: str, model: ModelHeader, quantile: float) -> float:
        """Return the score at a place in [0, 1) among those of the project."""
        return self._sample(project, model).at(quantile)

    def _sample(self, project: str, model: ModelHeader) -> ScoreSample:
        key = (project, model.hash)
        with self._lock:
            if key in self._samples:
                self._samples.move_to_end(key)
                return self._samples[key]
        seeded = ScoreSample(self._seed(project, model))
        with self._lock:
            # Two threads may have seeded one at once; the first is kept.
            sample = self._samples.setdefault(key, seeded)
            while len(self._samples) > _MOST:
                self._samples.popitem(last=False)
        return sample

    def _seed(self, project: str, model: ModelHeader) -> list[float]:
        try:
            with self._reads.read() as session:
                row = find_project(session, project)
                kept = lookup_model(session, model.name, model.hash)
                if row is None or kept is None:
                    return []
                return sample_scores(session, row.id, model_id=kept.id)
        except StoreError as error:
            _log.warning("scores of the project not read", extra={"reason": type(error).__name__})
            return []
