"""Spans of tasks as counts for estimates: right, predicted and true ones, label by label (METHODS 14.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.acceptance.losses import trimmed
from backend.domain.ranked import RankedText
from backend.domain.records import TextSpan
from backend.domain.target import Target
from conformal.estimates import Counts
from conformal.quantile import Floats

OTHER = ""  # labels that the config does not have: they are somebody's entities all the same
Index = npt.NDArray[np.bool_] | npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SpanCounts:
    """Counts (tasks, labels, 3) of right, predicted and true spans; `names` are the labels."""

    names: tuple[str, ...]
    values: Floats

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def take(self, index: Index) -> SpanCounts:
        """Return the tasks at `index`."""
        return SpanCounts(self.names, self.values[index])

    def of(self, name: str | None = None) -> Counts:
        """Return the counts of one label, or of all together."""
        chosen = self.values.sum(axis=1) if name is None else self.values[:, self.names.index(name)]
        return Counts(chosen[:, 0], chosen[:, 1], chosen[:, 2])


def names_of(target: Target) -> tuple[str, ...]:
    """Return the labels that are told apart: those of the config, and one for all others."""
    return (*target.names, OTHER)


def no_spans(target: Target) -> Floats:
    """Return counts of nothing (labels, 3)."""
    return np.zeros((len(names_of(target)), 3))


def expected_spans(ranked: RankedText, target: Target) -> Floats:
    """Return what the model expects of a text (labels, 3): how many of its spans are right, and how many there are."""
    names, values = names_of(target), no_spans(target)
    places = [names.index(target.labels.get(name, OTHER)) for name in ranked.classes] if ranked.units else []
    best = {(span.start, span.end): names.index(target.labels.get(span.label, OTHER)) for span in ranked.best}
    for place in best.values():
        values[place, 1] += 1
    for each in ranked.candidates:
        here = best.get((each.start, each.end))
        for place, probability in zip(places, each.probabilities, strict=True):
            values[place, 2] += probability
            if place == here:
                values[place, 0] += probability
    # Probabilities are sums of their own: leave no rounding that would make more right spans than there are.
    values[:, 0] = np.minimum(values[:, 0], np.minimum(values[:, 1], values[:, 2]))
    return values


def found_spans(best: Iterable[TextSpan], label: Iterable[TextSpan], *, text: str | None, target: Target) -> Floats:
    """Return what a label found in a text (labels, 3): right, predicted and true spans.

    Args:
        best: the likeliest labeling, with the labels of the config.
    """
    names, values = names_of(target), no_spans(target)
    said = {trimmed(span, text) for span in best}
    true = {trimmed(span, text) for span in label}
    for column, spans in enumerate((said & true, said, true)):
        for span in spans:
            values[names.index(span.label if span.label in names else OTHER), column] += 1
    return values


def stacked(rows: Sequence[Floats], target: Target) -> SpanCounts:
    """Put the counts of tasks together."""
    names = names_of(target)
    return SpanCounts(names, np.stack(rows) if rows else np.zeros((0, len(names), 3)))
