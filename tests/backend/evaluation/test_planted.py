"""Planted errors: each is one mistake of its kind, and the study of second looks runs on a small sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backend.evaluation.planted import KINDS, plant_error
from backend.evaluation.second_looks import PlantedTexts, decode_planted, label_order_trial, queue_trial, run_trial
from backend.tagger.loading import load_tagger
from backend.tagger.readers import read_labelled
from conformal.labels import Span
from tests.support.paths import SAMPLE

WORDS = ["Anna", "Smith", "lives", "in", "Bonn", "today", "."]
LABEL = (Span(0, 2, "PER"), Span(4, 5, "LOC"))


def test_every_kind_of_error_is_one_change() -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(300):
        made = plant_error(LABEL, WORDS, classes=("LOC", "ORG", "PER"), rng=rng, boundaries=(4,))
        assert made is not None
        seen.add(made.kind)
        gone, new = set(LABEL) - set(made.spans), set(made.spans) - set(LABEL)
        assert not any(span.start < 4 < span.end for span in made.spans)
        if made.kind == "class":
            (old,), (now,) = gone, new
            assert (old.start, old.end) == (now.start, now.end)
        elif made.kind == "boundary":
            (old,), (now,) = gone, new
            assert abs(old.start - now.start) + abs(old.end - now.end) == 1
            assert old.label == now.label
        elif made.kind == "dropped":
            assert (len(gone), len(new)) == (1, 0)
        else:
            (now,) = new
            assert not gone
            assert WORDS[now.start][0].isalpha()
    assert seen == set(KINDS)


def test_a_label_that_allows_no_error_has_none() -> None:
    assert plant_error((), ["."], classes=("PER",), rng=np.random.default_rng(0)) is None
    only = plant_error((), ["now", "Anna"], classes=("PER",), rng=np.random.default_rng(0))
    assert only is not None
    assert only.spans == (Span(1, 2, "PER"),)  # where there is a capital, it is there


@pytest.fixture(scope="module")
def planted(tiny_model: Path) -> PlantedTexts:
    return decode_planted(load_tagger(tiny_model), read_labelled(SAMPLE).texts)


def test_planted_labels_are_stranger(planted: PlantedTexts, tmp_path: Path) -> None:
    assert planted.score.shape == planted.nll.shape == (len(planted), 2)
    assert np.mean(planted.score[:, 1] > planted.score[:, 0]) > 0.9
    planted.save(tmp_path / "kept.safetensors")
    again = PlantedTexts.load(tmp_path / "kept.safetensors")
    assert np.array_equal(again.score, planted.score)
    assert len(PlantedTexts.join([again, again])) == 2 * len(planted)


def test_a_trial_judges_the_list_by_what_was_planted(planted: PlantedTexts) -> None:
    data = PlantedTexts.join([planted] * 40)
    made = run_trial(data, rng=np.random.default_rng(3), share=0.1, fdr="0.2")
    assert made.listed > 20
    assert made.precision > 0.6
    assert made.recall >= made.plain_recall - 0.1
    assert len(made.false) == round(made.listed * (1 - made.precision))
    assert 0 < made.found_by_checks <= made.checks
    nothing = run_trial(data, rng=np.random.default_rng(3), share=0.1, fdr="0.2", most_checks=0)
    assert nothing.listed < made.listed / 4  # as many errors in the reference as elsewhere


def test_orders_of_review_are_compared(planted: PlantedTexts) -> None:
    rng = np.random.default_rng(0)
    found = queue_trial(PlantedTexts.join([planted] * 5), rng=rng)
    assert set(found) >= {"random", "least confidence", "the queue's value of a look"}
    early = label_order_trial(PlantedTexts.join([planted] * 5), rng=rng, share=0.1)
    assert early["least plausible word (second looks)"] > early["random"] + 0.2
