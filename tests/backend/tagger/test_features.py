import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tagger.errors import InvalidModel
from backend.tagger.features import FeatureConfig, hash_words, normalise, shape

CONFIG = FeatureConfig()
PINNED_WORDS = [[82915, 42652], [8266, 79351], [1074, 46391]]
PINNED_SUFFIXES = [9390, 11682, 9749, 11800]
PINNED_NGRAM_SUM = 586293


@settings(max_examples=150)
@given(st.lists(st.text(min_size=1, max_size=40), max_size=12))
def test_features_depend_on_the_word_alone(words: list[str]) -> None:
    together = hash_words(words, CONFIG)
    for i, word in enumerate(words):
        alone = hash_words([word], CONFIG)
        for field in ("words", "prefixes", "suffixes", "shapes"):
            np.testing.assert_array_equal(getattr(together, field)[i], getattr(alone, field)[0])
        np.testing.assert_array_equal(together.ngrams[together.offsets[i] : together.offsets[i + 1]], alone.ngrams)


@settings(max_examples=150)
@given(st.lists(st.text(st.characters(exclude_categories=["Cc"]), min_size=1, max_size=60), min_size=1, max_size=12))
def test_rows_lie_inside_their_tables(words: list[str]) -> None:
    found = hash_words(words, CONFIG)
    for name in ("word", "prefix", "suffix", "shape", "ngram"):
        rows = {"prefix": found.prefixes, "suffix": found.suffixes}.get(name, getattr(found, f"{name}s", None))
        assert rows.min() >= 0
        assert rows.max() < getattr(CONFIG, f"{name}_rows")
    assert (np.diff(found.offsets) > 0).all()


def test_hashes_never_change() -> None:
    # A saved model is worthless when these move: change them only together with the format version.
    found = hash_words(["Berlin", "日", "U2"], CONFIG)
    assert found.words.tolist() == PINNED_WORDS
    assert found.suffixes[0].tolist() == PINNED_SUFFIXES
    assert int(found.ngrams.sum()) == PINNED_NGRAM_SUM


def test_different_words_rarely_share_both_rows() -> None:
    words = ["".join(chr(97 + (i // 26**k) % 26) for k in range(4)) for i in range(20_000)]
    rows = {tuple(row) for row in hash_words(words, CONFIG).words.tolist()}
    assert len(rows) >= len(words) - 2
    counts = np.bincount(hash_words(words, CONFIG).words.ravel(), minlength=CONFIG.word_rows)
    assert counts.max() <= 8  # a fair hash puts 40,000 keys into 98,304 rows with hardly any row above six


@pytest.mark.parametrize("word", ["a" * 100_000, "é" * 100_000, "日", "\ud800", "\u0301"])
def test_strange_words_are_hashed(word: str) -> None:
    found = hash_words([word], CONFIG)
    assert len(normalise(word)) <= 24 or not word.isascii()
    assert found.words.shape == (1, 2)
    assert len(shape(word)) <= 24


def test_no_words() -> None:
    found = hash_words([], CONFIG)
    assert found.words.shape == (0, 2)
    assert found.offsets.tolist() == [0]


@pytest.mark.parametrize("change", [{"word_rows": 0}, {"ngram_lengths": ()}, {"ngram_lengths": (9,)}])
def test_bad_configuration_is_refused(change: dict) -> None:
    with pytest.raises(InvalidModel, match="expected"):
        FeatureConfig(**change)
