"""Word tokens with exact character offsets into the untouched text.

The rule, in terms of grapheme clusters (what a reader sees as one character), each classed by its first character:

- a run of letters and digits is a token; a number keeps its inner points and commas (`1,000.5`);
- a cluster of a script written without spaces (Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar, ...) is a token
  by itself, so that any entity boundary inside such text can be expressed;
- every other visible cluster (punctuation, symbols, emoji with all their joiners) is a token by itself;
- white space, control and invisible formatting characters are in no token.

Words are split at hyphens and apostrophes: `Paris-based` and `l'Italia` have the names as tokens of their own, and
a text made by joining the words of a tokenised file gives the same tokens as the text it came from.
"""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

import regex

from backend.tagger.errors import InvalidText

# One letter per class of cluster; the token pattern below reads strings of these.
_SPACE, _WORD, _DIGIT, _ALONE, _POINT = "s", "w", "d", "a", "."

_TOKEN = regex.compile(r"d+(?:\.d+)+(?![wd])|[wd]+|[a.]")
_CLUSTER = regex.compile(r"\X")
_ALONE_SCRIPT = regex.compile(
    r"[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}"
    r"\p{Script=Myanmar}\p{Script=Tai_Tham}\p{Script=Tai_Le}\p{Script=New_Tai_Lue}\p{Script=Bopomofo}"
    r"\p{Script=Yi}\p{Script=Tibetan}]"
)
# In such text every character is a cluster of its own (CR LF aside, which is space), so clusters need no search.
_PLAIN = regex.compile(r"[\x00-\u02ff\u0370-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u20a0-\u20bf]*")


class Token(NamedTuple):
    """A token: the characters `text[start:end]`."""

    start: int
    end: int


def _class_of(character: str) -> str:
    category = unicodedata.category(character)
    if character in ".,":
        return _POINT
    if character.isspace() or category[0] == "Z" or category in {"Cc", "Cf"}:
        return _SPACE
    if category == "Nd":
        return _DIGIT
    if category[0] in "LNM":
        return _ALONE if _ALONE_SCRIPT.match(character) else _WORD
    return _ALONE


class _Classes(dict[int, str]):
    """Class letter by code point, filled on first use; `str.translate` reads it."""

    def __missing__(self, code: int) -> str:
        letter = self[code] = _class_of(chr(code))
        return letter


_CLASSES = _Classes()
_CLASSES[0xAD] = _WORD  # a soft hyphen stands inside a word


def tokenize(text: str) -> list[Token]:
    r"""Split a text into tokens, in order and disjoint; no grapheme cluster is ever split. Linear time.

    >>> text = "Zoë's l'Aquila\r\nпаїв 👩‍👧!"
    >>> [text[start:end] for start, end in tokenize(text)]
    ['Zoë', "'", 's', 'l', "'", 'Aquila', 'паїв', '👩‍👧', '!']
    >>> tokenize("  ")
    []
    """
    if not isinstance(text, str):
        raise InvalidText(f"expected text (str), got {type(text).__name__}")
    if _PLAIN.fullmatch(text):
        return [Token(*match.span()) for match in _TOKEN.finditer(text.translate(_CLASSES))]
    starts: list[int] = []
    classes: list[str] = []
    for match in _CLUSTER.finditer(text):
        begin, end = match.span()
        starts.append(begin)
        kind = _CLASSES[ord(text[begin])]
        if kind == _SPACE and end - begin > 1 and any(_CLASSES[ord(c)] != _SPACE for c in text[begin:end]):
            kind = _ALONE  # a mark that stands on a space is visible
        classes.append(kind)
    starts.append(len(text))
    return [Token(starts[i], starts[j]) for i, j in (m.span() for m in _TOKEN.finditer("".join(classes)))]


def token_texts(text: str, tokens: list[Token]) -> list[str]:
    """Return the characters of each token.

    >>> token_texts("New York", tokenize("New York"))
    ['New', 'York']
    """
    return [text[start:end] for start, end in tokens]
