"""A project as the service sees it: its label config, the thresholds that serve it now, their model, its predictor.

Thresholds are read from the database at most every few seconds, so a new version is picked up without a restart and a
busy project costs one small query now and then. A version is loaded once per process. Label configs are parsed once
per text of theirs.

Thresholds say something about one model only. When the settings name a new model, a project that has thresholds for
an earlier one goes on with that, model and all, until its labels have been scored under the new one and thresholds
fitted on them (METHODS 8.4); a version never serves without its model in memory.

A project's model is its own if one serves it (`backend.store.project_models`), else that of the settings: here it is
decided for everybody. A promotion is noticed as a new version is.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache, cached

from backend.domain.project_model import ProjectModel
from backend.domain.records import ProjectRecord, VersionRecord
from backend.domain.target import Target
from backend.errors import InvalidLabelConfig, ModelUnavailable
from backend.labelstudio.config import LabelConfig, parse_config
from backend.models.held import Models
from backend.models.loading import ModelLoader
from backend.models.own import own_header, stored_hash
from backend.models.polling import Polled
from backend.prediction.calibration import Calibration, version_method
from backend.prediction.predictor import Predictor
from backend.prediction.starter import starter_calibration
from backend.prediction.versions import Versions
from backend.settings import Settings
from backend.store import Store
from backend.store.handover import ActiveModel, active_models, handover_target
from backend.store.project_models import serving_model
from backend.store.projects import find_project
from backend.store.thresholds import load_version
from backend.tagger.identity import ModelHeader, origin_of, viewed
from backend.tagger.project_classes import project_tagger
from backend.tagger.tagger import Tagger
from conformal.scores import Method

_log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
STARTER = 0
_KEPT = 256
_HANDING_OVER = (
    "the project has thresholds for an earlier model: that one serves until its labels have been scored under the new"
)
_GOING_ON = "the settings' model knows no label of the project: its earlier model goes on, with the thresholds it has"
_UNKNOWN_ORIGIN = (
    "the project has thresholds for an earlier model, and it is not known where that came from: the new model serves, "
    "with borrowed thresholds or none, until the labels have been scored under it"
)
_CANNOT_LOAD = (
    "the project has thresholds for an earlier model that cannot be loaded any more: the new model serves, with "
    "borrowed thresholds or none, until the labels have been scored under it"
)
_OWN_FAILED = (
    "the project's own model cannot be loaded: what served before it answers until it can be; see `surespan models`, "
    "and go back to another model or train again"
)
_VERSIONS = 3  # models of a project whose thresholds are kept at hand


@dataclass(frozen=True)
class Known:
    """What the database says about a project: models that have thresholds for it, the last activated first.

    `awaited` is the hash of the model that its labels are being scored under: it does not serve before that is done.
    `own` is the project's own model, None where that of the settings is what it has.
    """

    label_config: str | None = None
    active: tuple[tuple[ActiveModel, VersionRecord], ...] = ()
    awaited: str | None = None
    own: ProjectModel | None = None

    def version_of(self, model: ModelHeader) -> VersionRecord | None:
        """Return the active thresholds for a model."""
        return next((version for each, version in self.active if each.model.hash == model.hash), None)


@dataclass(frozen=True)
class Serving:
    """Which model answers for a project now, and with which thresholds (None: the starter's)."""

    loader: ModelLoader
    model: ModelHeader
    version: VersionRecord | None


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


class Views:
    """Makes views. Safe to share between threads; only `view` waits for the model."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        loader: ModelLoader,
        *,
        poll: float = POLL_SECONDS,
        models: Models | None = None,
    ) -> None:
        self._settings, self._store, self._loader = settings, store, loader
        self.models = models or Models(settings, loader, store)
        self.polled: Polled[str, Known] = Polled(self._ask, every=poll)
        self._versions = Versions(calibrations=_KEPT)
        # Two threads may make the same thing at once; one of them is kept. Nothing kept here holds a model in memory.
        self._config: Callable[[str], LabelConfig] = cached(LRUCache(_KEPT), lock=threading.Lock())(parse_config)
        self._starter: Callable[[Tagger, Path, Method], Calibration] = cached(
            LRUCache(_KEPT), key=lambda tagger, _, method: (tagger.hash, method), lock=threading.Lock()
        )(self._make_starter)
        # It may read the version's whole content, which no request should wait for twice.
        self._method_of: Callable[[VersionRecord], Method] = cached(
            LRUCache(_KEPT), key=lambda version: version.id, lock=threading.Lock()
        )(version_method)
        self._fitted_on: Callable[[VersionRecord], tuple[str, ...]] = cached(
            LRUCache(_KEPT), key=lambda version: version.id, lock=threading.Lock()
        )(version_classes)
        self._said: set[tuple[str, ...]] = set()

    def target(self, label_config: str, classes: tuple[str, ...]) -> Target:
        """Return what a label config lets a model of these classes say.

        Raises:
            InvalidLabelConfig: when it cannot be read, or has no labels over a text.
        """
        return self._config(label_config).target(classes, control=self._settings.labels_control)

    def label_config(self, project: str, given: str | None) -> str:
        """Return the label config that came with a request, else the one known for the project.

        Raises:
            InvalidLabelConfig: when there is none.
        """
        config = given or self.known(project).label_config
        if config is None:
            self.polled.forget(project)  # another process may have heard of it a moment ago
            config = self.known(project).label_config
        if config is None:
            raise InvalidLabelConfig(
                "expected 'label_config' in the request, got none for an unknown project: send it, or call /setup"
            )
        return config

    def model_version(self, project: str, label_config: str) -> str:
        """Return the version that a prediction made now would carry; never waits for the model."""
        serving = self.serving(project, label_config)
        return f"{serving.model.version}+cal.{STARTER if serving.version is None else serving.version.id}"

    def model_of(self, project: ProjectRecord) -> ModelHeader:
        """Return the model of a project of the database as its label config sees it; never waits for the model.

        Its own as the database says in this moment, or that of the settings. It need not be the one that serves the
        project yet (`serving_model`).
        """
        return self._viewed(self.base_of(project).header(), project.label_config)

    def base_of(self, project: ProjectRecord) -> ModelLoader:
        """Return the loader of the model that a project of the database has in this moment, over all its classes.

        Its tagger is to be had from `models.tagger`, which makes room for it.
        """
        with self._store.read() as session:
            own = serving_model(session, project.id)
        return self._loader_of(own)

    def _loader_of(self, own: ProjectModel | None) -> ModelLoader:
        return self._loader if own is None else self.models.of(own_header(own, unit=self._settings.unit))

    def serving_model(self, project: ProjectRecord) -> ModelHeader:
        """Return the model that serves a project of the database now; never waits for the model."""
        try:
            return self.serving(project.uid, project.label_config).model
        except InvalidLabelConfig:
            return self._loader_of(self.known(project.uid).own).header()

    def unknown_labels(self, project: ProjectRecord, model: ModelHeader) -> tuple[str, ...]:
        """Return the labels of a project of the database that this view of a model does not know."""
        classes = () if model.blank else model.classes
        return self._unknown(project.label_config, classes)

    def serving(self, project: str, label_config: str | None) -> Serving:
        """Choose the model that answers for a project: the one it has, or an earlier one that has thresholds still.

        Without a label config over all of a model's classes. A model of the project's own that cannot be loaded is
        passed over.

        Raises:
            InvalidLabelConfig: when the config has no labels over a text.
            ModelUnavailable: when nothing is known of that model yet.
        """
        known = self.known(project)
        loader = self._loader_of(known.own)
        header = loader.header()
        broken = loader is not self._loader and loader.state == "failed"
        if broken:
            self._say_once(_OWN_FAILED, project, header.version)
        model = header if label_config is None else viewed(header, self.target(label_config, header.classes))
        version = self._fitting(project, model)
        if broken or version is None or known.awaited == model.hash:
            earlier = self._earlier(project, label_config, header)
            if earlier is not None:
                return earlier
        if broken:
            loader, model = self._loader, self._viewed(self._loader.header(), label_config)
            version = self._fitting(project, model)
        self.models.let_go()
        return Serving(loader, model, version)

    def _earlier(self, project: str, label_config: str | None, current: ModelHeader) -> Serving | None:
        """Return the last model with thresholds before the one that a project has, if it fits the config.

        Thresholds of a model of the project's own that rest on no label are no reason to hold back the next, nor to
        go back further.
        """
        for active, version in self.known(project).active:
            origin = origin_of(active.model.details)
            if origin is not None and origin.hash == current.hash:
                continue  # the same model over other classes
            if not active.n:
                if origin is not None and stored_hash(origin) is not None:
                    return None
                continue
            if origin is None:
                self._say_once(_UNKNOWN_ORIGIN, project, active.model.version)
                continue
            base = ModelHeader(active.model.name, origin.hash, origin.classes, origin)
            if self._viewed(base, label_config).hash != active.model.hash:
                continue  # the label config has changed since: these thresholds are about other classes
            loader = self.models.of(base)
            self.models.begin(loader)
            if loader.state == "failed":
                self._say_once(_CANNOT_LOAD, project, active.model.version)
                continue
            blank = self._viewed(current, label_config).blank
            self._say_once(_GOING_ON if blank else _HANDING_OVER, project, active.model.version)
            model = ModelHeader(active.model.name, active.model.hash, active.model.classes, origin)
            return Serving(loader, model, version)
        return None

    def _viewed(self, header: ModelHeader, label_config: str | None) -> ModelHeader:
        if label_config is None:
            return header
        try:
            return viewed(header, self.target(label_config, header.classes))
        except InvalidLabelConfig:
            return header

    def view(self, project: str, label_config: str, *, alpha: str | None = None) -> View:
        """Return the project ready to be predicted; waits for the model that serves it."""
        serving, tagger = self._loaded(project, label_config)
        target = self.target(label_config, tagger.space.classes)
        seen = project_tagger(tagger, target)
        if target.flag is None:
            self._say_once(
                "the label config has no control for doubtful spans: they are not marked, only described in meta; "
                'add <Labels name="flag"> with the label Needs review',
                project,
            )
        model = ModelHeader(seen.name, seen.hash, seen.space.classes, serving.model.origin, blank=target.blank)
        return View(project, target, model, self._predictor(project, seen, serving, alpha, unknown=target.unknown))

    def local(self, project: str, *, alpha: str | None = None) -> Predictor:
        """Return a predictor over all of a model's classes, for texts that belong to no label config."""
        serving, tagger = self._loaded(project, None)
        return self._predictor(
            project,
            tagger,
            serving,
            alpha,
            unknown=self._unknown(self.known(project).label_config, tagger.space.classes),
        )

    def _unknown(self, config: str | None, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the labels of a config that stand for none of these classes."""
        try:
            return () if config is None else self.target(config, classes).unknown
        except InvalidLabelConfig:
            return ()

    def _loaded(self, project: str, label_config: str | None) -> tuple[Serving, Tagger]:
        """Choose a model and wait for it; one that turns out not to load is passed over.

        Raises:
            ModelUnavailable: when the model is not there in time.
        """
        if self._loader.state != "ready" and self.known(project).own is None:
            try:
                self._loader.header()
            except ModelUnavailable:
                self._loader.tagger(self._settings.model_wait)
        while True:
            serving = self.serving(project, label_config)
            try:
                return serving, self.models.tagger(serving.loader, self._settings.model_wait)
            except ModelUnavailable:
                if serving.loader is self._loader or serving.loader.state != "failed":
                    raise

    def known(self, project: str) -> Known:
        """Return what the database says about a project: at most `poll` seconds old, older when it cannot be asked."""
        return self.polled.get(project) or Known()

    def _ask(self, project: str, before: Known | None) -> Known:
        held = {} if before is None else {version.id: version for _, version in before.active}
        with self._store.read() as session:
            row = find_project(session, project)
            if row is None:
                return Known()
            own = serving_model(session, row.id)
            active = []
            for i, each in enumerate(active_models(session, row.id)):
                if i >= _VERSIONS and (own is None or each.model.details.get("source") != own.source):
                    continue
                version = held.get(each.version_id) or load_version(session, each.version_id)
                if version is not None:
                    active.append((each, version))
            return Known(row.label_config, tuple(active), handover_target(session, row.id), own)

    def _fitting(self, project: str, model: ModelHeader) -> VersionRecord | None:
        """Return the active version if it was fitted on the model's classes; another says nothing about them."""
        version = self.known(project).version_of(model)
        if version is None:
            return None
        if self._fitted_on(version) != model.classes:
            self._say_once(
                "the active thresholds were fitted on other classes and are not used: refit the project",
                project,
                str(version.id),
            )
            return None
        return version

    def _predictor(
        self, project: str, tagger: Tagger, serving: Serving, alpha: str | None, *, unknown: tuple[str, ...] = ()
    ) -> Predictor:
        predictor = Predictor(
            tagger,
            self._calibration(tagger, serving),
            # A version carries the alpha it was fitted for: sets change with `model_version`, never under it.
            alpha=alpha or (self._settings.alpha if serving.version is None else serving.version.alpha),
            max_shown=self._settings.max_shown,
            max_sequences=self._settings.max_sequences,
            unknown=unknown,
        )
        self._say_once("version serves", project, predictor.model_version, level=logging.INFO)
        return predictor

    def _calibration(self, tagger: Tagger, serving: Serving) -> Calibration:
        version = serving.version
        method = Method(self._settings.method) if version is None else self._method_of(version)
        starter = self._starter(tagger, serving.loader.directory, method)
        if version is None:
            return starter
        # Where the version has too few labels the starter serves on, and its sets say so.
        return self._versions.calibration(version, fallback=starter)

    def _make_starter(self, tagger: Tagger, directory: Path, method: Method) -> Calibration:
        settings = self._settings
        return starter_calibration(tagger, directory, method=method, n_min=settings.n_min, flags=settings.risk_rule)

    def _say_once(self, message: str, project: str, model: str = "", *, level: int = logging.WARNING) -> None:
        if (message, project, model) not in self._said and len(self._said) < 10_000:
            self._said.add((message, project, model))
            _log.log(level, message, extra={"project": project} | ({"model_version": model} if model else {}))


def version_classes(version: VersionRecord) -> tuple[str, ...]:
    """Return the classes that a version was fitted on, without building it."""
    try:
        return tuple(json.loads(version.content)["classes"])
    except (ValueError, KeyError, TypeError):
        return ()
