"""A recipe of the bundled model, and what it says about some texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from backend.demo.sample import sample_texts
from backend.settings import load_settings

if TYPE_CHECKING:
    from backend.preannotate.recipe import Item, Recipe
    from backend.prediction.answer import Answer
    from backend.prediction.predictor import Predictor

TEXTS = 120


@dataclass(frozen=True)
class Known:
    """A predictor, its recipe, texts, and what the predictor says about them."""

    predictor: Predictor
    recipe: Recipe
    items: list[Item]
    answers: list[Answer | None]

    def groups(self, size: int = 50) -> list[list[Item]]:
        """The texts in groups, an empty one among them."""
        made = [self.items[first : first + size] for first in range(0, len(self.items), size)]
        return [made[0], [], *made[1:]]

    def expected(self, size: int = 50) -> list[list[Answer | None]]:
        """What comes back for `groups`."""
        made = [self.answers[first : first + size] for first in range(0, len(self.items), size)]
        return [made[0], [], *made[1:]]


@pytest.fixture(scope="session")
def known() -> Known:
    from backend.calibration.local_predictor import local_predictor
    from backend.models.loading import ModelLoader
    from backend.preannotate.files import config_of
    from backend.preannotate.recipe import Item, predict_items, recipe_of

    settings = load_settings()
    predictor = local_predictor(settings)
    origin = ModelLoader(settings).header().origin
    assert origin is not None
    config = config_of(predictor.tagger.space.classes)
    recipe = recipe_of(predictor, origin=origin, label_config=config, control=None, threads=1)
    texts = [each["text"][:120] for each in sample_texts()]
    items = [Item(str(i), f"{texts[i % len(texts)]} {i}") for i in range(TEXTS)]
    return Known(predictor, recipe, items, predict_items(predictor, items))
