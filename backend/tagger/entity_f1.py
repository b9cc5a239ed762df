"""Entity F1: an entity counts when start, end and class are all right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import conformal
from backend.tagger.readers.types import LabelledText
from backend.tagger.spans import to_token_spans
from backend.tagger.tagger import Tagger


@dataclass(frozen=True)
class Counts:
    """True, predicted and right entities; F1 is micro-averaged over them."""

    true: int = 0
    predicted: int = 0
    right: int = 0

    @property
    def precision(self) -> float:
        """Share of predicted entities that are right; 0 without any."""
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of true entities that are found; 0 without any."""
        return self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall.

        >>> Counts(true=4, predicted=2, right=2).f1
        0.6666666666666666
        """
        total = self.true + self.predicted
        return 2 * self.right / total if total else 0.0


@dataclass
class EntityCounter:
    """Adds up texts; `total` over all classes, `by_class` for each, `exact` texts with nothing wrong."""

    texts: int = 0
    exact: int = 0
    _true: Counter[str] = field(default_factory=Counter)
    _predicted: Counter[str] = field(default_factory=Counter)
    _right: Counter[str] = field(default_factory=Counter)

    def add(
        self, true: Iterable[tuple[Hashable, Hashable, str]], predicted: Iterable[tuple[Hashable, Hashable, str]]
    ) -> None:
        """Count one text's spans (start, end, class)."""
        gold, answered = set(true), set(predicted)
        self.texts += 1
        self.exact += gold == answered
        self._true.update(label for _, _, label in gold)
        self._predicted.update(label for _, _, label in answered)
        self._right.update(label for _, _, label in gold & answered)

    def merge(self, other: EntityCounter) -> None:
        """Add another counter's texts to this one."""
        self.texts += other.texts
        self.exact += other.exact
        self._true.update(other._true)
        self._predicted.update(other._predicted)
        self._right.update(other._right)

    @property
    def total(self) -> Counts:
        """Counts over all classes."""
        return Counts(self._true.total(), self._predicted.total(), self._right.total())

    @property
    def by_class(self) -> dict[str, Counts]:
        """Counts of each class, sorted by name."""
        names = sorted({*self._true, *self._predicted})
        return {name: Counts(self._true[name], self._predicted[name], self._right[name]) for name in names}


def entity_f1(tagger: Tagger, texts: Sequence[LabelledText]) -> float:
    """Return the entity F1 of the best labelings; a true entity that no labeling says is missed."""
    counter = EntityCounter()
    tagged = tagger.potentials([text.text for text in texts], languages=[text.language for text in texts])
    for text, one in zip(texts, tagged, strict=True):
        aligned = to_token_spans(
            text.spans, one.tokens, text=text.text, boundaries=one.boundaries, classes=tagger.space.classes
        )
        missed = [("missed", i, item.span.label) for i, item in enumerate(aligned.inexpressible)]
        found = tagger.space.spans(conformal.kbest(one.potentials, 1).labels[0]) if one.tokens else []
        counter.add([*aligned.spans, *missed], found)
    return counter.total.f1
