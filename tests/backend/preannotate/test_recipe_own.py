"""A project's own model goes along with the recipe: whoever predicts by it need not see the database."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from backend.models.packing import pack
from backend.preannotate.recipe import Item, Recipe, predict_items, recipe_of
from backend.prediction.predictor import Predictor
from backend.prediction.starter import starter_calibration
from backend.tagger.errors import InvalidModel
from backend.tagger.identity import Origin
from backend.tagger.loading import load_tagger
from tests.support.own_models import config_of, learn_own
from tests.support.toy_texts import toy_texts


def test_the_model_is_sent_along(tmp_path: Path) -> None:
    digest = learn_own(tmp_path / "own")
    tagger = load_tagger(tmp_path / "own")
    predictor = Predictor(tagger, starter_calibration(tagger, tmp_path), alpha="0.1")
    content = bytearray()
    pack(tmp_path / "own", content.extend)
    shutil.rmtree(tmp_path / "own")
    origin = Origin(f"stored:{digest}", digest, tagger.space.classes)
    config = config_of("Drug", "Symptom")
    recipe = recipe_of(predictor, origin=origin, label_config=config, control=None, packed=bytes(content))
    sent: Recipe = pickle.loads(pickle.dumps(recipe))  # noqa: S301 - made a moment ago
    items = [Item(str(i), text.text) for i, text in enumerate(toy_texts(5, seed=9))]
    assert predict_items(sent.predictor(), items) == predict_items(predictor, items)
    without = recipe_of(predictor, origin=origin, label_config=config, control=None)
    with pytest.raises(InvalidModel):
        without.predictor()
