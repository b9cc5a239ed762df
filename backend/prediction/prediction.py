"""The sets of one text, and the list of labelings they were cut from. Free of torch and SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from backend.domain.flag_rule import FlagPromise
from backend.domain.guarantee import Guarantee
from backend.domain.ranked import Labeling, probability_of
from backend.domain.records import TextSpan
from backend.tagger.spans import Inexpressible, to_char_spans
from backend.tagger.tokens import Token
from conformal.full import Ranked
from conformal.labels import LabelSpace, Span
from conformal.prediction import PredictionSet, RankedLabeling
from conformal.risk import place_numbers
from conformal.span_sets import SpanLabel
from conformal.subsequence import Candidates
from conformal.units import TextSet

MOST_EXACT = 2**53  # whole numbers beyond it are not exact in every reader of JSON
MOST_ALSO = 3  # other labelings of its sentence that a doubtful span names


@dataclass(frozen=True, slots=True)
class DoubtfulSpan:
    """A span, in characters, with the labels in its set; flagged as the rule in use says (METHODS 6.4, 11.2).

    `also` are other labelings of its own sentence that are in that sentence's set, those first that differ least from
    the likeliest; only where the text has several.
    """

    start: int
    end: int
    labels: tuple[SpanLabel, ...]
    flagged: bool
    also: tuple[tuple[TextSpan, ...], ...] = ()
    doubt: float | None = None


@dataclass(frozen=True)
class DecodedUnit:
    """A unit with all that its sets are cut from: its tokens of the text, stratum, best labelings, candidate spans.

    Labelings and candidates are in tokens of the unit.
    """

    start: int
    end: int
    stratum: str
    ranked: Ranked = field(repr=False)
    candidates: Candidates = field(repr=False)


@dataclass(frozen=True)
class Decoded:
    """A text as its units, decoded."""

    text: str
    tokens: tuple[Token, ...]
    language: str
    units: tuple[DecodedUnit, ...]

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The token ranges of the units."""
        return tuple((unit.start, unit.end) for unit in self.units)

    @property
    def strata(self) -> tuple[str, ...]:
        """The strata that the text touches, each once."""
        return tuple(sorted({unit.stratum for unit in self.units}))

    def char_bounds(self) -> list[tuple[int, int]]:
        """Return where each unit begins and ends in characters: together they are the whole text."""
        starts = [0, *(self.tokens[unit.start].start for unit in self.units[1:]), len(self.text)]
        return list(pairwise(starts))


@dataclass(frozen=True)
class Prediction:
    """The sets of one text and what they are worth.

    `worth` is that of the method: "approximate" and "heuristic" sets promise nothing. `ignored` are fixed spans that
    no labeling of the tokens says; see `backend.prediction.constraints`. `flags` is what the flags promise, None where
    they mark every span with several labels, which promises nothing. `out_of_reach` are labels of the project that the
    model does not know: a text that has one is in no set.
    """

    decoded: Decoded
    space: LabelSpace = field(repr=False)
    sets: TextSet
    guarantee: Guarantee
    worth: str
    threshold_version: int
    model_version: str
    remark: str = ""
    ignored: tuple[Inexpressible, ...] = ()
    flags: FlagPromise | None = None
    out_of_reach: tuple[str, ...] = ()

    @property
    def blank(self) -> bool:
        """Whether the model knows no label of the project, and the text is shown without a suggestion."""
        return bool(self.out_of_reach) and set(self.space.classes) <= set(self.out_of_reach)

    @property
    def text(self) -> str:
        """The text itself."""
        return self.decoded.text

    @property
    def language(self) -> str:
        """The language that was given or identified."""
        return self.decoded.language

    @property
    def labelings(self) -> tuple[Labeling, ...]:
        """The labelings of the set that are shown, best first, in characters."""
        return tuple(
            Labeling(
                labeling.rank,
                probability_of(labeling.log_probability),
                labeling.p_value,
                tuple(self.char_spans(labeling.spans)),
            )
            for labeling in self.sets.labelings
        )

    @property
    def spans(self) -> tuple[DoubtfulSpan, ...]:
        """The spans that are reported with their label sets, in characters."""
        tokens, several = self.decoded.tokens, len(self.sets.units) > 1
        doubtful: list[DoubtfulSpan] = []
        for (first, _), unit in zip(self.sets.bounds, self.sets.units, strict=True):
            also = self._also(unit, first) if several and any(span.flagged for span in unit.spans) else ()
            doubtful += [
                DoubtfulSpan(
                    tokens[first + span.start].start,
                    tokens[first + span.end - 1].end,
                    span.labels,
                    span.flagged,
                    also if span.flagged else (),
                    span.doubt,
                )
                for span in unit.spans
            ]
        return tuple(doubtful)

    @property
    def places(self) -> int:
        """How many places are flagged: flagged spans that overlap are one look."""
        return count_places(self.spans)

    def _also(self, unit: PredictionSet, first: int) -> tuple[tuple[TextSpan, ...], ...]:
        best, *others = unit.labelings
        held = set(best.spans)
        others.sort(key=lambda each: (len(held.symmetric_difference(each.spans)), each.rank))
        return tuple(tuple(self.char_spans(_shifted(each.spans, first))) for each in others[:MOST_ALSO])

    def char_spans(self, spans: Sequence[Span]) -> list[TextSpan]:
        """Token spans of this text as character spans."""
        return to_char_spans(spans, self.decoded.tokens)

    def as_dict(self) -> dict[str, Any]:
        """Return what `surespan predict --json` prints for the text; see docs/reference."""
        text, sets = self.text, self.sets
        return {
            "text": text,
            "language": self.language,
            "stratum": sets.stratum,
            "pool": sets.pool,
            "alpha": sets.alpha,
            "n": sets.n,
            "guarantee": self.guarantee.value,
            "threshold_version": self.threshold_version,
            "model_version": self.model_version,
            "open": sets.open,
            **size_of(sets.set_size, sets.set_size_log10),
            "labelings": [self._labeling(labeling, 0) for labeling in sets.labelings],
            "units": [
                {
                    "start": start,
                    "end": end,
                    "stratum": unit.stratum,
                    "pool": unit.pool,
                    "n": unit.n,
                    "open": unit.open,
                    "set_size": unit.set_size,
                    "labelings": [self._labeling(labeling, first) for labeling in unit.labelings],
                }
                for (start, end), (first, _), unit in zip(
                    self.decoded.char_bounds(), sets.bounds, sets.units, strict=True
                )
            ],
            "out_of_reach": list(self.out_of_reach),
            "flags": {"rule": "sets"} if self.flags is None else self.flags.as_dict(),
            "places": self.places,
            "spans": [
                {
                    "start": span.start,
                    "end": span.end,
                    "text": text[span.start : span.end],
                    "labels": [
                        {"label": held.label, "p_value": held.p_value, "probability": held.probability}
                        for held in span.labels
                    ],
                    "flagged": span.flagged,
                    "doubt": span.doubt,
                }
                for span in self.spans
            ],
        }

    def _labeling(self, labeling: RankedLabeling, first: int) -> dict[str, Any]:
        """Describe a labeling of the text, or of the unit that begins with token `first`."""
        return {
            "rank": labeling.rank,
            "probability": probability_of(labeling.log_probability),
            "p_value": labeling.p_value,
            "spans": [
                {"start": start, "end": end, "label": label, "text": self.text[start:end]}
                for start, end, label in self.char_spans(_shifted(labeling.spans, first))
            ],
        }


def count_places(spans: Sequence[DoubtfulSpan]) -> int:
    """Return how many places are flagged among these spans."""
    marked = [span for span in spans if span.flagged]
    return int(place_numbers([s.start for s in marked], [s.end for s in marked]).max(initial=-1)) + 1


def _shifted(spans: Sequence[Span], first: int) -> list[Span]:
    return [Span(span.start + first, span.end + first, span.label) for span in spans]


def size_of(size: int | None, log10: float | None) -> dict[str, Any]:
    """Return the size as a number while every reader of JSON can hold it, beyond that as a power of ten."""
    if size is None or size <= MOST_EXACT:
        return {"set_size": size}
    return {"set_size": None, "set_size_log10": log10}
