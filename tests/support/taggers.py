"""A tagger trained for a few seconds: real in every part, only small. Made once for all processes of the tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import SAMPLE
from tests.support.sharing import make_once

if TYPE_CHECKING:
    from backend.tagger.training import TrainingConfig


def small_training() -> TrainingConfig:
    """Return the settings of a training that takes seconds."""
    from backend.tagger.corpus import Variation
    from backend.tagger.features import FeatureConfig
    from backend.tagger.model_info import NetworkConfig
    from backend.tagger.training import TrainingConfig

    return TrainingConfig(
        epochs=14,
        seed=3,
        batch_tokens=120,
        rate=1e-2,
        table_rate=2e-2,
        dropout=0.1,
        word_dropout=0.05,
        feature_dropout=0.05,
        patience=14,
        variation=Variation(upper=0.0, lower=0.0, title=0.0, clause=0.2, cut=0.1),
        features=FeatureConfig(word_rows=2048, prefix_rows=512, suffix_rows=512, shape_rows=128, ngram_rows=1024),
        network=NetworkConfig(
            word_width=16, affix_width=8, shape_width=4, ngram_width=8, mixed_width=24, hidden=16, layers=2
        ),
    )


@pytest.fixture(scope="session")
def sample() -> Path:
    return SAMPLE


@pytest.fixture(scope="session")
def tiny() -> TrainingConfig:
    return small_training()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, without a starter.

    Each sentence it is trained on is one of the sample with a word added, so that the sample itself is new to it and
    can calibrate it (a text seen in training is a stratum of its own).
    """

    def train(out: Path) -> None:
        from rich.console import Console

        from backend.tagger.training_run import train_model

        data = reworded(tmp_path_factory.mktemp("reworded"))
        train_model([data], out, config=small_training(), dev=[data], name="tiny", console=Console(quiet=True))

    return make_once(tmp_path_factory, "tiny-model", train)


@pytest.fixture(scope="session")
def served_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with starters for all of its classes and for those of the test project."""

    def add_starters(out: Path) -> None:
        from backend.prediction.make_starter import make_starter
        from backend.prediction.starter import save_starter
        from backend.tagger.folded import restrict
        from backend.tagger.loading import load_tagger

        shutil.copytree(tiny_model, out, dirs_exist_ok=True)
        tagger = load_tagger(out)
        for classes in (tagger.space.classes, ("LOC", "PER")):
            starter = make_starter(restrict(tagger, classes), [SAMPLE] * 4, per_file=10_000, seed=0, about="the sample")
            save_starter(starter, out)

    return make_once(tmp_path_factory, "served-model", add_starters)


def reworded(directory: Path) -> Path:
    """Write the sample with one more word at the end of each sentence; return the file."""
    path = directory / "reworded.conll"
    path.write_text(SAMPLE.read_text(encoding="utf-8").replace("\n\n", "\n-\tO\n\n"), encoding="utf-8")
    return path
