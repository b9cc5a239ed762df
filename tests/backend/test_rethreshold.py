"""Sets cut again from stored lists are those that the model would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.outcome import Outcome, outcome_of
from backend.predictor import Calibration, Predictor, starter_calibration
from backend.rethreshold import Remembered, RememberingPredictor
from backend.store.projects import text_hash
from backend.tagger.tagger import NetworkTagger, load_tagger, model_directory
from conformal.scores import Boundary, Method

TEXTS = [
    "Jordan Miller met Angela Merkel in Berlin.",
    "Washington beat Manchester in the last minute.",
    "🙂 Siemens opens an office in Paris,\r\nsays Maria Lopez.",
    "It rained all day.",
    "",
    "May went to Reading to see Charlotte Apple and Amazon of Jordan.",
]
NAMES = [str(i) for i in range(len(TEXTS))]


@pytest.fixture(scope="module")
def tagger() -> NetworkTagger:
    return load_tagger()


def remember(predictor: Predictor) -> dict[tuple[str, bytes], Remembered]:
    made = predictor.predict(TEXTS, tasks=NAMES)
    method = predictor.calibration.thresholds.entity_method
    return {
        (name, text_hash(text)): Remembered(outcome_of(each).ranked, each.sets.stratum, each.tagged.language, method)
        for name, text, each in zip(NAMES, TEXTS, made, strict=True)
    }


def calibrated(tagger: NetworkTagger, method: str, boundary: Boundary = Boundary.INCLUDE) -> Calibration:
    return replace(starter_calibration(tagger, model_directory(), method=Method(method, boundary)), version=9)


def close(one: Outcome, other: Outcome) -> None:
    """Texts that are tagged in another batch differ in the last bits of a float; everything else is the same."""
    assert [each.spans for each in one.labelings] == [each.spans for each in other.labelings]
    assert [each.probability for each in one.labelings] == pytest.approx(
        [each.probability for each in other.labelings], rel=1e-4
    )
    fields = "language length stratum pool alpha n tau guarantee threshold_version model_version open set_size promise"
    for name in fields.split():
        assert getattr(one, name) == getattr(other, name)
    assert [(s.start, s.end, s.flagged, len(s.labels)) for s in one.spans] == [
        (s.start, s.end, s.flagged, len(s.labels)) for s in other.spans
    ]


@pytest.mark.parametrize(
    ("method", "boundary", "alpha", "most_computed"),
    [
        ("nc1", Boundary.INCLUDE, "0.1", 0),
        ("nc1", Boundary.SMOOTHED, "0.2", 0),
        ("nc3", Boundary.INCLUDE, "0.1", 0),
        ("nc2", Boundary.INCLUDE, "0.1", 6),
        ("nc1", Boundary.INCLUDE, "0.001", 6),
    ],
)
def test_a_list_answers_at_another_threshold_as_the_model_would(
    tagger: NetworkTagger, method: str, boundary: Boundary, alpha: str, most_computed: int
) -> None:
    lists = remember(Predictor(tagger, calibrated(tagger, "nc1"), alpha="0.3", project="p"))
    later = Predictor(tagger, calibrated(tagger, method, boundary), alpha=alpha, project="p")
    again = RememberingPredictor(later, lists)
    got = again.predict(TEXTS, tasks=NAMES)
    for one, other in zip(got, later.predict(TEXTS, tasks=NAMES), strict=True):
        close(outcome_of(one), outcome_of(other))
    assert again.computed <= most_computed
    assert again.reused + again.computed == len(TEXTS)


def test_open_sets_need_no_model(tagger: NetworkTagger) -> None:
    lists = remember(Predictor(tagger, calibrated(tagger, "nc1"), project="p"))
    nothing = replace(starter_calibration(tagger, model_directory() / "nowhere"), version=3)
    again = RememberingPredictor(Predictor(tagger, nothing, project="p"), lists)
    assert all(outcome_of(each).open for each in again.predict(TEXTS, tasks=NAMES))
    assert again.computed == 0


def test_another_text_under_the_same_task_is_predicted_anew(tagger: NetworkTagger) -> None:
    lists = remember(Predictor(tagger, calibrated(tagger, "nc1"), project="p"))
    again = RememberingPredictor(Predictor(tagger, calibrated(tagger, "nc1"), project="p"), lists)
    (made,) = again.predict(["Jordan Miller met Angela Merkel in Bonn."], tasks=[NAMES[0]])
    assert made.tagged.text.endswith("Bonn.")
    assert (again.reused, again.computed) == (0, 1)


def test_damaged_or_foreign_lists_fall_back_to_the_model(tagger: NetworkTagger) -> None:
    predictor = Predictor(tagger, calibrated(tagger, "nc1"), project="p")
    lists = remember(predictor)
    key = (NAMES[0], text_hash(TEXTS[0]))
    foreign = {key: replace(lists[key], ranked=lists[NAMES[1], text_hash(TEXTS[1])].ranked)}
    again = RememberingPredictor(predictor, foreign)
    close(
        outcome_of(again.predict(TEXTS[:1], tasks=NAMES[:1])[0]),
        outcome_of(predictor.predict(TEXTS[:1], tasks=["0"])[0]),
    )
    assert again.computed == 1
