"""The models a process has in memory: that of the settings, and a bounded number of others.

Others are the projects' own, and the one before while it still serves a project. The one that was used longest ago
makes room; it is loaded again when it is asked for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from functools import partial

from backend.errors import ModelUnavailable
from backend.models.loading import ModelLoader
from backend.models.own import stored_hash
from backend.models.stored import StoredModels
from backend.settings import Settings
from backend.store import Store
from backend.tagger.identity import ModelHeader, Origin
from backend.tagger.tagger import Tagger

_log = logging.getLogger(__name__)

IDLE = 600.0  # seconds after which a model that served nothing is let go
RETRY = 60.0  # seconds after which a model that could not be loaded is tried again
_Key = tuple[str, str]


class Models:
    """Loaders by where a model came from. Safe to share between threads.

    A loader is light, and there is one for each model that was ever asked for; `models_in_memory` of them have loaded.
    """

    def __init__(self, settings: Settings, loader: ModelLoader, store: Store) -> None:
        self._settings, self.current = settings, loader
        self.stored = StoredModels(store, settings.models_directory)
        self._loaders: dict[_Key, ModelLoader] = {}
        self._used: OrderedDict[_Key, float] = OrderedDict()  # those that have loaded or are loading, oldest use first
        self._lock = threading.Lock()

    @property
    def loaded(self) -> int:
        """How many models are in memory beside that of the settings."""
        with self._lock:
            return sum(self._loaders[key].state == "ready" for key in self._used)

    def of(self, header: ModelHeader) -> ModelLoader:
        """Return the loader of a model that says where it came from; it need not have loaded.

        One that could not be loaded is tried again after a while.
        """
        origin = header.origin
        if origin is None or self._is_current(origin):
            return self.current
        key = (origin.source, origin.hash)
        with self._lock:
            loader = self._loaders.get(key)
            if loader is None:
                loader = self._loaders[key] = self._make(header, origin)
        loader.forgive(RETRY)
        return loader

    def begin(self, loader: ModelLoader) -> None:
        """Note that a model is used, begin to load it if need be, and make room for it."""
        if loader is self.current:
            return
        with self._lock:
            key = (loader.name, str(loader.wanted))
            self._loaders.setdefault(key, loader)
            self._used[key] = time.monotonic()
            self._used.move_to_end(key)
            while len(self._used) > self._settings.models_in_memory:
                oldest, _ = self._used.popitem(last=False)
                self._loaders[oldest].drop()
        loader.start()

    def tagger(self, loader: ModelLoader, timeout: float) -> Tagger:
        """Return a model, loaded if need be.

        Raises:
            ModelUnavailable: when it could not be loaded, or not in time.
        """
        self.begin(loader)
        return loader.tagger(timeout)

    def let_go(self) -> None:
        """Drop models that have served nothing for a while."""
        if not self._used:
            return
        now = time.monotonic()
        with self._lock:
            for key in [key for key, used in self._used.items() if now - used > IDLE]:
                del self._used[key]
                self._loaders[key].drop()

    def close(self) -> None:
        """Wait for the threads that load."""
        with self._lock:
            loaders = list(self._loaders.values())
        for loader in (self.current, *loaders):
            loader.close()

    def _is_current(self, origin: Origin) -> bool:
        try:
            return self.current.header().hash == origin.hash
        except ModelUnavailable:
            return False

    def _make(self, header: ModelHeader, origin: Origin) -> ModelLoader:
        how = {"model_map": origin.model_map, "int8": origin.int8, "unit": origin.unit}
        as_then = self._settings.model_copy(update=how)
        digest = stored_hash(origin)
        if digest is None:
            return ModelLoader(as_then, name=origin.source, wanted=origin.hash)
        return ModelLoader(
            as_then,
            name=origin.source,
            wanted=origin.hash,
            fetch=partial(self.stored.fetch, digest),
            known=header,
            directory=self.stored.place(digest),
        )
