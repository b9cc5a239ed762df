"""Plots of an evaluation, drawn without a display; SVG, so that a report holds them itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from backend.evaluation.tables import at, average

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 6.4, 4.2


def all_plots(results: dict[str, Any], alphas: Sequence[str]) -> dict[str, bytes]:
    """Return every plot by name, as SVG."""
    made: dict[str, bytes] = {}
    for kind in ("language", "length", "entities", "class"):
        for strata in (False, True):
            name = f"coverage-{kind}-{'strata' if strata else 'no-strata'}"
            made[name] = _svg(_coverage(results, kind, alphas, strata=strata))
    made["set-sizes"] = _svg(_sizes(results))
    made["ks-lengths"] = _svg(_heatmap(results["ks"]))
    return made


def _figure() -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - heavy, and only a report needs it

    return Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")


def _svg(figure: Figure) -> bytes:
    import matplotlib as mpl  # noqa: PLC0415

    buffer = io.BytesIO()
    # Fixed salt and no date: equal results give equal bytes.
    with mpl.rc_context({"svg.hashsalt": "surespan", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _coverage(results: dict[str, Any], kind: str, alphas: Sequence[str], *, strata: bool) -> Figure:
    """Coverage minus target against the target, one line per group."""
    records = results[f"nc1|{'strata' if strata else 'no strata'}"]
    figure = _figure()
    axes = figure.subplots()
    targets = [1 - float(alpha) for alpha in alphas]
    for group in at(records, alphas[0])[0][kind]:
        gaps = []
        for alpha in alphas:
            cells = [r[kind][group]["coverage"] for r in at(records, alpha) if group in r[kind]]
            gaps.append(average(cells) - (1 - float(alpha)))
        axes.plot(targets, gaps, marker="o", markersize=3, linewidth=1.2, label=group)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel("target")
    axes.set_ylabel("coverage - target")
    axes.set_title(f"nc1 by {kind}, {'thresholds per stratum' if strata else 'one threshold'}", fontsize=10)
    axes.legend(fontsize=7, ncols=2)
    return figure


def _sizes(results: dict[str, Any]) -> Figure:
    """Distribution of set sizes at 0.95."""
    figure = _figure()
    axes = figure.subplots()
    for name in ("nc1", "nc3", "conditional+nc1", "joint+nc1", "integrated", "integrated+nc1"):
        counts = next((r["sizes"] for r in results[f"{name}|strata"] if "sizes" in r), None)
        if counts is not None:
            share = np.cumsum(counts) / max(1, sum(counts))
            axes.step(np.arange(len(share)), share, where="post", linewidth=1.2, label=name)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(0, 100)
    axes.set_xlabel("set size")
    axes.set_ylabel("share of sets at most this large")
    axes.set_title("Set sizes at target 0.95, thresholds per stratum", fontsize=10)
    axes.legend(fontsize=7)
    return figure


def _heatmap(ks: dict[str, Any]) -> Figure:
    """Mean KS distance of nc1 between lengths."""
    figure = _figure()
    axes = figure.subplots()
    table = np.array(ks["distance"], dtype=np.float64)
    image = axes.imshow(table, cmap="viridis", vmin=0.0)
    labels = ks["lengths"]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(labels)), labels)
    for i in range(len(labels)):
        for j in range(len(labels)):
            if np.isfinite(table[i, j]):
                axes.text(j, i, f"{table[i, j]:.2f}", ha="center", va="center", color="white", fontsize=8)
    axes.set_title(f"KS distance of nc1 between lengths ({ks['language']}; 100 draws, 100 repeats)", fontsize=9)
    figure.colorbar(image)
    return figure
