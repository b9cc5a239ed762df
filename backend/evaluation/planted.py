"""Plant annotation errors in right labels: the mistakes people make, one a label.

Four kinds, drawn with equal odds among those that a label allows: an entity gets another class (`class`), gains or
loses a token at one end (`boundary`), is left out (`dropped`), or a word that is none becomes one (`spurious`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conformal.labels import Span

KINDS = ("class", "boundary", "dropped", "spurious")


@dataclass(frozen=True)
class Planted:
    """A label with one error in it, in tokens, and what kind of error it is."""

    spans: tuple[Span, ...]
    kind: str


def plant_error(
    spans: Sequence[Span],
    words: Sequence[str],
    *,
    classes: Sequence[str],
    rng: np.random.Generator,
    boundaries: Sequence[int] = (),
) -> Planted | None:
    """Return the label with one error, None where no kind of error fits it.

    Args:
        spans: entities of the right label, in tokens, not overlapping.
        words: the text of each token; a spurious entity begins at a word with a capital where there is one.
        boundaries: tokens that begin a further sentence: no entity reaches across one.
    """
    choices = {
        "class": _swapped(spans, classes),
        "boundary": _moved(spans, len(words), boundaries),
        "dropped": [tuple(s for s in spans if s is not gone) for gone in spans],
        "spurious": _added(spans, words, classes),
    }
    possible = [kind for kind in KINDS if choices[kind]]
    if not possible:
        return None
    kind = possible[int(rng.integers(len(possible)))]
    wrong = choices[kind][int(rng.integers(len(choices[kind])))]
    return Planted(tuple(sorted(wrong)), kind)


def _swapped(spans: Sequence[Span], classes: Sequence[str]) -> list[tuple[Span, ...]]:
    return [
        _replaced(spans, old, Span(old.start, old.end, label))
        for old in spans
        for label in classes
        if label != old.label
    ]


def _moved(spans: Sequence[Span], length: int, boundaries: Sequence[int]) -> list[tuple[Span, ...]]:
    choices = []
    for old in spans:
        others = {token for other in spans if other is not old for token in range(other.start, other.end)}
        for start, end in (
            (old.start - 1, old.end),
            (old.start + 1, old.end),
            (old.start, old.end - 1),
            (old.start, old.end + 1),
        ):
            inside = 0 <= start < end <= length and not others & set(range(start, end))
            if inside and not any(start < edge < end for edge in boundaries):
                choices.append(_replaced(spans, old, Span(start, end, old.label)))
    return choices


def _added(spans: Sequence[Span], words: Sequence[str], classes: Sequence[str]) -> list[tuple[Span, ...]]:
    taken = {token for span in spans for token in range(span.start, span.end)}
    free = [i for i, word in enumerate(words) if i not in taken and word[:1].isalpha()]
    capital = [i for i in free if words[i][:1].isupper()]
    return [(*spans, Span(i, i + 1, label)) for i in capital or free for label in classes]


def _replaced(spans: Sequence[Span], old: Span, new: Span) -> tuple[Span, ...]:
    return tuple(new if span is old else span for span in spans)
