"""Labelled texts as chains: read as they are served, cut into sentences, features hashed, labels of their tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.domain.records import TextSpan
from backend.tagger.errors import InvalidTraining
from backend.tagger.language import LanguageGuess
from backend.tagger.linear.kernels import Ints
from backend.tagger.linear.objective import Examples, number_ranges, running_totals
from backend.tagger.linear.token_features import BIAS, hash_tokens
from backend.tagger.linear.word_features import Hashes
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers.types import LabelledText
from backend.tagger.reading import Read, read_rounds
from backend.tagger.spans import Reason, to_token_spans
from backend.tagger.training_texts import fingerprint
from conformal.labels import LabelSpace

_TEXTS_AT_ONCE = 256  # bounds the memory of a network's pass
# A feature of one token alone says little and costs as much as another: without them learning is three times as
# fast and no worse.
_LEAST_TIMES = 2
_HARMLESS = Reason.EMPTY  # a span without a token says nothing about any token


@dataclass(frozen=True)
class Chains:
    """All sentences that can be learnt from, with the features they have.

    `known` are the hashes of the features, sorted: a feature's row is its place there. `groups` numbers the text of
    each chain; texts that read alike have one number, so that no half of such a pair judges the other.
    """

    examples: Examples
    known: Hashes  # (F,)
    groups: Ints  # (C,)
    texts: int
    left_out: Counter[str]


def build_chains(
    texts: Sequence[LabelledText], space: LabelSpace, *, base: NetworkTagger | None, languages: Sequence[str]
) -> Chains:
    """Read texts as the tagger will, and take every sentence whose label its tokens can say.

    A sentence boundary inside an entity is no boundary here. Of spans within one another the outermost is learnt
    (decision 28). A sentence with another span that cannot be said (it cuts a token, or overlaps a part of another) is
    left out and counted by reason: without the span it would teach that there is none.
    Raises InvalidTraining when no sentence is left.
    """
    guess = LanguageGuess(languages)
    fields = [text.language for text in texts]
    reads = [read for part in read_rounds([text.text for text in texts], guess, languages=fields) for read in part]
    left_out: Counter[str] = Counter()
    kept: list[Read] = []
    pieces: list[tuple[int, int, int]] = []  # text, first token, token after the last
    labels: list[npt.NDArray[np.int16]] = []
    numbers: dict[int, int] = {}
    groups: list[int] = []
    for text, read in zip(texts, reads, strict=True):
        if not read.tokens:
            left_out["it has no token"] += 1
            continue
        whole, ids, bad = _label(text, read, space)
        left_out.update(bad.values())
        number = numbers.setdefault(fingerprint(read.text, read.tokens), len(numbers))
        used = [piece for piece in _sentences(whole) if piece not in bad]
        if not used:
            continue
        pieces += [(len(kept), first, last) for first, last in used]
        groups += [number] * len(used)
        labels += [ids[first:last] for first, last in used]
        kept.append(whole)
    if not pieces:
        raise InvalidTraining(
            f"expected at least one sentence with a label that its tokens can say, got none ({dict(left_out)}); "
            "check the labels"
        )
    return _features(kept, pieces, labels, base, np.array(groups, np.int64), left_out)


def _sentences(read: Read) -> list[tuple[int, int]]:
    return list(zip((0, *read.boundaries), (*read.boundaries, len(read.tokens)), strict=True))


def _label(
    text: LabelledText, read: Read, space: LabelSpace
) -> tuple[Read, npt.NDArray[np.int16], dict[tuple[int, int], str]]:
    """Return the text without boundaries inside entities, its label ids, and the sentences that cannot be used."""
    aligned = to_token_spans(text.spans, read.tokens, text=text.text, classes=space.classes)
    inside = {j for start, end, _ in aligned.spans for j in range(start + 1, end)}
    whole = read._replace(boundaries=tuple(j for j in read.boundaries if j not in inside))
    sentences = _sentences(whole)
    firsts = [first for first, _ in sentences]
    starts, ends = [token.start for token in read.tokens], [token.end for token in read.tokens]
    bad: dict[tuple[int, int], str] = {}
    for item in aligned.inexpressible:
        if item.reason is _HARMLESS or (item.reason is Reason.OVERLAPS and _is_inner(item.span, text.spans)):
            continue
        touched = sentences
        if item.reason is not Reason.OUTSIDE:
            first = min(bisect_right(ends, item.span.start), len(starts) - 1)
            last = max(bisect_left(starts, item.span.end) - 1, first)
            touched = sentences[bisect_right(firsts, first) - 1 : bisect_right(firsts, last)]
        bad |= dict.fromkeys(touched, item.reason.value)
    return whole, space.ids(aligned.spans, len(read.tokens)), bad


def _is_inner(span: TextSpan, spans: Sequence[TextSpan]) -> bool:
    """Whether a span lies within a longer one of its text, so that the outer one stands for its words."""
    return any(
        each.start <= span.start and span.end <= each.end and each.end - each.start > span.end - span.start
        for each in spans
    )


def _features(
    reads: Sequence[Read],
    pieces: Sequence[tuple[int, int, int]],
    labels: Sequence[npt.NDArray[np.int16]],
    base: NetworkTagger | None,
    groups: Ints,
    left_out: Counter[str],
) -> Chains:
    hashed = hash_tokens([r.text for r in reads], [r.tokens for r in reads], [r.boundaries for r in reads])
    dense = dense_features(reads, base)
    starts = np.cumsum([0, *(len(read.tokens) for read in reads)])
    firsts = np.array([starts[text] + first for text, first, _ in pieces], np.int64)
    lengths = np.array([last - first for _, first, last in pieces], np.int64)
    tokens = number_ranges(firsts, lengths)
    counts = hashed.offsets[tokens + 1] - hashed.offsets[tokens]
    values = hashed.values[number_ranges(hashed.offsets[tokens], counts)]
    known, rows, times = np.unique(values, return_inverse=True, return_counts=True)
    often = (times >= _LEAST_TIMES) | (known == BIAS)
    rows = np.where(often, np.cumsum(often) - 1, -1)[rows]
    counts = np.add.reduceat(rows >= 0, running_totals(counts)[:-1]).astype(np.int64)
    examples = Examples(
        rows[rows >= 0].astype(np.int32),
        running_totals(counts),
        dense[tokens],
        running_totals(lengths),
        np.concatenate(labels).astype(np.int64),
    )
    return Chains(examples, known[often], groups, len(reads), left_out)


def dense_features(reads: Sequence[Read], base: NetworkTagger | None) -> npt.NDArray[np.float32]:
    """Return what a network says about each token: the logarithms of its labels' shares (T, D); D is 0 without one."""
    total = sum(len(read.tokens) for read in reads)
    if base is None:
        return np.zeros((total, 0), np.float32)
    parts = [np.zeros((0, len(base.space)))]
    for begin in range(0, len(reads), _TEXTS_AT_ONCE):
        for emissions in base.emissions(reads[begin : begin + _TEXTS_AT_ONCE]):
            if len(emissions):
                peak = emissions.max(axis=1, keepdims=True)
                parts.append(emissions - peak - np.log(np.exp(emissions - peak).sum(axis=1, keepdims=True)))
    return np.concatenate(parts).astype(np.float32)
