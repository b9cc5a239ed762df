"""The scores that stand for blind tasks, by project and model: seeded from what was served, then kept up to date."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from backend.blind import ScoreSample, sample_scores
from backend.errors import StoreError
from backend.labelstudio.identity import ModelHeader
from backend.store import Store
from backend.store.projects import find_project, lookup_model

_log = logging.getLogger(__name__)

_Key = tuple[str, str, int]

_MOST = 256  # projects
_MOST_PLACED = 20_000  # blind tasks


class BlindScores:
    """Samples of the scores of shown tasks. Safe to share between threads.

    `version` is the threshold version that serves (0: the starter): what goes first depends on it.
    """

    def __init__(self, reads: Store) -> None:
        self._reads = reads
        self._samples: OrderedDict[_Key, ScoreSample] = OrderedDict()
        self._placed: OrderedDict[tuple[_Key, str], float] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, project: str, model: ModelHeader, scores: Iterable[float], *, version: int = 0) -> None:
        """Take in the scores of tasks that are shown; those of blind tasks must not decide where blind tasks stand."""
        self._sample(project, model, version).add(scores)

    def at(self, project: str, model: ModelHeader, quantile: float, *, version: int = 0) -> float:
        """Return the score at a place in [0, 1) among those of the project."""
        return self._sample(project, model, version).at(quantile)

    def place(
        self,
        project: str,
        model: ModelHeader,
        task: str,
        quantile: float,
        *,
        version: int = 0,
        beside: Sequence[float] = (),
    ) -> float:
        """Return the score that stands for a blind task, the same as long as it is remembered.

        Args:
            beside: scores of tasks that are about to be shown together with it.
        """
        key = ((project, model.hash, version), task)
        with self._lock:
            if key in self._placed:
                self._placed.move_to_end(key)
                return self._placed[key]
        score = self._sample(project, model, version).at(quantile, beside=beside)
        with self._lock:
            while len(self._placed) >= _MOST_PLACED:
                self._placed.popitem(last=False)
            return self._placed.setdefault(key, score)

    def _sample(self, project: str, model: ModelHeader, version: int) -> ScoreSample:
        key = (project, model.hash, version)
        with self._lock:
            if key in self._samples:
                self._samples.move_to_end(key)
                return self._samples[key]
        seeded = ScoreSample(self._seed(project, model, version))
        with self._lock:
            # Two threads may have seeded one at once; the first is kept.
            sample = self._samples.setdefault(key, seeded)
            while len(self._samples) > _MOST:
                self._samples.popitem(last=False)
        return sample

    def _seed(self, project: str, model: ModelHeader, version: int) -> list[float]:
        try:
            with self._reads.read() as session:
                row = find_project(session, project)
                kept = lookup_model(session, model.name, model.hash)
                if row is None or kept is None:
                    return []
                return sample_scores(session, row.id, model_id=kept.id, version_id=version or None)
        except StoreError as error:
            _log.warning("scores of the project not read", extra={"reason": type(error).__name__})
            return []
