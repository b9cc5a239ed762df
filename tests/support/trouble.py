"""Texts, names and labels that have caused trouble somewhere, or could: run through every path that meets such things.

A new kind of trouble joins by one line here, and every path is tried with it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

TEXTS: dict[str, str] = {
    "nothing": "",
    "white space": " \t\n\u00a0\u2003",
    "one letter": "A",
    "full stops": "." * 3_000,
    "one-word sentences": "No. " * 1_500,
    "capital letters": " ".join("ABCDEFGH"[i % 8] for i in range(2_000)),
    "names": " ".join(f"Anna Smith{i} of Paris" for i in range(1_000)),
    "one long word": "x" * 20_000,
    "no-break space before a full stop": "She took vitamin C\u00a0. Anna met Bob in Paris. He left.",
    "line separator before a full stop": "She took vitamin C\u2028. Anna met Bob.",
    "lone surrogate": "Anna \ud800 met Bob \udfff in Paris.",
    "NUL": "Anna\x00 met \x00Bob in Paris.",
    "control characters": "Anna\x01 met\x7f Bob\x85 in\x1b[31m Paris.",
    "emoji": "👩‍👧 Anna met 🧑🏽‍🚀 Bob in 🇫🇷 Paris.",
    "CRLF": "Anna met Bob.\r\n\r\nHe left Paris.\r\n",
    "combining marks": "A\u0301nna " + "e\u0301" * 300 + " met Bob.",
    "right to left": "زار أحمد مدينة باريس. ثم عاد إلى القاهرة.",
    "direction marks": "\u202eAnna\u202c met \u2066Bob\u2069 in Paris.",
    "unspaced script": "安娜在巴黎见到了鲍勃。他离开了。" * 40,
    "Thai": "แอนนาพบบ็อบในปารีส" * 20,
    "zero width": "An\u200bna met B\u200dob in Par\ufeffis.",
    "markup": "<b>Anna</b> &amp; <script>alert(1)</script> {{ Bob }} ${Paris} %s",
    "brackets": "(" * 2_000 + "Anna" + ")" * 2_000,
    "quotes": "\"'“”«»„`" * 200 + " Anna",
    "digits": "1.2.3.4 " * 500 + "Anna",
    "addresses": "see https://example.org/?q=" + "a" * 2_000 + " and anna@example.org",
    "one line of a table": "\t".join(f"Anna{i}" for i in range(500)),
}

NAMES: dict[str, str] = {
    "nothing": "",
    "white space": " ",
    "lone surrogate": "P\ud800R",
    "NUL": "P\x00R",
    "outside": "O",
    "long": "x" * 5_000,
    "quotes": "'; DROP TABLE labels; --",
    "tags": "B-PER",
    "right to left": "شخص",
    "emoji": "🧑",
    "line break": "PER\nLOC",
}


def string_leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every text inside a JSON value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from string_leaves(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from string_leaves(inner, (*path, number))


def replaced(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """Return a copy of a JSON value with another text at a path."""
    changed = copy.deepcopy(value)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = text
    return changed


# Pieces that texts are put together from: words of several scripts, and what stands between words or inside them.
PIECES = (
    *("Anna", "Bob", "Paris", "vitamin C", "No", "A", "met", "the", "U.S.", "O'Neill", "x" * 60, "3,141.59"),
    *("أحمد", "باريس", "דנה", "בחיפה", "安娜在巴黎", "แอนนาพบ", "Иван", "Ἀθῆναι", "ประเทศ", "अन्ना", "김안나"),
    *("A\u0301nna", "e\u0301\u0323\u0308", "\u0301", "Par\ufeffis", "An\u200bna", "\u202eAnna\u202c", "\u2066Bob"),
    *("👩‍👧", "🇫🇷", "🧑🏽‍🚀", "𝒜", "\ud800", "\udfff", "\udc00\ud800", "\x00", "\x01", "\x7f", "\x85", "\ufffe"),
    *(".", "...", "." * 30, "!", "?", "。", "،", "(", ")", "«", "»", '"', "-", "/", "<b>", "&amp;", "@"),
)
SPACES = ("", " ", " ", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2028", "\u2003", "\u3000", ". ", "\u00a0. ")


def random_text(rng: random.Random, *, most: int = 40) -> str:
    """Return a text of pieces of any script, of a text above, or of both."""
    made = "".join(rng.choice(PIECES) + rng.choice(SPACES) for _ in range(rng.randint(0, most)))
    if rng.random() < 0.3:
        made = rng.choice(list(TEXTS.values()))[: rng.choice((40, 200, 400))] + rng.choice(SPACES) + made
    return made


def random_spans(rng: random.Random, text: str, *, classes: list[str], most: int = 8) -> list[tuple[int, int, str]]:
    """Return regions as a person (or a program) may draw them: overlapping, doubled, cutting tokens, with odd edges."""
    regions: list[tuple[int, int, str]] = []
    for _ in range(rng.randint(0, most)):
        if regions and rng.random() < 0.3:  # beside one that is there: another edge, or another class
            start, end, label = rng.choice(regions)
            start, end = start + rng.choice((-1, 0, 0, 1)), end + rng.choice((-1, 0, 0, 1))
            label = rng.choice((label, label, *classes))
        else:
            start = rng.randint(0, len(text))
            end, label = start + rng.choice((0, 1, 3, 4, 5, 9, 40)), rng.choice(classes)
        start = max(0, min(start, len(text)))
        regions.append((start, max(start, min(end, len(text) + rng.choice((0, 0, 0, 3)))), label))
    return regions
