"""The model that the settings name, run as they say. Light until it loads."""

from __future__ import annotations

from pathlib import Path

from backend.domain.units import TASK
from backend.settings import Settings
from backend.tagger.hashes import whole_hash
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import BUNDLED, Header, read_header
from backend.tagger.options import TaggerOptions
from backend.tagger.tagger import Tagger
from backend.tagger.whole import WholeTexts


def tagger_options(settings: Settings) -> TaggerOptions:
    """Return how the settings want a model to be run."""
    return TaggerOptions(
        mapping=None if settings.model_map is None else Path(settings.model_map),
        threads=settings.torch_threads,
        int8=settings.int8,
        device=settings.device,
    )


def load_configured(settings: Settings) -> Tagger:
    """Load the model that the settings name, over the units that they name.

    Raises InvalidModel.
    """
    tagger = load_tagger(settings.model or BUNDLED, options=tagger_options(settings))
    return WholeTexts(tagger) if settings.unit == TASK else tagger


def configured_header(settings: Settings) -> Header | None:
    """Say name, hash and classes of that model without loading it; None while they cannot be known."""
    header = read_header(settings.model or BUNDLED, tagger_options(settings))
    if header is None or settings.unit != TASK:
        return header
    return header._replace(hash=whole_hash(header.hash))
