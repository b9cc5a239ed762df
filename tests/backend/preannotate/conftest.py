"""A recipe of the bundled model, and what it says about some texts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from backend.demo.sample import sample_texts
from backend.local import local_predictor
from backend.outcome import Outcome
from backend.preannotate.files import config_of
from backend.preannotate.recipe import Item, Recipe, predict_items, recipe_of
from backend.predictor import Predictor
from backend.serving.loading import ModelLoader
from backend.settings import load_settings

TEXTS = 120


@dataclass(frozen=True)
class Known:
    """A predictor, its recipe, texts, and what the predictor says about them."""

    predictor: Predictor
    recipe: Recipe
    items: list[Item]
    outcomes: list[Outcome | None]

    def groups(self, size: int = 50) -> list[list[Item]]:
        """The texts in groups, an empty one among them."""
        made = [self.items[first : first + size] for first in range(0, len(self.items), size)]
        return [made[0], [], *made[1:]]

    def expected(self, size: int = 50) -> list[list[Outcome | None]]:
        """What comes back for `groups`."""
        made = [self.outcomes[first : first + size] for first in range(0, len(self.items), size)]
        return [made[0], [], *made[1:]]


@pytest.fixture(scope="package")
def known() -> Known:
    settings = load_settings()
    predictor = local_predictor(settings)
    origin = ModelLoader(settings).header().origin
    assert origin is not None
    config = config_of(predictor.tagger.space.classes)
    recipe = recipe_of(predictor, origin=origin, label_config=config, control=None, project="local", threads=1)
    texts = [each["text"][:120] for each in sample_texts()]
    items = [Item(str(i), f"{texts[i % len(texts)]} {i}") for i in range(TEXTS)]
    return Known(predictor, recipe, items, predict_items(predictor, items))
