"""The predictor of the project `local`: what commands use without Label Studio."""

from __future__ import annotations

from backend.predictor import Predictor, starter_calibration
from backend.settings import Settings
from backend.tagger.tagger import BUNDLED, load_tagger, model_directory
from conformal.scores import Method


def local_predictor(settings: Settings) -> Predictor:
    """Load the model that the settings name, with the calibration that applies to it."""
    name = settings.model or BUNDLED
    tagger = load_tagger(name)
    calibration = starter_calibration(
        tagger, model_directory(name), method=Method(settings.method), n_min=settings.n_min
    )
    return Predictor(
        tagger,
        calibration,
        alpha=settings.alpha,
        max_shown=settings.max_shown,
        max_sequences=settings.max_sequences,
    )
