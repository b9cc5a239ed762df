"""Subsequence sets on decoded texts: coverage and size per class, and what is said of false positives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from backend.evaluation.study import Study
from conformal.labels import OUTSIDE
from conformal.rows import TaskRows
from conformal.subsequence import EntityMethod, score_spans
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


def run_spans(
    study: Study, *, splits: int, alphas: Sequence[str], methods: Sequence[EntityMethod] = (EntityMethod(),)
) -> Iterator[SpanFigures]:
    """Judge span sets over the splits."""
    d = study.decoded
    labels = (*d.classes, OUTSIDE)
    rows = study.entities
    codes = d["entity.label"]
    nothing = TaskRows.of((), np.zeros(0))
    false = (d["span.best"] >= 0) & (d["span.true"] < 0)
    for method in methods:
        scores = rows.scored.scores(method.name)
        spans = score_spans(d["span.probability"]).scores(method.name)
        for split in range(splits):
            calibration, test = study.split(split)
            known, judged = np.zeros(len(d), np.bool_), np.zeros(len(d), np.bool_)
            known[calibration], judged[test] = True, True
            thresholds = calibrate(
                nothing, rows.take(known[rows.task]), classes=d.classes, entity_method=method, allow_empty=True
            )
            tables = [thresholds.label_pool(label).table for label in labels]
            here = judged[d["span.task"]]
            for alpha in alphas:
                held = np.column_stack([table.contains(spans[:, w], alpha) for w, table in enumerate(tables)])
                coverage, sizes, counts = [], [], []
                for w, table in enumerate(tables):
                    own = judged[rows.task] & (codes == w)
                    _, inverse, each = np.unique(rows.task[own], return_inverse=True, return_counts=True)
                    weights = 1.0 / (each[inverse] * max(each.size, 1))
                    coverage.append(float(weights[table.contains(scores[own], alpha)].sum()))
                    counts.append(int(own.sum()))
                    such = here & (d["span.true"] == w) if w < len(d.classes) else here & (d["span.true"] < 0)
                    sizes.append(float(held[such].sum(axis=1).mean()) if such.any() else float("nan"))
                junk = float(held[here & false, :-1].sum(axis=1).mean()) if (here & false).any() else float("nan")
                yield SpanFigures(
                    f"{method.name}, {method.weights}",
                    alpha,
                    split,
                    labels,
                    tuple(coverage),
                    tuple(sizes),
                    junk,
                    tuple(counts),
                )
