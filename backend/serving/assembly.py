"""The parts of the service put together for work outside of it, which must answer, draw and record as it does."""

from __future__ import annotations

from backend.models.gate import FairGate
from backend.serving.blindness import BlindPriorities
from backend.serving.cache import AnswerCache
from backend.serving.chunks import ChunkPredictor
from backend.serving.measures import Measures
from backend.serving.presenting import DrawnTasks
from backend.serving.recording import Recorder
from backend.serving.same_words import ProjectWords
from backend.settings import Settings
from backend.store import Store


def lone_predictor(settings: Settings, store: Store) -> ChunkPredictor:
    """Return a predictor of chunks for one thread of its own: what it answers is recorded as served.

    It keeps no answers, because a task is answered once, and writes its record itself. `close` it at the end.
    """
    measures = Measures()
    return ChunkPredictor(
        settings,
        gate=FairGate(slots=1),
        cache=AnswerCache(0),
        recorder=Recorder(store, measures),
        measures=measures,
        present=DrawnTasks(settings, store, store, writing=FairGate(slots=1)),
        blind_priorities=BlindPriorities(store),
        words=ProjectWords(store),
    )
