"""A drawing that is a file of its own: fixed size, title, names of the axes, legend and colours in it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from backend.drawing.area import ROLES, Area

_WIDTH, _AREA, _LEFT, _RIGHT, _TOP, _BELOW, _ENTRY = 620, 300, 66, 20, 36, 48, 18
_COLUMNS = 4  # of the legend
COLOURS = ("#1f6fb2", "#c25e00", "#6b6f76", "#8e44ad", "#1a7f5a", "#b0306a", "#7a6a00", "#3f51b5")
_STYLE = (
    "svg{font:12px system-ui,sans-serif;background:#fff}text{fill:#1b1f23}.axis{fill:#57606a}"
    ".middle{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#d7dbe0}.target{stroke:#1b1f23}"
    ".line{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke}.light{fill:#fff}"
    ".line.again{stroke-dasharray:5 3}.dot.again{fill-opacity:.35}"
)


def role_of(number: int) -> str:
    """Return the role of the line with this number; after eight the colours come again, with dashed lines.

    >>> role_of(1), role_of(9)
    ('second', 'second again')
    """
    return ROLES[number % len(ROLES)] + " again" * (number // len(ROLES) % 2)


def svg_file(area: Area, *, title: str, across: str = "", up: str = "", legend: Sequence[tuple[str, str]] = ()) -> str:
    """Return the file. Equal drawings give equal bytes.

    Args:
        across: what the horizontal axis shows.
        up: what the vertical axis shows.
        legend: names with the roles of their colours.
    """
    rows = -(-len(legend) // _COLUMNS)
    bottom = _TOP + _AREA + _BELOW
    height = bottom + rows * _ENTRY
    step = (_WIDTH - _LEFT) / _COLUMNS
    entries = "".join(
        f'<g transform="translate({_LEFT + step * (n % _COLUMNS):g} {bottom + _ENTRY * (n // _COLUMNS)})">'
        f'<circle class="dot {role}" cx="5" r="4"/><text x="14" y="4">{escape(name)}</text></g>'
        for n, (name, role) in enumerate(legend)
    )
    middle = _TOP + _AREA / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f"<style>{_STYLE}{_colours()}</style>"
        f'<text class="middle" x="{_WIDTH / 2:g}" y="20">{escape(title)}</text>'
        f'<svg x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" height="{_AREA}" overflow="visible">'
        f"{area.content()}</svg>"
        f'<text class="middle" x="{_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2:g}" y="{_TOP + _AREA + 34}">'
        f"{escape(across)}</text>"
        f'<text class="middle" transform="translate(16 {middle:g}) rotate(-90)">{escape(up)}</text>'
        f"{entries}</svg>\n"
    )


def _colours() -> str:
    return "".join(
        f".line.{role}{{stroke:{colour}}}.dot.{role}{{fill:{colour}}}"
        for role, colour in zip(ROLES, COLOURS, strict=True)
    )
