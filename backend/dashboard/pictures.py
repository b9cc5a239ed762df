"""A chart of a page as a file of its own, to be pasted into a report: title, legend and colours are in it."""

from __future__ import annotations

from html import escape

from backend.dashboard.figures import Figure
from backend.drawing.area import ROLES
from backend.drawing.standalone import COLOURS

_WIDTH, _MARGIN, _TITLE, _ENTRY = 720, 24, 44, 20
_PLOT, _ROWS = (62, 14, 30), (4, 4, 28)  # room to the left, above and below the area, by the kind of chart
_STYLE = (
    "svg{font:13px system-ui,sans-serif;background:#fff}text{fill:#57606a}.title{fill:#1b1f23;font-size:16px;"
    "font-weight:600}.row{fill:#1b1f23}.middle{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#d7dbe0}"
    ".target{stroke:#1b1f23;stroke-width:1.5;stroke-dasharray:6 4}.band{fill-opacity:.18;stroke:none}"
    ".line{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}.whisker{stroke-width:2}"
)


def draw_file(figure: Figure) -> str:
    """Return the chart of a figure as an SVG file; equal figures give equal bytes.

    Raises:
        ValueError: when the figure has no chart.
    """
    chart = figure.chart
    if chart is None:
        raise ValueError(f"expected a figure with a chart, got {figure.name}, which has none")
    left, above, below = _PLOT if chart.kind == "plot" else _ROWS
    area = chart.height - above - below
    bottom = _TITLE + chart.height + _ENTRY
    height = bottom + _ENTRY * (len(chart.legend) + bool(chart.note))
    entries = "".join(
        f'<g transform="translate({_MARGIN} {bottom + _ENTRY * n})"><circle class="dot {role}" cx="5" cy="-4" r="5"/>'
        f'<text x="18">{escape(name)}</text></g>'
        for n, (name, role) in enumerate(chart.legend)
    )
    note = ""
    if chart.note:
        note = f'<text x="{_MARGIN}" y="{bottom + _ENTRY * len(chart.legend)}">{escape(chart.note)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">'
        f"<style>{_STYLE}{_colours()}</style>"
        f'<text class="title" x="{_MARGIN}" y="28">{escape(figure.title)}</text>'
        f'<svg x="{_MARGIN + left}" y="{_TITLE + above}" width="{_WIDTH - 2 * _MARGIN - left}" height="{area}" '
        f'overflow="visible">{chart.content}</svg>{entries}{note}</svg>\n'
    )


def _colours() -> str:
    return "".join(
        f".{role}{{fill:{colour};stroke:none}}.line.{role},.whisker.{role}{{fill:none;stroke:{colour}}}"
        for role, colour in zip(ROLES, COLOURS, strict=True)
    )
