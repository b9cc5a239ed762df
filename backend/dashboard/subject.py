"""What a page is about: a project, the model and the thresholds that serve it, and the days that are looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy.orm import Session

from backend.domain.guarantee import Guarantee
from backend.domain.records import Cell, ModelRecord, ProjectRecord
from backend.errors import InvalidLabelConfig, ModelUnavailable, NotFound
from backend.prediction.calibration import known_method
from backend.prediction.starter import has_starter
from backend.serving.service import Service
from backend.settings import Settings
from backend.store.calibration import load_cells
from backend.store.judgements import CoverageRow, coverage_rows
from backend.store.overview import VersionSummary, active_summary
from backend.store.projects import find_project, lookup_model
from backend.tagger.identity import ModelHeader
from backend.worth.report import worth_report

PERIODS = (30, 90, 365)  # days that a page can look back
PERIOD = 90


@dataclass
class Subject:
    """Everything that the figures of a project are made from; counters are read when a figure asks for them, once."""

    session: Session
    settings: Settings
    project: ProjectRecord
    header: ModelHeader | None
    model: ModelRecord | None
    version: VersionSummary | None
    days: int = PERIOD
    starter: bool = False  # whether the model has a starter calibration, which serves where own labels are too few
    unknown: tuple[str, ...] = ()  # labels of the project that the model does not know
    measured: dict[str, Any] | None = None  # figures of its worth made just now; else the kept ones are shown
    today: date = field(default_factory=lambda: datetime.now(UTC).date())

    @property
    def alpha(self) -> str:
        """The alpha that is served: the version's, the settings' while the starter serves."""
        return self.settings.alpha if self.version is None else self.version.alpha

    @property
    def blank(self) -> bool:
        """Whether the model knows no label of the project, so that its tasks come blank."""
        return self.header is not None and self.header.blank

    @property
    def wanted_alpha(self) -> str:
        """The alpha that the next refit uses."""
        return self.project.alpha or self.settings.alpha

    @property
    def target(self) -> float:
        """The share of labels that sets are to hold."""
        return 1.0 - float(self.alpha)

    @property
    def since(self) -> date:
        """The first day that is counted."""
        return self.today - timedelta(days=self.days - 1)

    @property
    def name(self) -> str:
        """What to call the project."""
        return self.project.title or f"Project {self.project.key}"

    @cached_property
    def rows(self) -> list[CoverageRow]:
        """Counters of judged labels in these days, of sets served at the alpha that is served now."""
        if self.model is None:
            return []
        counted = coverage_rows(self.session, self.project.id, model_id=self.model.id, since=self.since)
        return [row for row in counted if row.alpha == self.alpha]

    @cached_property
    def cells(self) -> list[Cell]:
        """Counters of the labels that may calibrate."""
        return [] if self.model is None else load_cells(self.session, self.project.id, model_id=self.model.id)

    @cached_property
    def excluded(self) -> list[Cell]:
        """Counters of the labels that may not."""
        if self.model is None:
            return []
        return load_cells(self.session, self.project.id, model_id=self.model.id, excluded=True)

    @cached_property
    def worth(self) -> dict[str, Any]:
        """What the project's prelabels are worth: the record that was kept, and what comes next."""
        return worth_report(
            self.session,
            self.project,
            self.model,
            settings=self.settings,
            figures=self.measured,
            cells=self.cells,
        )


def find_subject(service: Service, session: Session, uid: str, *, days: int = PERIOD) -> Subject:
    """Return the project with this uid or id as a page sees it.

    Raises:
        NotFound: when there is none.
    """
    project = None if "\x00" in uid else find_project(session, uid)
    if project is None:
        raise NotFound("expected the id or uid of a project, got one that does not exist: see the list of projects")
    header, model, version = header_of(service, project), None, None
    if header is not None:
        model = lookup_model(session, header.name, header.hash)
    if model is not None:
        version = active_summary(session, project.id, model_id=model.id)
    unknown = () if header is None else service.views.unknown_labels(project, header)
    starter = has_starter_of(service, project)
    return Subject(session, service.settings, project, header, model, version, days, starter, unknown)


def has_starter_of(service: Service, project: ProjectRecord) -> bool:
    """Whether a starter calibration serves a project while its own labels are too few: one beside its own model."""
    try:
        serving = service.views.serving(project.uid, project.label_config)
    except (InvalidLabelConfig, ModelUnavailable):
        return False
    return has_starter(serving.loader.directory, model_hash=serving.model.hash, classes=serving.model.classes)


def guarantee_word(version: VersionSummary | None, *, method: str, starter: bool) -> Guarantee:
    """Return what most sets of a project say of themselves.

    Args:
        version: the thresholds in use, None for those of the starter.
        method: of the settings, which the starter serves with.
        starter: whether there is one.
    """
    served = known_method(method if version is None else version.method)
    if served is None or served.worth != "exact":
        return Guarantee.NONE
    word = Guarantee.NONE if version is None else Guarantee(version.guarantee)
    return Guarantee.BORROWED if word is Guarantee.NONE and starter else word


def header_of(service: Service, project: ProjectRecord) -> ModelHeader | None:
    """Return the model that serves a project, None while nothing is known of it."""
    try:
        return service.views.serving_model(project)
    except ModelUnavailable:
        return None
