"""HTML pages: what is text, where it is, what is refused. tests/e2e/test_documents_shown.py asks a browser as well."""

from __future__ import annotations

import random
from typing import Any

import pytest

from backend.documents.document import UnreadableDocument
from backend.documents.page import read_page
from backend.tagger.tokens import tokenize
from tests.support.trouble import PAGES, TEXTS, random_page

REFUSED = {
    "never closed", "closed in the wrong order", "paragraphs that end themselves", "a block in a paragraph",
    "text in a table", "two bodies", "odd comments", "odd references", "odd tags", "very deep", "one long node", "NUL",
    "lone surrogate",
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_what_can_be_read_in_two_ways_is_refused(name: str) -> None:
    if name not in REFUSED:
        read_page(PAGES[name])
        return
    with pytest.raises(UnreadableDocument, match="expected a page") as refusal:
        read_page(PAGES[name])
    assert "Anna" not in str(refusal.value), "a refusal repeats no text"


def test_tokens_of_a_page_are_the_same_there_and_back() -> None:
    draw = random.Random(5)
    read = 0
    for html in [*(random_page(draw) for _ in range(300)), *PAGES.values(), *TEXTS.values()]:
        try:
            page = read_page(html)
        except UnreadableDocument:
            continue
        read += 1
        for start, end in tokenize(page.text)[:200]:
            words = page.text[start:end]
            value = page.place(start, end)
            assert page.find(value | {"text": words}) == (start, end)
            assert page.find({"globalOffsets": value["globalOffsets"]}) == (start, end)
            del value["globalOffsets"]
            assert page.find(value) == (start, end)
    assert read > 200


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>Al<b>ice</b></p><p>Bob</p>", "Alice\n\u2029Bob"),
        ("<ul>\n<li> One\n two </li>\n<li>3</li></ul>", "One two\n\u20293"),
        ("A<br>B<hr>C<img>D", "A\nB\n\u2029C D"),
        ("<pre>\na\n  b</pre>", "a\n  b"),
        ("<style>p { x }</style><script>let a = '<p>'</script><p>x</p>", "x"),
        ("<table><tr><td>Rome</td><td>Oslo</td></tr></table>", "Rome\n\u2029Oslo"),
        ("<title>no</title><h1>5 &lt; 6</h1>", "5 < 6"),
    ],
)
def test_the_plain_text_is_what_is_seen(html: str, text: str) -> None:
    assert read_page(html).text == text


PAGE = read_page("<p>Hello 😀 Ann</p><p>Ann left</p>")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        # The editor counts the emoji as one character in a path where the white space before it collapses.
        ({"startOffset": 8, "endOffset": 11, "globalOffsets": {"start": 8, "end": 11}, "text": "Ann"}, (8, 11)),
        ({"startOffset": 9, "endOffset": 12, "globalOffsets": {"start": 9, "end": 12}, "text": "Ann"}, (8, 11)),
        ({"startOffset": 9, "endOffset": 12, "globalOffsets": {"start": 8, "end": 11}}, (8, 11)),
        ({"startOffset": 9, "endOffset": 12, "globalOffsets": {"start": 0, "end": 5}}, None),
        ({"startOffset": 9, "endOffset": 12, "text": "Eve"}, None),
        ({"startOffset": 7, "endOffset": 12}, None),
        ({"startOffset": 9, "endOffset": 99}, None),
        ({"globalOffsets": {"start": 0, "end": 99}}, None),
        ({"globalOffsets": {"start": 11, "end": 99}, "text": "Ann left"}, (13, 21)),
    ],
)
def test_what_disagrees_with_itself_is_refused(value: dict[str, Any], found: tuple[int, int] | None) -> None:
    path = "/p[1]/text()[1]"
    assert PAGE.find({"start": path, "end": path, **value}) == found


def test_a_place_that_is_not_there_is_refused() -> None:
    assert PAGE.find({}) is None
    assert PAGE.find({"start": "/p[9]/text()[1]", "end": "/p[9]/text()[1]", "startOffset": 0, "endOffset": 1}) is None
