from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tagger.linear.tagger import find_rows
from backend.tagger.linear.token_features import BIAS, TokenFeatures, bias_row, hash_tokens
from backend.tagger.linear.word_features import hash_word_list
from backend.tagger.tokens import tokenize


def features(*texts: str, starts: tuple[int, ...] = ()) -> TokenFeatures:
    return hash_tokens(texts, [tokenize(text) for text in texts], [starts if i == 0 else () for i in range(len(texts))])


def of(found: TokenFeatures, token: int) -> list[int]:
    return found.values[found.offsets[token] : found.offsets[token + 1]].tolist()


def test_a_word_keeps_its_hashes_from_release_to_release() -> None:
    # Saved models hold these numbers: a change here makes every one of them forget.
    matrix, grams, offsets = hash_word_list(["Aspirin", "NATO-2", "a"])
    total = int(np.bitwise_xor.reduce(matrix.ravel())) ^ int(np.bitwise_xor.reduce(grams))
    assert (total, offsets.tolist()) == (13343709004417802174, [0, 13, 24, 25])


def test_texts_are_independent_of_each_other() -> None:
    together, alone = features("Anna met Bob.", "5-HT is one."), features("5-HT is one.")
    shift = len(tokenize("Anna met Bob."))
    for token in range(len(tokenize("5-HT is one."))):
        assert of(together, shift + token) == of(alone, token)


def test_nothing_is_seen_beyond_a_sentence() -> None:
    first = features("It rained. Anna slept well today.", starts=(3,))
    second = features("It snowed. Anna slept well today.", starts=(3,))
    for token in range(3, 8):
        assert of(first, token) == of(second, token)
    joined = features("It snowed. Anna slept well today.")
    assert of(joined, 3) != of(second, 3)


def test_a_glued_string_is_known_by_its_parts() -> None:
    glued, loose = features("5-HT"), features("5 - HT")
    assert set(of(glued, 0)) != set(of(loose, 0))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=60), max_size=4))
def test_any_text_has_features(texts: list[str]) -> None:
    found = features(*texts)
    tokens = sum(len(tokenize(text)) for text in texts)
    assert len(found.offsets) == tokens + 1
    assert found.offsets[-1] == len(found.values)
    assert (np.diff(found.offsets) > 0).all()
    assert not (found.values == 0).any()
    for token in range(tokens):
        assert int(BIAS) in of(found, token)


def test_rows_are_found_by_their_hashes() -> None:
    known = np.unique(features("Anna met Bob.").values)
    assert (known[find_rows(known, known)] == known).all()
    assert known[bias_row(known)] == BIAS
    assert find_rows(known[:0], known).tolist() == [-1] * len(known)
