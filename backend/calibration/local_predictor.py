"""The predictor of the commands that work without Label Studio. Brings the database in where there is one."""

from __future__ import annotations

from pathlib import Path

from backend.prediction.calibration import Calibration
from backend.prediction.predictor import Predictor
from backend.prediction.starter import starter_calibration
from backend.settings import DATABASE_FILE, DEFAULT_DATABASE, Settings, database_url
from backend.tagger.configured import load_configured
from backend.tagger.model_files import BUNDLED, model_directory
from backend.tagger.tagger import Tagger
from conformal.scores import Method


def local_predictor(settings: Settings) -> Predictor:
    """Load the model that the settings name, with the thresholds that serve it.

    Those of the database if the project `local` has any for this model; else the starter beside the model.
    """
    tagger = load_configured(settings)
    return Predictor(
        tagger,
        _stored(settings, tagger) or starter_of(settings, tagger),
        alpha=settings.alpha,
        max_shown=settings.max_shown,
        max_sequences=settings.max_sequences,
    )


def has_database(settings: Settings) -> bool:
    """Whether the database of the settings may have something to say; a file that is not there has not."""
    if settings.database_url == DEFAULT_DATABASE and not Path(DATABASE_FILE).exists():
        return False  # said without the library that reads such URLs
    url = database_url(settings.database_url)
    return url.get_backend_name() != "sqlite" or Path(url.database or "").exists()


def _stored(settings: Settings, tagger: Tagger) -> Calibration | None:
    if not has_database(settings):
        return None
    from backend.calibration.local import stored_calibration  # noqa: PLC0415

    return stored_calibration(settings, tagger)


def starter_of(settings: Settings, tagger: Tagger, method: Method | None = None) -> Calibration:
    """Return the starter calibration beside the model that the settings name, for this view of its classes."""
    directory = model_directory(settings.model or BUNDLED)
    return starter_calibration(
        tagger,
        directory,
        method=method or Method(settings.method),
        n_min=settings.n_min,
        flags=settings.risk_rule,
    )
