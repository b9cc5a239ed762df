"""A model in memory: loaded by a thread of its own, so that nobody but /predict waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.errors import ModelUnavailable, StoreError
from backend.logs import stack_of
from backend.settings import Settings
from backend.tagger.configured import configured_header, load_configured
from backend.tagger.errors import InvalidModel, TaggerError
from backend.tagger.identity import ModelHeader, Origin
from backend.tagger.tagger import Tagger
from conformal import warm_up

_log = logging.getLogger(__name__)

_MOST_PAUSE = 10.0  # seconds between two questions to a database that is away


@dataclass
class _Run:
    """One run of loading: whoever waits for it gets its model, even if the loader has dropped it by then."""

    done: threading.Event = field(default_factory=threading.Event)
    kept: bool = True
    tagger: Tagger | None = None
    error: str | None = None
    failed_at: float = 0.0
    thread: threading.Thread | None = None


class ModelLoader:
    """Loads the model that the settings name, or another. `start` it after the fork, never before.

    However many ask, one thread at a time loads it. `drop` takes it out of memory.

    Args:
        name: another model than that of the settings.
        wanted: the hash that it must have: what lies there now may be another model than what was loaded once.
        fetch: brings the model onto this machine's disk and returns its directory; such a model is loaded when it is
            first asked for.
        known: what is known of that model before it is loaded.
        directory: where it will lie.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        name: str | None = None,
        wanted: str | None = None,
        fetch: Callable[[], Path] | None = None,
        known: ModelHeader | None = None,
        directory: Path | None = None,
    ) -> None:
        self.name = name or settings.model or "bundled"
        self._settings, self.wanted = settings.model_copy(update={"model": self.name}), wanted
        self._fetch, self._known, self._directory = fetch, known, directory
        self._lock = threading.Lock()
        self._run = _Run()
        self._closing = threading.Event()
        self.seconds: float | None = None

    @property
    def directory(self) -> Path:
        """Where the model and its starter calibrations lie."""
        if self._directory is not None:
            return self._directory
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
        run = self._run
        if run.tagger is not None:
            return "ready"
        if run.error is not None:
            return "failed"
        return "idle" if run.thread is None else "loading"

    @property
    def error(self) -> str | None:
        """Why loading failed."""
        return self._run.error

    def header(self) -> ModelHeader:
        """Return what is known of the model now; never waits.

        Raises:
            ModelUnavailable: when nothing is known yet.
        """
        if self._known is not None:
            return self._known
        tagger = self._run.tagger
        if tagger is not None:
            header = ModelHeader(tagger.name, tagger.hash, tagger.space.classes)
        elif (known := configured_header(self._settings)) is not None:
            header = ModelHeader(*known)
        else:
            raise ModelUnavailable(self.error or "expected a model, got none yet: it is still loading")
        how = self._settings
        model_map = None if how.model_map is None else str(Path(how.model_map).absolute())
        return replace(header, origin=Origin(self.source, header.hash, header.classes, model_map, how.int8, how.unit))

    def start(self) -> None:
        """Begin to load, in the background, unless it is loaded, being loaded, or could not be."""
        with self._lock:
            run = self._run
            run.kept = True
            if run.thread is not None:
                return
            run.thread = threading.Thread(target=self._load, args=(run,), name="model-loader", daemon=True)
            run.thread.start()

    def drop(self) -> None:
        """Take the model out of memory; one that is being loaded goes when those who wait for it have it."""
        with self._lock:
            self._run.kept = False
            if self._run.done.is_set():
                self._run = _Run()

    def forgive(self, after: float) -> None:
        """Let a model that could not be loaded be tried again once so many seconds have passed."""
        with self._lock:
            run = self._run
            if run.error is not None and time.monotonic() - run.failed_at > after:
                self._run = _Run()

    def tagger(self, timeout: float) -> Tagger:
        """Return the model, waiting for it if need be.

        Raises:
            ModelUnavailable: when it could not be loaded, or not in time.
        """
        if self._fetch is not None:
            self.start()
        run = self._run
        if run.tagger is None:
            run.done.wait(timeout)
        if run.tagger is None:
            raise ModelUnavailable(
                run.error or f"expected the model within {timeout:g} s, got none yet: it is still loading"
            )
        return run.tagger

    def close(self, timeout: float = 30.0) -> None:
        """Wait for the thread; an import under way cannot be broken off."""
        self._closing.set()
        run = self._run
        if run.thread is not None:
            run.thread.join(timeout)

    def _load(self, run: _Run) -> None:
        begun = time.perf_counter()
        try:
            tagger = load_configured(self._settings if self._fetch is None else self._fetched())
            self._refuse_another(tagger)
            warm_up()
            tagger.potentials(["Warm."])
            self.seconds = time.perf_counter() - begun
            loaded = ModelHeader(tagger.name, tagger.hash, tagger.space.classes).version
            _log.info("model loaded", extra={"model": loaded, "seconds": round(self.seconds, 2)})
            run.tagger = tagger
        except (TaggerError, OSError) as error:
            run.error = "expected a model that can be loaded, got none: see the log of the service"
            _log.error("model could not be loaded", extra={"reason": str(error)})
        except Exception as error:  # noqa: BLE001 - whatever it was, waiting requests must be told
            run.error = f"expected a model that can be loaded, got {type(error).__name__}: see the log of the service"
            _log.error("model could not be loaded", extra={"reason": type(error).__name__, "stack": stack_of(error)})
        finally:
            run.failed_at = time.monotonic()
            with self._lock:
                run.done.set()
                if not run.kept and self._run is run:
                    self._run = _Run()

    def _fetched(self) -> Settings:
        """Bring the model here, however long the database is away, and return the settings that load it."""
        assert self._fetch is not None  # noqa: S101 - the caller has looked
        pause = 0.5
        while True:
            try:
                return self._settings.model_copy(update={"model": str(self._fetch())})
            except StoreError as error:
                _log.warning("a model is not fetched yet", extra={"reason": type(error).__name__})
                if self._closing.wait(pause):
                    raise
                pause = min(_MOST_PAUSE, 2 * pause)

    def _refuse_another(self, tagger: Tagger) -> None:
        if self.wanted is not None and self.wanted != tagger.hash:
            raise InvalidModel(f"expected the model with hash {self.wanted}, got {tagger.hash}: it was replaced")
