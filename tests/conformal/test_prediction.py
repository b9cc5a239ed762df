"""predict_set: what it reports, on what it rests, and that stored lists give the same answer."""

from __future__ import annotations

import numpy as np
import pytest

from conformal.errors import InvalidArgument, InvalidLabels, RankedListTooShort, UnknownStratum
from conformal.full import Ranked
from conformal.labels import LabelSpace, Span
from conformal.prediction import PredictionSet, Unit, predict_set, predict_sets, text_candidates
from conformal.rows import EntityRows, TaskRows, score_unit, task_rows
from conformal.scores import Boundary, Method
from conformal.strata import Strata
from conformal.subsequence import EntityMethod
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import Chain, Potentials, kbest

SPACE = LabelSpace(["PER", "LOC"])
CHAIN = Chain(
    transitions=np.where(SPACE.allowed, 0.0, -np.inf),
    start=np.where(SPACE.allowed_start, 0.0, -np.inf),
    end=np.zeros(5),
)
RNG = np.random.default_rng(12)


def text(length: int = 4, *, sharp: float = 2.0, rng: np.random.Generator = RNG) -> Potentials:
    return CHAIN.potentials(rng.normal(size=(length, 5)) * sharp)


def calibrated(**options: object) -> Thresholds:
    """Thresholds from 200 simulated texts whose labels are drawn from the model."""
    rng = np.random.default_rng(99)
    scored = []
    for task in range(200):
        potentials = text(rng=rng)
        best = kbest(potentials, 10**6)
        shares = np.exp(best.log_probabilities)
        labels = best.labels[rng.choice(best.count, p=shares / shares.sum())]
        scored.append(score_unit(potentials, SPACE, spans=SPACE.spans(labels), task=task, limit=10**6, top_k=50))
    rows = task_rows(["en/1-10"] * 200, scored, u=rng.random(200))
    entities = EntityRows.join([scores.entities for scores in scored])
    return calibrate(rows, entities, classes=SPACE.classes, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def thresholds() -> Thresholds:
    return calibrated()


def predict(potentials: Potentials | None, thresholds: Thresholds, **options: object) -> PredictionSet:
    given = {"stratum": "en/1-10", "alpha": "0.1", **options}
    return predict_set(potentials, SPACE, thresholds=thresholds, **given)  # type: ignore[arg-type]


def test_the_answer_carries_what_it_rests_on(thresholds: Thresholds) -> None:
    made = predict(text(), thresholds)
    assert (made.stratum, made.pool, made.n, made.alpha) == ("en/1-10", "en/1-10", 200, "0.1")
    assert made.threshold == thresholds.threshold("en/1-10", "0.1")
    assert not made.open
    assert made.set_size is not None
    assert made.uncalibrated == ()
    assert [labeling.rank for labeling in made.labelings] == list(range(1, len(made.labelings) + 1))
    assert len(made.labelings) == min(max(made.set_size, 1), 5)
    for labeling in made.labelings:
        assert labeling.spans == tuple(SPACE.spans(SPACE.encode(labeling.labels)))
        assert labeling.member == (labeling.p_value > 0.1)
        assert labeling.probability == pytest.approx(np.exp(labeling.log_probability))
    assert {(span.start, span.end) for span in made.labelings[0].spans} <= {(s.start, s.end) for s in made.spans}


def test_spans_hold_exactly_the_labels_with_p_above_alpha(thresholds: Thresholds) -> None:
    for _ in range(20):
        potentials = text()
        made = predict(potentials, thresholds)
        best = made.labelings[0].spans
        in_best = {(span.start, span.end): span.label for span in best}
        listed = text_candidates(potentials, SPACE, thresholds=thresholds, best=best)
        found = listed.above(thresholds.entity_method.p_min, extra=in_best)
        reported = {(span.start, span.end): span for span in made.spans}
        for key, row in zip(found.keys, found.probabilities, strict=True):
            held = {
                label
                for label, p in zip(("PER", "LOC", "O"), row.tolist(), strict=True)
                if -np.log(p) <= thresholds.label_threshold(label, "0.1")
            }
            if held - {"O"} or key in in_best:
                span = reported.pop(key)
                assert {label.label for label in span.labels} == held
                assert all(label.p_value > 0.1 for label in span.labels)
                assert [label.p_value for label in span.labels] == sorted(
                    (label.p_value for label in span.labels), reverse=True
                )
                if not span.flagged:
                    assert held == {in_best[key]}
        assert not reported


def test_a_certain_text_is_not_flagged_and_a_doubtful_one_is(thresholds: Thresholds) -> None:
    emissions = np.zeros((4, 5))
    emissions[0, 1] = emissions[1:, 0] = 14.0
    sure = predict(CHAIN.potentials(emissions), thresholds)
    assert [(s.start, s.end, [label.label for label in s.labels], s.flagged) for s in sure.spans] == [
        (0, 1, ["PER"], False)
    ]
    emissions[0, 3] = 13.8
    doubtful = predict(CHAIN.potentials(emissions), thresholds)
    assert doubtful.spans[0].flagged
    assert {label.label for label in doubtful.spans[0].labels} == {"PER", "LOC"}


def test_stored_lists_and_candidates_give_the_same_answer(thresholds: Thresholds) -> None:
    potentials = text()
    whole = predict(potentials, thresholds)
    ranked = Ranked.of(kbest(potentials, 2000))
    best = SPACE.spans(ranked.labels[0])
    candidates = text_candidates(potentials, SPACE, thresholds=thresholds, best=best)
    assert predict(None, thresholds, ranked=ranked, candidates=candidates) == whole
    short = Ranked.of(kbest(potentials, 1))
    assert predict(potentials, thresholds, ranked=short) == whole  # decoded further
    if whole.set_size and whole.set_size > 1:
        with pytest.raises(RankedListTooShort):
            predict(None, thresholds, ranked=short, candidates=candidates)


def test_open_and_empty_sets(thresholds: Thresholds) -> None:
    unknown = predict(text(), thresholds, stratum="sv/41+")
    assert (unknown.open, unknown.set_size, unknown.pool, unknown.n) == (True, None, "*/*", 0)
    assert len(unknown.labelings) == 5
    assert all(labeling.p_value == 1.0 and labeling.member for labeling in unknown.labelings)
    cut = predict(text(2, sharp=0.1), thresholds, alpha="0.02", max_sequences=7)
    assert (cut.open, cut.set_size) == (True, None)
    flat = CHAIN.potentials(np.zeros((30, 5)))
    empty = predict(flat, thresholds)
    assert (empty.empty, empty.set_size, empty.open) == (True, 0, False)
    assert [labeling.member for labeling in empty.labelings] == [False]
    nothing = predict(CHAIN.potentials(np.zeros((0, 5))), thresholds, stratum="empty")
    assert nothing.open
    assert nothing.labelings[0].labels == ()
    assert nothing.spans == ()


@pytest.mark.parametrize("name", ["nc1", "nc2", "nc3"])
@pytest.mark.parametrize("boundary", list(Boundary))
@pytest.mark.parametrize("top_k", [None, 50])
def test_every_method_predicts(name: str, boundary: Boundary, top_k: int | None) -> None:
    rng = np.random.default_rng(3)
    rows = TaskRows.of(
        ["en/1-10"] * 120,
        np.log(rng.uniform(0.05, 0.9, 120)),
        rank=rng.integers(1, 9, 120),
        cumulative=rng.uniform(0.5, 0.85, 120),
        mass=np.ones(120),
        u=rng.random(120),
    )
    entities = EntityRows.of(
        np.arange(360),
        ["PER", "LOC", "O"] * 120,
        probability=rng.random(360),
        cumulative=rng.random(360),
        class_rank=rng.integers(1, 4, 360),
    )
    made = calibrate(
        rows,
        entities,
        classes=SPACE.classes,
        method=Method(name, boundary, top_k=top_k),
        entity_method=EntityMethod(name, top_k=top_k),
    )
    found = predict(text(), made, u=0.37)
    assert not found.open
    assert found.labelings
    again = predict(text(), Thresholds.from_bytes(made.to_bytes()), u=0.37)
    assert not again.open


def test_uncalibrated_classes_are_named_and_stay_out() -> None:
    rows = TaskRows.of(["en/1-10"] * 150, np.log(np.linspace(0.2, 1.0, 150)))
    entities = EntityRows.of(np.arange(250), ["PER"] * 150 + ["O"] * 100, probability=np.linspace(0.02, 0.99, 250))
    made = calibrate(rows, entities, classes=SPACE.classes)
    assert made.uncalibrated == ("LOC",)
    emissions = np.zeros((2, 5))
    emissions[0, 3] = 9.0
    found = predict(CHAIN.potentials(emissions), made)
    assert found.uncalibrated == ("LOC",)
    span = next(s for s in found.spans if (s.start, s.end) == (0, 1))
    assert "LOC" not in {label.label for label in span.labels}
    assert span.flagged  # the best labeling says LOC, and nothing vouches for it


def test_classes_that_reach_beyond_the_candidates_are_named() -> None:
    rows = TaskRows.of(["en/1-10"] * 150, np.log(np.linspace(0.2, 1.0, 150)))
    wild = EntityRows.of(np.arange(150), ["PER"] * 150, probability=np.r_[np.full(50, 1e-4), np.full(100, 0.9)])
    made = calibrate(rows, wild, classes=SPACE.classes)
    assert predict(text(), made).open_labels == ("PER",)
    assert predict(text(), made, alpha="0.5").open_labels == ()


def test_bad_input_is_refused(thresholds: Thresholds) -> None:
    potentials = text()
    for alpha in ("0", "1", 1.2):
        with pytest.raises(InvalidArgument, match="alpha"):
            predict(potentials, thresholds, alpha=alpha)
    with pytest.raises(UnknownStratum):
        predict(potentials, thresholds, stratum="en/5-6")
    with pytest.raises(InvalidLabels, match="label space"):
        predict_set(potentials, LabelSpace(["LOC", "PER"]), stratum="en/1-10", thresholds=thresholds, alpha="0.1")
    with pytest.raises(InvalidArgument, match="max_shown"):
        predict(potentials, thresholds, max_shown=0)
    with pytest.raises(InvalidArgument, match="potentials or a ranked list"):
        predict(None, thresholds)
    with pytest.raises(InvalidArgument, match="potentials or candidates"):
        predict(None, thresholds, ranked=Ranked.of(kbest(potentials, 2000)))
    emissions = np.zeros((2, 5))
    emissions[0, 1] = 9.0
    sure = CHAIN.potentials(emissions)
    other = text_candidates(CHAIN.potentials(np.zeros((0, 5))), SPACE, thresholds=thresholds, best=[])
    with pytest.raises(InvalidArgument, match="among the candidates"):
        predict(sure, thresholds, candidates=other)
    smooth = calibrate(
        TaskRows.of(["en/1-10"] * 120, np.full(120, -1.0)),
        classes=SPACE.classes,
        method=Method("nc1", Boundary.SMOOTHED),
        strata=Strata(),
    )
    with pytest.raises(InvalidArgument, match="expected u"):
        predict(potentials, smooth)
    assert Span(0, 1, "PER") in predict(sure, thresholds).labelings[0].spans


@pytest.mark.parametrize("spans", ["nc1", "raps+nc1"])
def test_many_units_together_have_the_sets_they_have_alone(spans: str) -> None:
    fitted = calibrated(method=Method("nc1", spans=spans))
    texts = [text(length) for length in (4, 1, 0, 7, 3)]
    levels = [None, 0.0, 0.3, None, 0.05]
    units = [Unit(each, "en/1-10", flag_level=level) for each, level in zip(texts, levels, strict=True)]
    together = predict_sets(iter(units), SPACE, thresholds=fitted, alpha="0.1")
    fresh = Thresholds.from_bytes(fitted.to_bytes())  # has nothing worked out yet
    assert together == [predict(each, fresh, flag_level=level) for each, level in zip(texts, levels, strict=True)]
    assert predict_sets([], SPACE, thresholds=fitted, alpha="0.1") == []


def test_what_is_remembered_of_a_level_is_not_taken_for_another(thresholds: Thresholds) -> None:
    given = text()
    for alpha in ("0.1", "0.3", 0.1, "0.10", "0.02"):
        fresh = Thresholds.from_bytes(thresholds.to_bytes())
        assert predict(given, thresholds, alpha=alpha) == predict(given, fresh, alpha=alpha)
    for wrong in ("0", "1.5", "x", None, True):
        with pytest.raises(InvalidArgument):
            predict(given, thresholds, alpha=wrong)
