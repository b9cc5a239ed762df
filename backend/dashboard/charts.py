"""Charts as plotly.js reads them: data and layout as JSON values. Colours are names; the page gives them theirs.

A trace says `role`: the page's script turns it into the colour of the light or dark scheme and takes it out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from backend.dashboard.figures import Chart

Point = tuple[Any, float, float, float]  # place, value, lower end, upper end

_DOWN = {"type": "category", "autorange": "reversed"}  # in the order of the table


def line_chart(lines: Mapping[str, Sequence[Point]], *, target: float | None, roles: Mapping[str, str]) -> Chart | None:
    """Draw shares over time, each with its interval as a band, and the target as a line."""
    data: list[dict[str, Any]] = []
    for name, points in lines.items():
        if not points:
            continue
        role, places = roles[name], [place for place, *_ in points]
        common = {"x": places, "mode": "lines", "hoverinfo": "skip", "line": {"width": 0}, "showlegend": False}
        data.append(common | {"y": [high for *_, high in points], "role": role})
        data.append(common | {"y": [low for *_, low, _ in points], "fill": "tonexty", "role": role})
        data.append(
            {
                "x": places,
                "y": [value for _, value, _, _ in points],
                "name": name,
                "mode": "lines+markers" if len(points) < 40 else "lines",
                "hovertemplate": "%{x}<br>%{y:.1%}",
                "role": role,
            }
        )
    return _shares(data, target) if data else None


def bar_chart(bars: Mapping[str, Sequence[Point]], *, target: float | None, roles: Mapping[str, str]) -> Chart | None:
    """Draw shares side by side, each with its interval."""
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [place for place, *_ in points],
            "y": [value for _, value, _, _ in points],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [high - value for _, value, _, high in points],
                "arrayminus": [value - low for _, value, low, _ in points],
            },
            "marker": {"size": 9},
            "hovertemplate": "%{x}<br>%{y:.1%}",
            "role": roles[name],
        }
        for name, points in bars.items()
        if points
    ]
    if not data:
        return None
    chart = _shares(data, target)
    chart["layout"]["xaxis"] = {"type": "category"}
    chart["layout"]["scattermode"] = "group"
    return chart


def stacked_chart(parts: Mapping[str, Sequence[float]], places: Sequence[str]) -> Chart | None:
    """Draw how a whole divides into parts, for each place."""
    if not places:
        return None
    roles = ("first", "second", "third", "fourth")
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(places),
            "x": list(shares),
            "hovertemplate": "%{y}: %{x:.1%}",
            "role": role,
        }
        for (name, shares), role in zip(parts.items(), roles, strict=False)
    ]
    axis = {"tickformat": ".0%", "range": [0, 1]}
    return {"data": data, "layout": {"barmode": "stack", "xaxis": axis, "yaxis": _DOWN}}


def count_chart(counts: Mapping[str, int]) -> Chart | None:
    """Draw counts by name."""
    if not counts:
        return None
    bar = {"type": "bar", "orientation": "h", "y": list(counts), "x": list(counts.values()), "role": "first"}
    return {"data": [bar | {"hovertemplate": "%{y}: %{x:,}"}], "layout": {"yaxis": _DOWN}}


def step_chart(lines: Mapping[str, Mapping[int, float]]) -> Chart | None:
    """Draw thresholds by version, a line a pool; infinite ones leave a gap."""
    roles = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    data = [
        {
            "name": name,
            "x": [str(version) for version in sorted(values)],
            "y": [values[v] if math.isfinite(values[v]) else None for v in sorted(values)],
            "mode": "lines+markers",
            "line": {"shape": "hv"},
            "hovertemplate": "version %{x}<br>%{y:.3g}",
            "role": role,
        }
        for (name, values), role in zip(lines.items(), roles, strict=False)
        if any(math.isfinite(value) for value in values.values())
    ]
    if not data:
        return None
    return {"data": data, "layout": {"xaxis": {"type": "category", "title": {"text": "threshold version"}}}}


def _shares(data: list[dict[str, Any]], target: float | None) -> Chart:
    lows = [value for trace in data for value in _lows(trace)]
    bottom = max(0.0, math.floor(min([*lows, 1.0 if target is None else target]) * 20 - 0.5) / 20)
    layout: dict[str, Any] = {"yaxis": {"tickformat": ".0%", "range": [bottom, 1.005]}}
    if target is not None:
        layout["target"] = target
    return {"data": data, "layout": layout}


def _lows(trace: Mapping[str, Any]) -> list[float]:
    """Return the lower ends that must be seen; of a line the later half, because the first days hold few labels."""
    values: list[float] = trace["y"]
    below = trace.get("error_y", {}).get("arrayminus")
    if below is None:
        return values[len(values) // 2 :]
    return [value - end for value, end in zip(values, below, strict=True)]
