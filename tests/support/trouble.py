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


# Dialogues and HTML pages: the shapes of their values, broken and odd ones among them.
DIALOGUES: dict[str, Any] = {
    "nothing": [],
    "no list": {"text": "Anna met Bob."},
    "turns that are texts": ["Anna met Bob.", "He left."],
    "turns without texts": [{"author": "A", "said": "Anna"}, {"author": "B"}, {"author": "C", "said": None}],
    "a turn with a number": [{"said": "Anna"}, {"said": 7}],
    "ten thousand turns": [{"author": str(i % 2), "said": f"Anna{i} met Bob."} for i in range(10_000)],
    **{
        f"{name}, twice": [{"author": "A", "said": text}, {"author": "B", "said": text}] for name, text in TEXTS.items()
    },
}
PAGES: dict[str, str] = {
    "nothing": "",
    "white space": " \n ",
    "text alone": "Anna met Bob in Paris.",
    "never closed": "<p>Anna <b>met Bob",
    "closed in the wrong order": "<b>Anna <i>met</b> Bob</i>",
    "paragraphs that end themselves": "<p>Anna<p>met Bob",
    "a block in a paragraph": "<p>Anna <div>met</div> Bob</p>",
    "text in a table": "<table>Anna<tr><td>Bob</td></tr></table>",
    "a table without sections": "<table> <tr> <td>Anna</td> </tr> <tr><th>Bob</th></tr> </table><p>Paris</p>",
    "a table with a head": "<table><caption>x</caption><thead><tr><th>Anna</th></tr></thead><tr><td></td></tr></table>",
    "a whole page": "<!DOCTYPE html>\n<html> <head> <title>t</title> </head>\n <body class=a>\n Anna</body> </html>\n",
    "two bodies": "<body>Anna</body><body>Bob</body>",
    "a script between": "<p>An<script>if (a > b) {}</script>na</p> met <script></script> Bob",
    "a style between": "<p>Anna</p><style>p{color:red}</style><p>Bob</p>",
    "comments": "An<!-- < > & -->na <!----> met <!-- - --> Bob",
    "odd comments": "Anna <!--> met --> <!-- a --!> Bob",
    "references": "Anna &amp; Bob &lt;3 &eacute; &#233; &#x1F600; AT&T & R&D",
    "odd references": "Anna &copy 2 &notit; &#150; &#0; &#xD800; &#13;",
    "line ends": "<pre>\r\n Anna\r\n\r\nmet</pre>Bob\rin",
    "preformatted": "<pre>\n\nAnna\n <b>met</b>\n</pre>",
    "lists": "<ul> <li>Anna</li>\n<li>Bob<ul><li>Paris</li></ul></li></ul><ol><li>x</li></ol>",
    "things that cannot be closed": "Anna<br>met<br/>Bob<hr><img src='a>b'>in<wbr>Paris",
    "attributes": "<p class=a title=\"x > y\" data-a='&amp;' onclick=alert(1)>Anna</p><a href='javascript:1'>Bob</a>",
    "markup in attributes": '<p title="<script>1</script>" b="<!-- x">Anna</p><p c="-->" d="</p>" e="<b">Bob</p>',
    "the same tag in itself": "<b><b><b><b><p>Anna <b>met</b></p></b></b></b></b><p>Bob</p><i><i>in</i> Paris</i>",
    "a table in a cell": "<b><a><table><tr><td>x<table><tr><td><a>y</a></td></tr></table>z</td></tr></table></a></b>",
    "paragraph separators": "<p>Anna\n\u2029met</p>\u2029<pre>Bob\n\u2029in\u2028Paris</pre>\x0bx\x0c y",
    "odd tags": "<p/>Anna <x-y>Bob</x-y> <svg><text>Paris</text></svg> <3 a<b </> <?php ?>",
    "upper case": "<P>Anna <B>met</b> BOB</P><TABLE><TR><TD>x</TD></TR></TABLE>",
    "very deep": "<div>" * 300 + "Anna" + "</div>" * 300,
    "one long node": "<p>" + "Anna met Bob. " * 6_000 + "</p>",
    "emoji": "<p>👩‍👧 Anna\tmet <i>🧑🏽‍🚀 Bob</i> in 🇫🇷 Paris</p>",
    "NUL": "<p>Anna\x00 met Bob</p>",
    "lone surrogate": "<p>Anna \ud800 met Bob</p>",
    "head without a body": "<meta charset=utf-8>\n<link rel=x> \n <h1>Anna</h1> met",
    "base64 of an image": "<img src='data:image/png;base64," + "A" * 50_000 + "'>Anna",
}
_INSIDE = ("b", "i", "span", "em", "a", "code", "font", "sup")
_OUTSIDE = ("p", "div", "h2", "section", "blockquote", "article", "pre")
_BITS = (
    "Anna", "Bob", " ", "  ", "\n", "\t", "😀", "é", "&amp;", "&lt;", "&#233;", "&#x1F468;", "&nbsp;", "a < b", "AT&T",
    "<br>", "<br/>", "<!-- x -->", "<img src=a>", "<wbr>", "\u00a0", "\r\n", "&quot;Paris&quot;", "<script>1</script>",
)  # fmt: skip


def random_page(draw: random.Random, depth: int = 3) -> str:
    """Return random markup, most of it sound: tags within one another, tables, lists, emoji, references, comments."""
    page = "".join(_random_block(draw, depth) for _ in range(draw.randint(1, 4)))
    if draw.random() < 0.1:  # something is broken
        at = draw.randrange(len(page) + 1)
        page = page[:at] + draw.choice(["<b>", "</i>", "<p>", "&amp", "<", "</p>", "<li>", '"']) + page[at:]
    return page


def _random_block(draw: random.Random, depth: int) -> str:
    kind = draw.random()
    if depth == 0 or kind < 0.2:
        return _random_line(draw, depth)
    if kind < 0.3:
        cells = ["<td>" + _random_line(draw, 1) + "</td>" for _ in range(3)]
        return f"<table>\n<tr>{cells[0]} {cells[1]}</tr> <tr>{cells[2]}</tr></table>"
    if kind < 0.4:
        return "<ul>\n" + "".join(f"<li>{_random_block(draw, depth - 1)}</li>\n" for _ in range(2)) + "</ul>"
    tag = draw.choice(_OUTSIDE)
    inner = _random_line(draw, depth) if tag in {"p", "h2", "pre"} else _random_block(draw, depth - 1)
    return f"<{tag} class='x'>{inner}</{tag}>"


def _random_line(draw: random.Random, depth: int) -> str:
    pieces = [draw.choice(_BITS) for _ in range(draw.randint(0, 6))]
    if depth > 0:
        tag = draw.choice(_INSIDE)
        inner = _random_line(draw, depth - 1)
        pieces.insert(draw.randint(0, len(pieces)), inner if tag == "a" else f"<{tag}>{inner}</{tag}>")
    return "".join(pieces)
