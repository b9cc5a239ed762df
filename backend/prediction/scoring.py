"""Where confirmed labels stand under a model: the numbers a calibration row is made of (METHODS 3.3, 6.2).

One way for all who need it: the starter calibration, `surespan calibrate`, confirmed tasks, evaluation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from backend.domain.precedence import in_pieces
from backend.domain.records import TextSpan
from backend.tagger.readers.types import LabelledText
from backend.tagger.spans import Alignment, to_char_spans, to_token_spans
from backend.tagger.tagger import Tagged, Tagger
from backend.tagger.tokens import Token
from conformal.labels import LabelSpace, Span
from conformal.risk import TaskErrors, find_errors, span_doubts
from conformal.rows import UnitScores, score_unit
from conformal.strata import Strata

_CHUNK = 256


@dataclass(frozen=True)
class ScoredUnit:
    """A unit of a labelled text under a model: where it is in characters, its stratum and its scores.

    `entities` are how many the person drew here. `lost` are those of them that no labeling says, as they were drawn;
    the unit's entity rows that lie on no token bounds are theirs, in this order.
    """

    start: int
    end: int
    cell: str
    scores: UnitScores
    tokens: tuple[Token, ...]
    entities: int
    lost: tuple[TextSpan, ...] = ()

    @property
    def char_ranges(self) -> list[tuple[int, int]]:
        """Characters of each entity row: of its tokens, or as the person drew it where it fits none."""
        drawn = iter(self.lost)
        return [
            (self.tokens[span[0]].start, self.tokens[span[1] - 1].end) if span is not None else next(drawn)[:2]
            for span in self.scores.token_spans
        ]


@dataclass(frozen=True)
class ScoredText:
    """A labelled text under a model: its units with their scores, and what of its label could not be expressed.

    `errors` are those of the best labeling, each with the level of the flags at which it is seen (METHODS 11.3).
    """

    units: tuple[ScoredUnit, ...]
    alignment: Alignment
    tagged: Tagged
    errors: TaskErrors

    @property
    def language(self) -> str:
        """The language that was given or identified."""
        return self.tagged.language

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tagged.tokens)

    @property
    def expressible(self) -> bool:
        """Whether the model can produce the whole label."""
        return all(unit.scores.expressible for unit in self.units)


def score_labelled(
    tagger: Tagger,
    texts: Sequence[LabelledText],
    *,
    strata: Strata | None = None,
    p_min: float = 0.01,
    chunk: int = _CHUNK,
) -> Iterator[ScoredText]:
    """Tag labelled texts and score their labels, a chunk at a time; lazily, in order.

    A label that the model cannot express scores `+inf` and is counted, never dropped. Texts tagged together share
    padding, which moves the last digits of a score; with a chunk of 1 it depends on its text alone.
    """
    layout = strata or Strata()
    for first in range(0, len(texts), chunk):
        part = texts[first : first + chunk]
        tagged = tagger.potentials([text.text for text in part], languages=[text.language for text in part])
        for number, (text, chain) in enumerate(zip(part, tagged, strict=True), start=first):
            yield _score(tagger, text, chain, task=number, strata=layout, p_min=p_min)


def _score(
    tagger: Tagger, text: LabelledText, tagged: Tagged, *, task: int, strata: Strata, p_min: float
) -> ScoredText:
    space = tagger.space
    alignment = to_token_spans(
        text.spans, tagged.tokens, text=text.text, boundaries=tagged.boundaries, classes=space.classes
    )
    bounds, chars = tagged.units, tagged.char_bounds()
    held, crossed, begun = _by_unit(alignment, bounds, chars)
    units: list[ScoredUnit] = []
    for number, ((start, end), (first, last), chain) in enumerate(
        in_pieces(zip(bounds, chars, tagged.unit_chains(), strict=True))
    ):
        mine = begun.get(number, [])
        lost = tuple(span for span in mine if span.label in space.classes)
        spans = [Span(span.start - start, span.end - start, span.label) for span in held.get(number, [])]
        scores = score_unit(
            chain,
            space,
            spans=spans,
            lost=[span.label for span in lost],
            inexpressible=number in crossed,
            task=task,
            unit=number,
            p_min=p_min,
        )
        cell = strata.cell(length=end - start, language=tagged.language, seen=tagged.seen)
        drawn = len(spans) + len(mine)
        units.append(ScoredUnit(first, last, cell, scores, tagged.tokens[start:end], drawn, lost))
    errors = _errors(alignment, tagged.tokens, units, space)
    # The listed spans have told what they know; a study holds a hundred thousand texts.
    slim = tuple(replace(unit, scores=replace(unit.scores, listed=None)) for unit in units)
    return ScoredText(slim, alignment, tagged, errors)


def _errors(
    alignment: Alignment, tokens: Sequence[Token], units: Sequence[ScoredUnit], space: LabelSpace
) -> TaskErrors:
    """Compare the label with the best labeling in characters; what the model cannot express counts as missing.

    A span is where its tokens are, as for the sets: white space that somebody marked with a name is no error.
    """
    best: list[TextSpan] = []
    starts: list[int] = []
    ends: list[int] = []
    doubts: list[float] = []
    for unit in in_pieces(units):
        scores, own = unit.scores, unit.tokens
        best += to_char_spans(scores.best, own)
        if scores.listed is not None:
            said = {(span.start, span.end): space.classes.index(span.label) for span in scores.best}
            keys = scores.listed.keys
            starts += [own[start].start for start, _ in keys]
            ends += [own[end - 1].end for _, end in keys]
            doubts += span_doubts(scores.listed.probabilities, [said.get(key) for key in keys]).tolist()
    true = to_char_spans(alignment.spans, tokens)
    true += [item.span for item in alignment.inexpressible if item.span.start < item.span.end]
    return find_errors(true, best, starts=starts, ends=ends, doubts=doubts)


def _by_unit(
    alignment: Alignment, bounds: Sequence[tuple[int, int]], chars: Sequence[tuple[int, int]]
) -> tuple[dict[int, list[Span]], set[int], dict[int, list[TextSpan]]]:
    """Return what each unit holds of a label, in time that grows with the text and not with its square.

    That is, by unit: the spans on token bounds that begin there; the units that any other span touches; and those other
    spans by the unit they begin in, because one that crosses is one entity, and a row of that unit.
    """
    token_starts, char_starts = [start for start, _ in bounds], [start for start, _ in chars]
    held: dict[int, list[Span]] = {}
    for span in alignment.spans:
        held.setdefault(bisect_right(token_starts, span.start) - 1, []).append(span)
    crossed: set[int] = set()
    begun: dict[int, list[TextSpan]] = {}
    for item in alignment.inexpressible:
        touched = _touched(item.span, chars, char_starts)
        crossed.update(touched)
        begun.setdefault(touched[0], []).append(item.span)
    return held, crossed, begun


def _touched(span: TextSpan, chars: Sequence[tuple[int, int]], starts: Sequence[int]) -> range:
    """Return the units that a span touches, at least one: what lies outside the text belongs to the nearest.

    >>> chars = [(0, 4), (4, 9), (9, 12)]
    >>> [list(_touched(TextSpan(*at, "PER"), chars, [0, 4, 9])) for at in ((2, 5), (4, 9), (-5, -2), (20, 30), (4, 4))]
    [[0, 1], [1], [0], [2], [1]]
    """
    first = min(max(0, bisect_right(starts, span.start) - 1), len(chars) - 1)
    last = max(first, bisect_left(starts, span.end) - 1)
    return range(first, last + 1)
