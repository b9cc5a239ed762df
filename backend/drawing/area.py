"""The area of a chart: marks by their place in per cent, so that it takes any width and its text keeps its size.

Lines, bands and bars are stretched with the area; text and dots are only placed. Colours come from the classes
`first` to `eighth` in the style sheet of the page, so that they follow the reader's scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

ROLES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
Place = tuple[float, float]  # per cent from the left, per cent from the top


class Area:
    """Collects marks; `content` returns them as the inside of an `svg` element."""

    def __init__(self) -> None:
        self._grid: list[str] = []
        self._stretched: list[str] = []
        self._placed: list[str] = []

    def grid(self, *, across: Sequence[float] = (), down: Sequence[float] = ()) -> None:
        """Draw thin lines across the area (places from the top) and down it (from the left)."""
        for top in across:
            self._grid.append(f'<line class="grid" x1="0" x2="100%" y1="{_per(top)}" y2="{_per(top)}"/>')
        for left in down:
            self._grid.append(f'<line class="grid" y1="0" y2="100%" x1="{_per(left)}" x2="{_per(left)}"/>')

    def line(self, places: Sequence[Place], role: str, *, steps: bool = False) -> None:
        """Draw a line through places; with `steps`, level until the next place."""
        if len(places) < 2:
            return
        cut = [places[0]]
        for before, place in pairwise(places):
            cut += [(place[0], before[1]), place] if steps else [place]
        self._stretched.append(f'<path class="line {role}" d="{_path(cut)}"/>')

    def band(self, upper: Sequence[Place], lower: Sequence[Place], role: str) -> None:
        """Fill what lies between two lines."""
        self._stretched.append(f'<path class="band {role}" d="{_path([*upper, *reversed(lower)])}Z"/>')

    def dot(self, left: float, top: float, role: str, *, title: str, size: float = 4.0) -> None:
        """Draw a dot, with what a pointer over it reads."""
        if 0.0 <= left <= 100.0 and 0.0 <= top <= 100.0:
            place = f'cx="{_per(left)}" cy="{_per(top)}" r="{size:g}"'
            self._placed.append(f'<circle class="dot {role}" {place}>{_title(title)}</circle>')

    def whisker(self, start: Place, end: Place, role: str) -> None:
        """Draw an interval."""
        ends = f'x1="{_per(start[0])}" y1="{_per(start[1])}" x2="{_per(end[0])}" y2="{_per(end[1])}"'
        self._placed.append(f'<line class="whisker {role}" {ends}/>')

    def bar(self, left: float, top: float, *, width: float, height: float, role: str, title: str) -> None:
        """Draw a bar; its height is in pixels, from a place."""
        size = f'x="{_per(left)}" y="{top:g}" width="{_per(width)}" height="{height:g}"'
        self._placed.append(f'<rect class="bar {role}" {size}>{_title(title)}</rect>')

    def cell(self, left: float, top: float, *, size: float, share: float, text: str) -> None:
        """Draw a cell of a table of `size` per cent both ways: the larger the share of the largest, the darker."""
        place = f'x="{_per(left)}" y="{_per(top)}" width="{_per(size)}" height="{_per(size)}"'
        middle = f'x="{_per(left + size / 2)}" y="{_per(top + size / 2)}" dy=".35em"'
        self._placed.append(f'<rect {place} fill="#1f6fb2" fill-opacity="{0.05 + 0.95 * share:.3f}"/>')
        self._placed.append(f'<text class="middle{" light" if share > 0.5 else ""}" {middle}>{escape(text)}</text>')

    def target(self, *, top: float | None = None, left: float | None = None) -> None:
        """Draw the dashed line of the target, across or down."""
        if top is not None:
            self._placed.append(f'<line class="target" x1="0" x2="100%" y1="{_per(top)}" y2="{_per(top)}"/>')
        if left is not None:
            self._placed.append(f'<line class="target" y1="0" y2="100%" x1="{_per(left)}" x2="{_per(left)}"/>')

    def left_label(self, top: float, text: str) -> None:
        """Write the name of a value on the vertical axis."""
        self._placed.append(f'<text class="axis end" x="-8" y="{_per(top)}" dy=".35em">{escape(text)}</text>')

    def bottom_label(self, left: float, text: str) -> None:
        """Write the name of a value on the horizontal axis; at the ends it stays inside."""
        anchor = "start" if left < 6 else "end" if left > 94 else "middle"
        self._placed.append(f'<text class="axis {anchor}" x="{_per(left)}" y="100%" dy="1.5em">{escape(text)}</text>')

    def row_label(self, top: float, text: str) -> None:
        """Write the name of a row above it; `top` is in pixels."""
        self._placed.append(f'<text class="row" x="0" y="{top:g}">{escape(text)}</text>')

    def content(self) -> str:
        """Return what was drawn: the grid, stretched marks on it, placed ones above."""
        inner = "".join(self._stretched)
        shapes = f'<svg class="shapes" viewBox="0 0 100 100" preserveAspectRatio="none">{inner}</svg>' if inner else ""
        return "".join(self._grid) + shapes + "".join(self._placed)


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _per(value: float) -> str:
    return f"{value:.2f}%"


def _path(places: Sequence[Place]) -> str:
    return "M" + "L".join(f"{left:.2f} {top:.2f}" for left, top in places)
