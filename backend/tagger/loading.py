"""Load a tagger: the bundled one, one of ours, or a checkpoint of `transformers`, which alone brings torch in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backend.tagger.compiled.loading import load_network
from backend.tagger.linear.saved import load_linear_tagger
from backend.tagger.model_files import BUNDLED, Kind, model_directory, model_kind
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.options import TaggerOptions
from backend.tagger.tagger import Tagger


def load_tagger(
    model: str | Path = BUNDLED,
    *,
    languages: Sequence[str] | None = None,
    concurrency: int = 1,
    options: TaggerOptions | None = None,
) -> Tagger:
    """Load a tagger: `bundled`, the directory of a model made by `surespan train`, or a checkpoint of `transformers`.

    A checkpoint is named by its folder or hub id. `languages` restricts language identification; without it, the
    model's own. Raises InvalidModel.
    """
    kind = model_kind(model)
    directory = model_directory(model)
    if kind is Kind.NETWORK:
        return NetworkTagger(load_network(directory), languages=languages, concurrency=concurrency)
    if kind is Kind.LINEAR:
        return load_linear_tagger(directory, languages=languages, concurrency=concurrency)
    # torch and transformers take seconds to import, which a model of ours need not wait for.
    if kind is Kind.ENCODER:
        from backend.tagger.encoder.saved import load_encoder_tagger  # noqa: PLC0415

        return load_encoder_tagger(directory, languages=languages, concurrency=concurrency, options=options)
    from backend.tagger.hf.loading import load_checkpoint_tagger  # noqa: PLC0415

    return load_checkpoint_tagger(str(model), languages=languages, concurrency=concurrency, options=options)
