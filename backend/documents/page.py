"""A page of `<HyperText>`: positions are text nodes of the browser's document and characters in them.

Label Studio counts twice: `globalOffsets` are code points from the start of the page (a line break counts one), an
XPath names a text node and its offset counts UTF-16 units. What comes back must agree with the words that it repeats.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.documents.document import TURN_BREAK, Document, count_units, read_offset, reads_as, skip_units
from backend.documents.html_nodes import Break, TextNode, read_nodes

_COLLAPSING = " \t\n\f"
_NOWHERE = -1  # where a character of the plain text is in the page when it is not there: the space between blocks


@dataclass
class _Plain:
    """The plain text as it grows: its characters, and where each is in the page."""

    characters: list[str]
    origins: array[int]
    pending: str = ""
    space: int | None = None

    def end_line(self, what: str) -> None:
        """Note that what comes next is apart from what was; the strongest of several breaks counts."""
        if len(what) > len(self.pending):
            self.pending = what

    def add(self, node: TextNode) -> None:
        """Add a node as it is seen: white space collapses, except where it is kept."""
        for at, character in enumerate(node.text, start=node.start):
            if character in _COLLAPSING and not node.keeps_space:
                self.space = at if self.space is None else self.space
                continue
            self._separate()
            self._put(character, at)

    def _separate(self) -> None:
        if self.characters and self.pending:
            for each in self.pending:
                self._put(each, _NOWHERE)
        elif self.characters and self.space is not None:
            self._put(" ", self.space)
        self.pending, self.space = "", None

    def _put(self, character: str, at: int) -> None:
        self.characters.append(character)
        self.origins.append(at)


class Page(Document):
    """The text of a page, `TURN_BREAK` between its blocks; markup, scripts and styles are no part of it."""

    def __init__(self, nodes: Iterable[TextNode | Break]) -> None:
        plain = _Plain([], array("i"))
        self._nodes: list[TextNode] = []
        for node in nodes:
            if isinstance(node, TextNode):
                self._nodes.append(node)
                plain.add(node)
            else:
                plain.end_line({Break.BLOCK: TURN_BREAK, Break.LINE: "\n", Break.OBJECT: " "}[node])
        super().__init__("".join(plain.characters))
        self._origins: Sequence[int] = plain.origins
        # In arrays: as lists a page of a million characters would keep eighty megabytes instead of fifteen.
        self._there = array("i", (i for i, origin in enumerate(plain.origins) if origin != _NOWHERE))
        self._origins_there = array("i", (plain.origins[i] for i in self._there))
        self._node_starts = [node.start for node in self._nodes]
        self._by_path = {node.path: node for node in self._nodes}

    def place(self, start: int, end: int) -> dict[str, Any]:
        """Return XPaths, offsets in them, and global offsets."""
        first, last = self._origins[start], self._origins[end - 1] + 1
        start_path, start_offset = self._path(first, self._node(first))
        end_path, end_offset = self._path(last, self._node(last - 1))
        return {
            "start": start_path,
            "end": end_path,
            "startOffset": start_offset,
            "endOffset": end_offset,
            "globalOffsets": {"start": first, "end": last},
        }

    def find(self, value: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the characters that one of both ways to say it, or both, mean and the region repeats."""
        said = value.get("text")
        pairs = (self._global(value.get("globalOffsets")), self._by_paths(value))
        # Beyond the end of the page only the words can say what is meant.
        most = self._nodes[-1].start + len(self._nodes[-1].text) if self._nodes else 0
        sure = isinstance(said, str)
        likely = [pair for pair in pairs if pair is not None and (sure or pair[1] <= most)]
        spans = {self._span(*pair) for pair in likely if pair[0] <= pair[1]}
        words = {span: self.text[span[0] : span[1]] for span in spans}
        found = [span for span in spans if words[span] == said] or [
            each for each in spans if reads_as(words[each], said)
        ]
        return found[0] if len(found) == 1 else None

    def _node(self, at: int) -> TextNode:
        return self._nodes[bisect_right(self._node_starts, at) - 1]

    @staticmethod
    def _path(at: int, node: TextNode) -> tuple[str, int]:
        before = node.text[: at - node.start]
        units = count_units(before)
        # The editor counts characters beyond U+FFFF as one or as two, by how the text is shown. A path that it does
        # not have in its list, though it means the same node, makes it go by globalOffsets, which have no such doubt.
        return (node.path if units == len(before) else f"/.{node.path}"), units

    @staticmethod
    def _global(value: object) -> tuple[int, int] | None:
        if not isinstance(value, Mapping):
            return None
        start, end = read_offset(value.get("start")), read_offset(value.get("end"))
        return None if start is None or end is None else (start, end)

    def _by_paths(self, value: Mapping[str, Any]) -> tuple[int, int] | None:
        start = self._position(value.get("start"), value.get("startOffset"))
        end = self._position(value.get("end"), value.get("endOffset"))
        return None if start is None or end is None else (start, end)

    def _position(self, path: object, offset: object) -> int | None:
        node = self._by_path.get(path.removeprefix("/.")) if isinstance(path, str) else None
        units = read_offset(offset)
        characters = None if node is None or units is None else skip_units(node.text, units)
        return None if node is None or characters is None else node.start + characters

    def _span(self, first: int, last: int) -> tuple[int, int]:
        begin, end = bisect_left(self._origins_there, first), bisect_left(self._origins_there, last)
        if begin >= end:  # nothing but white space that is not seen
            at = self._there[begin] if begin < len(self._there) else len(self.text)
            return at, at
        return self._there[begin], self._there[end - 1] + 1


def read_page(html: str, *, inline: bool = False) -> Page:
    r"""Read a page. `inline` is what the tag says: the page is then put into Label Studio's own.

    Raises:
        UnreadableDocument: when its markup leaves open what a browser makes of it.

    >>> page = read_page("<p>Ann &amp; <b>Bob</b></p><p>left</p>")
    >>> page.text, page.place(6, 9)["start"], page.place(0, 9)["globalOffsets"]
    ('Ann & Bob\n\u2029left', '/p[1]/b[1]/text()[1]', {'start': 0, 'end': 9})
    """
    return Page(read_nodes(html, inline=inline))
