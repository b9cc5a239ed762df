"""Labelled texts as an encoder is trained on them: sentence by sentence, as it will be run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from backend.tagger.errors import InvalidTraining
from backend.tagger.hf.subwords import Ints, Subworder
from backend.tagger.hf.windows import Piece, cut_texts
from backend.tagger.language import UNDETERMINED
from backend.tagger.readers.types import LabelledText
from backend.tagger.reading import Read
from backend.tagger.sentences import find_boundaries
from backend.tagger.spans import to_token_spans
from backend.tagger.tokens import tokenize
from conformal.labels import LabelSpace


@dataclass(frozen=True)
class EncodedSample:
    """A sentence (or a window of a long one): its pieces, and the label ids of its words."""

    piece: Piece
    labels: Ints  # (N,)


@dataclass(frozen=True)
class EncodedCorpus:
    """Samples, the position of each sample's text among those given, and the spans that cannot be said, by reason."""

    samples: tuple[EncodedSample, ...]
    origins: tuple[int, ...]
    inexpressible: Counter[str]


def encode_texts(
    texts: Iterable[LabelledText], space: LabelSpace, *, subworder: Subworder, limit: int, margin: int
) -> EncodedCorpus:
    """Cut texts into the sentences and windows that prediction would run, with their labels.

    A text with a span that its tokens cannot express is left out and counted by reason, as in `build_corpus`.
    """
    reads: list[Read] = []
    positions: list[int] = []
    labels: list[Ints] = []
    bad: Counter[str] = Counter()
    for position, text in enumerate(texts):
        tokens = tuple(tokenize(text.text))
        language = text.language or UNDETERMINED
        boundaries = find_boundaries(text.text, tokens, language=language)
        aligned = to_token_spans(text.spans, tokens, text=text.text, boundaries=boundaries, classes=space.classes)
        if aligned.inexpressible:
            bad.update(item.reason.value for item in aligned.inexpressible)
        else:
            reads.append(Read(text.text, tokens, language, boundaries))
            positions.append(position)
            labels.append(space.ids(aligned.spans, len(tokens)).astype(np.int64))
    samples: list[EncodedSample] = []
    origins: list[int] = []
    for piece in cut_texts(reads, subworder, limit=limit, margin=margin, by_sentence=True):
        begin, end = piece.offset + piece.window.begin, piece.offset + piece.window.end
        # A window of a long sentence may begin inside an entity; there it begins for the chain.
        own, _ = space.repair(labels[piece.text][begin:end])
        samples.append(EncodedSample(piece, own.astype(np.int64)))
        origins.append(positions[piece.text])
    if not samples:
        raise InvalidTraining("expected at least one labelled text with a token, got none; check the data files")
    return EncodedCorpus(tuple(samples), tuple(origins), bad)
