"""Subsequence sets on decoded texts: coverage and size per class, and what is said of false positives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.evaluation.study import Study
from conformal.evaluation import cut_points, within
from conformal.labels import OUTSIDE
from conformal.quantile import Floats, ScoreTable
from conformal.rows import TaskRows
from conformal.scores import Grid
from conformal.subsequence import EntityMethod, Ints, score_spans
from conformal.thresholds import calibrate


@dataclass(frozen=True)
class SpanFigures:
    """One method, level and split. Coverage is of a random entity of a random task that has one (METHODS 6.2).

    `sizes` are the mean numbers of labels in the sets of true entities, by class; O counts as a label. `junk` is the
    mean number of classes in the sets of spans that the best labeling has and the truth has not.
    """

    method: str
    alpha: str
    split: int
    labels: tuple[str, ...]
    coverage: tuple[float, ...]
    sizes: tuple[float, ...]
    junk: float
    entities: tuple[int, ...]
    tasks: tuple[int, ...]
    overall: tuple[float, float]  # coverage and size of a random true entity, every one counted alike
    hits: tuple[int, ...]  # one random entity of each test task that has the class: how many are covered
    n: tuple[int, ...]  # calibration tasks behind each class
    infinite: tuple[bool, ...]  # whether the threshold of each class is
    tuned: dict[str, float | str | None]


# What RAPS, conditional and naive are tried with on the tuning part.
_GRID = Grid(lams=(0.0, 0.001, 0.01, 0.05), r0s=(1, 5), caps=(2, 5, 20, 100), shares=("0.05", "0.1", "0.3", "0.5"))


def tuned_spans(study: Study, method: EntityMethod, *, alpha: str = "0.05") -> EntityMethod:
    """Freeze a span method on the tuning part: the values with the smallest sets of true entities at 0.95."""
    if not method.needs_tuning:
        return method
    options = [method.freeze(choice) for choice in method.score.variants(_GRID)]
    sizes: dict[int, float] = {}
    d = study.decoded
    part = np.zeros(len(d), np.bool_)
    part[study.tuning] = True
    true = part[d["span.task"]] & (d["span.true"] >= 0)
    for number, option in enumerate(options):
        tables = _tables(study, option, study.tuning)
        spans = _span_scores(study, option, true)
        sizes[number] = float(
            sum(within(spans[:, w], cut_points(table, alpha)).mean() for w, table in enumerate(tables))
        )
    return options[min(sizes, key=lambda number: (sizes[number], number))]


def _span_scores(study: Study, method: EntityMethod, chosen: npt.NDArray[np.bool_]) -> Floats:
    """Score every label of some spans: (S, W + 1), or (S, W + 1, 2) for naive."""
    d = study.decoded
    p = d["span.probability"][chosen]
    outside = np.arange(p.shape[1]) == p.shape[1] - 1
    ranks = np.column_stack([d["span.rank"][chosen], np.ones(len(p), np.int16)])
    return method.scores(score_spans(p), rank=ranks, outside=outside)


def _tables(study: Study, method: EntityMethod, tasks: Ints) -> list[ScoreTable]:
    rows = study.entities
    known = np.zeros(len(study.decoded), np.bool_)
    known[tasks] = True
    thresholds = calibrate(
        TaskRows.of((), np.zeros(0)),
        rows.take(known[rows.task]),
        classes=study.decoded.classes,
        entity_method=method,
        allow_empty=True,
    )
    return [thresholds.label_pool(label).table for label in (*study.decoded.classes, OUTSIDE)]


def run_spans(
    study: Study, *, splits: int, alphas: Sequence[str], methods: Sequence[EntityMethod] = (EntityMethod(),)
) -> Iterator[SpanFigures]:
    """Judge span sets over the splits."""
    d = study.decoded
    labels = (*d.classes, OUTSIDE)
    rows = study.entities
    codes = d["entity.label"]
    every = np.ones(len(d["span.task"]), np.bool_)
    false = (d["span.best"] >= 0) & (d["span.true"] < 0)
    for plain in methods:
        method = tuned_spans(study, plain)
        scores = method.scores(rows.scored, rank=rows.rank, outside=codes == len(d.classes))
        spans = _span_scores(study, method, every)
        for split in range(splits):
            calibration, test = study.split(split)
            judged = np.zeros(len(d), np.bool_)
            judged[test] = True
            tables = _tables(study, method, calibration)
            here = judged[d["span.task"]]
            truth, wrong = d["span.true"][here], false[here]
            own = [np.flatnonzero(judged[rows.task] & (codes == w)) for w in range(len(labels))]
            drawn = [_one_each(rows.task[mine], [study.seed, 6, split, w]) for w, mine in enumerate(own)]
            for alpha in alphas:
                cuts = [cut_points(table, alpha) for table in tables]
                held = np.column_stack([within(spans[here, w], cut) for w, cut in enumerate(cuts)])
                coverage, sizes, hits, counted = [], [], [], []
                for w, cut in enumerate(cuts):
                    inside = within(scores[own[w]], cut)
                    _, inverse, each = np.unique(rows.task[own[w]], return_inverse=True, return_counts=True)
                    weights = 1.0 / (each[inverse] * max(each.size, 1))
                    coverage.append(float(weights[inside].sum()))
                    hits.append(int(inside[drawn[w]].sum()))
                    counted.append((int(inside.sum()), inside.size))
                    such = truth == w if w < len(d.classes) else truth < 0
                    sizes.append(float(held[such].sum(axis=1).mean()) if such.any() else float("nan"))
                junk = float(held[wrong, :-1].sum(axis=1).mean()) if wrong.any() else float("nan")
                yield SpanFigures(
                    f"{method.name}, {method.weights}",
                    alpha,
                    split,
                    labels,
                    tuple(coverage),
                    tuple(sizes),
                    junk,
                    tuple(mine.size for mine in own),
                    tuple(mine.size for mine in drawn),
                    (
                        sum(c for c, _ in counted[:-1]) / max(1, sum(m for _, m in counted[:-1])),
                        float(held[truth >= 0].sum(axis=1).mean()) if (truth >= 0).any() else float("nan"),
                    ),
                    tuple(hits),
                    tuple(table.n for table in tables),
                    tuple(bool(np.isposinf(cut).all()) for cut in cuts),
                    {
                        "limit": method.limit,
                        **({} if method.tuned is None else {"lam": method.tuned.lam, "r0": method.tuned.r0}),
                        **({} if method.tuned is None else {"share": method.tuned.share}),
                    },
                )


def _one_each(tasks: Ints, seed: Sequence[int]) -> Ints:
    """Draw one row of every task: positions among `tasks`."""
    order = np.random.default_rng(list(seed)).permutation(tasks.size)
    _, first = np.unique(tasks[order], return_index=True)
    return np.asarray(order[first], dtype=np.int64)
