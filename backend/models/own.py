"""A project's own model as the rest knows models: by a header, an origin, and as the project's label config sees it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from backend.domain.project_model import STORED, ProjectModel
from backend.domain.records import ProjectRecord
from backend.domain.units import TASK
from backend.errors import InvalidLabelConfig
from backend.labelstudio.config import parse_config
from backend.models.loading import ModelLoader
from backend.models.stored import StoredModels
from backend.settings import Settings
from backend.store import Store
from backend.store.project_models import serving_model
from backend.store.projects import find_project
from backend.tagger.configured import load_configured
from backend.tagger.hashes import whole_hash
from backend.tagger.identity import ModelHeader, Origin, viewed
from backend.tagger.tagger import Tagger


def own_header(model: ProjectModel, *, unit: str) -> ModelHeader:
    """Return what can be known of a project's own model without loading it, over the units that the settings name.

    It is run as it was stored: the settings about checkpoints and encoders (`MODEL_MAP`, `INT8`) are about
    `SURESPAN_MODEL`.
    """
    digest = whole_hash(model.model_hash) if unit == TASK else model.model_hash
    origin = Origin(model.source, digest, model.classes, unit=unit)
    return ModelHeader(model.name, digest, model.classes, origin)


def stored_hash(origin: Origin) -> str | None:
    """Return the hash under which the database keeps a model, None for one that came from elsewhere.

    >>> stored_hash(Origin("stored:ab", "cd", ("Drug",))), stored_hash(Origin("bundled", "cd", ("PER",)))
    ('ab', None)
    """
    return origin.source.removeprefix(STORED) if origin.source.startswith(STORED) else None


def seen_header(header: ModelHeader, label_config: str | None, *, control: str | None) -> ModelHeader:
    """Return a model as a project with this label config sees it; as it is where the config cannot be used."""
    if label_config is None:
        return header
    try:
        return viewed(header, parse_config(label_config).target(header.classes, control=control))
    except InvalidLabelConfig:
        return header


def model_for(session: Session, project: ProjectRecord, *, settings: Settings) -> ModelHeader:
    """Return the model that a project of the database has: its own if one serves it, else that of the settings.

    Over all its classes, and without loading it. `models.views.Views` decides the same for whoever needs it loaded.

    Raises:
        ModelUnavailable: when nothing is known of the settings' model yet.
    """
    own = serving_model(session, project.id)
    return ModelLoader(settings).header() if own is None else own_header(own, unit=settings.unit)


def load_model_for(store: Store, key: str, *, settings: Settings) -> Tagger:
    """Load the model of the project of this id or uid, for a command: its own, else that of the settings.

    Raises InvalidModel.
    """
    with store.read() as session:
        project = find_project(session, key)
        own = None if project is None else serving_model(session, project.id)
    if own is None:
        return load_configured(settings)
    place = StoredModels(store, settings.models_directory).fetch(own.model_hash)
    return load_configured(settings.model_copy(update={"model": str(place), "model_map": None, "int8": False}))
