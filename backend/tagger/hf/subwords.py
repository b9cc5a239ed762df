"""Words to subwords: the pieces a checkpoint's own tokenizer makes of a text, and the first piece of each word.

A fast tokenizer gets the running text, so its pieces are those of `tokenizer(text)`: leading blanks of byte-level BPE,
dummy prefixes of SentencePiece and case folding come out as the checkpoint was trained. A slow one knows no offsets
and gets the words one by one, as `is_split_into_words` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from backend.tagger.borders import or_instead
from backend.tagger.errors import InvalidModel
from backend.tagger.tokens import Token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ints = npt.NDArray[np.int64]
_SURROGATE = regex.compile(r"\p{Cs}")
_PROBE = "a"


class Subwords(NamedTuple):
    """The pieces of a text of N words: ids without special tokens, and the first piece of each word (-1: it has none).

    Words that share a piece have the same first piece; a word is without one where the tokenizer drops its characters.
    """

    ids: Ints  # (S,)
    firsts: Ints  # (N,)


class Subworder:
    """A tokenizer of `transformers`, fast or slow, as pieces of words. Safe to share between threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.fast = bool(tokenizer.is_fast)
        if self.fast:
            # The Rust tokenizer itself: truncation and padding are switched off once, so that no later call changes
            # it, which another thread would trip over.
            self._rust = tokenizer.backend_tokenizer
            self._rust.no_truncation()
            self._rust.no_padding()
        self.before, self.after = _specials(tokenizer)
        self.longest = int(tokenizer.model_max_length)  # pieces, special tokens included
        pad = tokenizer.pad_token_id
        self.pad = 0 if pad is None else int(pad)

    def split(self, texts: Sequence[str], tokens: Sequence[Sequence[Token]]) -> list[Subwords]:
        """Return the pieces of each text; `tokens` are its words, in order and disjoint."""
        if not self.fast:
            known: dict[str, list[int]] = {}
            return [self._word_by_word(text, words, known) for text, words in zip(texts, tokens, strict=True)]
        # A lone surrogate has no UTF-8, which Rust takes; one character for one keeps the offsets.
        clean = [_SURROGATE.sub("\ufffd", text) for text in texts]
        encodings = or_instead(
            lambda: self._rust.encode_batch(clean, add_special_tokens=False),
            instead=None,
            library="tokenizers",
            text="".join(clean),
        )
        if encodings is None:  # one of them is too much for the library: the others are read one by one
            return [self._alone(text, words) for text, words in zip(clean, tokens, strict=True)]
        return [
            Subwords(np.array(one.ids, np.int64), first_pieces(one.offsets, words))
            for one, words in zip(encodings, tokens, strict=True)
        ]

    def _alone(self, text: str, tokens: Sequence[Token]) -> Subwords:
        """Return the pieces of one text; none of its words has any where the library fails on it."""
        encoding = or_instead(
            lambda: self._rust.encode(text, add_special_tokens=False), instead=None, library="tokenizers", text=text
        )
        if encoding is None:
            return Subwords(np.zeros(0, np.int64), np.full(len(tokens), -1, np.int64))
        return Subwords(np.array(encoding.ids, np.int64), first_pieces(encoding.offsets, tokens))

    def _word_by_word(self, text: str, tokens: Sequence[Token], known: dict[str, list[int]]) -> Subwords:
        ids: list[int] = []
        firsts: list[int] = []
        for start, end in tokens:
            word = _SURROGATE.sub("\ufffd", text[start:end])
            if word not in known:
                known[word] = [self._id(piece) for piece in self._tokenizer.tokenize(word)]
            firsts.append(len(ids) if known[word] else -1)
            ids += known[word]
        return Subwords(np.array(ids, np.int64), np.array(firsts, np.int64))

    def _id(self, piece: str) -> int:
        encoded = self._tokenizer.convert_tokens_to_ids(piece)
        return encoded if isinstance(encoded, int) else encoded[0]


def first_pieces(offsets: Sequence[tuple[int, int]], tokens: Sequence[Token]) -> Ints:
    """Return, for each word, the first piece that shares a character with it, or -1.

    >>> first_pieces([(0, 3), (3, 6), (7, 9)], [Token(0, 6), Token(7, 8), Token(8, 9), Token(10, 11)]).tolist()
    [0, 2, 2, -1]
    """
    starts = [token.start for token in tokens]
    firsts = np.full(len(tokens), -1, np.int64)
    word = 0
    for piece, (begin, end) in enumerate(offsets):
        if begin == end:
            continue
        while word < len(tokens) and tokens[word].end <= begin:
            word += 1
        place = word
        while place < len(tokens) and starts[place] < end:
            if firsts[place] < 0:
                firsts[place] = piece
            place += 1
    return firsts


def _specials(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special ids that the tokenizer puts before and after a text."""
    plain = list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
    whole = list(tokenizer(_PROBE)["input_ids"])
    for place in range(len(whole) - len(plain) + 1):
        if plain and whole[place : place + len(plain)] == plain:
            return tuple(whole[:place]), tuple(whole[place + len(plain) :])
    raise InvalidModel(
        f"expected a tokenizer that frames a text with special tokens, got {whole} for {_PROBE!r}; "
        "look whether its files are whole"
    )
