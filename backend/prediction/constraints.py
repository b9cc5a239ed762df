"""Spans that a person has fixed, as exact constraints on the chain.

A fixed span of class w makes its first token B-w, its others I-w, and keeps I-w off the token after it, so that no
longer entity can stand there. Nothing is said about the rest of the text: whatever is not fixed is decided again.

A fixed span that no labeling of the tokens says (it cuts a token, crosses a sentence, overlaps another one, or has a
class the model lacks) is the person's all the same: its tokens are kept free of entities, so that nothing of ours lies
on top of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backend.domain.records import TextSpan
from backend.tagger.spans import Inexpressible, to_token_spans
from backend.tagger.tagger import Tagged
from conformal.labels import LabelSpace


def constrain(
    tagged: Tagged, spans: Sequence[TextSpan], *, space: LabelSpace
) -> tuple[Tagged, tuple[Inexpressible, ...]]:
    """Return the text with its chain bound to the fixed spans, and those that no labeling says, with reasons."""
    if not spans:
        return tagged, ()
    alignment = to_token_spans(
        spans, tagged.tokens, text=tagged.text, boundaries=tagged.boundaries, classes=space.classes
    )
    length = len(tagged.tokens)
    fixed: dict[int, int] = {}
    forbidden: dict[int, list[int]] = {}
    for start, end, name in alignment.spans:
        begin = space.begin(name)
        fixed[start] = begin
        fixed.update(dict.fromkeys(range(start + 1, end), begin + 1))
        if end < length:
            forbidden.setdefault(end, []).append(begin + 1)
    for item in alignment.inexpressible:
        for index, token in enumerate(tagged.tokens):
            if token.start < item.span.end and token.end > item.span.start:
                fixed.setdefault(index, 0)
    potentials = tagged.potentials.constrain(fixed=fixed, forbidden=forbidden)
    return replace(tagged, potentials=potentials), alignment.inexpressible
