from pathlib import Path

import pytest
import torch
from rich.console import Console

from backend.tagger.corpus import Variation
from backend.tagger.features import FeatureConfig
from backend.tagger.network import NetworkConfig
from backend.tagger.training import TrainingConfig
from backend.tagger.training_run import train_model

SAMPLE = Path(__file__).parents[2] / "data" / "sample.conll"

TINY = TrainingConfig(
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


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sample() -> Path:
    return SAMPLE


@pytest.fixture(scope="session")
def tiny() -> TrainingConfig:
    return TINY


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained for a few seconds: real in every part, only small.

    Each sentence it is trained on is one of the sample with a word added, so that the sample itself is new to it and
    can calibrate it (a text seen in training is a stratum of its own).
    """
    out = tmp_path_factory.mktemp("tiny-model")
    data = reworded(out.parent)
    train_model([data], out, config=TINY, dev=[data], name="tiny", console=Console(quiet=True))
    return out


def reworded(directory: Path) -> Path:
    """Write the sample with one more word at the end of each sentence; return the file."""
    path = directory / "reworded.conll"
    path.write_text(SAMPLE.read_text(encoding="utf-8").replace("\n\n", "\n-\tO\n\n"), encoding="utf-8")
    return path
