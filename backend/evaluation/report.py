"""Tables, plots and one HTML page that opens offline."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.evaluation.effort import REVIEW_VALUE
from backend.evaluation.integrated_tables import integrated_size_table, paper_table
from backend.evaluation.law_tables import below_target_table, class_law_table, group_law_table, shortfall_table
from backend.evaluation.plots import all_plots
from backend.evaluation.recommend import Recommendation, recommend
from backend.evaluation.tables import Table, all_tables

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #1c1c1c; }
table { border-collapse: collapse; font-size: 13px; margin: .5em 0 1.5em; display: block; overflow-x: auto; }
th, td { border: 1px solid #ccc; padding: 3px 8px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { background: #f2f2f2; position: sticky; top: 0; }
.plots { display: flex; flex-wrap: wrap; gap: 1em; } .plots svg { width: 560px; height: auto; border: 1px solid #ddd; }
.chosen { background: #fff6e0; border-left: 4px solid #e69500; padding: .6em 1em; }
pre { background: #f6f6f6; padding: .6em; overflow-x: auto; }
"""


def write_report(
    results: dict[str, Any], out: Path, *, settings: dict[str, Any], alphas: Sequence[str]
) -> Recommendation:
    """Write tables (Markdown and CSV), plots (SVG) and `report.html` into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    middle = [a for a in alphas if a != "0.01"]
    laws = [table(results, middle) for table in (group_law_table, class_law_table)]
    tables = all_tables(results, alphas)
    tables[4:4] = [integrated_size_table(results, alphas), paper_table(results, alphas)]
    tables[3:3] = [*laws, shortfall_table(results, alphas)]
    cells = below_target_table(results, alphas)  # thousands of rows for large data: a file of its own only
    plots = all_plots(results, alphas)
    main = "0.05" if "0.05" in alphas else alphas[0]
    chosen = recommend(results, alpha=main, laws=middle)
    shares = {row["order"]: row["actions 20%"] for row in results["effort"]["queue"]}
    order = max(shares, key=lambda each: shares[each])
    queue = (
        f"The review order that finds most corrections in the first fifth of the queue: {order} ({shares[order]:.3f}; "
        f"random {shares['random']:.3f}, {REVIEW_VALUE}, which the queue uses, {shares[REVIEW_VALUE]:.3f})."
    )
    lines = [
        "# Evaluation",
        "",
        f"**Recommended:** {chosen.reason}",
        "",
        queue,
        "",
        "```json",
        _settings(settings),
        "```",
        "",
    ]
    (out / "tables.md").write_text("\n".join(lines) + "\n" + "\n".join(table.markdown() for table in tables))
    for table in (*tables, cells):
        (out / f"{table.name}.csv").write_text(table.csv())
    for name, drawing in plots.items():
        (out / f"{name}.svg").write_text(drawing)
    (out / "report.html").write_text(_page(tables, plots, chosen, queue, settings))
    return chosen


def to_json(results: Any) -> str:  # noqa: ANN401 - JSON
    """Return results as JSON that every program reads: null where a figure does not exist.

    >>> to_json({"a": [1.5, float("nan")], "b": float("inf")})
    '{"a": [1.5, null], "b": null}'
    """
    return json.dumps(_plain(results), allow_nan=False)


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _settings(settings: dict[str, Any]) -> str:
    return json.dumps(settings, indent=2, sort_keys=True)


def _page(
    tables: Sequence[Table], plots: dict[str, str], chosen: Recommendation, queue: str, settings: dict[str, Any]
) -> str:
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Surespan evaluation</title>',
        f"<style>{_STYLE}</style></head><body><h1>Evaluation</h1>",
        f'<p class="chosen"><b>Recommended: {html.escape(chosen.method)}.</b> {html.escape(chosen.reason)}</p>',
        f"<p>{html.escape(queue)}</p>",
        f"<details><summary>Settings</summary><pre>{html.escape(_settings(settings))}</pre></details>",
    ]
    for table in tables:
        parts.append(f"<h2>{html.escape(table.title)}</h2>")
        if table.note:
            parts.append(f"<p>{html.escape(table.note)}</p>")
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
        body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    parts.append('<h2>Plots</h2><div class="plots">')
    for name, drawing in plots.items():
        parts.append(f"<figure>{drawing}<figcaption>{html.escape(name)}</figcaption></figure>")
    parts.append("</div></body></html>")
    return "".join(parts)


def _cell(text: str) -> str:
    escaped = html.escape(text)
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped)
