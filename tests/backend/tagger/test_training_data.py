from __future__ import annotations

import numpy as np
import pytest

from backend.domain.records import TextSpan
from backend.tagger.readers import LabelledText
from backend.tagger.training_data import Material


def texts(count: int) -> list[LabelledText]:
    return [LabelledText(f"Anna{i} left.", (TextSpan(0, 4 + len(str(i)), "PER"),)) for i in range(count)]


@pytest.mark.parametrize(("count", "least"), [(2, 1), (9, 1), (20, 4), (50, 10), (60, 10)])
def test_a_few_of_few_texts_are_held_out(count: int, least: int) -> None:
    for seed in range(20):
        material = Material()
        chosen = material.hold_out(texts(count), share=0.03, rng=np.random.default_rng(seed))
        assert least <= len(material.known_held) <= max(least, 10)
        assert sum(chosen) == len(material.held)
        assert len(material.train) + len(material.held) == count


def test_of_many_texts_the_share_is_held_out_as_drawn() -> None:
    material = Material()
    chosen = material.hold_out(texts(5_000), share=0.03, rng=np.random.default_rng(1))
    assert chosen == [bool(draw < 0.03) for draw in np.random.default_rng(1).random(5_000)]


def test_nothing_is_held_out_where_nothing_is_asked_for() -> None:
    material = Material()
    material.hold_out(texts(50), share=0.0, rng=np.random.default_rng(1))
    assert material.held == []
