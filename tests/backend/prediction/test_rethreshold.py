"""Sets cut again from stored lists are those that the model would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.prediction.answer import Answer, answer_of
from backend.prediction.calibration import Calibration
from backend.prediction.predictor import Predictor
from backend.prediction.promise import describe_promise
from backend.prediction.rethreshold import Remembered, rethreshold
from backend.prediction.starter import starter_calibration
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import model_directory
from backend.tagger.network_tagger import NetworkTagger
from conformal.scores import Method

TEXTS = [
    "Jordan Miller met Angela Merkel in Berlin.",
    "Washington beat Manchester in the last minute.",
    "🙂 Siemens opens an office in Paris,\r\nsays Maria Lopez.",
    "It rained all day.",
    "",
    "May went to Reading to see Charlotte Apple and Amazon of Jordan.",
]


@pytest.fixture(scope="module")
def tagger() -> NetworkTagger:
    return load_tagger()


def remember(predictor: Predictor) -> list[Remembered]:
    method = predictor.calibration.thresholds.entity_method
    return [
        Remembered(answer_of(each).ranked, each.sets.stratum, each.language, method)
        for each in predictor.predict(TEXTS)
    ]


def calibrated(tagger: NetworkTagger, method: str) -> Calibration:
    return replace(starter_calibration(tagger, model_directory(), method=Method(method)), version=9)


def close(one: Answer, other: Answer) -> None:
    """Texts that are tagged in another batch differ in the last bits of a float; everything else is the same."""
    assert [each.spans for each in one.labelings] == [each.spans for each in other.labelings]
    assert [each.probability for each in one.labelings] == pytest.approx(
        [each.probability for each in other.labelings], rel=1e-4
    )
    fields = "language length stratum pool alpha n tau guarantee threshold_version model_version open set_size"
    for name in fields.split():
        assert getattr(one, name) == getattr(other, name)
    assert [(s.start, s.end, s.flagged, len(s.labels)) for s in one.spans] == [
        (s.start, s.end, s.flagged, len(s.labels)) for s in other.spans
    ]


@pytest.mark.parametrize(
    ("method", "alpha", "most_computed"),
    [
        ("nc1", "0.1", 0),
        ("nc3", "0.1", 0),
        ("nc2", "0.1", 6),
        ("nc1", "0.001", 6),
        ("conditional_paper+nc1", "0.3", 6),
    ],
)
def test_a_list_answers_at_another_threshold_as_the_model_would(
    tagger: NetworkTagger, method: str, alpha: str, most_computed: int
) -> None:
    lists = remember(Predictor(tagger, calibrated(tagger, "nc1"), alpha="0.3"))
    later = Predictor(tagger, calibrated(tagger, method), alpha=alpha)
    cut = [rethreshold(later, text, remembered) for text, remembered in zip(TEXTS, lists, strict=True)]
    for one, other in zip(cut, later.predict(TEXTS), strict=True):
        if one is not None:
            close(answer_of(one), answer_of(other))
            assert one.worth == other.worth
            assert describe_promise(one) == describe_promise(other)
    assert sum(each is None for each in cut) <= most_computed


def test_sets_of_a_method_without_a_proof_say_so_from_a_list_too(tagger: NetworkTagger) -> None:
    lists = remember(Predictor(tagger, calibrated(tagger, "nc1"), alpha="0.3"))
    later = Predictor(tagger, calibrated(tagger, "conditional_paper+nc1"), alpha="0.3")
    cut = [
        made for text, each in zip(TEXTS, lists, strict=True) if (made := rethreshold(later, text, each)) is not None
    ]
    assert cut
    for each in cut:
        assert each.worth == "approximate"
        assert "the sets of this method are approximate" in describe_promise(each)


def test_open_sets_need_no_model(tagger: NetworkTagger) -> None:
    lists = remember(Predictor(tagger, calibrated(tagger, "nc1")))
    nothing = replace(starter_calibration(tagger, model_directory() / "nowhere"), version=3)
    predictor = Predictor(tagger, nothing)
    for text, remembered in zip(TEXTS, lists, strict=True):
        made = rethreshold(predictor, text, remembered)
        assert made is not None
        assert answer_of(made).open


def test_damaged_or_foreign_lists_are_left_to_the_model(tagger: NetworkTagger) -> None:
    predictor = Predictor(tagger, calibrated(tagger, "nc1"))
    first, second, *_ = remember(predictor)
    assert rethreshold(predictor, TEXTS[0], first) is not None
    assert rethreshold(predictor, TEXTS[0], replace(first, ranked=second.ranked)) is None
    assert rethreshold(predictor, TEXTS[0], replace(first, ranked=first.ranked[:-3])) is None
    assert rethreshold(predictor, TEXTS[0], replace(first, stratum="nowhere")) is None
    other = replace(first.entity_method, p_min=0.2)
    assert rethreshold(predictor, TEXTS[0], replace(first, entity_method=other)) is None
