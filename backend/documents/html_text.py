"""Character references of HTML, as far as every parser reads them alike."""

from __future__ import annotations

import re
from html.entities import html5

SPACE = " \t\n\f\r"

_REFERENCE = re.compile(r"&(#[xX]?[0-9A-Za-z]*|[A-Za-z][A-Za-z0-9]*)?(;?)")
_BARE = tuple(name for name in html5 if not name.endswith(";"))  # names that stand without a semicolon too
_LONGEST = max(map(len, _BARE))
_BARE_NAMES = frozenset(_BARE)


def decode(text: str) -> str | None:
    """Return a text with its references replaced; None where one of them can be read in two ways.

    A name without its semicolon, a number that stands for no character and a line end in disguise are such.

    >>> decode("AT&T &amp; &#x1F600; &eacute;"), decode("&copy 2"), decode("&#13;")
    ('AT&T & 😀 é', None, None)
    """
    pieces: list[str] = []
    at = 0
    for found in _REFERENCE.finditer(text):
        character = _character(found[1] or "", closed=bool(found[2]))
        if character is None:
            return None
        pieces += [text[at : found.start()], found[0] if character == "" else character]
        at = found.end()
    return "".join([*pieces, text[at:]])


def _character(name: str, *, closed: bool) -> str | None:
    """Return what a reference stands for, nothing where it is just these characters, None where that is not sure."""
    if not name:
        return ""
    if name.startswith("#"):
        return _numbered(name[1:]) if closed else None
    if closed and f"{name};" in html5:
        meant = html5[f"{name};"]
        return None if meant in SPACE.replace(" ", "").replace("\t", "") else meant
    starts_known = any(name[:length] in _BARE_NAMES for length in range(2, min(len(name), _LONGEST) + 1))
    return None if starts_known else ""


def _numbered(digits: str) -> str | None:
    try:
        number = int(digits[1:], 16) if digits[:1] in {"x", "X"} else int(digits)
    except ValueError:
        return None
    plain = number in {0x09, 0x20} or 0x21 <= number < 0x7F or 0xA0 <= number < 0xD800 or 0xE000 <= number <= 0x10FFFF
    if not plain or 0xFDD0 <= number <= 0xFDEF or number & 0xFFFE == 0xFFFE:
        return None
    return chr(number)
