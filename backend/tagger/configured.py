"""The model that the settings name, run as they say. Light until it loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backend.settings import Settings
from backend.tagger.options import TaggerOptions
from backend.tagger.places import BUNDLED, Header, read_header

if TYPE_CHECKING:  # torch takes seconds to import
    from backend.tagger.tagger import Tagger


def tagger_options(settings: Settings) -> TaggerOptions:
    """Return how the settings want a model to be run."""
    return TaggerOptions(
        mapping=None if settings.model_map is None else Path(settings.model_map),
        threads=settings.torch_threads,
        int8=settings.int8,
        device=settings.device,
    )


def load_configured(settings: Settings) -> Tagger:
    """Load the model that the settings name.

    Raises InvalidModel.
    """
    from backend.tagger.tagger import load_tagger  # noqa: PLC0415 - as above

    return load_tagger(settings.model or BUNDLED, options=tagger_options(settings))


def configured_header(settings: Settings) -> Header | None:
    """Say name, hash and classes of that model without loading it; None while they cannot be known."""
    return read_header(settings.model or BUNDLED, tagger_options(settings))
