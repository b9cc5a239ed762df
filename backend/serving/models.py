"""The models a process has in memory: that of the settings, and the one before it while it still serves a project."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict

from backend.labelstudio.identity import Origin
from backend.serving.loading import ModelLoader
from backend.settings import Settings

_log = logging.getLogger(__name__)

EARLIER = 2  # earlier models in memory at once
IDLE = 600.0  # seconds after which an earlier model that served nothing is let go


class Models:
    """Loaders by where a model came from. Safe to share between threads."""

    def __init__(self, settings: Settings, loader: ModelLoader) -> None:
        self._settings, self.current = settings, loader
        self._earlier: OrderedDict[tuple[str, str], ModelLoader] = OrderedDict()
        self._used: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def earlier(self, origin: Origin) -> ModelLoader:
        """Return the loader of an earlier model, which begins to load in the background when it is first asked for."""
        key = (origin.source, origin.hash)
        with self._lock:
            found = self._earlier.get(key)
            if found is None:
                as_then = self._settings.model_copy(update={"model_map": origin.model_map, "int8": origin.int8})
                found = ModelLoader(as_then, name=origin.source, wanted=origin.hash)
                self._earlier[key] = found
                _log.info("an earlier model is loaded too: it serves until the new one has thresholds")
                found.start()
            self._earlier.move_to_end(key)
            self._used[key] = time.monotonic()
            while len(self._earlier) > EARLIER:
                self._earlier.popitem(last=False)
        return found

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
