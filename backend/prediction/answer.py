"""A prediction without its arrays: what is shown, what is stored, and nothing that costs memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from backend.domain.flag_rule import FlagPromise
from backend.domain.precedence import in_pieces
from backend.domain.priority import doubt_of, goes_first, priority_of, review_value, value_per_look
from backend.domain.ranked import Candidate, Labeling, RankedList, RankedText, RankedUnit, one_unit
from backend.prediction.prediction import DecodedUnit, DoubtfulSpan, Prediction, count_places
from backend.store.packed_lists import pack_ranked
from backend.tagger.spans import to_char_spans
from conformal.risk import FLOOR

LEAST = 0.001  # probability below which labelings of a document's sentence are not kept, beyond the first few
FEWEST = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that is said about one text, under one threshold version.

    `value` is what a look at the task is worth (`backend.domain.priority`). `units` are how many sentences
    (or whole texts) sets were made for; `set_size` is the product of theirs, any whole number; `empty` says that one of
    them is empty. `flags` is what the flags promise, `places` how many they mark; `doubt` says how likely the best
    labeling is to have an error, of a text of several units which share of it is expected to be wrong (METHODS 12.1).
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
    labelings: tuple[Labeling, ...]
    spans: tuple[DoubtfulSpan, ...]
    ranked: bytes
    value: float
    units: int = 1
    set_size_log10: float | None = None
    empty: bool = False
    flags: FlagPromise | None = None
    places: int = 0
    doubt: float = 1.0

    @property
    def best(self) -> Labeling:
        """The likeliest labeling."""
        return self.labelings[0]

    @property
    def priority(self) -> float:
        """The priority of rank 1, which tasks are ordered by everywhere (`backend.domain.priority.priority_of`)."""
        return priority_of(self.value, first=self.empty or goes_first(is_open=self.open, set_size=self.set_size))

    def priority_of_rank(self, labeling: Labeling) -> float:
        """Return the number that a labeling is sent with: that of rank 1, in the proportion of their probabilities."""
        best = self.best.probability
        return self.priority * min(1.0, labeling.probability / best) if best else self.priority

    @property
    def weight(self) -> int:
        """About how many bytes this takes."""
        spans = sum(len(labeling.spans) for labeling in self.labelings) + sum(
            len(span.labels) + 1 + sum(map(len, span.also)) for span in self.spans
        )
        return 1_000 + len(self.ranked) + 100 * spans


def answer_of(prediction: Prediction) -> Answer:
    """Reduce a prediction to what is kept of it."""
    sets, labelings, spans = prediction.sets, prediction.labelings, prediction.spans
    ranked = _ranked_text(prediction)
    return Answer(
        language=prediction.language,
        length=len(prediction.decoded.tokens),
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
        units=len(sets.units),
        set_size_log10=sets.set_size_log10,
        empty=sets.empty,
        flags=prediction.flags,
        places=count_places(spans),
        doubt=doubt_of(ranked),
        value=_value(prediction, ranked, spans, labelings),
    )


def _value(
    prediction: Prediction, ranked: RankedText, spans: Sequence[DoubtfulSpan], labelings: Sequence[Labeling]
) -> float:
    if prediction.flags is not None:
        return value_per_look(ranked, level=prediction.flags.level, places=count_places(spans))
    novelty = 1.0 - labelings[0].p_value if labelings else 0.0
    return review_value(ranked, flags=sum(span.flagged for span in spans), novelty=novelty)


def _ranked_text(prediction: Prediction) -> RankedText:
    """Return the lists of a prediction's units, in characters.

    Of a document a list ends where its labelings are less likely than `LEAST`: a later threshold rarely lies beyond,
    and 5,000 words then take some ten thousands of bytes.
    """
    decoded = prediction.decoded
    if len(decoded.units) == 1:
        return one_unit(_ranked_list(prediction, decoded.units[0]), floor=FLOOR)
    return RankedText(
        tuple(
            RankedUnit(start, end, unit.stratum, _ranked_list(prediction, unit, least=math.log(LEAST)))
            for (start, end), unit in in_pieces(zip(decoded.char_bounds(), decoded.units, strict=True))
        ),
        floor=FLOOR,
    )


def _ranked_list(prediction: Prediction, unit: DecodedUnit, *, least: float = -math.inf) -> RankedList:
    space = prediction.space
    tokens, spans = prediction.decoded.tokens[unit.start : unit.end], unit.candidates
    kept = max(FEWEST, int((unit.ranked.log_probabilities >= least).sum()) + 1)
    ranked = unit.ranked.head(kept)
    labelings = tuple(tuple(to_char_spans(space.spans(labels), tokens)) for labels in ranked.labels)
    candidates = tuple(
        Candidate(tokens[start].start, tokens[end - 1].end, tuple(row[:-1]))
        for (start, end), row in zip(spans.keys, spans.probabilities.tolist(), strict=True)
    )
    logs = tuple(min(0.0, value) for value in ranked.log_probabilities.tolist())
    return RankedList(space.classes, logs, labelings, ranked.rest == -math.inf, candidates)
