"""The text nodes that a browser makes of an HTML page, or a refusal: only markup that every parser reads alike is read.

Label Studio's editor cleans a page (comments, scripts and the doctype go) before a browser parses what is left. So
tags must be closed where they were opened, be of a known kind and stand where they may; then all three agree.
`tests/e2e/test_documents_shown.py` asks the editor's own code and a real browser about generated pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from backend.documents.document import UnreadableDocument, count_units
from backend.documents.html_text import SPACE, decode

MAX_NODE = 60_000  # UTF-16 units; browsers cut longer text nodes
MAX_DEPTH = 200  # browsers flatten what is nested deeper than 512

_INLINE = frozenset(
    [
        "a",
        "abbr",
        "acronym",
        "b",
        "bdi",
        "bdo",
        "big",
        "cite",
        "code",
        "data",
        "del",
        "dfn",
        "em",
        "font",
        "i",
        "ins",
        "kbd",
        "label",
        "mark",
        "q",
        "s",
        "samp",
        "small",
        "span",
        "strike",
        "strong",
        "sub",
        "sup",
        "time",
        "tt",
        "u",
        "var",
    ]
)
_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "center",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hgroup",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "ul",
    ]
)
_TABLE = frozenset(["caption", "colgroup", "thead", "tbody", "tfoot", "tr", "td", "th"])
_VOID = frozenset(["br", "hr", "img", "wbr", "col"])
_METADATA = frozenset(["base", "link", "meta", "style", "title"])
_CELLS = frozenset({"td", "th", "caption"})
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_SECTIONS = frozenset({"thead", "tbody", "tfoot"})
_PARENTS = {
    **dict.fromkeys(("li",), frozenset({"ul", "ol"})),
    **dict.fromkeys(("dt", "dd"), frozenset({"dl"})),
    **dict.fromkeys(("caption", "colgroup", "thead", "tbody", "tfoot"), frozenset({"table"})),
    "col": frozenset({"colgroup"}),
    "tr": _SECTIONS,
    **dict.fromkeys(("td", "th"), frozenset({"tr"})),
}
_TABLE_STRUCTURE = frozenset({"table", "colgroup", "tr"}) | _SECTIONS  # where text cannot stand

_ATTRIBUTE = r"""\s++[^\s"'<>/=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'=<>`]++))?+"""
_TAG = re.compile(rf"<(?P<end>/?)(?P<name>[A-Za-z][A-Za-z0-9]*+)(?P<attributes>(?:{_ATTRIBUTE})*+)\s*+(?P<self>/?)>")
_COMMENT = re.compile(r"<!--(?!>|->)(?:(?!<!--|--!>|-->).)*+-->", re.DOTALL)
_DOCTYPE = re.compile(r"<!doctype\b[^<>\"'\[]*+(?:(?:\"[^\"<>]*+\"|'[^'<>]*+')[^<>\"'\[]*+)*+>", re.IGNORECASE)


class Break(Enum):
    """What stands between text: the end of a block, a line break, or something that is not text."""

    BLOCK = "block"
    LINE = "line"
    OBJECT = "object"


@dataclass(frozen=True)
class TextNode:
    """A text node: its path below the body, where it begins in code points, and whether its white space is kept."""

    path: str
    start: int
    text: str
    keeps_space: bool


class _Stage(Enum):
    BEFORE, HEAD, AFTER_HEAD, BODY, AFTER = range(5)


@dataclass
class _Element:
    name: str
    path: str
    counts: dict[str, int] = field(default_factory=dict)
    implied: bool = False

    def child(self, name: str) -> str:
        self.counts[name] = self.counts.get(name, 0) + 1
        return f"{self.path}/{name}[{self.counts[name]}]"


def read_nodes(html: str, *, inline: bool) -> Iterator[TextNode | Break]:
    """Yield the text nodes of the body, in order, and what stands between them.

    Raises:
        UnreadableDocument: at the first place that browsers and the editor need not read alike.
    """
    if html.startswith("\ufeff") or "\x00" in html or any("\ud800" <= each <= "\udfff" for each in html):
        raise UnreadableDocument("expected a page without NUL, byte order mark and lone surrogates, got one with them")
    return _Reader(html.replace("\r\n", "\n").replace("\r", "\n"), inline=inline).nodes()


class _Reader:
    """Reads one page."""

    def __init__(self, html: str, *, inline: bool) -> None:
        self._html, self._inline = html, inline
        self._stage = _Stage.BODY if inline else _Stage.BEFORE
        self._stack = [_Element("body", "")]
        self._text: list[str] = []
        self._at = 0  # where reading is
        self._global = 0  # code points of the page so far, as the editor counts them
        self._html_open = self._body_open = False

    def nodes(self) -> Iterator[TextNode | Break]:
        while self._at < len(self._html):
            if self._html[self._at] == "<":
                yield from self._markup()
            else:
                end = self._html.find("<", self._at)
                end = len(self._html) if end < 0 else end
                self._text.append(self._decoded(self._html[self._at : end]))
                self._at = end
        yield from self._flush()
        if len(self._stack) > 1:
            raise self._refusal(f"<{self._stack[-1].name}> that is not closed")

    def _markup(self) -> Iterator[TextNode | Break]:
        html, at = self._html, self._at
        following = html[at + 1 : at + 2]
        if following and not (following.isascii() and following.isalpha()) and following not in "/!?<":
            self._text.append("<")
            self._at += 1
            return
        found = _COMMENT.match(html, at)
        if found is None and self._stage is _Stage.BEFORE and not self._html_open:
            found = _DOCTYPE.match(html, at)
        if found is not None:
            self._at = found.end()
            return
        tag = _TAG.match(html, at)
        if tag is None:
            raise self._refusal("markup that is not a plain tag or comment")
        self._at = tag.end()
        name = tag["name"].lower()
        if tag["end"]:
            if tag["attributes"] or tag["self"]:
                raise self._refusal(f"</{name[:20]}> with attributes")
            yield from self._close(name)
        elif tag["self"] and name not in _VOID | _METADATA:
            raise self._refusal(f"<{name[:20]}/>")
        else:
            yield from self._open(name)

    def _open(self, name: str) -> Iterator[TextNode | Break]:
        if name == "script":
            self._raw(name)  # the editor takes it out, so that the text around it is one node
            return
        if name in {"html", "head", "body"}:
            self._frame(name)
            return
        if self._stage is _Stage.AFTER:
            raise self._refusal("something after the end of the page")
        if name in _METADATA and self._stage is not _Stage.BODY:
            self._leading_space()
            if name in {"style", "title"}:
                self._raw(name)
            return
        if self._stage is _Stage.HEAD:
            raise self._refusal(f"<{name[:20]}> in the head")
        yield from self._flush()
        self._stage = _Stage.BODY
        self._mend_table(name)
        self._check(name)
        path = self._stack[-1].child(name)
        if name == "br":
            self._global += 1
            yield Break.LINE
        elif name == "hr":
            yield Break.BLOCK
        elif name == "img":
            yield Break.OBJECT
        elif name == "style":
            self._global += len(self._raw(name))
        elif name not in _VOID | _METADATA:
            self._stack.append(_Element(name, path))
            if name not in _INLINE:
                yield Break.BLOCK

    def _close(self, name: str) -> Iterator[TextNode | Break]:
        if name in {"html", "head", "body"}:
            yield from self._close_frame(name)
            return
        yield from self._flush()
        top = self._stack[-1]
        if top.implied and name == "table":
            self._stack.pop()
            top = self._stack[-1]
        if len(self._stack) < 2 or top.name != name or top.implied:
            raise self._refusal(f"</{name[:20]}> that closes nothing")
        self._stack.pop()
        if name not in _INLINE:
            yield Break.BLOCK

    def _frame(self, name: str) -> None:
        """Take the tags around head and body: each once, in order."""
        if self._inline:
            raise self._refusal(f"<{name}> in a page that is shown inline")
        self._leading_space()
        fits = {
            "html": self._stage is _Stage.BEFORE and not self._html_open,
            "head": self._stage is _Stage.BEFORE,
            "body": self._stage in {_Stage.BEFORE, _Stage.AFTER_HEAD},
        }[name]
        if not fits:
            raise self._refusal(f"<{name}> where it cannot stand")
        if name == "html":
            self._html_open = True
        elif name == "head":
            self._stage = _Stage.HEAD
        else:
            self._stage, self._body_open = _Stage.BODY, True

    def _close_frame(self, name: str) -> Iterator[TextNode | Break]:
        yield from self._flush()
        if name == "head" and self._stage is _Stage.HEAD:
            self._stage = _Stage.AFTER_HEAD
        elif name == "body" and self._body_open and self._stage is _Stage.BODY and len(self._stack) == 1:
            self._stage = _Stage.AFTER
        elif name == "html" and self._html_open and self._stage is _Stage.AFTER:
            self._html_open = False
        else:
            raise self._refusal(f"</{name}> where it cannot stand")

    def _mend_table(self, name: str) -> None:
        """Begin or end the section that browsers put around rows which have none."""
        if self._stack[-1].implied and name in _SECTIONS | {"caption", "colgroup"}:
            self._stack.pop()
        if name == "tr" and self._stack[-1].name == "table":
            table = self._stack[-1]
            self._stack.append(_Element("tbody", table.child("tbody"), implied=True))

    def _check(self, name: str) -> None:
        """Refuse an element that is not known, or that a browser would move or close something for."""
        parents = [each.name for each in self._stack]
        if name not in _INLINE | _BLOCKS | _TABLE | _VOID | {"style", "link", "meta"}:
            raise self._refusal(f"<{name[:20]}>, which is not known")
        if len(parents) > MAX_DEPTH:
            raise self._refusal(f"more than {MAX_DEPTH} tags within one another")
        wanted = _PARENTS.get(name)
        if (wanted is not None and parents[-1] not in wanted) or (wanted is None and parents[-1] in _TABLE_STRUCTURE):
            raise self._refusal(f"<{name}> in <{parents[-1]}>")
        inside = set()
        for each in reversed(parents):
            inside.add(each)
            if each in _CELLS:
                break
        if (name in _BLOCKS or name == "hr") and "p" in inside:
            raise self._refusal(f"<{name}> in <p>")
        if name == "a" and "a" in inside:
            raise self._refusal("<a> in <a>")
        if name in _HEADINGS and inside & _HEADINGS:
            raise self._refusal("a heading in a heading")

    def _raw(self, name: str) -> str:
        """Skip to behind the end tag of an element whose content is not markup; returns the content."""
        end = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(self._html, self._at)
        content = "" if end is None else self._html[self._at : end.start()]
        if end is None or ("<!--" if name == "script" else "<") in content:
            raise self._refusal(f"<{name}> with content that can be read in two ways")
        self._at = end.end()
        return content

    def _leading_space(self) -> None:
        """Drop the white space before the body begins."""
        if "".join(self._text).strip(SPACE):
            raise self._refusal("text in front of the body")
        self._text.clear()

    def _flush(self) -> Iterator[TextNode]:
        """Make a text node of what was read since the last tag."""
        text = "".join(self._text)
        self._text.clear()
        if self._stage is not _Stage.BODY:
            text = text.lstrip(SPACE)
            if text and self._stage in {_Stage.HEAD, _Stage.AFTER}:
                raise self._refusal("text outside of the body")
            if text:
                self._stage = _Stage.BODY
        parent = self._stack[-1]
        if parent.name == "pre" and not parent.counts:
            text = text.removeprefix("\n")
        if not text:
            return
        if parent.name in _TABLE_STRUCTURE and text.strip(SPACE):
            raise self._refusal(f"text in <{parent.name}>")
        if count_units(text) > MAX_NODE:
            raise self._refusal(f"a piece of text of more than {MAX_NODE} characters")
        keeps = any(each.name == "pre" for each in self._stack)
        yield TextNode(parent.child("text()"), self._global, text, keeps)
        self._global += len(text)

    def _decoded(self, text: str) -> str:
        decoded = decode(text)
        if decoded is None:
            raise self._refusal("a character reference that can be read in two ways")
        return decoded

    def _refusal(self, got: str) -> UnreadableDocument:
        return UnreadableDocument(
            f"expected a page whose tags are closed where they were opened, got {got} before character {self._at}"
        )
