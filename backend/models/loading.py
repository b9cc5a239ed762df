"""The model in memory: loaded once per process by a thread of its own, so that nobody but /predict waits for it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

from backend.errors import ModelUnavailable
from backend.logs import stack_of
from backend.settings import Settings
from backend.tagger.configured import configured_header, load_configured
from backend.tagger.errors import InvalidModel, TaggerError
from backend.tagger.identity import ModelHeader, Origin
from backend.tagger.tagger import Tagger
from conformal import warm_up

_log = logging.getLogger(__name__)


class ModelLoader:
    """Loads the model that the settings name, or an earlier one. `start` it after the fork, never before.

    Args:
        name: another model than that of the settings.
        wanted: the hash that it must have: what lies there now may be another model than what was loaded once.
    """

    def __init__(self, settings: Settings, *, name: str | None = None, wanted: str | None = None) -> None:
        self.name = name or settings.model or "bundled"
        self._settings, self._wanted = settings.model_copy(update={"model": self.name}), wanted
        self._done = threading.Event()
        self._tagger: Tagger | None = None
        self._error: str | None = None
        self._thread: threading.Thread | None = None
        self.seconds: float | None = None

    @property
    def directory(self) -> Path:
        """Where the model and its starter calibrations lie."""
        bundled = Path(__file__).parents[1] / "tagger" / "bundled"
        return bundled if self.name == "bundled" else Path(self.name)

    @property
    def source(self) -> str:
        """What to ask for to get this model again, from whatever directory."""
        here = Path(self.name)
        return str(here.absolute()) if here.exists() else self.name

    @property
    def state(self) -> str:
        """`idle`, `loading`, `ready` or `failed`."""
        if self._tagger is not None:
            return "ready"
        if self._error is not None:
            return "failed"
        return "idle" if self._thread is None else "loading"

    @property
    def error(self) -> str | None:
        """Why loading failed."""
        return self._error

    def header(self) -> ModelHeader:
        """Return what is known of the model now; never waits.

        Raises:
            ModelUnavailable: when nothing is known yet.
        """
        tagger = self._tagger
        if tagger is not None:
            header = ModelHeader(tagger.name, tagger.hash, tagger.space.classes)
        elif (known := configured_header(self._settings)) is not None:
            header = ModelHeader(*known)
        else:
            raise ModelUnavailable(self._error or "expected a model, got none yet: it is still loading")
        how = self._settings
        model_map = None if how.model_map is None else str(Path(how.model_map).absolute())
        return replace(header, origin=Origin(self.source, header.hash, header.classes, model_map, how.int8, how.unit))

    def start(self) -> None:
        """Begin to load, in the background; once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._load, name="model-loader", daemon=True)
            self._thread.start()

    def tagger(self, timeout: float) -> Tagger:
        """Return the model, waiting for it if need be.

        Raises:
            ModelUnavailable: when it could not be loaded, or not in time.
        """
        if self._tagger is None:
            self._done.wait(timeout)
        if self._tagger is None:
            raise ModelUnavailable(
                self._error or f"expected the model within {timeout:g} s, got none yet: it is still loading"
            )
        return self._tagger

    def close(self, timeout: float = 30.0) -> None:
        """Wait for the thread; an import under way cannot be broken off."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _load(self) -> None:
        begun = time.perf_counter()
        try:
            tagger = load_configured(self._settings)
            self._refuse_another(tagger)
            warm_up()
            tagger.potentials(["Warm."])
            self._tagger = tagger
            self.seconds = time.perf_counter() - begun
            _log.info("model loaded", extra={"model": self.header().version, "seconds": round(self.seconds, 2)})
        except (TaggerError, OSError) as error:
            self._error = "expected a model that can be loaded, got none: see the log of the service"
            _log.error("model could not be loaded", extra={"reason": str(error)})
        except Exception as error:  # noqa: BLE001 - whatever it was, waiting requests must be told
            self._error = f"expected a model that can be loaded, got {type(error).__name__}: see the log of the service"
            _log.error("model could not be loaded", extra={"reason": type(error).__name__, "stack": stack_of(error)})
        finally:
            self._done.set()

    def _refuse_another(self, tagger: Tagger) -> None:
        if self._wanted is not None and self._wanted != tagger.hash:
            raise InvalidModel(f"expected the model with hash {self._wanted}, got {tagger.hash}: it was replaced")
