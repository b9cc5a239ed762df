"""Plots of an evaluation, drawn without a display; SVG, so that a report holds them itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from backend.drawing.area import Area
from backend.drawing.scales import Scale, ticks
from backend.drawing.standalone import role_of, svg_file
from backend.evaluation.tables import at, average

_SIZES = (0, 1, 2, 5, 10, 20, 50, 100)  # named on the axis of set sizes
_SIZED = ("nc1", "nc3", "conditional+nc1", "joint+nc1", "integrated", "integrated+nc1")


def all_plots(results: dict[str, Any], alphas: Sequence[str]) -> dict[str, str]:
    """Return every plot by name, as SVG."""
    plots: dict[str, str] = {}
    for kind in ("language", "length", "entities", "class"):
        for strata in (False, True):
            name = f"coverage-{kind}-{'strata' if strata else 'no-strata'}"
            plots[name] = _coverage(results, kind, alphas, strata=strata)
    plots["set-sizes"] = _sizes(results)
    plots["ks-lengths"] = _heatmap(results["ks"])
    return plots


def _coverage(results: dict[str, Any], kind: str, alphas: Sequence[str], *, strata: bool) -> str:
    """Coverage minus target against the target, one line per group."""
    records = results[f"nc1|{'strata' if strata else 'no strata'}"]
    targets = [1 - float(alpha) for alpha in alphas]
    gaps: dict[str, list[float]] = {}
    for group in at(records, alphas[0])[0][kind]:
        gaps[group] = [
            average([r[kind][group]["coverage"] for r in at(records, alpha) if group in r[kind]]) - target
            for alpha, target in zip(alphas, targets, strict=True)
        ]
    known = [gap for line in gaps.values() for gap in line if math.isfinite(gap)]
    across = Scale(min(targets), max(targets))
    up = Scale(min([*known, -0.01]), max([*known, 0.01]), upwards=True)
    area = Area()
    area.grid(across=[up.at(tick) for tick in ticks(up.low, up.high)])
    for tick in ticks(up.low, up.high):
        area.left_label(up.at(tick), f"{tick:g}")
    for target in sorted(targets):
        area.bottom_label(across.at(target), f"{target:g}")
    area.target(top=up.at(0.0))
    for number, (group, line) in enumerate(gaps.items()):
        places = [
            (across.at(target), up.at(gap)) for target, gap in zip(targets, line, strict=True) if math.isfinite(gap)
        ]
        area.line(places, role_of(number))
        for (left, top), gap in zip(places, filter(math.isfinite, line), strict=True):
            area.dot(left, top, role_of(number), title=f"{group}: {gap:+.4f}", size=3)
    title = f"nc1 by {kind}, {'thresholds per stratum' if strata else 'one threshold'}"
    legend = [(group, role_of(number)) for number, group in enumerate(gaps)]
    return svg_file(area, title=title, across="target", up="coverage - target", legend=legend)


def _sizes(results: dict[str, Any]) -> str:
    """Distribution of set sizes at 0.95."""
    across, up = Scale(0.0, _spread(_SIZES[-1])), Scale(0.0, 1.0, upwards=True)
    area = Area()
    area.grid(across=[up.at(tick) for tick in ticks(0.0, 1.0)])
    for tick in ticks(0.0, 1.0):
        area.left_label(up.at(tick), f"{tick:g}")
    for size in _SIZES:
        area.bottom_label(across.at(_spread(size)), f"{size}")
    legend = []
    for number, name in enumerate(_SIZED):
        counts = next((r["sizes"] for r in results[f"{name}|strata"] if "sizes" in r), None)
        if counts is None:
            continue
        shares = (np.cumsum(counts) / max(1, sum(counts)))[: _SIZES[-1] + 1]
        places = [(across.at(_spread(size)), up.at(float(share))) for size, share in enumerate(shares)]
        area.line(places, role_of(number), steps=True)
        legend.append((name, role_of(number)))
    return svg_file(
        area,
        title="Set sizes at target 0.95, thresholds per stratum",
        across="set size",
        up="share of sets at most this large",
        legend=legend,
    )


def _spread(size: float) -> float:
    """Return where a size lies: up to 1 in proportion, beyond by its logarithm."""
    return size if size <= 1 else 1.0 + math.log10(size)


def _heatmap(ks: dict[str, Any]) -> str:
    """Mean KS distance of nc1 between lengths."""
    table, labels = np.array(ks["distance"], dtype=np.float64), ks["lengths"]
    finite = table[np.isfinite(table)]
    most, step = float(finite.max(initial=0.0)) or 1.0, 100.0 / len(labels)
    area = Area()
    for i, name in enumerate(labels):
        area.left_label((i + 0.5) * step, name)
        area.bottom_label((i + 0.5) * step, name)
        for j in range(len(labels)):
            if np.isfinite(table[i, j]):
                area.cell(j * step, i * step, size=step, share=table[i, j] / most, text=f"{table[i, j]:.2f}")
    title = f"KS distance of nc1 between lengths ({ks['language']}; 100 draws, 100 repeats)"
    return svg_file(area, title=title)
