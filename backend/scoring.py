"""Where confirmed labels stand under a model: the numbers a calibration row is made of (METHODS 3.3, 6.2).

One way for all who need it: the starter calibration, `surespan calibrate`, confirmed tasks, evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend.tagger.readers.types import LabelledText
from backend.tagger.spans import Alignment, to_token_spans
from backend.tagger.tagger import Tagged, Tagger
from conformal.rows import TaskScores, score_task
from conformal.strata import Strata

_CHUNK = 256


@dataclass(frozen=True)
class ScoredText:
    """A labelled text under a model: its stratum, its scores, and what of its label could not be expressed."""

    cell: str
    scores: TaskScores
    alignment: Alignment
    tagged: Tagged

    @property
    def language(self) -> str:
        """The language that was given or identified."""
        return self.tagged.language

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tagged.tokens)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Characters of each entity row: of its tokens, or as the person drew it where it fits none."""
        drawn = iter(
            item.span for item in self.alignment.inexpressible if item.span.label in self.scores.entities.names
        )
        tokens = self.tagged.tokens
        return [
            (tokens[place[0]].start, tokens[place[1] - 1].end) if place is not None else next(drawn)[:2]
            for place in self.scores.places
        ]


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
        for number, (text, made) in enumerate(zip(part, tagged, strict=True), start=first):
            yield _score(tagger, text, made, task=number, strata=layout, p_min=p_min)


def _score(
    tagger: Tagger, text: LabelledText, tagged: Tagged, *, task: int, strata: Strata, p_min: float
) -> ScoredText:
    space = tagger.space
    alignment = to_token_spans(
        text.spans, tagged.tokens, text=text.text, boundaries=tagged.boundaries, classes=space.classes
    )
    lost = [item.span.label for item in alignment.inexpressible]
    scores = score_task(
        tagged.potentials,
        space,
        spans=alignment.spans,
        lost=[label for label in lost if label in space.classes],
        inexpressible=bool(lost),
        task=task,
        p_min=p_min,
    )
    cell = strata.cell(length=len(tagged.tokens), language=tagged.language, seen=tagged.seen)
    return ScoredText(cell, scores, alignment, tagged)
