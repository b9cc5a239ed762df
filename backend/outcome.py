"""A prediction without its arrays: what is shown, what is stored, and nothing that costs memory.

Light to import: no model, no kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.store.ranked import (
    Candidate,
    RankedList,
    goes_first,
    pack_ranked,
    probability_of,
    review_value,
    score_of,
)
from backend.store.types import TextSpan

if TYPE_CHECKING:  # importing it at run time brings the model's libraries in
    from backend.predictor import Prediction


@dataclass(frozen=True, slots=True)
class ShownLabeling:
    """A labeling of the set, in characters; `probability` is within 0..1 whatever rounding did."""

    rank: int
    probability: float
    p_value: float
    spans: tuple[TextSpan, ...]


@dataclass(frozen=True, slots=True)
class HeldLabel:
    """A label that a span could carry; `O` is "not an entity"."""

    label: str
    p_value: float
    probability: float


@dataclass(frozen=True, slots=True)
class DoubtfulSpan:
    """A span with the labels in its set; flagged unless that leaves no doubt (METHODS 6.4)."""

    start: int
    end: int
    labels: tuple[HeldLabel, ...]
    flagged: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that is said about one text, under one threshold version. Words as in PRODUCT.

    `value` is what a look at the task is worth (`backend.store.ranked.review_value`).
    """

    language: str
    length: int
    stratum: str
    pool: str
    alpha: str
    n: int
    tau: float
    guarantee: str
    threshold_version: int
    model_version: str
    open: bool
    set_size: int | None
    labelings: tuple[ShownLabeling, ...]
    spans: tuple[DoubtfulSpan, ...]
    ranked: bytes
    value: float
    promise: str

    @property
    def best(self) -> ShownLabeling:
        """The likeliest labeling."""
        return self.labelings[0]

    @property
    def score(self) -> float:
        """The score of rank 1, which tasks are ordered by everywhere (`backend.store.ranked.score_of`)."""
        return score_of(self.value, first=goes_first(is_open=self.open, set_size=self.set_size))

    def score_of_rank(self, labeling: ShownLabeling) -> float:
        """Return the score that a labeling is sent with: that of rank 1, in the proportion of their probabilities."""
        best = self.best.probability
        return self.score * min(1.0, labeling.probability / best) if best else self.score

    @property
    def weight(self) -> int:
        """About how many bytes this takes."""
        spans = sum(len(labeling.spans) for labeling in self.labelings) + sum(
            len(each.labels) + 1 for each in self.spans
        )
        return 1_000 + len(self.ranked) + 100 * spans


def outcome_of(prediction: Prediction) -> Outcome:
    """Reduce a prediction to what is kept of it."""
    from backend.promise import describe  # noqa: PLC0415 - the caller has the model's libraries already

    sets = prediction.sets
    labelings = tuple(
        ShownLabeling(
            labeling.rank,
            probability_of(labeling.log_probability),
            labeling.p_value,
            tuple(TextSpan(*span) for span in prediction.char_spans(labeling.spans)),
        )
        for labeling in sets.labelings
    )
    tokens = prediction.tagged.tokens
    spans = tuple(
        DoubtfulSpan(
            tokens[each.start].start,
            tokens[each.end - 1].end,
            tuple(HeldLabel(held.label, held.p_value, held.probability) for held in each.labels),
            each.flagged,
        )
        for each in sets.spans
    )
    ranked = _ranked_list(prediction)
    return Outcome(
        language=prediction.tagged.language,
        length=len(tokens),
        stratum=sets.stratum,
        pool=sets.pool,
        alpha=sets.alpha,
        n=sets.n,
        tau=sets.threshold,
        guarantee=prediction.guarantee.value,
        threshold_version=prediction.threshold_version,
        model_version=prediction.model_version,
        open=sets.open,
        set_size=sets.set_size,
        labelings=labelings,
        spans=spans,
        ranked=pack_ranked(ranked),
        value=review_value(
            ranked, flags=sum(each.flagged for each in spans), novelty=1.0 - labelings[0].p_value if labelings else 0.0
        ),
        promise=describe(prediction),
    )


def _ranked_list(prediction: Prediction) -> RankedList:
    ranked, found = prediction.ranked, prediction.candidates
    space, tokens = prediction.space, prediction.tagged.tokens
    labelings = tuple(
        tuple(TextSpan(*span) for span in prediction.char_spans(space.spans(labels))) for labels in ranked.labels
    )
    candidates = tuple(
        Candidate(tokens[start].start, tokens[end - 1].end, tuple(row[:-1]))
        for (start, end), row in zip(found.keys, found.probabilities.tolist(), strict=True)
    )
    logs = tuple(min(0.0, value) for value in ranked.log_probabilities.tolist())
    return RankedList(space.classes, logs, labelings, ranked.rest == -math.inf, candidates)
