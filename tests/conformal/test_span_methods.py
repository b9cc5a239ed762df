"""Span sets with ranks, and the paper's integrated sets, against direct definitions (METHODS 6.5, 7.1)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from conformal.errors import InvalidArgument
from conformal.integrated_paper import LISTED, sidak_rank
from conformal.labels import LabelSpace, Span
from conformal.pairs import PairTable
from conformal.prediction import predict_set, text_candidates
from conformal.quantile import CalibrationScores, ScoreTable
from conformal.rows import EntityRows, TaskRows, score_unit, task_rows
from conformal.scores import METHODS, SPAN_METHODS, EntityMethod, Method, Tuned, split_name
from conformal.scores.logrank import log_rank
from conformal.subsequence import score_spans
from conformal.thresholds import Thresholds, calibrate
from conformal.trellis import Potentials, entity_marginals, kbest

SPACE = LabelSpace(["PER", "LOC"])
L = len(SPACE)
PAPER = sorted(name for name, worth in METHODS.items() if worth == "heuristic")
RANKED = [name for name in SPAN_METHODS if "+" in name]


def text(rng: np.random.Generator, length: int) -> Potentials:
    return Potentials(
        emissions=rng.normal(0, 1.8, (length, L)) + np.array([1.5, 0, 0, 0, 0]),
        transitions=np.where(SPACE.allowed, rng.normal(0, 0.5, (L, L)), -np.inf),
        start=np.where(SPACE.allowed_start, 0.0, -np.inf),
        end=np.zeros(L),
    )


class Corpus:
    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(5)
        self.texts = [text(rng, int(rng.integers(2, 5))) for _ in range(count)]
        scores, self.truth = [], []
        for task, p in enumerate(self.texts):
            every = kbest(p, 2000)
            share = np.exp(every.log_probabilities)
            labels = every.labels[rng.choice(every.count, p=share / share.sum())]
            self.truth.append(SPACE.spans(labels))
            scores.append(score_unit(p, SPACE, spans=self.truth[-1], task=task))
        self.rows: TaskRows = task_rows(["en/1-10"] * count, scores)
        self.entities = EntityRows.join([each.entities for each in scores])

    def part(self, tasks: int) -> tuple[TaskRows, EntityRows]:
        return self.rows.take(np.arange(tasks)), self.entities.take(self.entities.task < tasks)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(500)


def first_rank(p: Potentials, span: Span, limit: int) -> int:
    best = kbest(p, limit)
    return next((r for r, labels in enumerate(best.labels, 1) if span in SPACE.spans(labels)), 0)


@pytest.mark.parametrize("name", RANKED)
def test_span_scores_follow_their_definitions(corpus: Corpus, name: str) -> None:
    family, base = name.split("+")
    method = EntityMethod(name, limit=7, tuned=Tuned(lam=0.02, r0=2, share="0.3"))
    thresholds = calibrate(*corpus.part(200), classes=SPACE.classes, entity_method=method)
    assert thresholds.entity_method == method
    for p in corpus.texts[200:215]:
        found = text_candidates(p, SPACE, thresholds=thresholds, best=SPACE.spans(kbest(p, 1).labels[0]))
        scored = score_spans(found.probabilities)
        given = method.scores(scored, rank=found.ranks, outside=[False, False, True])
        for i, (a, b) in enumerate(found.keys):
            for w, label in enumerate((*SPACE.classes, "O")):
                rank = 1 if label == "O" else first_rank(p, Span(a, b, label), 7)
                share = found.probabilities[i, w]
                plain = {"nc1": -np.log(share) if share else np.inf, "nc2": scored.cumulative[i, w]}[base]
                if family == "naive":
                    np.testing.assert_allclose(given[i, w], [rank or np.inf, plain])
                elif not rank:
                    assert np.isposinf(given[i, w])
                elif family == "conditional":
                    assert given[i, w] == pytest.approx(plain)
                else:
                    own = 1 - share if base == "nc1" else plain
                    assert given[i, w] == pytest.approx(own + 0.02 * max(rank - 2, 0))
    with pytest.raises(InvalidArgument, match="first rank"):
        method.scores(scored)


@pytest.mark.parametrize("name", SPAN_METHODS)
def test_span_sets_hold_what_passes_and_cover_their_classes(corpus: Corpus, name: str) -> None:
    """A label is in a span's set iff its score is within the threshold of the label's own calibration rows."""
    method = Method(f"nc1/{name}")
    made = calibrate(*corpus.part(400), classes=SPACE.classes, method=method, n_min=50)
    thresholds = Thresholds.from_bytes(made.to_bytes())
    assert thresholds.to_bytes() == made.to_bytes()
    assert (thresholds.entity_method, thresholds.method) == (made.entity_method, made.method)
    assert thresholds.entity_method.name == name
    assert thresholds.method.name == "nc1"
    assert thresholds.n == 400  # full-sequence thresholds lose nothing
    tuned = thresholds.entity_method
    assert not tuned.needs_tuning
    hits, total = 0, 0
    for task in range(400, 500):
        p = corpus.texts[task]
        sets = predict_set(p, SPACE, stratum="en/1-10", thresholds=thresholds, alpha="0.1")
        rows = corpus.entities.take(corpus.entities.task == task)
        scores = tuned.scores(rows.scored, rank=rows.rank, outside=[label == "O" for label in rows.labels])
        held = {(s.start, s.end): {label.label for label in s.labels} for s in sets.spans}
        for label, score in zip(rows.labels, scores, strict=True):
            inside = bool(thresholds.label_pool(label).table.contains(score[None], "0.1")[0])
            hits, total = hits + (inside and label != "O"), total + (label != "O")
        for span in corpus.truth[task]:
            at = [i for i, label in enumerate(rows.labels) if label == span.label]
            passes = [bool(thresholds.label_pool(span.label).table.contains(scores[i][None], "0.1")[0]) for i in at]
            if all(passes) and (span.start, span.end) in held:
                assert span.label in held[span.start, span.end]
            if not any(passes):
                assert span.label not in held.get((span.start, span.end), set())
    assert hits / total > 0.9 - 4.5 * np.sqrt(0.1 / total)


def test_rare_classes_are_merged_for_pairs_too(corpus: Corpus) -> None:
    tasks, rows = corpus.part(150)
    method = EntityMethod("naive+nc1")
    made = calibrate(tasks, rows, classes=SPACE.classes, entity_method=method, n_min=95)
    pool = made.label_pool("PER")
    assert pool.labels == ("PER", "LOC")
    assert isinstance(pool.table, PairTable)
    again = Thresholds.from_bytes(made.to_bytes())
    assert again.to_bytes() == made.to_bytes()
    assert again.label_pool("PER").table.threshold("0.1") == pool.table.threshold("0.1")
    few = calibrate(tasks, rows, classes=SPACE.classes, entity_method=method, n_min=140)
    assert few.uncalibrated == ("PER", "LOC", "O")
    sets = predict_set(corpus.texts[0], SPACE, stratum="en/1-10", thresholds=few, alpha="0.1")
    assert all(label.label == "O" for span in sets.spans for label in span.labels)


def test_hierarchical_pairs_are_two_hierarchical_tables() -> None:
    rng = np.random.default_rng(0)
    sizes = np.repeat([1, 2, 3], [20, 20, 30])
    pairs = np.column_stack([rng.integers(1, 9, 70), rng.random(70)]).astype(float)
    table = PairTable.of_pairs(CalibrationScores.of(pairs, sizes=sizes), share="0.3")
    tests = np.column_stack([rng.integers(1, 9, 50), rng.random(50)]).astype(float)
    first, second = (ScoreTable.hierarchical(pairs[:, i], sizes) for i in range(2))
    expected = first.contains(tests[:, 0], Fraction(3, 100)) & second.contains(tests[:, 1], Fraction(7, 100))
    np.testing.assert_array_equal(table.contains(tests, "0.1"), expected)


def direct_paper(name: str, p: Potentials, thresholds: Thresholds, alpha: str) -> set[tuple[Span, ...]]:
    """METHODS 7.1 and the paper, in words."""
    best = kbest(p, LISTED)
    listed = [tuple(SPACE.spans(labels)) for labels in best.labels]
    marginals = entity_marginals(p, SPACE, floor=0.0)
    method = thresholds.entity_method
    first = {span: r for r, spans in reversed(list(enumerate(listed, 1))) for span in spans}

    def score(span: Span) -> list[float]:
        row = marginals.of_span(span.start, span.end)
        full = np.append(row, 1 - row.sum())
        own = full[SPACE.classes.index(span.label)]
        place = int((full >= own).sum())
        sums = np.cumsum(-np.sort(-full))  # in this order: near 1 the last bit decides
        plain = {"nc1": -np.log(own), "nc2": sums[place - 1], "nc3": float(place)}[method.name.split("+")[-1]]
        if method.name.startswith("raps"):
            assert method.tuned is not None
            return [1 - own + method.tuned.lam * max(first[span] - method.tuned.r0, 0)]
        return [float(first[span]), plain] if method.name.startswith("naive") else [plain]

    def tau(label: str, level: Fraction, column: int) -> float:
        known = np.sort(np.atleast_2d(thresholds.labels[label].scores.T)[column])
        k = sidak_rank(known.size, level, entities=0 if "plain" in name else len(listed[0]))
        return float(known[k - 1]) if k <= known.size else np.inf

    level = Fraction(alpha) / (2 if name == "integrated_index+nc1" else 1)
    kept = {
        spans
        for spans in listed
        if name == "integrated_index" or all(score(s)[-1] <= tau(s.label, level, -1) for s in spans)
    }
    if name.startswith("integrated_index"):
        reach = max([1, *(r for s, r in first.items() if r <= tau(s.label, level, 0))])
        kept &= set(listed[:reach])
    return kept


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_integrated_sets(corpus: Corpus, name: str) -> None:
    method = Method(name)
    assert method.worth == "heuristic"
    made = calibrate(*corpus.part(300), classes=SPACE.classes, method=method)
    thresholds = Thresholds.from_bytes(made.to_bytes())
    sizes = set()
    for p in corpus.texts[300:330]:
        for alpha in ("0.05", "0.3"):
            found = predict_set(p, SPACE, stratum="en/1-10", thresholds=thresholds, alpha=alpha, max_shown=LISTED)
            members = {each.spans for each in found.labelings if each.member}
            assert members == direct_paper(name, p, thresholds, alpha)
            assert found.set_size == len(members)
            assert all(before.log_probability >= after.log_probability for before, after in pairwise(found.labelings))
            sizes.add(found.set_size)
    assert len(sizes) > 2
    other = EntityMethod("nc3" if method.span_name != "nc3" else "nc1")
    with pytest.raises(InvalidArgument, match="for the spans of"):
        calibrate(*corpus.part(9), classes=SPACE.classes, method=method, entity_method=other)


def without(rows: EntityRows, *labels: str) -> EntityRows:
    return rows.take(~np.isin(np.array(rows.labels), labels))


@pytest.mark.parametrize("name", PAPER)
def test_a_class_without_a_bound_opens_the_papers_sets(corpus: Corpus, name: str) -> None:
    """Nothing keeps an entity of such a class out, so no number of members is the size of the set."""
    method = Method(name)
    tasks, entities = corpus.part(300)
    # What spans are scored by is tuned on rows of both classes; the rows of one are then taken away.
    entity_method = calibrate(tasks, entities, classes=SPACE.classes, method=method).entity_method
    for gone in (("PER", "LOC", "O"), ("PER", "LOC"), ("LOC",)):
        rows = without(entities, *gone)
        made = calibrate(tasks, rows, classes=SPACE.classes, method=method, entity_method=entity_method)
        thresholds = Thresholds.from_bytes(made.to_bytes())
        for p in corpus.texts[300:310]:
            found = predict_set(p, SPACE, stratum="en/1-10", thresholds=thresholds, alpha="0.1")
            assert (found.open, found.set_size) == (True, None)
            assert found.labelings[0].spans == tuple(SPACE.spans(kbest(p, 1).labels[0]))
    few = calibrate(*corpus.part(8), classes=SPACE.classes, method=method, entity_method=entity_method)
    assert predict_set(corpus.texts[300], SPACE, stratum="en/1-10", thresholds=few, alpha="0.1").set_size is None


def test_names_say_both_methods() -> None:
    assert split_name("logrank+nc1/conditional+nc2") == ("logrank+nc1", "conditional+nc2")
    assert Method("nc2/nc3") == Method("nc2", spans="nc3")
    for bad, words in (("nc9", "a method among"), ("nc1/nc9", "after '/'"), ("integrated_index/nc1", "made of")):
        with pytest.raises(InvalidArgument, match=words):
            split_name(bad)


def test_a_truth_far_down_its_list_has_a_finite_logrank_score(corpus: Corpus) -> None:
    """Beyond the limit the score goes on by probability; sets agree with it whether or not they are listed that far."""
    method = Method("logrank+nc1", limit=3)
    rows, entities = corpus.part(400)
    thresholds = calibrate(rows, entities, classes=SPACE.classes, method=method)
    table = thresholds.pool("en/1-10").table
    assert np.isfinite(table.scores).all()
    beyond = 0
    for p in corpus.texts[400:440]:
        every = kbest(p, 10**5)
        expected = table.contains(
            log_rank(every.log_probabilities, np.arange(1, every.count + 1), limit=3), "0.05"
        ).sum()
        found = predict_set(p, SPACE, stratum="en/1-10", thresholds=thresholds, alpha="0.05")
        assert found.set_size == expected
        beyond += expected > 3
    assert beyond
    plain = replace(method, limit=1).scores(rows.ranks)
    np.testing.assert_allclose(plain, -rows.ranks.log_probability + np.log(2) * (rows.ranks.rank != 1))
