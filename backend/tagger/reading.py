"""What every tagger does with a text before its network: tokens, language, sentence boundaries; in bounded rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from backend.tagger.errors import InvalidText
from backend.tagger.language import LanguageGuess
from backend.tagger.sentences import find_boundaries
from backend.tagger.tokens import Token, tokenize

# Memory of a call is bounded by this, whatever the number and the length of its texts.
_ROUND_TOKENS = 32_768  # texts are read and tagged in rounds of about this many tokens


class Read(NamedTuple):
    """A text as read: its tokens, its language, and the tokens that begin a further sentence."""

    text: str
    tokens: tuple[Token, ...]
    language: str
    boundaries: tuple[int, ...]


def read_rounds(
    texts: Sequence[str],
    guess: LanguageGuess,
    *,
    languages: Sequence[str | None] | None = None,
    round_tokens: int = _ROUND_TOKENS,
) -> Iterator[list[Read]]:
    """Yield the texts, read, in rounds of about `round_tokens` tokens; `languages` are what the tasks say.

    Raises InvalidText for anything that is not a str, and for a wrong number of languages.

    >>> [[len(read.tokens) for read in reads] for reads in read_rounds(["a b", "c"], LanguageGuess([]), round_tokens=2)]
    [[2], [1]]
    """
    if isinstance(texts, str):
        raise InvalidText("expected a sequence of texts, got one str; put it in a list")
    fields: Sequence[str | None] = [None] * len(texts) if languages is None else languages
    if len(fields) != len(texts):
        raise InvalidText(f"expected one language (or None) a text, got {len(fields)} for {len(texts)} texts")
    waiting: list[Read] = []
    size = 0
    for text, field in zip(texts, fields, strict=True):
        tokens = tuple(tokenize(text))
        language = guess.of(text, field=field)
        waiting.append(Read(text, tokens, language, find_boundaries(text, tokens, language=language)))
        size += len(tokens)
        if size >= round_tokens:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting
