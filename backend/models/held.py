"""The models a process has in memory: that of the settings, and the one before it while it still serves a project."""

from __future__ import annotations

import logging
import threading
import time

from cachetools import LRUCache

from backend.models.loading import ModelLoader
from backend.settings import Settings
from backend.tagger.identity import Origin

_log = logging.getLogger(__name__)

EARLIER = 2  # earlier models in memory at once
IDLE = 600.0  # seconds after which an earlier model that served nothing is let go


class Models:
    """Loaders by where a model came from. Safe to share between threads."""

    def __init__(self, settings: Settings, loader: ModelLoader) -> None:
        self._settings, self.current = settings, loader
        self._earlier: LRUCache[tuple[str, str], ModelLoader] = LRUCache(EARLIER)
        self._used: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def earlier(self, origin: Origin) -> ModelLoader:
        """Return the loader of an earlier model, which begins to load in the background when it is first asked for."""
        key = (origin.source, origin.hash)
        with self._lock:
            loader = self._earlier.get(key)
            if loader is None:
                how = {"model_map": origin.model_map, "int8": origin.int8, "unit": origin.unit}
                as_then = self._settings.model_copy(update=how)
                loader = ModelLoader(as_then, name=origin.source, wanted=origin.hash)
                self._earlier[key] = loader
                _log.info("an earlier model is loaded too: it serves until the new one has thresholds")
                loader.start()
            self._used = {each: at for each, at in self._used.items() if each in self._earlier}
            self._used[key] = time.monotonic()
        return loader

    def let_go(self) -> None:
        """Drop earlier models that have served nothing for a while: their projects were handed over."""
        if not self._earlier:
            return
        now = time.monotonic()
        with self._lock:
            for key in [key for key in self._earlier if now - self._used.get(key, now) > IDLE]:
                del self._earlier[key]

    def close(self) -> None:
        """Wait for the threads that load."""
        with self._lock:
            loaders = list(self._earlier.values())
        for loader in (self.current, *loaders):
            loader.close()
