"""Calibrated integrated sets and lattices against full enumeration; every method through calibrate and predict_set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformal.errors import InvalidArgument, InvalidScores, RankedListTooShort
from conformal.integrated import decode_integrated, span_values
from conformal.labels import LabelSpace
from conformal.lattice import Lattice
from conformal.prediction import predict_set
from conformal.quantile import ScoreTable
from conformal.rows import EntityRows, UnitScores, score_unit, task_rows
from conformal.scores import METHODS, PART, Boundary, Method, Ranks, Reference, Tuned, hash_u
from conformal.scores.integrated import worst_parts
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import Potentials, entity_marginals, kbest
from conformal.tuning import RankedLists, mean_size, tune, tuning_part

SPACE = LabelSpace(["PER", "LOC"])
L = len(SPACE)


def text(rng: np.random.Generator, length: int, boundaries: tuple[int, ...] = ()) -> Potentials:
    return Potentials(
        emissions=rng.normal(0, 1.5, (length, L)) + np.array([1.5, 0, 0, 0, 0]),
        transitions=np.where(SPACE.allowed, rng.normal(0, 0.5, (L, L)), -np.inf),
        start=np.where(SPACE.allowed_start, 0.0, -np.inf),
        end=np.zeros(L),
        boundaries=boundaries,
    )


def parts_of(labels: np.ndarray) -> set[tuple[int, int, str]]:
    return {tuple(span) for span in SPACE.spans(labels)}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans())
def test_a_lattice_counts_the_labelings_that_it_allows(seed: int, length: int, split: bool) -> None:
    rng = np.random.default_rng(seed)
    p = text(rng, length, (length // 2,) if split and length > 1 else ())
    spans = [
        (int(a), int(b), w)
        for a, b, w, share in zip(*_columns(entity_marginals(p, SPACE, floor=0.0)), strict=True)
        if share > 0 and rng.random() < 0.7
    ]
    must = tuple({(a, b) for a, b, _ in spans if rng.random() < 0.15})
    columns = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    lattice = Lattice(*columns, must)
    everything = kbest(p, 10**6)
    names = SPACE.classes
    allowed = {(a, b, names[w]) for a, b, w in spans}
    inside = [
        labels
        for labels in everything.labels
        if parts_of(labels) <= allowed and set(must) <= {(a, b) for a, b, _ in parts_of(labels)}
    ]
    assert lattice.count(p) == len(inside)
    relaxed = lattice.relax(p, SPACE)
    held = set() if relaxed is None else {tuple(row) for row in kbest(relaxed, 10**6).labels.tolist()}
    assert {tuple(row.tolist()) for row in inside} <= held


def _columns(found: object) -> tuple[list[int], list[int], list[int], list[float]]:
    return tuple(getattr(found, name).tolist() for name in ("starts", "ends", "classes", "probabilities"))  # type: ignore[return-value]


def tuned_parts(rng: np.random.Generator) -> Tuned:
    made = [(PART + name, Reference.of(rng.exponential(size=30))) for name in (*SPACE.classes, "O")]
    extra = [("other", Reference.of(rng.random(40))), ("score", Reference.of(rng.exponential(2.0, size=40)))]
    return Tuned(references=tuple(made + extra))


def strangest(p: Potentials, labels: np.ndarray, tuned: Tuned, p_min: float) -> float:
    """T from its definition."""
    marginals = entity_marginals(p, SPACE, floor=0.0)
    own = parts_of(labels)
    terms = [0.0]
    for a, b, name in own:
        terms.append(float(tuned.part(name)(-np.log(marginals.probability(a, b, name)))))
    for a in range(p.length):
        for b in range(a + 1, p.length + 1):
            total = float(marginals.of_span(a, b).sum())
            if total >= p_min and (a, b) not in {(x, y) for x, y, _ in own}:
                outside = max(0.0, 1.0 - total)
                terms.append(float(tuned.part("O")(-np.log(outside))) if outside else np.inf)
    return max(terms)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from(["integrated", "integrated+nc1"]))
def test_integrated_sets_are_what_their_definition_says(seed: int, length: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    p = text(rng, length)
    tuned = tuned_parts(rng)
    smoothed = bool(rng.random() < 0.3)
    method = Method(name, Boundary.SMOOTHED if smoothed else Boundary.INCLUDE, tuned=tuned)
    everything = kbest(p, 10**6)
    worst = np.array([strangest(p, labels, tuned, 0.05) for labels in everything.labels])
    nothing = np.zeros(everything.count)
    scores = method.scores(Ranks(everything.log_probabilities, nothing.astype(np.int64), nothing, None, worst))
    table = ScoreTable.of(rng.choice(scores[np.isfinite(scores)], 25) if rng.random() < 0.7 else rng.random(25))
    u = 0.37
    for alpha in ("0.1", "0.3", "0.7"):
        draws = np.full(everything.count, u) if smoothed else None
        members = table.contains(scores, alpha, u=draws)
        found, ranked = decode_integrated(
            p, SPACE, table=table, alpha=alpha, method=method, p_min=0.05, u=u, max_sequences=10**6, max_shown=4
        )
        if found.threshold == np.inf:
            assert found.open
            continue
        assert not found.open
        assert found.size == int(members.sum())
        wanted = everything.labels[members]
        shown = ranked.labels[found.members]
        assert len(shown) >= min(4, len(wanted))
        np.testing.assert_array_equal(shown[:4], wanted[: len(shown[:4])])
        np.testing.assert_array_equal(ranked.labels[0], everything.labels[0])
        np.testing.assert_allclose(ranked.log_probabilities[0], everything.log_probabilities[0])
        cut, _ = decode_integrated(
            p, SPACE, table=table, alpha=alpha, method=method, p_min=0.05, u=u, max_sequences=2, max_shown=2
        )
        assert cut.open or int(members.sum()) <= 2
        if name == "integrated":  # counted, so open only for what it is
            assert cut.open == (int(members.sum()) > 2)


@pytest.mark.parametrize("length", [60, 80])
@pytest.mark.parametrize("name", ["integrated", "integrated+nc1"])
def test_a_bounded_set_is_counted_in_texts_of_any_length(name: str, length: int) -> None:
    """Every entity up to the least likely one of the tuning part is allowed, and nothing beyond: that is a bound."""
    rng = np.random.default_rng(8)
    emissions = np.full((length, L), -60.0)
    emissions[:, 0] = 0.0
    doubtful = [20, 21, 40]  # all other tokens are outside but for e^-60
    emissions[doubtful] = rng.normal(0, 1.0, (3, L))
    nothing = np.zeros(L)
    p = Potentials(
        emissions=emissions,
        transitions=np.where(SPACE.allowed, 0.0, -np.inf),
        start=np.where(SPACE.allowed_start, 0.0, -np.inf),
        end=nothing,
    )
    parts = [(PART + label, Reference.of(np.linspace(0.5, 2.0, 20))) for label in (*SPACE.classes, "O")]
    extra = [("other", Reference.of(np.linspace(0.5, 0.96, 20))), ("score", Reference.of(np.linspace(0.5, 8.0, 20)))]
    tuned = Tuned(references=tuple(parts + extra))
    method = Method(name, tuned=tuned)
    # Between the term of the last step and the term of everything beyond it.
    table = ScoreTable.of([0.96 if name == "integrated" else 40.9] * 19)
    best = kbest(p, 200)
    likely = best.log_probabilities > -30.0  # any other labeling holds an entity of a probability about e^-60
    labels, logs = best.labels[likely], best.log_probabilities[likely]
    assert 10 < likely.sum() < 200
    worst = np.array([strangest(p, each, tuned, 0.01) for each in labels])
    zeros = np.zeros(logs.size)
    expected = table.contains(method.scores(Ranks(logs, zeros.astype(np.int64), zeros, None, worst)), "0.1")
    found, ranked = decode_integrated(p, SPACE, table=table, alpha="0.1", method=method, max_shown=100)
    assert not found.open
    assert found.size == int(expected.sum())
    assert 1 < found.size < likely.sum()
    np.testing.assert_array_equal(ranked.labels[found.members], labels[expected])


class Corpus:
    def __init__(self, tasks: int, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.texts = [text(rng, int(rng.integers(2, 7))) for _ in range(tasks)]
        self.truth: list[np.ndarray] = []
        self.scores: list[UnitScores] = []
        for task, p in enumerate(self.texts):
            everything = kbest(p, 10**6)
            shares = np.exp(everything.log_probabilities)
            labels = everything.labels[rng.choice(shares.size, p=shares / shares.sum())]
            self.truth.append(labels)
            self.scores.append(score_unit(p, SPACE, spans=SPACE.spans(labels), task=task, limit=10**6))
        u = [hash_u("draw", task) for task in range(tasks)]
        self.rows = task_rows(["en/1-10"] * tasks, self.scores, u=u)
        self.entities = EntityRows.join([each.entities for each in self.scores])


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(900)


def test_strangest_parts_of_rows_are_those_of_their_labelings(corpus: Corpus) -> None:
    tuned = tuned_parts(np.random.default_rng(0))
    found = worst_parts(corpus.rows, corpus.entities, tuned=tuned)
    for task in range(60):
        p, labels = corpus.texts[task], corpus.truth[task]
        assert found[task] == pytest.approx(strangest(p, labels, tuned, 0.01))
        values, _ = span_values(p, SPACE, tuned=tuned, p_min=0.01, floor=0.0)
        assert values.worst(labels[None, :])[0] == pytest.approx(found[task])
    order = np.random.default_rng(1).permutation(len(corpus.rows))
    np.testing.assert_array_equal(worst_parts(corpus.rows.take(order), corpus.entities, tuned=tuned), found[order])


@pytest.mark.parametrize("name", sorted(name for name, worth in METHODS.items() if worth != "heuristic"))
def test_every_method_calibrates_predicts_and_keeps_its_bytes(corpus: Corpus, name: str) -> None:
    """What is listed is what is scored: a truth is in its set iff its score passes, and sets hold what they promise."""
    half = 600
    known = np.arange(half)
    part = corpus.entities.take(corpus.entities.task < half)
    method = Method(name, limit=10**6 if Method(name).limit else None)
    thresholds = calibrate(corpus.rows.take(known), part, classes=SPACE.classes, method=method)
    assert thresholds.method.name == name
    assert not thresholds.method.needs_tuning
    again = Thresholds.from_bytes(thresholds.to_bytes())
    assert again.to_bytes() == thresholds.to_bytes()
    assert again.method == thresholds.method
    assert thresholds.n == (
        half if name in ("nc1", "nc2", "nc3", "logrank+nc1") else half - int(tuning_part(corpus.rows.take(known)).sum())
    )
    pool = again.pool("en/1-10")
    rest = corpus.rows.take(np.arange(half, 900))
    if again.method.is_integrated and again.method.tuned is not None:
        rest = rest.with_worst(worst_parts(rest, corpus.entities, tuned=again.method.tuned))
    scores = again.method.scores(rest.ranks)
    passes = pool.table.contains(scores, "0.1")
    masses = []
    for place, task in enumerate(range(half, half + 80)):
        made = predict_set(corpus.texts[task], SPACE, stratum="en/1-10", thresholds=again, alpha="0.1", max_shown=10**5)
        members = [each for each in made.labelings if each.member]
        assert not made.open
        assert len(members) == made.set_size
        assert made.labelings[0].labels == tuple(SPACE.decode(kbest(corpus.texts[task], 1).labels[0]))
        truth = tuple(SPACE.decode(corpus.truth[task]))
        assert any(each.labels == truth for each in members) == passes[place]
        assert all((each.p_value > 0.1) == each.member for each in made.labelings) or again.method.is_pair
        masses.append(sum(each.probability for each in members))
    assert np.mean(masses) > 0.9 - 4.5 * np.std(masses) / np.sqrt(80) - 0.03


def test_shuffled_rows_give_the_same_bytes(corpus: Corpus) -> None:
    numbered = corpus.rows.take(np.arange(900))
    order = np.random.default_rng(4).permutation(900)
    for name in ("raps+nc1", "integrated+nc1", "naive+nc2"):
        made = [
            calibrate(rows, corpus.entities, classes=SPACE.classes, method=Method(name)).digest
            for rows in (numbered, numbered.take(order))
        ]
        assert made[0] == made[1]


def test_tuning_searches_the_smallest_mean_set(corpus: Corpus) -> None:
    rows = corpus.rows.take(np.arange(300))
    tops = [kbest(p, 200) for p in corpus.texts[:300]]
    logs = np.full((300, 200), -np.inf)
    for row, top in zip(logs, tops, strict=True):
        row[: top.count] = top.log_probabilities
    lists = RankedLists(logs, np.array([top.exhausted for top in tops]))
    for name in ("raps+nc1", "raps+nc2", "naive+nc1", "conditional+nc2", "conditional_paper+nc1"):
        plain = tune(Method(name, limit=200), rows, alpha="0.1")
        found = tune(Method(name, limit=200), rows, lists=lists, alpha="0.1")
        assert mean_size(found, rows, lists, "0.1") <= mean_size(plain, rows, lists, "0.1")
    with pytest.raises(InvalidArgument, match="one ranked list per task"):
        tune(Method("raps+nc1"), rows, lists=RankedLists(logs[:5], lists.complete[:5]))


def test_refusals(corpus: Corpus) -> None:
    with pytest.raises(InvalidScores, match="entity rows of every task"):
        tune(Method("integrated"), corpus.rows)
    with pytest.raises(InvalidArgument, match="tuned values"):
        Method("raps+nc1").scores(corpus.rows.ranks)
    with pytest.raises(InvalidArgument, match="'include'"):
        Method("naive+nc1", Boundary.SMOOTHED)
    with pytest.raises(InvalidArgument, match="'include' or 'smoothed'"):
        Method("joint+nc1", Boundary.PAPER)
    with pytest.raises(InvalidArgument, match="no top_k"):
        Method("integrated", top_k=100)
    thresholds = calibrate(corpus.rows, corpus.entities, classes=SPACE.classes, method=Method("integrated"))
    with pytest.raises(RankedListTooShort, match="potentials"):
        predict_set(None, SPACE, stratum="en/1-10", thresholds=thresholds, alpha="0.1")
