"""Labelled texts as training material: live tokens, distinct words hashed once, and variants drawn per epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.tagger.errors import InvalidTraining
from backend.tagger.features import FeatureConfig, WordFeatures, hash_words
from backend.tagger.readers.types import LabelledText
from backend.tagger.spans import to_token_spans
from backend.tagger.tokens import tokenize
from conformal.labels import LabelSpace

Ints = npt.NDArray[np.int64]
_HASH_CHUNK = 20_000
_SENTENCE_ENDS = (".", "!", "?", "…", ":", ";")


@dataclass(frozen=True)
class Sample:
    """One text: row numbers of its words in the corpus, and its label ids."""

    words: Ints  # (N,)
    labels: Ints  # (N,)


@dataclass(frozen=True)
class Corpus:
    """Samples over a list of distinct words, with each word's upper, lower and title-case form in that list."""

    samples: tuple[Sample, ...]
    words: tuple[str, ...]
    features: WordFeatures
    upper: Ints  # (V,)
    lower: Ints  # (V,)
    title: Ints  # (V,)
    capital: Ints  # (V,)
    full_stop: int
    ends: frozenset[int]
    inexpressible: Counter[str]
    origins: tuple[int, ...]  # position of each sample's text among those given

    @property
    def tokens(self) -> int:
        """Number of tokens of all samples."""
        return sum(len(sample.words) for sample in self.samples)


def build_corpus(texts: Iterable[LabelledText], space: LabelSpace, *, features: FeatureConfig) -> Corpus:
    """Tokenise with the live tokenizer and hash every distinct word and its case variants.

    A text with a span that its tokens cannot express is left out and counted by reason: trained on without the span
    it would teach that the entity is none.
    """
    rows: dict[str, int] = {}
    samples: list[Sample] = []
    origins: list[int] = []
    bad: Counter[str] = Counter()
    for position, text in enumerate(texts):
        tokens = tokenize(text.text)
        aligned = to_token_spans(text.spans, tokens, text=text.text, classes=space.classes)
        if aligned.inexpressible:
            bad.update(item.reason.value for item in aligned.inexpressible)
            continue
        if tokens:
            words = [rows.setdefault(text.text[start:end], len(rows)) for start, end in tokens]
            labels = space.ids(aligned.spans, len(tokens))
            origins.append(position)
            samples.append(Sample(np.array(words, np.int64), labels.astype(np.int64)))
    if not samples:
        raise InvalidTraining("expected at least one labelled text with a token, got none; check the data files")
    base = list(rows)
    full_stop = rows.setdefault(".", len(rows))

    def variants(change: str) -> Ints:
        changed = [getattr(word, change)() for word in base]
        return np.array([rows.setdefault(word or base[i], len(rows)) for i, word in enumerate(changed)], np.int64)

    upper, lower = variants("upper"), variants("lower")
    capital = np.array([rows.setdefault(word[:1].upper() + word[1:], len(rows)) for word in base], np.int64)
    title = np.array([rows.setdefault(word[:1].upper() + word[1:].lower(), len(rows)) for word in base], np.int64)
    words_all = tuple(rows)
    return Corpus(
        samples=tuple(samples),
        words=words_all,
        features=_hash_all(words_all, features),
        upper=upper,
        lower=lower,
        title=title,
        capital=capital,
        full_stop=full_stop,
        ends=frozenset(rows[mark] for mark in _SENTENCE_ENDS if mark in rows),
        inexpressible=bad,
        origins=tuple(origins),
    )


def _hash_all(words: Sequence[str], config: FeatureConfig) -> WordFeatures:
    parts = [hash_words(words[i : i + _HASH_CHUNK], config) for i in range(0, len(words), _HASH_CHUNK)]
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = np.zeros(len(words) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    joined = [np.concatenate([part[field] for part in parts]) for field in range(5)]
    return WordFeatures(joined[0], joined[1], joined[2], joined[3], joined[4], offsets)


def take_words(features: WordFeatures, rows: Ints) -> WordFeatures:
    """Return the features of some words, in the order of `rows` (U,)."""
    counts = features.offsets[rows + 1] - features.offsets[rows]  # (U,)
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    # Position k of the result lies k - offsets[owner] after its owner's first n-gram.
    places = np.arange(offsets[-1]) + np.repeat(features.offsets[rows] - offsets[:-1], counts)
    return WordFeatures(
        features.words[rows],
        features.prefixes[rows],
        features.suffixes[rows],
        features.shapes[rows],
        features.ngrams[places],
        offsets,
    )


@dataclass(frozen=True)
class Variation:
    """Shares of the samples that are varied in an epoch.

    `upper`, `lower` and `title` change the case of whole texts; `clause` adds an entity-free clause cut from the
    text; `cut` adds the text without its entities. The last two are what teaches that plain text has no entities when
    every sentence of the data has one.
    """

    upper: float = 0.05
    lower: float = 0.06
    title: float = 0.03
    clause: float = 0.2
    cut: float = 0.05

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0.0 <= share <= 1.0:
                raise InvalidTraining(f"expected the share {name} in 0..1, got {share}")
        if self.upper + self.lower + self.title > 1.0:
            raise InvalidTraining("expected upper + lower + title of at most 1; lower one of them")


def vary(corpus: Corpus, samples: Sequence[Sample], *, shares: Variation, rng: np.random.Generator) -> list[Sample]:
    """Draw an epoch's samples: each text once, perhaps in another case, and some entity-free ones besides."""
    drawn: list[Sample] = []
    chances = rng.random((len(samples), 4))
    for sample, (case, clause, cut, case_too) in zip(samples, chances, strict=True):
        drawn.append(_recase(corpus, sample, float(case), shares))
        extra = (
            entity_free_clause(corpus, sample, rng=rng) if clause < shares.clause else None,
            without_entities(sample) if cut < shares.cut else None,
        )
        drawn += [_recase(corpus, changed, float(case_too), shares) for changed in extra if changed is not None]
    return drawn


def _recase(corpus: Corpus, sample: Sample, chance: float, shares: Variation) -> Sample:
    # Variant tables cover the words of the data; a word that only exists as a variant keeps its case.
    for share, table in ((shares.upper, corpus.upper), (shares.lower, corpus.lower), (shares.title, corpus.title)):
        if chance < share:
            known = sample.words < len(table)
            return Sample(np.where(known, table[np.where(known, sample.words, 0)], sample.words), sample.labels)
        chance -= share
    return sample


def entity_free_clause(corpus: Corpus, sample: Sample, *, rng: np.random.Generator, shortest: int = 4) -> Sample | None:
    """Cut one run of non-entity tokens out of a text and dress it as a sentence; None if there is no such run."""
    outside = np.concatenate([[0], (sample.labels == 0).astype(np.int8), [0]])
    change = np.diff(outside)
    starts, ends = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
    long = ends - starts >= shortest
    if not long.any():
        return None
    pick = int(rng.integers(int(long.sum())))
    start, end = int(starts[long][pick]), int(ends[long][pick])
    words = sample.words[start:end].copy()
    dress = rng.random(2)
    if dress[0] < 0.7 and words[0] < len(corpus.capital):
        words[0] = corpus.capital[words[0]]
    if dress[1] < 0.7 and int(words[-1]) not in corpus.ends:
        words = np.append(words, corpus.full_stop)
    return Sample(words, np.zeros(len(words), np.int64))


def without_entities(sample: Sample) -> Sample | None:
    """Return the text with its entities' tokens removed; None if fewer than four tokens are left."""
    kept = sample.labels == 0
    return Sample(sample.words[kept], sample.labels[kept]) if kept.sum() >= 4 else None
