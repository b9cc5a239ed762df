"""How good the best labelings are over the collection, from few blind labels (METHODS 14.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from backend.acceptance.evidence import as_labels
from backend.calibration.evidence import Evidence, row_weights
from backend.domain.target import Target
from backend.store.packed_lists import unpack_ranked
from backend.store.worth import scored_labels, scored_tasks
from backend.worth.counts import OTHER, SpanCounts, expected_spans, found_spans, stacked
from backend.worth.sample import Bools, Sample
from conformal.estimates import LEAST_LABELS, Estimate, Rates, estimate_rates, plain_rates
from conformal.quantile import Floats

MOST = 20_000  # labels of a kind, the newest
PAGE = 500
LEAST_WITH_LABEL = (
    50  # tasks in which a label was predicted or true: intervals are asymptotic, and few tasks are not many
)
RATES = ("precision", "recall", "f1")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labels of one kind beside what the model says of their texts; `weight` is one over the chance of each."""

    languages: tuple[str | None, ...]
    weight: Floats
    found: SpanCounts
    expected: SpanCounts

    def __len__(self) -> int:
        return len(self.languages)

    def take(self, which: Bools) -> Labelled:
        """Return the labels that are marked."""
        languages = tuple(each for each, kept in zip(self.languages, which, strict=True) if kept)
        return Labelled(languages, self.weight[which], self.found.take(which), self.expected.take(which))


def read_labels(
    session: Session,
    project_id: int,
    *,
    model_id: int,
    target: Target,
    evidence: Evidence,
    beat: Callable[[], object],
    most: int = MOST,
) -> Labelled:
    """Read the labels of a kind that may calibrate, the newest `most` of them; `beat` is called after each page."""
    languages: list[str | None] = []
    weights: list[float] = []
    found, expected = [], []
    tasks = scored_tasks(session, project_id, model_id=model_id, evidence=evidence.value, limit=most)
    for begin in range(0, len(tasks), PAGE):
        for each in scored_labels(session, tasks[begin : begin + PAGE], model_id=model_id):
            ranked = unpack_ranked(each.ranked)
            best = as_labels(ranked.best, target)
            found.append(found_spans(best, each.spans, text=each.text, target=target))
            expected.append(expected_spans(ranked, target))
            languages.append(each.language)
            weights.append(each.weight)
        beat()
    weight = row_weights(np.array(weights, dtype=np.float64))
    return Labelled(tuple(languages), weight, stacked(found, target), stacked(expected, target))


def how_good(blind: Labelled, assisted: Labelled, sample: Sample, *, at_random: bool) -> list[dict[str, Any]]:
    """Return precision, recall and F1 in total, per label and per language, as JSON values.

    Each with the naive figure that assisted labels give and how much better it looks; None instead of a rate while
    labels are too few, with how many are missing.

    at_random: what is left is like what was done. If it is not, what a model expects of the tasks that it was asked
    about stands for all of them only where none was done before it came; otherwise labels stand alone.
    """
    stands = at_random or bool(sample.asked.all())
    every = np.ones(len(sample), dtype=bool)
    rows = [_row("all", "", blind, assisted, sample, name=None, here=every, stands=stands)]
    rows += [
        _row("label", name, blind, assisted, sample, name=name, here=every, stands=stands)
        for name in sample.expected.names
        if name != OTHER
    ]
    for language in sorted({each for each in sample.languages if each}):
        parts = [np.array([each == language for each in held.languages], dtype=bool) for held in (blind, assisted)]
        here = np.array([each == language for each in sample.languages], dtype=bool)
        rows.append(
            _row(
                *("language", language, blind.take(parts[0]), assisted.take(parts[1]), sample),
                name=None,
                here=here,
                stands=stands,
            )
        )
    return rows


def _row(
    scope: str,
    said: str,
    blind: Labelled,
    assisted: Labelled,
    sample: Sample,
    *,
    name: str | None,
    here: Bools,
    stands: bool,
) -> dict[str, Any]:
    found = blind.found.of(name)
    with_label = int(np.count_nonzero(found.predicted + found.true))
    enough = len(blind) >= LEAST_LABELS and (name is None or with_label >= LEAST_WITH_LABEL)
    row: dict[str, Any] = {
        "scope": scope,
        "name": said,
        "labels": len(blind),
        "with_label": with_label,
        "missing": 0 if enough else max(1, LEAST_LABELS - len(blind), *_rare(name, with_label, len(blind))),
        "assisted": len(assisted),
    }
    naive = plain_rates(assisted.found.of(name)) if len(assisted) else None
    rates: Rates | None = None
    if enough:
        expected, chance = sample.expected.take(here & sample.asked).of(name), 1.0 / blind.weight
        if stands and len(expected):
            tasks = max(len(expected), sample.count(here))
            rates = estimate_rates(found, blind.expected.of(name), collection=expected, chance=chance, tasks=tasks)
        else:
            rates = plain_rates(found, chance)
    for rate in RATES:
        value: Estimate | None = getattr(rates, rate) if rates is not None else None
        plain: Estimate | None = getattr(naive, rate) if naive is not None else None
        row[rate] = None if value is None else [value.value, value.low, value.high]
        row[f"naive_{rate}"] = None if plain is None else plain.value
        row[f"gap_{rate}"] = None if value is None or plain is None else plain.value - value.value
    return row


def _rare(name: str | None, with_label: int, labels: int) -> tuple[int, ...]:
    """Return how many more labels a label needs that is rare, at the share of tasks that have had it so far."""
    if name is None or with_label >= LEAST_WITH_LABEL:
        return ()
    return (round((LEAST_WITH_LABEL - with_label) * labels / with_label) if with_label else LEAST_LABELS,)
