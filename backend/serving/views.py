"""A project as the service sees it: its label config, the thresholds that serve it now, and its predictor.

Thresholds are read from the database at most every few seconds, so a new version is picked up without a restart and a
busy project costs one small query now and then. A version is loaded once per process. Label configs are parsed once
per text of theirs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from backend.errors import InvalidLabelConfig, StoreError
from backend.labelstudio.config import LabelConfig, Target, parse_config
from backend.labelstudio.identity import ModelHeader, viewed
from backend.serving.loading import ModelLoader
from backend.settings import Settings
from backend.store import Store
from backend.store.projects import find_project, lookup_model
from backend.store.thresholds import active_version_ids, load_version
from backend.store.types import ProjectRecord, VersionRecord

if TYPE_CHECKING:  # these bring the model's libraries in, which only a prediction may wait for
    from backend.predictor import Calibration, Predictor
    from backend.tagger.tagger import Tagger

_log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_SECONDS = 2.0
STARTER = 0
_AWAY = 10.0
_KEPT = 256
_MOST_PROJECTS = 10_000


@dataclass(frozen=True)
class Known:
    """What the database says about a project, as of `at` (a monotonic time)."""

    at: float
    label_config: str | None = None
    alpha: str | None = None
    version: VersionRecord | None = None


@dataclass(frozen=True)
class View:
    """A project ready to be predicted."""

    project: str
    target: Target
    model: ModelHeader
    predictor: Predictor

    @property
    def model_version(self) -> str:
        """How Label Studio knows these predictions."""
        return self.predictor.model_version

    @property
    def names_matter(self) -> bool:
        """Whether the sets depend on the task's id (a randomised boundary) and not on its text alone."""
        return self.predictor.calibration.thresholds.method.needs_u


class Views:
    """Makes views. Safe to share between threads; only `view` waits for the model."""

    def __init__(self, settings: Settings, store: Store, loader: ModelLoader, *, poll: float = POLL_SECONDS) -> None:
        self._settings, self._store, self._loader, self._poll = settings, store, loader, poll
        self._known: dict[tuple[str, str], Known] = {}
        self._refreshing = threading.Lock()
        self._configs: _Recent[LabelConfig] = _Recent(_KEPT)
        self._calibrations: _Recent[Calibration] = _Recent(_KEPT)
        self._taggers: _Recent[Tagger] = _Recent(_KEPT)
        self._fitted: _Recent[tuple[str, ...]] = _Recent(_KEPT)
        self._said: set[tuple[str, ...]] = set()

    def target(self, label_config: str, classes: tuple[str, ...]) -> Target:
        """Return what a label config lets a model of these classes say.

        Raises:
            InvalidLabelConfig: when it cannot be read, or holds none of the classes.
        """
        parsed = self._configs.get(label_config, lambda: parse_config(label_config))
        return parsed.target(classes, control=self._settings.labels_control)

    def label_config(self, project: str, given: str | None) -> str:
        """Return the label config that came with a request, else the one known for the project.

        Raises:
            InvalidLabelConfig: when there is none.
        """
        config = given or self.known(project).label_config
        if config is None:
            self._known.pop((project, ""), None)  # another process may have heard of it a moment ago
            config = self.known(project).label_config
        if config is None:
            raise InvalidLabelConfig(
                "expected 'label_config' in the request, got none for an unknown project: send it, or call /setup"
            )
        return config

    def model_version(self, project: str, label_config: str) -> str:
        """Return the version that a prediction made now would carry; never waits for the model."""
        header = self._loader.header()
        model = viewed(header, self.target(label_config, header.classes))
        version = self._fitting(project, model)
        return f"{model.version}+cal.{STARTER if version is None else version.id}"

    def model_of(self, project: ProjectRecord) -> ModelHeader:
        """Return the model as a project of the database sees it; never waits for the model."""
        header = self._loader.header()
        if project.label_config is None:
            return header
        try:
            return viewed(header, self.target(project.label_config, header.classes))
        except InvalidLabelConfig:
            return header

    def view(self, project: str, label_config: str, *, alpha: str | None = None) -> View:
        """Return the project ready to be predicted; waits for the model."""
        tagger = self._loader.tagger(self._settings.model_wait)
        from backend.labelstudio.classes import project_tagger  # noqa: PLC0415 - see TYPE_CHECKING above

        target = self.target(label_config, tagger.space.classes)
        seen = self._taggers.get((target.digest, target.control), lambda: project_tagger(tagger, target))
        if target.flag is None:
            self._say_once(
                "the label config has no control for doubtful spans: they are not marked, only described in meta; "
                'add <Labels name="flag"> with the label Needs review',
                project,
            )
        model = ModelHeader(seen.name, seen.hash, seen.space.classes)
        return View(project, target, model, self._predictor(project, seen, alpha))

    def local(self, project: str, *, alpha: str | None = None) -> Predictor:
        """Return a predictor over all of the model's classes, for texts that belong to no label config."""
        return self._predictor(project, self._loader.tagger(self._settings.model_wait), alpha)

    def known(self, project: str, model: ModelHeader | None = None) -> Known:
        """Return what the database says about a project, and of its thresholds for a model.

        It is at most `poll` seconds old, older when the database cannot be asked. Whoever finds it too old asks;
        others meanwhile go on with what there is, so nobody waits for anybody.
        """
        key = (project, "" if model is None else model.hash)
        found = self._known.get(key)
        now = time.monotonic()
        if found is not None and now - found.at < self._poll:
            return found
        if found is not None and not self._refreshing.acquire(blocking=False):
            return found
        try:
            fresh = self._ask(project, model, found)
        except StoreError as error:
            _log.warning("database not read", extra={"reason": type(error).__name__})
            # A database that is away takes seconds to say so: it is left alone for a while, not asked by each request.
            fresh = replace(found or Known(now), at=now + _AWAY)
        finally:
            if found is not None:
                self._refreshing.release()
        if len(self._known) > _MOST_PROJECTS:
            self._known.clear()
        self._known[key] = fresh
        return fresh

    def _ask(self, project: str, model: ModelHeader | None, before: Known | None) -> Known:
        with self._store.read() as session:
            row = find_project(session, project)
            if row is None:
                return Known(time.monotonic())
            version = None
            kept = None if model is None else lookup_model(session, model.name, model.hash)
            if kept is not None:
                wanted = active_version_ids(session).get((row.id, kept.id))
                version = None if before is None else before.version
                if wanted is None or version is None or version.id != wanted:
                    version = None if wanted is None else load_version(session, wanted)
        return Known(time.monotonic(), row.label_config, row.alpha, version)

    def _fitting(self, project: str, model: ModelHeader) -> VersionRecord | None:
        """Return the active version if it was fitted on the model's classes; another says nothing about them."""
        version = self.known(project, model).version
        if version is None:
            return None
        if self._fitted.get(version.id, lambda: version_classes(version)) != model.classes:
            self._say_once(
                "the active thresholds were fitted on other classes and are not used: refit the project",
                project,
                str(version.id),
            )
            return None
        return version

    def _predictor(self, project: str, tagger: Tagger, alpha: str | None) -> Predictor:
        from backend.predictor import Predictor  # noqa: PLC0415 - see TYPE_CHECKING above

        model = ModelHeader(tagger.name, tagger.hash, tagger.space.classes)
        version = self._fitting(project, model)
        known = self.known(project, model)
        return Predictor(
            tagger,
            self._calibration(tagger, version),
            alpha=alpha or known.alpha or self._settings.alpha,
            max_shown=self._settings.max_shown,
            max_sequences=self._settings.max_sequences,
            project=project,
        )

    def _calibration(self, tagger: Tagger, version: VersionRecord | None) -> Calibration:
        from backend.predictor import starter_calibration  # noqa: PLC0415 - see TYPE_CHECKING above
        from backend.recalibrate import calibration_of  # noqa: PLC0415
        from conformal.scores import Method  # noqa: PLC0415

        if version is not None:
            return self._calibrations.get(version.id, lambda: calibration_of(version))
        return self._calibrations.get(
            tagger.hash,
            lambda: starter_calibration(
                tagger,
                self._loader.directory,
                method=Method(self._settings.method),
                n_min=self._settings.n_min,
            ),
        )

    def _say_once(self, message: str, *about: str) -> None:
        if (message, *about) not in self._said and len(self._said) < 10_000:
            self._said.add((message, *about))
            _log.warning(message, extra={"project": about[0]})


def version_classes(version: VersionRecord) -> tuple[str, ...]:
    """Return the classes that a version was fitted on, without building it."""
    try:
        return tuple(json.loads(version.content)["classes"])
    except (ValueError, KeyError, TypeError):
        return ()


class _Recent(Generic[T]):
    """The last `size` things made, by key. Two threads may make the same thing at once; one of them is kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is kept under the key, made if need be; what `make` raises is not kept."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        made = make()
        with self._lock:
            self._held[key] = made
            while len(self._held) > self._size:
                self._held.popitem(last=False)
        return made
