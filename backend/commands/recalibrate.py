"""`surespan recalibrate`: refit now, and show the new thresholds against the old."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from backend.commands.errors import reported
from backend.settings import load_settings

if TYPE_CHECKING:
    from backend.calibration.comparison import PoolChange
    from backend.calibration.refit import Refit


@click.command("recalibrate")
@click.option("--project", default="local", show_default=True, help="Id or uid of the project.")
@click.option("--model", help="The tagger. [default: SURESPAN_MODEL or the bundled one]")
@click.option(
    "--adaptive/--fixed",
    default=None,
    help="From now on let the level follow the misses of audited tasks (long-run only), or fix it again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@reported
def command(*, project: str, model: str | None, adaptive: bool | None, as_json: bool) -> None:
    """Refit the thresholds of a project from its stored labels, and show what changed.

    A running service serves the new version within seconds; its worker then brings Label Studio up to date.
    """
    from backend.calibration.local import refit_key
    from backend.models.own import load_model_for
    from backend.store import open_store
    from backend.tagger.configured import load_configured

    settings = load_settings(**({} if model is None else {"model": model}))
    with open_store(settings.database_url) as store:
        tagger = load_configured(settings) if model else load_model_for(store, project, settings=settings)
        _, refit = refit_key(store, tagger, settings, key=project, reason="recalibrate", adaptive=adaptive)
    echo_refit(refit, as_json=as_json)


def echo_refit(refit: Refit, *, as_json: bool) -> None:
    """Print what a refit did."""
    if as_json:
        click.echo(json.dumps(_as_dict(refit)))
        return

    console = Console(highlight=False)
    version = refit.version
    if not refit.changed:
        console.print(f"Nothing changed: threshold version {version.id} continues to serve ({version.guarantee}).")
        return
    table = Table(title=f"Threshold version {version.id} ({version.guarantee}, alpha {version.alpha})", box=None)
    for name in ("pool or class", "guarantee", "n before", "n", "tau before", "tau", "change", "set size"):
        table.add_column(name, justify="left" if name in {"pool or class", "guarantee"} else "right")
    for change in refit.changes:
        before = "" if change.n_before is None else f"{change.n_before:,}"
        moved = "" if change.change is None else f"{change.change:+.4f}"
        table.add_row(
            change.name,
            change.guarantee or "",
            before,
            f"{change.n_after:,}",
            _number(change.tau_before),
            _number(change.tau_after),
            moved,
            _sizes(change),
        )
    console.print(table)
    for line in _remarks(refit):
        console.print(line)


def _remarks(refit: Refit) -> Iterator[str]:
    """Say in words what the table does not: the gap, skipped tasks, weights."""
    details = refit.version.details
    gap = details.get("gap") or {}
    if gap.get("gap") is not None:
        low, high = gap["interval_95"]
        sense = "prelabels are accepted too easily" if gap["detected"] else "chance can explain it"
        yield (
            f"Acceptance of the best labeling, with minus without a prelabel in view: {gap['gap']:+.3f} "
            f"(95 % interval {low:+.3f} to {high:+.3f}): {sense}."
        )
    skips = details.get("skips") or {}
    if skips.get("unresolved"):
        yield f"Skipped and not labelled since: {skips['unresolved']} ({skips['share']:.1%} of the tasks that count)."
    level = details.get("adaptive")
    if level:
        yield f"The level is adaptive: {level['level']} now, for {level['target']} in the long run."
    if "effective_n" in details:
        worth = ", ".join(f"{pool} {n:g}" for pool, n in details["effective_n"].items())
        yield f"Selection probabilities differ, so rows are weighted; effective sample sizes: {worth}."


def _as_dict(refit: Refit) -> dict[str, object]:
    details = refit.version.details
    return {
        "threshold_version": refit.version.id,
        "previous_version": None if refit.previous is None else refit.previous.id,
        "changed": refit.changed,
        "guarantee": refit.version.guarantee,
        "alpha": refit.version.alpha,
        "evidence": refit.version.evidence,
        "gap": details.get("gap"),
        "skips": details.get("skips"),
        "effective_n": details.get("effective_n"),
        "pools": [_change(change) for change in refit.changes],
    }


def _change(change: PoolChange) -> dict[str, object]:
    # JSON has no infinity: null is an infinite threshold, absent rows are told apart by n_before.
    finite = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in (("tau_before", change.tau_before), ("tau", change.tau_after))
    }
    return {
        "kind": change.kind,
        "name": change.name,
        "guarantee": change.guarantee,
        "n_before": change.n_before,
        "n": change.n_after,
        **finite,
        "change": change.change,
        "set_size_before": change.size_before,
        "set_size": change.size_after,
        "sampled": change.sampled,
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "open" if math.isinf(value) else f"{value:.4f}"


def _sizes(change: PoolChange) -> str:
    if change.size_after is None:
        return ""
    before = "" if change.size_before is None else f"{change.size_before:.2f} -> "
    return f"{before}{change.size_after:.2f}"
