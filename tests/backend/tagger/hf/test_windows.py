"""Windows: every word once, with context; a text that fits is run as it is; long texts equal a plain pass by window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.tagger.hf.loading import load_checkpoint_tagger
from backend.tagger.hf.subwords import Subwords, first_pieces
from backend.tagger.hf.tagger import WindowTagger
from backend.tagger.hf.windows import cut_texts, find_windows, word_starts
from backend.tagger.reading import Read
from backend.tagger.tokens import Token, tokenize
from tests.support import checkpoints


@given(
    st.lists(st.integers(0, 9), max_size=60),
    st.integers(1, 6).flatmap(lambda margin: st.tuples(st.just(margin), st.integers(2 * margin + 1, 40))),
)
def test_every_word_is_kept_once_within_the_limit_and_with_its_context(
    sizes: list[int], shape: tuple[int, int]
) -> None:
    margin, limit = shape
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    windows = list(find_windows(starts, limit=limit, margin=margin))
    kept = [word for window in windows for word in range(window.first, window.last)]
    assert kept == list(range(len(sizes)))
    if starts[-1] <= limit and sizes:
        assert windows == [(0, len(sizes), 0, len(sizes))]
        return
    for begin, end, first, last in windows:
        assert begin <= first < last <= end
        giant = last - first == 1 and sizes[first] > limit - 2 * margin
        assert giant or starts[end] - starts[begin] <= limit
        # As much context as the margin holds, in whole words.
        assert begin == 0 or starts[first] - starts[begin - 1] > margin
        assert end == len(sizes) or starts[end + 1] - starts[last] > margin


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_the_first_piece_of_a_word_is_the_first_that_shares_a_character(
    gaps: list[tuple[int, int]], sizes: list[int]
) -> None:
    tokens, place = [], 0
    for gap, size in gaps:
        tokens.append(Token(place + gap, place + gap + size + 1))
        place += gap + size + 1
    offsets, place = [], 0
    for size in sizes:
        offsets.append((place, place + size))
        place += size
    found = first_pieces(offsets, tokens)
    for token, first in zip(tokens, found.tolist(), strict=True):
        sharing = [i for i, (a, b) in enumerate(offsets) if a < token.end and token.start < b]
        assert first == (sharing[0] if sharing else -1)


def test_words_without_pieces_begin_at_the_next() -> None:
    assert word_starts(Subwords(np.arange(4), np.array([-1, 1, -1, -1]))).tolist() == [1, 1, 4, 4, 4]
    assert word_starts(Subwords(np.arange(0), np.array([], np.int64))).tolist() == [0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("windows") / "bert", "bert")


@pytest.fixture(scope="module")
def tagger(folder: Path) -> WindowTagger:
    return load_checkpoint_tagger(str(folder))


def test_a_text_that_just_fits_is_run_whole_and_one_piece_more_is_not(tagger: WindowTagger) -> None:
    model = tagger.model
    for words, windows in ((model.limit, 1), (model.limit + 1, 2)):
        text = " ".join(["a"] * words)
        read = Read(text, tuple(tokenize(text)), "und", ())
        pieces = cut_texts([read], model.subworder, limit=model.limit, margin=model.margin, by_sentence=False)
        assert len(pieces) == windows
        assert max(len(piece.ids) for piece in pieces) <= model.limit


def test_stitched_windows_are_the_plain_pass_of_each_window(folder: Path, tagger: WindowTagger) -> None:
    tokenizer, network = checkpoints.plain(folder)
    rng = np.random.default_rng(8)
    words = ["Anna", "met", "Bob", "in", "Lima", "said", "xyz", "L'Aquila"]
    text = " ".join(words[i] for i in rng.integers(0, len(words), 150))
    [tagged] = tagger.potentials([text])
    read = Read(text, tagged.tokens, "und", ())
    pieces = cut_texts([read], tagger.model.subworder, limit=tagger.model.limit, margin=7, by_sentence=False)
    assert len(pieces) > 3
    assert tagger.model.margin == 7
    covered = 0
    for piece in pieces:
        ids = torch.tensor([[tokenizer.cls_token_id, *piece.ids.tolist(), tokenizer.sep_token_id]])
        with torch.no_grad():
            own = network(input_ids=ids).logits[0].double().log_softmax(dim=1).numpy()
        for word in range(piece.window.first, piece.window.last):
            first = int(piece.firsts[word - piece.window.begin])
            np.testing.assert_allclose(tagged.potentials.emissions[word], own[first + 1], atol=1e-5)
            covered += 1
    assert covered == len(tagged.tokens)


def test_where_the_text_fits_windows_change_nothing(tagger: WindowTagger, folder: Path) -> None:
    text = "Anna met Bob in Lima. Nobody saw it!"
    [whole] = tagger.potentials([text])
    longer = load_checkpoint_tagger(str(folder))
    object.__setattr__(longer.model, "limit", 1_000)  # no window at all
    [unwindowed] = longer.potentials([text])
    np.testing.assert_array_equal(whole.potentials.emissions, unwindowed.potentials.emissions)


def test_a_word_longer_than_any_window_does_not_stop_the_rest(tagger: WindowTagger) -> None:
    text = "Anna met " + "z" * 3_000 + " in Lima"
    [tagged] = tagger.potentials([text])
    assert len(tagged.tokens) == 5
    assert np.isfinite(tagged.potentials.emissions).all()
    assert len({tuple(row) for row in tagged.potentials.emissions.round(6).tolist()}) == 5
